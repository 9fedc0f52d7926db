"""Columns that are the answer, or drown the others, are named before a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.datasets import from_frames, load
from fedweave.datasets.odd_data import APART, odd_features, separating

DATA = load("synthetic", nodes=60, features=4, classes=2)


def of(x: np.ndarray, **more: object) -> list[str]:
    return list(odd_features(replace(DATA, x=x.astype(np.float32), **more)))  # type: ignore[arg-type]


def test_nothing_is_odd_about_ordinary_columns() -> None:
    assert not list(odd_features(DATA))
    assert not of(np.zeros((DATA.nodes, 3)))


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (5.5, -2)])
def test_a_column_with_one_value_for_each_class_is_named(values: tuple[float, float]) -> None:
    x = np.random.default_rng(0).normal(size=(DATA.nodes, 3))
    x[:, 1] = np.where(DATA.y == 1, values[1], values[0])
    [said] = of(x, columns=("age", "status", "income"))
    assert said.startswith("the feature status has one value for each class")
    x[np.flatnonzero(DATA.y == 1)[0], 1] = values[0]  # one node of another value: no longer the label
    assert not of(x)


def test_a_column_far_larger_than_the_others_is_named() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (DATA.nodes, 5))
    x[0] = 1  # of every column the largest
    x[:, 3] *= APART
    assert not of(x)
    x[:, 3] *= 2
    [said] = of(x)
    assert said.startswith("the feature 3 has numbers up to 2,000 times those of the median column")
    assert list(odd_features(replace(DATA, x=sp.csr_matrix(x, dtype=np.float32)))) == [said]


def test_check_says_so(tmp_path: Path) -> None:
    rows = [f"{at},{at % 2},{90_000 + at},{at % 2 * 3},{at % 7}" for at in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,income,status,age", *rows]))
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    text = '[data]\nname = "folder"\npath = "."\n[partition]\nname = "random"\nclients = 2\n[model]\nname = "gcn"\n'
    (tmp_path / "e.toml").write_text(f'{text}[algorithm]\nname = "fedavg"\n')
    words = ["check", str(tmp_path / "e.toml"), "--set", f"data.path={tmp_path}"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "note: the feature status has one value for each class" in told.output
    assert "note: the feature income has numbers up to 15,006 times" in told.output
    scaled = CliRunner().invoke(app, [*words, "--set", "data.normalise=standard"]).output
    assert ("status has" in scaled, "income has" in scaled) == (True, False)


def rated(ratings: Sequence[float], task: str = "edges") -> list[str]:
    """What is said of a feature whose numbers are below 0 for one class alone, and of one that is noise."""
    ids, draw = [f"n{at}" for at in range(len(ratings) + 1)], np.random.default_rng(0)
    columns = {"label": [int(rating > 0) for rating in ratings], "rating": ratings, "f": draw.normal(size=len(ratings))}
    if task == "nodes":
        edges = pd.DataFrame({"source": ids[:1], "target": ids[1:2]})
        return list(odd_features(from_frames(pd.DataFrame({"id": ids[1:], **columns}), edges[:0])))
    edges = pd.DataFrame({"source": ids[:-1], "target": ids[1:], **columns})
    data = from_frames(pd.DataFrame({"id": ids}), edges, task="edges", edge_features=("rating", "f"))
    return list(odd_features(data))


@pytest.mark.parametrize("task", ["edges", "nodes"])
def test_a_rating_whose_sign_is_the_label_is_noted(task: str) -> None:
    draw = np.random.default_rng(1)
    ratings = [*draw.uniform(-10, -1, 15), *draw.uniform(1, 10, 15)]
    [said] = rated(ratings, task)
    assert "rating" in said
    assert "reads the label off" in said
    [said] = rated([-1.0] * 15 + [2.0] * 15, task)  # one value for each class
    assert "rating" in said
    assert rated(ratings[8:22], task) == []  # few may be apart by chance


def test_a_feature_that_overlaps_in_one_example_is_not_noted() -> None:
    x, y = np.arange(40, dtype=np.float32)[:, None], np.repeat([0, 1], 20)
    assert separating(x, y).tolist() == [0]
    assert separating(sp.csr_matrix(x), y).tolist() == [0]
    assert separating(-x, y).tolist() == [0]
    assert separating(x, np.where(np.arange(40) == 25, 0, y)).tolist() == []
    assert separating(x, np.where(np.arange(40) == 25, -1, y)).tolist() == [0]  # unlabelled ones say nothing
    assert separating(x, np.zeros(40, int)).tolist() == []
