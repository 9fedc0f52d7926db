"""Data as members have it: owners, sub-folders, text, files of other programs, and tables in memory."""

import tomllib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedweave import datasets, partition
from fedweave.datasets import load, npz
from fedweave.datasets.contents import content
from fedweave.errors import ConfigError, DataError
from fedweave.experiment import config
from fedweave.experiment.build import build
from tests.datasets.test_folder import folder, same
from tests.refusals import refusal

NODES = (
    "id,label,sens,job,age,branch\n1,a,f,clerk,30,north\n2,b,m,nurse,40,south\n3,a,f,,50,north\n4,b,,clerk,60,south\n"
)
EDGES = "source,target\n1,2\n1,3\n2,4\n"
OPTIONS = {"categories": {"job": ("clerk", "nurse")}, "owner": "branch"}


def test_text_becomes_columns_groups_and_owners_by_hand(tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path, NODES, EDGES)), **OPTIONS)
    assert data.columns == ("job = clerk", "job = nurse", "age")
    np.testing.assert_array_equal(data.x, [[1, 0, 30], [0, 1, 40], [0, 0, 50], [1, 0, 60]])
    np.testing.assert_array_equal(data.sensitive, [0, 1, 0, -1])
    assert data.owners == ("north", "south")
    np.testing.assert_array_equal(data.owner, [0, 1, 0, 1])
    other = load("folder", str(tmp_path), groups=("m", "f"), **OPTIONS)
    np.testing.assert_array_equal(other.sensitive, [1, 0, 1, -1])


@pytest.mark.parametrize("gap", ["nan", "None", "N/A"])
def test_what_stands_for_no_owner_is_no_member(gap: str, tmp_path: Path) -> None:
    nodes = NODES.replace("50,north", f"50,{gap}")
    with pytest.raises(DataError, match=rf"nodes\.csv: row 4: branch is '{gap}'\. Fill in branch or remove the row"):
        load("folder", str(folder(tmp_path, nodes, EDGES)), **OPTIONS)


def test_a_class_and_a_group_may_be_called_none_where_they_are_declared(tmp_path: Path) -> None:
    nodes = NODES.replace(",a,f,", ",None,none,")
    options = OPTIONS | {"labels": ("None", "b"), "groups": ("none", "m")}
    data = load("folder", str(folder(tmp_path, nodes, EDGES)), **options)
    assert (data.y.tolist(), data.sensitive.tolist()) == ([0, 1, 0, 1], [0, 1, 0, -1])


def test_a_column_says_who_holds_what(tmp_path: Path) -> None:
    document = {"data": {"path": str(folder(tmp_path, NODES, EDGES)), **OPTIONS}, "rounds": 1}
    document |= {"partition": {"name": "column", "train": 0.5, "val": 0.0, "test": 0.5}}
    chosen = config.resolve(document)
    assert config.resolve(chosen.plain()) == chosen
    built = build(chosen)
    assert built.fed.clients == ("north", "south")
    assert [part.nodes.tolist() for part in built.partition.parts] == [[0, 2], [1, 3]]
    with refusal("config.no-owners", "'digits'", "data.owner"):
        partition.Column().cut(load("digits"), 0)
    with refusal("config.no-owners", "data.name"):
        partition.Folders().cut(load("digits"), 0)


def members(root: Path) -> Path:
    """The same nodes in a folder for each branch; 1 is a node at both."""
    for name, rows, edges in (
        ("south", "2,b,m,nurse,40\n1,b,,clerk,60\n", "2,1\n"),
        ("north", "1,a,f,clerk,30\n3,a,f,,50\n", "1,3\n"),
    ):
        (root / name).mkdir(parents=True)
        folder(root / name, f"id,label,sens,job,age\n{rows}", f"source,target\n{edges}")
    return root


