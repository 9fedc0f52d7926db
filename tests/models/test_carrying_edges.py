"""Layers that read what edges carry against PyTorch Geometric's with the same weights, and for many clients at once."""

import math

import numpy as np
import pytest
import torch
from torch_geometric.nn import DirGNNConv, GATConv, GCNConv, GINEConv, PNAConv

from fedweave.core import model as models
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import make_graph, stack
from fedweave.core.random import key
from fedweave.models import GAT, GCN, GINE, PNA, directions, gat, gcn, gine, pna
from fedweave.ops.row_reductions import largest
from tests.random_graphs import dims_of, replace_fields

N, M, D, K = 20, 70, 5, 3
DELTA = 1.3


def a_graph(seed=0, directed=True, n=N, m=M, dtype=torch.float64):
    """A directed multigraph whose last node nothing reaches, and its features, edges and their features and weights."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, D)).astype(np.float32)
    source = draw.integers(0, n, m)
    target = (source + draw.integers(1, n - 1, m)) % n
    target = np.where(target == n - 1, (source + 1) % (n - 1), target)
    target = np.where(target == source, (source + 2) % (n - 1), target)
    index = np.stack([source, target])
    e, weight = draw.normal(size=(m, K)).astype(np.float32), draw.uniform(0.1, 3, m).astype(np.float32)
    edge_attrs = EdgeAttributes(index, directed, weight, e)
    pairs = np.unique(np.concatenate([index, index[::-1]], 1), axis=1)
    graph = make_graph(x, pairs, draw.integers(0, 2, n), np.ones((3, n), bool), dtype=dtype, edge_attrs=edge_attrs)
    if not directed:
        index, e, weight = np.concatenate([index, index[::-1]], 1), np.tile(e, (2, 1)), np.tile(weight, 2)
    return graph, *(torch.from_numpy(part) for part in (x.astype(np.float64), index, e.astype(np.float64), weight))


def of_layer(layer, graph):
    w = {name: leaf.double() for name, leaf in layer.init(key(3)).items()}
    w = {name: leaf if leaf.any() else torch.linspace(-1, 1, len(leaf)).double() for name, leaf in w.items()}
    return w, layer.apply(w, graph, graph.x, None)[:N]


def put(linear, weight, bias=None):
    linear.weight.data = weight.T.clone()
    if bias is not None:
        linear.bias.data = bias.clone()


def put_gcn(conv, w, way=""):
    put(conv.lin, w[f"{way}weight"])
    conv.bias.data = w[f"{way}bias"]


@pytest.mark.parametrize(("directed", "how"), [(True, "forward"), (False, "none"), (False, "forward")])
def test_weighted_gcn(directed, how):
    graph, x, index, _, weight = a_graph(directed=directed)
    w, ours = of_layer(gcn.along_edges(D, 4, how, True), graph)
    conv = GCNConv(D, 4).double()
    put_gcn(conv, w)
    torch.testing.assert_close(ours, conv(x, index, weight.double()), atol=1e-6, rtol=0)


def test_gcn_without_weights_counts_parallel_edges():
    graph, x, index, _, _ = a_graph()
    w, ours = of_layer(gcn.along_edges(D, 4, "forward", False), graph)
    conv = GCNConv(D, 4).double()
    put_gcn(conv, w)
    torch.testing.assert_close(ours, conv(x, index), atol=1e-6, rtol=0)


def test_gcn_of_both_directions():
    graph, x, index, _, _ = a_graph()
    w, ours = of_layer(gcn.along_edges(D, 4, "both", False), graph)
    conv = DirGNNConv(GCNConv(D, 4)).double()
    put_gcn(conv.conv_in, w, "in_")
    put_gcn(conv.conv_out, w, "out_")
    put(conv.lin, w["root_weight"], w["root_bias"])
    torch.testing.assert_close(ours, conv(x, index), atol=1e-6, rtol=0)


def of_gine(w, way=""):
    net = torch.nn.Sequential(torch.nn.Linear(D, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    conv = GINEConv(net, edge_dim=K).double()
    put(net[0], w[f"{way}weight1"], w[f"{way}bias1"])
    put(net[2], w[f"{way}weight2"], w[f"{way}bias2"])
    put(conv.lin, w[f"{way}weight_edge"], w[f"{way}bias_edge"])
    return conv


@pytest.mark.parametrize(("directed", "how"), [(True, "forward"), (False, "none")])
def test_gine(directed, how):
    graph, x, index, e, _ = a_graph(directed=directed)
    w, ours = of_layer(gine.convolution(D, 4, K, how), graph)
    torch.testing.assert_close(ours, of_gine(w)(x, index, e), atol=1e-6, rtol=0)


def test_gine_of_both_directions_has_weights_for_either():
    graph, x, index, e, _ = a_graph()
    w, ours = of_layer(gine.convolution(D, 4, K, "both"), graph)
    both = 0.5 * of_gine(w, "in_")(x, index, e) + 0.5 * of_gine(w, "out_")(x, index.flip(0), e)
    torch.testing.assert_close(ours, both + x @ w["root_weight"] + w["root_bias"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("concat", [True, False])
def test_gat_with_features_of_edges(concat):
    graph, x, index, e, _ = a_graph()
    w, ours = of_layer(gat.along_edges(D, 4, 2, K, "forward", concat), graph)
    conv = GATConv(D, 4, 2, concat=concat, edge_dim=K).double()
    put_gat(conv, w)
    torch.testing.assert_close(ours, conv(x, index, e), atol=1e-6, rtol=0)


def test_gat_of_both_directions():
    graph, x, index, e, _ = a_graph()
    w, ours = of_layer(gat.along_edges(D, 4, 2, K, "both"), graph)
    came, went = (GATConv(D, 4, 2, edge_dim=K, add_self_loops=False).double() for _ in range(2))
    put_gat(came, w, "in_")
    put_gat(went, w, "out_")
    both = 0.5 * came(x, index, e) + 0.5 * went(x, index.flip(0), e)
    torch.testing.assert_close(ours, both + x @ w["root_weight"] + w["root_bias"], atol=1e-6, rtol=0)


def test_ports_are_two_more_features_of_edges_in_attention():
    """Numbered by hand: the how manieth other end, in order of the edges, at the target and at the source."""
    graph, x, index, e, _ = a_graph()
    own = graph.whole_edges.members[0]
    ported = replace_fields(own.edge_attrs, ports=True)
    graph = make_graph(x.numpy(), own.index, graph.y[:N].numpy(), graph.masks[:, :N], dtype=x.dtype, edge_attrs=ported)
    ports, known = torch.zeros(M, 2, dtype=torch.float64), {}
    for row, (source, target) in enumerate(index.T.tolist()):
        for side, (at, other) in enumerate(((target, source), (source, target))):
            ports[row, side] = known.setdefault((side, at), {}).setdefault(other, len(known[side, at]))
    net = GAT(hidden=4, layers=1, output_heads=2, edge_features=K, ports=True, directed="forward").build(D, 4)
    w, ours = of_layer(net[0], graph)
    conv = GATConv(D, 4, 2, concat=False, edge_dim=K + 2).double()
    put_gat(conv, w)
    torch.testing.assert_close(ours, conv(x, index, torch.cat([e, ports.log1p()], 1)), atol=1e-6, rtol=0)


def put_gat(conv, w, way=""):
    put(conv.lin, w[f"{way}weight"])
    put(conv.lin_edge, w[f"{way}weight_edge"])
    conv.bias.data = w[f"{way}bias"]
    for name, own in (("att_src", "source"), ("att_dst", "target"), ("att_edge", "edge")):
        getattr(conv, name).data = w[way + own].view(1, 2, 4).clone()


@pytest.mark.parametrize(("directed", "how"), [(True, "forward"), (False, "none")])
def test_pna(directed, how):
    graph, x, index, e, _ = a_graph(directed=directed)
    w, ours = of_layer(pna.convolution(D, 4, K, DELTA, how), graph)
    kinds = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    conv = PNAConv(D, 4, *kinds, deg=torch.ones(3, dtype=torch.int64), edge_dim=K).double()
    conv.aggr_module.avg_deg_log.fill_(DELTA)
    put(conv.edge_encoder, w["weight_edge"], w["bias_edge"])
    put(conv.pre_nns[0][0], w["weight_message"], w["bias_message"])
    put(conv.post_nns[0][0], w["weight1"], w["bias1"])
    put(conv.lin, w["weight2"], w["bias2"])
    torch.testing.assert_close(ours, conv(x, index, e), atol=1e-6, rtol=0)


MODELS = {
    "gcn": GCN(hidden=8, weighted=True, dropout=0.0),
    "gcn both": GCN(hidden=8, directed="both", dropout=0.0),
    "gine": GINE(hidden=8, edge_features=K, dropout=0.0),
    "gine both": GINE(hidden=8, edge_features=K, directed="both", dropout=0.0),
    "gat": GAT(hidden=4, heads=2, edge_features=K, directed="forward", dropout=0.0, attention_dropout=0.3),
    "pna": PNA(hidden=8, edge_features=K, directed="both", dropout=0.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_many_clients_at_once_get_what_each_gets_alone(name):
    """Other numbers of edges, and nodes that nothing reaches: the padding reaches no node and no gradient."""
    net = MODELS[name].build(D, 2)
    graphs = [a_graph(seed, n=n, m=m, dtype=torch.float32)[0] for seed, n, m in ((0, 20, 70), (1, 30, 40), (2, 25, 90))]

    def loss(w, graph, drawn):
        return (models.apply(net, w, graph, drawn) ** 2).mul(graph.real[:, None]).sum()

    both = torch.func.grad_and_value(loss)
    fresh = [models.init(net, key(seed)) for seed in range(3)]
    keys = [key(seed + 9) for seed in range(3)]
    alone = [both(w, graph, drawn) for w, graph, drawn in zip(fresh, graphs, keys, strict=True)]
    stacked = torch.utils._pytree.tree_map(lambda *own: torch.stack(own), *fresh)
    batch = stack(graphs)
    there = dims_of(batch)
    together = torch.func.vmap(both, (0, there, 0))(stacked, batch, torch.stack(keys))
    for place, (gradients, value) in enumerate(alone):
        torch.testing.assert_close(together[1][place], value, rtol=1e-5, atol=1e-6)
        for layer, leaves in gradients.items():
            for leaf, own in leaves.items():
                assert own.isfinite().all()
                torch.testing.assert_close(together[0][layer][leaf][place], own, rtol=1e-4, atol=1e-5)


def test_a_model_of_edges_learns_from_bare_ones_too():
    graph = make_graph(np.ones((3, 2), np.float32), np.array([[0, 1], [1, 0]]), np.zeros(3, int), np.ones((3, 3), bool))
    bare = GINE(hidden=4), PNA(hidden=4), GCN(directed="both"), GAT(directed="forward")
    for model in (*bare, GINE(hidden=4, edge_features=2), PNA(hidden=4, edge_features=2), GAT(edge_features=2)):
        net = model.build(2, 2)
        assert models.apply(net, models.init(net, key(0)), graph).isfinite().all()


@pytest.mark.parametrize("width", [K, 0])
def test_matrices_beside_each_other_are_one_product(width):
    """Without features of edges, as of a graph that stands for clients', their weights are left out."""
    graph, *_ = a_graph()
    if not width:
        own = replace_fields(graph.whole_edges.members[0].edge_attrs, features=None)
        graph = make_graph(
            graph.x.numpy(), own.ends, graph.y.numpy(), graph.masks.numpy(), dtype=torch.float64, edge_attrs=own
        )
    draw = torch.Generator().manual_seed(1)
    h, g, weight = (torch.randn(n, 4, generator=draw, dtype=torch.float64) for n in (graph.nodes, graph.nodes, K))
    parts = {"edge_to_forward": h, "edge_from_forward": g, "edge_features_forward": weight}
    each = [graph.edges.operator(kind) @ part[: graph.edges.operator(kind).shape[1]] for kind, part in parts.items()]
    torch.testing.assert_close(directions.sum_of_products(graph, *parts.items()), sum(each))


