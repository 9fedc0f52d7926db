"""A user's own small graphs as tables, and what is refused with file and row."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

from fedweave.datasets import from_frames, from_graph_frames, load
from fedweave.datasets.graph_folder import GraphFolder, check_name_settings
from fedweave.errors import ConfigError, DataError
from fedweave.partition import Column, Random, notes_on_unused
from tests.refusals import check_facts, refusal

GRAPHS = "id,label,sens,split\nwater,wet,0,train\nsalt,dry,1,test\nair,,,\n"
# the nodes of a graph need not stand together
NODES = """id,graph,label,mass
Na,salt,metal,23
O,water,gas,16
H1,water,gas,1
Cl,salt,gas,35.5
H2,water,,1
N,air,gas,14
"""
EDGES = "source,target,label\nO,H1,single\nH2,O,single\nNa,Cl,ionic\nH1,O,single\n"


def folder(path: Path, graphs: str = GRAPHS, nodes: str = NODES, edges: str = EDGES) -> Path:
    for name, content in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
        (path / f"{name}.csv").write_text(content)
    return path


def dense(x: Any) -> np.ndarray:
    return x.toarray() if sp.issparse(x) else x


def test_graphs_worked_by_hand(tmp_path: Path) -> None:
    data = load("graphs", str(folder(tmp_path)))
    assert (data.name, data.examples, data.nodes, data.classes) == (tmp_path.name, 3, 6, 2)
    np.testing.assert_array_equal(data.graph_of, [0, 0, 0, 1, 1, 2])  # O H1 H2, Na Cl, N
    np.testing.assert_array_equal(data.y, [1, 0, -1])  # dry < wet
    np.testing.assert_array_equal(data.sensitive, [0, 1, -1])
    np.testing.assert_array_equal(data.public, [[1, 0, 0], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(data.node_labels, [0, 0, -1, 1, 0, 0])  # gas < metal
    np.testing.assert_array_equal(data.edges, [[0, 0, 1, 2, 3, 4], [1, 2, 0, 0, 4, 3]])
    np.testing.assert_array_equal(data.edge_labels, [1, 1, 1, 1, 0, 0])  # ionic < single
    np.testing.assert_array_equal(
        dense(data.x), [[1, 0, 16], [1, 0, 1], [0, 0, 1], [0, 1, 23], [1, 0, 35.5], [1, 0, 14]]
    )


def test_edges_of_small_graphs_carry_what_they_do_of_one_graph(tmp_path: Path) -> None:
    """Direction, weight, features and time are read as of a folder with one graph, whose nodes stand in that order."""
    edges = "source,target,label,order,weight,day\nO,H1,single,1,0.5,3\nH2,O,single,1,2,1\nNa,Cl,ionic,7,1,2\n"
    options = {"edge_features": ("order",), "edge_weight": "weight", "edge_time": "day", "directed": True}
    found = load("graphs", str(folder(tmp_path, edges=edges)), **options).edge_attrs
    assert found is not None
    np.testing.assert_array_equal(found.ends, [[0, 2, 3], [1, 0, 4]])
    np.testing.assert_array_equal(found.features, [[1], [1], [7]])
    assert (found.columns, found.directed) == (("order",), True)
    np.testing.assert_array_equal(found.weight, [0.5, 2, 1])
    np.testing.assert_array_equal(found.time, [3, 1, 2])
    nodes = pa.table({"id": ["O", "H1", "H2", "Na", "Cl", "N"], "label": [0, 1, 0, 1, 0, 1], "mass": np.arange(6)})
    table = pa.Table.from_pandas(pd.read_csv(tmp_path / "edges.csv"))
    one = from_frames(nodes, table, ignore=("edges.label",), **options).edge_attrs
    assert one is not None
    for name, values in one.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], values)


def test_all_features_of_edges_that_have_none_are_noted(tmp_path: Path) -> None:
    [note] = load("graphs", str(folder(tmp_path, edges="source,target\nO,H1\n")), edge_features="all").notes
    check_facts(note, "edges.csv", "data.edge_features")
    assert not load("graphs", str(tmp_path)).notes
    assert not load("graphs", str(folder(tmp_path)), edge_features="all").notes


@pytest.mark.parametrize(
    ("table", "text", "key"),
    [("graphs", "dry", "labels"), ("nodes", "metal", "node_labels"), ("edges", "ionic", "edge_labels")],
)
def test_labels_that_are_numbers_but_not_whole_are_refused_unless_listed(
    table: str, text: str, key: str, tmp_path: Path
) -> None:
    folder(tmp_path)
    file = tmp_path / f"{table}.csv"
    file.write_text(file.read_text().replace(text, "0.5"))
    number = r'To predict numbers: .* target = "number"\. .* ' if table == "graphs" else ""
    not_whole = rf"label is '0\.5', a number, but not one like 0, 1 or 2\. {number}Round or bin .* data\.{key}\."
    what = rf"{table}\.csv: row \d: {not_whole}"
    with pytest.raises(DataError, match=what):
        load("graphs", str(tmp_path))
    names = {"graphs": ("0.5", "wet"), "nodes": ("0.5", "gas"), "edges": ("0.5", "single")}[table]
    data = load("graphs", str(tmp_path), **{key: names})
    assert names in (data.labels, data.node_kinds, data.edge_kinds)
    if table != "graphs":
        with pytest.raises(DataError, match=what):
            check_name_settings(tmp_path, GraphFolder(node_labels=None if table == "nodes" else ("gas", "metal")))


def test_graphs_of_owners_are_their_clients(tmp_path: Path) -> None:
    """The column is not a feature; without one, or where a cell is empty, nothing is cut."""
    owned = "id,label,lab\nwater,wet,south\nsalt,dry,north\nair,,south\n"
    data = load("graphs", str(folder(tmp_path, owned)), owner="lab")
    assert data.owners == ("north", "south")
    cut = Column(train=1.0, val=0.0, test=0.0).cut(data, 0)
    assert cut.names == ("north", "south")
    assert [part.graphs.tolist() for part in cut.parts if part.graphs is not None] == [[1], [0, 2]]
    assert data.columns == load("graphs", str(folder(tmp_path))).columns
    with pytest.raises(DataError, match="lab"):
        load("graphs", str(folder(tmp_path, owned.replace("dry,north", "dry,"))), owner="lab")
    assert re.search(r"data\.owner", said(Random(clients=2), data))
    assert said(Column(), data) == ""
    one_left = replace(cut, names=cut.names[:1], parts=cut.parts[:1])
    assert notes_on_unused(Column(), data, one_left) == []
    with refusal("data.column-unknown", "columns:", "data.owner"):
        load("graphs", str(tmp_path))
    with pytest.raises(DataError, match="lab"):
        load("graphs", str(folder(tmp_path)), owner="lab")
    with refusal("config.column-taken"):
        load("graphs", str(tmp_path), owner="label")
    with refusal("config.no-owners"):
        Column().cut(load("graphs", str(folder(tmp_path))), 0)


def test_small_graphs_are_no_members_nodes(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    folder(tmp_path / "north")
    with refusal("data.members-graphs", 'name = "graphs", owner = "lab"'):
        load("members", str(tmp_path))


def said(partition: Any, data: Any) -> str:
    return " ".join(notes_on_unused(partition, data, partition.cut(data, 0)))


def test_tables_in_memory_are_the_same_graphs(tmp_path: Path) -> None:
    read = load("graphs", str(folder(tmp_path)))
    frames = [pd.read_csv(tmp_path / f"{name}.csv") for name in ("graphs", "nodes", "edges")]
    made = from_graph_frames(frames[0], *map(pa.Table.from_pandas, frames[1:]))
    for name in ("y", "edges", "graph_of", "sensitive", "public", "node_labels", "edge_labels"):
        np.testing.assert_array_equal(getattr(made, name), getattr(read, name))
    np.testing.assert_array_equal(dense(made.x), dense(read.x))
    assert (made.ids, made.labels, made.columns, made.name) == (read.ids, read.labels, read.columns, "frames")
    wrong = frames[2].assign(target=["H1", "O", "H1", "O"])
    with refusal("data.row", "frames/edges"):  # counted from 0
        from_graph_frames(frames[0], frames[1], wrong)


def test_a_row_index_of_pandas_is_no_column_of_small_graphs(tmp_path: Path) -> None:
    read = load("graphs", str(folder(tmp_path)))
    for name in ("graphs", "nodes", "edges"):
        frame = pd.read_csv(tmp_path / f"{name}.csv")
        frame.rename(index={0: -1}).to_parquet(tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.csv").unlink()
    assert load("graphs", str(tmp_path)).columns == read.columns


def test_labels_in_a_given_order_and_numbered_ones(tmp_path: Path) -> None:
    data = load("graphs", str(folder(tmp_path)), labels=("wet", "dry"), node_labels=("metal", "gas", "noble"))
    np.testing.assert_array_equal(data.y, [0, 1, -1])
    np.testing.assert_array_equal(dense(data.x)[3], [1, 0, 0, 23])
    (tmp_path / "n").mkdir()
    numbers = NODES.replace("metal", "2").replace("gas", "0")
    data = load("graphs", str(folder(tmp_path / "n", nodes=numbers)))
    np.testing.assert_array_equal(data.node_labels, [0, 0, -1, 2, 0, 0])
    np.testing.assert_array_equal(dense(data.x)[3], [0, 0, 1, 23])


def test_degrees_stand_in_for_features(tmp_path: Path) -> None:
    bare = "\n".join(",".join(line.split(",")[:2]) for line in NODES.splitlines())
    path = str(folder(tmp_path, nodes=bare))
    np.testing.assert_array_equal(dense(load("graphs", path).x), np.eye(3)[[2, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(dense(load("graphs", path, degrees=5).x), np.eye(5)[[2, 1, 1, 1, 1, 0]])
    with refusal("data.row", "nodes.csv", "row 3", "1"):
        load("graphs", path, degrees=2)


BROKEN = {
    "no such graph": ({"nodes": NODES + "X,fire,gas,1\n"}, r"nodes\.csv: row 8: graph 'fire' is not in graphs"),
    "no graph": ({"nodes": NODES + "X,,gas,1\n"}, r"nodes\.csv: row 8: graph is empty"),
    "a graph without nodes": ({"graphs": GRAPHS + "void,dry,,\n"}, r"graphs\.csv: row 5: graph 'void' has no node"),
    "a graph twice": ({"graphs": GRAPHS + "air,dry,,\n"}, r"graphs\.csv: row 5: id 'air' is already in row 4"),
    "between graphs": (
        {"edges": EDGES + "N,O,single\n"},
        r"edges\.csv: row 6: the edge joins 'N' and 'O' of two graphs",
    ),
    "two labels": ({"edges": EDGES + "Cl,Na,single\n"}, r"edges\.csv: row 6: the edge has another label above"),
    "a split without label": ({"graphs": GRAPHS.replace("air,,,", "air,,,val")}, r"row 4: the graph is in a split but"),
    "a further column": ({"graphs": GRAPHS.replace("sens", "age")}, r"graphs\.csv: unknown columns: age"),
    "no column graph": ({"nodes": NODES.replace("graph", "molecule")}, r"nodes\.csv: there is no column 'graph'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_refusals_name_file_and_row(what: str, tmp_path: Path) -> None:
    changed, message = BROKEN[what]
    with pytest.raises(DataError, match=message):
        load("graphs", str(folder(tmp_path, **changed)))


def test_options_are_checked(tmp_path: Path) -> None:
    path = str(folder(tmp_path))
    with refusal("data.row", "nodes.csv", "row 2", "'metal'"):
        load("graphs", path, node_labels=("gas",))
    with refusal("data.row", "edges.csv", "row 2", "'single'"):
        load("graphs", path, edge_labels=("ionic",))
    for options in ({"node_labels": ("a", "a")}, {"edge_labels": ()}, {"degrees": 0}, {"classes": 2, "labels": ("a",)}):
        with pytest.raises(ConfigError):
            load("graphs", path, **options)
    with refusal("config.missing", "[data]"):
        load("graphs")


def test_text_of_nodes_worked_by_hand(tmp_path: Path) -> None:
    nodes = "id,graph,charge\nNa,salt,plus\nCl,salt,minus\nO,water,\nN,air,plus\n"
    root = folder(tmp_path, nodes=nodes, edges="source,target\nNa,Cl\n")
    with pytest.raises(DataError, match=r"categories = \{charge = "):
        load("graphs", str(root))
    data = load("graphs", str(root), categories={"charge": ("minus", "plus")})
    np.testing.assert_array_equal(dense(data.x), [[0, 0], [0, 1], [1, 0], [0, 1]])  # O, Na, Cl, N
    assert data.columns == ("charge = minus", "charge = plus")
    with pytest.raises(ConfigError, match="names a value twice"):
        load("graphs", str(root), categories={"charge": ("plus", "plus")})


def test_a_blank_makes_no_other_member(tmp_path: Path) -> None:
    owned = "id,label,lab\nwater,wet,north\nsalt,dry,north \nair,,south\n"
    with refusal("data.row", "'north '"):
        load("graphs", str(folder(tmp_path, owned)), owner="lab")
