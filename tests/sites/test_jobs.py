"""Jobs as the administrator sees and ends them, by NVFlare's own records of jobs."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from nvflare.apis.job_def import JobMetaKey, RunStatus
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.experiment.runs.files import RUN
from fedweave.sites.flare.admin import Admin
from fedweave.sites.flare.gatekeeper import restart_jobs
from fedweave.sites.flare.server import Progress
from fedweave.sites.operation import jobs
from tests.refusals import refusal


class Session:
    """NVFlare's, of a server with four jobs of three runs."""

    def __init__(self, deaf: bool = False) -> None:
        self.deaf = deaf
        self.of = {"j1": ("r1", RunStatus.FINISHED_COMPLETED), "j2": ("r1", RunStatus.RUNNING)}
        self.of |= {"j3": ("r2", RunStatus.FINISHED_ABORTED), "j4": ("r3", RunStatus.SUBMITTED)}

    def _meta(self, job: str) -> dict[str, Any]:
        run, status = self.of[job]
        keys = JobMetaKey.JOB_ID, JobMetaKey.JOB_NAME, JobMetaKey.STATUS, JobMetaKey.SUBMIT_TIME
        return {key.value: value for key, value in zip(keys, (job, f"fedweave-{run}", status.value, 0.5), strict=True)}

    def list_jobs(self, detailed: bool, limit: int) -> list[dict[str, Any]]:
        assert detailed
        return list(map(self._meta, self.of))[-limit:]

    def do_app_command(self, job: str, topic: str, data: object) -> dict[str, Any]:
        if self.of[job][1] != RunStatus.RUNNING:
            raise RuntimeError("no such job runs")
        return Progress("running", 3, 9).plain() | {"lost": {"bank-b": "it is gone\x1b[2J"}}

    def get_job_status(self, job: str) -> str:
        return self.of[job][1].value

    def abort_job(self, job: str) -> None:
        if not self.deaf:
            self.of[job] = self.of[job][0], RunStatus.FINISHED_ABORTED

    def download_job_result(self, job: str, folder: str) -> str:
        if job == "j1":
            (Path(folder) / "fedweave").mkdir()
            record = Progress("failed", 2, 9, error="the disk is full").plain()
            (Path(folder) / "fedweave/progress.json").write_text(json.dumps(record))
        return folder


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    monkeypatch.setattr(jobs, "administer", lambda project: nullcontext(Admin(made)))
    return made


def sites(*words: object, code: int = 0) -> list[str]:
    done = CliRunner().invoke(app, ["sites", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.stdout.splitlines()


def test_jobs_are_listed_with_their_rounds_and_missing_sites(session: Session) -> None:
    at = "1970-01-01 00:00:00 UTC  "
    lines = [
        f"{at}run r1; ended; job j1",
        f"{at}run r1; running; round 3 of 9; missing: bank-b (it is gone\\x1b[2J); job j2",
        f"{at}run r2; aborted; job j3",
        f"{at}run r3; waiting; job j4",
    ]
    assert sites("jobs", "bank") == lines
    lines[0] = f"{at}run r1; failed; round 2 of 9; the disk is full; job j1"  # for NVFlare it came to its end
    assert sites("jobs", "bank", "--results") == lines


@pytest.mark.parametrize(("named", "ended"), [("r1", "j2"), ("j2", "j2"), ("j4", "j4"), ("out", "j2")])
def test_a_job_is_ended_by_its_number_its_runs_or_the_runs_directory(
    session: Session, tmp_path: Path, named: str, ended: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RUN).write_text(json.dumps({"run": "r1", "project": "bank"}))
    before = dict(session.of)
    assert [line.split()[-3] for line in sites("abort", "bank", tmp_path / "out" if named == "out" else named)] == [
        ended
    ]
    assert {job for job, about in session.of.items() if about != before[job]} == {ended}


@pytest.mark.parametrize(
    ("named", "code"), [("r9", "job.unknown"), ("", "job.unknown"), ("r2", "job.over"), ("j1", "job.over")]
)
def test_a_job_that_is_none_or_over_cannot_be_ended(session: Session, named: str, code: str) -> None:
    before = dict(session.of)
    with refusal(code):
        jobs.abort(Path("bank"), named)
    sites("abort", "bank", named, code=2)
    assert session.of == before


def test_a_server_that_does_not_end_a_job_is_no_success(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.deaf, clock = True, iter(range(99))
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    with refusal("job.alive"):
        jobs.abort(Path("bank"), "r1", seconds=1.0)


class Manager:
    """NVFlare's store of jobs, with one job of each run in a state."""

    def __init__(self, runs: list[str]) -> None:
        self.status = {f"job-{run}": RunStatus.RUNNING for run in runs}
        self.copies: list[dict[str, Any]] = []

    def get_jobs_by_status(self, wanted: list[RunStatus], fl_ctx: object) -> list[SimpleNamespace]:
        details = ["server: OK", "bank-a: OK", "bank-b: it refuses", "bank-c: OK"]
        return [
            SimpleNamespace(
                job_id=job,
                meta={
                    "name": f"fedweave-{job[4:]}",
                    "job_deploy_detail": details,
                    "schedule_count": 3,
                    "min_clients": 1,
                },
            )
            for job, status in self.status.items()
            if status in wanted
        ]

    def get_all_jobs(self, fl_ctx: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(meta=copy) for copy in self.copies] + self.get_jobs_by_status([*RunStatus], fl_ctx)

    def clone(self, job: str, meta: dict[str, Any], fl_ctx: object) -> None:
        self.copies.append({"of": job, **meta})

    def set_status(self, job: str, status: RunStatus, fl_ctx: object) -> None:
        self.status[job] = status


@pytest.mark.parametrize(
    ("wait", "ago", "done", "goes_on"),
    [
        (60, 10, False, True),
        (60, 100, False, False),
        (0, 0, False, False),
        (60, 10, True, False),
        (None, 0, False, False),
    ],
)
def test_a_server_that_starts_goes_on_with_what_it_was_stopped_in(
    tmp_path: Path, wait: float | None, ago: float, done: bool, goes_on: bool
) -> None:
    """Not after `engine.wait`, not with a run that is trained, and not with a job before its first message."""
    (tmp_path / "runs/r1").mkdir(parents=True)
    (tmp_path / "ledgers").mkdir()
    if wait is not None:
        (tmp_path / "runs/r1/config.toml").write_text(f"[engine]\nwait = {wait}\n")
        (tmp_path / "ledgers/r1.jsonl").touch()
        os.utime(tmp_path / "ledgers/r1.jsonl", (time.time() - ago,) * 2)
    if done:
        (tmp_path / "runs/r1/summary.json").touch()
    manager = Manager(["r1"])
    restart_jobs(manager, None, tmp_path)
    assert manager.status == {"job-r1": RunStatus.FINISHED_ABNORMAL}  # it is listed as interrupted, and not as running
    copy = {"of": "job-r1", "name": "fedweave-r1", "min_clients": 1, "cloned_from": "job-r1"}
    assert manager.copies == [copy | {"mandatory_clients": ["bank-a", "bank-c"]}] * goes_on
    restart_jobs(manager, None, tmp_path)
    assert len(manager.copies) == goes_on
    manager.status["job-r1"] = RunStatus.RUNNING  # killed after the copy was made, and before this was noted
    restart_jobs(manager, None, tmp_path)
    assert (len(manager.copies), manager.status) == (goes_on, {"job-r1": RunStatus.FINISHED_ABNORMAL})
