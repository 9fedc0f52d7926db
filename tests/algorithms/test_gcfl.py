"""GCFL and GCFL+: when clusters are cut, and where; dynamic time warping against all alignments."""

from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.gcfl import Clusters, SeriesClusters, smaller_side, warping_distance
from fedweave.algorithms.parts import Round, Uniform
from fedweave.core.graph import make_graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import map_leaves
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from tests.contract import test_graphs as small
from tests.contract.federations import CLASSES, arrays, distance, federation, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}


def after(updates: list[list[float]], sizes: list[int], gradients: list[float] | None = None) -> Round:
    """A round in which clients sent these updates."""
    tree: dict[str, Any] = {"update": {"0": {"w": torch.tensor(updates).double()}}, "n": torch.tensor(sizes)}
    if gradients:
        tree["gradient"] = torch.tensor(gradients)
    clients = tuple("abcdefgh"[: len(sizes)])
    return Round(Replies(clients, [ReplyBatch(tuple(range(len(sizes))), tree)], {}), torch.arange(len(sizes)), {}, ())


OPPOSED = [[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-1.1, 0.0]]  # two clients go one way, two the other


def weights(part: Clusters, round: Round, rounds: int = 1, **state: Any) -> tuple[Any, Any]:
    """What `weigh` says in the last of some equal rounds, and the part's state after it."""
    now = part.init(federation(clients=dict.fromkeys(round.replies.clients, graph())), {}) | state
    for _ in range(rounds):
        round = Round(round.replies, round.at, {}, ())
        share = part.weigh(now, round)
        now = part.update(now, round)
    return share, now


def graph() -> Any:
    return make_graph(*arrays(12, 0), dtype=torch.float64)


def test_a_cluster_that_stands_still_while_its_clients_move_is_cut() -> None:
    share, state = weights(Clusters(0.1, 0.5, wait=0), after(OPPOSED, [1, 3, 2, 2]))
    expected = [[0.25, 0.75, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]
    assert share.tolist() == expected
    assert state["cluster"].tolist() == [1, 1, 0, 0]  # the longest update stays


@pytest.mark.parametrize(
    ("updates", "part"),
    [
        (OPPOSED, Clusters(0.01, 0.5, wait=0)),  # the mean update is .025 long
        (OPPOSED, Clusters(0.1, 1.2, wait=0)),  # no update is longer than 1.1
        (OPPOSED, Clusters(0.1, 0.5, wait=1)),  # it is the first round
        (OPPOSED[1:3], Clusters(1.0, 0.5, wait=0)),  # there are only two clients
    ],
    ids=["moving", "near", "early", "few"],
)
def test_otherwise_it_stays(updates: list[list[float]], part: Clusters) -> None:
    share, state = weights(part, after(updates, [1] * len(updates)))
    assert torch.allclose(share, torch.full_like(share, 1 / len(updates)))
    assert not state["cluster"].any()


def test_only_some_clients_may_take_part() -> None:
    round = after(OPPOSED, [1, 1, 1, 1])
    some = Round(round.replies, torch.tensor([0, 2, 3, 5]), {}, ())
    part = Clusters(0.1, 0.5, wait=0)
    state = {"round": 5, "cluster": torch.zeros(6, dtype=torch.int64)}
    assert part.update(state, some)["cluster"].tolist() == [1, 0, 1, 0, 0, 0]


def test_the_cut_is_the_least_of_all_cuts() -> None:
    draw = np.random.default_rng(0)
    for count in (3, 5, 7):
        likeness = torch.tensor(draw.random((count, count)))
        likeness = likeness + likeness.T
        found = smaller_side(likeness, torch.arange(count))
        assert not found[count - 1]
        assert found.any()

        def cut(inside: torch.Tensor, likeness: torch.Tensor = likeness) -> float:
            return float(likeness[inside][:, ~inside].sum())

        every = []
        for size in range(1, count):
            for chosen in combinations(range(count), size):
                inside = torch.zeros(count, dtype=torch.bool)
                inside[list(chosen)] = True
                every.append(cut(inside))
        assert cut(found) == pytest.approx(min(every))


def alignments(m: int, n: int) -> list[list[tuple[int, int]]]:
    """All ways through two series: from (0, 0) to (m - 1, n - 1) by steps of one in either or both."""
    grid = nx.DiGraph()
    for i in range(m):
        for j in range(n):
            grid.add_edges_from(((i, j), (i + a, j + b)) for a, b in ((0, 1), (1, 0), (1, 1)))
    return list(nx.all_simple_paths(grid, (0, 0), (m - 1, n - 1)))


def test_warping_is_the_least_of_all_alignments() -> None:
    draw = np.random.default_rng(1)
    for m, n in ((5, 5), (3, 5), (4, 2)):
        one, other = draw.random(m), draw.random(n)
        sums = [sum((one[i] - other[j]) ** 2 for i, j in path) for path in alignments(m, n)]
        assert warping_distance(one, other) == pytest.approx(np.sqrt(min(sums)))
    assert warping_distance(np.array([0.0, 1, 2, 2]), np.array([0.0, 0, 1, 2])) == 0  # the same course, later


def test_series_cut_those_whose_gradients_went_otherwise_and_begin_anew() -> None:
    part = SeriesClusters(0.1, 0.5, wait=0, length=3)
    round = after(OPPOSED, [1, 1, 1, 1], gradients=[1.0, 5.0, 1.1, 5.2])
    share, state = weights(part, round, rounds=2)  # two norms are not three
    assert not state["cluster"].any()
    assert torch.allclose(share, torch.full((4, 4), 0.25).double())
    assert state["series"][:, 1:].tolist() == [[pytest.approx(g)] * 2 for g in (1.0, 5.0, 1.1, 5.2)]
    share, state = weights(part, round, rounds=3)
    assert share.tolist() == [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]] * 2  # unlike the cosines
    assert not state["series"].any()
    assert not state["known"].any()


