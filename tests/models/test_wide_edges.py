"""Features of edges of which each column has one number in nearly all rows: a sparse product with the same numbers."""

import numpy as np
import pytest
import torch

from fedweave.core import edge_attributes
from fedweave.core import model as models
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import make_graph, stack
from fedweave.core.random import key
from fedweave.datasets.edges import scale_features
from fedweave.models import GAT, GINE, PNA, OnEdges, directions
from tests.random_graphs import dims_of, replace_fields

N, M, D, K = 30, 400, 4, 48
KIND = {"hidden": 4, "edge_features": K, "dropout": 0.0}
MODELS = {
    "gine": GINE(**KIND, directed="both"),
    "gat": GAT(**KIND, heads=2, directed="forward"),
    "pna": PNA(**KIND),
    "edges": OnEdges(GINE(**KIND, directed="both"), K),
    "edges of gat": OnEdges(GAT(**KIND, heads=2), K),
}


def one_hot(seed=0, how="standard", m=M):
    draw = np.random.default_rng(seed)
    e = np.zeros((m, K), np.float32)
    e[np.arange(m), draw.integers(0, K - 2, m)] = 1
    e[:, -1] = draw.normal(size=m)  # a number beside them, and a column that is 0 everywhere
    return scale_features(EdgeAttributes(draw.integers(0, N - 1, (2, m)), True, features=e), how, "e")


def a_graph(edge_attrs, examples, seed=0, dtype=torch.float64):
    draw, (source, target) = np.random.default_rng(seed), edge_attrs.ends
    apart = source != target
    pairs = np.unique(np.concatenate([edge_attrs.ends[:, apart], edge_attrs.ends[::-1, apart]], 1), axis=1)
    edge_attrs = replace_fields(edge_attrs, examples=examples)
    count = edge_attrs.total if examples else N
    x = draw.normal(size=(N, D)).astype(np.float32)
    return make_graph(
        x, pairs, draw.integers(0, 2, count), np.ones((3, count), bool), dtype=dtype, edge_attrs=edge_attrs
    )


def outcome(name, edge_attrs):
    """The logits, and the gradients of their squares, of an untrained model."""
    net, graph = MODELS[name].build(D, 2), a_graph(edge_attrs, name.startswith("edges"))
    w = models.init(net, key(1), torch.float64)
    rows = edge_attrs.total if name.startswith("edges") else N
    loss = lambda w: (models.apply(net, w, graph)[:rows] ** 2).sum()  # noqa: E731
    return models.apply(net, w, graph)[:rows], torch.func.grad(loss)(w), graph


@pytest.mark.often(*(f"{name}-{how}" for name in MODELS for how in ("True-standard", "False-minmax")))
@pytest.mark.parametrize("how", ["standard", "minmax"])
@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_apart_changes_no_number(name, leads, how, monkeypatch):
    edge_attrs = replace_fields(one_hot(how=how), directed=leads)
    logits, gradients, graph = outcome(name, edge_attrs)
    own = graph.whole_edges.members[0].messages.offset_and_rest
    assert own[1].nnz < 0.1 * M * K < np.count_nonzero(edge_attrs.features)
    for module in (edge_attributes, directions):
        monkeypatch.setattr(module, "WIDE", 1 << 30)
    expected, others, graph = outcome(name, edge_attrs)
    assert isinstance(graph.whole_edges.members[0].messages.offset_and_rest[1], np.ndarray)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (gradients, others)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_many_clients_at_once_get_what_each_gets_alone(name):
    """Of one, the features are sparse as they are: nothing is kept apart."""
    net, examples = MODELS[name].build(D, 2), name.startswith("edges")
    given = (one_hot(0), one_hot(1, m=410), one_hot(2, "none"))
    graphs = [a_graph(edge_attrs, examples, seed, torch.float32) for seed, edge_attrs in enumerate(given)]
    w = models.init(net, key(1))
    batch = stack(graphs)
    there = dims_of(batch)
    together = torch.func.vmap(lambda graph: models.apply(net, w, graph), (there,))(batch)
    for place, (graph, edge_attrs) in enumerate(zip(graphs, given, strict=True)):
        rows = edge_attrs.total if examples else N
        torch.testing.assert_close(together[place][:rows], models.apply(net, w, graph)[:rows], rtol=1e-4, atol=1e-5)


def test_what_each_split_sees_is_kept_apart_by_itself(monkeypatch):
    edge_attrs = one_hot()
    edge_attrs = replace_fields(
        edge_attrs, time=np.arange(M, dtype=np.float64), split_times=(200.0, 300.0), examples=True
    )
    net, w = MODELS["edges"].build(D, 2), None
    found = []
    for _ in range(2):
        graph = a_graph(edge_attrs, True)
        w = w or models.init(net, key(1), torch.float64)
        found.append(
            [models.apply(net, w, replace_fields(graph, edges=graph.whole_edges.at(split))) for split in range(3)]
        )
        for module in (edge_attributes, directions):
            monkeypatch.setattr(module, "WIDE", 1 << 30)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one[:M], other[:M], rtol=1e-6, atol=1e-6)
    assert (found[0][0] - found[0][2]).abs().max() > 1e-3


def test_features_that_would_not_become_sparse_stay_as_they_are():
    draw = np.random.default_rng(0)
    for e in (
        draw.normal(size=(M, K)),
        np.eye(M, K),
        draw.normal(size=(M, edge_attributes.WIDE - 1)),
        np.zeros((0, K)),
    ):
        e = e.astype(np.float32)
        ends = np.zeros((2, len(e)), np.int64)
        messages = edge_attributes.EdgeMessages(EdgeAttributes(ends, True, features=e), 1, np.float32)
        offset, kept = messages.offset_and_rest
        assert not offset.any()
        np.testing.assert_array_equal(kept, e)
