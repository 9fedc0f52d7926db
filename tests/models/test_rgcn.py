"""Relational convolutions against PyTorch Geometric's, and by relation of links."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.func import vmap
from torch_geometric.nn import RGCNConv

from fedweave.algorithms import FedAvg
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.links import Links
from fedweave.core.tree import leaves
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.links import as_links
from fedweave.experiment.build import federation
from fedweave.experiment.graphs import client_graphs
from fedweave.models.links import on_links
from fedweave.models.rgcn import RGCN, convolution
from fedweave.partition.edges import EdgeGroups
from tests.contract.federations import state_after
from tests.models.reference import assert_equal, of_layer, weights_of
from tests.random_graphs import dims_of, replace_fields

NODES, RELATIONS, BASES, IN, OUT = 17, 3, 2, 5, 4


def graph_of(
    seed: int, directed: bool = True, dtype: torch.dtype = torch.float64, x: object = None
) -> tuple[Graph, EdgeAttributes]:
    """Random triples, two of which are of the same ends and relation; the last node has none."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, NODES - 1, (2, 60))
    ends = np.concatenate([ends[:, ends[0] != ends[1]], [[0, 0], [1, 1]]], 1)
    relation = rng.integers(0, RELATIONS, ends.shape[1])
    relation[-2:] = 1
    edge_attrs = EdgeAttributes(ends, directed, y=relation)
    x = rng.normal(size=(NODES, IN)) if x is None else x
    edges = to_undirected(ends, NODES)
    masks = np.zeros((3, NODES), bool)
    return make_graph(x, edges, np.zeros(NODES, np.int64), masks, dtype=dtype, edge_attrs=edge_attrs), edge_attrs  # type: ignore[arg-type]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_the_layer_is_pygs(directed: bool, sparse: bool) -> None:
    """Outputs and gradients, with what comes back along a link as further relations."""
    columns = NODES if sparse else IN
    graph, edge_attrs = graph_of(0, directed, x=sp.eye(NODES, format="csr") if sparse else None)
    layer, conv = convolution(columns, OUT, RELATIONS, BASES), RGCNConv(columns, OUT, 2 * RELATIONS, BASES)
    ends, kind = torch.from_numpy(edge_attrs.ends), torch.from_numpy(edge_attrs.y)
    there = (ends, kind) if directed else (torch.cat([ends, ends.flip(0)], 1), kind.repeat(2))
    edges, kinds = torch.cat([there[0], there[0].flip(0)], 1), torch.cat([there[1], there[1] + RELATIONS])
    x = torch.eye(NODES, dtype=torch.float64) if sparse else graph.x[:NODES]

    def theirs(w: dict[str, torch.Tensor]) -> torch.Tensor:
        basis = w["basis"].unflatten(1, (BASES, OUT)).movedim(1, 0).contiguous()
        given = {"weight": basis, "comp": w["mixture"], "root": w["root"], "bias": w["bias"]}
        return torch.func.functional_call(conv, given, (x, edges, kinds))

    assert_equal(of_layer(layer, graph, NODES), theirs, weights_of(layer, torch.float64), 1e-9)


def test_clients_together_are_clients_one_by_one() -> None:
    graphs = [graph_of(seed)[0] for seed in (1, 2)]
    net = RGCN(hidden=6, dropout=0.0, relations=RELATIONS).build(IN, 2)
    w, stacked = models.init(net, random.key(1), torch.float64), stack(graphs)
    together = vmap(lambda graph: models.apply(net, w, graph), in_dims=(dims_of(stacked),))(stacked)
    for at, graph in enumerate(graphs):
        torch.testing.assert_close(together[at], models.apply(net, w, graph), atol=1e-12, rtol=0)


def triples() -> Dataset:
    rng = np.random.default_rng(0)
    ends = np.unique(rng.integers(0, 30, (2, 240)), axis=1)
    ends = ends[:, ends[0] < ends[1]]  # no link is the reverse of another one
    edge_attrs = EdgeAttributes(ends, True, y=rng.integers(0, RELATIONS, ends.shape[1]))
    x = rng.normal(size=(30, IN)).astype(np.float32)
    data = Dataset("triples", x, to_undirected(ends, 30), np.zeros(30, np.int64), 1, edge_attrs=edge_attrs)
    return as_links(replace(data, labels=("a", "b", "c")), Links(ratios=(0.6, 0.2, 0.2)))


def test_it_takes_the_relations_of_links() -> None:
    """And a link that is to be predicted changes no output."""
    data = triples()
    assert data.links is not None
    kind = on_links(RGCN(hidden=6, dropout=0.0), data.links, "distmult")
    assert kind.of.relations == RELATIONS  # type: ignore[attr-defined]
    net = kind.build(IN, 2)
    w = models.init(net, random.key(1))
    [graph] = client_graphs(data, EdgeGroups(clients=1, by="random").cut(data, 0)).values()
    h = models.embedded(net, w, graph)
    assert data.edge_attrs is not None
    assert data.public is not None
    for split, same in ((0, False), (1, True), (2, True)):
        relation = data.edge_attrs.y.copy()  # type: ignore[union-attr]
        relation[data.public[split]] = (relation[data.public[split]] + 1) % RELATIONS
        other = replace(data, edge_attrs=replace_fields(data.edge_attrs, y=relation))
        [changed] = client_graphs(other, EdgeGroups(clients=1, by="random").cut(other, 0)).values()
        assert torch.equal(models.embedded(net, w, changed), h) == same


def test_loop_and_batches_train_it_alike() -> None:
    data, results = triples(), []
    cut = EdgeGroups(clients=3, by="random").cut(data, 0)
    for mode in ("loop", "vmap"):
        algorithm = FedAvg(on_links(RGCN(hidden=6), data.links, "distmult").build(IN, 2))
        fed = federation(data, cut, algorithm, mode=mode)
        state = state_after(algorithm, fed, 2)
        results.append(state["w"])
    for (_, loop), (_, batch) in zip(*map(leaves, results), strict=True):
        torch.testing.assert_close(loop, batch, atol=1e-5, rtol=0)
