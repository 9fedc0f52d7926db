"""GIN and pooling against PyTorch Geometric, a case worked by hand, and one client alone against a batch."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.nn import GCNConv, GINConv, SAGEConv, global_add_pool, global_mean_pool

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_list import EdgeList
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph, make_graph
from fedweave.core.tree import leaves, nest
from fedweave.models import MODELS, blocks, gin
from tests.models.reference import (
    TOLERANCE,
    Weights,
    assert_equal,
    of_layer,
    of_model,
    of_module,
    weights_of,
    weights_of_model,
)
from tests.models.test_layers import graph_of
from tests.models.test_same_bits import check_same_bits
from tests.random_graphs import replace_fields

POOL = {"sum": global_add_pool, "mean": global_mean_pool}


def small_graphs(
    graphs: int, features: int, sparse: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Graph, Tensor, Tensor, Tensor]:
    """Random small graphs, one node at least: the graph, features [n, d], edges [2, E] and graph of each node [n]."""
    rng = random.generator(seed, "small graphs")
    graph_of = np.repeat(np.arange(graphs), rng.integers(1, 12, graphs))
    n = len(graph_of)
    joined = (graph_of[:, None] == graph_of) & np.triu(rng.random((n, n)) < 0.4, 1)
    edges = np.stack(np.nonzero(joined | joined.T))
    x = np.where(rng.random((n, features)) < 0.3, rng.standard_normal((n, features)), 0)
    x = x.astype(np.float64 if dtype == torch.float64 else np.float32)
    y, masks = rng.integers(0, 3, graphs), np.arange(graphs) % 3 == np.arange(3)[:, None]
    graph = make_graph(sp.csr_matrix(x) if sparse else x, edges, y, masks, dtype=dtype, graph_of=graph_of)
    return graph, torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(graph_of)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("fan_in", "fan_out"), [(3, 1), (8, 8), (11, 4)])
def test_convolution_equals_the_reference(fan_in: int, fan_out: int, dtype: torch.dtype) -> None:
    graph, x, edges = graph_of(40, fan_in, False, dtype, 1)
    layer = gin.convolution(fan_in, fan_out)
    module = GINConv(Sequential(Linear(fan_in, fan_out), ReLU(), Linear(fan_out, fan_out))).to(dtype)
    names = {"weight1": "nn.0.weight", "bias1": "nn.0.bias", "weight2": "nn.2.weight", "bias2": "nn.2.bias"}
    theirs = of_module(module, names, x, edges)
    assert_equal(of_layer(layer, graph, 40), theirs, weights_of(layer, dtype), TOLERANCE[dtype])


def test_convolution_by_hand() -> None:
    """Path 0 - 1 - 2; h = 1, 2, 4: own and neighbors are 3, 7, 6; W_1 = 1, b_1 = -4, W_2 = 2, b_2 = 0.5."""
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = make_graph(np.array([[1.0], [2], [4]]), edges, np.zeros(3, int), np.ones((3, 3), bool))
    w = {"weight1": torch.ones(1, 1), "bias1": -4 * torch.ones(1)}
    w |= {"weight2": 2 * torch.ones(1, 1), "bias2": 0.5 * torch.ones(1)}
    out = gin.convolution(1, 1).apply(w, graph, graph.x, None)
    assert out[:3, 0].tolist() == [0.5, 6.5, 4.5]


@pytest.mark.parametrize("how", POOL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_pooling_equals_the_reference(how: str, dtype: torch.dtype) -> None:
    graph, _, _, owner = small_graphs(50, 2, dtype=dtype)
    h = torch.randn(graph.nodes, 5, dtype=dtype, generator=torch.Generator().manual_seed(1))
    layer = blocks.pooling(how)
    assert_equal(lambda w: layer.apply({}, graph, w["h"], None)[:50], lambda w: POOL[how](w["h"][: len(owner)], owner),
                 {"h": h}, TOLERANCE[dtype])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pool"), [("gin", "none"), *((name, pool) for name in ("gin", "gcn", "sage", "mlp") for pool in POOL)]
)
def test_model_equals_the_reference(name: str, pool: str) -> None:
    """Values and every gradient of models with a pooled head, written out with the reference's layers."""
    hidden = 6
    graph, x, edges, owner = small_graphs(20, 5, sparse=True, dtype=torch.float64)
    model = MODELS[name](hidden=hidden, layers=2, pool=pool).build(5, 3)

    def reference(w: Weights) -> Tensor:
        def linear(i: int, h: Tensor, which: str = "") -> Tensor:
            return h @ w[f"{i}/weight{which}"] + w[f"{i}/bias{which}"]

        def convolve(i: int, h: Tensor) -> Tensor:
            if name == "gin":
                return GINConv(lambda z: linear(i, torch.relu(linear(i, z, "1")), "2"))(h, edges)
            if name == "mlp":
                return linear(i, h)
            if name == "gcn":
                gcn = GCNConv(h.shape[1], hidden, bias=False)
                return of_module(gcn, {f"{i}/weight": "lin.weight"}, h, edges)(w) + w[f"{i}/bias"]
            mean = SAGEConv(h.shape[1], hidden, root_weight=False, bias=False)
            sums = of_module(mean, {f"{i}/neigh": "lin_l.weight"}, h, edges)(w)
            return sums + h @ w[f"{i}/root"] + w[f"{i}/bias"]

        h = linear(0, x) if name == "gin" else x
        first, last = int(name == "gin"), len(model) - 2
        for i in (first, first + 1):
            h = torch.relu(convolve(i, h))
        if pool != "none":
            h = POOL[pool](h, owner)
        return linear(last + 1, torch.relu(linear(last, h)))

    rows = len(owner) if pool == "none" else 20
    assert_equal(of_model(model, graph, rows), reference, weights_of_model(model, torch.float64), 1e-10)