@pytest.mark.slow
def test_one_cluster_is_fedavg() -> None:
    for name in ("gcfl", "gcfl_plus"):
        ends = []
        for made in (ALGORITHMS[name](model(0.0), **SGD), FedAvg(model(0.0), **SGD)):
            *_, last = train(made, federation(dtype=torch.float64), 3)
            ends.append(last.state)
        for at in range(5):
            assert distance(map_leaves(lambda leaf, at=at: leaf[at], ends[0]["own"]), ends[1]["w"]) <= 1e-12


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_the_gradients_norm_is_what_one_step_moves(mode: str) -> None:
    """What a client reports after a round is the length of a plain step of length 1 from its trained weights."""
    fed = federation(dtype=torch.float64, mode=mode)
    made = ALGORITHMS["gcfl_plus"](model(0.0), **SGD)
    *_, last = train(made, fed, 1)
    step = FedAvg(model(0.0), local_steps=1, optimizer="sgd", lr=1.0, weight_decay=0.0, parts=(Uniform(),))
    for at, (client, held) in enumerate(fed.snapshot().items()):
        lone = Simulation({client: fed.graphs[client]}, classes=CLASSES)
        *_, after = train(step, lone, 2, resume=(1, {"w": held["w"], "parts": {"CrossEntropy": {}, "Uniform": {}}}))
        moved = sum(
            ((new - old) ** 2).sum()
            for layer in held["w"]
            for new, old in zip(after.state["w"][layer].values(), held["w"][layer].values(), strict=True)
        )
        assert float(last.state["parts"]["SeriesClusters"]["series"][at, -1]) == pytest.approx(float(moved) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcfl", "gcfl_plus"])
def test_graphs_as_examples_on_both_engines(name: str) -> None:
    ends = []
    for mode in ("loop", "vmap"):
        fed = small.federation(mode=mode)
        made = ALGORITHMS[name](
            small.net(),
            eps1=10.0,
            eps2=0.0,
            wait=1,
            share=("1/*", "2/*"),
            **({"length": 2} if name == "gcfl_plus" else {}),
        )
        *_, last = train(made, fed, 4, eval_every=4)
        ends.append({"server": last.state, "clients": fed.snapshot()})
        (part,) = (own for own in last.state["parts"].values() if "cluster" in own)
        assert len(part["cluster"].unique()) > 1
    assert distance(*ends) <= 1e-9
