import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.edge_list import EdgeList
from fedweave.core.graph import TEST, TRAIN, VAL, Graph, make_graph, stack
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.operators import NODES, OPERATORS, Precomputed
from fedweave.core.sizes import BLOCK
from fedweave.ops.sparse import Sparse
from fedweave.sampling.ego_graphs import EgoEdges
from tests.random_graphs import dims_of, padded_alike, replace_fields

PATH = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 - 1 - 2
MASKS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)


def small(x: object = None, edges: np.ndarray = PATH, **options: object) -> Graph:
    features = np.arange(6.0).reshape(3, 2) if x is None else x
    return make_graph(features, edges, np.array([0, 1, 2]), MASKS, **options)  # type: ignore[arg-type]


def dense(operator: Sparse, n: int = 3) -> Tensor:
    return (operator @ torch.eye(operator.shape[1], dtype=operator.dtype))[:n, :n]


def test_operators_of_a_path_worked_by_hand() -> None:
    edges = small().edges
    adjacency = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    assert torch.equal(dense(edges.operator("sum")), adjacency)
    assert torch.equal(dense(edges.operator("mean")), torch.tensor([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]))
    six = 6**-0.5
    gcn = torch.tensor([[1 / 2, six, 0], [six, 1 / 3, six], [0, six, 1 / 2]])
    torch.testing.assert_close(dense(edges.operator("gcn")), gcn)


def test_messages_flow_from_source_to_target() -> None:
    edges = small(edges=np.array([[0], [2]])).edges
    h = torch.zeros(BLOCK, 1)
    h[0] = 5.0
    assert (edges.operator("sum") @ h)[:3, 0].tolist() == [0, 0, 5]


@pytest.mark.parametrize("kind", ["sum", "mean", "gcn"])
def test_isolated_nodes_get_nothing_or_themselves(kind: str) -> None:
    alone = small(edges=np.array([[0, 1], [1, 0]])).edges.operator(kind)
    row = dense(alone)[2].tolist()
    assert row == ([0, 0, 1] if kind == "gcn" else [0, 0, 0])
    none = small(edges=np.zeros((2, 0), np.int64)).edges.operator(kind)
    assert torch.equal(dense(none), torch.eye(3) if kind == "gcn" else torch.zeros(3, 3))


def test_edge_weights_enter_the_operators() -> None:
    links = EdgeList(PATH, 3, np.array([2.0, 2.0, 6.0, 6.0]))
    mean = links.operator("mean").scipy().toarray()
    assert mean.tolist() == [[0, 1, 0], [0.25, 0, 0.75], [0, 1, 0]]
    gcn = links.operator("gcn").scipy().toarray()
    assert gcn[0].tolist() == pytest.approx([1 / 3, 2 / math.sqrt(27), 0.0], rel=1e-6)


@pytest.mark.parametrize(("n", "rows"), [(1, 32), (31, 32), (32, 32), (33, 64)])
@pytest.mark.parametrize("sparse", [False, True])
def test_padding(n: int, rows: int, sparse: bool) -> None:
    x = np.ones((n, 2))
    graph = make_graph(
        sp.csr_matrix(x) if sparse else x,
        np.zeros((2, 0), int),
        np.zeros(n, int),
        np.ones((3, n), bool),
        sensitive=np.ones(n, int),
    )
    values = graph.x @ torch.eye(2) if sparse else graph.x
    assert values.shape == (rows, 2)  # type: ignore[union-attr]
    assert values.sum() == 2 * n  # type: ignore[union-attr]
    assert (values[n:] == 0).all()  # type: ignore[index]
    assert graph.real.tolist() == [True] * n + [False] * (rows - n)
    assert (graph.y[:n] == 0).all()
    assert (graph.y[n:] == -1).all()
    assert graph.sensitive is not None
    assert (graph.sensitive[n:] == -1).all()
    assert torch.equal(graph.masks, graph.real.expand(3, -1))
    assert graph.edges.nodes == rows


def test_unlabeled_nodes_are_in_no_mask() -> None:
    graph = make_graph(np.zeros((3, 1)), PATH, np.array([0, -1, 2]), np.ones((3, 3), bool))
    assert graph.masks[:, :3].tolist() == [[True, False, True]] * 3


