"""The .npz layout: a round trip, and every refusal."""

import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets import Dataset, npz
from fedweave.datasets.base import to_undirected
from fedweave.datasets.check import check
from fedweave.errors import DataError
from tests.refusals import refusal

Arrays = dict[str, np.ndarray]


def path_graph() -> Dataset:
    """0 - 1 - 2 - 3 with two features, two classes, node 3 unlabeled."""
    return Dataset(
        name="path",
        x=sp.csr_matrix(np.array([[1, 0], [0, 2], [3, 4], [0, 0]], np.float32)),
        edges=np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]),
        y=np.array([0, 1, 1, -1]),
        classes=2,
        sensitive=np.array([0, 1, -1, 0]),
        public=np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], bool),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    npz.write(path_graph(), tmp_path / "path.npz")
    return tmp_path / "path.npz"


def test_round_trip_keeps_everything(file: Path) -> None:
    data, back = path_graph(), npz.read(file, "path")
    assert (back.name, back.classes, back.nodes, back.features) == ("path", 2, 4, 2)
    np.testing.assert_array_equal(sp.csr_matrix(back.x).toarray(), sp.csr_matrix(data.x).toarray())
    for key in ("edges", "y", "sensitive", "public"):
        np.testing.assert_array_equal(getattr(back, key), getattr(data, key))
        assert getattr(back, key).dtype == getattr(data, key).dtype


def test_dense_features_are_read_as_they_are(file: Path) -> None:
    x = sp.csr_matrix(path_graph().x).toarray()
    with np.load(file) as archive:
        arrays = dict(archive)
    drop("x_data", "x_indices", "x_indptr", "x_shape")(arrays)
    np.savez(file, **arrays | {"x": x})
    np.testing.assert_array_equal(npz.read(file, "path").x, x)
    whole = np.array([[2**62, 0], [2**62 + 2, 0], [0, 0], [0, 0]])  # which float32 cannot tell apart
    for other in (x.astype(float), x[:3], x[:, :0], x.ravel(), whole, np.where(x == 4, np.nan, x)):
        np.savez(file, **arrays | {"x": other})
        with refusal("data"):
            npz.read(file, "path")
    np.savez(file, **arrays | {"x": x, "x_data": x.ravel()})
    with refusal("data", "x_data"):
        npz.read(file, "path")


def test_the_last_of_many_edges_are_checked() -> None:
    """A path of so many nodes that its edges are checked in pieces."""
    n = 600_000
    ends = np.stack([np.arange(n - 1), np.arange(1, n)])
    good = Dataset("path", np.zeros((n, 1), np.float32), to_undirected(ends, n), np.zeros(n, np.int64), 1)
    assert check(good, "path") is good
    edges, last = good.edges, 2 * n - 3
    for column, (source, target) in {last: (n - 1, n - 1), last - 1: (n - 2, 5), 8: (4, 9)}.items():
        bad = edges.copy()
        bad[:, column] = source, target
        with refusal("data.edge", f"column {column}"):
            check(replace(good, edges=bad), "path")
    x = np.zeros((n, 2), np.float32)
    x[n - 1, 1] = np.inf
    with refusal("data", f"row {n - 1}, column 1"):
        check(replace(good, x=x), "path")