def test_number_of_weights() -> None:
    """On PROTEINS 29,506 weights, of which 24,960 are the convolutions' (FairGraphFL)."""
    model = MODELS["gin"](pool="sum").build(3, 2)
    w = models.init(model, random.key(0))
    counts = {i: sum(math.prod(t.shape) for t in own.values()) for i, own in w.items()}
    assert sum(counts.values()) == 29506
    assert sum(counts[str(i)] for i, layer in enumerate(model) if layer.operator == "sum") == 24960


def test_initial_values_follow_the_reference() -> None:
    w = gin.convolution(200, 50).init(random.key(1))
    for i, fan_in in (("1", 200), ("2", 50)):
        bound = 1 / math.sqrt(fan_in)
        for name in (f"weight{i}", f"bias{i}"):
            assert 0.8 * bound < w[name].abs().max() <= bound
        assert w[f"weight{i}"].var() * 3 / bound**2 == pytest.approx(1, abs=0.1)
    assert models.pools(MODELS["gin"](pool="mean").build(3, 2))
    assert not models.pools(MODELS["gin"]().build(3, 2))


@pytest.mark.often("dtype0-gin-sum", "dtype1-gin-mean", "dtype0-sage-mean", "dtype1-gcn-sum")
@pytest.mark.parametrize("pool", ["sum", "mean"])
@pytest.mark.parametrize("name", ["gin", "gcn", "sage", "mlp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_bits_alone_and_in_a_batch(name: str, pool: str, dtype: torch.dtype) -> None:
    model = MODELS[name](pool=pool).build(40, 3)
    check_same_bits(model, [small_graphs(count, 40, True, dtype, seed=count)[0] for count in (9, 70, 33)], dtype)


def labelled(graphs: int, seed: int) -> Graph:
    """Random small graphs whose nodes have one of two labels."""
    rng = random.generator(seed, "labelled")
    graph_of = np.repeat(np.arange(graphs), rng.integers(1, 9, graphs))
    joined = (graph_of[:, None] == graph_of) & np.triu(rng.random((len(graph_of),) * 2) < 0.4, 1)
    x = sp.csr_matrix(np.eye(2, dtype=np.float32)[rng.integers(0, 2, len(graph_of))])
    edges, y, masks = np.stack(np.nonzero(joined | joined.T)), np.zeros(graphs, int), np.ones((3, graphs), bool)
    return make_graph(x, edges, y, masks, dtype=torch.float64, graph_of=graph_of)


def test_nodes_are_alike_by_their_features_and_their_neighbors() -> None:
    """Two paths a - b - a and one b - b: the ends of the first two and their middles are kinds_of, and the last two."""
    x = sp.csr_matrix(np.eye(2, dtype=np.float32)[[0, 1, 0, 0, 1, 0, 1, 1]])
    source, target = np.array([0, 1, 3, 4, 6]), np.array([1, 2, 4, 5, 7])
    edges = np.stack([np.concatenate([source, target]), np.concatenate([target, source])])
    graph_of = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    graph = make_graph(x, edges, np.zeros(3, int), np.ones((3, 3), bool), graph_of=graph_of)
    first, kind = gin.kinds_of(graph.whole_edges.members[0])
    assert kind[:8].tolist() == [0, 1, 0, 0, 1, 0, 2, 2]
    assert first.tolist() == [0, 1, 6, 8]
    assert set(kind[8:].tolist()) == {3}  # padding


@pytest.mark.parametrize("dropped", [False, True])
def test_what_is_computed_once_for_alike_nodes_is_what_each_would_have(dropped: bool) -> None:
    """Outputs and gradients; what dropout drops is each node's own."""
    shared = labelled(60, 1)
    own = shared.whole_edges.members[0]
    alone = replace_fields(
        shared, edges=Edges.of([EdgeList(own.index, own.nodes, own.weight, own.graph_of, own.examples)])
    )
    assert len(gin.kinds_of(own)[0]) < int(shared.real.sum()) / 3
    model, key = MODELS["gin"](8, 2, 0.5, "sum").build(2, 3), random.key(4) if dropped else None
    of_shared, of_each = (lambda w, graph=graph: models.apply(model, nest(w), graph, key) for graph in (shared, alone))
    assert_equal(of_shared, of_each, dict(leaves(models.init(model, random.key(3), torch.float64))), 1e-11)
