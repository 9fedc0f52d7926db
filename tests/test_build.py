"""From a config to what a run needs: clients' graphs as cut, the pooled client, ids."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms.fedgcn import NodePlace, Places
from fedweave.contract.subject import distance
from fedweave.core.graph import SPLITS
from fedweave.core.graph_arrays import graph_tree
from fedweave.datasets.base import Dataset
from fedweave.engines import states
from fedweave.engines.simulation import Simulation
from fedweave.experiment import build, config
from fedweave.experiment.graphs import client_graphs, global_test_graph, graphs_at_server, width
from fedweave.ops.sparse import Sparse
from fedweave.partition import Random, Vertical
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.client_data import pool_clients
from fedweave.partition.ego_networks import crossing_edges, edges_within

PATH = Dataset(
    name="path of 5 nodes and a chord 1-4",
    x=np.arange(10, dtype=np.float32).reshape(5, 2),
    edges=np.array([[0, 1, 1, 1, 2, 2, 3, 3, 4, 4], [1, 0, 2, 4, 1, 3, 2, 4, 1, 3]]),
    y=np.array([0, 1, -1, 0, 1]),
    classes=2,
    sensitive=np.array([1, 0, -1, 1, 0]),
)


def part(nodes: list[int], **splits: Any) -> Part:
    masks = np.array([[node in splits.get(split, ()) for node in nodes] for split in SPLITS])
    return Part(np.array(nodes), masks)


def test_clients_are_induced_subgraphs_and_may_share_nodes() -> None:
    cut = Partition((part([0, 1, 4], train=[0], test=[1, 4]), part([1, 3, 4], train=[1, 3])), np.array([2, 3]))
    one, other = cast(Any, client_graphs(PATH, cut).values())
    assert one.edges.members[0].index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert other.edges.members[0].index.tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
    assert one.x[:3].tolist() == [[0, 1], [2, 3], [8, 9]]
    assert one.y[:3].tolist() == [0, 1, 1]
    assert one.sensitive[:3].tolist() == [1, 0, 0]
    assert one.masks[:, :3].tolist() == [[True, False, False], [False] * 3, [False, True, True]]
    test = cast(Any, global_test_graph(PATH, cut, torch.float64))
    assert test.x.dtype == torch.float64
    assert test.edges.members[0].index.tolist() == [[0, 1], [1, 0]]
    assert test.masks[:, :2].tolist() == [[False] * 2, [False] * 2, [False, True]]
    assert global_test_graph(PATH, Partition(cut.parts), torch.float32) is None


def test_induced_edges_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((40, 40)) < 0.2, 1)
    data = Dataset("random", np.zeros((40, 1), np.float32), np.stack(np.nonzero(dense | dense.T)), np.zeros(40), 1)
    groups = [np.flatnonzero(rng.random(40) < share) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
    for nodes, edges in zip(groups, edges_within(data, groups), strict=True):
        wanted = np.stack(np.nonzero((dense | dense.T)[np.ix_(nodes, nodes)]))
        assert edges.tolist() == wanted.tolist()


def test_crossing_edges_against_brute_force() -> None:
    rng = np.random.default_rng(1)
    dense = np.triu(rng.random((40, 40)) < 0.2, 1)
    both = dense | dense.T
    data = Dataset("random", np.zeros((40, 1), np.float32), np.stack(np.nonzero(both)), np.zeros(40), 1)
    groups = [np.flatnonzero(rng.random(40) < share) for share in (0.1, 0.3, 0.3)]
    held = sorted({int(node) for nodes in groups for node in nodes})
    assert len(held) < 40
    for nodes, edges in zip(groups, crossing_edges(data, groups), strict=True):
        others = [node for node in held if node not in nodes]
        wanted = sorted((i, other) for i, node in enumerate(nodes.tolist()) for other in others if both[node, other])
        assert sorted(zip(*edges.tolist(), strict=True)) == wanted


def test_places_name_the_nodes_and_what_they_are_joined_to() -> None:
    cut = Partition((part([0, 1]), part([3, 4])))  # 0 - 1 - 2 - 3 - 4, and 1 - 4
    one, other = map(NodePlace.of, client_graphs(PATH, cut, finders=[Places()]).values())
    assert one.nodes.tolist() == [0, 1]
    assert one.crossing.tolist() == [[1], [4]]
    assert other.crossing.tolist() == [[1], [1]]


def test_what_the_server_holds_besides() -> None:
    public = part([2, 3, 4], train=[3], val=[4])
    cut = Partition((part([0, 1]),), held={"public": public})
    [(role, graph)] = graphs_at_server(PATH, cut).items()
    assert role == "public"
    assert graph.x[:3].tolist() == PATH.x[2:].tolist()
    assert graph.masks[:, :3].tolist() == public.masks.tolist()
    fed = Simulation(client_graphs(PATH, cut), classes=2, held={role: graph})
    assert fed.held == {"public": graph}
    assert fed.test is None


def test_pooled_client_has_every_edge_and_never_trains_on_test_nodes() -> None:
    cut = Partition((part([0, 1, 2], train=[0, 1]), part([1, 3, 4], train=[3], val=[4], test=[1])))
    [union] = pool_clients(cut).parts
    assert union.nodes.tolist() == [0, 1, 2, 3, 4]
    used = {split: union.nodes[mask].tolist() for split, mask in zip(SPLITS, union.masks, strict=True)}
    assert used == {"train": [0, 3], "val": [4], "test": [1]}
    graph = client_graphs(PATH, pool_clients(cut))["client-0"]
    assert graph.edges.members[0].index.shape[1] == PATH.edges.shape[1]


def test_centralized_is_given_the_union() -> None:
    sections = {"data": {"name": "synthetic", "nodes": 90}, "partition": {"clients": 3}}
    built = build.build(config.resolve({**sections, "algorithm": {"name": "centralized"}}))
    assert built.fed.clients == ("client-0",)
    assert len(built.partition.parts) == 3


def test_ids_sort_as_they_count() -> None:
    for count in (1, 10, 11, 1000):
        ids = client_ids(count)
        assert ids == sorted(ids)
        assert len(set(ids)) == count
    assert client_ids(11)[3] == "client-03"
    assert client_ids(2, ("shop", "bank")) == ["shop", "bank"]


WIDE = replace(PATH, x=np.arange(1, 16, dtype=np.float32).reshape(5, 3))
SPLIT = {"train": [0, 1], "val": [3], "test": [4]}
VERTICAL = Partition(
    (
        replace(part([0, 1, 2, 3, 4], **SPLIT), columns=np.array([0, 1]), edges=np.array([[0, 1], [1, 0]])),
        replace(
            part([0, 1, 2, 3, 4], **SPLIT),
            columns=np.array([2]),
            edges=np.array([[0, 1, 1, 4], [1, 0, 4, 1]]),
            labels=False,
        ),
    ),
    names=("bank", "shop"),
)


def dense(x: Any) -> np.ndarray:
    return x.blocks.members[0].scipy().toarray() if isinstance(x, Sparse) else x.numpy()


@pytest.mark.parametrize("sparse", [False, True])
def test_vertical_clients_by_hand(sparse: bool) -> None:
    """Columns first, zeros up to the widest client; own edges; labels withheld while the masks stay."""
    data = replace(WIDE, x=sp.csr_matrix(WIDE.x)) if sparse else WIDE
    graphs = cast(Any, client_graphs(data, VERTICAL))
    assert list(graphs) == ["bank", "shop"]
    bank, shop = graphs.values()
    assert isinstance(bank.x, Sparse) is isinstance(shop.x, Sparse) is sparse
    assert width(data, VERTICAL) == 2
    assert dense(bank.x)[:5].tolist() == WIDE.x[:, :2].tolist()
    assert dense(shop.x)[:5].tolist() == [[value, 0] for value in WIDE.x[:, 2]]
    assert bank.edges.members[0].index.tolist() == [[0, 1], [1, 0]]
    assert shop.edges.members[0].index.tolist() == [[0, 1, 1, 4], [1, 0, 4, 1]]
    assert bank.y[:5].tolist() == PATH.y.tolist()
    assert (shop.y == -1).all()
    assert shop.masks.tolist() == bank.masks.tolist()
    assert bank.masks[:, :5].tolist() == [
        [True, True, False, False, False],
        [False, False, False, True, False],
        [False, False, False, False, True],
    ]


GRAPHS = replace(PATH, graph_of=np.array([0, 0, 1, 2, 2]), y=np.array([0, 1, 0]), sensitive=None)
SHARED = Partition((part([0, 1, 4], train=[0], test=[1, 4]), part([1, 3, 4], train=[1, 3]), part([2, 4], val=[2])))
OF_GRAPHS = Partition(tuple(Part.of(GRAPHS, np.array(own), np.ones((3, len(own)), bool)) for own in ([0], [1, 2], [2])))


@pytest.mark.parametrize(
    ("data", "cut", "finders", "held"),
    [
        (PATH, SHARED, (), 4),
        (PATH, SHARED, [Places()], None),
        (replace(WIDE, x=sp.csr_matrix(WIDE.x)), VERTICAL, (), 5),
        (GRAPHS, OF_GRAPHS, (), 3),
    ],
)
def test_some_clients_have_the_graphs_that_they_have_among_all(data: Any, cut: Any, finders: Any, held: Any) -> None:
    """Of data that is without the other clients' nodes."""
    everybody = client_graphs(data, cut, finders=finders)
    some = client_graphs(data, cut, finders=finders, only=[*everybody][1:])
    assert list(some) == [*everybody][1:]
    for client, graph in some.items():
        assert distance(graph_tree(graph), graph_tree(everybody[client])) == 0
        assert str(graph.whole_edges.members[0].extra) == str(everybody[client].whole_edges.members[0].extra)
    assert held is None or cast(Any, some)._data.nodes == held


