"""Links as examples from every door of Python, as a configuration has them; and links on both sides of a split."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

import fedweave
from fedweave import datasets
from fedweave.core.links import Links
from fedweave.datasets import Dataset
from fedweave.datasets.links import as_links
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from tests.refusals import check_facts, refusal

NODES = 30
PATH = pd.DataFrame({"source": range(NODES - 1), "target": range(1, NODES)})  # 29 links


def graph() -> nx.Graph:
    return nx.path_graph(NODES)


def in_folder(folder: Path, nodes: pd.DataFrame, edges: pd.DataFrame = PATH) -> Path:
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return folder


def labeled() -> pd.DataFrame:
    cells = {"id": range(NODES), "label": [at % 2 for at in range(NODES)], "f": [at * 0.37 % 1 for at in range(NODES)]}
    return pd.DataFrame(cells)


IDS = pd.DataFrame({"id": range(NODES)})
DOORS: dict[str, Callable[[Path], Dataset]] = {
    "frames": lambda folder: datasets.from_frames(labeled(), PATH, task="links"),
    "frames of ids": lambda folder: datasets.from_frames(IDS, PATH, task="links"),
    "arrow": lambda folder: datasets.from_frames(pa.table(IDS), pa.table(PATH), task="links"),
    "networkx": lambda folder: datasets.from_networkx(graph(), task="links"),
    "pyg": lambda folder: datasets.from_pyg(
        Data(edge_index=torch.from_numpy(PATH.to_numpy().T.copy()), num_nodes=NODES), task="links", directed=False
    ),
    "folder": lambda folder: datasets.load("folder", str(in_folder(folder, IDS)), task="links"),
    "folder of labels": lambda folder: datasets.load("folder", str(in_folder(folder, labeled())), task="links"),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_links(door: str, tmp_path: Path) -> None:
    """With the split that a hash of the ends' names decides, which is the same everywhere."""
    data = DOORS[door](tmp_path)
    assert (data.example, data.examples, data.labels) == ("edge", NODES - 1, ("no link", "link"))
    assert data.links == Links()
    expected = DOORS["frames"](tmp_path)
    np.testing.assert_array_equal(data.public, expected.public)
    assert np.asarray(data.public).any(1).all()


def test_settings_of_links_are_options() -> None:
    data = datasets.from_frames(IDS, PATH, task="links", ratios=(0.5, 0.2, 0.3), rank_negatives=0)
    assert data.links == Links(ratios=(0.5, 0.2, 0.3), rank_negatives=0)
    assert np.asarray(data.public).sum(1)[0] < 25
    with refusal("config.value"):
        datasets.from_frames(IDS, PATH, task="links", ratios=(0.5, 0.6, 0.3))


def test_relations_and_kinds_come_along() -> None:
    users = nx.Graph()
    users.add_nodes_from(range(5), kind="user")
    users.add_nodes_from(range(5, 8), kind="item")
    users.add_edges_from([(user, 5 + user % 3) for user in range(5)], label="buys")
    users.add_edge(0, 6, label="views")
    data = datasets.from_networkx(users, task="links", users="user", items="item")
    assert data.links.relations == ("buys", "views")
    assert set(data.node_kinds) == {"user", "item"}


@pytest.mark.parametrize("relation", [False, True])
@pytest.mark.parametrize("categories", [("user", "item"), "auto"])
def test_kinds_of_nodes_may_be_features_too(categories: Any, relation: bool) -> None:
    nodes = pd.DataFrame({"id": range(6), "kind": ["user"] * 3 + ["item"] * 3})
    edges = pd.DataFrame({"source": [0, 1, 2, 0], "target": [3, 4, 5, 5]})
    edges = edges.assign(label=["buys", "views"] * 2) if relation else edges
    data = datasets.from_frames(nodes, edges, task="links", categories={"kind": categories})
    assert set(data.columns) == {"kind = user", "kind = item"}
    assert set(data.node_kinds) == {"user", "item"}


def test_a_public_graph_gives_links_in_python() -> None:
    data = datasets.load("synthetic", nodes=40, seed=3, task="links")
    assert data.links == Links(seed=3)
    same = as_links(datasets.load("synthetic", nodes=40, seed=3), Links(seed=3))
    np.testing.assert_array_equal(data.public, same.public)


