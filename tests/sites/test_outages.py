"""What decides whether a run waits for sites and servers that are away. `test_days` has real processes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.algorithm import calls_of
from fedweave.errors import ClientsMissing, FedweaveError
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.models import MODELS
from fedweave.sites.flare.link import CollabLink
from fedweave.sites.flare.server import away
from fedweave.sites.operation import running
from fedweave.sites.operation.project import Project
from fedweave.sites.operation.running import Outage
from fedweave.sites.operation.site_check import outage_summary
from fedweave.sites.operation.status import last_progress, progress
from tests.refusals import check_facts, refusal
from tests.sites.projects import experiment


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ClientsMissing("train", {"b": "it is gone"}, 3, 3), ("b",)),
        (ClientsMissing("train", {"b": "it is gone", "c": "forbidden by policy.calls"}, 3, 3), ()),
        (FedweaveError("the disk is full"), ()),
    ],
)
def test_a_run_waits_only_where_silence_alone_has_ended_it(error: FedweaveError, found: tuple[str, ...]) -> None:
    assert away(error, {"b", "d"}) == (found if isinstance(error, ClientsMissing) else ())


def test_an_outage_without_a_round_in_between_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies again and again does not hold a run for ever; a round that is saved begins the time anew."""
    now = SimpleNamespace(at=0.0)
    monkeypatch.setattr("fedweave.sites.operation.running.time.monotonic", lambda: now.at)
    outage = Outage(60.0, tmp_path)
    assert outage.remaining() == 60
    now.at = 50.0
    assert outage.remaining() == 10
    now.at = 70.0
    assert outage.remaining() == 0
    Checkpoint(round=1).save(tmp_path / CHECKPOINT)
    assert outage.remaining() == 60
    assert Outage(0.0, tmp_path).remaining() == 0


FAILED = {"status": "failed", "round": 3, "error": "it is gone", "away": ("bank-b",), "lost": {}, "mistake": False}


@pytest.mark.parametrize(("removed", "waits"), [((), True), (("bank-b",), False), (("bank-c",), True)])
def test_a_run_waits_for_no_site_that_has_left_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: tuple[str, ...], waits: bool
) -> None:
    (tmp_path / "admin").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(running, "_wait_for_sites", lambda *about: ["bank-a", "bank-c"])
    monkeypatch.setattr(running, "_watch", lambda *about: dict(FAILED))
    asked: list[tuple[str, ...]] = []
    admin: Any = SimpleNamespace(
        submit=lambda *job: "j1", wait_for=lambda sites, remaining: asked.append(tuple(sites)) or []
    )
    about, config = Project(("bank-a", "bank-b", "bank-c"), "localhost", 9), experiment()
    outage = Outage(60.0, tmp_path / "out", removed)
    with pytest.raises(FedweaveError):
        running._run_jobs(admin, config, about, "r1", tmp_path, tmp_path / "out", lambda now: None, 1.0, outage)
    assert asked == [("bank-b",)] * waits


