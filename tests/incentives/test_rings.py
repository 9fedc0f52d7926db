"""Bridges and short cycles of a minimum basis, against NetworkX on random graphs."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from fedweave.algorithms.fairgraphfl import rings as module
from fedweave.algorithms.fairgraphfl.rings import Adjacency, adjacency, rings, spanning_forest


def graph_of(source: nx.Graph) -> tuple[Adjacency, np.ndarray]:
    pairs = np.array(sorted(sorted(edge) for edge in source.edges), np.int64).reshape(-1, 2).T
    return adjacency(pairs, source.number_of_nodes()), pairs


def sample(seed: int) -> nx.Graph:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 20))
    kind = seed % 4
    if kind == 0:  # sparse, often in several components
        return nx.gnm_random_graph(nodes, nodes, seed=seed)
    if kind == 1:  # dense
        return nx.gnp_random_graph(min(nodes, 11), 0.5, seed=seed)
    if kind == 2:  # many ties of even length
        return nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 1 + nodes % 5, periodic=seed % 8 == 2))
    graph = nx.gnp_random_graph(nodes, 0.1, seed=seed)  # long cycles
    nx.add_cycle(graph, range(nodes)) if nodes > 2 else None
    return graph


SEEDS = range(80)


@pytest.mark.parametrize("seed", SEEDS)
def test_bridges_are_networkx_bridges(seed: int) -> None:
    source = sample(seed)
    graph, pairs = graph_of(source)
    forest = spanning_forest(graph)
    bridges = sorted(tuple(sorted(edge)) for edge in nx.bridges(source))
    assert sorted(map(tuple, pairs[:, forest.bridges].T.tolist())) == bridges
    assert len(forest.outside) == graph.edges - graph.vertices + nx.number_connected_components(source)


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_are_those_of_a_minimum_cycle_basis(seed: int) -> None:
    source = sample(seed)
    graph, _ = graph_of(source)
    expected = Counter(len(cycle) for cycle in nx.minimum_cycle_basis(source))
    for longest in (3, 4, 7, 20):
        found = rings(graph, spanning_forest(graph), longest)
        assert [len(cycles) for cycles in found] == [expected[length] for length in range(3, longest + 1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_rings_are_independent_cycles_of_the_graph(seed: int) -> None:
    source = sample(seed)
    graph, pairs = graph_of(source)
    number = {tuple(pair): i for i, pair in enumerate(pairs.T.tolist())}
    rows = []
    for length, cycles in enumerate(rings(graph, spanning_forest(graph), 20), start=3):
        for cycle in cycles.tolist():
            assert len(set(cycle)) == len(cycle) == length
            row = np.zeros(graph.edges, np.int64)
            row[[number[tuple(sorted(edge))] for edge in zip(cycle, cycle[1:] + cycle[:1], strict=True)]] = 1
            rows.append(row)
    assert rank(np.array(rows, np.int64).reshape(len(rows), graph.edges)) == len(rows)


def rank(rows: np.ndarray) -> int:
    """Over GF(2), by schoolbook elimination."""
    done = 0
    for column in range(rows.shape[1]):
        below = done + np.flatnonzero(rows[done:, column])
        if len(below):
            rows[[done, below[0]]] = rows[[below[0], done]]
            others = done + 1 + np.flatnonzero(rows[done + 1 :, column])
            rows[others] ^= rows[done]
            done += 1
    return done


@pytest.mark.parametrize("seed", SEEDS[::7])
def test_blocks_of_roots_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = graph_of(sample(seed))
    whole = rings(graph, spanning_forest(graph), 9)
    monkeypatch.setattr(module, "BLOCK", 1)
    for once, again in zip(whole, rings(graph, spanning_forest(graph), 9), strict=True):
        np.testing.assert_array_equal(once, again)