@pytest.mark.parametrize(("features", "columns"), [("learned", NODES), ("given", 1)])
def test_nodes_of_links_need_an_id_only(features: str, columns: int, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "data": {"name": "folder", "path": str(in_folder(tmp_path, IDS)), "task": "links", "features": features},
        "partition": {"name": "random", "clients": 2},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg"},
    }
    built = build(resolve(document))
    assert built.data.features == columns
    assert ("no features" in " ".join(built.data.notes)) == (features == "given")


def test_nodes_without_features_are_refused_where_they_are_the_examples() -> None:
    with refusal("data", "there are no features"):
        datasets.from_frames(labeled().drop(columns="f"), PATH)


# ----------------------------------------------------------------------------------------------------
# A link on both sides of a split.


def directed(splits: tuple[str, ...], relations: tuple[str, ...] = ()) -> Dataset:
    """Links 0 → 1, 1 → 0, 1 → 2 and 2 → 1; of one relation, or of these."""
    edges = pd.DataFrame({"source": [0, 1, 1, 2], "target": [1, 0, 2, 1], "split": splits})
    edges = edges.assign(label=relations) if relations else edges
    return datasets.from_frames(IDS[:3], edges, task="links", directed=True)


@pytest.mark.parametrize(
    ("splits", "count"),
    [
        (("train", "test", "train", "test"), "2 of 2"),
        (("train", "test", "test", "test"), "1 of 3"),
        (("train", "train", "test", "test"), ""),
    ],
)
def test_test_links_whose_other_direction_trains_are_noted(splits: tuple[str, ...], count: str) -> None:
    notes = " ".join(directed(splits).notes)
    assert ("test links that train in the other direction" in notes) == bool(count)
    assert count in notes


@pytest.mark.parametrize("undirected", [False, True])
def test_the_note_on_a_split_of_pytorch_geometric(undirected: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 120), generator=draw)
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1)[:, (edges[0] != edges[1]).repeat(2)], dim=1)
    parts = RandomLinkSplit(num_val=0.1, num_test=0.2, is_undirected=undirected)(
        Data(x=torch.ones(40, 2), edge_index=edges)
    )
    data = datasets.from_pyg(parts, task="links")
    train, test = (set(map(tuple, data.edge_attrs.ends[:, data.public[at]].T.tolist())) for at in (0, 2))
    count = sum((b, a) in train for a, b in test)
    assert (count > 0) == (not undirected)
    assert (f"train in the other direction: {count} of {len(test)}" in " ".join(data.notes)) == (count > 0)


@pytest.mark.parametrize(
    ("relations", "splits", "count"),
    [
        (("a", "b", "a", "b"), ("train", "test", "train", "test"), "2 of 2"),  # inverse relations
        (("a", "a", "b", "b"), ("train", "test", "test", "test"), "1 of 3"),  # a symmetric relation
        (("a", "b", "a", "b"), ("train", "train", "test", "test"), ""),
    ],
)
def test_reversed_pairs_of_a_knowledge_graph_are_noted_with_another_remedy(
    relations: tuple[str, ...], splits: tuple[str, ...], count: str
) -> None:
    """Its links have a direction by their nature, and undirected links would lose it."""
    notes = " ".join(directed(splits, relations).notes)
    assert ("test links that join a pair that trains in the other direction, by any relation" in notes) == bool(count)
    assert count in notes


def test_a_link_of_a_node_to_itself_is_no_reverse() -> None:
    edges = pd.DataFrame({"source": [0, 0], "target": [0, 0], "label": ["a", "b"], "split": ["train", "test"]})
    data = datasets.from_frames(IDS[:1], edges, task="links", directed=True, loops="keep")
    assert not any("other direction" in note for note in data.notes)


def test_an_undirected_link_that_trains_and_tests_is_noted() -> None:
    edges = pd.DataFrame({"source": [0, 1, 1], "target": [1, 0, 2], "split": ["test", "train", "train"]})
    data = datasets.from_frames(IDS[:3], edges, task="links")
    check_facts(" ".join(data.notes), "1 of 1")


def test_links_from_python_train() -> None:
    data = datasets.from_frames(labeled(), PATH, task="links", rank_negatives=0)
    model = fedweave.models.links.OnPairs(fedweave.models.GCN(hidden=4), "dot").build(data.features)
    algorithm = fedweave.algorithms.FedAvg(model)
    fed = fedweave.federation(data, fedweave.partition.Random(clients=2).cut(data, seed=0), algorithm)
    *_, last = fedweave.train(algorithm, fed, rounds=1)
    assert last.evaluated
