"""Kinds of edges of small graphs, such as of bonds, as features of edges: from tables to a model's scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedweave.apply.run_predictions import predictions
from fedweave.apply.scorer import scorer_at
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.datasets import from_graph_frames, load
from fedweave.experiment.runs.new_data import load_new_data
from fedweave.export.serving import answer
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_predictions import made

GRAPHS = pd.DataFrame({"id": ["a", "b"], "label": [0, 1]})
NODES = pd.DataFrame({"id": range(5), "graph": [*"aaabb"], "size": 1.0})
EDGES = pd.DataFrame(
    {"source": [0, 2, 3], "target": [1, 1, 4], "order": [1.0, 2.0, 1.0], "label": ["single", "double", None]}
)


def attributes(edges: pd.DataFrame = EDGES, **options: Any) -> EdgeAttributes:
    found = from_graph_frames(GRAPHS, NODES, edges, **options).edge_attrs
    assert found is not None
    return found


def test_kinds_by_hand() -> None:
    """One column for each kind, in the place of the column; an unknown kind is in none."""
    every = attributes(edge_features="all")
    assert every.columns == ("order", "label = double", "label = single")
    np.testing.assert_array_equal(every.features, [[1, 0, 1], [2, 1, 0], [1, 0, 0]])
    named = attributes(edge_features=("label",), edge_labels=("single", "triple", "double"), ignore=("edges.order",))
    assert named.columns == ("label = single", "label = triple", "label = double")
    np.testing.assert_array_equal(named.features, [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
    assert attributes(edge_features=("order",)).columns == ("order",)


def test_kinds_that_are_numbers_count_from_0() -> None:
    found = attributes(EDGES.assign(label=[2.0, 0.0, None]), edge_features="all")
    assert found.columns == ("order", "label = 0", "label = 1", "label = 2")
    np.testing.assert_array_equal(found.features[:, 1:], [[0, 0, 1], [1, 0, 0], [0, 0, 0]])


def test_edges_listed_in_both_directions_are_one_where_their_kinds_agree() -> None:
    back = EDGES.rename(columns={"source": "target", "target": "source"})
    found = attributes(pd.concat([EDGES, back]), edge_features="all")
    np.testing.assert_array_equal(found.features, attributes(edge_features="all").features)


def test_what_cannot_be_is_refused() -> None:
    with refusal("config", "label"):
        attributes(edge_weight="label")
    with refusal("data.column-missing", "label"):
        attributes(EDGES.drop(columns="label"), edge_features=("order", "label"))
    with refusal("data.row", "single", "edge_labels"):
        attributes(edge_features="all", edge_labels=("double",))


def test_kinds_of_the_tu_layout(tmp_path: Path) -> None:
    """By hand: edges 1-2 of kind 4, and 2-3 of kind 2; kinds count from the lowest."""
    texts = {"A": "1, 2\n2, 1\n2, 3\n3, 2\n", "graph_indicator": "1\n1\n1\n2\n", "graph_labels": "0\n1\n"}
    for name, text in {**texts, "edge_labels": "4\n4\n2\n2\n"}.items():
        (tmp_path / f"DS_{name}.txt").write_text(text)
    assert load("tu", str(tmp_path)).edge_attrs is None
    found = load("tu", str(tmp_path), edge_features="all").edge_attrs
    assert found is not None
    assert found.columns == ("label = 2", "label = 3", "label = 4")
    np.testing.assert_array_equal(found.ends, [[0, 1], [1, 2]])
    np.testing.assert_array_equal(found.features, [[0, 0, 1], [1, 0, 0]])
    (tmp_path / "DS_edge_labels.txt").unlink()
    bare = load("tu", str(tmp_path), edge_features="all")
    assert bare.edge_attrs is None
    check_facts(" ".join(bare.notes), "data.edge_features")


def test_kinds_of_a_published_set(data_root: Path) -> None:
    data = load("mutag", str(data_root), edge_features="all")
    assert data.edge_attrs is not None
    assert data.edge_attrs.columns == ("label = 0", "label = 1", "label = 2", "label = 3")
    counts = np.bincount(data.edge_labels) // 2
    np.testing.assert_array_equal(data.edge_attrs.features.sum(0), counts)


BONDS = ("single", "double")
ALL_TRAIN = {"name": "random", "clients": 1, "train": 1.0, "val": 0.0, "test": 0.0}


def tables(root: Path, bonds: list[tuple[str, str]], reverse: bool = False) -> Path:
    """A path of three nodes for each pair of `bonds`; its class is whether both are of one kind."""
    root.mkdir()
    ids = [f"g{at}" for at in range(len(bonds))]
    labels = [int(first == second) for first, second in bonds]
    pd.DataFrame({"id": ids, "label": labels}).to_csv(root / "graphs.csv", index=False)
    nodes = [(f"{name}-{place}", name, 1.0) for name in ids for place in range(3)]
    pd.DataFrame(nodes, columns=["id", "graph", "size"]).to_csv(root / "nodes.csv", index=False)
    edges = []
    for name, pair in zip(ids, bonds, strict=True):
        edges += [(f"{name}-{at}", f"{name}-{at + 1}", kind) for at, kind in enumerate(pair)]
    frame = pd.DataFrame(edges, columns=["source", "target", "label"])
    (frame.iloc[::-1] if reverse else frame).to_csv(root / "edges.csv", index=False)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of gine on paths with all pairs of kinds, twice."""
    root = tmp_path_factory.mktemp("kinds")
    pairs = [(one, other) for one in BONDS for other in BONDS]
    data = {"name": "graphs", "path": str(tables(root / "data", pairs * 2)), "edge_features": "all"}
    algorithm = {"name": "fedavg", "local_steps": 20, "lr": 0.01}
    made(root / "run", algorithm, data, 2, model={"name": "gine", "dropout": 0.0}, partition=ALL_TRAIN)
    return root / "run"


