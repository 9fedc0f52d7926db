"""A consortium's days with real processes, of three sites and of five: what stops and comes back, releases, members
that join and leave, and runs that are ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

import fedweave
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, to_toml
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, PARTITION, read_table
from fedweave.sites.flare.journal import entries, journal_path
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.sitefile import SITE_FILE
from fedweave.sites.operation.jobs import Job, abort, jobs
from fedweave.sites.operation.membership import add, remove
from fedweave.sites.operation.processes import SiteProcess, descendants, wait_until_open
from fedweave.sites.operation.project import administer, greet, read_project
from fedweave.sites.operation.running import number_of, run, sites_of
from tests.refusals import refusal
from tests.sites.projects import NAMES, check_equal, experiment, make_project, processes, until
from tests.sites.test_sites import Watcher, kill, noted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[3, 5])
def bank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running project of three sites, and one of five."""
    with processes(make_project(tmp_path_factory.mktemp("days") / "bank", sites=NAMES[: request.param])) as project:
        yield project


def planned(bank: Path, rounds: int, parts: Sequence[str] = ("secure_sum",), **settings: Any) -> Config:
    """FedAvg with secure sums for all sites of the project: no round can do without one of them."""
    cut, parts = {"clients": len(read_project(bank).sites)}, list(parts)
    return experiment(rounds=rounds, partition=cut, algorithm_settings={"parts": parts}, wait=300.0, **settings)


def later(seconds: float, act: Callable[[], object]) -> Callable[[], None]:
    """Have it done after a while, as by a machine that starts again."""
    return lambda: threading.Timer(seconds, act).start()


def restarted(folder: Path) -> Callable[[], None]:
    """Kill a member, and have it started again after 15 s."""
    member = SiteProcess(folder)
    start = later(15.0, lambda: member.start(threads=1))

    def act() -> None:
        kill(member)
        start()

    return act


def check_numbers(config: Config, out: Path, metrics: dict[str, Any]) -> None:
    """The model and the metrics of an undisturbed run."""
    expected, _ = check_equal(Checkpoint.load(out / CHECKPOINT), config)
    assert metrics == pytest.approx(expected.summary, abs=1e-5)


def test_a_killed_site_that_comes_back_costs_no_hand_and_no_number(bank: Path, tmp_path: Path) -> None:
    config, watcher = planned(bank, 40), Watcher(10, restarted(bank / "bank-b"))
    summary = run(config, bank, tmp_path / "out", False, watcher)
    assert [now["sites"] for now in watcher.heard if now["status"] == "paused"] == [["bank-b"]]
    check_numbers(config, tmp_path / "out", summary["metrics"])


def test_a_member_that_dies_in_each_attempt_costs_others_no_epsilon(bank: Path, tmp_path: Path) -> None:
    """Its process dies whenever round 2 comes; the site is there again at once."""
    part = {"name": "dp", "epsilon": 1.0, "target_rounds": 3}
    cut = {"clients": len(read_project(bank).sites)}
    config = experiment(rounds=3, partition=cut, algorithm_settings={"parts": ["uniform", part]}, wait=300.0)
    (bank / "bank-b/mischief").write_text(json.dumps({"FedAvg.train/2": "die always"}))
    try:
        with refusal("job.lost-twice", "bank-b"):
            run(config, bank, tmp_path / "out", False, Watcher())
    finally:
        (bank / "bank-b/mischief").unlink()
    journal = entries(journal_path(bank / "bank-a", number_of(tmp_path / "out")))
    trained = [entry for entry in journal if entry.step == "FedAvg.train" and entry.direction == "up"]
    assert [entry.round for entry in trained] == [1, 2, 2]
    assert Spent.of(trained).epsilon(1e-5) == Spent.of(trained[:2]).epsilon(1e-5) < 1.0
    run(config, bank, tmp_path / "out", True, Watcher())
    assert Spent.of(entries(journal_path(bank / "bank-a", number_of(tmp_path / "out")))).epsilon(1e-5) <= 1.0


def test_a_killed_server_that_comes_back_costs_no_hand_and_no_number(bank: Path, tmp_path: Path) -> None:
    config, watcher = planned(bank, 40), Watcher(10, restarted(bank / "server"))
    summary = run(config, bank, tmp_path / "out", False, watcher)
    heard = [now["status"] for now in watcher.heard]
    assert "no-server" in heard
    assert "taken-up" in heard  # the server went on by itself
    check_numbers(config, tmp_path / "out", summary["metrics"])


def listed(bank: Path) -> list[Job]:
    """The jobs of a server that may still be starting: it may close connections for a moment."""
    try:
        return jobs(bank, results=True)
    except FedweaveError:
        return []


def test_a_server_takes_up_its_runs_without_the_administrator(bank: Path, tmp_path: Path) -> None:
    """The machines of both are cut off; only the server's starts again."""
    config, out, server = planned(bank, 40), tmp_path / "out", SiteProcess(bank / "server")
    (tmp_path / "run.toml").write_text(to_toml(config.plain()))
    words = [sys.executable, "-m", "fedweave", "sites", "run", tmp_path / "run.toml", "--sites", bank, "--out", out]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL) as administrator:
        assert until(lambda: any((job.reached or {}).get("round", 0) >= 5 for job in jobs(bank)), 120.0)
        administrator.kill()
    kill(server)
    server.start(threads=1)
    wait_until_open(server, "localhost", read_project(bank).port)
    last = until(lambda: (now := listed(bank)) and now[-1].state == "done" and now[-1], 180.0)
    assert last, jobs(bank, results=True)
    assert jobs(bank)[-2].state == "interrupted"
    summary = run(config, bank, out, True, Watcher())  # only fetches the result
    check_numbers(config, out, summary["metrics"])


