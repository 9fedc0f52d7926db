"""Cuts of other benchmarks: METIS, communities alike in labels, and small graphs in the order of what they are like."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedweave.datasets.base import Dataset
from fedweave.partition import GraphSkew, LouvainPlus, Metis, MetisPlus, cut
from tests.refusals import refusal


def rings(labels: list[int], size: int = 10) -> Dataset:
    """A ring of `size` nodes for each label, all of whose nodes have it."""
    first = size * np.arange(len(labels))[:, None]
    one, two = (first + np.arange(size)).ravel(), (first + (np.arange(size) + 1) % size).ravel()
    edges = np.unique(np.stack([np.r_[one, two], np.r_[two, one]]), axis=1)
    return Dataset("rings", np.ones((len(one), 1), np.float32), edges, np.repeat(labels, size), max(labels) + 1)


@pytest.fixture
def metis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for pymetis that cuts nodes in their order."""

    def part_graph(parts: int, adjacency: Any, options: Any) -> tuple[int, list[int]]:
        n = len(adjacency.adj_starts) - 1
        assert len(adjacency.adjacent) == adjacency.adj_starts[-1]
        return 0, [node * parts // n for node in range(n)]

    module = ModuleType("pymetis")
    module.__dict__.update(part_graph=part_graph, CSRAdjacency=SimpleNamespace, Options=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "pymetis", module)


def owners(found: Any) -> list[list[int]]:
    return sorted(part.nodes.tolist() for part in found.parts)


def test_communities_of_like_labels_make_a_client() -> None:
    found = LouvainPlus(clients=2).cut(rings([0, 1, 0, 1, 1]), 0)
    assert owners(found) == [[*range(10), *range(20, 30)], [*range(10, 20), *range(30, 50)]]


def test_more_clients_than_communities_that_differ_are_refused() -> None:
    with refusal("config.communities", "clients = 3"):
        LouvainPlus(clients=3).cut(rings([0, 1, 0, 1]), 0)


@pytest.mark.usefixtures("metis")
def test_metis_parts_are_the_clients_or_what_clients_are_made_of() -> None:
    data = rings([0, 1, 0, 1])
    assert owners(Metis(clients=4).cut(data, 0)) == [[*range(at, at + 10)] for at in (0, 10, 20, 30)]
    plus = MetisPlus(clients=2, communities=4).cut(data, 0)
    assert owners(plus) == [[*range(10), *range(20, 30)], [*range(10, 20), *range(30, 40)]]
    with refusal("config.value", "communities = 3"):
        MetisPlus(clients=4, communities=3)


def test_without_pymetis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with refusal("user.metis", "fedweave[metis]"):
        Metis(clients=2).cut(rings([0, 1]), 0)


def test_metis_itself() -> None:
    """Four rings without edges between them, and four clients of equal size: no edge is cut."""
    pytest.importorskip("pymetis", reason="needs pip install 'fedweave[metis]'")
    found = Metis(clients=4).cut(rings([0, 1, 0, 1]), 0)
    assert owners(found) == [[*range(at, at + 10)] for at in (0, 10, 20, 30)]


@pytest.mark.parametrize("by", ["features", "degree"])
def test_small_graphs_in_order(by: str) -> None:
    """Four graphs of 3 nodes; the mean feature rises from graph 0 to 3, the mean degree falls."""
    graph_of = np.repeat(np.arange(4), 3)
    x = np.array([0.0, 1, 2, 3])[graph_of][:, None].astype(np.float32)
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (6, 7)]  # 3, 2, 1 and no edges
    edges = np.array(sorted([*pairs, *((b, a) for a, b in pairs)])).T
    data = Dataset("few", x, edges, np.zeros(4, int), 2, graph_of=graph_of)
    found = cut(GraphSkew(by=by, clients=2), data, 0)  # type: ignore[arg-type]
    expected = [[0, 1], [2, 3]] if by == "features" else [[2, 3], [0, 1]]
    assert [part.examples.tolist() for part in found.parts] == expected