def scores(table: Any) -> list[float]:
    return [row["p_1"] for row in table.to_pylist()]


def test_new_tables_get_the_columns_of_training(run: Path, tmp_path: Path) -> None:
    """Listed in another order, or without a kind, as of the training tables; also by an exported model."""
    old = scores(predictions(run))
    assert abs(old[0] - old[1]) > 1e-3  # a model that reads no bonds would not tell them apart
    pairs = [(one, other) for one in BONDS for other in BONDS]
    turned = tables(tmp_path / "turned", pairs[::-1], reverse=True)
    lacking = tables(tmp_path / "lacking", [("double", "double")])
    commands.run("export", run, "--out", tmp_path / "export")
    exported = scorer_at(tmp_path / "export")
    read = load_new_data(exported.before, lacking).data.edge_attrs
    assert read is not None
    assert read.columns == ("label = double", "label = single")
    np.testing.assert_array_equal(read.features, [[1, 0], [1, 0]])
    for score in (lambda where: predictions(run, where), exported.score):
        assert scores(score(turned)) == pytest.approx(old[3::-1], abs=1e-5)
        assert scores(score(lacking)) == pytest.approx(old[3:4], abs=1e-5)
    with refusal("data.unlike", "triple"):
        predictions(run, tables(tmp_path / "triple", [("single", "triple")]))


def test_a_graph_without_an_edge_or_a_kind_is_served(run: Path, tmp_path: Path) -> None:
    """As of tables; most writers of JSON leave out what is null."""
    commands.run("export", run, "--out", tmp_path / "export")
    served = scorer_at(tmp_path / "export")
    nodes = [{"id": at, "graph": "one", "size": 1.0} for at in range(3)]
    edges = [{"source": at, "target": at + 1} for at in range(2)]
    [bare] = answer(served, json.dumps({"graphs": [{"id": "one"}], "nodes": nodes}).encode())["rows"]
    [unknown] = answer(served, json.dumps({"graphs": [{"id": "one"}], "nodes": nodes, "edges": edges}).encode())["rows"]
    for edge in edges:
        edge["label"] = "double"
    [double] = answer(served, json.dumps({"graphs": [{"id": "one"}], "nodes": nodes, "edges": edges}).encode())["rows"]
    assert len({round(row["p_1"], 4) for row in (bare, unknown, double)}) == 3
    assert double["p_1"] == pytest.approx(scores(predictions(run))[3], abs=1e-5)