def test_a_folder_for_each_member(tmp_path: Path) -> None:
    data = load("members", str(members(tmp_path)), categories=OPTIONS["categories"])
    assert data.ids == ("north/1", "north/3", "south/2", "south/1")
    assert (data.owners, data.owner.tolist()) == (("north", "south"), [0, 0, 1, 1])
    np.testing.assert_array_equal(data.edges, [[0, 1, 2, 3], [1, 0, 3, 2]])
    np.testing.assert_array_equal(data.y, [0, 0, 1, 1])  # a < b over all members, of whom each has one
    np.testing.assert_array_equal(data.sensitive, [0, 0, 1, -1])
    cut = partition.Folders(train=0.5, val=0.0, test=0.5).cut(data, 0)
    assert (cut.names, [part.nodes.tolist() for part in cut.parts]) == (("north", "south"), [[0, 1], [2, 3]])
    folder(tmp_path / "north", "id,label,job,age\n1,a,clerk,30\n1,a,clerk,40\n", "source,target\n1,9\n")
    with refusal("data.row", f"{tmp_path}/north/nodes.csv: row 3", "'north/1'", "row 2"):
        load("members", str(tmp_path), categories=OPTIONS["categories"])
    folder(tmp_path / "north", "id,label,job,rage\n1,a,clerk,30\n", "source,target\n")
    with pytest.raises(DataError, match=r"north and south differ in the columns age, rage"):
        load("members", str(tmp_path))


def test_dates_of_parquet_and_undeclared_values_are_refused(tmp_path: Path) -> None:
    dates = pa.table({"id": ["1"], "label": ["a"], "born": pa.array([0], pa.date32())})
    with refusal("data", "'born'"):
        datasets.from_frames(dates, pa.table({"source": ["1"], "target": ["1"]}))
    with refusal("data.row", "row 3", "'nurse'"):
        load("folder", str(folder(tmp_path, NODES, EDGES)), **(OPTIONS | {"categories": {"job": ("clerk",)}}))
    with refusal("data", "categories", "'jobs'"):
        load("folder", str(tmp_path), **(OPTIONS | {"categories": {"jobs": ("clerk",)}}))
    for options in ({"categories": {"job": ()}}, {"groups": ("a", "a")}, {"owner": "label"}):
        with pytest.raises(ConfigError, match=r"^data: "):
            load("folder", str(tmp_path), **options)


def test_all_faults_of_the_tables_are_told_at_once(tmp_path: Path) -> None:
    nodes = "id,label,split,f,g\n1,0,train,x,1\n1,0,later,2,inf\n3,0,test,3,\n"
    with pytest.raises(DataError) as error:
        load("folder", str(folder(tmp_path, nodes, "source,target\n1,2\n3,3\n")))
    lines = [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]
    assert [line.partition(". ")[0] for line in lines] == [
        "nodes.csv: row 3: id '1' is already in row 2",
        "nodes.csv: row 2: 'f' is 'x'",
        "nodes.csv: row 4: feature 'g' is empty",
        "nodes.csv: row 3: split is 'later'",
    ]  # edges are not looked at before ids are unique
    jobs = [f"job{at}" for at in range(25)]  # each of which has a remedy of its own
    many = f"id,label,{','.join(jobs)}\n" + "".join(f"{i},0{',clerk' * 25}\n" for i in range(3))
    with pytest.raises(DataError) as error:
        load("folder", str(folder(tmp_path, many, "source,target\n" + "a,b\n" * 3)))
    assert len(str(error.value).splitlines()) == 21
    assert str(error.value).splitlines()[-1] == "and 7 more faults"  # 25 features and 2 ends, of which 20 are shown


def test_an_npz_of_ones_own_is_a_path(tmp_path: Path) -> None:
    data = load("folder", str(folder(tmp_path, NODES, EDGES)), **OPTIONS)
    npz.write(data, tmp_path / "mine.npz")
    chosen = config.resolve({"data": {"path": str(tmp_path / "mine.npz")}})
    assert chosen.data.name == "npz"
    again = load(chosen.data.name, path=chosen.folder)
    assert again.name == "mine"
    np.testing.assert_array_equal(again.edges, data.edges)
    with pytest.raises(DataError, match="this is not a file"):
        load("npz", str(tmp_path))
    for name in ("folder", "members", "parties", "graphs", "tu"):
        with refusal("data", "mine.npz", "[data] name"):
            load(name, str(tmp_path / "mine.npz"))
    with refusal("data.kind", "'npz'"):
        load("suzhou", str(tmp_path / "mine.npz"))


