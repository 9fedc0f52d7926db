"""Who watches a run of sites from the administrator's side hears of the same numbers as beside the run itself."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs the extra flare")

from fedweave.experiment.config import resolve
from fedweave.experiment.runs import run as runs
from fedweave.python.training import Silent
from fedweave.reports.tracking import Tracking
from fedweave.sites.flare.server import RECENT, Progress
from fedweave.sites.operation.experiments import Observed
from tests.reproduce.tiny import document

DOCUMENT = document(rounds=5, eval_every=2, algorithm={"name": "dp_fedavg"})


class Kept:
    """A tracker that keeps what it is told."""

    def __init__(self, directory: Path, settings: dict[str, Any], done: int) -> None:
        self.heard: list[Any] = [(settings["rounds"], done)]

    def numbers(self, round: int, found: dict[str, float]) -> None:
        self.heard.append((round, dict(found)))

    def close(self, finished: bool) -> None:
        self.heard.append(finished)


class Asking(Silent):
    """Asks for a job's progress after every second round, in the form that crosses the wire."""

    def __init__(self, progress: Progress, told: Observed) -> None:
        self._progress, self._told = progress, told

    def begin(self, *about: Any) -> None:
        self.ask()

    def step(self, reached: Any) -> None:
        if reached.round % 2 == 0:
            self.ask()

    def ask(self) -> None:
        self._told(json.loads(json.dumps(self._progress.plain())))


def trackers() -> tuple[list[Kept], Tracking]:
    made: list[Kept] = []
    return made, Tracking([lambda *about: made.append(Kept(*about)) or made[-1]])


def test_trackers_of_a_run_of_sites_are_told_of_every_round(tmp_path: Path) -> None:
    beside, first = trackers()
    away, second = trackers()
    progress, config = Progress(), resolve(DOCUMENT)
    observed = Observed(second, config, tmp_path / "run")
    asking = Asking(progress, observed)
    runs.run(config, tmp_path / "run", runs.Observers([first, progress, asking]))
    progress.status = "done"
    asking.ask()
    asking.ask()
    observed.end()
    assert [one if isinstance(one, bool) else one[0] for one in away[0].heard] == [5, 1, 2, 3, 4, 5, 5, True]
    assert away[0].heard == beside[0].heard
    assert any(name.startswith("epsilon/per ") for name in away[0].heard[-2][1])


def test_a_job_that_never_ran_is_nothing_to_track(tmp_path: Path) -> None:
    made, watch = trackers()
    observed = Observed(watch, resolve(DOCUMENT), tmp_path)
    observed({"status": "waiting", "sites": ["a"], "seconds": 60})
    observed(Progress().plain())
    observed.end()
    assert made == []


def test_progress_keeps_the_last_rounds_alone() -> None:
    progress = Progress(recent=[{"round": at} for at in range(RECENT)])
    progress.ledger = type("Sizes", (), {"sizes": lambda self: {"up": 1}})()
    progress.step(type("Reached", (), {"round": RECENT, "seconds": 1.0, "summary": {}})())
    assert [one["round"] for one in progress.plain()["recent"]] == list(range(1, RECENT + 1))
    assert "ledger" not in progress.plain()
