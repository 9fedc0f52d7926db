"""Early stopping: when a run ends, what it says of that, and that resuming honors it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedweave
from fedweave.core.tree import leaves
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, METRICS, SUMMARY
from fedweave.experiment.runs.run import run, running
from tests.refusals import refusal
from tests.runs.test_runs import Quiet


def config(rounds: int = 60, eval_every: int = 1, patience: int = 4, **evaluation: Any) -> Any:
    return resolve(
        {
            "seed": 1,
            "rounds": rounds,
            "eval_every": eval_every,
            "data": {"name": "synthetic", "nodes": 160, "classes": 2, "features": 6},
            "partition": {"name": "dirichlet", "clients": 3},
            "model": {"name": "gcn", "hidden": 4},
            "algorithm": {"name": "fedavg", "lr": 0.1, "schedule": "cosine"},
            "engine": {"name": "simulation", "checkpoint_seconds": 0.0},
            "evaluation": {"patience": patience} | evaluation,
        }
    )


def by_hand(scores: Sequence[tuple[int, float]], patience: int, min_delta: float) -> int:
    """The last round, by the scores of those that were evaluated."""
    best, since = scores[0][1], scores[0][0]
    for number, score in scores:
        if score - best > min_delta:
            best, since = score, number
        if number - since >= patience:
            return number
    return scores[-1][0]


def validation(directory: Path) -> list[tuple[int, float]]:
    table = pq.read_table(directory / METRICS).to_pandas()
    rows = table[(table["metric"] == "accuracy") & (table["split"] == "val") & (table["client"] != "global")]
    return sorted(rows.groupby("round")["value"].mean().items())


@pytest.mark.parametrize(("every", "patience", "min_delta"), [(1, 4, 0.0), (3, 7, 0.0), (1, 2, 0.05)])
def test_a_run_ends_once_nothing_improves(tmp_path: Path, every: int, patience: int, min_delta: float) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(config(eval_every=every, patience=0), whole, Quiet())
    told = run(config(eval_every=every, patience=patience, min_delta=min_delta), stopped, Quiet())
    last = by_hand(validation(whole), patience, min_delta)
    assert told["rounds"] == last < 60
    assert f"after round {last}" in told["stopped"]
    assert "stopped" not in run(config(eval_every=every, patience=0), whole, Quiet(), resume=True)
    assert validation(stopped) == [pair for pair in validation(whole) if pair[0] <= last]
    assert "pooled/auc" in told["metrics"]  # what is said of the last round alone


def test_a_run_that_was_killed_stops_where_it_would_have(tmp_path: Path) -> None:
    expected = run(config(), tmp_path / "whole", Quiet())
    for number, rounds in enumerate((2, expected["rounds"] - 1, expected["rounds"])):
        directory = tmp_path / str(number)
        going = running(config(), directory, Quiet())
        for _ in range(rounds):
            next(going)
        going.close()
        (directory / SUMMARY).unlink(missing_ok=True)
        told = run(config(), directory, Quiet(), resume=True)
        assert told["metrics"] == expected["metrics"]
        assert told["stopped"] == expected["stopped"]
        one, other = (Checkpoint.load(own / CHECKPOINT) for own in (tmp_path / "whole", directory))
        assert all(np.array_equal(leaf, dict(leaves(other.state))[path]) for path, leaf in leaves(one.state))


def test_a_run_that_stopped_is_finished(tmp_path: Path) -> None:
    told = run(config(), tmp_path, Quiet())
    before = (tmp_path / SUMMARY).stat().st_mtime_ns
    assert run(config(rounds=80), tmp_path, Quiet(), resume=True) == told
    assert (tmp_path / SUMMARY).stat().st_mtime_ns == before


def test_python_stops_alike(tmp_path: Path) -> None:
    told = run(config(), tmp_path, Quiet())
    built = build(config())
    *_, last = fedweave.train(built.algorithm, built.fed, 60, patience=4)
    assert (last.round, last.last) == (told["rounds"], True)


def test_without_validation_examples_patience_is_refused(tmp_path: Path) -> None:
    document = config().plain()
    document["partition"] |= {"train": 0.5, "val": 0.0, "test": 0.5}
    with refusal("user.no-validation"):
        run(resolve(document), tmp_path / "none", Quiet())
