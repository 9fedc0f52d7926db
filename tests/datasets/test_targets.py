"""Numbers and several labels, the same from every door: tables, frames, archives, PyTorch Geometric, TU, networkx."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

from fedweave.core.target import scale_of
from fedweave.datasets import Dataset, from_frames, from_graph_frames, from_networkx, from_pyg, load
from fedweave.errors import FedweaveError
from tests.refusals import refusal

NAN = float("nan")
NUMBERS = np.array([[1.5, 10.0], [NAN, 20.0], [-3.0, NAN], [0.0, 40.0]])
LABELS = np.array([[1, 0], [-1, 1], [0, -1], [1, 1]])
EDGES = {"source": ["a", "b", "c"], "target": ["b", "c", "d"]}
F = [0.5, 1.0, 2.0, 4.0]
PATH = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
Read = Callable[[Path, np.ndarray, str], Dataset]


def cells(y: np.ndarray) -> list[list[Any]]:
    """The two columns of `y`, None at gaps."""
    return [[None if value != value or (y.dtype.kind == "i" and value < 0) else value for value in own] for own in y.T]


def of_frames(path: Path, y: np.ndarray, target: str) -> Dataset:
    one, two = cells(y)
    nodes = {"id": list("abcd"), "f": F, "one": one, "two": two}
    return from_frames(pa.table(nodes), pa.table(EDGES), target=target, targets=("one", "two"))


def of_csv(path: Path, y: np.ndarray, target: str) -> Dataset:
    """Gaps in other programs' words for them."""
    rows = zip("abcd", F, *cells(y), strict=True)
    said = "".join(
        f"{name},{f},{'NA' if one is None else one},{'' if two is None else two}\n" for name, f, one, two in rows
    )
    (path / "nodes.csv").write_text(f"id,f,one,two\n{said}")
    (path / "edges.csv").write_text("source,target\na,b\nb,c\nc,d\n")
    return load("folder", str(path), target=target, targets=("one", "two"))


def of_parquet(path: Path, y: np.ndarray, target: str) -> Dataset:
    one, two = cells(y)
    pq.write_table(pa.table({"id": list("abcd"), "two": two, "one": one, "f": F}), path / "nodes.parquet")
    pq.write_table(pa.table(EDGES), path / "edges.parquet")
    return load("folder", str(path), target=target, targets=("one", "two"))


def of_archive(path: Path, y: np.ndarray, target: str) -> Dataset:
    held = of_frames(path, y, target).save(path / "data.npz")
    return load("npz", str(held), target=target)


def of_pyg(path: Path, y: np.ndarray, target: str) -> Dataset:
    wide = torch.from_numpy(y)
    if target == "labels":
        wide = torch.where(wide < 0, NAN, wide.double())  # as MoleculeNet has them
    data = Data(x=torch.tensor(F)[:, None], edge_index=torch.from_numpy(PATH), y=wide)
    return from_pyg(data, target=target, targets=("one", "two"))


def of_networkx(path: Path, y: np.ndarray, target: str) -> Dataset:
    graph = nx.path_graph(4)
    for node, f, one, two in zip(graph, F, *cells(y), strict=True):
        graph.nodes[node].update({"f": f} | {"one": one} | ({} if two is None else {"two": two}))
    return from_networkx(graph, target=target, targets=("one", "two"))


@pytest.mark.parametrize("read", [of_frames, of_csv, of_parquet, of_archive, of_pyg, of_networkx])
@pytest.mark.parametrize(("y", "target"), [(NUMBERS, "number"), (LABELS, "labels")])
def test_every_door_reads_the_same(tmp_path: Path, read: Read, y: np.ndarray, target: str) -> None:
    data = read(tmp_path, y, target)
    assert (data.target, data.outputs, data.classes, data.targets) == (target, 2, 0, ("one", "two"))
    assert data.y.dtype == y.dtype
    np.testing.assert_array_equal(data.y, y)
    assert data.features == 1  # the targets are not features
    assert data.has_label.all()
    scale = [[0, 0], [1, 1], [0, 0]]
    assert (None if data.target_scale is None else data.target_scale.tolist()) == (
        scale if target == "number" else None
    )