def test_frames_are_read_like_files(tmp_path: Path) -> None:
    plain = load("folder", str(folder(tmp_path)))
    nodes = pd.read_csv(tmp_path / "nodes.csv")
    same(plain, datasets.from_frames(nodes, pd.read_csv(tmp_path / "edges.csv"), normalize="none"))
    nodes.loc[1, "age"] = np.inf
    with refusal("data.row", "row 1", "'age'"):
        datasets.from_frames(nodes, pd.read_csv(tmp_path / "edges.csv"))
    with pytest.raises(DataError, match=r"nodes: int cannot be read as a table.*Give a pandas or polars frame"):
        datasets.from_frames(3, nodes)


def test_a_row_index_of_pandas_is_no_column(tmp_path: Path) -> None:
    """Filtered rows keep their numbers, which pandas writes to Parquet."""
    nodes = pd.DataFrame({"id": list("abcd"), "label": list("xyxy"), "f": [1.0, 2.0, 3.0, 4.0]})
    edges = pd.DataFrame({"source": list("abca"), "target": list("cddd")})
    few = nodes[nodes.f != 2], edges[edges.source != "b"]
    for name, frame in zip(("nodes", "edges"), few, strict=True):
        frame.to_parquet(tmp_path / f"{name}.parquet")
    doors = {
        "files": lambda **options: load("folder", str(tmp_path), **options),
        "pandas": lambda **options: datasets.from_frames(*few, **options),
        "arrow": lambda **options: datasets.from_frames(*map(pa.Table.from_pandas, few), **options),
    }
    for kind, door in doors.items():
        assert door().columns == ("f",), kind
    assert doors["files"](ignore=("__index_level_0__",)).columns == ("f",)
    few[0].drop(columns="id").to_parquet(tmp_path / "nodes.parquet")
    ends = few[1].replace(dict(zip("acd", "023", strict=True)))
    ends.to_parquet(tmp_path / "edges.parquet", index=False)
    assert doors["files"](columns={"id": "__index_level_0__"}).ids == ("0", "2", "3")


def test_a_networkx_graph_with_attributes() -> None:
    graph = nx.Graph([("a", "b"), ("b", "c"), ("c", "c")])
    for node, (club, age) in {"a": ("x", 1.5), "b": ("y", 2.0), "c": (None, 3)}.items():
        graph.nodes[node].update(club=club, age=age, size=1)
    data = datasets.from_networkx(graph, label="club", features=("age",))
    assert (data.ids, data.labels, data.columns) == (("a", "b", "c"), ("x", "y"), ("age",))
    assert str(data) == "networkx: 3 nodes, 2 edges, 1 features, 2 classes"
    np.testing.assert_array_equal(data.edges, [[0, 1, 1, 2], [1, 0, 2, 1]])
    np.testing.assert_array_equal(data.y, [0, 1, -1])
    assert datasets.from_networkx(graph, label="club").columns == ("age", "size")
    nx.set_node_attributes(graph, {"a": "bank-0", "b": "bank-1", "c": "bank-0"}, "bank")
    nx.set_node_attributes(graph, {"a": 0.0, "b": 1.0, "c": 2.0}, "opened")
    for features in (("age",), ("age", "bank", "opened")):  # owner and time are taken, listed or not
        owned = datasets.from_networkx(graph, label="club", features=features, owner="bank", node_time="opened")
        assert (owned.columns, owned.owners) == (("age",), ("bank-0", "bank-1"))
        np.testing.assert_array_equal(owned.owner, [0, 1, 0])
        np.testing.assert_array_equal(owned.node_time, [0, 1, 2])


