"""Edges as examples whose nodes have an id alone: every door gives the nodes the constant 1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from fedweave import datasets
from fedweave.datasets import Dataset, from_frames, load
from fedweave.datasets.features import apply_scaling, normalize, scaling
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal

ENDS = [("a", "b"), ("c", "d"), ("b", "a"), ("d", "c")]
EDGES = pd.DataFrame(
    {"source": [a for a, _ in ENDS], "target": [b for _, b in ENDS], "amount": [0.5, 1, 2, 3.5], "label": [0, 1, 1, 0]}
)
NODES = pd.DataFrame({"id": list("abcd")})
OPTIONS: dict[str, Any] = {
    "task": "edges",
    "directed": True,
    "edge_features": ("amount",),
    "edge_normalize": "none",
}


def written(root: Path, nodes: pd.DataFrame = NODES, edges: pd.DataFrame = EDGES) -> Path:
    root.mkdir(exist_ok=True)
    nodes.to_csv(root / "nodes.csv", index=False)
    edges.to_csv(root / "edges.csv", index=False)
    return root


def by_members(root: Path) -> Dataset:
    written(root / "one", NODES[:2], EDGES.iloc[[0, 2]])
    written(root / "two", NODES[2:], EDGES.iloc[[1, 3]])
    return load("members", str(root), **OPTIONS)


def by_networkx(root: Path) -> Dataset:
    graph = nx.DiGraph()
    for row in EDGES.itertuples():
        graph.add_edge(row.source, row.target, amount=row.amount, label=row.label)
    return datasets.from_networkx(graph, **OPTIONS)


def by_pyg(root: Path) -> Dataset:
    ends = torch.tensor([[ord(end) - 97 for end in pair] for pair in ENDS]).T
    data = Data(edge_index=ends, edge_attr=torch.tensor(EDGES.amount)[:, None], edge_label=torch.tensor(EDGES.label))
    return datasets.from_pyg(data, task="edges")


def by_npz(root: Path) -> Dataset:
    from_frames(NODES, EDGES, **OPTIONS).save(root / "mine.npz")
    with np.load(root / "mine.npz") as held:
        arrays = {key: held[key] for key in held.files if not key.startswith(("x_", "feature_names"))}
    arrays |= {"x_data": np.empty(0, np.float32), "x_indices": np.empty(0, np.int64), "x_indptr": np.zeros(5, np.int64)}
    np.savez(root / "bare.npz", **arrays, x_shape=np.array([4, 0]))
    return load("npz", str(root / "bare.npz"), loops="keep")


DOORS: list[Callable[[Path], Dataset]] = [
    lambda root: load("folder", str(written(root)), **OPTIONS),
    lambda root: from_frames(NODES, EDGES, **OPTIONS),
    lambda root: read_graph(written(root), SiteData(path=".", **OPTIONS)),
    by_members,
    by_networkx,
    by_pyg,
    by_npz,
]


@pytest.mark.parametrize("door", DOORS)
def test_nodes_of_edges_need_an_id_alone(door: Callable[[Path], Dataset], tmp_path: Path) -> None:
    data = door(tmp_path)
    assert (data.example, data.columns) == ("edge", ("constant",))
    np.testing.assert_array_equal(np.asarray(data.x), np.ones((4, 1), np.float32))
    assert data.edge_attrs is not None
    assert data.edge_attrs.features is not None
    assert sorted(data.edge_attrs.features[:, 0].tolist()) == [0.5, 1, 2, 3.5]
    assert any("constant" in note for note in data.notes)


def test_nodes_that_are_examples_need_a_feature() -> None:
    with refusal("data"):
        from_frames(NODES.assign(label=[0, 1, 0, 1]), EDGES[["source", "target"]])
    with refusal("data"):
        datasets.from_pyg(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1])))


@pytest.mark.parametrize("how", ["scale", "standard", "minmax"])
def test_features_that_are_all_constant_stay(how: str) -> None:
    x = np.full((4, 1), 3, np.float32)
    shift, divisor, _ = scaling(x, how)
    np.testing.assert_array_equal(normalize(x, how, "x"), x)
    np.testing.assert_array_equal(apply_scaling(x, how, shift.tolist(), divisor.tolist()), x)
