"""Ego-networks as clients: a path by hand, laws on random graphs, and the sizes on the four public sets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from fedweave.core.graph import TEST, TRAIN
from fedweave.datasets import load
from fedweave.datasets.base import Dataset
from fedweave.experiment.graphs import client_graphs, global_test_graph
from fedweave.partition import EgoNetworks, Partition, statistics, totals
from fedweave.partition.client_data import pool_clients
from tests.refusals import refusal


def dataset(pairs: np.ndarray, nodes: int, y: np.ndarray, sensitive: np.ndarray | None = None) -> Dataset:
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1).astype(np.int64)
    return Dataset("egos", np.arange(nodes, dtype=np.float32)[:, None], edges, y, 2, sensitive)


def people(seed: int = 0, nodes: int = 120) -> Dataset:
    """A sparse random graph, some of it apart, with a tenth of labels and attributes unknown."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, nodes, (2, nodes))
    y, sensitive = (np.where(rng.random(nodes) < 0.1, -1, rng.integers(0, 2, nodes)) for _ in range(2))
    return dataset(pairs[:, pairs[0] != pairs[1]], nodes, y, sensitive)


def roles(partition: Partition, nodes: int) -> np.ndarray:
    """bool [3, n]: the roles that any client gives each node."""
    out = np.zeros((3, nodes), bool)
    for part in partition.parts:
        out[:, part.nodes] |= part.masks
    return out


def test_a_path_by_hand() -> None:
    """On a path every network of radius 2 is the center and two nodes on either side, as far as the path goes."""
    path = np.stack([np.arange(19), np.arange(1, 20)])
    data = dataset(path, 20, np.arange(20) % 2)
    cut = EgoNetworks(hops=2, clients=10).cut(data, 0)
    assert cut.evaluation_part is not None
    centers = np.flatnonzero(cut.evaluation_part.masks[TRAIN])
    wanted = {tuple(range(max(0, c - 2), min(19, c + 2) + 1)) for c in centers}
    assert {tuple(part.nodes) for part in cut.parts} == wanted  # ten train nodes, ten clients


@pytest.mark.parametrize("incomplete", ["drop", "keep"])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_laws(hops: int, incomplete: Any) -> None:
    data = people()
    cut = EgoNetworks(hops=hops, clients=12, incomplete=incomplete).cut(data, 3)
    known = (data.y >= 0) & (np.asarray(data.sensitive) >= 0)
    held = np.flatnonzero(known) if incomplete == "drop" else np.arange(data.nodes)
    graph = nx.Graph(data.edges.T.tolist()).subgraph(held.tolist())
    largest = max(nx.connected_components(graph), key=len)
    assert cut.evaluation_part is not None
    assert np.array_equal(cut.evaluation_part.nodes, held)
    assert cut.test is not None
    assert np.array_equal(cut.test, held[cut.evaluation_part.masks[TEST]])
    whole = np.zeros((3, data.nodes), bool)
    whole[:, held] = cut.evaluation_part.masks
    assert len(cut.parts) == 12
    for part in cut.parts:
        assert part.nodes.dtype == np.int64
        assert np.array_equal(part.masks, whole[:, part.nodes])  # a node has one role, at every client
        assert set(part.nodes.tolist()) <= largest
        balls = (set(nx.ego_graph(graph, int(c), hops)) for c in part.nodes[part.masks[TRAIN]])
        assert set(part.nodes.tolist()) in list(balls)
    assert not (roles(cut, data.nodes)[TRAIN] & np.isin(np.arange(data.nodes), cut.test)).any()


def test_ratios_are_those_of_the_whole_graph() -> None:
    data = replace(people(), y=np.arange(120) % 2, sensitive=None)
    cut = EgoNetworks(hops=1, clients=5).cut(data, 0)
    assert cut.evaluation_part is not None
    assert cut.evaluation_part.masks.sum(1).tolist() == [60, 30, 30]


def test_same_seed_same_cut_other_seed_other_cut() -> None:
    def nodes(seed: int) -> list[list[int]]:
        return [part.nodes.tolist() for part in EgoNetworks(hops=1, clients=8).cut(people(), seed).parts]

    assert nodes(0) == nodes(0) != nodes(1)


def test_graphs_of_clients_and_server() -> None:
    """A client sees the edges among its own nodes; the server judges on all nodes and edges, test nodes as drawn."""
    data = people()
    cut = EgoNetworks(hops=1, clients=6, incomplete="keep").cut(data, 0)
    for part, graph in zip(cut.parts, client_graphs(data, cut).values(), strict=True):
        assert graph.edges.members[0].index.shape[1] == np.isin(data.edges, part.nodes).all(0).sum()
        assert graph.sensitive is not None
        assert np.array_equal(graph.sensitive[: len(part.nodes)], np.asarray(data.sensitive)[part.nodes])
    for held in (cut, pool_clients(cut)):
        judged = global_test_graph(data, held)
        assert judged is not None
        assert np.array_equal(judged.edges.members[0].index, data.edges)
        assert np.array_equal(np.flatnonzero(judged.masks[TEST]), cut.test)


def test_statistics_count_groups_by_hand() -> None:
    """A star: its center and five leaves, of which two test."""
    star = np.stack([np.zeros(5, int), np.arange(1, 6)])
    data = dataset(star, 6, np.array([1, 1, 1, 1, 1, 0]), np.array([0, 0, 1, 0, 1, 1]))
    masks = np.zeros((3, 6), bool)
    masks[TRAIN, 0], masks[TEST, [1, 2]] = True, True
    data = replace(data, public=masks)
    cut = EgoNetworks(hops=1, clients=1, use_dataset_split=True).cut(data, 0)
    columns = statistics(data, cut)
    assert columns["groups"] == [[3, 3]]
    assert columns["test_groups"] == [[1, 1]]
    assert columns["test_groups_class1"] == [[1, 1]]
    assert {name: totals(data, cut)[name] for name in ("without_sp", "without_eo")} == {
        "without_sp": 0,
        "without_eo": 0,
    }
    data.y[2] = 0
    assert totals(data, cut)["without_eo"] == 1
    data.sensitive[[0, 2]] = 0  # type: ignore[index]
    assert totals(data, cut)["without_sp"] == 1
    data.sensitive[[0, 1, 2]] = [2, 0, 1]  # type: ignore[index]
    assert totals(data, cut)["without_sp"] == 0, "gaps compare groups 0 and 1 alone"


def test_impossible_cuts_and_bad_parameters_name_the_remedy() -> None:
    with refusal("config.too-few"):
        EgoNetworks(hops=1, clients=100).cut(people(), 0)
    with refusal("config.value", "train = 0.9"):
        EgoNetworks(hops=1, train=0.9)


# name, hops: (median nodes of a client over ten cuts, tolerance)
SIZES = {
    ("nba", 1): (41, 10),
    ("nba", 3): (310, 2),
    ("german", 1): (38, 8),
    ("german", 3): (987, 9),
    ("credit", 3): (75, 12),
}


@pytest.mark.parametrize(("name", "hops"), SIZES)
def test_sizes_on_the_public_sets(name: str, hops: int, data_root: Path) -> None:
    """Three hops are nearly all of the small sets; F²GNN's 30 clients."""
    data = load(name, str(data_root), normalize="none")
    sizes = [len(part.nodes) for seed in range(10) for part in EgoNetworks(hops=hops).cut(data, seed).parts]
    median, tolerance = SIZES[name, hops]
    assert len(sizes) == 300
    assert np.median(sizes) == pytest.approx(median, abs=tolerance)