@pytest.mark.parametrize("sparse", [False, True])
def test_whoever_leaves_data_to_workers_keeps_it_in_files(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_LOADED", 0)
    data = replace(PATH, x=sp.csr_matrix(PATH.x)) if sparse else replace(PATH, x=PATH.x.copy())
    held = weakref.ref(data.x)
    cut = Random(clients=2).cut(data, 0)
    kept, same = build.move_to_files(data, cut)
    assert np.array_equal(kept.x.toarray() if sparse else kept.x, PATH.x)
    assert np.array_equal(kept.edges, PATH.edges)
    assert same == cut
    del data, cut
    assert held() is None


def test_own_edges_are_renumbered_to_the_own_nodes() -> None:
    cut = Partition((replace(part([1, 3, 4], train=[1]), edges=np.array([[1, 4], [4, 1]])),))
    graph = client_graphs(PATH, cut)["client-0"]
    assert graph.edges.members[0].index.tolist() == [[0, 2], [2, 0]]


def test_pooled_vertical_client_by_hand() -> None:
    whole = pool_clients(VERTICAL)
    (part,) = whole.parts
    assert whole.names is None
    assert cast(Any, part.columns).tolist() == [0, 1, 2]
    assert cast(Any, part.edges).tolist() == [[0, 1, 1, 4], [1, 0, 4, 1]]
    graph = cast(Any, client_graphs(WIDE, whole))["client-0"]
    assert graph.x[:5].tolist() == WIDE.x.tolist()
    assert graph.y[:5].tolist() == PATH.y.tolist()
    assert graph.masks.any(1).all()


def test_vertical_cora(data_root: Path) -> None:
    """Side by side the clients' columns are the original features, in one order of nodes; pooled has them all."""
    from fedweave import datasets

    data = datasets.load("cora", path=str(data_root))
    cut = Vertical(use_dataset_split=True).cut(data, 0)
    graphs = cast(Any, client_graphs(data, cut))
    blocks = [
        dense(graph.x)[: data.nodes, : len(cast(Any, p.columns))]
        for graph, p in zip(graphs.values(), cut.parts, strict=True)
    ]
    assert np.array_equal(np.concatenate(blocks, 1), cast(Any, data.x).toarray())
    assert {graph.x.shape for graph in graphs.values()} == {(len(graphs["client-0"].y), 478)}
    whole = pool_clients(cut)
    assert np.array_equal(dense(client_graphs(data, whole)["client-0"].x)[: data.nodes], cast(Any, data.x).toarray())
    assert 0.98 * data.edges.shape[1] < cast(Any, whole.parts[0].edges).shape[1] <= data.edges.shape[1]


@pytest.mark.parametrize(("algorithm", "clients", "features"), [("local", 3, 4), ("centralized", 1, 10)])
def test_the_model_fits_the_widest_client(algorithm: str, clients: int, features: int) -> None:
    sections = {
        "data": {"name": "synthetic", "nodes": 90, "features": 10},
        "partition": {"name": "vertical", "widths": [2, 1, 2]},
    }
    built = build.build(config.resolve({**sections, "algorithm": {"name": algorithm}}))
    assert len(built.fed.clients) == clients
    weights = built.algorithm.model[0].init(torch.tensor(0))
    assert weights["weight"].shape[0] == features
