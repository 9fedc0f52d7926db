"""Times of edges and nodes: every type that programs write, one zone, one unit, and edges that training can see."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedweave.datasets import from_frames, from_networkx, load
from fedweave.datasets.edge_tables import times_of
from fedweave.datasets.notes import time_notes
from fedweave.datasets.table import Table
from fedweave.partition.divided import Column
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.commands import refuse
from tests.refusals import refusal

NANOSECONDS = 1711843200123456789
NODES = pd.DataFrame({"id": range(4), "label": [0, 1, 0, 1], "f": [0.5, 2, 1, 3]})


def days(cells: pa.Array) -> list[float]:
    return times_of(Table(Path("edges"), pa.table({"when": cells}), 0), "when").tolist()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pa.array([NANOSECONDS], pa.timestamp("ns")), [NANOSECONDS / 86_400e9]),
        (pa.array([NANOSECONDS], pa.timestamp("ns", "Europe/Berlin")), [NANOSECONDS / 86_400e9]),
        (pa.array(["2024-01-01T10:00:00.123456789"]), [(19723 * 86_400e9 + 36_000_123456789) / 86_400e9]),
        (pa.array(["2024-01-01T11:00:00.123456789+01:00"]), [(19723 * 86_400e9 + 36_000_123456789) / 86_400e9]),
        (pa.array([43_200], pa.timestamp("s")), [0.5]),
        (pa.array([86_400_000], pa.timestamp("ms")), [1.0]),
        (pa.array([3], pa.date32()), [3.0]),
        (pa.array([3 * 86_400_000], pa.date64()), [3.0]),
        (pa.array([timedelta(days=2), timedelta(hours=6)]), [2.0, 0.25]),
        (pa.array([86_400 * 149], pa.duration("s")), [149.0]),
        (pa.array([86_400 * 10**9], pa.duration("ns")), [1.0]),
    ],
)
def test_times_of_every_type_are_days(cells: pa.Array, expected: list[float]) -> None:
    assert days(cells) == expected


@pytest.mark.parametrize("cells", [pa.array([7], pa.time32("s")), pa.array([7], pa.time64("ns"))])
def test_a_time_of_day_is_no_point_in_time(cells: pa.Array) -> None:
    with refusal("data.time", "'when'", str(cells.type)):
        days(cells)


@pytest.mark.parametrize(
    "cells", [["2024-01-01T12:00", "2024-01-01T12:00Z"], ["9999-01-01", "2024-01-01T10:00:00.123456789"]]
)
def test_text_that_no_one_type_holds_is_refused(cells: list[str]) -> None:
    with refusal("data.times", "'when'"):
        days(pa.array(cells))
    with refusal("data.row", "'soon'"):
        days(pa.array([*cells, "soon"]))
    with refusal("data.row", "'1704067200'", "a number among dates"):
        days(pa.array(["2024-01-01", "1704067200", "2024-01-02"]))


NAIVE, AWARE = datetime(2024, 1, 1, 12), datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("kind", [lambda time: time, pd.Timestamp])
def test_times_with_and_without_a_zone_are_refused_in_frames_and_networkx(kind: type) -> None:
    def frame(times: list[datetime]) -> pd.DataFrame:
        cells = pd.Series([kind(time) for time in times], dtype=object)
        return pd.DataFrame({"source": [0, 1], "target": [1, 2], "when": cells})

    def graph(times: list[datetime]) -> nx.Graph:
        made = nx.Graph()
        for node in NODES.itertuples():
            made.add_node(node.id, label=node.label, f=node.f)
        for at, time in enumerate(times):
            made.add_edge(at, at + 1, when=kind(time))
        return made

    def moments(times: list[datetime]) -> list[list[float]]:
        made = from_frames(NODES, frame(times), edge_time="when"), from_networkx(graph(times), edge_time="when")
        return [data.edge_attrs.time.tolist() for data in made]  # type: ignore[union-attr]

    assert moments([NAIVE, NAIVE]) == moments([AWARE, AWARE]) == [[19723.5] * 2] * 2
    with refusal("data.times", "'when'"):
        from_frames(NODES, frame([NAIVE, AWARE]), edge_time="when")
    with refusal("data.times", "'when'"):
        from_networkx(graph([NAIVE, AWARE]), edge_time="when")
    later = AWARE.astimezone(pd.Timestamp("2024-01-01", tz="Asia/Tokyo").tz)
    assert moments([AWARE, later]) == [[19723.5] * 2] * 2


def test_members_with_and_without_a_zone_are_refused(tmp_path: Path) -> None:
    for name, zone in (("a", ""), ("b", "Z")):
        (tmp_path / name).mkdir()
        NODES.to_csv(tmp_path / name / "nodes.csv", index=False)
        (tmp_path / name / "edges.csv").write_text(f"source,target,when\n0,1,2024-01-01T12:00:00{zone}\n")
    with refusal("data.times", "'when'"):
        load("members", str(tmp_path), edge_time="when")


def folder(path: Path, opened: list[object], when: list[object]) -> Path:
    """Nodes opened at some times, in a ring of edges at other times."""
    path.mkdir(parents=True, exist_ok=True)
    many, to = len(opened), len(when)
    nodes = {"id": range(many), "label": [at % 2 for at in range(many)], "opened": opened, "f": [0.5] * many}
    edges = {"source": range(to), "target": [(at + 1) % many for at in range(to)], "when": when, "sum": range(to)}
    pd.DataFrame(nodes).to_csv(path / "nodes.csv", index=False)
    pd.DataFrame(edges).to_csv(path / "edges.csv", index=False)
    return path


TIMED: dict[str, Any] = {"node_time": "opened", "edge_time": "when", "edge_features": ("sum",)}
OPENED = [f"2024-01-{day:02}" for day in range(1, 11)]
DAY = 86_400


@pytest.mark.parametrize(
    ("opened", "when", "said"),
    [
        (OPENED, OPENED, []),
        (OPENED, [(19723 + at) * DAY for at in range(10)], ["19723 to 19732", "no edge is early enough"]),
        ([(19723 + at) * DAY for at in range(10)], OPENED, ["19723 to 19732"]),  # training would see all edges
        (OPENED, [f"2024-01-{day}" for day in range(10, 20)], ["no edge is early enough"]),
    ],
)
def test_one_unit_and_early_edges_are_asked_for(
    opened: list[object], when: list[object], said: list[str], tmp_path: Path
) -> None:
    data = load("folder", str(folder(tmp_path, opened, when)), **TIMED)
    [part] = Column(split="time").divide_nodes(data, [np.arange(10)], 0)
    told = list(time_notes(data, part.split_times, {"all": part.nodes}))
    assert len(told) == len(said)
    assert all(fact in one for fact, one in zip(said, told, strict=True))
    assert not list(time_notes(data, None, {"all": part.nodes}))


def test_members_of_other_units_and_without_early_edges_are_named(tmp_path: Path) -> None:
    units = {
        "a": (range(19723, 19733), range(19723, 19733)),
        "b": ([(19723 + at) * DAY for at in range(10)],) * 2,
        "c": (range(19723, 19733), [19742] * 10),
    }
    for name, (opened, when) in units.items():
        folder(tmp_path / name, list(opened), list(when))
    data = load("members", str(tmp_path), **TIMED)
    held = {name: np.flatnonzero(data.owner == at) for at, name in enumerate(data.owners)}
    nodes, edges, late = time_notes(data, (19730.0, 19732.0), held)
    assert re.search("at a and 1704844800 at b", nodes)
    assert re.search("edges", edges)
    assert late.startswith("b, c have edges")


def test_edges_cannot_be_scaled_by_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "data", list(OPENED), ["2024-02-01"] * 10)
    (tmp_path / "e.toml").write_text(
        '[data]\nname = "folder"\npath = "data"\nnode_time = "opened"\nedge_time = "when"\nedge_features = ["sum"]\n'
        'edge_normalize = "standard"\n[partition]\nname = "random"\nclients = 1\nsplit = "time"\n'
    )
    monkeypatch.chdir(tmp_path)
    refuse(["check", "e.toml"], "data.no-early-edges")
    site = SiteData(path="data", **TIMED, edge_normalize="standard", train_until="2024-01-05", val_until="2024-01-08")
    with refusal("data.no-early-edges", "19754", "19727"):
        read_graph(tmp_path / "data", site)
