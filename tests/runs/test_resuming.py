"""Which directories a run may be continued in."""

from pathlib import Path
from typing import Any

import pytest

from fedweave.experiment import config
from fedweave.experiment.runs.resuming import check_replaceable, examine
from tests.refusals import refusal


def resolved(**changes: Any) -> config.Config:
    return config.resolve({"rounds": 4, "data": {"name": "synthetic"}} | changes)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """What `examine` looks at in the directory of a finished run."""
    (tmp_path / "config.toml").write_text(config.dumps(resolved().plain()))
    (tmp_path / "summary.json").write_text('{"rounds": 4, "metrics": {}}')
    return tmp_path


def test_a_finished_run_is_told_from_one_that_can_go_on(finished: Path) -> None:
    assert examine(resolved(), finished, True) == {"rounds": 4, "metrics": {}}
    assert examine(resolved(rounds=6), finished, True) is None
    with refusal("user.rounds-done"):
        examine(resolved(rounds=3), finished, True)
    (finished / "summary.json").unlink()
    assert examine(resolved(), finished, True) is None
    with refusal("user.not-empty", "resume = True"):
        examine(resolved(), finished, False)


def test_other_settings_are_named(finished: Path) -> None:
    changes = {"seed": 6, "algorithm": {"lr": 0.5}, "engine": {"dtype": "float64", "threads": 2}}
    with refusal("user", "algorithm.lr, engine.dtype"):
        examine(resolved(**changes), finished, True)


def test_settings_that_came_after_a_run_was_made_have_their_defaults(finished: Path) -> None:
    saved = resolved().plain()
    del saved["algorithm"]["clip_gradient"], saved["evaluation"]["metric"]
    (finished / "config.toml").write_text(config.dumps(saved))
    assert examine(resolved(), finished, True) is not None
    with refusal("user", "algorithm.clip_gradient"):
        examine(resolved(algorithm={"clip_gradient": 0.9}), finished, True)


def test_what_changes_no_number_may_change(finished: Path) -> None:
    changes = {"eval_every": 2, "engine": {"mode": "loop", "chunk": 3, "threads": 1, "checkpoint_seconds": 1.0}}
    assert examine(resolved(**changes), finished, True) is not None


def test_an_absent_or_empty_directory_is_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "absent", tmp_path / "empty"):
        for resume in (True, False):
            assert examine(resolved(), directory, resume) is None


def test_nothing_but_a_run_is_replaced(finished: Path) -> None:
    check_replaceable(finished / "absent")
    check_replaceable(finished)
    (finished / "config.toml").unlink()
    with refusal("user.not-replaceable", "overwrite = True"):
        check_replaceable(finished)


@pytest.mark.parametrize("bad", ["", "[]", "{}", "\x00"])
def test_damaged_summary_is_named(finished: Path, bad: str) -> None:
    (finished / "summary.json").write_text(bad)
    with refusal("file.damaged", "summary.json"):
        examine(resolved(), finished, True)
