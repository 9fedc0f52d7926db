"""Graphs as arrays, and back."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.core.graph import Graph, make_graph
from fedweave.core.graph_arrays import GraphArrays, graph_arrays, graph_like, graph_tree, tree_graph
from fedweave.core.tree import decode, encode
from tests.random_graphs import random_graph, replace_fields

PATH = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])


def some(sensitive: bool = False, sparse: bool = False, rows: int | None = None) -> Graph:
    x, y, masks = np.arange(6.0).reshape(3, 2), np.array([0, -1, 2]), np.array([[1, 0, 0], [0, 0, 0], [0, 0, 1]], bool)
    features = sp.csr_matrix(x) if sparse else x
    return make_graph(features, PATH, y, masks, np.array([1, 0, -1]) if sensitive else None, rows=rows)


def same(one: Graph, other: Graph) -> bool:
    pairs = list(zip(graph_arrays(one), graph_arrays(other), strict=True))
    dense = [(a.toarray(), b.toarray()) if sp.issparse(a) else (a, b) for a, b in pairs]
    alike = all((a is b is None) or (np.array_equal(a, b) and a.dtype == b.dtype) for a, b in dense)
    return alike and len(one.y) == len(other.y) and one.x.dtype == other.x.dtype


@pytest.mark.parametrize("sparse", [False, True])
def test_arrays_are_those_of_the_real_nodes(sparse: bool) -> None:
    x, edges, y, masks, sensitive, *others = graph_arrays(some(sensitive=True, sparse=sparse, rows=64))
    assert sp.issparse(x) == sparse
    assert np.asarray(x.todense() if sparse else x).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert edges.tolist() == PATH.tolist()
    assert y.tolist() == [0, -1, 2]
    assert masks.tolist() == [[True, False, False], [False] * 3, [False, False, True]]
    assert sensitive is not None
    assert set(others) == {None}
    assert sensitive.tolist() == [1, 0, -1]


@pytest.mark.parametrize("sparse", [False, True])
def test_arrays_are_copies(sparse: bool) -> None:
    graph = some(sensitive=True, sparse=sparse)
    arrays = graph_arrays(graph)
    for array in (arrays.x.data if sparse else arrays.x, *arrays[1:5]):
        array[...] = 1
    assert same(graph, some(sensitive=True, sparse=sparse))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [1, 32, 70])
def test_a_graph_survives_its_arrays_and_its_bytes(sparse: bool, dtype: torch.dtype, nodes: int) -> None:
    graph = random_graph(nodes, sparse=sparse, dtype=dtype)
    assert same(graph_like(graph, graph_arrays(graph)), graph)
    again = tree_graph(decode(encode(graph_tree(graph))))
    assert same(again, graph)
    assert torch.equal(again.real, graph.real)
    w = torch.ones(6, 2, dtype=dtype)
    ours, theirs = (made.edges.operator("gcn") @ (made.x @ w) for made in (again, graph))
    assert torch.equal(ours, theirs)


def test_withheld_labels_and_sensitive_attributes_survive() -> None:
    graph = make_graph(np.zeros((3, 1)), PATH, np.full(3, -1), np.eye(3, dtype=bool), np.array([0, 1, -1]))
    assert same(tree_graph(decode(encode(graph_tree(graph)))), graph)
    assert graph_arrays(graph).masks.sum() == 3


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_features_are_stored_as_before(given: bool, wanted: bool) -> None:
    x = graph_arrays(some(sparse=given)).x
    made = graph_like(some(sparse=wanted), replace_fields(graph_arrays(some()), x=x))
    assert same(made, some(sparse=wanted))


def test_the_order_of_edges_does_not_matter() -> None:
    arrays = graph_arrays(some())
    assert same(graph_like(some(), replace_fields(arrays, edges=arrays.edges[:, [3, 1, 0, 2]])), some())


@pytest.mark.parametrize(
    ("before", "nodes", "rows"),
    [(64, 40, 64), (64, 20, 64), (96, 20, 32), (32, 33, 64), (32, 32 * 4, 160), (320, 32 * 6, 320), (320, 32 * 4, 160)],
)
def test_the_padding_stays_while_it_fits(before: int, nodes: int, rows: int) -> None:
    x, no_edges = np.ones((nodes, 2)), np.zeros((2, 0), np.int64)
    arrays = GraphArrays(x, no_edges, np.zeros(nodes, np.int64), np.zeros((3, nodes), bool))
    assert len(graph_like(some(rows=before), arrays).y) == rows


def small_graphs(rows: int | None = None, examples: int | None = None) -> Graph:
    """Graphs {0, 1, 2}, {3} and {4, 5}."""
    x, y, masks = np.arange(12.0).reshape(6, 2), np.array([1, 0, 1]), np.eye(3, dtype=bool)
    owner = np.array([0, 0, 0, 1, 2, 2])
    return make_graph(x, PATH, y, masks, np.array([0, 1, -1]), rows=rows, graph_of=owner, examples=examples)


def test_small_graphs_survive_their_arrays_and_their_bytes() -> None:
    graph = small_graphs(rows=96, examples=64)
    arrays = graph_arrays(graph)
    assert arrays.graph_of is not None
    assert (arrays.graph_of.tolist(), arrays.y.tolist(), arrays.sensitive.tolist()) == (
        [0, 0, 0, 1, 2, 2],
        [1, 0, 1],
        [0, 1, -1],
    )  # type: ignore[union-attr]
    for again in (graph_like(small_graphs(), arrays), tree_graph(decode(encode(graph_tree(graph))))):
        assert graph_arrays(again).graph_of.tolist() == arrays.graph_of.tolist()  # type: ignore[union-attr]
        assert graph_arrays(again).masks.tolist() == arrays.masks.tolist()
        h = torch.ones(again.nodes, 1)
        assert (again.edges.operator("pool_sum") @ h)[:3, 0].tolist() == [3, 1, 2]
    kept = tree_graph(decode(encode(graph_tree(graph))))
    assert (kept.nodes, len(kept.y)) == (96, 64)


def test_examples_keep_their_size_while_it_fits() -> None:
    def many(count: int, before: Graph) -> Graph:
        arrays = GraphArrays(
            np.ones((count, 2), np.float32), PATH[:, :0], np.zeros(count, int), np.ones((3, count), bool)
        )
        return graph_like(before, replace_fields(arrays, graph_of=np.arange(count)))

    assert [len(many(count, small_graphs(examples=64)).y) for count in (20, 32, 40, 65)] == [64, 64, 64, 96]