def test_a_model_without_kinds_reads_tables_that_have_them(tmp_path: Path) -> None:
    """As one of before kinds were features does, whose settings say "all"."""
    where = tables(tmp_path / "data", [("single", "double"), ("single", "single")])
    frame = pd.read_csv(where / "edges.csv")
    frame.drop(columns="label").assign(order=1.0).to_csv(where / "edges.csv", index=False)
    data = {"name": "graphs", "path": str(where), "edge_features": "all"}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, model={"name": "gine"}, partition=ALL_TRAIN)
    old = scores(predictions(tmp_path / "run"))
    commands.run("export", tmp_path / "run", "--out", tmp_path / "export")
    frame.assign(order=1.0).to_csv(where / "edges.csv", index=False)
    assert scores(scorer_at(tmp_path / "export").score(where)) == pytest.approx(old, abs=1e-6)


@pytest.mark.parametrize("features", ["all", ["label"]])
def test_kinds_with_a_name_of_their_owner_are_served(tmp_path: Path, features: Any) -> None:
    pairs = [(one, other) for one in BONDS for other in BONDS]
    where = tables(tmp_path / "data", pairs)
    pd.read_csv(where / "edges.csv").rename(columns={"label": "bond"}).to_csv(where / "edges.csv", index=False)
    data = {"name": "graphs", "path": str(where), "edge_features": features, "columns": {"label": "bond"}}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, model={"name": "gine"}, partition=ALL_TRAIN)
    commands.run("export", tmp_path / "run", "--out", tmp_path / "export")
    served, expected = scorer_at(tmp_path / "export"), scores(predictions(tmp_path / "run"))
    nodes = [{"id": at, "graph": "one", "size": 1.0} for at in range(3)]
    for pair, score in zip(pairs, expected, strict=True):
        edges = [{"source": at, "target": at + 1, "bond": kind} for at, kind in enumerate(pair)]
        body = json.dumps({"graphs": [{"id": "one"}], "nodes": nodes, "edges": edges}).encode()
        assert answer(served, body)["rows"][0]["p_1"] == pytest.approx(score, abs=1e-5)


def test_a_graph_without_edges_needs_no_column_of_them(tmp_path: Path) -> None:
    """Of whatever columns the model reads: it is scored as of tables with these columns and no row."""
    where = tables(tmp_path / "data", [("single", "double"), ("single", "single")])
    frame = pd.read_csv(where / "edges.csv").assign(length=[1.5, 2.0, 1.0, 0.5], side=["l", "r", "l", None])
    frame.to_csv(where / "edges.csv", index=False)
    data = {"name": "graphs", "path": str(where), "edge_features": "all", "categories": {"edges.side": ["l", "r"]}}
    made(tmp_path / "run", {"name": "fedavg"}, data, 1, model={"name": "gine"}, partition=ALL_TRAIN)
    commands.run("export", tmp_path / "run", "--out", tmp_path / "export")
    bare = tables(tmp_path / "bare", [("single", "single")])
    frame.iloc[:0].to_csv(bare / "edges.csv", index=False)
    exported = scorer_at(tmp_path / "export")
    expected = scores(exported.score(bare))
    frame[["source", "target"]].iloc[:0].to_csv(bare / "edges.csv", index=False)
    assert scores(exported.score(bare)) == expected
    assert scores(predictions(tmp_path / "run", bare)) == pytest.approx(expected, abs=1e-6)
    nodes = [{"id": at, "graph": "one", "size": 1.0} for at in range(3)]
    [row] = answer(exported, json.dumps({"graphs": [{"id": "one"}], "nodes": nodes}).encode())["rows"]
    assert [row["p_1"]] == pytest.approx(expected, abs=1e-6)