def test_nodes_and_attributes_of_networkx_may_be_of_any_kind() -> None:
    graph = nx.Graph()
    graph.add_node(np.int64(1), label=0, a=1.0)
    graph.add_node((1, 2), label=1, a=2.0)
    graph.add_edge(np.int64(1), (1, 2))
    for number, node in enumerate(graph):
        graph.nodes[node][5] = number
    data = datasets.from_networkx(graph)
    assert (data.ids, data.columns, data.edges.tolist()) == (("1", "(1, 2)"), ("5", "a"), [[0, 1], [1, 0]])
    graph.edges[1, (1, 2)].update({"weight": np.ones(2), 7: 2})
    with refusal("data.column-unknown", "7"):
        datasets.from_networkx(graph)
    graph.add_node("1", label=0, a=1.0)
    with refusal("data.row", "'1'", "row 0"):
        datasets.from_networkx(graph, features=["a"], ignore=("edges.weight", "edges.7"))


class Data:
    """What of torch_geometric.data.Data is read; importing it takes longer than all tests here."""

    def __init__(self, **own: Any) -> None:
        self.__dict__ = own


@pytest.mark.parametrize("key", ["id", "label"])
def test_attributes_that_have_the_name_of_a_column_are_not_taken_for_it(key: str) -> None:
    """Names and classes are what the caller says, whatever else nodes carry."""
    graph = nx.Graph([("a", "b"), ("b", "c")])
    for at, node in enumerate(graph):
        graph.nodes[node].update({"club": "xy"[at % 2], "age": at + 1.0, key: 2 - at})
    with pytest.raises(DataError, match=rf"the attribute '{key}' would be a feature.*list in `features`"):
        datasets.from_networkx(graph, label="club")
    data = datasets.from_networkx(graph, label="club", features=["age"])
    assert (data.labels, data.y.tolist(), data.ids) == (("x", "y"), [0, 1, 0], ("a", "b", "c"))


@pytest.mark.parametrize("categorical", [False, True])
def test_text_as_polars_hands_it_over(categorical: bool) -> None:
    """Arrow's views, plain or in a dictionary."""
    label = pa.array(["x", "y", "x"], pa.string_view())
    if categorical:
        label = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["x", "y"], pa.string_view()))
    nodes = pa.table({"id": pa.array(["a", "b", "c"], pa.string_view()), "label": label, "f": [1.0, 2.0, 3.0]})
    edges = pa.table({name: pa.array([end], pa.string_view()) for name, end in (("source", "a"), ("target", "c"))})
    data = datasets.from_frames(nodes, edges)
    assert (data.labels, data.y.tolist(), data.edges.tolist()) == (("x", "y"), [0, 1, 0], [[0, 2], [2, 0]])


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        *(("y", y, f"y, row {row}") for y, row in (
            (torch.tensor([0.5, 1.2, 0.0]), 0), (torch.tensor([0, torch.nan, 1]), 1), (torch.tensor([0, 1e30, 1]), 1),
            (["a", "b", "a"], 0), (np.array([1, None, "b"], object), 1), (np.array([1j, 0, 0]), 0),
            (torch.tensor([0, 1000000, 5]), 1), (torch.tensor([0, -2, 1]), 1))),
        *(("sens", sens, f"sens, row {row}") for sens, row in (
            (["f", "m", "f"], 0), (torch.tensor([0, 1e30, 1]), 1), (torch.tensor([0.2, 0.7, 1.9]), 0),
            (torch.tensor([0, torch.nan, 1]), 1))),
        ("x", np.array([["a"], ["b"], ["c"]]), "x, row 0, column 0: 'a'"),
        ("x", np.array([[1], [None], [2]], object), "x, row 1, column 0: None"),
        ("edge_index", torch.tensor([[0, 0.5], [1, 2]]), "edge_index, column 1: 0.5"),
        ("edge_index", torch.tensor([[0, 1], [1, 5]]), "edge_index, column 1: edge 1 -> 5"),
        ("edge_index", torch.tensor([[0, 1, -1], [1, 2, 2]]), "edge_index, column 2: edge -1 -> 2"),
        ("edge_index", torch.tensor([0, 1]), "edge_index [2]"),
        ("y", [[0], [1, 2], [0]], "y cannot be read as an array"),
        ("y", torch.eye(3), "y [3, 3]"),
        ("y", torch.tensor([0, 1]), "y [2]"),
        ("train_mask", torch.tensor([0, 1]), "train_mask is int64 [2]"),
        ("train_mask", torch.tensor([0, 1, 1]), "train_mask is int64 [3]"),
        ("train_mask", torch.eye(3).bool(), "train_mask is bool [3, 3]"),
        ("train_mask", torch.tensor([True]), "train_mask is bool [1]"),
        ("test_mask", torch.arange(3) == 0, 'ignore = ["test_mask"]'),
        ("edge_weight", torch.tensor([0.2]), 'ignore = ["edge_weight"]'),
        ("edge_weight", torch.tensor([0.2, -1.9]), "weight, row 1"),
        ("edge_attr", torch.eye(2) / 0, "features, row 0"),
    ],
)  # fmt: skip
def test_a_data_that_does_not_fit_is_refused(key: str, value: Any, place: str) -> None:
    whole = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    with refusal("data", "pyg", place):
        datasets.from_pyg(Data(**(whole | {key: value})))


