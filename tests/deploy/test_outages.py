"""Sites and servers that stop and come back: a run goes on by itself, with the numbers of an undisturbed one."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.algorithm import calls_of
from fedweave.deploy.flare.link import CollabLink
from fedweave.deploy.flare.server import away
from fedweave.deploy.sites.checking import survived
from fedweave.deploy.sites.project import SiteProcess, descendants
from fedweave.deploy.sites.running import Outage, run
from fedweave.errors import ClientsMissing, FedweaveError
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.models import MODELS
from tests.contract.federations import distance
from tests.deploy.projects import experiment
from tests.deploy.test_sites import Watcher, kill, simulated


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
    monkeypatch.setattr("fedweave.deploy.sites.running.time.monotonic", lambda: now.at)
    outage = Outage(60.0, tmp_path)
    assert outage.left() == 60
    now.at = 50.0
    assert outage.left() == 10
    now.at = 70.0
    assert outage.left() == 0
    Checkpoint(round=1).save(tmp_path / CHECKPOINT)
    assert outage.left() == 60
    assert Outage(0.0, tmp_path).left() == 0


def test_a_stalled_site_is_lost_at_the_deadline_and_a_dead_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes back from either; only of the dead one the connection is gone."""
    failures = {"a": SimpleNamespace(cause=TimeoutError("10 s")), "b": SimpleNamespace(cause="target unreachable")}

    class Replies(list):  # type: ignore[type-arg]
        pass

    replies = Replies()
    replies.failures = failures  # type: ignore[attr-defined]
    group = SimpleNamespace(ping=lambda: replies)
    collab = SimpleNamespace(clients=[], get_clients=lambda sites: lambda **more: group)
    monkeypatch.setattr("fedweave.deploy.flare.link.collab", collab)
    link = CollabLink(60.0)
    call: Any = SimpleNamespace(number=1, waiting={"a", "b"})
    link._probe([call])
    assert call.waiting == {"a"}
    assert link.lost.keys() == {"b"}


def later(seconds: float, act: Any) -> Any:
    """Have it done after a while, as by a machine that starts again."""
    return lambda: threading.Timer(seconds, act).start()


def restarted(folder: Path) -> Any:
    """Kill a member, and have it started again after 15 s."""
    member = SiteProcess(folder)
    start = later(15.0, lambda: member.start(threads=1))
    return lambda: (kill(member), start())


def ended_as_the_simulation(config: Any, out: Path, summary: Any) -> None:
    expected, _ = simulated(config)
    assert distance(Checkpoint.load(out / CHECKPOINT).state, expected.state) <= 1e-5
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)


@pytest.mark.slow
def test_a_killed_site_that_comes_back_costs_no_hand_and_no_number(running: Path, tmp_path: Path) -> None:
    config, watcher = experiment("fedavg", rounds=40, wait=300.0), Watcher(10, restarted(running / "bank-b"))
    summary = run(config, running, tmp_path / "out", False, watcher)
    assert [now["sites"] for now in watcher.heard if now["status"] == "paused"] == [["bank-b"]]
    ended_as_the_simulation(config, tmp_path / "out", summary)


@pytest.mark.slow
def test_a_killed_server_that_comes_back_costs_no_hand_and_no_number(running: Path, tmp_path: Path) -> None:
    config, watcher = experiment("fedavg", rounds=40, wait=300.0), Watcher(10, restarted(running / "server"))
    summary = run(config, running, tmp_path / "out", False, watcher)
    assert any(now["status"] == "no-server" for now in watcher.heard)
    ended_as_the_simulation(config, tmp_path / "out", summary)


@pytest.mark.slow
@pytest.mark.parametrize(("timeout", "pauses"), [(120.0, 0), (10.0, 1)])
def test_a_site_that_stands_still_is_waited_for(running: Path, tmp_path: Path, timeout: float, pauses: int) -> None:
    """Within `timeout` nothing happens but time; beyond it the run pauses and goes on."""
    config, site = experiment("fedavg", rounds=20, timeout=timeout, wait=300.0), SiteProcess(running / "bank-b")

    def stop_and_continue() -> None:
        pid = site.pid()
        assert pid is not None
        each = [pid, *descendants(pid)]
        for one in each:
            os.kill(one, signal.SIGSTOP)
        later(25.0, lambda: [os.kill(one, signal.SIGCONT) for one in each])()

    watcher = Watcher(5, stop_and_continue)
    summary = run(config, running, tmp_path / "out", False, watcher)
    assert len([now for now in watcher.heard if now["status"] == "paused"]) == pauses
    ended_as_the_simulation(config, tmp_path / "out", summary)


@pytest.mark.parametrize(
    ("sites", "settings", "said"),
    [
        (3, {}, "a round needs all 3 sites; while one is away, the run waits up to 60 min and then ends"),
        (3, {"wait": 0.0}, "a round needs all 3 sites; while one is away, the run ends"),
        (5, {"quorum": 0.6}, "a round needs 3 of 5 sites and goes on without the others"),
        (
            5,
            {"algorithm_settings": {"parts": ["secure_sum"]}},
            "require_all = false in the part secure_sum lets",
        ),
    ],
)
def test_a_check_says_what_outage_a_run_survives(sites: int, settings: dict[str, Any], said: str) -> None:
    config = experiment("fedavg", **({"wait": 3600.0} | settings))
    algorithm = config.algorithm.make(MODELS["gcn"](hidden=4).build(3, 2))
    assert said in survived(config, algorithm, calls_of(algorithm, "fedavg", sites), sites)