def test_same_dataset_same_file_bytes(file: Path, tmp_path: Path) -> None:
    npz.write(npz.read(file, "path"), tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == file.read_bytes()


def test_ids_are_kept_and_are_text_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "named.npz"
    npz.write(replace(path_graph(), ids=("7", "Zoë", "c", "d")), path)
    assert npz.read(path, "named").ids == ("7", "Zoë", "c", "d")
    with np.load(path) as held:
        arrays = dict(held)
    for ids, told in (
        (np.array(["a", "b", "a", "d"]), "'a' stands there 2 times"),
        (np.array(["a", "", "c", "d"]), "row 1 is empty"),
        (np.array(["a", "b"]), r"shape \(2,\), not text and \(4,\)"),
        (np.arange(4), "dtype int64"),
    ):
        np.savez(path, **(arrays | {"ids": ids}))
        with pytest.raises(DataError, match=told):
            npz.read(path, "named")


NAMED = {"columns": ("age", "Größe"), "labels": ("good", "bad", "ugly"), "groups": ("f", "m")}


def test_names_are_kept_and_say_how_many_classes_there_are(tmp_path: Path) -> None:
    path = tmp_path / "named.npz"
    npz.write(replace(path_graph(), **NAMED), path)
    back = npz.read(path, "named")
    assert {key: getattr(back, key) for key in NAMED} == NAMED
    assert back.classes == 3
    with np.load(path, allow_pickle=False) as held:
        arrays = dict(held)
    for key, names, told in (
        ("feature_names", ["age"], r"feature_names has dtype .* shape \(1,\), not text and \(2,\).*each column of x"),
        ("feature_names", ["age", "age"], r"feature_names: 'age' stands there 2 times"),
        ("feature_names", ["age", ""], r"feature_names, row 1 is empty"),
        ("feature_names", [1, 2], r"feature_names has dtype int64"),
        ("label_names", ["good"], r"label_names has .* \(1,\), not text and \(2,\)\. .* each number in y, from 0"),
        ("group_names", ["f"], r"group_names has .*each number in sens"),
        ("group_names", np.array(["f", "m"], object), "pickled objects"),
    ):
        np.savez(path, **(arrays | {key: np.array(names)}))
        with pytest.raises(DataError, match=told):
            npz.read(path, "named")


def put(key: str, at: Any, value: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[key][at] = value

    return change


def swap(key: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[key] = make(arrays[key])

    return change


def drop(*keys: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        for key in keys:
            del arrays[key]

    return change


REFUSALS = {
    # what is done to the file: (change, what the message says)
    "nan": (put("x_data", 1, np.nan), "x, row 1, column 1: nan is not finite"),
    "infinite": (put("x_data", 3, np.inf), "x, row 2, column 1: inf is not finite"),
    "x float64": (swap("x_data", lambda a: a.astype(float)), "x_data is float64, not float32"),
    "indices float": (swap("x_indices", lambda a: a.astype(float)), "x_indices is float64"),
    "x_shape float": (swap("x_shape", lambda a: a.astype(float)), "x_shape is float64"),
    "x_shape short": (swap("x_shape", lambda a: a[:1]), "x_shape has shape (1,)"),
    "x_shape negative": (put("x_shape", 1, -2), "not a CSR matrix"),
    "x_shape rows": (put("x_shape", 0, 5), "not a CSR matrix"),
    "rows missing": (
        lambda a: (put("x_shape", 0, 3)(a), swap("x_indptr", lambda p: np.array([0, 1, 2, 4], p.dtype))(a)),
        "not csr_matrix float32 with 4 rows",
    ),
    "no features": (
        lambda a: a.update(
            x_data=a["x_data"][:0], x_indices=a["x_indices"][:0], x_indptr=a["x_indptr"] * 0, x_shape=np.array([4, 0])
        ),
        "there are no features",
    ),
    "indptr falls": (put("x_indptr", slice(1, 3), [3, 2]), "x, row 1: indptr falls from 3 to 2"),
    "indptr starts late": (put("x_indptr", 0, 1), "not a CSR matrix"),
    "column too large": (put("x_indices", 2, 2), "x, row 2: column 2 is not in 0..1"),
    "column negative": (put("x_indices", 0, -1), "x, row 0: column -1 is not in 0..1"),
    "column repeated": (put("x_indices", 3, 0), "x, row 2: column indices are repeated"),
    "edge to nowhere": (put("edge_index", (1, 5), 4), "column 5: edge 3 -> 4 names a node that is not in 0..3"),
    "edge negative": (put("edge_index", (0, 0), -1), "column 0: edge -1 -> 1 names a node"),
    "self loop": (put("edge_index", (1, 2), 1), "column 2: edge 1 -> 1 is a self loop"),
    "edge twice": (put("edge_index", (1, 2), 0), "column 2: edge 1 -> 0 is listed twice"),
    "edges unsorted": (swap("edge_index", lambda a: a[:, ::-1]), "column 1: edge 2 -> 3 is out of order"),
    "one direction": (swap("edge_index", lambda a: a[:, :5]), "column 4: edge 2 -> 3 lacks its reverse"),
    "edges int32": (swap("edge_index", lambda a: a.astype(np.int32)), "edge_index is int32, not int64"),
    "edges transposed": (swap("edge_index", lambda a: a.T), "edge_index has shape (6, 2)"),
    "label below -1": (put("y", 2, -7), "y, row 2: label -7 is not in 0..1"),
    "label float": (swap("y", lambda a: a.astype(float)), "y is float64, not int64"),
    "label 2-d": (swap("y", lambda a: a[:, None]), "y has shape (4, 1)"),
    "no labels": (swap("y", lambda a: a * 0 - 1), "no node has a label"),
    "no nodes": (
        lambda a: a.update(
            y=a["y"][:0],
            x_data=a["x_data"][:0],
            x_indices=a["x_indices"][:0],
            x_indptr=a["x_indptr"][:1],
            x_shape=np.array([0, 2]),
            **{key: a[key][:0] for key in npz.SPLIT},
        ),
        "no nodes",
    ),
    "sens short": (swap("sens", lambda a: a[:3]), "sens has shape (3,), not (4)"),
    "sens below -1": (put("sens", 1, -2), "sens, row 1: -2 is below 0"),
    "sens float": (swap("sens", lambda a: a.astype(float)), "sens is float64"),
    "split out of range": (put("val_idx", 0, 4), "val_idx, row 0: node 4 is not in 0..3"),
    "split overlaps": (put("val_idx", 0, 0), "row 0: the node is in two of train, val and test"),
    "split unlabeled": (put("test_idx", 0, 3), "row 3: the node has no label"),
    "split incomplete": (drop("val_idx"), "the split is incomplete"),
    "arrays missing": (drop("y", "edge_index"), "missing arrays: edge_index, y"),
    "array unknown": (lambda a: a.update(sensitive=a["sens"]), "unknown arrays: sensitive"),
}


def test_times_are_not_sent_through_float32(tmp_path: Path) -> None:
    """Storing them as float32, the remedy for float64, would make one value of those of a column."""
    times = np.stack([1.7e9 + 10 * np.arange(6.0), np.linspace(0, 1, 6)], axis=1)
    x = sp.csr_matrix(times)
    arrays = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    arrays |= {"edge_index": np.empty((2, 0), np.int64), "y": np.array([0, 1, 0, 1, 0, 1])}
    path = tmp_path / "times.npz"
    np.savez(path, **arrays)
    with refusal("data", "column 0", "1700000010.0", "1700000000.0"):
        npz.read(path, "times")
    whole = sp.csr_matrix(2**62 + 2 * np.arange(6)[:, None])  # one in float64 already
    parts = {"x_data": whole.data, "x_indices": whole.indices, "x_indptr": whole.indptr}
    np.savez(path, **arrays | parts | {"x_shape": np.array(whole.shape)})
    with pytest.raises(DataError, match=rf"x_data: a number in column 0 is {2**62 + 2}, .*Subtract {2**62} in every"):
        npz.read(path, "times")
    x = sp.csr_matrix(times - [1.7e9, 0])
    np.savez(path, **arrays | {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr})
    with pytest.raises(DataError, match=r"x_data is float64, not float32.*astype"):
        npz.read(path, "times")
    np.savez(path, **arrays | {"x_data": x.data.astype("f4"), "x_indices": x.indices, "x_indptr": x.indptr})
    np.testing.assert_array_equal(npz.read(path, "times").x.toarray(), (times - [1.7e9, 0]).astype("f4"))


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_arrays_are_refused(case: str, file: Path) -> None:
    change, what = REFUSALS[case]
    with np.load(file) as held:
        arrays = {key: held[key].copy() for key in held.files}
    change(arrays)
    np.savez(file, **arrays)
    with pytest.raises(DataError, match=rf"^{re.escape(str(file))}: .*{re.escape(what)}"):
        npz.read(file, "path")


def _lying_header(file: Path) -> None:
    """An array that claims 2^60 rows."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<i8", "fortran_order": False, "shape": (2**60,)})
    with zipfile.ZipFile(file) as held:
        members = {name: held.read(name) for name in held.namelist()}
    members["y.npy"] = head.getvalue()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _pickled(file: Path) -> None:
    with np.load(file) as held:
        arrays = {key: held[key] for key in held.files}
    np.savez(file, **(arrays | {"y": np.array([{"a": 1}, None, 2, 3], object)}))


def _flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    at = content.find(b"x_data.npy") + 30
    content[at : at + 20] = bytes(255 - byte for byte in content[at : at + 20])
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda file: file.write_bytes(b""), "truncated or damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:200]), "truncated or damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:-30]), "truncated or damaged"),
        (lambda file: file.write_bytes(b"hello, this is text"), "pickled objects or is not an archive"),
        (lambda file: np.save(file.open("wb"), np.zeros(3)), "a single array"),
        (_flipped, "truncated or damaged"),
        (_lying_header, "truncated or damaged"),
        (_pickled, "pickled objects"),
    ],
    ids=["empty", "truncated", "tail missing", "text", "npy", "flipped bytes", "lying header", "pickle"],
)
def test_damaged_files_are_refused(damage: Callable[[Path], None], what: str, file: Path) -> None:
    damage(file)
    with refusal("data", f"{file}: ", what):
        npz.read(file, "path")


def test_check_accepts_dense_features_and_no_edges() -> None:
    data = replace(path_graph(), x=np.ones((4, 2), np.float32), edges=np.zeros((2, 0), np.int64))
    assert check(data, "here") is data
