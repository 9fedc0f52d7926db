"""Columns that are the answer, or drown the others, are named before a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.datasets import from_frames, from_pyg, load
from fedweave.datasets.notes import MAX_RATIO, feature_notes

DATA = load("synthetic", nodes=60, features=4, classes=2)


def of(x: np.ndarray, **more: object) -> list[str]:
    return list(feature_notes(replace(DATA, x=x.astype(np.float32), **more)))  # type: ignore[arg-type]


def test_nothing_is_odd_about_ordinary_columns() -> None:
    assert not list(feature_notes(DATA))
    assert not of(np.zeros((DATA.nodes, 3)))


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (5.5, -2)])
def test_a_column_with_one_value_for_each_class_is_named(values: tuple[float, float]) -> None:
    x = np.random.default_rng(0).normal(size=(DATA.nodes, 3))
    x[:, 1] = np.where(DATA.y == 1, values[1], values[0])
    [said] = of(x, columns=("age", "status", "income"))
    assert said.startswith("the feature status has one value for each class")
    x[np.flatnonzero(DATA.y == 1)[0], 1] = values[0]  # one node of another value: no longer the label
    assert not of(x)


def test_a_column_with_a_range_for_each_class_is_named() -> None:
    x = np.random.default_rng(0).normal(size=(DATA.nodes, 3))
    rating = np.random.default_rng(1).integers(1, 11, DATA.nodes)
    x[:, 1] = np.where(DATA.y == 1, rating, -rating)
    [said] = of(x, columns=("age", "rating", "income"))
    assert said.startswith("the feature rating has numbers in a separate range for each class")
    assert list(feature_notes(replace(DATA, x=sp.csr_matrix(x, dtype=np.float32)))) == [
        said.replace("rating has", "1 has")
    ]
    few = np.flatnonzero(DATA.y == 1)[4:]
    assert not of(x, y=np.where(np.isin(np.arange(DATA.nodes), few), -1, DATA.y))  # four of a class may be chance
    x[np.flatnonzero(DATA.y == 1)[0], 1] = x[DATA.y == 0, 1].max()  # one that meets the other class
    assert not of(x)


def test_a_rating_whose_sign_is_the_label_of_the_same_edge_is_named() -> None:
    """As of Bitcoin OTC, held as edges; only as a feature of the edge itself."""
    rng = np.random.default_rng(0)
    edges = pd.DataFrame(rng.integers(0, 20, (60, 2)), columns=["source", "target"])
    edges = edges[edges.source != edges.target]
    edges["rating"] = rng.choice([-3.0, -1, 1, 2, 10], len(edges))
    edges = edges.assign(label=np.where(edges.rating > 0, "trust", "distrust"), fee=rng.normal(size=len(edges)))
    nodes = pd.DataFrame({"id": range(20), "f": rng.normal(size=20)})
    taken = from_frames(nodes, edges, task="edges", edge_features=("fee", "rating"))
    [said] = feature_notes(taken)
    assert said.startswith("the edge feature rating has numbers in a separate range for each class")
    ends, y = torch.from_numpy(taken.edge_attrs.ends), torch.from_numpy(taken.y)  # type: ignore[union-attr]
    attributes = torch.from_numpy(taken.edge_attrs.features)  # type: ignore[union-attr]
    pyg = from_pyg(Data(x=torch.eye(20), edge_index=ends, edge_label=y, edge_attr=attributes), task="edges")
    assert [one.startswith("the edge feature 1 has numbers") for one in feature_notes(pyg)] == [True]
    assert not list(feature_notes(from_frames(nodes, edges.drop(columns="rating"), task="edges", edge_features="fee")))
    [same] = feature_notes(
        from_frames(
            nodes, edges.assign(rating=edges.rating > 0), task="edges", edge_features="rating", ignore=("edges.fee",)
        )
    )
    assert same.startswith("the edge feature rating has one value for each class")


def test_past_edges_carry_what_the_examples_do_not() -> None:
    """They have no label, and examples no rating."""
    rng = np.random.default_rng(0)
    edges = pd.DataFrame({"source": range(60), "target": [*range(1, 60), 0], "rating": rng.choice([-3.0, 1, 2], 60)})
    edges["label"] = np.where(edges.rating > 0, "trust", "distrust")
    edges.loc[:19, "label"], edges.loc[20:, "rating"] = None, None
    nodes = pd.DataFrame({"id": range(60), "f": rng.normal(size=60)})
    data = from_frames(nodes, edges, task="edges", edge_features="rating", missing=("edges.rating",))
    assert data.edge_attrs is not None
    assert data.edge_attrs.features is not None
    assert data.edge_attrs.columns == ("rating", "rating is missing")
    assert data.edge_attrs.features[20:].tolist() == [[0, 1]] * 40
    assert set(data.edge_attrs.features[:20, 0]) == {-3, 1, 2}
    assert data.y[:20].tolist() == [-1] * 20
    assert not list(feature_notes(data))


def test_a_column_far_larger_than_the_others_is_named() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (DATA.nodes, 5))
    x[0] = 1  # of every column the largest
    x[:, 3] *= MAX_RATIO
    assert not of(x)
    x[:, 3] *= 2
    [said] = of(x)
    assert said.startswith("the feature 3 has numbers up to 2,000 times the median column")
    assert list(feature_notes(replace(DATA, x=sp.csr_matrix(x, dtype=np.float32)))) == [said]


def test_check_and_run_say_so(tmp_path: Path) -> None:
    rows = [f"{at},{at % 2},{90_000 + at},{at % 2 * 3},{at % 7}" for at in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,income,status,age", *rows]))
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    text = '[data]\nname = "folder"\npath = "."\n[partition]\nname = "random"\nclients = 2\n[model]\nname = "gcn"\n'
    (tmp_path / "e.toml").write_text(f'{text}[algorithm]\nname = "fedavg"\n')
    words = [str(tmp_path / "e.toml"), "--set", f"data.path={tmp_path}", "--set", "rounds=1"]
    runs = [("check",), ("run", "--out", str(tmp_path / "run"))]
    for command, *more in runs:  # what one says of columns, the other does
        told = CliRunner().invoke(app, [command, *words, *more, "--set", "data.normalize=none"])
        assert told.exit_code == 0, told.output
        assert told.output.count("note: the feature status has one value for each class") == 1
        assert told.output.count("note: the feature income has numbers up to 15,006 times") == 1
    for how in ([], ["--set", "data.normalize=standard"]):
        scaled = CliRunner().invoke(app, ["check", *words, *how]).output
        assert ("status has" in scaled, "income has" in scaled) == (True, False)


def rated(ratings: Sequence[float], task: str = "edges") -> list[str]:
    """What is said of a feature whose numbers are below 0 for one class alone, and of one that is noise."""
    ids, draw = [f"n{at}" for at in range(len(ratings) + 1)], np.random.default_rng(0)
    columns = {"label": [int(rating > 0) for rating in ratings], "rating": ratings, "f": draw.normal(size=len(ratings))}
    if task == "nodes":
        edges = pd.DataFrame({"source": ids[:1], "target": ids[1:2]})
        return list(feature_notes(from_frames(pd.DataFrame({"id": ids[1:], **columns}), edges[:0])))
    edges = pd.DataFrame({"source": ids[:-1], "target": ids[1:], **columns})
    data = from_frames(pd.DataFrame({"id": ids}), edges, task="edges", edge_features=("rating", "f"))
    return list(feature_notes(data))


@pytest.mark.parametrize("task", ["edges", "nodes"])
def test_a_rating_whose_sign_is_the_label_is_noted(task: str) -> None:
    draw = np.random.default_rng(1)
    ratings = [*draw.uniform(-10, -1, 15), *draw.uniform(1, 10, 15)]
    [said] = rated(ratings, task)
    assert "rating" in said
    assert "reads the label off" in said
    [said] = rated([-1.0] * 15 + [2.0] * 15, task)  # one value for each class
    assert "rating" in said
    assert rated(ratings[11:19], task) == []  # few may be apart by chance
