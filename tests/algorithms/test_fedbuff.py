"""FedBuff: FedAvg where all are waited for; else the paper's algorithm as a list of events, and by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg, FedBuff
from fedweave.algorithms.fedbuff import schedule
from fedweave.algorithms.fedopt import ServerMomentum
from fedweave.algorithms.parts import ClassCounts, Median, Part, SecureSum, UniformTrained
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, add, map_leaves, scale
from fedweave.experiment.rounds import train
from tests.contract.federations import algorithm, distance, federation, model
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "local_steps": 2}


@pytest.mark.often("parts0-vmap", "parts1-loop")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("parts", [(), (ServerMomentum(),), (UniformTrained(),)])
def test_where_all_are_waited_for_it_is_fedavg_bit_for_bit(mode: str, parts: Any) -> None:
    """Durations are equal. Without dropout, which each algorithm draws for itself."""
    ends = []
    for made in (FedAvg(model(0.0), parts=parts), FedBuff(model(0.0), parts=parts, buffer=5, spread=0.0)):
        *_, last = train(made, federation(mode=mode), 4)
        ends.append(last)
    assert distance(ends[0].state["w"], ends[1].state["w"]) == 0
    assert ends[1].summary["fedbuff/time"] == 4.0
    assert ends[0].summary == {name: value for name, value in ends[1].summary.items() if name != "fedbuff/time"}


def test_what_happens_until_the_next_step_by_hand() -> None:
    """Three clients take 1, 2 and 5; two updates make a step, and who has sent one begins after it."""
    first = schedule({}, [0, 1, 2], [1.0, 2.0, 5.0], 0.0, 3, 2)
    assert first == ([0, 1, 2], [0, 1], {2: 5.0}, 2.0)
    second = schedule(first.due, [1, 0], [1.0, 2.0, 5.0], first.clock, 3, 2)
    assert second == ([1, 0], [0, 1], {2: 5.0}, 4.0)
    third = schedule(second.due, [0, 1], [1.0, 2.0, 5.0], second.clock, 3, 2)
    assert third == ([0, 1], [0, 2], {1: 6.0}, 5.0)  # 0 and 2 come at once, at 5


def test_of_many_clients_some_train_at_once_by_hand() -> None:
    """Two at a time: 0 and 1 begin, 2 where 0 is ready, 3 where 2 is; 1 comes last."""
    plan = schedule({}, [0, 1, 2, 3], [1.0, 9.0, 2.0, 1.0], 0.0, 2, 3)
    assert plan == ([0, 1, 2, 3], [0, 2, 3], {1: 9.0}, 4.0)


@pytest.mark.often("1-vmap", "3-loop")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_it_is_the_papers_algorithm(mode: str, buffer: int) -> None:
    """Against events one by one: a client sends Δ of the weights that it began from, when its time has come."""
    fed = federation(dtype=torch.float64, mode=mode)
    steps = [*train(FedBuff(model(0.0), buffer=buffer, **SGD), fed, 6, eval_every=0)]
    duration, graphs = steps[0].state["clients"]["duration"].tolist(), list(fed.graphs.values())
    plain, examples = FedAvg(model(0.0), **SGD), [int(graph.masks[TRAIN].sum()) for graph in graphs]

    def delta(w: Tree, client: int) -> Tree:
        sent = plain.train(Client(graphs[client], {}, random.key(1), random.key(2)), {"w": w})
        update: Tree = sent["update"]
        return update

    w: Tree = plain.init(federation(dtype=torch.float64))["w"]
    clock, training, lates = 0.0, dict[int, tuple[float, int, Tree]](), list[int]()
    for version, step in enumerate(steps):
        training |= {c: (clock + duration[c], version, delta(w, c)) for c in range(5) if c not in training}
        came = sorted(training, key=lambda client: training[client][0])[:buffer]
        clock = training[came[-1]][0]
        total, late = sum(examples[client] for client in came), [-1] * 5
        for client in came:
            _, began, update = training.pop(client)
            late[client] = version - began
            weight = examples[client] / total / math.sqrt(1 + late[client])
            w = add(w, scale(update, torch.tensor(weight, dtype=torch.float64)))
        assert step.state["clients"]["staleness"].tolist() == late
        assert float(step.state["clock"]) == pytest.approx(clock)
        assert distance(w, step.state["w"]) < 1e-12
        lates += late
    assert max(lates) > 0


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() -> None:
    """With trainings that were under way."""
    *_, whole = train(FedBuff(model(), buffer=2, jitter=0.5), federation(), 5)
    first, again = federation(), federation()
    steps = train(FedBuff(model(), buffer=2, jitter=0.5), first, 5)
    saved = [next(steps) for _ in range(2)][-1]
    assert bool(saved.state["clients"]["busy"].any())
    again.restore(first.snapshot())
    *_, last = train(FedBuff(model(), buffer=2, jitter=0.5), again, 5, resume=(2, saved.state))
    assert distance(last.state, whole.state) == 0


def test_durations_are_log_normal() -> None:
    fed: Any = SimpleNamespace(clients=tuple(f"c{at}" for at in range(4000)), key=lambda purpose: random.key(3))
    logs = FedBuff(model())._factors(fed, 0.7).log()
    assert float(logs.mean()) == pytest.approx(0, abs=5 * 0.7 / 4000**0.5)
    assert float(logs.std()) == pytest.approx(0.7, rel=5 / 8000**0.5)


def test_the_server_knows_when_and_how_late_updates_came() -> None:
    *_, last = train(FedBuff(model(0.0), buffer=2), federation(), 3)
    rows = [row for row in last.metrics.to_pylist() if row["split"] == "server"]
    assert sorted({row["metric"] for row in rows}) == ["staleness", "time"]
    assert len({row["client"] for row in rows}) == 2
    assert {row["value"] for row in rows if row["metric"] == "time"} == {last.summary["fedbuff/time"]}


def test_where_a_client_is_missing_its_update_never_comes() -> None:
    """It begins again after the next step."""
    fed = federation(absent=lambda round, client: "away" if round == 1 and client == "site-0" else None)
    steps = [*train(FedBuff(model(0.0), buffer=5, spread=0.0, quorum=0.5), fed, 2, eval_every=0)]
    assert steps[0].state["clients"]["staleness"].tolist() == [-1, 0, 0, 0, 0]
    assert steps[1].state["clients"]["staleness"].tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"participation": 0.5}, "Set concurrency"),
        ({"parts": (SecureSum(),)}, "secure_sum"),
        ({"parts": (ALGORITHMS["fedpub"](model()).parts[0],)}, "fedbuff"),
    ],
)
def test_what_it_cannot_go_with_is_refused(settings: dict[str, Any], said: str) -> None:
    with refusal("config.contract", said):
        algorithm("fedbuff", **settings)


@pytest.mark.parametrize("part", [Median(), ClassCounts()])
def test_other_parts_go_with_it(part: Part) -> None:
    *_, last = train(FedBuff(model(0.0), buffer=3, parts=(part,)), federation(), 2)
    assert all(bool(leaf.isfinite().all()) for leaf in map_leaves(torch.Tensor.double, last.state["w"])["0"].values())
