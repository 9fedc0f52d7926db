"""Sampled messages along single edges: with room for all they are the whole graph's; with less, an estimate of them."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EdgeAttributes, operator_name
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.tree import map_leaves
from fedweave.errors import ConfigError
from fedweave.learn import cross_entropy
from fedweave.models import GAT, GCN, GINE, PNA, gine
from fedweave.models import MODELS as CATALOG
from fedweave.models.edges import OnEdges
from fedweave.ops.row_reductions import largest
from fedweave.sampling.messages import SampledMessages, sample_messages
from fedweave.sampling.minibatches import Minibatches
from tests.models.test_carrying_edges import D, K, N, a_graph
from tests.random_graphs import replace_fields

SIZE = {"hidden": 8, "dropout": 0.0}
CONNECTED = {"residual": True, "input_layer": True, "jump": "cat"}
MODELS = {
    "gcn weighted": GCN(**SIZE, weighted=True),
    "gcn forward": GCN(**SIZE, weighted=True, directed="forward"),
    "gcn both": GCN(**SIZE, directed="both"),
    "gine": GINE(**SIZE, edge_features=K),
    "gine both": GINE(**SIZE, edge_features=K, directed="both"),
    "gat": GAT(**SIZE, heads=2, edge_features=K, directed="forward"),
    "gat both": GAT(**SIZE, heads=2, edge_features=K, directed="both"),
    "pna": PNA(**SIZE, edge_features=K, directed="forward"),
    "pna both": PNA(**SIZE, edge_features=K, directed="both"),
    "gcn connected": GCN(**SIZE, **CONNECTED, weighted=True),
    "gine connected": GINE(**SIZE, **CONNECTED, edge_features=K, directed="both"),
    "gat connected": GAT(**SIZE, **CONNECTED, heads=2, edge_features=K, directed="forward"),
}


def whole_and_sampled(model, graph, batch, fan_out, seed=2):
    """The loss of the whole graph's training examples, and of two mini-batches, with gradients in all weights."""
    w = models.init(model, random.key(seed), torch.float64)
    w = map_leaves(lambda leaf: leaf.requires_grad_(), w)
    train = graph.masks[TRAIN].double()
    losses = [cross_entropy(models.apply(model, w, graph), graph.y.clamp(min=0), train)]
    sampler = Minibatches(batch, fan_out)
    batches = sampler.batches(model, graph, random.key(3), 2)
    for step in range(2):
        one = map_leaves(lambda leaf, at=step: leaf[at], batches)
        losses.append(sampler.loss(w, model, graph, random.key(3), one))
    flat = [leaf for own in w.values() for leaf in own.values()]
    return [(loss.detach(), torch.autograd.grad(loss, flat)) for loss in losses]


def of_edges(graph, m, split_times=None):
    """The same graph with its edges as the examples; with `until`, by time."""
    draw, edge_attrs = np.random.default_rng(7), graph.whole_edges.members[0].edge_attrs
    edge_attrs = replace_fields(
        edge_attrs, examples=True, time=draw.permutation(m).astype(float), split_times=split_times
    )
    masks = np.zeros((3, m), bool)
    masks[np.searchsorted(split_times, edge_attrs.time) if split_times else draw.integers(0, 3, m), np.arange(m)] = True
    index = graph.whole_edges.members[0].index
    return make_graph(graph.x[:N], index, draw.integers(0, 2, m), masks, dtype=torch.float64, edge_attrs=edge_attrs)