def test_masks_are_train_val_test() -> None:
    masks = small().masks
    assert [masks[row].nonzero().flatten().tolist() for row in (TRAIN, VAL, TEST)] == [[0], [1], [2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_and_operators_share_the_dtype(dtype: torch.dtype, sparse: bool) -> None:
    x = np.arange(6).reshape(3, 2)
    graph = small(sp.csr_matrix(x) if sparse else x, dtype=dtype)
    assert graph.x.dtype == graph.edges.operator("gcn").dtype == dtype
    if dtype == torch.float64:
        assert dense(graph.edges.operator("gcn"))[0, 1].item() == pytest.approx(6**-0.5, rel=1e-15)


def test_a_graph_does_not_follow_its_arrays() -> None:
    n = BLOCK  # no padding, hence no copy made by it
    x, y, sensitive = np.zeros((n, 2), np.float32), np.zeros(n, np.int64), np.zeros(n, np.int64)
    graph = make_graph(x, np.zeros((2, 0), np.int64), y, np.zeros((3, n), bool), sensitive)
    x += 1
    y += 1
    sensitive += 1
    assert (graph.x.sum(), graph.y.sum(), graph.sensitive.sum()) == (0, 0, 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("sparse", [False, True])
def test_stacked_clients_equal_each_alone(make_graphs: Callable[..., dict[str, Graph]], sparse: bool) -> None:
    graphs = list(make_graphs([5, 70, 33], sparse=sparse).values())
    joined = stack(padded_alike(graphs))
    assert joined.y.shape == (3, 96)
    assert joined.masks.shape == (3, 3, 96)
    w = torch.arange(12, dtype=torch.float64).reshape(6, 2)
    dims = pytree.tree_map(lambda leaf: None if leaf is None else 0, joined)
    for kind in ("sum", "mean", "gcn"):
        out = vmap(lambda g: g.edges.operator(kind) @ (g.x @ w), in_dims=(dims,))(joined)  # noqa: B023
        for p, graph in enumerate(graphs):
            rows = len(graph.y)
            torch.testing.assert_close(out[p, :rows], graph.edges.operator(kind) @ (graph.x @ w), rtol=1e-14, atol=0)
    for p, graph in enumerate(graphs):
        rows = len(graph.y)
        assert torch.equal(joined.y[p, :rows], graph.y)
        assert torch.equal(joined.masks[p, :, :rows], graph.masks)
        assert torch.equal(joined.real[p, :rows], graph.real)
        assert (joined.y[p, rows:] == -1).all()
        assert not joined.masks[p, :, rows:].any()
        assert not joined.real[p, rows:].any()


def test_stacking_keeps_what_all_have() -> None:
    sensitive = np.array([0, 1, 1])
    joined = stack([replace_fields(small(sensitive=sensitive), graph_of=torch.full((BLOCK,), i)) for i in range(2)])
    assert joined.sensitive is not None
    assert joined.graph_of is not None
    assert joined.sensitive[:, :4].tolist() == [[0, 1, 1, -1]] * 2
    assert joined.graph_of[:, 0].tolist() == [0, 1]
    assert stack([small(), small()]).sensitive is None


def test_only_graphs_of_one_size_can_be_stacked() -> None:
    with pytest.raises(ValueError, match="graphs of 32 and 64 rows"):
        stack([small(), small(rows=64)])


@pytest.mark.parametrize("rows", [2, 0, 33, 100])
def test_rows_that_do_not_fit_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"3 nodes cannot be padded to {rows} rows"):
        small(rows=rows)


def test_withheld_labels_leave_the_masks() -> None:
    y, masks = np.full(3, -1), np.eye(3, dtype=bool)
    graph = make_graph(np.zeros((3, 1)), PATH, y, masks)
    assert torch.equal(graph.masks[:, :3], torch.eye(3, dtype=torch.bool))
    assert (graph.y == -1).all()


def test_operators_are_built_once() -> None:
    graph = small()
    assert graph.edges.operator("gcn").blocks is graph.edges.operator("gcn").blocks


# Graphs {0, 1, 2}, {3} and {4, 5} with edges 0 - 1 - 2 and 4 - 5.
GRAPH_OF = np.array([0, 0, 0, 1, 2, 2])
PAIRS = np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]])


def three(dtype: torch.dtype = torch.float32, **options: object) -> Graph:
    x = np.arange(12.0).reshape(6, 2)
    return make_graph(x, PAIRS, np.array([1, 0, -1]), MASKS, dtype=dtype, graph_of=GRAPH_OF, **options)  # type: ignore[arg-type]