TIMES = [1700000001, 1700000050, 1700000030]
LONG = [2**62 + 2 * row for row in range(3)]  # one in float64 already


@pytest.mark.parametrize("times", [TIMES, LONG], ids=["times", "64 bits"])
@pytest.mark.parametrize("kind", ["frames", "graph frames", "networkx", "pyg", "whole pyg", "members", "parties"])
def test_no_door_lets_float32_take_the_differences_of_a_feature(kind: str, times: list[int], tmp_path: Path) -> None:
    if kind == "pyg" and times == LONG:
        pytest.skip("float64 numbers have lost their differences before they are given")
    edge = {"source": ["a"], "target": ["b"]}
    nodes = pd.DataFrame({"id": list("abc"), "label": list("xyx"), "since": times})
    graph = nx.Graph([("a", "b")])
    graph.add_nodes_from((row.id, {"label": row.label, "since": row.since}) for row in nodes.itertuples())
    x = torch.tensor(times).reshape(3, 1)
    tensors = {"y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    for member in ("north", "south"):
        (tmp_path / member).mkdir()
        folder(tmp_path / member, nodes.to_csv(index=False), "source,target\na,b\n")
    small = (nodes[["id", "label"]], pd.DataFrame({"id": list("abc"), "graph": list("abc"), "since": times}))
    doors = {
        "frames": lambda: datasets.from_frames(nodes, pd.DataFrame(edge)),
        "graph frames": lambda: datasets.from_graph_frames(*small, pd.DataFrame({"source": [""], "target": [""]})[:0]),
        "networkx": lambda: datasets.from_networkx(graph),
        "pyg": lambda: datasets.from_pyg(Data(x=x.double(), **tensors)),
        "whole pyg": lambda: datasets.from_pyg(Data(x=x, **tensors)),
        "members": lambda: load("members", str(tmp_path)),
        "parties": lambda: load("parties", str(tmp_path)),
    }
    near = rf"{times[0] // 10**6}\d+"
    what = rf"row \d: .* is {near}(\.0)?, which float32 cannot tell from {near}(\.0)?, .* Subtract {times[0]}"
    with pytest.raises(DataError, match=what):
        doors[kind]()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**63 + row for row in range(3)], pa.uint64()),
        pa.array([-(2**63) + row for row in range(3)]),
        pa.array([Decimal(2**62 + row) for row in range(3)]),
        pa.array([str(10**20 + row) for row in range(3)]),
        pa.array([f"{2**62 + row}.0" for row in range(3)]),
    ],
)
def test_whole_numbers_of_any_width_keep_their_differences_or_are_refused(values: pa.Array) -> None:
    nodes = pa.table({"id": ["a", "b", "c"], "label": ["x", "y", "x"], "f": values})
    edges = pa.table({"source": ["a"], "target": ["b"]})
    with refusal("data.row", "'f'"):
        datasets.from_frames(nodes, edges)


