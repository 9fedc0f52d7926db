"""Metrics of one's own: hand-worked, from Python, in a sweep and beside predictions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fedweave
from fedweave.apply.own_metrics import load_metric, measure
from fedweave.cli import app
from fedweave.errors import UserError
from fedweave.sweeps import scheduler
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sweep.test_sweep import SMALL, in_process

TABLE = pa.table(
    {
        "client": ["a", "a", "a", "b", "b", "c", "global"],
        "node": [0, 1, 2, 3, 4, 5, 6],
        "split": ["test", "test", "train", "test", "test", "val", "test"],
        "true": ["no", "yes", "yes", "no", None, "no", "yes"],
        "predicted": ["no"] * 7,
        "p_no": [0.9, 0.6, 0.9, 0.2, 0.9, 0.9, 0.3],
        "p_yes": [0.1, 0.4, 0.1, 0.8, 0.1, 0.1, 0.7],
    }
)


def brier(y: np.ndarray, p: np.ndarray) -> float:
    return float(((p[:, 1] - y) ** 2).mean())


def test_by_hand() -> None:
    """a: (.1² + .6²) / 2; b: .8², its second example being without a class; c has no test example."""
    found = measure(TABLE, brier)
    assert found.name == "brier"
    assert found.clients == pytest.approx({"a": 0.185, "b": 0.64, "c": math.nan}, nan_ok=True)
    assert found.local == pytest.approx((0.185 + 0.64) / 2)
    assert found.pooled == pytest.approx((0.01 + 0.36 + 0.64) / 3)
    assert found.overall == pytest.approx(0.09)
    numbered = TABLE.drop_columns(["true"]).append_column("true", pa.array([0] * 7))
    numbered = numbered.rename_columns(["client", "node", "split", "predicted", "p_0", "p_1", "true"])
    assert measure(numbered, brier, "val").clients["c"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("metric", "said"),
    [(lambda y, p: "much", "returned str, not a number"), (lambda y, p: 1 / 0, "failed: ZeroDivisionError")],
)
def test_functions_that_fail_are_named(metric: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"metric '<lambda>' {said}"):
        measure(TABLE, metric)
    with refusal("user.no-split", "'tests'"):
        measure(TABLE, brier, "tests")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("NUMBER = 1\n\n\ndef hits(y, p):\n    return float((p.argmax(1) == y).mean())\n")
    return path


def test_names(file: Path) -> None:
    assert load_metric(f"{file}:hits")(np.array([1]), np.array([[0.2, 0.8]])) == 1.0
    for wrong in (f"{file}:NUMBER", "hits"):
        with refusal("config", "--metric"):
            load_metric(wrong)


def test_a_run_a_sweep_and_predictions(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of hits is the accuracy that the run itself measured."""
    monkeypatch.setattr(scheduler, "execute", in_process)
    (tmp_path / "e.toml").write_text(SMALL)
    words = ["sweep", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--seeds", "0", "--csv"]
    commands.run(*words, "--metric", f"{file}:hits")
    check_facts((tmp_path / "out/sweep.md").read_text(), "hits")
    check_facts((tmp_path / "out/sweep.csv").read_text().splitlines()[0], "own/local/hits")
    [directory] = (tmp_path / "out/runs").iterdir()
    run = fedweave.load_run(directory)
    found = run.measure(load_metric(f"{file}:hits"))
    assert found.local == pytest.approx(run.summary["metrics"]["local/accuracy"])
    assert found.pooled == pytest.approx(run.summary["metrics"]["global/accuracy"])
    told = CliRunner().invoke(app, ["predict", str(directory), "--metric", f"{file}:hits"])
    check_facts(told.stdout, "hits", f"{found.local:.4f}")