def test_small_graphs_of_pyg_have_a_row_each() -> None:
    """As PyG's MoleculeNet: y [1, t] per graph, NaN at gaps."""
    ends = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=ends, y=torch.tensor([row])) for row in ([1.0, NAN], [0.0, 1.0], [NAN, 0.0])
    ]
    assert from_pyg(graphs, target="labels").y.tolist() == [[1, -1], [0, 1], [-1, 0]]
    one = [Data(x=torch.ones(2, 1), edge_index=ends, y=torch.tensor([[value]])) for value in (0.5, -1.5)]
    assert from_pyg(one, target="number").y.tolist() == [[0.5], [-1.5]]
    with refusal("data", 'target = "number"'):
        from_pyg(one)
    with refusal("data.target", "2 values", 'target = "labels"'):
        from_pyg(graphs)


def test_a_number_may_stand_in_the_column_label() -> None:
    nodes = pa.table({"id": list("abcd"), "f": F, "price": [1.5, 2.5, None, 4.0]})
    data = from_frames(nodes, pa.table(EDGES), target="number", columns={"label": "price"})
    assert (data.targets, data.y[:, 0].tolist()[:2]) == (("price",), [1.5, 2.5])
    assert data.has_label.tolist() == [True, True, False, True]


def test_labels_may_name_the_columns() -> None:
    graphs = pa.table({"id": ["g", "h"], "toxic": [True, False], "active": ["NA", "1"]})
    nodes = pa.table({"id": list("abcd"), "graph": ["g", "g", "h", "h"], "f": F})
    edges = pa.table({"source": ["a", "c"], "target": ["b", "d"]})
    data = from_graph_frames(graphs, nodes, edges, labels=("toxic", "active"))
    assert (data.target, data.targets, data.y.tolist()) == ("labels", ("toxic", "active"), [[1, -1], [0, 1]])
    again = from_graph_frames(graphs, nodes, edges, target="labels", targets=("toxic", "active"))
    assert again.y.tolist() == data.y.tolist()


def test_edges_are_rated() -> None:
    edges = pa.table(EDGES | {"label": [5, 3, None], "split": ["train", "test", None]})
    data = from_frames(pa.table({"id": list("abcd"), "f": F}), edges, task="edges", target="number")
    assert (data.example, data.target, data.y[:2, 0].tolist()) == ("edge", "number", [5, 3])
    assert data.public is not None
    assert data.public.argmax(0).tolist() == [0, 2, 0]


def test_an_archive_keeps_rated_edges(tmp_path: Path) -> None:
    edges = pa.table(EDGES | {"label": [5.0, 3.5, 1.0]})
    data = from_frames(pa.table({"id": list("abcd"), "f": F}), edges, task="edges", target="number", target_log=True)
    data.save(tmp_path / "rated.npz")
    again = load(**dict(data.named or {}))
    np.testing.assert_array_equal(again.y, data.y)
    assert again.target_scale is not None
    assert again.target_scale.tolist() == [[0], [1], [1]]


def tu(path: Path, attributes: str) -> Path:
    for name, text in {
        "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
        "graph_indicator": "1\n1\n2\n2\n",
        "graph_attributes": attributes,
    }.items():
        (path / f"DS_{name}.txt").write_text(text)
    return path


def test_tu_has_numbers_in_graph_attributes(tmp_path: Path) -> None:
    data = load("tu", str(tu(tmp_path, "0.5, nan\n-2e1, 3\n")), target="number", targets=("a", "b"))
    np.testing.assert_array_equal(data.y, [[0.5, NAN], [-20, 3]])
    assert (data.targets, data.notes) == (("a", "b"), ())
    with refusal("data.targets", 'target = "number"'):
        load("tu", str(tmp_path))


def test_members_have_the_same_targets(tmp_path: Path) -> None:
    for member, y in (("east", "1.5"), ("west", "NA")):
        (tmp_path / member).mkdir()
        (tmp_path / member / "nodes.csv").write_text(f"id,f,y\na,1,{y}\nb,2,7\n")
        (tmp_path / member / "edges.csv").write_text("source,target\na,b\n")
    data = load("members", str(tmp_path), target="number", targets=("y",))
    np.testing.assert_array_equal(data.y[:, 0], [1.5, 7, NAN, 7])