def test_largest_of_each_row_by_hand():
    """Node 2 is reached from 0 twice and from 1; of equal values each edge has its share of the gradient."""
    index = np.array([[0, 0, 1], [2, 2, 2]])
    made = make_graph(
        np.eye(3, dtype=np.float32),
        index[:, :0],
        np.zeros(3, int),
        np.ones((3, 3), bool),
        edge_attrs=EdgeAttributes(index, True),
    )
    h = torch.zeros(32, 1)
    h[:3, 0] = torch.tensor([5.0, 5.0, -7.0])
    h.requires_grad_()
    top = largest(made.edges.operator("edge_sum_forward"), h)
    assert top[:3, 0].tolist() == [0, 0, 5]
    top.sum().backward()
    assert h.grad[:3, 0].tolist() == [0.5, 0.5, 0]


def test_a_loop_and_weights_by_hand():
    """0 -> 1 of weight 3 and a loop at 1 of weight 2: row 1 of A + I is [3, 2 + 1], so that D~ is [1, 6]."""
    edge_attrs = EdgeAttributes(np.array([[0, 1], [1, 1]]), True, np.array([3, 2], np.float32))
    graph = make_graph(
        np.eye(2, dtype=np.float32),
        np.array([[0, 1], [1, 0]]),
        np.zeros(2, int),
        np.ones((3, 2), bool),
        edge_attrs=edge_attrs,
    )
    made = graph.whole_edges.members[0].operator("edge_gcn_forward").scipy()[:2, :2].toarray()
    np.testing.assert_allclose(made, [[1, 0], [3 / math.sqrt(6), 3 / 6]], rtol=1e-6)