@pytest.mark.parametrize(("timeout", "pauses"), [(120.0, 0), (30.0, 1)])
def test_a_site_that_stands_still_for_40_s_is_waited_for(
    bank: Path, tmp_path: Path, timeout: float, pauses: int
) -> None:
    """Within `timeout` nothing happens but time; beyond it the run pauses and goes on."""
    config, site = planned(bank, 20, timeout=timeout), SiteProcess(bank / "bank-b")

    def stop_and_continue() -> None:
        pid = site.pid()
        assert pid is not None
        each = [pid, *descendants(pid)]
        for one in each:
            os.kill(one, signal.SIGSTOP)
        later(40.0, lambda: [os.kill(one, signal.SIGCONT) for one in each])()

    watcher = Watcher(5, stop_and_continue)
    summary = run(config, bank, tmp_path / "out", False, watcher)
    assert len([now for now in watcher.heard if now["status"] == "paused"]) == pauses
    check_numbers(config, tmp_path / "out", summary["metrics"])


@pytest.fixture
def patched(bank: Path, tmp_path: Path) -> Iterator[SiteProcess]:
    """The site bank-b with a patch release: one file of its installation differs."""
    site, own = SiteProcess(bank / "bank-b"), (bank / "bank-b" / SITE_FILE).read_text()
    shutil.copytree(Path(fedweave.__file__).parent, tmp_path / "patch/fedweave", symlinks=True)
    with open(tmp_path / "patch/fedweave/metrics/selection.py", "a") as file:
        file.write("# a patch\n")
    site.stop()
    before = os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = f"{tmp_path / 'patch'}:{before}"
    try:
        site.start(threads=1)
        yield site
    finally:
        os.environ["PYTHONPATH"] = before
        site.stop()
        (bank / "bank-b" / SITE_FILE).write_text(own)
        site.start(threads=1)


def test_a_patch_at_one_site_works_if_its_policy_says_so(bank: Path, patched: SiteProcess, tmp_path: Path) -> None:
    """Otherwise the administrator reads at once why the site is not in the run, with both releases."""
    file = patched.folder / SITE_FILE
    with pytest.raises(FedweaveError) as error:
        run(planned(bank, 3), bank, tmp_path / "refused", False, heard := Watcher())
    assert len(set(re.findall(r"files (\w+)", str(error.value)))) == 2
    assert not [now for now in heard.heard if now["status"] == "paused"]
    file.write_text(file.read_text().replace("[policy]", '[policy]\nreleases = "same-protocol"'))
    config = planned(bank, 3)
    summary = run(config, bank, tmp_path / "out", False, Watcher())
    check_numbers(config, tmp_path / "out", summary["metrics"])
    assert noted(tmp_path / "out") == {}


def started(act: Callable[[], object]) -> tuple[threading.Thread, list[FedweaveError]]:
    """Do it in another thread, and keep its error."""
    errors: list[FedweaveError] = []

    def target() -> None:
        try:
            act()
        except FedweaveError as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, errors


def test_a_site_joins_a_run_is_ended_and_the_site_leaves(bank: Path, tmp_path: Path) -> None:
    """The new site has another's data. A run from before goes on with the sites that it has."""
    before, plain = read_project(bank), planned(bank, 2, parts=())
    run(plain, bank, tmp_path / "earlier", False, Watcher())
    add(bank, "bank-new")
    about = (bank / "bank-a" / SITE_FILE).read_text()
    for path in (bank / "bank-a").glob("*.npz"):
        shutil.copy(path, bank / "bank-new" / path.name)
    random_id = next(line for line in about.splitlines() if line.startswith("random_id"))
    (bank / "bank-new" / SITE_FILE).write_text(about.replace(random_id, 'random_id = "new"'))
    member = SiteProcess(bank / "bank-new")
    try:
        member.start(threads=1)
        with administer(bank) as admin:
            assert until(lambda: "bank-new" in admin.answering_sites())
        longer = replace(plain, general=replace(plain.general, rounds=4))
        summary = run(longer, bank, tmp_path / "earlier", True, Watcher())
        check_numbers(longer, tmp_path / "earlier", summary["metrics"])
        assert sites_of(tmp_path / "earlier") == [*before.sites]
        run(planned(bank, 2, parts=()), bank, tmp_path / "joined", False, Watcher())
        sites = [*before.sites, "bank-new"]
        assert read_table(tmp_path / "joined", PARTITION)["client"].to_pylist() == sites
        endless = planned(bank, 100_000, parts=())
        thread, errors = started(lambda: run(endless, bank, tmp_path / "endless", False, Watcher()))
        assert until(lambda: any((job.reached or {}).get("round", 0) >= 1 for job in jobs(bank)), 120.0)
        with refusal("member.job"):
            remove(bank, "bank-new")
        assert len(abort(bank, str(tmp_path / "endless"))) == 1
        thread.join(120.0)
        assert not thread.is_alive()
        assert [error.code for error in errors] == ["job.aborted"]  # it does not wait for the sites to come back
        assert jobs(bank)[-1].state == "aborted"
        stolen = shutil.copytree(bank / "bank-new/startup", tmp_path / "stolen/startup")
        done = remove(bank, "bank-new")
        assert done.folder is not None
        assert (done.folder / "ledgers").is_dir()
        assert read_project(bank) == before
    finally:
        with suppress(OSError):
            member.stop()
    server = SiteProcess(bank / "server")
    server.stop()
    server.start(threads=1)
    wait_until_open(server, before.host, before.port)
    with refusal("certificate.refused"):
        greet(stolen / "client.crt", before)
    summary = run(plain, bank, tmp_path / "after", False, Watcher())
    check_numbers(plain, tmp_path / "after", summary["metrics"])
