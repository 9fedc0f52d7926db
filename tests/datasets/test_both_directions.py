"""Undirected edges that carry something and are listed in both directions count once, through every door."""

import logging
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.datasets import from_frames, from_networkx, from_pyg, load, npz
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.contents import content
from fedweave.datasets.edges import without_reverses
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal

NODES = pd.DataFrame({"id": list("abcd"), "label": [0, 1, 1, 0], "f": [0.5, 2, 1, 3]})
ONCE = pd.DataFrame({"source": list("adab"), "target": list("bccd"), "weight": [1.5, 2, 3, 0.25], "day": [4, 3, 2, 1]})
OPTIONS: dict[str, Any] = {"edge_weight": "weight", "edge_features": "day", "edge_time": "day"}


def turned(edges: pd.DataFrame) -> pd.DataFrame:
    return edges.rename(columns={"source": "target", "target": "source"})


def listings() -> dict[str, pd.DataFrame]:
    """The same edges in both directions, all turned ones behind or each behind its own."""
    behind = pd.concat([ONCE, turned(ONCE)], ignore_index=True)
    between = pd.concat([pd.concat([ONCE[at : at + 1], turned(ONCE[at : at + 1])]) for at in range(len(ONCE))])
    return {"behind": behind, "between": between.reset_index(drop=True)}


@pytest.mark.parametrize("how", ["behind", "between"])
@pytest.mark.parametrize("parallel", ["keep", "sum", "last"])
def test_tables_are_the_same_to_the_bit(how: str, parallel: str) -> None:
    expected = content(from_frames(NODES, ONCE, parallel=parallel, **OPTIONS))
    assert content(from_frames(NODES, listings()[how], parallel=parallel, **OPTIONS)) == expected


def test_the_number_of_parallel_edges_is_of_edges_listed_once() -> None:
    ends = ONCE[["source", "target"]]
    twice = from_frames(NODES, pd.concat([ends, turned(ends)]), parallel="count")
    assert twice.edge_attrs is not None
    assert twice.edge_attrs.weight is not None
    assert twice.edge_attrs.weight.tolist() == [1, 1, 1, 1]


def test_parallel_edges_stay_as_many_as_they_are() -> None:
    double = pd.concat([ONCE, ONCE[:1]], ignore_index=True)
    expected = from_frames(NODES, double, **OPTIONS)
    assert content(from_frames(NODES, pd.concat([double, turned(double)]), **OPTIONS)) == content(expected)
    assert expected.edge_attrs is not None
    assert expected.edge_attrs.total == 5


@pytest.mark.parametrize(("column", "value"), [("weight", 9.0), ("day", 9)])
def test_an_edge_that_lacks_its_like_leaves_all_as_they_are_with_a_note(
    column: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    edges = listings()["behind"]
    edges.loc[0, column] = value
    with caplog.at_level(logging.WARNING):
        made = from_frames(NODES, edges, **OPTIONS)
    assert made.edge_attrs is not None
    assert made.edge_attrs.total == 8
    assert re.search("6 of 8 rows", caplog.text)
    caplog.clear()
    from_frames(NODES, ONCE, **OPTIONS)
    assert not caplog.text


def test_directed_edges_and_examples_stay(caplog: pytest.LogCaptureFixture) -> None:
    both = listings()["behind"]
    for options in ({"directed": True}, {"task": "edges", "directed": False}):
        edges = both.assign(label=both.day % 2) if "task" in options else both
        nodes = NODES[["id", "f"]] if "task" in options else NODES
        made = from_frames(nodes, edges, **options, **OPTIONS)
        assert made.edge_attrs is not None
        assert made.edge_attrs.total == 8
    assert caplog.records


def test_folders_members_sites_and_networkx_do_likewise(tmp_path: Path) -> None:
    """Of members each table is looked at by itself: one may list edges once, another in both directions."""
    for name, edges in {"once": ONCE, **listings(), "m/a": ONCE, "m/b": listings()["between"]}.items():
        (tmp_path / name).mkdir(parents=True)
        NODES.to_csv(tmp_path / name / "nodes.csv", index=False)
        edges.to_csv(tmp_path / name / "edges.csv", index=False)
    # A site scales its own data at once, a folder once it is cut.
    plain = OPTIONS | {
        "normalize": "none",
        "edge_normalize": "none",
    }
    expected = load("folder", str(tmp_path / "once"), **plain)
    assert content(load("folder", str(tmp_path / "behind"), **plain)) == content(expected)
    own = read_graph(tmp_path / "between", SiteData(path="between", **plain))
    assert content(own) == content(expected)
    members = load("members", str(tmp_path / "m"), **OPTIONS)
    assert members.edge_attrs is not None
    assert members.edge_attrs.ends.tolist() == [[0, 3, 0, 1, 4, 7, 4, 5], [1, 2, 2, 3, 5, 6, 6, 7]]
    graph = nx.DiGraph()
    for node in NODES.itertuples():
        graph.add_node(node.id, label=node.label, f=node.f)
    for edge in listings()["between"].itertuples():
        graph.add_edge(edge.source, edge.target, weight=edge.weight, day=edge.day)
    assert from_networkx(graph, directed=False, **OPTIONS).edge_attrs.total == 4  # type: ignore[union-attr]


def of_pyg(back: list[float], **options: Any) -> Dataset:
    """A path of two edges in both directions, whose reverses weigh so much."""
    ends = torch.tensor([[0, 1, 1, 2], [1, 2, 0, 1]])
    graph = Data(x=torch.eye(3), y=torch.tensor([0, 1, 0]), edge_index=ends, edge_weight=torch.tensor([2.0, 3, *back]))
    return from_pyg(graph, **options)


def test_pyg_edges_with_other_weights_on_the_way_back_are_directed() -> None:
    alike, other = of_pyg([2, 3]), of_pyg([2, 7])
    assert alike.edge_attrs is not None
    assert other.edge_attrs is not None
    assert (alike.edge_attrs.directed, alike.edge_attrs.total) == (False, 2)
    assert (other.edge_attrs.directed, other.edge_attrs.weight.tolist()) == (True, [2, 3, 2, 7])  # type: ignore[union-attr]
    with refusal("data.reverse"):
        of_pyg([2, 7], directed=False)


def test_an_archive_with_other_weights_on_the_way_back_is_refused(tmp_path: Path) -> None:
    data = of_pyg([2, 3])
    npz.write(data, tmp_path / "own.npz")
    assert load("npz", str(tmp_path / "own.npz")).edge_attrs.total == 2  # type: ignore[union-attr]
    with np.load(tmp_path / "own.npz") as held:
        arrays = dict(held)
    arrays["edge_weight"][0] += 1
    np.savez(tmp_path / "own.npz", **arrays)
    with refusal("data.reverse", "own.npz"):
        load("npz", str(tmp_path / "own.npz"))


def test_loops_and_no_edges_at_all() -> None:
    loops = EdgeAttributes(np.array([[0, 1, 1], [1, 0, 1]]), False, weight=np.ones(3, np.float32))
    assert without_reverses(loops, np.zeros(3, np.int64), "x").ends.tolist() == [[0, 1], [1, 1]]
    none = EdgeAttributes(np.empty((2, 0), np.int64), False)
    assert without_reverses(none, np.zeros(0, np.int64), "x") is none
    assert to_undirected(loops.ends, 2).tolist() == [[0, 1], [1, 0]]
