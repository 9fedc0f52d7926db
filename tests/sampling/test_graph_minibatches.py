"""Mini-batches of small graphs: what they hold, the loss that they give, and one client alone against a batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TRAIN, Graph, make_graph, stack
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.learn import Adam, cross_entropy, fit
from fedweave.models import MODELS
from fedweave.ops.row_reductions import Lists, sum_rows
from fedweave.sampling.graphs import BatchEdges, GraphBatches, batch_graph, ways_of
from tests.models.test_gin import small_graphs
from tests.random_graphs import dims_of, padded_alike, replace_fields

KINDS = ("sum", "mean", "mean_or_self", "gcn", "pool_sum", "pool_mean")


def step(minibatches: Tree, at: int) -> Tree:
    return {name: leaf[at] for name, leaf in minibatches.items()}


def test_every_epoch_has_each_training_graph_once() -> None:
    graph = small_graphs(40, 2)[0]
    train = set(torch.nonzero(graph.masks[TRAIN]).flatten().tolist())
    sampler = GraphBatches(batch=5)
    per_epoch = -(-len(train) // 5)
    chosen, real = sampler.draw(graph, random.key(1), 4 * per_epoch)
    epochs = []
    for epoch in range(4):
        rows = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        drawn = chosen[rows][real[rows]].tolist()
        assert len(drawn) == len(set(drawn))
        assert set(drawn) == train
        assert real[rows].sum(1).tolist() == [5] * (per_epoch - 1) + [len(train) - 5 * (per_epoch - 1)]
        epochs.append(drawn)
    assert len({tuple(drawn) for drawn in epochs}) == 4
    other, _ = sampler.draw(graph, random.key(2), per_epoch)
    assert not torch.equal(other, chosen[:per_epoch])


@pytest.mark.parametrize("count", [1, 2, 13, 40])
@pytest.mark.parametrize("batch", [1, 5, 13, 100])
def test_the_smallest_batch_is_known_before(count: int, batch: int) -> None:
    graph = small_graphs(count, 2)[0]
    for steps in range(1, 9):
        _, real = GraphBatches(batch).draw(graph, random.key(3), steps)
        sizes = [size for size in real.sum(1).tolist() if size]
        assert GraphBatches(batch).min_examples(graph, steps) == min(sizes, default=0)


def test_a_batch_by_hand() -> None:
    """Graphs {0 - 1 - 2}, {3}, {4 - 5}; all train, all in one batch."""
    edges = np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]])
    owner = np.array([0, 0, 0, 1, 2, 2])
    x, masks = np.arange(6.0)[:, None], np.array([[1, 1, 1], [0, 0, 0], [0, 0, 0]], bool)
    graph = make_graph(x, edges, np.array([2, 0, 1]), masks, graph_of=owner)
    sampler = GraphBatches(batch=4)
    drawn = step(sampler.batches(graph, random.key(0), 1), 0)
    order = sampler.draw(graph, random.key(0), 1)[0][0, :3].tolist()
    nodes = [node for number in order for node in np.flatnonzero(owner == number)]
    assert drawn["nodes"][:6].tolist() == nodes
    assert drawn["target"].tolist() == [*([2, 0, 1][number] for number in order), 2]
    assert drawn["weight"].tolist() == [1, 1, 1, 0]
    batch = batch_graph(graph, drawn)
    assert batch.x[:6, 0].tolist() == nodes
    assert batch.real.sum() == 6
    assert (batch.edges.operator("pool_sum") @ batch.x)[:4, 0].tolist() == [*([3, 3, 9][number] for number in order), 0]
    near = {0: 1, 1: 2, 2: 1, 3: 0, 4: 5, 5: 4}
    assert (batch.edges.operator("sum") @ batch.x)[:6, 0].tolist() == [near[node] for node in nodes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_operators_are_those_of_the_whole_graph(kind: str, dtype: torch.dtype) -> None:
    """Of every row that is drawn, the value and, in h, the gradient."""
    graph = small_graphs(30, 2, dtype=dtype)[0]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    sampler = GraphBatches(batch=6)
    h = torch.randn(graph.nodes, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    minibatches = sampler.batches(graph, random.key(3), 2)
    chosen, real = sampler.draw(graph, random.key(3), 2)
    for at in range(2):
        batch = batch_graph(graph, step(minibatches, at))
        rows, count = minibatches["nodes"][at], int(batch.real.sum())
        out = batch.edges.operator(kind) @ h[rows]
        wanted = graph.edges.operator(kind) @ h
        if kind.startswith("pool"):
            out, wanted = out[real[at]], wanted[chosen[at][real[at]]]
        else:
            out, wanted = out[:count], wanted[rows[:count]]
        torch.testing.assert_close(out, wanted, atol=tolerance, rtol=tolerance)
        ours, theirs = (torch.autograd.grad((side**3).sum(), h, retain_graph=True)[0] for side in (out, wanted))
        torch.testing.assert_close(ours, theirs, atol=10 * tolerance, rtol=10 * tolerance)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("name", "pool"), [("gin", "sum"), ("gin", "mean"), ("gcn", "sum"), ("sage", "mean"), ("mlp", "sum")]
)
def test_a_batch_of_all_training_graphs_is_the_full_step(name: str, pool: str, sparse: bool) -> None:
    graph = small_graphs(25, 7, sparse, torch.float64)[0]
    model = MODELS[name](hidden=6, layers=2, dropout=0.0, pool=pool).build(7, 3)
    w = models.init(model, random.key(1), torch.float64)
    sampler, key = GraphBatches(batch=32), random.key(4)
    minibatch = step(sampler.batches(graph, key, 1), 0)

    def full(w: Tree) -> Tensor:
        return cross_entropy(models.apply(model, w, graph, key), graph.y.clamp(min=0), graph.masks[TRAIN].double())

    ours, theirs = (
        torch.func.grad_and_value(loss)(w) for loss in (lambda w: sampler.loss(w, model, graph, key, minibatch), full)
    )
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-12, rtol=1e-12)
    for layer, own in theirs[0].items():
        for weight, gradient in own.items():
            torch.testing.assert_close(ours[0][layer][weight], gradient, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("target", ["number", "labels"])
def test_a_batch_of_numbers_or_labels_with_gaps_is_the_full_step(target: str) -> None:
    """Of five each, of which some are not known; in batches of 4, the mean over those of the batch."""
    rng, graph = random.generator(0, "targets"), small_graphs(25, 7, False, torch.float64)[0]
    y = torch.from_numpy(rng.standard_normal((25, 5)) if target == "number" else rng.integers(-1, 2, (25, 5)))
    if target == "number":
        y[torch.from_numpy(rng.random((25, 5)) < 0.3)] = float("nan")
    graph = replace_fields(graph, y=torch.cat([y, y[:1].expand(len(graph.y) - 25, 5)]))
    model = MODELS["gin"](hidden=6, layers=2, dropout=0.0, pool="sum").build(7, 5)
    w = models.init(model, random.key(1), torch.float64)
    out = models.apply(model, w, graph, None)

    def wanted(chosen: Tensor) -> Tensor:
        known = ~y.isnan() if target == "number" else y >= 0
        at = [(i, j) for i in chosen.tolist() for j in range(5) if known[i, j]]
        each = [
            (out[i, j] - y[i, j]) ** 2
            if target == "number"
            else torch.nn.functional.binary_cross_entropy_with_logits(out[i, j], y[i, j].double())
            for i, j in at
        ]
        return torch.stack(each).mean()

    for batch in (32, 4):
        sampler = GraphBatches(batch)
        chosen, real = sampler.draw(graph, random.key(4), 1)
        minibatch = step(sampler.batches(graph, random.key(4), 1), 0)
        loss = sampler.loss(w, model, graph, None, minibatch)
        torch.testing.assert_close(loss, wanted(chosen[0][real[0]]), atol=1e-12, rtol=1e-12)
        drawn = batch_graph(graph, minibatch)
        assert drawn.y.shape == minibatch["target"].shape
        torch.testing.assert_close(drawn.y[real[0]], y[chosen[0][real[0]]], equal_nan=True)


def test_without_training_graphs_the_loss_is_zero() -> None:
    graph = small_graphs(10, 3)[0]
    graph = replace_fields(graph, masks=torch.zeros_like(graph.masks))
    model = MODELS["gin"](hidden=4, pool="sum").build(3, 3)
    sampler = GraphBatches(batch=4)
    minibatch = step(sampler.batches(graph, random.key(0), 1), 0)
    assert sampler.loss(models.init(model, random.key(1)), model, graph, random.key(2), minibatch) == 0


@pytest.mark.often("dtype0-True", "dtype1-False")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_alone_and_in_a_batch_gives_the_same_bits(dtype: torch.dtype, sparse: bool) -> None:
    model = MODELS["gin"](hidden=8, pool="sum").build(20, 3)
    graphs = padded_alike([small_graphs(count, 20, sparse, dtype, seed=count)[0] for count in (9, 70, 33)])
    together = stack(graphs)
    keys = torch.stack([random.fold(random.key(1), site) for site in range(3)])
    w, sampler = models.init(model, random.key(2), dtype), GraphBatches(batch=4)

    def loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        return sampler.loss(w, model, graph, key, args)

    def train(graph: Graph, key: Tensor) -> Any:
        drawn = sampler.batches(graph, key, 5)
        return fit(loss, w, graph, key, Adam(0.01), 5, batches=drawn).w

    dims = dims_of(together)
    with torch.no_grad():
        batched = vmap(train, (dims, 0))(together, keys)
        for site, graph in enumerate(graphs):
            for layer, own in train(graph, keys[site]).items():
                for weight, value in own.items():
                    assert torch.equal(batched[layer][weight][site], value), f"client {site}, {layer}/{weight}"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set model\.pool = 'sum' or 'mean'"):
        GraphBatches().check(MODELS["gin"]().build(3, 2))
    GraphBatches().check(MODELS["gin"](pool="sum").build(3, 2))
    nodes = make_graph(np.ones((3, 1)), np.zeros((2, 0), int), np.zeros(3, int), np.ones((3, 3), bool))
    with pytest.raises(ValueError, match="this client's are nodes"):
        GraphBatches().batches(nodes, random.key(0), 1)
    with pytest.raises(ValueError, match="no operator 'max', only structure, sum, sum_with_self, mean"):
        BatchEdges({}, torch.float32, nodes.whole_edges).operator("max")


def test_sums_over_lists_by_hand() -> None:
    """[[1, 1, 0], [0, 0, 0], [0, 1, 1]], columns padded."""
    lists = Lists(torch.tensor([0, 1, 1, 2, 0, 0]), torch.tensor([0, 2, 2, 4]))
    back = Lists(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 3, 4]))
    h = torch.tensor([[1.0], [2.0], [4.0]], requires_grad=True)
    out = sum_rows(h, lists, back)
    assert out[:, 0].tolist() == [3, 0, 6]
    out.backward(torch.tensor([[1.0], [10.0], [100.0]]))
    assert h.grad is not None
    assert h.grad[:, 0].tolist() == [1, 101, 100]


def with_attributes(count: int, dtype: torch.dtype, seed: int = 0) -> Graph:
    """Small graphs whose directed edges, some of them parallel, have three features."""
    graph = small_graphs(count, 7, False, dtype, seed=seed)[0]
    arrays = graph_arrays(graph)
    ends = arrays.edges[:, arrays.edges[0] < arrays.edges[1]]
    ends = np.concatenate([ends, ends[::-1, ::3], ends[:, ::4]], 1)
    features = random.generator(seed, "features").standard_normal((ends.shape[1], 3)).astype(np.float32)
    return graph_like(graph, arrays._replace(edge_attrs=EdgeAttributes(ends, True, features=features)))


@pytest.mark.parametrize("directed", ["none", "forward", "both"])
def test_messages_of_a_batch_are_those_of_the_full_step(directed: str) -> None:
    """And without the features of edges the loss is another."""
    graph = with_attributes(25, torch.float64)
    model = MODELS["gine"](hidden=6, layers=2, dropout=0.0, pool="sum", directed=directed, edge_features=3).build(7, 3)
    w, sampler = models.init(model, random.key(1), torch.float64), GraphBatches(batch=32)
    assert GraphBatches.suits(model)
    sampler.check(model)
    minibatch = map_leaves(lambda leaf: leaf[0], sampler.batches(graph, random.key(4), 1, ways_of(model)))

    def full(w: Tree) -> Tensor:
        return cross_entropy(models.apply(model, w, graph, None), graph.y.clamp(min=0), graph.masks[TRAIN].double())

    ours, theirs = (
        torch.func.grad_and_value(loss)(w) for loss in (lambda w: sampler.loss(w, model, graph, None, minibatch), full)
    )
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-12, rtol=1e-12)
    for path, gradient in leaves(theirs[0]):
        torch.testing.assert_close(dict(leaves(ours[0]))[path], gradient, atol=1e-11, rtol=1e-11)
    for way in ways_of(model):
        minibatch["messages"][way]["features"] = torch.zeros_like(minibatch["messages"][way]["features"])
    assert abs(sampler.loss(w, model, graph, None, minibatch) - theirs[1]) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_alone_and_in_a_batch_of_clients_give_the_same_bits(dtype: torch.dtype) -> None:
    model = MODELS["gine"](hidden=8, pool="sum", directed="both", edge_features=3).build(7, 3)
    graphs = padded_alike([with_attributes(count, dtype, seed=count) for count in (9, 40, 23)])
    keys = torch.stack([random.fold(random.key(1), site) for site in range(3)])
    w, sampler = models.init(model, random.key(2), dtype), GraphBatches(batch=4)

    def loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        return sampler.loss(w, model, graph, key, args)

    def train(graph: Graph, key: Tensor) -> Any:
        drawn = sampler.batches(graph, key, 5, ways_of(model))
        return fit(loss, w, graph, key, Adam(0.01), 5, batches=drawn).w

    together = stack(graphs)
    with torch.no_grad():
        batched = vmap(train, (dims_of(together), 0))(together, keys)
        for site, graph in enumerate(graphs):
            for path, value in leaves(train(graph, keys[site])):
                assert torch.equal(dict(leaves(batched))[path][site], value), f"client {site}, {path}"


def test_models_that_compare_messages_have_no_batches_of_graphs() -> None:
    model = MODELS["pna"](pool="sum", edge_features=3).build(7, 2)
    assert not GraphBatches.suits(model)
    with pytest.raises(ValueError, match="choose model gine"):
        GraphBatches().check(model)
