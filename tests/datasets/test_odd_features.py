"""Columns that are the answer, or drown the others, are named before a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.datasets import load
from fedweave.datasets.odd_data import APART, odd_features

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


def test_check_and_run_say_so(tmp_path: Path) -> None:
    rows = [f"{at},{at % 2},{90_000 + at},{at % 2 * 3},{at % 7}" for at in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,income,status,age", *rows]))
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    text = '[data]\nname = "folder"\npath = "."\n[partition]\nname = "random"\nclients = 2\n[model]\nname = "gcn"\n'
    (tmp_path / "e.toml").write_text(f'{text}[algorithm]\nname = "fedavg"\n')
    words = [str(tmp_path / "e.toml"), "--set", f"data.path={tmp_path}", "--set", "rounds=1"]
    runs = [("check",), ("run", "--out", str(tmp_path / "run"))]
    for command, *more in runs:  # what one says of columns, the other does
        told = CliRunner().invoke(app, [command, *words, *more, "--set", "data.normalise=none"])
        assert told.exit_code == 0, told.output
        assert told.output.count("note: the feature status has one value for each class") == 1
        assert told.output.count("note: the feature income has numbers up to 15,006 times") == 1
    for how in ([], ["--set", "data.normalise=standard"]):
        scaled = CliRunner().invoke(app, ["check", *words, *how]).output
        assert ("status has" in scaled, "income has" in scaled) == (True, False)
