"""Edges between clients: FedGCN's exchange before training (Yao et al. 2023), in which every client gets the sums of
features over its nodes' neighbors, whoever holds them, and takes them for its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedgcn import NodePlace, Places
from fedweave.core.algorithm import Calls, Capabilities
from fedweave.core.federation import DATA, Client, Federation, on_client
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.tree import Tree
from fedweave.experiment import build
from fedweave.experiment.config import resolve
from tests.contract.changing import Changing
from tests.random_graphs import replace_fields


@dataclass(frozen=True)
class NeighborSums(Changing):
    """The features become A x, the sums over all neighbors, whoever holds them."""

    capabilities: ClassVar[Capabilities] = Capabilities(ids=True)
    finders: ClassVar = (Places(),)

    def init(self, fed: Federation) -> Tree:
        replies = fed.map(self.tell)
        sums: dict[int, Any] = {}
        for reply in replies:
            for node, own in zip(reply["node"].tolist(), reply["sum"], strict=True):
                sums[node] = sums.get(node, 0) + own
        fed.replace_data(self.take, each={client: _part(sums, replies[client]["own"]) for client in replies.clients})
        return super().init(fed)

    def calls(self, clients: int) -> Calls:
        return Calls(round=(self.train,), evaluation=(self.score,))

    def round(self, state: Tree, fed: Federation) -> Tree:
        replies = fed.map(self.train, {"w": state["w"]})
        return {"w": replies.weighted_sum("w", torch.full((len(replies),), 1 / len(replies))), "round": 0}

    @on_client(sends={"own": "its nodes", "node": "others' nodes", "sum": "sums of features for them"}, ragged=True)
    def tell(self, client: Client, message: Tree) -> Tree:
        place = NodePlace.of(client.graph)
        own, other = place.crossing
        node, at = other.unique(return_inverse=True)
        x = torch.as_tensor(_dense(client))
        return {
            "own": place.nodes,
            "node": node,
            "sum": x.new_zeros(len(node), x.shape[1]).index_add(0, at, x[own]),
        }

    @on_client(replaces_data=True)
    def take(self, client: Client, message: Tree) -> Tree:
        old, x = graph_arrays(client.graph), _dense(client)
        sums = np.zeros_like(x)
        np.add.at(sums, old.edges[1], x[old.edges[0]])
        return {DATA: graph_like(client.graph, replace_fields(old, x=sums + message["sum"].numpy()))}


def _part(sums: Mapping[int, Any], nodes: torch.Tensor) -> Tree:
    width = len(next(iter(sums.values())))
    return {"sum": torch.stack([sums.get(node, torch.zeros(width)) for node in nodes.tolist()])}


def _dense(client: Client) -> np.ndarray:
    x = graph_arrays(client.graph).x
    return x if isinstance(x, np.ndarray) else x.toarray()


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_neighbors_at_other_clients_count(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "neighbour_sums", NeighborSums)
    document = {
        "seed": 2,
        "data": {"name": "synthetic", "nodes": 150, "classes": 3, "features": 8, "degree": 6.0},
        "partition": {"name": "louvain", "clients": 4},
        "algorithm": {"name": "neighbour_sums"},
        "engine": {"name": "simulation", "mode": mode},
    }
    built = build.build(resolve(document))
    built.algorithm.init(built.fed)
    x = np.asarray(built.data.x.todense() if hasattr(built.data.x, "todense") else built.data.x)
    expected = np.zeros_like(x)
    np.add.at(expected, built.data.edges[1], x[built.data.edges[0]])
    graphs = built.fed.graphs.values()
    for part, graph in zip(built.partition.parts, graphs, strict=True):
        found = graph_arrays(graph).x
        found = found if isinstance(found, np.ndarray) else found.toarray()
        np.testing.assert_allclose(found, expected[part.nodes], rtol=1e-5, atol=1e-6)


def test_only_algorithms_that_ask_see_places(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "data": {"name": "synthetic", "nodes": 40, "classes": 2, "features": 4},
        "partition": {"clients": 1},
        "engine": {"name": "simulation", "mode": "loop"},
    }
    monkeypatch.setitem(ALGORITHMS, "neighbour_sums", NeighborSums)
    for name, wanted in (("fedavg", set()), ("neighbour_sums", {"places", "crossing"})):
        built = build.build(resolve({**document, "algorithm": {"name": name}}))
        assert [own.extra.keys() for own in built.fed.graphs.values()] == [wanted]
