"""A secure sum of whatever an algorithm's server takes the mean of: the numbers of the run without it."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg
from fedweave.algorithms.parts import Clip, Context, Part, SecureSum, UniformTrained
from fedweave.algorithms.parts.longest_pass import encode_batches, max_batches
from fedweave.contract.subject import Subject
from fedweave.core.graph import SPLITS, TRAIN, Graph
from fedweave.core.mechanism import SecureSum as Sum
from fedweave.core.mechanism import read_applied
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.types import FRAMING
from fedweave.errors import ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from tests.contract.federations import algorithm, distance, federation, graphs, model
from tests.random_graphs import replace_fields
from tests.refusals import refusal
from tests.security import summed

WIDE: dict[str, Any] = {"name": "secure_sum", "bits": 64, "fraction": 40, "bound": 8.0}
SUMS = SecureSum(bits=64, fraction=40, bound=8.0)
LOUVAIN = {"name": "louvain", "clients": 4}
NINE = ("scaffold", "feddyn", "feddc", "fedrep", "pfedme", "fednova", "graphfl", "fedsage", "fedgcn")
ALSO: list[tuple[str, dict[str, Any]]] = [
    ("scaffold", {"option": 1}),
    ("scaffold", {"option": 1, "mean": "size"}),
    ("fednova", {"max_local_steps": 4, "momentum": 0.5}),
    ("fednova", {"mu": 0.1, "batch": 4}),
    ("graphfl", {"server": "sgd", "meta_steps": 2}),
    ("fedgcn", {"hops": 1}),
    ("fedavg", {"local_epochs": 2, "batch_size": 4, "optimizer": "sgd"}),
]


def ended(name: str, parts: Any, settings: Any = None, partition: Any = LOUVAIN, mode: str = "vmap") -> tuple[Any, Any]:
    """A run in double precision of three rounds on 90 nodes."""
    document = {
        "seed": 2,
        "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 8, "degree": 6.0},
        "partition": partition,
        "model": {"name": "sage" if name == "fedsage" else "gcn", "hidden": 4, "dropout": 0.0},
        "algorithm": {"name": name, "parts": parts, **(settings or {})},
        "engine": {"name": "simulation", "dtype": "float64", "mode": mode},
    }
    built = build(resolve(document))
    *_, last = train(built.algorithm, built.fed, 3, eval_every=0)
    return last.state, built.fed


def of_nobody(fed: Any) -> None:
    """Whatever went up before and during training was in a secure sum."""
    rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["key"]]
    own = [row for row in rows if row["key"] != FRAMING and "(" not in row["step"] and row["purpose"] != "evaluation"]
    assert own
    for row in own:
        assert any(isinstance(one, Sum) for one in read_applied(row["applied"]).mechanisms), row["key"]
        assert row["reveals"].startswith("nothing by itself; with the others' ")


@pytest.mark.often("scaffold", "fednova", "fedgcn")
@pytest.mark.parametrize("name", NINE)
def test_the_numbers_are_those_of_the_run_without_it(name: str) -> None:
    hidden, fed = ended(name, [WIDE])
    assert 0 < distance(hidden["w"], ended(name, [])[0]["w"]) < 1e-10
    of_nobody(fed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(("name", "settings"), ALSO)
def test_so_they_are_with_other_settings(name: str, settings: Any, mode: str) -> None:
    hidden, fed = ended(name, [WIDE], settings, mode=mode)
    assert 0 < distance(hidden["w"], ended(name, [], settings, mode=mode)[0]["w"]) < 1e-10
    of_nobody(fed)


@pytest.mark.parametrize("hops", [1, 2])
def test_fedgcn_adds_up_each_edge_once_where_clients_share_nodes(hops: int) -> None:
    """Every holder of a node adds it up, divided by how many hold it."""
    overlapping, settings = {"name": "ego_networks", "clients": 5, "hops": 1}, {"hops": hops}
    hidden, fed = ended("fedgcn", [WIDE], settings, overlapping)
    plain, other = ended("fedgcn", [], settings, overlapping)
    assert sum(graph.nodes for graph in fed.graphs.values()) > 90
    assert 0 < distance(hidden["w"], plain["w"]) < 1e-10
    for one, two in zip(fed.graphs.values(), other.graphs.values(), strict=True):
        assert one.nodes == two.nodes


@cache
def taken() -> tuple[str, ...]:
    """The algorithms of the FedAvg family that take a secure sum."""
    return tuple(row[0].strip("`") for row in summed.rows() if "parts" in row[1])


def test_the_nine_are_among_those_that_take_one() -> None:
    assert set(NINE) <= set(taken())


@pytest.mark.slow
@pytest.mark.parametrize("name", taken())
def test_a_sum_changes_no_algorithm_that_takes_one(name: str) -> None:
    """The law, on five clients of different sizes of which one has no training examples."""
    ends = []
    for parts in ((), (SUMS,)):
        subject = Subject(ALGORITHMS[name], {"parts": parts})
        fed = subject.federation(dtype=torch.float64, clients=subject.graphs(torch.float64, idle=2))
        *_, last = train(subject.build(0.0), fed, 3, 0)
        ends.append(last.state)
    assert distance(ends[0]["w"], ends[1]["w"]) < 1e-9


def idle(graph: Graph) -> Graph:
    """Without training examples."""
    return replace_fields(graph, masks=graph.masks & (torch.arange(len(SPLITS))[:, None] != TRAIN))


@pytest.mark.parametrize("name", summed.refused())
def test_who_takes_none_says_so_of_the_algorithm_and_the_setting(name: str) -> None:
    """And never of a class, which no user has written."""
    with pytest.raises(ConfigError) as refused:
        algorithm(name, parts=(SecureSum(),))
    said = str(refused.value)
    assert re.search("secure_sum|parts", said)
    assert not [kind.__name__ for kind in PARTS.values() if re.search(rf"\b{kind.__name__}\b", said)]
    assert name in said or "unknown" in said or "setting" in said


def test_who_count_are_counted_by_hand() -> None:
    """Of three clients two train: each counts a half, and c and h learn that two of three did."""

    class Moves(Part):
        """Updates of 1, and of 3 where there are few examples."""

        def release(self, ctx: Context, update: Any) -> Any:
            value = torch.where(ctx.examples > 5, 1.0, 3.0)
            return {"0": {"bias": torch.full_like(update["0"]["bias"], 1.0) * value}}

    clients = graphs(torch.float64)
    names = list(clients)[:3]
    clients = {name: clients[name] for name in names}
    clients[names[1]] = idle(clients[names[1]])
    fed = federation(dtype=torch.float64, clients=clients)
    seen: list[Any] = []

    class Looks(Part):
        """Notes how many count."""

        def update(self, state: Any, round: Any) -> Any:
            seen.append((int(round.counting), round.weights))
            return state

    made = FedAvg(model(), parts=(UniformTrained(), Moves(), Looks(), SUMS), share=("0/bias",), optimizer="sgd")
    state = made.init(fed)
    after = made.round(state, fed)
    sizes = [int(graph.masks[TRAIN].sum()) for graph in clients.values()]
    due = np.mean([1.0 if size > 5 else 3.0 for size in sizes if size])
    assert torch.allclose(after["w"]["0"]["bias"] - state["w"]["0"]["bias"], torch.tensor(due, dtype=torch.float64))
    assert int(state["parts"]["SecureSum"]["n"]) == 2
    assert seen == [(2, None)]


@pytest.mark.parametrize("counts", [[1], [3, 8], [9, 2, 1], [0, 5], [0, 0]])
def test_the_longest_pass_is_found_up_to_a_power_of_two(counts: list[int]) -> None:
    within = SUMS.sum_form
    told = torch.stack([encode_batches(torch.tensor(count), within) for count in counts])
    assert told.sum(1).tolist() == [1] * len(counts)
    replies = Replies([str(at) for at in range(len(counts))], [ReplyBatch(tuple(range(len(counts))), {"n": told})], {})
    most = max_batches(replies, "n", within)
    assert max(1, *counts) <= most < 2 * max(1, *counts)


@pytest.mark.parametrize(
    ("name", "settings", "parts", "said"),
    [
        ("scaffold", {}, SecureSum(weights="equal"), ("weights = 'equal'", "uniform_trained", "scaffold itself")),
        ("scaffold", {"option": 1}, Clip(1.0), ("clip",)),
        ("fedgcn", {}, SecureSum(require_all=False), ("require_all = false", "fedgcn itself")),
        ("fedrep", {"optimizer": "sgd"}, SecureSum(require_all=False), ("require_all = false", "their own model")),
        ("fedsage_plus", {}, SecureSum(), ("changes clients' data", "fedsage_plus itself")),
    ],
)
def test_what_a_sum_cannot_go_with_is_refused(name: str, settings: Any, parts: Part, said: tuple[str, ...]) -> None:
    with refusal("config.contract", *said):
        algorithm(name, parts=(parts,), **settings)


@pytest.mark.parametrize("name", ["graphfl", "fedsage", "fednova"])
def test_those_who_replied_make_up_the_mean(name: str) -> None:
    """Where nothing is remembered a sum may be of some."""
    away = {"absent": lambda round, client: "away" if round == 2 and client == "site-3" else None}
    some = SecureSum(bits=64, fraction=40, bound=8.0, require_all=False, accomplices=0)
    settings = {"optimizer_state": "fresh", "quorum": 0.5, "dropout": 0.0}
    ends = []
    for parts in ((), (some,)):
        fed = federation(name=name, dtype=torch.float64, **away)
        *_, last = train(algorithm(name, parts=parts, **settings), fed, 3, 0)
        ends.append(last.state["w"])
    assert 0 < distance(*ends) < 1e-10
