"""Mini-batches of nodes with sampled neighbors: with room for everybody they are the whole graph; with less, an
estimate of it."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.tree import leaves, nest
from fedweave.learn import cross_entropy
from fedweave.models import MODELS
from fedweave.ops.rows import gather_rows
from fedweave.sampling import minibatches
from fedweave.sampling.minibatches import Minibatches, draw_nodes, edges_of, sample_layers
from tests.contract.federations import arrays
from tests.random_graphs import random_graph


def test_drawn_nodes_are_different_members_and_places_may_stay_empty() -> None:
    member = torch.arange(20) % 3 == 0
    keys = random.fold(random.key(0), torch.arange(50))[:, None]
    nodes, real = draw_nodes(member, keys, 5)
    assert real.all()
    assert member[nodes].all()
    assert all(len(set(row)) == 5 for row in nodes.tolist())
    assert set(nodes.flatten().tolist()) == set(member.nonzero()[:, 0].tolist())
    nodes, real = draw_nodes(member, random.key(1), 30)
    assert real.tolist() == [True] * 7 + [False] * 23
    assert nodes[7:].tolist() == [0] * 23


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gcnii", "gprgnn", "acmgcn", "mlp"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_matrix.toarray], ids=["sparse", "dense"])
def test_with_room_for_all_nodes_and_neighbors_the_loss_is_the_whole_graphs(name: str, kind: Any) -> None:
    x, edges, y, masks = arrays(30, 1)
    graph = make_graph(kind(x), edges, y, masks, dtype=torch.float64)
    made = MODELS[name](hidden=8, layers=3, dropout=0.0).build(x.shape[1], 3)
    w, key = models.init(made, random.key(2), torch.float64), random.key(3)
    whole = cross_entropy(models.apply(made, w, graph), graph.y.clamp(min=0), graph.masks[TRAIN].double())
    sampler = Minibatches(batch=12, fan_out=int(np.bincount(edges[0]).max()))
    batches = sampler.batches(made, graph, key, 2)
    for step in range(2):
        one = nest({path: leaf[step] for path, leaf in leaves(batches)})  # without what is empty, as engines keep it
        assert sampler.loss(w, made, graph, key, one) == pytest.approx(float(whole), abs=1e-12)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gcnii", "gprgnn", "acmgcn"])
def test_lists_that_name_all_nodes_once_give_the_same_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled for a node depends on its number and layer alone, so that it may stand in one place."""
    x, edges, y, masks = arrays(30, 1)
    graph = make_graph(x, edges, y, masks, dtype=torch.float64)
    made = MODELS[name](hidden=8, layers=4, dropout=0.0).build(x.shape[1], 3)
    w, key, sampler = models.init(made, random.key(2), torch.float64), random.key(3), Minibatches(batch=5, fan_out=2)
    lists, losses = [], []
    for most in (minibatches.MAX_PLACES, 0):
        monkeypatch.setattr(minibatches, "MAX_PLACES", most)
        batches = sampler.batches(made, graph, key, 2)
        lists.append(batches["nodes"].shape[1])
        ones = [nest({path: leaf[step] for path, leaf in leaves(batches)}) for step in range(2)]
        losses.append([float(sampler.loss(w, made, graph, key, one)) for one in ones])
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert lists[0] == 5 * 3**4
    assert lists[1] <= 5 * 3**2 + graph.nodes


def test_ten_hops_fill_no_memory() -> None:
    """Of the default GPR-GNN, batch and fan-out: 32 · 6^10 places would be 2 billion."""
    graph, sampler = random_graph(900), Minibatches()
    made = MODELS["gprgnn"]().build(6, 3)
    nodes = sampler.around(made, graph, torch.zeros(1, 32, dtype=torch.int64), random.key(0)[None])["nodes"]
    assert nodes.shape[1] <= minibatches.MAX_PLACES + graph.nodes
    assert minibatches.bytes_of(made, sampler, graph.nodes, 1) < 1e9


def test_sums_over_sampled_neighbors_are_right_in_expectation() -> None:
    graph = random_graph(40)
    h = random.normal(random.key(1), (graph.nodes, 3)).double()
    targets = torch.arange(40).expand(4000, -1)
    layer = MODELS["sage"](hidden=4).build(3, 2)[0]
    nodes, hops = sample_layers(graph, targets, random.fold(random.key(0), torch.arange(4000)), {0: layer}, 2)
    for kind in ("sum", "gcn"):
        exact = (graph.edges.operator(kind) @ h)[:40]
        found = vmap(lambda one, at, kind=kind: edges_of(layer, one["0"]).operator(kind) @ gather_rows(h, at))(
            hops, nodes
        )
        assert (found.mean(0) - exact).abs().max() < 0.2


def test_what_cannot_be_is_refused() -> None:
    for name, remedy in (("star", "graph_cross_entropy"), ("h2gcn", "choose model sage, gcn")):
        made = MODELS[name](hidden=4, layers=2).build(5, 2)
        with pytest.raises(ValueError, match=remedy):
            Minibatches().layers(made)
