"""Forms in which other programs write tables: read where that is unambiguous, refused with the remedy of that form
where it is not. To follow a remedy never changes what a table says."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.core import decompression
from fedweave.datasets import Dataset, from_frames, load, table_files
from fedweave.datasets.cells import amount, numbers_in, of_number
from tests.random_graphs import replace_fields
from tests.refusals import refusal

IDS = ("a", "b", "c", "d")
EDGES = "source,target\na,b\nb,c\n"
NODES = "id,label,f\n" + "".join(f"{name},{at % 2},{at / 4}\n" for at, name in enumerate(IDS))


def nodes(cells: Sequence[object], column: str = "f") -> str:
    frame = pd.DataFrame({"id": IDS, "label": [0, 1, 0, 1], column: cells})
    return str(frame.to_csv(index=False, lineterminator="\n"))


def folder(root: Path, of_nodes: str = NODES, edges: str = EDGES) -> str:
    root.mkdir(parents=True, exist_ok=True)
    (root / "nodes.csv").write_text(of_nodes, encoding="utf-8")
    (root / "edges.csv").write_text(edges, encoding="utf-8")
    return str(root)


def same(one: Dataset, other: Dataset) -> None:
    for name in ("x", "edges", "y"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.columns, one.ids, one.labels) == (other.columns, other.ids, other.labels)


# Cells: the remedy of a column is of the one form that fits all cells, or of each that does.


VECTOR, NUMBER, POINT, DATE, CUT = (
    "one column for each number",
    "Write only the number",
    "decimal points",
    "date",
    "left out",
)


@pytest.mark.parametrize(
    ("cells", "remedies"),
    [
        (["0.0, 0.5, 0.25", "0.1, 1.5, 1.25"], [VECTOR]),
        (["0.5 0.25 1", "1 2 3"], [VECTOR]),
        (["0.5;0.25", "1;2"], [VECTOR]),
        (["0.5|0.25|1", "1|2|3"], [VECTOR]),
        (["(0.5, 0.25)", "(1.0, 2.0)"], [VECTOR]),
        (["{0.5,0.25}", "{1.0,2.0}"], [VECTOR]),
        (["[0.1 0.2 ... 0.9]", "[1 2 ... 3]"], [CUT]),
        (["$246.00", "$1,200.50"], [NUMBER]),
        (["\u22120.5", "\u22121.25"], [NUMBER]),
        (["(12.50)", "(3.00)"], [NUMBER]),
        (["12 %", "7.5 %"], [NUMBER]),
        (["10 \u20ac", "1.234,50 \u20ac"], [NUMBER]),
        (["0,5", "12,25"], [POINT, VECTOR]),  # or 0 and 5
        (["1.234.567,50", "0,5"], [POINT]),
        (["1,234", "2,345"], [POINT, NUMBER, VECTOR]),  # 1.234, or 1234, or 1 and 234
        (["1 234", "2 345"], [NUMBER, VECTOR]),
        (["2024-01-31", "2024-02-29"], [DATE]),
        (["2024-01", "2024-02"], [DATE]),
        (["2024Q1", "2024Q2"], [DATE]),
        (["31-Jan-2024", "1-Feb-2024"], [DATE]),
        (["12:30", "08:15"], [DATE]),
        (["$5", "2024-01-31"], []),  # no form fits all
        (["1x3", "2"], []),
    ],
)
def test_each_form_that_fits_all_cells_is_named_and_no_other(cells: list[str], remedies: list[str]) -> None:
    said = of_number("f", cells)
    assert [one for one in (DATE, CUT, POINT, NUMBER, VECTOR) if one in said] == remedies
    assert said.count("If ") == (len(remedies) if len(remedies) > 1 else 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5 0.25 1.0", ""),
        ("0.0, 0.5, 0.25", ""),
        ("[1, 2]", ""),
        ("$246.00", "246.00"),
        ("1.234,50 EUR", "1234.50"),
        ("1.234.567", "1234567"),
        ("12 %", "12"),
        ("BMW 320", ""),
        ("1,23,456.50", "123456.50"),
        ("\u22123", "-3"),
        ("(1,234.50)", "-1234.50"),
        ("US$ 1.50", "1.50"),
        ("1\u202f000,5", "1000.5"),
        ("18-25", ""),
        ("2024-01-31", ""),
    ],
)
def test_an_amount_is_one_number(text: str, number: str) -> None:
    assert amount(text) == number


@pytest.mark.parametrize(
    "cells",
    [
        ["[0.5, 1, 2]"],
        ["[0.5 1 2]"],
        ["[0.5,1,2]"],
        ["[ 0.5   1.\n 2.]"],
        ["array([0.5, 1, 2])"],
        ["[np.float64(0.5), np.int64(1), np.float64(2.0)]"],
    ],
)
def test_the_numbers_in_a_cell(cells: list[str]) -> None:
    assert [float(number) for number in numbers_in(cells[0])] == [0.5, 1, 2]


@pytest.mark.parametrize(
    "write", [str, lambda values: str(np.array(values)), lambda values: str(values).replace(" ", "")]
)
def test_a_list_in_square_brackets_is_a_feature_for_each_place(write: Callable[[Any], str], tmp_path: Path) -> None:
    values = [[0.5, 1, 2], [1.5, 2, 3], [2.5, 3, 0], [4.0, 5, 6]]
    texts = [write(row) for row in values]
    read = load("folder", folder(tmp_path, nodes(texts, "emb")))
    assert read.columns == ("emb 0", "emb 1", "emb 2")
    np.testing.assert_array_equal(read.x, np.array(values, np.float32))
    frame = pd.DataFrame({"id": IDS, "label": [0, 1, 0, 1], "emb": texts})
    same(from_frames(frame, pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})), read)


# Groups.


def test_bands_of_ages_are_groups(tmp_path: Path) -> None:
    for cells in (["18-25", "26-40", "65+", ""], ["<18", "18+", "<18", ""], ["1st", "2nd", "3rd", ""]):
        data = load(
            "folder",
            folder(
                tmp_path,
                "id,label,sens,f\n" + "".join(f"{i},{i % 2},{c},{i}\n" for i, c in enumerate(cells)),
                "source,target\n0,1\n",
            ),
        )
        assert data.groups == tuple(sorted(set(cells) - {""}))


@pytest.mark.parametrize("cells", [["0.5", "1.5"], ["2001-05-03", "1999-01-02"], ["1,234", "2"], ["0", "unknown"]])
def test_what_is_no_group_is_refused_with_the_setting_that_takes_it(cells: list[str], tmp_path: Path) -> None:
    rows = "".join(f'{at},{at % 2},"{cell}",{at / 2}\n' for at, cell in enumerate(cells * 2))
    path = folder(tmp_path, f"id,label,sens,f\n{rows}", "source,target\n0,1\n")
    with refusal("data.row", "sens", "data.groups"):
        load("folder", path)
    assert load("folder", path, groups=tuple(cells)).groups == tuple(cells)


# First lines of CSV files.


@pytest.mark.parametrize(
    "before",
    [
        "% sym unweighted\n",
        "% sym unweighted\n% 2 4 4\n",
        "# Directed graph\n% of trust\n",
        "sep=,\n",
        "\ufeffsep=,\r\n",
        '"sep=,"\n',
        "sep=,\n# exported today\n",
    ],
)
def test_lines_before_the_header_are_read_over(before: str, tmp_path: Path) -> None:
    plain = load("folder", folder(tmp_path / "plain"))
    same(load("folder", folder(tmp_path / "said", before + NODES, before + EDGES)), plain)
    lines = before.count("\n")
    with refusal("data.row", "nodes.csv", f"row {3 + lines}", "'f'"):
        load("folder", folder(tmp_path / "row", before + NODES.replace("0.25", "x"), EDGES))


@pytest.mark.parametrize("split", [";", "\t", "|"])
def test_a_file_that_says_what_splits_its_cells_is_split_so(split: str, tmp_path: Path) -> None:
    plain = load("folder", folder(tmp_path / "plain"))
    texts = [f"sep={split}\n" + text.replace(",", split) for text in (NODES, EDGES)]
    same(load("folder", folder(tmp_path / "said", *texts)), plain)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("% sym\n1 2\n2 3\n", ("line 1", "not a header", "source,target")),
        ("%source,target\na,b\n", ("line 1", "looks like the header", "without %")),
        ("%%MatrixMarket matrix coordinate pattern symmetric\n4 4 2\n1 2\n2 3\n", ("Matrix Market", "mmread")),
    ],
)
def test_comments_without_a_header_are_refused(text: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    with refusal("data.header", "edges.csv", *facts):
        load("folder", folder(tmp_path, NODES, text))


@pytest.mark.parametrize("comment", ["# the end", "% the end", "# 2 edges of 4"])
@pytest.mark.parametrize("last", [True, False])
def test_a_comment_behind_the_header_is_called_so(comment: str, last: bool, tmp_path: Path) -> None:
    text = f"{EDGES}{comment}\n" if last else EDGES.replace("b,c", f"{comment}\nb,c")
    with refusal("data.comment", "edges.csv", f"row {4 if last else 3}", repr(comment), "Remove the line"):
        load("folder", folder(tmp_path, NODES, text))


# Tables without a header.


@pytest.mark.parametrize(
    ("of_nodes", "edges"),
    [
        (NODES, "a,b\nb,c\nc,d\n"),
        (NODES, "d,a\nb,c\n"),
        (NODES.replace("\na", "\n1").replace("\nb", "\n2"), "1,2\n2,c\n"),
        ("a,0,0.5\nb,1,0.25\n", EDGES),
    ],
)
def test_a_row_in_place_of_the_header_is_no_name_of_columns(of_nodes: str, edges: str, tmp_path: Path) -> None:
    with refusal("data.header" if edges != EDGES else "data.column-missing", "row", "header=None"):
        load("folder", folder(tmp_path, of_nodes, edges))
    frames = [pd.read_csv(tmp_path / f"{stem}.csv") for stem in ("nodes", "edges")]
    with refusal("data.header" if edges != EDGES else "data.column-missing", "header=None"):
        from_frames(*frames)


def test_an_edge_is_not_lost_by_naming_columns_after_it(tmp_path: Path) -> None:
    path = folder(tmp_path, NODES, "a,b\nb,c\n")
    with refusal("data.header", "'a' and 'b'", "source,target"):
        load("folder", path, columns={"source": "a", "target": "b"})
    numbers = folder(tmp_path / "numbers", "id,label,f\n0,0,1\n1,1,2\n2,0,3\n", "0,1\n1,2\n")
    assert load("folder", numbers, columns={"source": "0", "target": "1"}).edges.shape == (2, 2)


# Folders of parts.


def parts(root: Path, names: Sequence[str], write: Callable[[pd.DataFrame, Path], None]) -> None:
    """The nodes a to d, two in each file."""
    root.mkdir(parents=True)
    frame = pd.DataFrame({"id": IDS, "label": [0, 1, 0, 1], "f": [0, 0.25, 0.5, 0.75]})
    for at, name in enumerate(names):
        write(frame.iloc[2 * at : 2 * at + 2], root / name)


def to_parquet(frame: pd.DataFrame, path: Path) -> None:
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)


def to_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)


@pytest.mark.parametrize(
    ("called", "names", "write"),
    [
        ("nodes.parquet", ["part-00000-1f-c000.snappy.parquet", "part-00001-1f-c000.snappy.parquet"], to_parquet),
        ("nodes.parquet", ["part.9.parquet", "part.10.parquet"], to_parquet),
        ("nodes.csv", ["part-00000.csv", "part-00001.csv"], to_csv),
    ],
)
def test_a_folder_of_parts_is_one_table(
    called: str, names: list[str], write: Callable[[pd.DataFrame, Path], None], tmp_path: Path
) -> None:
    plain = load("folder", folder(tmp_path / "plain"))
    parts(tmp_path / "spark" / called, names, write)
    (tmp_path / "spark" / called / "_SUCCESS").touch()
    (tmp_path / "spark" / called / f".{names[0]}.crc").write_bytes(b"crc")
    (tmp_path / "spark" / "edges.csv").write_text(EDGES)
    data = load("folder", str(tmp_path / "spark"))
    same(data, plain)
    assert data.notes == plain.notes
    (tmp_path / "spark" / called / names[1]).unlink()
    with refusal("data.row", "'c'"):
        load("folder", str(tmp_path / "spark"))


def test_errors_name_the_part_and_its_row(tmp_path: Path) -> None:
    parts(tmp_path / "nodes.csv", ["part-0.csv", "part-1.csv"], to_csv)
    (tmp_path / "edges.csv").write_text(EDGES)
    last = tmp_path / "nodes.csv" / "part-1.csv"
    last.write_text(last.read_text().replace("0.75", "x"))
    with refusal("data.row", "part-1.csv", "row 3", "'x'"):
        load("folder", str(tmp_path))
    last.write_text(last.read_text().partition("\n")[2])  # without a header
    with refusal("data.parts", "part-1.csv", "header"):
        load("folder", str(tmp_path))
    last.unlink()
    (tmp_path / "nodes.csv" / "part-1.csv.gz").write_bytes(b"")
    with refusal("data.parts", "part-1.csv.gz"):
        load("folder", str(tmp_path))
    (tmp_path / "nodes.csv" / "part-1.csv.gz").unlink()
    (tmp_path / "nodes.csv" / "country=DE").mkdir()
    with refusal("data.parts", "country=DE", "leave out country"):
        load("folder", str(tmp_path))


# What is there instead of a table.


@pytest.mark.parametrize(
    ("source", "there", "facts"),
    [
        ("folder", "edges.csv.zip", ("unzip edges.csv.zip",)),
        ("folder", "Edges.csv.GZ", ("gunzip Edges.csv.GZ",)),
        ("folder", "export.zip", ("unzip export.zip",)),
        ("folder", "export.tar.gz", ("tar -xzf export.tar.gz",)),
        ("folder", "EDGES.PARQUET", ("edges.parquet",)),
        ("folder", "edges.feather", ("Save it as edges.csv",)),
        ("folder", "edges/", ("edges.csv or edges.parquet",)),
        ("folder", "Edges.parquet/", ("Rename it: edges.parquet",)),
        ("graphs", "molecules.smi", ("molecules.smi", 'name = "graphs"', "graphs.csv", "smiles")),
        ("graphs", "molecules.SDF", ("molecules.SDF", "smiles")),
        ("tu", "DS.zip", ("unzip DS.zip",)),
        ("tu", "DS_A.txt.zip", ("unzip DS_A.txt.zip",)),
    ],
)
def test_what_is_there_in_another_form_is_named(
    source: str, there: str, facts: tuple[str, ...], tmp_path: Path
) -> None:
    if source == "folder":
        (tmp_path / "nodes.csv").write_text(NODES)
    if there.endswith("/"):
        (tmp_path / there).mkdir()
    else:
        (tmp_path / there).write_bytes(gzip.compress(b"x"))
    with refusal("data.file-other", there.rstrip("/")) as error:
        load(source, str(tmp_path))
    assert all(fact in str(error.value) for fact in facts)


# TU.


def tu(root: Path, split: str) -> str:
    root.mkdir()
    texts = {
        "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
        "graph_indicator": "1\n1\n2\n2\n",
        "graph_labels": "0\n1\n",
        "node_labels": "0\n1\n1\n0\n",
        "node_attributes": "0.5, 1\n1.5, 2\n2.5, 0\n-1, 4\n",
    }
    for stem, text in texts.items():
        (root / f"DS_{stem}.txt").write_text(text.replace(", ", split))
    return str(root)


@pytest.mark.parametrize("split", [" ", "\t", "   ", ","])
def test_a_tu_file_may_be_split_by_blanks(split: str, tmp_path: Path) -> None:
    plain = load("tu", tu(tmp_path / "plain", ", "), attributes=True)
    read = load("tu", tu(tmp_path / "blank", split), attributes=True)
    for name in ("edges", "y", "graph_of", "node_labels"):
        np.testing.assert_array_equal(getattr(read, name), getattr(plain, name))
    np.testing.assert_array_equal(np.asarray(read.x), np.asarray(plain.x))


@pytest.mark.parametrize("text", ["1;2\n2;1\n", "12\n21\n", "1 2\n2\n"])
def test_a_tu_file_that_is_split_otherwise_needs_commas(text: str, tmp_path: Path) -> None:
    path = tu(tmp_path / "DS", ", ")
    (tmp_path / "DS" / "DS_A.txt").write_text(text)
    with refusal("data", "DS_A.txt", "Give numbers with commas between them"):
        load("tu", path)


# Types that lose their meaning.


PERIODS: dict[str, list[float]] = {
    "M": [19723, 19754, 19783],
    "D": [19723, 19724, 19725],
    "Q": [19723, 19814, 19905],
    "W": [19723, 19730, 19737],
}
PERIODS |= {"Y": [19723, 20089, 20454], "h": [19723, 19723 + 1 / 24, 19723 + 2 / 24]}


def periods(freq: str) -> pd.DataFrame:
    """Edges at three periods."""
    when = pd.period_range("2024-01-01", periods=3, freq=freq)
    return pd.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "d"], "when": when})


@pytest.mark.parametrize("freq", PERIODS)
def test_periods_are_times_and_no_numbers(freq: str, tmp_path: Path) -> None:
    frame, of_nodes = periods(freq), pd.read_csv(Path(folder(tmp_path)) / "nodes.csv")
    data = from_frames(of_nodes, frame, edge_time="when")
    assert data.edge_attrs is not None
    assert data.edge_attrs.time is not None
    np.testing.assert_allclose(data.edge_attrs.time, PERIODS[freq], rtol=1e-12)
    with refusal("data", "'when'", "date"):
        from_frames(of_nodes, frame, edge_features=("when",))
    with refusal("data", "'month'", "date"):
        from_frames(of_nodes.assign(month=pd.period_range("2024", periods=4, freq=freq)), frame, ignore=("edges.when",))


def test_periods_of_files_are_times_where_pandas_is_not_imported(tmp_path: Path) -> None:
    """As in a command: only the file's own metadata says that these are periods."""
    for freq in PERIODS:
        (Path(folder(tmp_path / freq)) / "edges.csv").unlink()
        to_parquet(periods(freq), tmp_path / freq / "edges.parquet")
    read = f"""
import sys
from fedweave.datasets import load
assert 'pandas' not in sys.modules
for freq in {[*PERIODS]}:
    print(load('folder', {str(tmp_path)!r} + '/' + freq, edge_time='when').edge_attrs.time.tolist())
"""
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    for line, days in zip(done.stdout.splitlines(), PERIODS.values(), strict=True):
        np.testing.assert_allclose(json.loads(line), days, rtol=1e-12)