def test_a_site_that_is_lost_twice_in_a_round_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose process dies whenever it is asked would have the others answer again and again."""
    (tmp_path / "admin").mkdir()
    (tmp_path / "out").mkdir()
    jobs: list[int] = []

    def watch(*about: object) -> dict[str, Any]:
        jobs.append(len(jobs))
        if len(jobs) == 2:  # the round ends, and the next one does not
            Checkpoint(round=1).save(tmp_path / "out" / CHECKPOINT)
        return dict(FAILED)

    monkeypatch.setattr(running, "_wait_for_sites", lambda *about: [])
    monkeypatch.setattr(running, "_watch", watch)
    admin: Any = SimpleNamespace(submit=lambda *job: "j1", wait_for=lambda sites, remaining: list(sites))
    about, config = Project(("bank-a", "bank-b", "bank-c"), "localhost", 9), experiment()
    outage = Outage(60.0, tmp_path / "out")
    with refusal("job.lost-twice", "bank-b"):
        running._run_jobs(admin, config, about, "r1", tmp_path, tmp_path / "out", lambda now: None, 1.0, outage)
    assert len(jobs) == 3


@pytest.mark.parametrize(("state", "code"), [("FINISHED:ABORTED", "job.aborted"), ("FINISHED:COMPLETED", None)])
def test_an_aborted_job_is_no_outage_of_its_sites(tmp_path: Path, state: str, code: str | None) -> None:
    """For its server they fall silent."""
    admin: Any = SimpleNamespace(over=lambda job: state, fetch=lambda job, into: dict(FAILED))
    last = running._watch(admin, experiment(), set(), "j1", tmp_path, lambda now: None)
    assert last.get("code") == code
    assert last["away"] == (() if code else ("bank-b",))


@pytest.mark.parametrize(
    ("runs", "over", "answers", "followed"),
    [
        ({"j1": False}, {"j1": None}, True, "j1"),  # the connection was lost, and the job goes on
        ({"j1": True, "j2": False}, {"j1": "FINISHED:ABNORMAL"}, False, "j2"),  # the server has started a copy
        ({"j1": True}, {"j1": "FINISHED:ABNORMAL"}, False, ""),  # the server has not: it was away for too long
        ({"j1": False}, {"j1": None}, False, ""),  # a server of an earlier version never marks it
    ],
)
def test_the_administrator_follows_the_job_that_goes_on(
    tmp_path: Path, runs: dict[str, bool], over: dict[str, str | None], answers: bool, followed: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "job": "j1"}))
    listed = [SimpleNamespace(job=job, run="r1", over=ended) for job, ended in runs.items()]
    listed.append(SimpleNamespace(job="j9", run="r9", over=False))
    admin: Any = SimpleNamespace(over=over.get, progress=lambda job: {} if answers else None, jobs=lambda: listed)
    assert running._running_job(admin, tmp_path, 0.0) == followed


@pytest.mark.parametrize("begins", [True, False])
def test_a_copy_that_waits_for_a_dead_site_holds_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """NVFlare would look for all sites of the interrupted job for 40 minutes, also for those beyond the quorum."""
    (tmp_path / "admin").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(running, "_wait_for_sites", lambda *about: ["bank-a", "bank-c"])
    watched: list[str] = []
    monkeypatch.setattr(running, "_watch", lambda *about: watched.append(about[3]) or dict(FAILED))
    over: dict[str, str] = {}
    admin: Any = SimpleNamespace(
        submit=lambda *job: "j3",
        over=over.get,
        abort=lambda job: over.update({job: "FINISHED:ABORTED"}),
        progress=lambda job, stop=False: {} if begins else None,
    )
    about, config, out = Project(("bank-a", "bank-b", "bank-c"), "localhost", 9), experiment(), tmp_path / "out"
    with pytest.raises(FedweaveError):
        running._run_jobs(admin, config, about, "r1", tmp_path, out, lambda now: None, 0.0, Outage(0.0, out), "j2")
    assert (watched, [*over]) == ((["j2"], []) if begins else (["j3"], ["j2"]))


def test_a_stalled_site_is_lost_at_the_deadline_and_a_dead_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes back from either; only of the dead one the connection is gone."""
    failures = {"a": SimpleNamespace(cause=TimeoutError("10 s")), "b": SimpleNamespace(cause="target unreachable")}

    class Replies(list):
        pass

    replies = Replies()
    replies.failures = failures
    group = SimpleNamespace(ping=lambda: replies)
    collab = SimpleNamespace(clients=[], get_clients=lambda sites: lambda **more: group)
    monkeypatch.setattr("fedweave.sites.flare.link.collab", collab)
    link = CollabLink(60.0)
    call: Any = SimpleNamespace(number=1, waiting={"a", "b"})
    link._probe([call])
    assert call.waiting == {"a"}
    assert link.lost.keys() == {"b"}


@pytest.mark.parametrize(
    ("sites", "settings", "said"),
    [
        (3, {}, "a round needs all 3 sites; while one is away, the run waits up to 60 min and then ends"),
        (3, {"wait": 0.0}, "a round needs all 3 sites; while one is away, the run ends"),
        (5, {"quorum": 0.6}, "a round needs 3 of 5 sites and goes on without the others"),
        (5, {"algorithm_settings": {"parts": ["secure_sum"]}}, "require_all = false in the part secure_sum lets"),
    ],
)
def test_a_check_says_what_outage_a_run_survives(sites: int, settings: dict[str, Any], said: str) -> None:
    config = experiment("fedavg", **({"wait": 3600.0} | settings))
    algorithm = config.algorithm.make(MODELS["gcn"](hidden=4).build(3, 2))
    assert said in outage_summary(config, algorithm, calls_of(algorithm, "fedavg", sites), sites)


@pytest.mark.parametrize(
    ("last", "away", "said"),
    [
        (FAILED, ["bank-b"], "waiting for bank-b, 60 s at most, 3 of 4 rounds done"),
        ({}, ["bank-b", "bank-c"], "waiting for bank-b, bank-c, 60 s at most, 0 of 4 rounds done"),
        (FAILED, [], "waiting for server, 60 s at most, 3 of 4 rounds done"),
    ],
)
def test_status_says_that_a_run_waits_and_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], away: list[str], said: str
) -> None:
    (tmp_path / "admin").mkdir()
    heard: list[dict[str, Any]] = []
    news = running.ProgressFile(heard.append, tmp_path, tmp_path / "out", 0, 4, 60.4)

    def line() -> str:
        return progress(last_progress(tmp_path) or {})

    for error, end in ((KeyboardInterrupt(), "stopped"), (FedweaveError("nobody came"), "failed")):
        if last:
            news(last | {"rounds": 4})
            check_facts(line(), "bank-b, 60 s", "3 of 4")
        news({"status": "paused", "sites": away, "seconds": 60.4})
        check_facts(line(), f"out: {said}")
        assert "not watched" not in line()
        with pytest.raises(type(error)), news:
            raise error
        check_facts(line(), f"out: {end}, {said.rpartition(', ')[2]}")
    assert heard[-1]["status"] == "paused"
    news({"status": "paused", "sites": away, "seconds": -100.0})  # its process was killed long ago
    check_facts(line(), "not watched")
    news({"status": "submitted", "sites": ["bank-a"]})
    check_facts(line(), "starting")
