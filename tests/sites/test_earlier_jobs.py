"""A job outlives the administrator who started it; whoever continues the run ends it first."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.errors import FedweaveError
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.files import SUMMARY
from fedweave.sites.flare import requests
from fedweave.sites.operation import running as deployed
from fedweave.sites.operation.running import RUN, bring, run
from tests.refusals import refusal
from tests.sites.projects import SITES, experiment


class Busy:
    """An `Admin` of a server with one job, which ends once it is asked to."""

    def __init__(self, left: Path) -> None:
        self.left, self.stopped = left, False

    def over(self, job: str) -> str | None:
        if job != "j1":
            raise FedweaveError("no such job")
        return "FINISHED:COMPLETED" if self.stopped else None

    def jobs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(job="j1", run="r1", over=self.stopped)]

    def progress(self, job: str, stop: bool = False) -> None:
        self.stopped |= stop

    def fetch(self, job: str, into: Callable[[Path], None]) -> None:
        into(self.left)


def test_an_earlier_job_is_ended_and_what_it_reached_is_brought(tmp_path: Path) -> None:
    left, out = tmp_path / "left", tmp_path / "out"
    for folder, round in ((left, 7), (out, 3)):
        folder.mkdir()
        (folder / SUMMARY).write_text(str(round))
    told: list[dict[str, Any]] = []
    (out / RUN).write_text(json.dumps({"run": "r1", "job": "j1"}))
    deployed._end_earlier(Busy(left), out, told.append)
    assert (out / SUMMARY).read_text() == "7"
    assert [now["status"] for now in told] == ["ending"]
    for known in ({"run": "r2"}, {"run": "r2", "job": "of another server"}):
        (out / RUN).write_text(json.dumps(known))
        deployed._end_earlier(Busy(left), out, told.append)
    assert len(told) == 1
    (out / RUN).write_text(json.dumps({"run": "r1", "job": "j0"}))  # j1 is the copy that a restarted server has begun
    deployed._end_earlier(Busy(left), out, told.append)
    assert len(told) == 2
    (out / RUN).write_text("{")
    with refusal("file.damaged", "run.json"):
        deployed._end_earlier(Busy(left), out, told.append)


def test_a_run_goes_on_with_the_sites_versions_and_settings_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site compares their fingerprint with the one in its journal; more rounds are the same run."""
    document, sites = experiment().plain(), list(SITES)
    began = requests.pin(document, sites)
    assert requests.pin(document | {"rounds": 99}, sites) == began
    assert requests.pin(document | {"seed": 99}, sites) != began
    assert requests.pin(document, sites[:2]) != began
    monkeypatch.setattr(requests, "release", lambda: "0.0.1")
    assert requests.pin(document, sites) != began


def test_files_that_are_the_same_keep_their_time(tmp_path: Path) -> None:
    """A run's page says when it was trained, not when its models predicted."""
    left, out = tmp_path / "left", tmp_path / "out"
    for folder in (left, out):
        folder.mkdir()
        (folder / SUMMARY).write_text("{}")
    os.utime(out / SUMMARY, (1, 1))
    bring(left, out)
    assert (out / SUMMARY).stat().st_mtime == 1
    (left / SUMMARY).write_text("{ }")
    bring(left, out)
    assert (out / SUMMARY).stat().st_mtime > 1


@pytest.mark.slow
def test_a_run_whose_administrator_was_killed_goes_on_at_once(running: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=400)
    (tmp_path / "long.toml").write_text(dumps(config.plain()))
    words = ["sites", "run", str(tmp_path / "long.toml"), "--sites", str(running), "--out", str(tmp_path / "out")]
    started = subprocess.Popen([sys.executable, "-m", "fedweave", *words], stdout=subprocess.PIPE, text=True)
    assert any(line.startswith("round 2") for line in started.stdout)
    started.send_signal(signal.SIGKILL)
    started.wait()
    time.sleep(3)  # the job goes on
    told: list[dict[str, Any]] = []
    shorter = experiment("fedavg", rounds=450)
    summary = run(shorter, running, tmp_path / "out", True, told.append)
    assert told[0]["status"] == "ending"
    assert max(now.get("after", 0) for now in told) > 2
    assert summary["rounds"] == 450