@pytest.mark.often(
    "gcn weighted-nodes-",
    "gcn both-edges-by time",
    "gine both-edges-by time",
    "gat both-nodes-by time",
    "pna-edges-",
    "gine connected-edges-",
)
@pytest.mark.parametrize("split_times", [None, (14.0, 22.0)], ids=["", "by time"])
@pytest.mark.parametrize("task", ["nodes", "edges"])
@pytest.mark.parametrize("name", MODELS)
def test_with_room_for_all_messages_loss_and_gradients_are_the_whole_graphs(name, task, split_times):
    m = 30
    graph = a_graph(m=m)[0]
    if task == "edges":
        graph = of_edges(graph, m, split_times)
    elif split_times:
        edge_attrs = replace_fields(of_edges(graph, m, split_times).whole_edges.members[0].edge_attrs, examples=False)
        index, y = graph.whole_edges.members[0].index, graph.y[:N].numpy()
        graph = make_graph(graph.x[:N], index, y, graph.masks[:, :N], dtype=torch.float64, edge_attrs=edge_attrs)
    model = (OnEdges(MODELS[name], K) if task == "edges" else MODELS[name]).build(D, 2)
    most = int(graph.whole_edges.neighbors.degree.max()) + 2  # the graph has parallel edges
    (loss, slopes), *sampled = whole_and_sampled(model, graph, int(graph.masks[TRAIN].sum()), most)
    for own, found in sampled:
        torch.testing.assert_close(own, loss, rtol=0, atol=1e-10)
        for one, other in zip(found, slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_sums_over_sampled_messages_are_right_in_expectation():
    graph, draws = a_graph(m=160)[0], 4000
    targets, keys = torch.arange(N).expand(draws, -1), random.fold(random.key(0), torch.arange(draws))
    layer = GCN(weighted=True, directed="both").build(D, 2)[0]
    (came, went), hop = sample_messages(graph, layer, targets, keys, 2)
    nodes = torch.cat([targets, came, went], 1)
    h = torch.arange(32 * 3).view(32, 3).double() / 96
    for what in ("sum", "feature_means", "gcn_bare"):
        for way in ("forward", "reverse"):
            exact = graph.edges.operator(operator_name(what, way))
            if what == "sum":
                exact = exact @ (graph.edges.operator(operator_name("from", way)) @ h)
            else:
                exact = exact @ (h if what == "gcn_bare" else torch.eye(K, dtype=torch.float64))

            def found(own, at, what=what, way=way):
                made = SampledMessages(own).operator(operator_name(what, way))
                if what == "sum":
                    return made @ (SampledMessages(own).operator(operator_name("from", way)) @ h[at])
                return made @ (h[at] if what == "gcn_bare" else torch.eye(K, dtype=torch.float64))

            assert (vmap(found)(hop, nodes).mean(0) - exact[:N]).abs().max() < 0.15, (what, way)


def test_sampled_messages_by_hand():
    """2 is reached from 0 by two edges of weights 1 and 3; nothing reaches 0, whose places are empty."""
    edge_attrs = EdgeAttributes(
        np.array([[0, 0, 2], [2, 2, 1]]), True, np.array([1, 3, 5], np.float32), np.array([[1], [2], [4]], np.float32)
    )
    ends = np.array([[0, 1, 2, 2], [2, 2, 0, 1]])
    graph = make_graph(
        np.eye(3, dtype=np.float32), ends, np.zeros(3, int), np.ones((3, 3), bool), edge_attrs=edge_attrs
    )
    layer = GCN(weighted=True, directed="forward").build(3, 2)[0]
    keys = random.fold(random.key(0), torch.arange(1))
    [start], hop = sample_messages(graph, layer, torch.tensor([[2, 0]]), keys, 3)
    assert start.tolist() == [[0, 0, 2, 0, 0, 0]]  # an empty place stands for the node itself
    edges = SampledMessages(map_leaves(lambda leaf: leaf[0], hop))
    assert edges.operator("edge_features_forward").rows.flatten().tolist() == [1, 2, 0, 0, 0, 0]
    sent = torch.tensor([[-1.0], [-2], [9], [9], [9], [9]])
    assert (edges.operator("edge_sum_forward") @ sent).tolist() == [[-3], [0]]
    assert largest(edges.operator("edge_sum_forward"), sent).tolist() == [[-1], [0]]
    rows = torch.arange(8.0)[:, None]
    assert (edges.operator("edge_from_forward") @ rows).flatten().tolist() == [2, 3, 0, 0, 0, 0]
    gcn = edges.operator("edge_gcn_forward") @ rows  # D~ is 1 + 4 at 2, and 1 at 0
    torch.testing.assert_close(gcn, torch.tensor([[0 / 5 + (2 * 1 + 3 * 3) / 5**0.5], [1.0]]))
    with pytest.raises(ValueError, match="reverse"):
        edges.operator("edge_sum_reverse")


def plain_gine(w, x, ids, edge_attrs):
    """Hidden and logits of GINE of two layers, in plain PyTorch, of one neighborhood whose center `ids` marks."""
    source, target = torch.from_numpy(edge_attrs.ends)
    e = torch.from_numpy(edge_attrs.features).double()
    h = torch.cat([x, ids], 1) @ w["1"]["weight"] + w["1"]["bias"]

    def way(h, own, prefix, start, end):
        own = {name.removeprefix(prefix): leaf for name, leaf in own.items() if name.startswith(prefix)}
        sent = torch.relu(h[start] + e @ own["weight_edge"] + own["bias_edge"])
        z = h + torch.zeros_like(h).index_add_(0, end, sent)
        return torch.relu(z @ own["weight1"] + own["bias1"]) @ own["weight2"] + own["bias2"]

    for layer in ("2", "3"):
        own = w[layer]
        came, went = way(h, own, "in_", source, target), way(h, own, "out_", target, source)
        h = torch.relu(0.5 * came + 0.5 * went + h @ own["root_weight"] + own["root_bias"])
    h = torch.relu(h @ w["4"]["weight"] + w["4"]["bias"])
    return h @ w["5"]["weight"] + w["5"]["bias"]


@pytest.mark.parametrize("sparse", [False, True])
def test_ego_ids_are_what_a_pass_of_its_own_for_each_node_gives(sparse):
    """Every node's logits, from a plain pass over the whole graph with itself alone marked: also where a cycle leads
    back to it."""
    graph = a_graph(m=40)[0]
    x = graph.x[:N].double()
    if sparse:
        index, y, edge_attrs = (
            graph.whole_edges.members[0].index,
            graph.y[:N].numpy(),
            graph.whole_edges.members[0].edge_attrs,
        )
        rows = sp.csr_matrix(x.numpy())
        graph = make_graph(rows, index, y, graph.masks[:, :N], dtype=torch.float64, edge_attrs=edge_attrs)
    model = GINE(**SIZE, edge_features=K, directed="both", ego_ids=True).build(D, 2)
    w = models.init(model, random.key(1), torch.float64)
    found = models.infer(model, w, graph)
    edge_attrs = graph.whole_edges.members[0].edge_attrs
    assert np.bincount(edge_attrs.ends[1]).max() <= gine.EVALUATED_NEIGHBORS
    for node in range(N):
        ids = (torch.arange(N) == node).double()[:, None]
        torch.testing.assert_close(found[node], plain_gine(w, x, ids, edge_attrs)[node], rtol=0, atol=1e-9)
    with pytest.raises(ConfigError, match="sampled_cross_entropy"):
        models.apply(model, w, graph)


@pytest.mark.often("gat")
@pytest.mark.parametrize("name", ["gine", "pna", "gat"])
def test_ego_ids_mark_both_ends_of_an_edge_and_are_trained_as_they_are_judged(name):
    m = 30
    graph = of_edges(a_graph(m=m)[0], m, (14.0, 22.0))
    more = {"edge_features": K, "directed": "both", "ego_ids": True}
    model = OnEdges(CATALOG[name](**SIZE, **more), K).build(D, 2)
    w, sampler = models.init(model, random.key(1), torch.float64), Minibatches(1, gine.EVALUATED_NEIGHBORS)
    judged = models.infer(model, w, graph)
    around = sampler.around(model, graph, torch.arange(m)[None], random.key(5)[None])
    ends = graph.whole_edges.members[0].edge_attrs.ends
    ids, nodes = around["hops"]["0"]["ids"][0, :, 0].bool(), around["nodes"][0]
    assert ids[: 2 * m].all()
    first = 2 * m + np.arange(2 * m * gine.EVALUATED_NEIGHBORS)  # what is drawn in the last layer first
    example = np.repeat(np.arange(2 * m) % m, gine.EVALUATED_NEIGHBORS)
    assert ids[first].tolist() == [node in ends[:, at] for node, at in zip(nodes[first].tolist(), example, strict=True)]
    own = sampler.logits(w, model, graph, None, map_leaves(lambda leaf: leaf[0], around))
    train = graph.masks[TRAIN][:m]
    torch.testing.assert_close(own[train], judged[:m][train], rtol=0, atol=1e-9)
    assert (own - judged[:m])[graph.masks[2][:m]].abs().max() > 1e-4  # by its time, test sees more