def test_other_types_of_other_programs_are_not_read_as_what_stores_them(tmp_path: Path) -> None:
    of_nodes, edges = (pd.read_csv(Path(folder(tmp_path)) / f"{stem}.csv") for stem in ("nodes", "edges"))
    odd = {
        "fiscal": pd.period_range("2024", periods=4, freq="Q-OCT"),
        "band": pd.arrays.IntervalArray.from_breaks(range(5)),
    }
    for name, values in odd.items():
        frame = of_nodes.assign(**{name: values})
        for options in ({}, {"missing": (name,)}, {"target": "number", "targets": (name,)}, {"node_time": name}):
            with refusal("data.column-type", repr(name)):
                from_frames(frame, edges, **options)
        assert from_frames(frame, edges, ignore=(name,)).columns == ("f",)
    to_parquet(of_nodes.assign(fiscal=odd["fiscal"]), tmp_path / "nodes.parquet")
    (tmp_path / "nodes.csv").unlink()
    with refusal("data.column-type", "'fiscal'"):
        load("folder", str(tmp_path))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(4, 2))
    held = pa.Table.from_pandas(of_nodes, preserve_index=False).append_column("emb", tensor)
    assert from_frames(held, edges).columns == ("f", "emb 0", "emb 1")


@pytest.mark.parametrize("text", [True, False])
def test_targets_beyond_what_float64_distinguishes_are_refused(text: bool) -> None:
    large = 2**53
    frame = pd.DataFrame({"id": IDS, "f": [0.5, 1, 2, 3], "label": [large + 1, 2, 3, 4]})
    edges = pd.DataFrame({"source": ["a"], "target": ["b"]})
    for beyond in ([large + 1, 2, 3, 4], [large + 2, large + 4, 3, 4]):
        frame["label"] = [str(value) for value in beyond] if text else beyond
        if beyond[0] % 2:
            with refusal("data.target", "label", f"{large + 1}", f"{large}"):
                from_frames(frame, edges, target="number")
        else:
            assert from_frames(frame, edges, target="number").y[:2, 0].tolist() == beyond[:2]


