"""Tables as other programs write them, and what a refusal proposes: a remedy of this fault and of no other, once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

from fedweave import datasets
from fedweave.datasets import Dataset, from_frames, load
from fedweave.errors import DataError, Fault, Faults
from fedweave.experiment.config.toml import load as load_toml
from tests.refusals import refusal

EDGES = "source,target\na,b\nc,d\n"
ENDS = {"source": ["a", "c"], "target": ["b", "d"]}


def nodes(cells: Sequence[object], column: str = "f") -> str:
    rows = zip("abcd", cells, strict=True)
    return f"id,label,{column}\n" + "".join(f"{name},{at % 2},{cell}\n" for at, (name, cell) in enumerate(rows))


def folder(root: Path, of_nodes: str, edges: str = EDGES) -> str:
    root.mkdir(parents=True, exist_ok=True)
    (root / "nodes.csv").write_text(of_nodes)
    (root / "edges.csv").write_text(edges)
    return str(root)


# Every door takes {column: four cells} of nodes a, b, c and d, and options.
def by_csv(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    pd.DataFrame({"id": list("abcd"), **columns}).to_csv(root / "nodes.csv", index=False)
    (root / "edges.csv").write_text(EDGES)
    return load("folder", str(root), **options)


def by_parquet(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    pq.write_table(pa.table({"id": list("abcd"), **columns}), root / "nodes.parquet")
    (root / "edges.csv").write_text(EDGES)
    return load("folder", str(root), **options)


def by_members(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    for at, own in enumerate(("east", "west")):
        (root / own).mkdir()
        held = {name: cells[2 * at : 2 * at + 2] for name, cells in {"id": list("abcd"), **columns}.items()}
        pq.write_table(pa.table(held), root / own / "nodes.parquet")
        (root / own / "edges.csv").write_text(f"source,target\n{'ac'[at]},{'bd'[at]}\n")
    return load("members", str(root), **options)


def by_pandas(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    return from_frames(pd.DataFrame({"id": list("abcd"), **columns}), pd.DataFrame(ENDS), **options)


def by_arrow(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    return from_frames(pa.table({"id": list("abcd"), **columns}), pa.table(ENDS), **options)


def by_networkx(root: Path, columns: dict[str, list[Any]], **options: Any) -> Dataset:
    graph = nx.Graph()
    for at, name in enumerate("abcd"):
        graph.add_node(name, **{own: cells[at] for own, cells in columns.items()})
    graph.add_edges_from([("a", "b"), ("c", "d")])
    return datasets.from_networkx(graph, **options)


DOORS: list[Callable[..., Dataset]] = [by_csv, by_parquet, by_members, by_pandas, by_arrow, by_networkx]
F = [0.5, 1.5, 2.5, 4.0]


@pytest.mark.parametrize("door", DOORS)
def test_true_and_false_are_classes_and_groups(door: Callable[..., Dataset], tmp_path: Path) -> None:
    columns = {"label": [True, False, True, True], "sens": [False, False, True, False], "f": F, "g": [True, True] * 2}
    columns["g"][0] = False
    data = door(tmp_path, columns)
    np.testing.assert_array_equal(np.asarray(data.x)[:, 1], [0, 1, 1, 1])
    assert (data.y.tolist(), data.labels) == ([1, 0, 1, 1], ("False", "True"))
    assert data.sensitive is not None
    assert (data.sensitive.tolist(), data.groups) == ([0, 0, 1, 0], ("False", "True"))


def test_true_and_false_of_pytorch_geometric_are_the_same_classes() -> None:
    ends = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    data = datasets.from_pyg(Data(torch.tensor(F)[:, None], ends, y=torch.tensor([True, False, True, True])))
    assert data.y.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("door", [door for door in DOORS if door is not by_csv])
def test_a_list_of_numbers_is_a_feature_for_each(door: Callable[..., Dataset], tmp_path: Path) -> None:
    columns = {"label": [0, 1, 0, 1], "emb": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], "f": F}
    data = door(tmp_path, columns)
    assert data.columns == ("emb 0", "emb 1", "f")
    np.testing.assert_array_equal(data.x, np.array([[1, 2, 0.5], [3, 4, 1.5], [5, 6, 2.5], [7, 8, 4]], np.float32))


def test_lists_of_edges_and_of_unlike_length(tmp_path: Path) -> None:
    of_nodes = pa.table({"id": list("abcd"), "label": [0, 1, 0, 1], "f": F})
    edges = pa.table({**ENDS, "e": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))})
    edge_attrs = from_frames(of_nodes, edges, edge_features=("e",)).edge_attrs
    assert edge_attrs is not None
    assert edge_attrs.columns == ("e 0", "e 1")
    assert edge_attrs.features is not None
    assert edge_attrs.features.tolist() == [[1, 2], [3, 4]]
    for uneven in ([[1], [2], [3, 4], [5]], [[1], None, [3], [4]]):
        with refusal("data.row", "row", "'emb'"):
            from_frames(of_nodes.append_column("emb", pa.array(uneven)), pa.table(ENDS))
    with refusal("data.column-name", "'f 0'"):
        both = {"id": list("abcd"), "label": [0, 1, 0, 1], "f": [[1]] * 4, "f 0": F}
        from_frames(pa.table(both), pa.table(ENDS))


def test_structures_are_told_a_remedy_of_the_column(tmp_path: Path) -> None:
    columns = {"label": [0, 1, 0, 1], "s": [{"a": 1.0, "b": at} for at in range(4)]}
    for door in (by_parquet, by_arrow):
        with refusal("data.column-nested", "'s'", "struct"):
            door(tmp_path, columns)


@pytest.mark.parametrize(
    "word", ["NA", "?", "\\N", "#N/A", ".", "nan", "null", "", "#VALUE!", "--", "[NULL]", "(blank)"]
)
@pytest.mark.parametrize("door", [by_csv, by_parquet, by_members, by_arrow, by_networkx])
def test_words_for_a_gap_are_gaps_where_missing_names_the_column(
    word: str, door: Callable[..., Dataset], tmp_path: Path
) -> None:
    columns = {"label": [0, 1, 0, 1], "f": ["0.5", word, "2.5", word]}
    data = door(tmp_path, columns, missing=("f",))
    assert data.columns == ("f", "f is missing")
    np.testing.assert_array_equal(data.x, np.array([[0.5, 0], [0, 1], [2.5, 0], [0, 1]], np.float32))
    (tmp_path / "other").mkdir()
    with refusal("data.row", "[data] missing"):
        door(tmp_path / "other", columns)


def test_a_header_in_the_middle_is_called_so(tmp_path: Path) -> None:
    text = nodes(F)
    with refusal("data.row", "nodes.csv", "row 6", "names of the columns"):
        load("folder", folder(tmp_path, text + text.replace("a,", "e,")))
    held = pa.table({"id": ["a", "id", "c"], "label": ["0", "label", "1"], "f": ["1", "f", "2"]})
    with refusal("data.row", "row 1"):
        from_frames(held, pa.table({"source": ["a"], "target": ["c"]}))
    one = pa.table({"id": ["a", "id"], "label": ["label", "no"], "f": [1, 2]})  # a node of that name is not a header
    assert from_frames(one, pa.table({"source": ["a"], "target": ["id"]})).nodes == 2


def test_other_names_of_columns_are_proposed(tmp_path: Path) -> None:
    path = folder(tmp_path, nodes(F), EDGES.replace("source,target", "src,dst"))
    with refusal("data.column-missing", "src, dst", 'columns = {source = "src", target = "dst"}'):
        load("folder", path)
    data = load("folder", path, columns={"source": "src", "target": "dst"})
    assert data.edges.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    with refusal("data.column-missing", "'branch'", "owner"):
        load("folder", folder(tmp_path, nodes(F)), owner="branch")
    with refusal("data.column-missing", "source,target"):
        load("folder", folder(tmp_path, nodes(F), "source target\na b\n"))


@pytest.mark.parametrize("line", ['"C:\\Users\\me\\data"', '"C:\\temp\\new"', '"data\\Users"', '"\\\\share\\data"'])
def test_backslashes_in_double_quotes_are_called_so(line: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f"seed = 0\n[data]\npath = {line}\n")
    with refusal("config.backslash", "line 3", line, f"'{line[1:-1]}'"):
        load_toml(file)
    file.write_text(f'[data]\npath = \'{line[1:-1]}\' # "\\n"\nother = "C:\\\\temp"\n')
    assert load_toml(file)["data"] == {"path": line[1:-1], "other": "C:\\temp"}


def test_a_path_with_a_character_that_an_escape_made_is_called_so() -> None:
    with refusal("data.path", json.dumps("data\new").strip('"'), "single quotes"):
        load("folder", "data\new")


def test_one_remedy_is_one_fault_with_three_examples(tmp_path: Path) -> None:
    many = "id,label,f\n" + "".join(f"{i},0,1{'x' * (i % 2)}{i}\n" for i in range(100))
    with pytest.raises(DataError) as error:
        load("folder", folder(tmp_path, many, "source,target\n"))
    (line,) = str(error.value).splitlines()
    assert [f"row {row}: 'f' is '1x{row - 2}'" in line for row in (3, 5, 7, 9)] == [True, True, True, False]
    assert line.count("and 47 more") == 1
    columns = [f"f{at}" for at in range(30)]
    wide = f"id,label,{','.join(columns)}\n" + "".join(f"{name},0{',NA' * 30}\n{name}2,0{',1' * 30}\n" for name in "ab")
    with pytest.raises(DataError) as error:
        load("folder", folder(tmp_path, wide, "source,target\n"))
    (line,) = str(error.value).splitlines()
    assert line.count("'NA'") == 3
    assert line.count("and 54 more") == 1  # 30 columns with two rows each


def test_faults_with_one_remedy_are_one() -> None:
    faults = Faults(DataError)
    for at in range(3):
        with faults:
            raise DataError(Fault.of([("one.csv", f"row {at}", 2)], "Mend it."))
    with pytest.raises(DataError) as three:
        faults.refuse()
    assert str(three.value).splitlines() == [f"one.csv: row {at}. Mend it." for at in range(3)]
    with faults:
        raise DataError(Fault.of([("two.csv", "row 3", 1), ("two.csv", "row 4", 1)], "Mend it.", rest=5))
    with faults:
        raise DataError("another one")
    with pytest.raises(DataError) as more:
        faults.refuse()
    assert str(more.value).splitlines() == ["one.csv: row 0; row 1; row 2; and 7 more. Mend it.", "another one"]


def test_a_relative_path_is_looked_for_in_the_folder_of_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "sets" / "mine").mkdir(parents=True)
    (tmp_path / "sets" / "mine" / "nodes.csv").write_text("id,label,f\n0,a,1\n1,b,2\n2,a,3\n")
    (tmp_path / "sets" / "mine" / "edges.csv").write_text("source,target\n0,1\n1,2\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FEDWEAVE_DATA", raising=False)
    with refusal("data.no-path", "mine", str(tmp_path / "here"), "$FEDWEAVE_DATA"):
        load("folder", "mine")
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path / "sets"))
    assert load("folder", "mine").nodes == 3
    with refusal("data.no-path", "yours", str(tmp_path / "sets")):
        load("folder", "yours")
    with refusal("data.no-path", "/mine"):
        load("folder", "/mine")
