"""How one layer of message passing carries two groups' difference on, and with it F²GNN's theorem 4: representations
say the less about the group, the more evenly edges join equals and others."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms.fairness import balance, group_edges
from fedweave.core.graph import Graph, make_graph
from fedweave.datasets import load

MEANS = torch.tensor([0.7, -0.4], dtype=torch.float64)


def graph_of(edges: np.ndarray, sensitive: np.ndarray) -> Graph:
    n = len(sensitive)
    return make_graph(np.ones((n, 1)), edges, np.zeros(n, int), np.ones((3, n), bool), sensitive, torch.float64)


def groups_of(graph: Graph) -> tuple[torch.Tensor, torch.Tensor]:
    assert graph.sensitive is not None
    return graph.sensitive == 0, graph.sensitive == 1


def group_gap(graph: Graph, h: torch.Tensor) -> float:
    """Mean of group 0 minus mean of group 1 of h [n]."""
    zero, one = groups_of(graph)
    return float(h[zero].mean() - h[one].mean())


def same_group_shares(graph: Graph) -> list[float]:
    """h_0, h_1: the mean over a group's nodes of their share of same-group neighbors."""
    mean = graph.edges.operator("mean")
    return [float((mean @ group.double()[:, None])[group].mean()) for group in groups_of(graph)]


def mixed(
    sens_homophily: float | None, seed: int = 0, share: int = 2, shift: float = 1.5
) -> tuple[Graph, torch.Tensor]:
    """A contextual SBM whose groups differ in the last feature [n] by `shift`, without isolated nodes; `share` classes
    make the groups as large as their lower and upper half."""
    asked: dict[str, Any] = {"nodes": 4000, "classes": share, "features": share + 1, "degree": 24.0, "homophily": 0.5}
    data = load(
        "synthetic", seed=seed, sensitive=True, sens_homophily=sens_homophily, sens_feature_shift=shift, **asked
    )
    assert data.sensitive is not None
    assert np.bincount(data.edges[0], minlength=data.nodes).min() > 0
    graph = graph_of(data.edges, data.sensitive)
    return graph, torch.from_numpy(np.asarray(data.x)[:, -1].astype(np.float64))  # 4,000 rows need no padding


@pytest.mark.parametrize("sens_homophily", [None, 0.0, 0.3, 0.5, 0.9])
def test_one_layer_multiplies_the_difference_of_means(sens_homophily: float | None, oracles: Any) -> None:
    """Where a group's features are its mean, exactly, whatever the graph."""
    graph, _ = mixed(sens_homophily)
    assert graph.sensitive is not None
    h = graph.edges.operator("mean") @ MEANS[graph.sensitive.clamp(min=0)][:, None]
    wanted = oracles.one_layer_gap(*same_group_shares(graph), *MEANS.tolist())
    assert group_gap(graph, h[:, 0]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("sens_homophily", [0.1, 0.5, 0.8])
def test_one_layer_on_noisy_features(sens_homophily: float, oracles: Any) -> None:
    """Means of 2,000 nodes of mean over 24 neighbors: a standard error of about .01."""
    graph, x = mixed(sens_homophily)
    means = [float(x[group].mean()) for group in groups_of(graph)]
    gap = group_gap(graph, (graph.edges.operator("mean") @ x[:, None])[:, 0])
    assert gap == pytest.approx(oracles.one_layer_gap(*same_group_shares(graph), *means), abs=0.05)


@pytest.mark.parametrize("reach", [1, 2, 5])
def test_self_loops_leave_a_share_of_the_difference_at_balance(reach: int) -> None:
    """A ring of alternating groups, each node joined with `reach` neighbors of either group on either side: without
    self-loops the difference vanishes; with them 1 / (degree + 1) of it is left."""
    nodes = 32 * 4
    sensitive = np.arange(nodes) % 2
    steps = np.arange(1, 2 * reach + 1)
    far = np.concatenate([steps, -steps])
    edges = np.stack([np.repeat(np.arange(nodes), len(far)), (np.arange(nodes)[:, None] + far).ravel() % nodes])
    graph, degree = graph_of(edges, sensitive), len(far)
    x = MEANS[torch.from_numpy(sensitive)][:, None]
    assert balance(group_edges(graph)).score.item() == 1
    assert group_gap(graph, (graph.edges.operator("mean") @ x)[:, 0]) == pytest.approx(0, abs=1e-12)
    left = group_gap(graph, (graph.edges.operator("gcn") @ x)[:, 0])
    assert left == pytest.approx(float(MEANS[0] - MEANS[1]) / (degree + 1), abs=1e-12)


@pytest.mark.parametrize("kinds", [(0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)])
def test_theorem_4(kinds: tuple[float, ...]) -> None:
    """The correlation of representation and group grows with |H_intra - H_inter| and is 0 where they are equal."""
    found, balances = [], []
    for kind in kinds:
        graph, x = mixed(kind)
        h = (graph.edges.operator("mean") @ x[:, None])[:, 0]
        assert graph.sensitive is not None
        found.append(abs(np.corrcoef(h[graph.real], graph.sensitive[graph.real])[0, 1]))
        balances.append(balance(group_edges(graph)).score.item())
    assert balances == pytest.approx([1 - abs(2 * kind - 1) for kind in kinds], abs=1e-3)
    assert found[0] < 0.05
    assert (np.diff(found) > 0).all()
    assert found[-1] > 0.95


def test_a_second_layer_brings_a_share_of_the_difference_back() -> None:
    """The theorem is about one layer. A walk of two steps returns to where it began once in a degree, so that of the
    difference 1 / degree comes back, also at balance."""
    graph, x = mixed(0.5, shift=3.0)
    mean = graph.edges.operator("mean")
    one, two = (group_gap(graph, h[:, 0]) for h in (mean @ x[:, None], mean @ (mean @ x[:, None])))
    assert abs(one) < 0.05
    assert two == pytest.approx(group_gap(graph, x) / 24, rel=0.25)


def test_unequal_groups_lose_their_difference_by_mixing_and_not_by_balanced_edges(oracles: Any) -> None:
    """A tenth against nine tenths. Edges that ignore the groups have h_0 + h_1 = 1 and leave nothing of the difference,
    yet B is .36; as many edges within groups as between them, B = 1, hand a third of it on, turned around."""
    rng = np.random.default_rng(0)
    sensitive = (np.arange(3200) % 10 == 0).astype(int)
    pairs = rng.integers(0, 3200, (2, 200000))
    pairs = pairs[:, pairs[0] != pairs[1]]
    apart = sensitive[pairs[0]] != sensitive[pairs[1]]
    even = np.concatenate([pairs[:, apart], pairs[:, ~apart][:, : apart.sum()]], 1)
    for drawn, score, wanted in ((pairs, 0.36, 0.0), (even, 1.0, -0.32)):
        graph = graph_of(np.unique(np.concatenate([drawn, drawn[::-1]], 1), axis=1), sensitive)
        gap = group_gap(graph, (graph.edges.operator("mean") @ MEANS[torch.from_numpy(sensitive)][:, None])[:, 0])
        assert balance(group_edges(graph)).score.item() == pytest.approx(score, abs=0.02)
        assert gap == pytest.approx(oracles.one_layer_gap(*same_group_shares(graph), *MEANS.tolist()), abs=1e-12)
        assert gap / float(MEANS[0] - MEANS[1]) == pytest.approx(wanted, abs=0.03)
