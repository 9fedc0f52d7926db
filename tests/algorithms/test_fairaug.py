"""FairAug's augmented copies: probabilities by hand, and what is drawn with them."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fairaug import (
    FairAugmented,
    draw_balanced_nodes,
    draw_edges,
    edge_probabilities,
    ends_of,
    groups_of,
    mask_probabilities,
)
from fedweave.algorithms.parts.part import Forward, Outputs
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from tests.contract.federations import federation, graphs, model

# 0 1 2 are of group 0, 3 4 of group 1, 5 of neither. Within group 0: 0-1 1-2 0-2; within 1: 3-4; between: 0-3 2-4; and
# 4-5, which is of no kind.
PAIRS = np.array([[0, 1, 0, 3, 0, 2, 4], [1, 2, 2, 4, 3, 4, 5]])
SENS = np.array([0, 0, 0, 1, 1, -1])
STEPS = 4000


def small(pairs: np.ndarray = PAIRS, sensitive: np.ndarray = SENS) -> Graph:
    x = np.array([[1, 2, 0], [3, 2, 0], [2, 2, 0], [0, 2, 1], [0, 2, 0], [9, 9, 9]], float)
    edges = np.concatenate([pairs, pairs[::-1]], 1)
    edges = edges[:, np.lexsort(edges[::-1])]
    return make_graph(x, edges, np.array([0, 1, 0, 1, 0, 1]), np.ones((3, 6), bool), sensitive, torch.float64)


def keys(steps: int = STEPS) -> torch.Tensor:
    return random.fold(random.key(0), torch.arange(steps))


def chances(keep: float, kept: torch.Tensor | None = None, graph: Graph | None = None) -> dict[tuple[int, int], float]:
    """{(end, end): probability}, the same in both directions."""
    graph = graph or small()
    ends = ends_of(graph)
    kept = graph.real[None] if kept is None else kept
    found: dict[tuple[int, int], float] = {}
    [chance] = edge_probabilities(ends, groups_of(graph), kept, keep)
    for u, v, real, value in zip(*(part.tolist() for part in (*ends[:3], chance)), strict=True):
        if real:
            assert found.setdefault((min(u, v), max(u, v)), value) == value
    return found


def test_features_are_masked_the_likelier_the_more_they_tell_the_groups_apart() -> None:
    """Group means: column 0 2 and 0, column 1 2 and 2, column 2 0 and 1/2; who is of no group does not count."""
    graph = small()
    found = mask_probabilities(graph.x, groups_of(graph), 0.4)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([0.4, 0.0, 0.4 * 0.25])
    alike = mask_probabilities(torch.ones(32, 2, dtype=torch.float64), groups_of(graph), 0.4)
    assert alike.tolist() == [0, 0]
    lonely = groups_of(graph) & torch.tensor([[True], [False]])
    assert mask_probabilities(graph.x, lonely, 0.4).tolist() == [0, 0, 0]  # type: ignore[arg-type]


def test_edges_stay_with_probabilities_that_balance_them() -> None:
    """Two edges between the groups, three within group 0, one within group 1."""
    wanted = {(0, 3): 0.9, (2, 4): 0.9, (3, 4): 0.9, (4, 5): 1.0} | dict.fromkeys([(0, 1), (1, 2), (0, 2)], 0.3)
    assert chances(0.9) == pytest.approx(wanted)
    assert sum(wanted[pair] for pair in [(0, 1), (1, 2), (0, 2), (3, 4)]) == pytest.approx(2 * 0.9)
    without = torch.arange(32)[None] < 6
    without[0, 2] = False  # leaves 0-1, 3-4, 0-3 and 4-5
    assert chances(0.9, without) == pytest.approx(
        {(0, 1): 0.45, (3, 4): 0.45, (0, 3): 0.9, (4, 5): 1.0, (1, 2): 0.0, (0, 2): 0.0, (2, 4): 0.0}
    )


def test_a_client_of_one_group_keeps_its_edges() -> None:
    """By the formula 0.9 · 0 / (2 · 6): it would train without any edge. 4-5, whose end 5 is of no group, stays too."""
    alone = small(sensitive=np.array([1, 1, 1, 1, 1, -1]))
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4), (0, 3), (2, 4), (4, 5)]
    assert chances(0.9, graph=alone) == pytest.approx(dict.fromkeys(pairs, 1.0))
    part = FairAugmented(mask=0.5, keep=0.9)
    drawn = part.draw(model(), alone, random.key(1), 3)
    assert drawn["kept"][:, :6].all()
    assert all(edges_of(drawn, step) == {(u, v) for a, b in pairs for u, v in ((a, b), (b, a))} for step in range(3))


def test_a_client_without_an_edge_between_its_groups_keeps_those_within() -> None:
    """Both groups, 0-1 1-2 0-2 within group 0, 3-4 within 1; of the nodes left out the edges go all the same."""
    apart = small(pairs=np.array([[0, 1, 0, 3], [1, 2, 2, 4]]))
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4)]
    assert chances(0.9, graph=apart) == pytest.approx(dict.fromkeys(pairs, 1.0))
    without = torch.arange(32)[None] < 6
    without[0, 2] = False
    assert chances(0.9, without, apart) == pytest.approx({(0, 1): 1.0, (3, 4): 1.0, (1, 2): 0.0, (0, 2): 0.0})


def test_a_copy_that_draws_no_edge_between_the_groups_is_balanced_all_the_same() -> None:
    """0-3 and 2-4 join the groups; a copy without 0 and 2 has none of them, so none within either group either."""
    without = torch.arange(32)[None] < 6
    without[0, 0] = without[0, 2] = False
    found = chances(0.9, without)
    assert found == pytest.approx({pair: 1.0 if pair == (4, 5) else 0.0 for pair in found})


def test_as_many_nodes_of_either_group_are_drawn() -> None:
    graph = small()
    kept = draw_balanced_nodes(groups_of(graph), graph.real, keys())
    assert (kept[:, :3].sum(1) == 2).all()
    assert kept[:, 3:6].all()
    assert not kept[:, 6:].any()
    shares = kept[:, :3].double().mean(0)
    assert (shares - 2 / 3).abs().max() < 4 * np.sqrt(2 / 9 / STEPS)
    lonely = groups_of(graph) & torch.tensor([[True], [False]])
    assert torch.equal(draw_balanced_nodes(lonely, graph.real, keys(3)), graph.real.expand(3, -1))


@pytest.mark.parametrize("rare", [0, 2, 9, 20])
def test_a_copy_trains_on_no_fewer_nodes_than_is_said(rare: int) -> None:
    """Of 40 nodes `rare` are of one group; two thirds train."""
    x, sensitive = np.ones((40, 2)), (np.arange(40) < rare).astype(np.int64)
    train = np.arange(40) % 3 > 0
    masks = np.stack([train, ~train, np.zeros(40, bool)])
    graph = make_graph(x, np.zeros((2, 0), np.int64), np.arange(40) % 2, masks, sensitive=sensitive)
    left = (draw_balanced_nodes(groups_of(graph), graph.real, keys()) & graph.masks[TRAIN]).sum(1)
    least = FairAugmented().min_examples(graph, 1)
    assert max(1, least) <= int(left[left > 0].min()) <= least + 6


def copies(keep: float, steps: int = STEPS) -> Tree:
    part = FairAugmented(mask=0.4, keep=keep)
    return part.draw(model(), small(), random.key(1), steps)


def edges_of(drawn: Tree, step: int) -> set[tuple[int, int]]:
    starts = drawn["starts"][step].tolist()
    return {
        (row, int(column))
        for row in range(len(starts) - 1)
        for column in drawn["columns"][step, starts[row] : starts[row + 1]]
    }


def test_both_directions_of_an_edge_stay_or_go_and_only_edges_stay() -> None:
    drawn, whole = copies(0.7, 200), {(u, v) for u, v in zip(*PAIRS, strict=True)}
    for step in range(200):
        found = edges_of(drawn, step)
        assert found == {(v, u) for u, v in found}
        assert {(min(pair), max(pair)) for pair in found} <= whole
        assert all(drawn["kept"][step, u] for u, _ in found)


@pytest.mark.slow
def test_edges_and_features_are_drawn_with_their_probabilities() -> None:
    graph, ends = small(), ends_of(small())
    chance = edge_probabilities(ends, groups_of(graph), graph.real.expand(STEPS, -1), 0.9)
    drawn = draw_edges(ends, chance, keys())
    counted: dict[tuple[int, int], int] = {}
    for step in range(STEPS):
        for pair in edges_of(drawn, step):
            counted[pair] = counted.get(pair, 0) + 1
    for (u, v), wanted in chances(0.9).items():
        assert abs(counted[u, v] / STEPS - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / STEPS)
    shares = copies(0.9)["features"].mean(0)
    assert (shares - torch.tensor([0.6, 1.0, 0.9])).abs().max() < 4 * np.sqrt(0.24 / STEPS)


def test_the_loss_is_that_of_the_copy() -> None:
    """Written out with dense matrices."""
    graph, net = small(), models_of()
    w = models.init(net, random.key(3), torch.float64)
    drawn = copies(0.6, 5)
    for step in range(5):
        minibatch = {name: leaf[step] for name, leaf in drawn.items()}
        a = torch.eye(32, dtype=torch.float64)
        for u, v in edges_of(drawn, step):
            a[u, v] = 1
        a = a / (a.sum(1, keepdim=True) * a.sum(0)).sqrt()
        x = graph.x * minibatch["features"]  # type: ignore[operator]
        z = a @ torch.relu(a @ x @ w["0"]["weight"] + w["0"]["bias"]) @ w["1"]["weight"] + w["1"]["bias"]
        trains = graph.masks[0] & minibatch["kept"]
        wanted = torch.nn.functional.cross_entropy(z[trains], graph.y[trains])
        seen = Outputs(Forward(w, net, graph, None), {}, minibatch)  # type: ignore[arg-type]
        found = FairAugmented().objective(seen)
        torch.testing.assert_close(found, wanted)


def models_of() -> Any:
    from fedweave.models import MODELS

    return MODELS["gcn"](hidden=4, dropout=0.0).build(3, 2)


def test_every_step_of_every_round_trains_on_another_copy() -> None:
    graph = graphs(torch.float64, name="fairaug")["site-1"]
    part = FairAugmented()
    one, other = (part.draw(model(), graph, random.key(seed), 3) for seed in (0, 1))
    flat = [leaf for drawn in (one, other) for leaf in drawn["starts"]]
    assert all(not torch.equal(a, b) for i, a in enumerate(flat) for b in flat[:i])


def test_the_data_stays_as_it_is() -> None:
    fed = federation(name="fairaug")
    list(train(ALGORITHMS["fairaug"](model(classes=2)), fed, 2))
    assert not any(fed.executor.data.versions.values())
