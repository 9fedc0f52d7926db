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
from tests.refusals import check_facts, refusal
from tests.runs.test_runs import Quiet

ROUNDS = 60


def config(
    rounds: int = ROUNDS, eval_every: int = 1, patience: int = 4, saved_every: float = 30.0, **evaluation: Any
) -> Any:
    return resolve(
        {
            "seed": 1,
            "rounds": rounds,
            "eval_every": eval_every,
            "data": {"name": "synthetic", "nodes": 160, "classes": 2, "features": 6},
            "partition": {"name": "dirichlet", "clients": 3},
            "model": {"name": "gcn", "hidden": 4},
            "algorithm": {"name": "fedavg", "lr": 0.1, "schedule": "cosine"},
            "engine": {"name": "simulation", "checkpoint_seconds": saved_every},
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that goes through all its rounds."""
    directory = tmp_path_factory.mktemp("whole")
    run(config(patience=0), directory, Quiet())
    return directory


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that stops early, and its summary."""
    directory = tmp_path_factory.mktemp("ended")
    return directory, run(config(), directory, Quiet())


@pytest.mark.often("1-4-0.0", "1-2-0.05")
@pytest.mark.parametrize(("every", "patience", "min_delta"), [(1, 4, 0.0), (3, 7, 0.0), (1, 2, 0.05)])
def test_a_run_ends_once_nothing_improves(
    whole: Path, tmp_path: Path, every: int, patience: int, min_delta: float
) -> None:
    told = run(config(eval_every=every, patience=patience, min_delta=min_delta), tmp_path, Quiet())
    scores = [pair for pair in validation(whole) if pair[0] % every == 0]
    last = by_hand(scores, patience, min_delta)
    assert told["rounds"] == last < ROUNDS
    check_facts(told["stopped"], f"{last}")
    assert validation(tmp_path) == [pair for pair in scores if pair[0] <= last]
    assert "pooled/auc" in told["metrics"]  # what is said of the last round alone


def test_without_patience_a_run_goes_on(whole: Path) -> None:
    told = run(config(patience=0), whole, Quiet(), resume=True)
    assert "stopped" not in told
    assert told["rounds"] == ROUNDS


def test_a_run_that_was_killed_stops_where_it_would_have(ended: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    whole, expected = ended
    for number, rounds in enumerate((expected["rounds"] - 1, expected["rounds"])):
        directory = tmp_path / str(number)
        going = running(config(saved_every=0.0), directory, Quiet())
        for _ in range(rounds):
            next(going)
        going.close()
        (directory / SUMMARY).unlink(missing_ok=True)
        told = run(config(saved_every=0.0), directory, Quiet(), resume=True)
        assert told["metrics"] == expected["metrics"]
        assert told["stopped"] == expected["stopped"]
        one, other = (Checkpoint.load(own / CHECKPOINT) for own in (whole, directory))
        assert all(np.array_equal(leaf, dict(leaves(other.state))[path]) for path, leaf in leaves(one.state))


def test_a_run_that_stopped_is_finished(ended: tuple[Path, dict[str, Any]]) -> None:
    directory, told = ended
    before = (directory / SUMMARY).stat().st_mtime_ns
    assert run(config(rounds=ROUNDS + 20), directory, Quiet(), resume=True) == told
    assert (directory / SUMMARY).stat().st_mtime_ns == before


def test_python_stops_alike(ended: tuple[Path, dict[str, Any]]) -> None:
    _, told = ended
    built = build(config())
    *_, last = fedweave.train(built.algorithm, built.fed, ROUNDS, patience=4)
    assert (last.round, last.last) == (told["rounds"], True)


def test_without_validation_examples_patience_is_refused(tmp_path: Path) -> None:
    document = config().plain()
    document["partition"] |= {"train": 0.5, "val": 0.0, "test": 0.5}
    with refusal("user.no-validation"):
        run(resolve(document), tmp_path / "none", Quiet())