@pytest.mark.parametrize("values", [[2**63 - 1] * 3, [-(2**63), 0, 2**63 - 1], [2**62, 2**61 + 1, 2**61]])
def test_wide_whole_numbers_that_float32_keeps_well_enough_are_features(values: list[int]) -> None:
    nodes = pa.table({"id": ["a", "b", "c"], "label": ["x", "y", "x"], "f": values})
    data = datasets.from_frames(nodes, pa.table({"source": ["a"], "target": ["b"]}))
    np.testing.assert_array_equal(data.x[:, 0], np.float32(values))


def test_features_that_are_sparse_or_trained_are_numbers_like_others() -> None:
    x, ends, y = torch.eye(3), torch.tensor([[0, 1], [1, 2]]), torch.tensor([[0], [1], [1]])
    for form in (x.to_sparse(), torch.nn.Parameter(x)):
        data = datasets.from_pyg(Data(x=form, edge_index=ends, y=y))
        held = data.x if isinstance(data.x, np.ndarray) else data.x.toarray()
        assert held.tolist() == x.tolist()


def test_a_data_of_pytorch_geometric() -> None:
    ends = torch.tensor([[0, 1, 1, 2], [1, 0, 1, 0]])
    masks = {f"{split}_mask": torch.arange(3) == i for i, split in enumerate(("train", "val", "test"))}
    data = datasets.from_pyg(Data(x=torch.eye(3), edge_index=ends, y=torch.tensor([0, 1, 1]), **masks))
    np.testing.assert_array_equal(data.edges, [[0, 0, 1, 2], [1, 2, 0, 0]])
    assert (data.classes, data.public.tolist()) == (2, np.eye(3, dtype=bool).tolist())
    del masks["val_mask"]
    masks["sens"] = torch.tensor([0.0, 1.0, -1.0])
    data = datasets.from_pyg(Data(x=torch.eye(3), edge_index=ends, y=torch.tensor([0, 1, 1]), **masks))
    assert data.public.tolist() == [[True, False, False], [False] * 3, [False, False, True]]
    assert data.sensitive.tolist() == [0, 1, -1]
    with pytest.raises(DataError, match=r"the data has no x, y"):
        datasets.from_pyg(Data(edge_index=ends))


def test_numbers_of_python_are_numbers() -> None:
    plain = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    objects = {key: np.array(value.tolist(), object) for key, value in plain.items()}
    assert content(datasets.from_pyg(Data(**objects))) == content(datasets.from_pyg(Data(**plain)))