REFUSED: dict[str, tuple[list[object], dict[str, Any], str, tuple[str, ...]]] = {
    "text": (["1.5", "much", "2", "3"], {}, "data.target", ("row 1", "'y' is 'much'")),
    "dates": (
        ["2024-01-01", "2024-01-02", "2", "3"],
        {},
        "data.target",
        ("row 0", "2024-01-01", "A date is not a number"),
    ),
    "decimal commas": (["1,5", "2,5", "2", "3"], {}, "data.target", ("row 0", "'1,5'", "decimal points")),
    "infinite": ([1.0, float("inf"), 2.0, 3.0], {}, "data.target", ("row 1", "inf, which is not finite")),
    "infinite as text": (["1", "-inf", "2", "3"], {}, "data.target", ("row 1", "-inf, which is not finite")),
    "no logarithm": ([1.0, 0.0, 2.0, None], {"target_log": True}, "data.target", ("row 1", "0, which", "target_log")),
    "lists": ([[1.0], [2.0], [3.0], [4.0]], {}, "data.target", ("'y'",)),
    "nothing": ([None, None, None, None], {}, "data.target", ("empty in every row",)),
    "no label": ([0, 1, 2, 1], {"target": "labels"}, "data.target", ("row 2", "2, which is not 0 or 1")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_number_is_refused(case: str) -> None:
    y, more, code, facts = REFUSED[case]
    nodes = pa.table({"id": list("abcd"), "f": F, "y": y})
    with refusal(code, "nodes", *facts):
        from_frames(nodes, pa.table(EDGES), **({"target": "number", "targets": ("y",)} | more))


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"target": "amount"}, "config.value"),
    "scaled in another way": ({"target": "number", "target_normalize": "minmax"}, "config.value"),
    "twice": ({"target": "number", "targets": ("y", "y")}, "config.value"),
    "none": ({"target": "number", "targets": ()}, "config.value"),
    "of a class": ({"targets": ("y",)}, "config.conflict"),
    "logarithms of a class": ({"target_log": True}, "config.idle"),
    "logarithms of labels": ({"target": "labels", "targets": ("y",), "target_log": True}, "config.idle"),
    "scale of labels": ({"target": "labels", "targets": ("y",), "target_normalize": "all"}, "config.idle"),
    "no columns": ({"target": "labels"}, "config.missing"),
    "classes": ({"target": "number", "classes": 2}, "config.conflict"),
    "names of classes": ({"target": "number", "labels": ("a", "b")}, "config.conflict"),
    "favorable": ({"target": "number", "favorable": "1"}, "config.conflict"),
    "a feature": ({"target": "number", "targets": ("y",), "categories": {"y": ("a",)}}, "config.conflict"),
    "left out": ({"target": "number", "targets": ("y",), "ignore": ("y",)}, "config.conflict"),
    "a feature with gaps": ({"target": "number", "targets": ("y",), "missing": ("y",)}, "config.conflict"),
    "the owner": ({"target": "number", "targets": ("y",), "owner": "y"}, "config.conflict"),
    "absent": ({"target": "number", "targets": ("z",)}, "data.column-missing"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_mean_nothing_are_refused(case: str) -> None:
    settings, code = SETTINGS[case]
    nodes = pa.table({"id": list("abcd"), "f": F, "y": [1, 0, 1, 0], "label": [0, 1, 1, 0]})
    with pytest.raises(FedweaveError) as error:
        from_frames(nodes, pa.table(EDGES), **settings)
    assert error.value.code == code, error.value


ARCHIVES: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "fractions of classes": (np.array([0.5, 1, 2, 3]), {}, "data.target", 'target = "number"'),
    "several classes": (np.zeros((4, 2), np.int64), {}, "data.target", 'target = "labels"'),
    "text": (np.array(list("abcd")), {"target": "number"}, "data.target", "y is <U1"),
    "infinite": (np.array([0.5, np.inf, 2, 3]), {"target": "number"}, "data.target", "row 1"),
    "no label": (np.array([[0], [3], [1], [1]]), {"target": "labels"}, "data.target", "row 1"),
    "other names": (np.ones((4, 2)), {"target": "number", "targets": ("a",)}, "data.column-named", "2 columns"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_are_refused_likewise(tmp_path: Path, case: str) -> None:
    y, settings, code, fact = ARCHIVES[case]
    x = sp.csr_matrix(np.array(F, np.float32)[:, None])
    arrays = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    np.savez(tmp_path / "data.npz", edge_index=PATH, y=y, **arrays)
    with refusal(code, fact):
        load("npz", str(tmp_path / "data.npz"), **{"target": "class"} | settings)


def test_an_archive_is_read_by_names_of_columns(tmp_path: Path) -> None:
    held = of_frames(tmp_path, NUMBERS, "number").save(tmp_path / "data.npz")
    np.testing.assert_array_equal(load("npz", str(held), target="number", targets=("two",)).y, NUMBERS[:, 1:])
    with refusal("data.column-named", "'three'"):
        load("npz", str(held), target="number", targets=("three",))


def test_whole_numbers_of_an_archive_may_be_numbers(tmp_path: Path) -> None:
    x = sp.csr_matrix(np.array(F, np.float32)[:, None])
    arrays = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    np.savez(tmp_path / "data.npz", edge_index=PATH, y=np.array([5, 3, 1, -1]), **arrays)
    assert load("npz", str(tmp_path / "data.npz"), target="number").y[:, 0].tolist() == [5, 3, 1, -1]


@pytest.mark.parametrize(
    ("name", "target", "shape", "mean"),
    [("delaney", "log_solubility", (1128, 1), -3.05), ("tox21", None, (7823, 12), None)],
)
def test_public_molecules_are_read(
    data_root: Path, name: str, target: str | None, shape: tuple[int, int], mean: float | None
) -> None:
    """Counts as their README publishes them."""
    columns = pq.read_schema(data_root / name / "graphs.parquet").names
    targets = (target,) if target else tuple(one for one in columns if one.startswith(("NR-", "SR-")))
    other = [one for one in columns if one not in ("id", *targets)]
    kind = {"target": "number", "targets": targets} if target else {"labels": targets}
    data = load("graphs", str(data_root / name), ignore=tuple(other), **kind)
    assert (data.y.shape, data.targets) == (shape, targets)
    if mean is not None:
        assert scale_of(data.y)[0, 0] == pytest.approx(mean, abs=0.005)


def test_nodes_of_other_types_have_no_number() -> None:
    data = HeteroData()
    data["film"].x, data["film"].y = torch.ones(3, 1), torch.tensor([[4.5, 1.0], [2.0, NAN], [3.0, 2.0]])
    data["user"].x = torch.ones(2, 1)
    data["user", "rates", "film"].edge_index = torch.tensor([[0, 1], [0, 2]])
    found = from_pyg(data, flatten=True, target="number")
    np.testing.assert_array_equal(found.y, [[4.5, 1], [2, NAN], [3, 2], [NAN, NAN], [NAN, NAN]])
    data["film"].y = torch.tensor([[1, 0], [0, -1], [1, 1]])
    assert from_pyg(data, flatten=True, target="labels").y[3:].tolist() == [[-1, -1], [-1, -1]]


def test_edges_of_networkx_are_rated() -> None:
    graph = nx.path_graph(4)
    nx.set_node_attributes(graph, dict(enumerate(F)), "f")
    nx.set_edge_attributes(graph, {(0, 1): 5.0, (1, 2): 3.5, (2, 3): None}, "stars")
    data = from_networkx(graph, task="edges", target="number", targets=("stars",))
    np.testing.assert_array_equal(data.y[:, 0], [5, 3.5, NAN])
    with refusal("data.column-named", "'score'"):
        from_networkx(graph, task="edges", target="number", targets=("score",))


def test_an_archive_may_say_what_its_numbers_are(tmp_path: Path) -> None:
    """As `Dataset.save` writes it, nothing but the target need be said."""
    path = of_frames(tmp_path, NUMBERS, "number").save(tmp_path / "data.npz")
    assert load("npz", str(path), target="number", target_log=False).targets == ("one", "two")
    with refusal("data.target", 'target = "number"'):
        load("npz", str(path))