def test_small_graphs_are_examples_and_padded_apart_from_nodes() -> None:
    graph = make_graph(
        np.ones((70, 1)), np.zeros((2, 0), int), np.zeros(35, int), np.ones((3, 35), bool), graph_of=np.arange(70) // 2
    )
    assert (graph.nodes, len(graph.y), graph.masks.shape) == (96, 64, (3, 64))
    assert graph.graph_of is not None
    assert graph.graph_of.tolist() == [*(np.arange(70) // 2), *[-1] * 26]
    assert graph.y.tolist() == [0] * 35 + [-1] * 29
    assert not graph.masks[:, 35:].any()
    assert graph.edges.operator("pool_sum").shape == (64, 96)
    small = three()
    assert small.masks[:, 2].tolist() == [False] * 3  # unlabeled
    assert (small.nodes, len(small.y)) == (32, 32)


def test_pooling_by_hand() -> None:
    graph, h = three(), torch.zeros(32, 2)
    h[:6] = torch.arange(12.0).view(6, 2)
    h[6:] = 9.0  # what a model makes of padding reaches no example
    assert (graph.edges.operator("pool_sum") @ h)[:4].tolist() == [[6, 9], [6, 7], [18, 20], [0, 0]]
    assert (graph.edges.operator("pool_mean") @ h)[:4].tolist() == [[2, 3], [6, 7], [9, 10], [0, 0]]
    with pytest.raises(ValueError, match=r"the examples are nodes.*model\.pool = 'none'"):
        small().edges.operator("pool_sum")


@pytest.mark.parametrize("kind", ["pool_sum", "pool_mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_of_stacked_clients_is_one_product_with_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    many = np.repeat(np.arange(40), 2)
    large = make_graph(
        np.ones((80, 2)), np.zeros((2, 0), int), np.zeros(40, int), np.ones((3, 40), bool), dtype=dtype, graph_of=many
    )
    clients = [three(dtype), large]
    together = stack(padded_alike(clients))
    assert together.y.shape == (2, 64)
    assert together.real.shape == (2, 96)
    h = torch.rand(2, 96, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))

    def pooled(graph: Graph, h: Tensor) -> Tensor:
        return graph.edges.operator(kind) @ h

    def gradient(graph: Graph, h: Tensor) -> Tensor:
        return torch.func.grad(lambda h: (pooled(graph, h) ** 3).sum())(h)

    dims = dims_of(together)
    for function in (pooled, gradient):
        out = vmap(function, (dims, 0))(together, h)
        for client, graph in enumerate(clients):
            alone = function(graph, h[client, : graph.nodes])
            assert torch.equal(out[client, : len(alone)], alone)


def test_a_sample_has_no_edges_of_its_own_to_sample_from() -> None:
    graph = small()
    assert graph.whole_edges is graph.edges
    with pytest.raises(TypeError, match="EgoEdges are edges of a sample"):
        replace_fields(graph, edges=EgoEdges(2, 2)).whole_edges  # noqa: B018


@pytest.mark.parametrize("kind", [*OPERATORS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators_of_many_graphs_at_once_are_those_of_each_to_the_bit(kind: str, dtype: torch.dtype) -> None:
    def graphs() -> list[Graph]:
        rng = np.random.default_rng(0)
        sparse = [sp.random(n, n, share, random_state=rng) for n, share in ((30, 0.2), (1, 0.0), (25, 0.1), (3, 0.0))]
        whole = [own + own.T - sp.diags((own + own.T).diagonal()) for own in map(sp.csr_matrix, sparse)]
        edges = [np.stack(own.nonzero()).astype(np.int64) for own in whole]
        sizes = [own.shape[0] for own in whole]
        return [
            make_graph(
                np.eye(n, 4, dtype=np.float32), own, np.zeros(n, np.int64), np.ones((3, n), bool), None, dtype, 32
            )
            for n, own in zip(sizes, edges, strict=True)
        ]

    together = stack(graphs()).whole_edges.cache.operator(kind).members
    alone = [graph.whole_edges.members[0].operator(kind) for graph in graphs()]
    for ours, theirs in zip(together, alone, strict=True):
        assert [ours.rows, ours.cols] == [theirs.rows, theirs.cols]
        assert all(torch.equal(one, other) for one, other in zip(ours[:3], theirs[:3], strict=True))
        assert all(one.dtype == other.dtype for one, other in zip(ours[:3], theirs[:3], strict=True))


def test_what_was_looked_for_is_padded_like_what_it_is_along_and_stacked() -> None:
    """Rows of -1 behind three nodes and a list of two, which clients have agreed to pad to 32; one that lacks it, as
    after its data was replaced, leaves none for its batch."""
    x, edges, y, masks = np.ones((3, 1)), np.array([[0, 1], [1, 0]]), np.zeros(3, int), np.ones((3, 3), bool)
    along = {"place": NODES, "pair": "pairs"}
    found = Precomputed({"place": np.array([7, 5, 9]), "pair": np.array([[0, 4], [2, 8]])}, along=along)
    assert found.lists == {"pairs": 2}
    graph = make_graph(x, edges, y, masks, extra=found.pad({"pairs": 32}))
    assert graph.precomputed("place")[:4].tolist() == [7, 5, 9, -1]
    assert graph.precomputed("pair").shape == (32, 2)
    assert graph.precomputed("pair")[1:3].tolist() == [[2, 8], [-1, -1]]
    assert stack([graph, graph]).precomputed("pair").shape == (2, 32, 2)
    with pytest.raises(ValueError, match="was not precomputed"):
        stack([graph, graph_like(graph, graph_arrays(graph))]).precomputed("place")
