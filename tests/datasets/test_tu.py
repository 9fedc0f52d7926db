"""The TU text layout: a collection worked by hand, PyTorch Geometric's reader on the same files, and refusals that name
file and line."""

import lzma
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets import Dataset, tu_files
from fedweave.datasets.lookup import tu_names
from fedweave.errors import DataError
from tests.refusals import refusal

# A path 1 - 2 - 3 with a chord that is listed twice, and an edge 4 - 5; a loop at 2.
FILES = {
    "A": "2, 1\n1, 2\n3,2\n 2 ,3\n4, 5\n5, 4\n2, 2\n1, 2\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "7\n-1\n",
    "node_labels": "5\n3\n5\n6\n3\n",
    "edge_labels": "2\n2\n4\n4\n3\n3\n9\n2\n",
    "node_attributes": "0.5, 1\n1e1, 2\n-3.25, 3\n 4 , 4\n0, 5\n",
}


def folder(path: Path, without: tuple[str, ...] = (), **changed: str) -> Path:
    for stem, text in (FILES | changed).items():
        if stem not in without:
            (path / f"DS_{stem}.txt").write_text(text)
    return path


def dense(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.toarray()


def test_a_collection_worked_by_hand(tmp_path: Path) -> None:
    data = tu_files.read(folder(tmp_path), "DS")
    assert (data.name, data.nodes, data.examples, data.classes, data.example) == ("DS", 5, 2, 2, "graph")
    np.testing.assert_array_equal(data.graph_of, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(data.y, [1, 0])  # -1 < 7
    np.testing.assert_array_equal(data.edges, [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    np.testing.assert_array_equal(data.edge_labels, [0, 0, 2, 2, 1, 1])  # from 2, the lowest of the edges
    np.testing.assert_array_equal(data.node_labels, [2, 0, 2, 3, 0])  # from 3
    np.testing.assert_array_equal(dense(data.x), np.eye(4)[[2, 0, 2, 3, 0]])  # label 4 does not occur
    assert (data.columns, data.labels) == (tuple(f"label = {label}" for label in range(3, 7)), ("-1", "7"))
    assert (data.node_kinds, data.edge_kinds[:3]) == (("3", "4", "5", "6"), ("2", "3", "4"))
    with_more = tu_files.read(tmp_path, "DS", attributes=True)
    assert with_more.columns == (*data.columns, "attribute 1", "attribute 2")
    attributes = [[0.5, 1], [10, 2], [-3.25, 3], [4, 4], [0, 5]]
    np.testing.assert_array_equal(dense(with_more.x), np.hstack([np.eye(4)[[2, 0, 2, 3, 0]], attributes]))


def test_degrees_stand_in_for_labels(tmp_path: Path) -> None:
    data = tu_files.read(folder(tmp_path, without=("node_labels", "edge_labels", "node_attributes")), "DS")
    np.testing.assert_array_equal(dense(data.x), np.eye(3)[[1, 2, 1, 1, 1]])  # the loop and the repeat do not count
    assert data.columns == ("degree = 0", "degree = 1", "degree = 2")
    assert data.node_labels is None
    assert data.edge_labels is None


def test_compressed_files_and_windows_lines_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = tu_files.read(folder(tmp_path / "a"), "DS")
    for stem, text in FILES.items():
        odd = (text + "\n").replace("\n", "\r\n").encode()
        (tmp_path / "b" / f"DS_{stem}.txt.xz").write_bytes(lzma.compress(odd))
    same(plain, tu_files.read(tmp_path / "b", "DS"))


def same(a: Dataset, b: Dataset) -> None:
    for name in ("edges", "y", "graph_of", "node_labels", "edge_labels"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None)
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(dense(a.x), dense(b.x))


def test_several_labels_a_node_are_side_by_side_and_one_kind_each(tmp_path: Path) -> None:
    data = tu_files.read(folder(tmp_path, node_labels="0, 1\n1, 1\n0, 1\n1, 2\n1, 1\n"), "DS")
    np.testing.assert_array_equal(dense(data.x), [[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]])
    np.testing.assert_array_equal(data.node_labels, [0, 1, 0, 2, 1])
    assert data.columns == ("label 1 = 0", "label 1 = 1", "label 2 = 1", "label 2 = 2")
    assert data.node_kinds == ("0, 1", "1, 1", "1, 2")


def test_whole_numbers_as_numpy_and_matlab_write_them(tmp_path: Path) -> None:
    """Their `savetxt` and `save -ascii`: 1.0000000e+00; the same data, and classes called 1 and 2."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "floats").mkdir()
    plain = tu_files.read(folder(tmp_path / "plain", graph_labels="2\n1\n"), "DS")
    for stem, text in (FILES | {"graph_labels": "2\n1\n"}).items():
        rows = np.array([[float(cell) for cell in line.split(",")] for line in text.splitlines()])
        np.savetxt(tmp_path / f"floats/DS_{stem}.txt", rows, fmt="%.7e", delimiter=", ")
    floats = tu_files.read(tmp_path / "floats", "DS")
    same(plain, floats)
    assert (floats.labels, floats.columns, floats.edge_kinds) == (("1", "2"), plain.columns, plain.edge_kinds)
    folder(tmp_path / "floats", graph_labels="1.0\n2.0\n")
    assert tu_files.read(tmp_path / "floats", "DS").labels == ("1", "2")


def test_labels_far_apart_stand_for_what_occurs(tmp_path: Path) -> None:
    """Not for all numbers between them, which would take gigabytes."""
    low, high = -(2**63), 2**63 - 1
    kinds = {"node_labels": f"0\n{low}\n0\n{high}\n0\n", "edge_labels": "0\n0\n2000000000\n2000000000\n7\n7\n9\n0\n"}
    data = tu_files.read(folder(tmp_path, **kinds), "DS")
    assert data.columns == data_columns(data.node_kinds)
    assert data.node_kinds == (f"{low}", "0", f"{high}")
    np.testing.assert_array_equal(data.node_labels, [1, 0, 1, 2, 1])
    np.testing.assert_array_equal(dense(data.x), np.eye(3)[[1, 0, 1, 2, 1]])
    assert data.edge_kinds == ("0", "7", "9", "2000000000")  # a loop's, too
    np.testing.assert_array_equal(data.edge_labels, [0, 0, 3, 3, 1, 1])
    wide = tu_files.read(folder(tmp_path, node_labels=f"0, 1\n{low}, 2\n0, 1\n0, {high}\n0, 1\n"), "DS")
    assert wide.columns == (f"label 1 = {low}", "label 1 = 0", "label 2 = 1", "label 2 = 2", f"label 2 = {high}")
    folder(tmp_path, graph_labels=f"{low}\n{high}\n")
    assert tu_files.read(tmp_path, "DS").labels == (f"{low}", f"{high}")


def data_columns(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"label = {kind}" for kind in kinds)


@pytest.mark.often("imdb-binary-IMDB-BINARY")
@pytest.mark.parametrize(("name", "own_name"), [("proteins", "PROTEINS"), ("imdb-binary", "IMDB-BINARY")])
def test_the_same_as_pyg_reads(name: str, own_name: str, data_root: Path, tmp_path: Path) -> None:
    if not tu_names(data_root / name, own_name):
        pytest.skip(f"{own_name} is not in {data_root}; set FEDWEAVE_DATA to the folder of data sets")
    for path in (data_root / name).glob(f"{own_name}_*"):  # PyG reads plain text only
        text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        (tmp_path / path.name.removesuffix(".xz")).write_bytes(text)
    as_pyg_reads(tmp_path, own_name)


def test_edge_labels_and_gaps_the_same_as_pyg_reads(tmp_path: Path) -> None:
    as_pyg_reads(folder(tmp_path, edge_labels="2\n2\n4\n4\n3\n3\n2\n2\n"), "DS")


def as_pyg_reads(path: Path, name: str) -> None:
    from torch_geometric.io.tu import read_tu_data

    data, (pyg, _, sizes) = tu_files.read(path, name), read_tu_data(str(path), name)
    first = np.concatenate([[0], np.cumsum(np.bincount(data.graph_of))[:-1]])
    edges = pyg.edge_index.numpy() + first[data.graph_of[data.edges[0]]]  # PyG numbers each graph's nodes from 0
    np.testing.assert_array_equal(edges, data.edges)
    np.testing.assert_array_equal(pyg.y.numpy(), data.y)
    if pyg.x is not None:
        np.testing.assert_array_equal(pyg.x[:, sizes["num_node_attributes"] :].numpy(), dense(data.x))
    if pyg.edge_attr is not None:
        np.testing.assert_array_equal(pyg.edge_attr.numpy().argmax(1), data.edge_labels)


BROKEN = {
    "an edge to nowhere": ({"A": "1, 2\n2, 1\n1, 6\n"}, r"DS_A\.txt: line 3: edge 1, 6 names a node .* 1\.\.5"),
    "counted from 0": ({"A": "0, 1\n1, 0\n"}, r"DS_A\.txt: line 1: edge 0, 1 names a node"),
    "between graphs": ({"A": "1, 2\n2, 1\n3, 4\n4, 3\n"}, r"DS_A\.txt: line 3: edge 3, 4 joins graphs 1 and 2"),
    "one direction": ({"A": "1, 2\n2, 1\n2, 3\n"}, r"DS_A\.txt: line 3: edge 2, 3 lacks its reverse"),
    "three numbers": ({"A": "1, 2, 3\n"}, r"DS_A\.txt: line 1: 3 numbers instead of 2"),
    "a ragged line": ({"A": "1, 2\n2\n"}, r"DS_A\.txt: line 2: Expected 2 columns, got 1"),
    "no number": ({"A": "1, 2\n2, x\n"}, r"DS_A\.txt: line 2: .*invalid value 'x'"),
    "an empty line": ({"graph_labels": "1\n\n2\n"}, r"DS_graph_labels\.txt: line 2: .*invalid value ''"),
    "graphs from 0": ({"graph_indicator": "0\n0\n1\n1\n1\n"}, r"indicator\.txt: line 1: graph 0 at the start"),
    "graphs mixed": ({"graph_indicator": "1\n2\n1\n2\n2\n"}, r"indicator\.txt: line 3: graph 1 after graph 2"),
    "no nodes": ({"graph_indicator": ""}, r"indicator\.txt: the file is empty"),
    "labels of some graphs": (
        {"graph_indicator": "1\n1\n1\n4\n4\n", "graph_labels": "1\n2\n3\n"},
        r"labels\.txt: it has 3 lines, but there are 2 graphs in DS_graph_indicator\.txt, numbered up to 4",
    ),
    "times and labels": ({"node_labels": "0, 5\n0, 5, 7, 6\n0, 5\n0, 5\n0, 5\n"}, r"labels\.txt: line 2: .* temporal"),
    "whole numbers and others": ({"graph_labels": "1.0\n1.5\n"}, r"graph_labels\.txt: line 2: 1\.5 .*regression"),
    "beyond floats": ({"node_labels": "0\n0.0\n9e15\n9.1e15\n0\n"}, r"node_labels\.txt: line 4: 9\.1e\+15 "),
    "no number in a float file": ({"A": "1.0, 2.0\n2.0, nan\n"}, r"DS_A\.txt: line 2: nan"),
    "numbers to predict": ({"graph_labels": "0.37\n1.5\n"}, r"graph_labels\.txt: line 1: .*0\.37.*regression"),
    "labels missing": ({"graph_labels": "1\n"}, r"labels\.txt: it has 1 line, but there are 2 graphs in DS_graph_ind"),
    "two labels a graph": ({"graph_labels": "1, 2\n1, 2\n"}, r"DS_graph_labels\.txt: line 1: 2 numbers instead of one"),
    "kinds missing": ({"node_labels": "1\n2\n"}, r"node_labels\.txt: it has 2 lines, but there are 5 nodes"),
    "edge kinds missing": ({"edge_labels": "1\n"}, r"edge_labels\.txt: it has 1 line, but there are 8 lines in DS_A"),
    "two kinds of an edge": ({"edge_labels": "2\n2\n4\n4\n3\n7\n9\n2\n"}, r"line 5: the label of edge 4, 5 .* line 6"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_refusals_name_file_and_line(what: str, tmp_path: Path) -> None:
    changed, message = BROKEN[what]
    with pytest.raises(DataError, match=message):
        tu_files.read(folder(tmp_path, **changed), "DS")


@pytest.mark.parametrize(
    ("labels", "y", "said"),
    [
        ("7\n5\n-1\n", [1, 0], "1 graph of 3 left out, without a node: 2"),
        ("7\n5\n-1\n5\n", [1, 0], "2 graphs of 4 left out, without a node: 2, 4"),
        ("7\n-1\n", [1, 0], "DS_graph_indicator.txt leaves out numbers up to 3; the labels are taken in order"),
    ],
)
def test_numbers_of_graphs_may_have_gaps(tmp_path: Path, labels: str, y: list[int], said: str) -> None:
    path = folder(tmp_path, without=("node_attributes",), graph_indicator="1\n1\n1\n3\n3\n", graph_labels=labels)
    data = tu_files.read(path, "DS")
    assert (data.y.tolist(), data.classes, data.ids, data.notes) == (y, 2, ("1", "3"), (said,))
    np.testing.assert_array_equal(data.graph_of, [0, 0, 0, 1, 1])
    (tmp_path / "DS_A.txt").write_text("3, 4\n4, 3\n")
    (tmp_path / "DS_edge_labels.txt").unlink()
    with refusal("data.line", "3", "4", "1", "3"):
        tu_files.read(path, "DS")


def test_attributes_are_numbers_and_there(tmp_path: Path) -> None:
    broken = folder(tmp_path, node_attributes="1\n2\nnan\n4\n5\n")
    tu_files.read(broken, "DS")  # unused ones are not looked at
    with refusal("data.line", "node_attributes.txt", "line 3"):
        tu_files.read(broken, "DS", attributes=True)
    folder(tmp_path, node_attributes="1, 1700000001\n2, 1700000001\n3, 1700000030\n4, 1700000002\n5, 1700000001\n")
    with refusal("data.line", "attributes.txt: line 5: attribute 2 is 1700000001.0, which float32"):
        tu_files.read(broken, "DS", attributes=True)
    folder(tmp_path, node_attributes="".join(f"{row}, {2**62 + 2 * row}\n" for row in range(5)))
    with pytest.raises(DataError, match=rf"line 2: attribute 2 is {2**62 + 2}, which .* Subtract {2**62} in every"):
        tu_files.read(broken, "DS", attributes=True)
    (tmp_path / "DS_node_attributes.txt").unlink()
    with refusal("data.attributes", "attributes = true", "DS_node_attributes.txt"):
        tu_files.read(broken, "DS", attributes=True)


def test_missing_damaged_and_doubled_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with refusal("data.file-missing", "DS_graph_labels.txt nor DS_graph_labels.txt.xz"):
        tu_files.read(folder(tmp_path / "a", without=("graph_labels",)), "DS")
    whole = lzma.compress(FILES["A"].encode())
    (folder(tmp_path) / "DS_A.txt.xz").write_bytes(whole)
    with refusal("data.file-twice", "DS_A.txt and DS_A.txt.xz"):
        tu_files.read(tmp_path, "DS")
    (tmp_path / "DS_A.txt").unlink()
    for damaged in (whole[:-20], whole[:12] + bytes([whole[12] ^ 255]) + whole[13:], b"1, 2\n"):
        (tmp_path / "DS_A.txt.xz").write_bytes(damaged)
        with refusal("data.damaged", "DS_A.txt.xz:"):
            tu_files.read(tmp_path, "DS")
