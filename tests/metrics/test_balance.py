"""Edges within and between groups, and the divergence of two models' predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import distance

from fedweave.algorithms.fairness import balance, class_divergence, group_edges, jensen_shannon, node_divergence
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.datasets import load
from tests.random_graphs import replace_fields


def grouped(pairs: list[tuple[int, int]], sensitive: list[int], dtype: torch.dtype = torch.float32) -> Graph:
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    n, both = len(sensitive), np.concatenate([edges, edges[::-1]], 1)
    return make_graph(np.ones((n, 1)), both, np.zeros(n, int), np.ones((3, n), bool), np.array(sensitive), dtype)


def random_groups(seed: int, nodes: int = 50, dtype: torch.dtype = torch.float32) -> Graph:
    rng = np.random.default_rng(seed)
    upper = np.stack(np.nonzero(np.triu(rng.random((nodes, nodes)) < 0.1, 1)))
    return grouped(list(map(tuple, upper.T)), list(rng.integers(-1, 2, nodes)), dtype)


def test_by_hand() -> None:
    """A path 0-1-2-3-4 of groups 0 0 1 1 and unknown: edges within, between, within, and one that does not count."""
    graph = grouped([(0, 1), (1, 2), (2, 3), (3, 4)], [0, 0, 1, 1, -1])
    assert group_edges(graph).tolist() == [2, 3]
    score, defined = balance(group_edges(graph))
    assert score.item() == pytest.approx(1 - abs(2 / 3 - 1 / 3))
    assert defined.item() is True


@pytest.mark.parametrize(("pairs", "sensitive"), [([], [0, 1]), ([(0, 1)], [-1, 1])])
def test_without_edges_the_score_is_zero_and_says_so(pairs: list[tuple[int, int]], sensitive: list[int]) -> None:
    score, defined = balance(group_edges(grouped(pairs, sensitive)))
    assert (score.item(), defined.item()) == (0.0, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formula_written_apart_agrees(oracles: Any, dtype: torch.dtype) -> None:
    for seed in range(5):
        graph = random_groups(seed, dtype=dtype)
        assert graph.sensitive is not None
        sensitive, index = graph.sensitive.numpy(), graph.edges.members[0].index
        known = index[:, (sensitive[index] >= 0).all(0)]
        assert balance(group_edges(graph)).score.item() == pytest.approx(oracles.balance(known, sensitive), abs=1e-12)


def test_swapping_groups_changes_nothing_and_stacked_clients_equal_each_alone() -> None:
    graphs = [random_groups(seed, nodes) for seed, nodes in enumerate((50, 35, 64))]  # of one padded size
    own = [group_edges(graph) for graph in graphs]
    for graph, edges in zip(graphs, own, strict=True):
        assert graph.sensitive is not None
        swapped = replace_fields(graph, sensitive=torch.where(graph.sensitive < 0, -1, 1 - graph.sensitive))
        assert torch.equal(group_edges(swapped), edges)
    whole = stack(graphs)
    axes = Graph(*(None if field is None else 0 for field in whole))
    stacked = torch.func.vmap(group_edges, in_dims=(axes,))(whole)
    assert torch.equal(stacked, torch.stack(own))
    assert torch.equal(balance(stacked).score, torch.stack([balance(edges).score for edges in own]))


def test_unequal_groups_that_mix_at_random_are_not_balanced(data_root: Path) -> None:
    """Credit has 27,315 people of one group and 2,685 of the other: edges within groups
    are the most by far, and would be if people met at random."""
    data = load("credit", str(data_root), normalize="none")
    masks = np.zeros((3, data.nodes), bool)
    graph = make_graph(np.ones((data.nodes, 1)), data.edges, data.y, masks, data.sensitive)
    within, every = group_edges(graph).tolist()
    assert data.sensitive is not None
    assert (within, every) == ((data.sensitive[data.edges[0]] == data.sensitive[data.edges[1]]).sum() / 2, 137377)
    assert within / every == pytest.approx(0.879, abs=5e-4)
    share = np.bincount(data.sensitive) / data.nodes
    mixed = share @ share  # of edges that join any two people with equal chance
    assert mixed == pytest.approx(0.837, abs=5e-4)
    assert balance(torch.tensor([mixed, 1.0])).score.item() == pytest.approx(0.33, abs=5e-3)
    assert balance(group_edges(graph)).score.item() == pytest.approx(2 - 2 * within / every)


def test_no_groups_no_balance() -> None:
    with pytest.raises(ValueError, match="no sensitive attribute"):
        group_edges(replace_fields(grouped([(0, 1)], [0, 1]), sensitive=None))


def two_models(seed: int, nodes: int = 30) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(nodes, 2, generator=rng, dtype=torch.float64).softmax(1) for _ in range(2))
    return p, q, torch.rand(nodes, generator=rng) < 0.7


def test_jensen_shannon_by_hand_and_as_written_apart(oracles: Any) -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert jensen_shannon(half, half).item() == 0
    assert jensen_shannon(torch.tensor([1.0, 0]), torch.tensor([0, 1.0])).item() == 1
    near = jensen_shannon(half, torch.tensor([0.6, 0.4], dtype=torch.float64)).item()
    assert near == pytest.approx(0.007, abs=5e-4)  # predictions of .5 against .6 are hardly apart
    for seed in range(5):
        p, q, _ = two_models(seed)
        for a, b, got in zip(p.numpy(), q.numpy(), jensen_shannon(p, q), strict=True):
            assert got.item() == pytest.approx(oracles.jensen_shannon(a, b), abs=1e-12)
            assert got.item() == pytest.approx(distance.jensenshannon(a, b, base=2) ** 2, abs=1e-12)


def test_class_divergence_is_that_of_the_class_means(oracles: Any) -> None:
    for seed in range(5):
        p, q, nodes = two_models(seed)
        wanted = oracles.jensen_shannon(p[nodes].mean(0).numpy(), q[nodes].mean(0).numpy())
        assert class_divergence(p, q, nodes).item() == pytest.approx(wanted, abs=1e-12)


def test_node_divergence_is_the_distance_that_scipy_computes() -> None:
    """Four of five nodes alike, half of them predicted 1, are .37 apart."""
    one = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    other = torch.tensor([1.0, 1, 1, 1, 0, 1, 0, 0, 0, 0])
    p, q = (torch.stack([1 - a, a], 1).double() for a in (one, other))
    assert node_divergence(p, q, torch.ones(10, dtype=torch.bool)).item() == pytest.approx(0.372, abs=1e-3)
    for seed in range(5):
        p, q, nodes = two_models(seed)
        hard = [(each[nodes, 1] > each[nodes, 0]).numpy().astype(float) for each in (p, q)]
        assert node_divergence(p, q, nodes).item() == pytest.approx(distance.jensenshannon(*hard), abs=1e-12)


def test_divergences_of_special_clients() -> None:
    p, q, _ = two_models(0)
    nobody, everybody = torch.zeros(30, dtype=torch.bool), torch.ones(30, dtype=torch.bool)
    for divergence in (class_divergence, node_divergence):
        assert divergence(p, q, nobody).item() == 0
        assert divergence(p, p, everybody).item() == 0
    never = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(30, 2)
    ones = (q[:, 1] > q[:, 0]).double()
    wanted = distance.jensenshannon(np.full(30, 1 / 30), ones.numpy())  # nobody predicted 1: all nodes alike
    assert node_divergence(never, q, everybody).item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("divergence", [class_divergence, node_divergence])
def test_divergences_of_stacked_clients(divergence: Any) -> None:
    clients = [two_models(seed) for seed in range(4)]
    stacked = torch.func.vmap(divergence)(*(torch.stack(part) for part in zip(*clients, strict=True)))
    assert torch.equal(stacked, torch.stack([divergence(*client) for client in clients]))
