"""Sites are killed while a run goes on: it ends as an undisturbed one does, and nothing of it is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from benchmarks.load import Reaper, kill, ledger_replies, missing_rounds, simulate
from fedweave.experiment.config import resolve
from fedweave.sites.flare.link import ABSENT
from fedweave.sites.operation.processes import SiteProcess
from fedweave.sites.operation.project import administer
from fedweave.sites.operation.running import _is_back, run
from tests.sites.projects import SITES, experiment


class Connected:
    """An administrator's session that answers who is connected."""

    def __init__(self, *answers: set[str]) -> None:
        self._answers = iter(answers)

    def answering_sites(self, among: list[str]) -> list[str]:
        return sorted(next(self._answers).intersection(among))


def test_a_lost_site_is_back_once_it_answers() -> None:
    admin: Any = Connected({"a"}, {"a", "b"})
    here, lost = {"a", "b"}, {"b": "it is gone"}
    assert [_is_back(admin, lost, here) for _ in range(2)] == [False, True]


def test_a_site_that_was_not_there_is_taken_in_but_not_one_that_refused_the_job() -> None:
    admin: Any = Connected({"a", "b"}, {"a", "b", "c"}, {"a", "c"}, {"a", "b", "c"})
    here, lost = {"a", "b"}, {"b": ABSENT, "c": ABSENT}
    assert [_is_back(admin, lost, here) for _ in range(2)] == [False, True]
    del lost["c"]
    assert [_is_back(admin, lost, here) for _ in range(2)] == [False, True]  # it has been away since


@pytest.mark.slow
def test_a_dead_site_does_not_count_as_connected(running: Path) -> None:
    site = SiteProcess(running / "bank-b")
    with administer(running) as admin:
        assert admin.wait_for(SITES, 60) == list(SITES)
        kill(site)
        listed = [client.name for client in admin._session.get_connected_client_list()]
        assert sorted(listed) == list(SITES)  # what NVFlare's server still believes
        assert admin.answering_sites() == ["bank-a", "bank-c"]
        site.start(threads=1)
        assert admin.wait_for(SITES, 60) == list(SITES)


@pytest.mark.slow
def test_a_run_whose_sites_are_killed_ends_like_an_undisturbed_one(running: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=300, quorum=0.6, rejoin_seconds=0.0)
    reaper = Reaper(running, SITES, 100, np.random.default_rng(0))
    summary = run(config, running, tmp_path / "out", False, reaper)
    assert [at // 100 for at, _ in reaper.kills] == [1, 2]
    missing = missing_rounds(tmp_path / "out")
    assert set(missing) == {site for _, site in reaper.kills}
    assert all(any(at < round <= at + 100 for round in missing[site]) for at, site in reaper.kills)
    ledger = ledger_replies(tmp_path / "out", running, 300)
    assert (ledger["absent"], ledger["unsent"]) == ([], [])
    assert set(ledger["replies"]) == set(SITES)
    assert all(count < 300 for site, count in ledger["replies"].items() if site in missing)
    calm = [simulate(resolve(config.plain() | {"seed": seed})) for seed in range(3, 8)]
    assert summary["metrics"]["local/accuracy"] == pytest.approx(np.mean(calm), abs=2 * np.std(calm, ddof=1) + 0.005)
