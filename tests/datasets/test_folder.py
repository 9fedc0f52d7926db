"""A user's folder: CSV and Parquet give the same dataset, and every refusal names file, row and remedy."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from fedweave.datasets import Dataset, load
from fedweave.datasets.folder import Folder
from fedweave.errors import ConfigError, DataError
from tests.refusals import refusal

NODES = "id,label,sens,split,age,income\nanna,repaid,0,train,0.5,2\nben,default,1,test,1e1,-3.25\ncleo,,,,7,0.125\n"
EDGES = "source,target\nben,anna\nanna,ben\nben,cleo\n"


def folder(path: Path, nodes: str | bytes = NODES, edges: str | bytes = EDGES) -> Path:
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def same(a: Dataset, b: Dataset) -> None:
    assert (a.classes, type(a.x)) == (b.classes, type(b.x))
    for key in ("x", "edges", "y", "sensitive", "public"):
        left, right = getattr(a, key), getattr(b, key)
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()


def test_a_folder_worked_by_hand(tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path)))
    assert (data.name, data.classes) == (tmp_path.name, 2)
    np.testing.assert_array_equal(data.x, np.array([[0.5, 2], [10, -3.25], [7, 0.125]], np.float32))
    np.testing.assert_array_equal(data.edges, [[0, 1, 1, 2], [1, 0, 2, 1]])
    np.testing.assert_array_equal(data.y, [1, 0, -1])  # default < repaid
    np.testing.assert_array_equal(data.sensitive, [0, 1, -1])
    np.testing.assert_array_equal(data.public, [[1, 0, 0], [0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("kind", ["text", "categories", "floats with gaps", "whole numbers"])
def test_parquet_equals_csv(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    number = kind in ("floats with gaps", "whole numbers")
    ids = [10, 7, 30] if number else ["x", "y", "z"]
    labels: list[int | str | None] = [1, 0, None] if number else ["q", "p", None]
    sensitive, feature = [1, None, 0], [0.5, 1.25, -3.0]
    blank = [["" if value is None else value for value in column] for column in (ids, labels, sensitive, feature)]
    rows = "".join("{},{},{},{}\n".format(*row) for row in zip(*blank, strict=True))
    folder(tmp_path / "a", f"id,label,sens,f\n{rows}", f"source,target\n{ids[2]},{ids[0]}\n{ids[1]},{ids[2]}\n")
    floats = kind == "floats with gaps"
    columns = {
        "id": pa.array(ids),
        "label": pa.array(labels, pa.float64()) if floats else pa.array(labels),
        "sens": pa.array(sensitive, pa.float64() if floats else pa.int8()),
        "f": pa.array(feature),
    }
    if kind == "categories":
        columns |= {key: columns[key].dictionary_encode() for key in ("id", "label")}
    pq.write_table(pa.table(columns), tmp_path / "b" / "nodes.parquet")
    ends = pa.table({"source": [ids[2], ids[1]], "target": [ids[0], ids[2]]})
    pq.write_table(ends, tmp_path / "b" / "edges.parquet")
    a, b = load("folder", str(tmp_path / "a")), load("folder", str(tmp_path / "b"))
    np.testing.assert_array_equal(a.y, [1, 0, -1])
    np.testing.assert_array_equal(a.sensitive, [1, -1, 0])
    np.testing.assert_array_equal(a.edges, [[0, 1, 2, 2], [2, 2, 0, 1]])
    for key in ("x", "edges", "y", "sensitive"):
        assert getattr(a, key).tobytes() == getattr(b, key).tobytes()


def test_same_folder_same_bytes_whatever_the_order_of_edges(tmp_path: Path) -> None:
    first = load("folder", str(folder(tmp_path)))
    same(first, load("folder", str(tmp_path)))
    same(first, load("folder", str(folder(tmp_path, edges="source,target\ncleo,ben\nanna,ben\nanna,ben\n"))))


def test_byte_order_mark_quotes_and_windows_lines(tmp_path: Path) -> None:
    first = load("folder", str(folder(tmp_path)))
    odd = "\ufeff" + NODES.replace("anna", '"anna"').replace("\n", "\r\n")
    same(first, load("folder", str(folder(tmp_path, odd))))


def test_mostly_empty_features_are_kept_sparse(tmp_path: Path) -> None:
    header = ",".join(f"w{i}" for i in range(20))
    rows = "".join(f"{i},{i % 2}," + ",".join("1" if j == i else "0" for j in range(20)) + "\n" for i in range(4))
    data = load("folder", str(folder(tmp_path, f"id,label,{header}\n{rows}", "source,target\n0,1\n")))
    assert sp.issparse(data.x)
    np.testing.assert_array_equal(sp.csr_matrix(data.x).toarray(), np.eye(4, 20))


def test_given_labels_and_classes_fix_the_numbering(tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path)), labels=("repaid", "late", "default"))
    assert data.classes == 3
    np.testing.assert_array_equal(data.y, [0, 2, -1])
    numbered = NODES.replace("repaid", "4").replace("default", "1.0")
    data = load("folder", str(folder(tmp_path, numbered)), classes=6)
    assert data.classes == 6
    np.testing.assert_array_equal(data.y, [4, 1, -1])


def test_a_number_that_is_no_whole_one_is_a_class_where_it_is_listed(tmp_path: Path) -> None:
    numbered = NODES.replace("repaid", "1.5").replace("default", "0.0")
    data = load("folder", str(folder(tmp_path, numbered)), labels=("0.0", "1.5"))
    assert (data.y.tolist(), data.labels) == ([1, 0, -1], ("0.0", "1.5"))


def test_1_and_1_0_are_one_class(tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path, "id,label,f\n1,1,2\n2,1.0,3\n3,0,4\n", "source,target\n1,2\n")))
    assert (data.y.tolist(), data.classes) == ([1, 1, 0], 2)


BAD_NODES: dict[str, tuple[str | bytes, str]] = {
    "no bytes": (b"", "nodes.csv: the file is empty, damaged or malformed"),
    "no rows": ("id,label,f\n", "nodes.csv: the table has no rows"),
    "not text": (b"id,label,f\n\xff\xfe,1,2\n", "nodes.csv: the file is not UTF-8"),
    "ragged row": ("id,label,f\n1,0,2\n2,1\n", "Row #3: Expected 3 columns, got 2"),
    "repeated column": ("id,label,f,f\n1,0,2,2\n", "'f' is empty or repeated"),
    "nameless column": ("id,label,\n1,0,2\n", "'' is empty or repeated"),
    "semicolons": ("id;label;f\n1;0;2\n", "cells are split by semicolons; the columns are id, label, f"),
    "no label": ("id,f\n1,2\n", "no column 'label'"),
    "almost label": ("id,Label,f\n1,0,2\n", "'Label' is almost 'label'"),
    "almost sens": ("id,label, sens,f\n1,0,1,2\n", "' sens' is almost 'sens'"),
    "duplicate id": ("id,label,f\n1,0,2\n2,0,2\n1,1,2\n", "nodes.csv: row 4: id '1' is already in row 2"),
    "empty id": ("id,label,f\n1,0,2\n,0,2\n", "nodes.csv: row 3: id is empty"),
    "empty feature": ("id,label,f\n1,0,2\n2,0,\n", "nodes.csv: row 3: feature 'f' is empty"),
    "nan feature": ("id,label,f\n1,0,nan\n2,0,1\n", "nodes.csv: row 2: feature 'f' is nan"),
    "infinite feature": ("id,label,f\n1,0,1\n2,0,-inf\n", "nodes.csv: row 3: feature 'f' is -inf"),
    "beyond float32": ("id,label,f\n1,0,1\n2,0,1e39\n", "nodes.csv: row 3: feature 'f' is 1e+39"),
    "text feature": ("id,label,f\n1,0,2\n2,0,red\n", "nodes.csv: row 3: 'f' is 'red'"),
    "no features": ("id,label\n1,0\n2,1\n", "there are no features"),
    "label negative": ("id,label,f\n1,0,2\n2,-1,2\n", "nodes.csv: row 3: label is -1, below 0"),
    "label huge": (
        "id,label,f\n1,0,2\n2,900,2\n",
        "row 3: label 900 would make 901 classes; only 2 occur among 2 rows",
    ),
    "labels mixed": ("id,label,f\n1,0,2\n2,cat,2\n", "numbers, others are names (cat)"),
    "label fraction": (
        "id,label,f\n1,0.0,2\n2,1.5,2\n3,0.37,1\n",
        "nodes.csv: row 3: label is '1.5', a number, but not one like 0, 1 or 2 (and so is 1 more of 3 rows)",
    ),
    "label fractions alone": ("id,label,f\n1,.5,2\n2,2.5e-1,2\n", "row 2: label is '.5', a number"),
    "label with comma": ('id,label,f\n1,"1,5",2\n2,0,2\n', "row 2: label is '1,5', a number"),
    "label fraction among names": ("id,label,f\n1,cat,2\n2,0.5,2\n", "row 3: label is '0.5', a number"),
    "label gap": ("id,label,f\n1,late,2\n2,NaN,2\n", "nodes.csv: row 3: label is 'NaN'"),
    "label gap beside numbers": ("id,label,f\n1,0,2\n2,n/a,2\n", "nodes.csv: row 3: label is 'n/a'"),
    "label of None": ("id,label,f\n1,late,2\n2,None,2\n", "nodes.csv: row 3: label is 'None'"),
    "sens of None": ("id,label,sens,f\n1,0,None,2\n", "nodes.csv: row 2: sens is 'None'"),
    "sens gap": ("id,label,sens,f\n1,0,NULL,2\n", "nodes.csv: row 2: sens is 'NULL'"),
    "blank at id": ("id,label,f\n1,0,2\n2 ,0,2\n", "nodes.csv: row 3: id is '2 ', with a blank at an end"),
    "blank at label": ("id,label,f\n1,cat,2\n2,cat ,2\n", "nodes.csv: row 3: label is 'cat ', with"),
    "blank at sens": ("id,label,sens,f\n1,0,f,2\n2,0,\tf,2\n", "row 3: sens is '\\tf', with a blank"),
    "no labels": ("id,label,f\n1,,2\n2,,2\n", "nodes.csv: column label is empty in every row"),
    "sens fraction": ("id,label,sens,f\n1,0,0.5,2\n", "nodes.csv: row 2: sens is '0.5'"),
    "sens negative": ("id,label,sens,f\n1,0,-1,2\n", "nodes.csv: row 2: sens is -1, below 0"),
    "sens overflow": (f"id,label,sens,f\n1,0,{10**30},2\n", "nodes.csv: row 2: sens is '1000"),
    "split unknown": ("id,label,split,f\n1,0,later,2\n", "nodes.csv: row 2: split is 'later'"),
    "split unlabeled": ("id,label,split,f\n1,0,,2\n2,,val,1\n", "nodes.csv: row 3: the node is in a split"),
    "utf-16": ("id,label,f\n1,0,2\n".encode("utf-16"), "not UTF-8; it looks like UTF-16"),
    "latin-1": ("id,label,f\nJürg,0,2\n".encode("latin-1"), "it looks like Latin-1"),
    "tabs": ("id\tlabel\tf\n1\t0\t2\n", "cells are split by tabs"),
    "decimal comma": ('id,label,f\n1,0,"0,5"\n', "row 2: 'f' is '0,5'"),
    "date": ("id,label,born\n1,0,1990-12-31\n", "row 2: 'born' is '1990-12-31'"),
    "text": ("id,label,job\n1,0,nurse\n2,0,clerk\n3,0,\n", "row 2: 'job' is 'nurse'; 2 rows hold text and 1 nothing"),
    "mixed groups": ("id,label,sens,f\n1,0,f,2\n2,0,1,2\n", "row 2: sens is 'f', not a whole number"),
}
BAD_EDGES: dict[str, tuple[str | bytes, str]] = {
    "no bytes": (b"", "edges.csv: the file is empty"),
    "missing node": ("source,target\nanna,ben\nben,dora\n", "edges.csv: row 3: target 'dora' is not a node"),
    "other spelling": ("source,target\nAnna,ben\n", "edges.csv: row 2: source 'Anna' is not a node"),
    "empty end": ("source,target\nanna,ben\nben,\n", "edges.csv: row 3: target is empty"),
    "self loop": ("source,target\nanna,ben\nben,ben\n", "edges.csv: row 3: the edge joins 'ben' with itself"),
    "weight": ("source,target,weight\nanna,ben,2\n", "edges.csv: edge weights are not used"),
    "extra column": ("source,target,kind\nanna,ben,2\n", "edges.csv: unknown columns: kind"),
    "wrong header": (
        "from,to\nanna,ben\n",
        "edges.csv: there is no column 'source' and no column 'target'; it has from, to",
    ),
    "ragged row": ("source,target\nanna,ben,cleo\n", "Row #2: Expected 2 columns, got 3"),
}


@pytest.mark.parametrize(("part", "case"), [("nodes", k) for k in BAD_NODES] + [("edges", k) for k in BAD_EDGES])
def test_bad_tables_are_refused(part: str, case: str, tmp_path: Path) -> None:
    content, what = (BAD_NODES if part == "nodes" else BAD_EDGES)[case]
    if part == "nodes":
        folder(tmp_path, nodes=content, edges="source,target\n1,2\n" if case == "no features" else "source,target\n")
    else:
        folder(tmp_path, edges=content)
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}.*{re.escape(what)}"):
        load("folder", str(tmp_path))


TIMES = [1700000001, 1700000050, 1700000030]


def of_column(values: Sequence[object]) -> str:
    return "id,label,f\n" + "".join(f"{row},{row % 2},{value}\n" for row, value in enumerate(values))


def test_differences_that_float32_does_not_keep_are_refused_until_they_are_left(tmp_path: Path) -> None:
    """All three are 1700000000 in float32; the remedy is done as it is told."""
    with refusal("data.row", "nodes.csv: row 4", "'f'", "1700000030.0", "float32") as error:
        load("folder", str(folder(tmp_path, of_column(TIMES), "source,target\n0,1\n")), normalize="standard")
    told = re.search(r"Subtract (\S+) in every row", str(error.value))
    assert told is not None
    moved = [value - float(told[1]) for value in TIMES]
    data = load("folder", str(folder(tmp_path, of_column(moved), "source,target\n0,1\n")))
    np.testing.assert_array_equal(data.x[:, 0], moved)


@pytest.mark.parametrize(
    "values",
    [
        [1700000001] * 3,  # constant, in float32 or not
        [0.1] * 3,
        [0.3, 0.1 + 0.2, 0.3],  # constant but for rounding
        [0, 1, 2, 16777217],
        [0.1, 0.7, 0.1000000001],
        [1990, 2001, 2024],
        [48.85660001, 48.85660002, 48.9],
        [1e12, 3e12 + 1, 3e12],
        [1700000000 + 86400 * day for day in range(9)],
        [1700000000, 1700000100],  # 128 apart in float32, which is as good
        [3e38, -3e38, 1e-300],
    ],
)
def test_columns_that_float32_keeps_well_enough_are_features(values: list[float], tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path, of_column(values), "source,target\n0,1\n")))
    np.testing.assert_array_equal(data.x[:, 0], np.float32(values))


def test_a_few_examples_to_be_predicted_may_be_alike(tmp_path: Path) -> None:
    """What a model was trained on tells how far apart values matter."""
    folder(tmp_path, of_column(TIMES), "source,target\n0,1\n")
    assert np.ptp(Folder().load(tmp_path, 0, labelled=False).x) == 0


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("f", pa.array([[1.0], [2.0, 3.0]]), "row 1: 'f' holds 1 numbers, not 2"),
        ("f", pa.array(["1", "red"]), "row 2: 'f' is 'red'"),
        ("f", pa.array([1.0, None]), "row 2: feature 'f' is empty"),
        ("label", pa.array([0.0, 0.5]), "row 2: 'label' is 0.5. To predict numbers: [data] target"),
        ("label", pa.array(["0.0", "0.5"]), "row 2: label is '0.5', a number, but not one like 0, 1 or 2"),
        ("label", pa.array([[1], [2]]), "column 'label' holds list"),
        ("id", pa.array([b"1", b"2"]), "column 'id' holds binary"),
        ("id", pa.array([1, 1]), "row 2: id '1' is already in row 1"),
    ],
)
def test_bad_parquet_columns_are_refused(column: str, values: pa.Array, what: str, tmp_path: Path) -> None:
    folder(tmp_path, edges="source,target\n1,2\n")
    (tmp_path / "nodes.csv").unlink()
    columns = {"id": pa.array([1, 2]), "label": pa.array([0, 1]), "f": pa.array([0.5, 1.5])} | {column: values}
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet")
    with pytest.raises(DataError, match=re.escape(f"nodes.parquet: {what}")):
        load("folder", str(tmp_path))


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "label": [0, 1], "f": [0.5, 1.5]}), tmp_path / "nodes.parquet")
    whole = (tmp_path / "nodes.parquet").read_bytes()
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    for content in (b"", whole[:50], whole[:-4], b"PAR1" + b"\0" * 40 + b"PAR1"):
        (tmp_path / "nodes.parquet").write_bytes(content)
        with refusal("data.damaged", "nodes.parquet"):
            load("folder", str(tmp_path))


def test_missing_and_ambiguous_files_are_refused(tmp_path: Path) -> None:
    with refusal("config.missing", "[data] path"):
        load("folder")
    with refusal("data", "nodes.parquet", "nodes.csv"):
        load("folder", str(tmp_path))
    folder(tmp_path)
    with pytest.raises(DataError, match="this is not a folder"):
        load("folder", str(tmp_path / "nodes.csv"))
    (tmp_path / "edges.parquet").write_bytes(b"")
    with refusal("data", "edges.parquet", "edges.csv"):
        load("folder", str(tmp_path))


def test_names_with_blanks_are_classes_where_they_are_listed(tmp_path: Path) -> None:
    nodes = "id,label,f\n1,cat,2\n2,cat ,2\n"
    data = load("folder", str(folder(tmp_path, nodes, "source,target\n1,2\n")), labels=("cat ", "cat"))
    assert data.y.tolist() == [1, 0]


def test_labels_outside_the_given_ones_are_refused(tmp_path: Path) -> None:
    with refusal("data.row", "row 3", "'default'"):
        load("folder", str(folder(tmp_path)), labels=("repaid", "late"))
    with refusal("data.row", "row 2", "'repaid'"):
        load("folder", str(folder(tmp_path)), classes=2)
    numbered = NODES.replace("repaid", "4").replace("default", "1")
    with refusal("data.row", "row 2", "4", "0..3"):
        load("folder", str(folder(tmp_path, numbered)), classes=4)
    for params in ({"classes": 2, "labels": ("a",)}, {"labels": ()}, {"labels": ("a", "a")}):
        with pytest.raises(ConfigError, match=r"^data: "):
            load("folder", str(tmp_path), **params)
    with pytest.raises(ConfigError, match=r"^folder\.classes = 0: "):
        load("folder", str(tmp_path), classes=0)
