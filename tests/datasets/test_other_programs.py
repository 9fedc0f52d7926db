"""Tables as other programs write them: encodings of Parquet, quoted line breaks, blank lines, row indexes, ids as
fractions, words for no label."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.core.arrow_types import plain
from fedweave.datasets import from_frames, load
from fedweave.experiment.config.toml import load as load_toml
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData, read_site_file
from tests.datasets import test_graph_folder
from tests.refusals import refusal

CASES = Path(__file__).parents[1] / "cases"
EDGES = "source,target\na,c\nb,d\n"
ROWS = [f"{name},{at % 2},{at / 10}" for at, name in enumerate("abcd")]
NODES = "id,label,f\n" + "".join(f"{row}\n" for row in ROWS)


def tables(folder: Path, nodes: str = NODES, edges: str = EDGES, **more: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, text in {"nodes": nodes, "edges": edges, **more}.items():
        (folder / f"{stem}.csv").write_text(text)
    return str(folder)


def graph_folder(folder: Path, *content: str) -> Path:
    folder.mkdir(parents=True)
    return test_graph_folder.folder(folder, *content)


def same(one: Any, other: Any) -> None:
    for name in ("x", "edges", "y"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.columns, one.labels, one.classes) == (other.columns, other.labels, other.classes)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_parquet_is_read_whatever_its_text_is_stored_as(encoding: str, kind: pa.DataType, tmp_path: Path) -> None:
    expected = load("folder", tables(tmp_path / "csv"))
    for stem in ("nodes", "edges"):
        held = pd.read_csv(tmp_path / f"csv/{stem}.csv").to_dict("list")
        text = {name: pa.array(cells).cast(kind) for name, cells in held.items() if isinstance(cells[0], str)}
        (tmp_path / "own").mkdir(exist_ok=True)
        how = dict.fromkeys(text, encoding)
        pq.write_table(
            pa.table(held | text), tmp_path / f"own/{stem}.parquet", use_dictionary=False, column_encoding=how
        )
    same(load("folder", str(tmp_path / "own")), expected)


def test_views_are_text_at_every_door(tmp_path: Path) -> None:
    data = load("folder", str(CASES / "parquet-views/data"))
    assert (data.ids, data.edges.shape) == (("a", "b", "c", "d"), (2, 4))
    frames = [pq.read_table(CASES / f"parquet-views/data/{stem}.parquet") for stem in ("nodes", "edges")]
    assert pa.types.is_string_view(frames[0]["id"].type)
    same(from_frames(*frames), data)
    words = pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["a", "b"], pa.string_view()))
    assert plain(pa.table({"id": words}))["id"].to_pylist() == ["b", "a"]


@pytest.mark.parametrize("rows", [300, 30_000])
def test_quoted_line_breaks_are_read_at_any_size(rows: int, tmp_path: Path) -> None:
    remark = "called twice,\nno answer " + "x" * 40
    nodes = "".join(f'{at},{at % 2},{at % 7},"{remark}"\n' for at in range(rows))
    path = tables(tmp_path, f"id,label,f,remark\n{nodes}", "source,target\n0,1\n")
    assert load("folder", path, ignore=("remark",)).nodes == rows


def test_a_row_may_be_long(tmp_path: Path) -> None:
    path = tables(tmp_path, f"id,label,f,remark\n{'a,0,1,' + 'x' * 2_000_000}\nb,1,2,\n", "source,target\na,b\n")
    assert load("folder", path, ignore=("remark",)).nodes == 2


def test_a_quote_that_is_never_closed_is_refused_and_loses_no_rows(tmp_path: Path) -> None:
    nodes = 'id,label,f,remark\na,0,1,\nb,1,2,"5\nc,0,3,\n'
    for more in ("", "d,1,1,\n" * 30_000):
        with refusal("data.quote", "nodes.csv: row 3:"):
            load("folder", tables(tmp_path, nodes + more, "source,target\n"), ignore=("remark",))
    inside = nodes.replace('"5', '5" pipe')  # within a cell it is a letter like others
    assert load("folder", tables(tmp_path, inside, "source,target\n"), ignore=("remark",)).nodes == 3


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    """Also in between and as spreadsheets write them; rows after them keep their numbers."""
    expected = load("folder", tables(tmp_path / "plain"))
    blank = "\n".join(["id,label,f", ROWS[0], "", ROWS[1], ",,", *ROWS[2:], "", ""])
    same(load("folder", tables(tmp_path / "blank", blank, EDGES + "\n,\n")), expected)
    assert load("folder", str(CASES / "blank-lines/data")).nodes == 4
    frames = [pd.read_csv(tmp_path / f"blank/{stem}.csv", skip_blank_lines=False) for stem in ("nodes", "edges")]
    same(from_frames(*frames), expected)
    with refusal("data.row", "nodes.csv", "row 6", "'f'", "'x'"):
        load("folder", tables(tmp_path / "blank", blank.replace("0.2", "x")))
    members = {name: tables(tmp_path / f"members/{name}", blank, EDGES + "\n") for name in ("one", "two")}
    assert load("members", str(Path(members["one"]).parent)).nodes == 8


def test_ids_as_fractions_are_whole_numbers(tmp_path: Path) -> None:
    data = load("folder", str(CASES / "dot-zero-ids/data"))
    assert (data.ids, data.edges[0].tolist()) == (("1000", "1001", "1002", "1003"), [0, 1, 2, 3])
    nodes = "id,label,f\n7,0,1\n7.0,1,2\n8,0,3\n"
    both = load("folder", tables(tmp_path / "both", nodes, "source,target\n7.0,8\n"))
    assert both.edges.T.tolist() == [[1, 2], [2, 1]]  # as written, where both are there
    tables(tmp_path / "members/north", "id,label,f\n1,0,1\n2,1,2\n", "source,target\n1.0,2.0\n")
    assert load("members", str(tmp_path / "members")).edges.T.tolist() == [[0, 1], [1, 0]]
    graphs = {"graphs": "id,label\n1,0\n2,1\n"}
    path = tables(tmp_path / "small", "id,graph,f\n1,1.0,1\n2,1.0,2\n3,2.0,3\n", "source,target\n1.0,2.0\n", **graphs)
    assert load("graphs", path).graph_of.tolist() == [0, 0, 1]
    tables(tmp_path / "parties/bank", "id,label,f\n1.0,0,1\n2.0,1,2\n", "source,target\n1,2\n")
    tables(tmp_path / "parties/shop", "id,g\n2,1\n1,2\n", "source,target\n1.0,2\n")
    joined = load("parties", str(tmp_path / "parties"))
    assert (joined.ids, [party.edges.shape[1] for party in joined.parties]) == (("1", "2"), [2, 2])


def test_a_mark_of_the_encoding_is_no_statement(tmp_path: Path) -> None:
    assert load_toml(CASES / "toml-bom/bom.toml")["rounds"] == 2
    (tmp_path / "site.toml").write_text('\ufeff[data]\npath = "here"\n', encoding="utf-8")
    assert read_site_file(tmp_path / "site.toml")[0].path == "here"


@pytest.mark.parametrize("words", ["unknown", ("unknown", "?")])
def test_a_word_may_say_that_there_is_no_label(words: Any, tmp_path: Path) -> None:
    path = str(CASES / "unknown-label/data")
    with refusal("data.row", "row 4", "'unknown'", "1", "2", 'unlabeled = "unknown"'):
        load("folder", path, labels=("1", "2"))
    assert load("folder", path, labels=("1", "2"), unlabeled=words).y.tolist() == [1, 0, -1, 0]
    site = SiteData(path="data", labels=("1", "2"), unlabeled=words)
    assert read_graph(CASES / "unknown-label/data", site).y.tolist() == [1, 0, -1, 0]
    frames = [pd.read_csv(Path(path) / f"{stem}.csv") for stem in ("nodes", "edges")]
    assert from_frames(*frames, labels=("1", "2"), unlabeled=words).y.tolist() == [1, 0, -1, 0]
    wet = "id,label\nwater,wet\nsalt,unknown\nair,dry\n"
    assert load("graphs", str(graph_folder(tmp_path / "small", wet)), unlabeled=words).y.tolist() == [1, -1, 0]
    bank = tables(tmp_path / "parties/bank", NODES.replace("a,0", "a,unknown"))
    tables(tmp_path / "parties/shop", "id,label,g\na,1,1\nb,unknown,2\nc,?,2\nd,1,1\n", EDGES)
    if len(words) == 2:
        assert load("parties", str(Path(bank).parent), unlabeled=words).y.tolist() == [1, 1, 0, 1]


def test_a_number_may_say_that_there_is_no_label(tmp_path: Path) -> None:
    path = tables(tmp_path, NODES.replace("a,0", "a,-1"))
    with refusal("data.row", "row 2", "-1", "0", 'unlabeled = "', "-1"):
        load("folder", path)
    assert load("folder", path, unlabeled="-1").y.tolist() == [-1, 1, 0, 1]
    frames = [pd.read_csv(tmp_path / f"{stem}.csv") for stem in ("nodes", "edges")]
    assert from_frames(frames[0].astype({"label": float}), frames[1], unlabeled="-1").y.tolist() == [-1, 1, 0, 1]
    with refusal("config.conflict", "'b'"):
        load("folder", path, labels=("a", "b"), unlabeled=("b",))


def test_row_indexes_are_left_out_however_they_came(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = load("folder", str(CASES / "row-index/none"))
    assert not caplog.records
    for form in ("blank", "unnamed"):
        same(load("folder", str(CASES / "row-index" / form)), expected)
        assert [record.getMessage().rpartition(": ")[2][-25:] for record in caplog.records] == [
            "is a row index and left out"[-25:]
        ]
        caplog.clear()
        frames = [pd.read_csv(CASES / f"row-index/{form}/{stem}.csv") for stem in ("nodes", "edges")]
        same(from_frames(*frames), expected)
        caplog.clear()
    tables(tmp_path, ",label,f\na,0,1\nb,1,2\n", "source,target\na,b\n")
    assert load("folder", str(tmp_path), columns={"id": ""}).ids == ("a", "b")
    measured = "Unnamed: 0,id,label\n0.5,a,0\n1.5,b,1\n0.5,c,1\n"
    assert load("folder", tables(tmp_path, measured, "source,target\n")).columns == ("Unnamed: 0",)
    with refusal("data.column-name", "''"):
        load("folder", tables(tmp_path, measured.replace("Unnamed: 0", ""), "source,target\n"))


def test_edges_to_oneself_are_dropped_where_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loops = EDGES + "a,a\nc,c\n"
    with refusal("data.row", "row 4", "'a'", 'loops = "drop"'):
        load("folder", tables(tmp_path / "one", edges=loops))
    expected = load("folder", tables(tmp_path / "plain"))
    same(load("folder", str(tmp_path / "one"), loops="drop"), expected)
    same(read_graph(tmp_path / "one", SiteData(path="one", classes=2, loops="drop")), expected)
    frames = [pd.read_csv(tmp_path / f"one/{stem}.csv") for stem in ("nodes", "edges")]
    same(from_frames(*frames, loops="drop"), expected)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all("2 of 4 edges" in text for text in said)
    caplog.clear()
    for name in ("north", "south"):
        tables(tmp_path / f"members/{name}", edges=loops)
        tables(tmp_path / f"parties/{name}", edges=loops)
    assert load("members", str(tmp_path / "members"), loops="drop").edges.shape == (2, 8)
    assert [party.edges.shape for party in load("parties", str(tmp_path / "parties"), loops="drop").parties] == [
        (2, 4)
    ] * 2
    assert sum("edges" in (said := record.getMessage()) and "themselves" in said for record in caplog.records) == 3
    with refusal("config.loops", "loops = 'keep'"):
        load("folder", str(tmp_path / "one"), loops="keep")


def test_edges_to_oneself_of_small_graphs_are_dropped_with_their_kinds(tmp_path: Path) -> None:
    plain = load("graphs", str(graph_folder(tmp_path / "plain")))
    path = graph_folder(tmp_path / "loops")
    first, *rest = (path / "edges.csv").read_text().splitlines()
    node = rest[0].split(",")[0]
    (path / "edges.csv").write_text("\n".join([first, f"{node},{node},own", *rest]) + "\n")
    kinds = plain.edge_kinds
    data = load("graphs", str(path), loops="drop", edge_labels=(*kinds, "own"))
    np.testing.assert_array_equal(data.edges, plain.edges)
    np.testing.assert_array_equal(data.edge_labels, plain.edge_labels)


def test_edges_to_oneself_of_an_archive_are_dropped(tmp_path: Path) -> None:
    pairs = np.array([[0, 0, 1, 2], [0, 1, 0, 2]])
    held = {"x_data": np.ones(3, np.float32), "x_indices": np.arange(3), "x_indptr": np.arange(4)}
    held |= {"x_shape": np.array([3, 3]), "y": np.array([0, 1, 1]), "edge_index": pairs}
    np.savez_compressed(tmp_path / "own.npz", **held, edge_labels=np.array([3, 1, 1, 2]))  # type: ignore[arg-type]
    with refusal("data.edge", 'loops = "drop"'):
        load("npz", str(tmp_path / "own.npz"))
    for data in (
        load("npz", str(tmp_path / "own.npz"), loops="drop"),
        read_graph(tmp_path / "own.npz", SiteData(path="own.npz", loops="drop")),
    ):
        assert (data.edges.T.tolist(), data.edge_labels.tolist()) == ([[0, 1], [1, 0]], [1, 1])


def test_what_is_said_of_examples_holds_for_their_table(tmp_path: Path) -> None:
    """The class of graphs is called as an end of edges is."""
    small = graph_folder(tmp_path / "small")
    expected = load("graphs", str(small))
    (small / "graphs.csv").write_text((small / "graphs.csv").read_text().replace("label", "target"))
    same(load("graphs", str(small), columns={"label": "target"}), expected)
    named = NODES.replace("label", "target")
    same(load("folder", tables(tmp_path / "own", named), columns={"label": "target"}), load("folder", tables(tmp_path)))
    with refusal("data.column-named", "'source'", "nodes.csv"):
        load("folder", str(tmp_path / "own"), columns={"label": "source"})


def test_groups_of_small_graphs_may_be_text() -> None:
    path = str(CASES / "graphs-sens-text/data")
    data = load("graphs", path)
    assert (data.groups, data.sensitive[:4].tolist()) == (("f", "m"), [0, 1, 0, 1])
    assert load("graphs", path, groups=("m", "f")).sensitive[:4].tolist() == [1, 0, 1, 0]
    site = SiteData(path="data", classes=2, groups=("m", "f"))
    assert read_graph(Path(path), site).groups == ("m", "f")