# What decoding costs.


def test_a_small_file_that_would_fill_the_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two hundred thousand equal cells little is in the file; as many different ones have the memory they need."""
    monkeypatch.setattr(decompression, "OF_TABLES", replace_fields(decompression.OF_TABLES, floor=1 << 22))
    monkeypatch.setattr(table_files, "OF_TABLES", decompression.OF_TABLES)
    rows, few = 200_000, pa.array(np.zeros(200_000, np.int32))
    words, ids = (pa.DictionaryArray.from_arrays(few, pa.array([word])) for word in ("w" * 50, "a"))
    draws = np.random.default_rng(0)
    tables = {
        "edges": {"source": ids, "target": ids},
        "numbers": {"id": np.arange(rows).astype(str), "f": np.zeros(rows)},
        "text": {"f": words},
        "honest": {"f": draws.normal(size=rows), "g": draws.integers(0, 1 << 62, rows)},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", compression="zstd")
    for name in ("edges", "text"):
        with refusal("data.too-large", f"{name}.parquet", "bytes of memory"):
            table_files.read(tmp_path / f"{name}.parquet")
    assert table_files.read(tmp_path / "honest.parquet").rows == rows
    (tmp_path / "parts.parquet").mkdir()
    for at in range(3):
        half = {"source": ids.slice(0, 30_000), "target": ids.slice(0, 30_000)}
        pq.write_table(pa.table(half), tmp_path / "parts.parquet" / f"part-{at}.parquet")
    with refusal("data.too-large", "parts.parquet"):
        table_files.read(tmp_path / "parts.parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_has_a_largest_width(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "MAX_COLUMNS", 5)
    for columns, fits in ((5, True), (6, False)):
        held = pa.table({f"f{at}": [1.0] for at in range(columns)})
        path = tmp_path / f"nodes.{kind}"
        to_csv(held.to_pandas(), path) if kind == "csv" else pq.write_table(held, path)
        if fits:
            assert len(table_files.read(path).columns) == 5
        else:
            with refusal("data.too-large", "6 columns"):
                table_files.read(path)