def test_classes_of_which_hardly_any_occurs_are_refused_at_every_door(tmp_path: Path) -> None:
    """Models would have a row of weights for each."""
    rows = 3000
    y, ends = np.arange(rows) % 2, np.array([[0, 1], [1, 0]])
    y[7] = rows - 1
    nodes = pd.DataFrame({"id": range(rows), "label": y, "f": 1.0})
    edges = pd.DataFrame({"source": [0], "target": [1]})
    npz.write(replace(datasets.from_frames(nodes, edges, classes=rows), y=y), tmp_path / "mine.npz")
    doors = {
        "frames": lambda: datasets.from_frames(nodes, edges),
        "pyg": lambda: datasets.from_pyg(Data(x=np.ones((rows, 1)), y=y, edge_index=ends)),
        "npz": lambda: load("npz", str(tmp_path / "mine.npz")),
    }
    for door in doors.values():
        with pytest.raises(DataError, match=r"row 7: label 2999 would make 3,000 classes; only 3 occur among 3,000"):
            door()
    y[:] = np.arange(rows) // 2  # many, and none is empty
    nodes["label"] = y
    npz.write(datasets.from_frames(nodes, edges), tmp_path / "mine.npz")
    assert [door().classes for door in doors.values()] == [rows // 2] * 3


def test_edge_weights_are_dropped_where_they_say_nothing_or_the_user_says_so() -> None:
    plain = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    weights = torch.tensor([0.5, 2.0])
    for given, ignore in (({"edge_weight": torch.ones(2)}, ()), ({"edge_weight": weights}, ("edge_weight",))):
        weighted = datasets.from_pyg(Data(**plain, **given), ignore=ignore)
        assert content(weighted) == content(datasets.from_pyg(Data(**plain)))
    with refusal("data", "'edge_wait'"):
        datasets.from_pyg(Data(**plain, edge_weight=weights), ignore=("edge_wait",))
    club = nx.karate_club_graph()
    for node in club:
        club.nodes[node]["degree"] = club.degree(node)
    with pytest.raises(DataError, match=r'edges: edge weights are not used.*, or ignore = \["edges.weight"\]'):
        datasets.from_networkx(club, label="club")
    dropped = datasets.from_networkx(club, label="club", ignore=("weight",))
    nx.set_edge_attributes(club, 1.0, "weight")
    for options in ({}, {"ignore": ("weight",)}):
        assert content(datasets.from_networkx(club, label="club", **options)) == content(dropped)
    assert dropped.edges.shape == (2, 2 * club.number_of_edges())


def test_what_networkx_edges_have_is_refused_until_ignore_names_it() -> None:
    """No attribute is dropped in silence, and a feature of the nodes stays where one of the edges has its name."""
    club = nx.karate_club_graph()
    for node in club:
        club.nodes[node]["weight"] = float(club.degree(node))
    plain = datasets.from_networkx(nx.create_empty_copy(club), label="club")
    dates = {edge: f"2024-01-{1 + at % 28}" for at, edge in enumerate(club.edges)}
    nx.set_edge_attributes(club, dates, "date")
    with pytest.raises(DataError, match=r'edges: edge weights.* or ignore = \["edges.weight", "edges.date"\]'):
        datasets.from_networkx(club, label="club")
    with refusal("data.column-unknown"):
        datasets.from_networkx(club, label="club", ignore=("edges.weight",))
    whole = datasets.from_networkx(club, label="club", ignore=("edges.weight", "edges.date"))
    assert whole.columns == ("weight",)
    assert whole.edges.shape == (2, 2 * club.number_of_edges())
    np.testing.assert_array_equal(whole.x, plain.x)
    with refusal("data.column-named", "'edges.day'", "data.ignore"):
        datasets.from_networkx(club, label="club", ignore=("edges.day",))
    nx.set_edge_attributes(club, "bank", "source")
    with refusal("data", "'source'"):
        datasets.from_networkx(club, label="club", ignore=("edges.weight", "edges.date"))


def test_named_values_survive_in_the_config_of_a_run() -> None:
    names = {"job": ["clerk", "nurse"], "day of week": ["Mo"]}
    one = config.resolve({"data": {"name": "folder", "path": "mine", "categories": names}})
    written = tomllib.loads(config.dumps(one.plain()))
    assert written["data"]["categories"] == names
    assert config.resolve(written) == one
    with pytest.raises(TypeError, match="has no form in TOML"):
        config.dumps({"x": None})


def test_faults_of_members_are_told_by_file(tmp_path: Path) -> None:
    for member, ages in (("north", ["", "", "30"]), ("south", ["20", "", "40"])):
        (tmp_path / member).mkdir()
        rows = "".join(f"{at},{at % 2},{age}\n" for at, age in enumerate(ages))
        (tmp_path / member / "nodes.csv").write_text(f"id,label,age\n{rows}")
        (tmp_path / member / "edges.csv").write_text("source,target\n0,1\n")
    with refusal("data.row", "north/nodes.csv: row 2", "'age'", "1 more row", "south/nodes.csv: row 3", "'age'"):
        load("members", str(tmp_path))
