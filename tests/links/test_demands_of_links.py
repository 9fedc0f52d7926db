"""What links, ranks and learned features ask of the other sections; and what a union ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.core.graph import LISTS
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.links import as_links
from fedweave.experiment import config
from fedweave.experiment.graphs import client_graphs
from fedweave.partition import Random
from fedweave.partition.client_data import pool_clients
from fedweave.partition.edges import EdgeGroups

LINKS = {"name": "synthetic", "task": "links"}


def test_learned_features_are_not_scaled(tmp_path: Path) -> None:
    found = config.resolve({"data": {"name": "folder", "path": str(tmp_path), "features": "learned"}})
    assert found.data.values["normalize"] == "none"
    assert config.resolve(found.plain()) == found


def shop(**more: Any) -> Dataset:
    """40 users, 30 items, links of two relations."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([rng.integers(0, 40, 300), 40 + rng.integers(0, 30, 300)]), axis=1)
    kinds, nodes = np.repeat([1, 0], [40, 30]), 70
    edges = to_undirected(pairs, nodes)
    data = Dataset("shop", np.eye(nodes, dtype=np.float32), edges, kinds, 2, node_labels=kinds)
    relation = (edges.sum(0) % 2).astype(np.int64)
    data = replace(data, node_kinds=("item", "user"), edge_labels=relation, edge_kinds=("a", "b"))
    return as_links(data, Links(users="user", items="item", ratios=(0.6, 0.2, 0.2), **more))


def test_links_to_items_have_tails_alone_replaced() -> None:
    """Every link has a pair beside it, and every candidate is an item."""
    data = shop()
    assert data.links.relations
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    assert int((graph.y == 0).sum()) == int(((graph.y == 1) & graph.masks.any(0)).sum())
    drawn = graph.pairs[:2, (graph.y == 0) | ((graph.y < 0) & (graph.pairs[2] >= 0))]
    assert (drawn[0] < 40).all()
    assert (drawn[1] >= 40).all()


def test_lists_are_measured_where_all_items_are_candidates() -> None:
    for candidates, there in (("all", True), (5, False)):
        data = shop(rank_negatives=candidates)
        [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
        assert (LISTS in graph.extra) == there


def test_a_union_ranks_the_candidates_of_its_members() -> None:
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 40, (2, 200))
    edges = to_undirected(pairs[:, pairs[0] != pairs[1]], 40)
    data = as_links(Dataset("net", np.eye(40, dtype=np.float32), edges, np.zeros(40, np.int64), 1), Links())
    cut = EdgeGroups(clients=2, by="random").cut(data, 0)
    alone = sum(int((graph.y < 0).sum() - (graph.pairs[2] < 0).sum()) for graph in client_graphs(data, cut).values())
    [union] = client_graphs(data, pool_clients(cut, data)).values()
    assert int((union.y < 0).sum() - (union.pairs[2] < 0).sum()) == alone
