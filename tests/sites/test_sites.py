"""Real processes over TLS on this machine: the same numbers as the simulation, and every fault really happens."""

import json
import os
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.cli import app
from fedweave.core.tree import decode
from fedweave.errors import FedweaveError
from fedweave.experiment.config import load
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, EARLIER_LEDGER, LEDGER, METRICS, PARTITION, read_table
from fedweave.privacy.gaussian import epsilon
from fedweave.sites.flare.journal import entries, journal_path, journals, read_journal
from fedweave.sites.flare.member import LOG
from fedweave.sites.flare.sitefile import FINE
from fedweave.sites.operation.processes import SiteProcess, descendants, wait_until_open
from fedweave.sites.operation.project import read_project
from fedweave.sites.operation.running import FILES, run
from tests import commands
from tests.contract.federations import distance
from tests.refusals import check_facts
from tests.sites.projects import (
    SITES,
    Ran,
    bring,
    check_equal,
    cut_again,
    experiment,
    renamed,
    set_policy,
    simulated,
    tables,
)


class Watcher:
    """Keeps what a run tells, and calls `act` once when round `at` is reached."""

    def __init__(self, at: int = 0, act: Any = None) -> None:
        self.heard: list[dict[str, Any]] = []
        self._at, self._act = at, act

    def __call__(self, now: dict[str, Any]) -> None:
        self.heard.append(now)
        if self._act is not None and now.get("round", 0) >= self._at:
            act, self._act = self._act, None
            act()


def kill(member: SiteProcess) -> None:
    """End a member's processes as a power cut does."""
    pid = member.pid()
    assert pid is not None
    for each in [pid, *descendants(pid)]:
        os.kill(each, signal.SIGKILL)
    while member.pid() is not None:  # a dying process can still be taken for one that runs
        time.sleep(0.01)


def noted(directory: Path) -> dict[tuple[str, str], set[int]]:
    """{(site, fault): rounds} from metrics.parquet."""
    found: dict[tuple[str, str], set[int]] = {}
    for row in read_table(directory, METRICS).to_pylist():
        if row["metric"] in ("missing", "refused", "late"):
            found.setdefault((row["client"], row["metric"]), set()).add(row["round"])
    return found


def test_fedavg_is_the_simulation_and_leaves_the_same_files(ran: Ran) -> None:
    config, out, summary, told = ran
    expected, _ = simulated(config)
    reached = Checkpoint.load(out / CHECKPOINT)
    assert distance(reached.state, expected.state) <= 1e-5
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    assert all((out / name).is_file() for name in FILES if name != EARLIER_LEDGER)  # it began from no run
    assert load(out / "config.toml") == config.plain()
    assert {now.get("status") for now in told} & {"running", "done"}
    assert noted(out) == {}
    totals = Counter()
    for row in read_table(out, LEDGER).to_pylist():
        totals[row["direction"]] += row["bytes"]
    assert totals == {"up": summary["bytes_up"], "down": summary["bytes_down"]}


@pytest.mark.parametrize("cheat", ["server", "bank-c"])
def test_nobody_has_a_site_show_or_delete_its_files_or_stop(ran: Ran, running: Path, cheat: str) -> None:
    """NVFlare's client does all of it for whoever sends it a message that does not ask for rights to be looked at."""
    victim = running / "bank-a"
    asked = [
        ["bank-a", "sys.shell", {}, f"cat {victim / 'site.toml'}"],
        ["bank-a", "sys.shell", {}, "cat startup/client.key"],
        ["bank-a", "train.delete_run", {"job_id": "ledgers"}, ""],
        ["bank-a", "train.deploy", {"job_id": "ledgers", "job_meta": {"job_id": "ledgers"}, "app_name": "app"}, ""],
        ["bank-a", "train.deploy", {"job_id": "", "job_meta": {"job_id": ""}, "app_name": "app"}, ""],
        ["bank-a", "train.start_job", {}, ""],
        ["bank-a", "sys.report_env", {}, ""],
        ["bank-a", "train.restart", {}, ""],
        ["bank-a", "train.shutdown", {}, ""],
    ]
    files = {path: path.read_bytes() for path in victim.rglob("*.jsonl")}
    assert files  # of the run before
    (running / cheat / "ask.tmp").write_text(json.dumps(asked))
    (running / cheat / "ask.tmp").rename(running / cheat / "ask")
    answers = running / cheat / "asked"
    while not answers.exists():
        time.sleep(0.05)
    said = json.loads(answers.read_text())
    answers.unlink()
    wanted = ["only the server may ask a site"] if cheat != "server" else ["invalid_request", "a job's id is none that"]
    assert len(said) == len(asked)
    assert all(any(words in one for words in wanted) for one in said), said
    assert {path: path.read_bytes() for path in victim.rglob("*.jsonl")} == files
    assert SiteProcess(victim).pid() is not None


@pytest.mark.slow
def test_a_misbehaving_site_is_named_left_out_and_taken_back(running: Path, tmp_path: Path) -> None:
    plan = {
        "FedAvg.train/2": "nan",
        "FedAvg.train/3": "shape",
        "FedAvg.train/4": "garbage",
        "FedAvg.train/5": "form",
        "FedAvg.train/6": "huge",
        "FedAvg.train/8": "hang 8",
    }
    (running / "bank-c/mischief").write_text(json.dumps(plan))
    config = experiment("fedavg", rounds=400, timeout=6.0, quorum=0.6, rejoin_seconds=0.0, reply_mb=10.0)
    site = SiteProcess(running / "bank-c")

    def kill_and_start_again() -> None:
        kill(site)
        site.start(threads=1)

    watcher = Watcher(100, kill_and_start_again)
    summary = run(config, running, tmp_path / "out", False, watcher)
    assert summary["rounds"] == 400
    found = noted(tmp_path / "out")
    assert {site for site, _ in found} == {"bank-c"}
    assert {2, 3, 4, 6} <= found["bank-c", "refused"]
    assert {2, 3, 4, 5, 6, 8} <= found["bank-c", "missing"]
    assert len(found["bank-c", "late"]) == 1
    assert max(found["bank-c", "missing"]) in range(100, 400)
    assert any(now["status"] == "rejoined" and now["sites"] == ["bank-c"] for now in watcher.heard)


@pytest.mark.slow
def test_an_answer_that_is_lost_is_asked_for_again_within_seconds(running: Path, tmp_path: Path) -> None:
    """It is on its way for a minute; the site waits for calls meanwhile."""
    (running / "bank-c/mischief").write_text(json.dumps({"FedAvg.train/2": "lose"}))
    run(experiment("fedavg", rounds=3, timeout=200.0), running, tmp_path / "out", False, Watcher())
    assert not noted(tmp_path / "out")
    last = max(journals(running / "bank-c"), key=lambda path: path.stat().st_mtime)
    at = {note.get("round", note["note"]): datetime.fromisoformat(note["at"]) for note in read_journal(last).notes}
    assert (at[2] - at["joined"]).total_seconds() < 50
    check_facts((running / "server" / LOG).read_text(), "bank-c")


@pytest.mark.slow
def test_a_killed_server_resumes_with_nothing_lost(running: Path, tmp_path: Path) -> None:
    """The server's processes die in the middle; sites go back to its checkpoint. A round done again
    stands twice with every site, and with the server unless the replies were on their way when it died."""
    config, server = experiment("local", rounds=40, checkpoint_seconds=1.5), SiteProcess(running / "server")

    with pytest.raises(FedweaveError):
        run(config, running, tmp_path / "out", False, Watcher(20, lambda: kill(server)))
    server.start(threads=1)
    wait_until_open(server, "localhost", read_project(running).port)
    summary = run(config, running, tmp_path / "out", True, Watcher())
    expected, sim = simulated(config)
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    number = json.loads((tmp_path / "out/run.json").read_text())["run"]
    for site, client in zip(SITES, sim.clients, strict=True):
        kept = decode((running / site / "runs" / number / "state.safetensors").read_bytes())
        assert distance(kept, sim.snapshot()[client]) <= 1e-5
    heard = Counter(
        (row["client"], row["round"])
        for row in read_table(tmp_path / "out", LEDGER).to_pylist()
        if row["step"] == "Local.train" and row["direction"] == "up"
    )
    sent = Counter(
        (site, entry.round)
        for site in SITES
        for entry in entries(journal_path(running / site, number))
        if entry.step == "Local.train" and entry.direction == "up"
    )
    assert sent.keys() == heard.keys() == {(site, round) for site in SITES for round in range(1, 41)}
    assert all(heard[call] <= sent[call] <= 2 for call in sent)
    assert len({round for site, round in sent if heard[site, round] < sent[site, round]}) <= 1


@pytest.mark.slow
def test_secure_sums_where_a_policy_asks_for_them(owned: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=3, algorithm_settings={"parts": ["secure_sum"]})
    set_policy(owned, f'secure_sum = ["update", "n"]\nmeasures = {[*FINE]}')
    summary = run(config, owned, tmp_path / "out", False, Watcher())
    expected, _ = check_equal(Checkpoint.load(tmp_path / "out" / CHECKPOINT), config, within=0.0)
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    assert noted(tmp_path / "out") == {}
    for name, about in (("audit", owned / "bank-b"), ("ledger", owned / "bank-b"), ("ledger", tmp_path / "out")):
        told = CliRunner().invoke(app, [name, str(about)], env={"COLUMNS": "300"})
        assert told.exit_code == 0, told.output
        check_facts(told.output, "secure sum")


@pytest.mark.slow
def test_noised_updates_leave_until_a_sites_cap_is_reached(owned: Path, tmp_path: Path) -> None:
    """σ = 8: a round has μ = 1/4, and three fit under ε = epsilon(√3 / 4). A run of three fits once."""
    config = experiment("dp_fedavg", rounds=3, algorithm_settings={"clip": 0.5, "sigma": 8.0})
    cap = epsilon(3**0.5 / 4, 1e-5)
    set_policy(owned, f'algorithms = ["dp_fedavg"]\nepsilon = {cap + 1e-9}\nunbounded = ["own", "trained"]')
    heard = Watcher()
    run(config, owned, tmp_path / "out", False, heard)
    assert max(now.get("round", 0) for now in heard.heard) == 3
    with pytest.raises(FedweaveError, match=r"bank-b: .*policy\.epsilon: ε = .* would lose the site in round 1 of 3"):
        run(config, owned, tmp_path / "again", False, Watcher())
    told = CliRunner().invoke(app, ["audit", str(owned / "bank-b")], env={"COLUMNS": "300"})
    check_facts(told.output, "policy.epsilon")


@pytest.mark.slow
def test_fedego_whose_server_trains_and_tells_every_site_something_else(running: Path, tmp_path: Path) -> None:
    config = experiment("fedego", rounds=2, algorithm_settings={"batches": 2, "epochs": 1, "server_epochs": 1})
    summary = run(config, running, tmp_path / "out", False, Watcher())
    expected, _ = check_equal(Checkpoint.load(tmp_path / "out" / CHECKPOINT), config)
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    told = commands.run("sites", "predict", tmp_path / "out", "--sites", running)
    for site, line in zip(SITES, told.splitlines()[-len(SITES) :], strict=True):
        path = running / line.removeprefix("predictions: ").partition(" (")[0]
        assert path.parts[-4] == site
        assert set(pq.read_table(path)["client"].to_pylist()) == {site}


@pytest.mark.slow
def test_fairgfl_weighs_sites_as_the_simulation_does_by_noise_of_their_own(owned: Path, tmp_path: Path) -> None:
    config = experiment("fairgfl", rounds=3)
    cut_again(owned, config)
    summary = run(config, owned, tmp_path / "out", False, Watcher())
    expected, sim = simulated(config)
    told, reached = renamed(expected.state, sim), Checkpoint.load(tmp_path / "out" / CHECKPOINT).state
    told["parts"]["OverlapWeights"].pop("true")  # which no server knows
    assert 0 < float(reached["parts"]["OverlapWeights"]["weight"].min()) < 0.9 / len(SITES)  # some overlap was found
    assert distance(reached, told) <= 1e-5
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    number = json.loads((tmp_path / "out/run.json").read_text())["run"]
    for site, client in zip(SITES, sim.clients, strict=True):
        here = decode((owned / site / "runs" / number / "state.safetensors").read_bytes())
        drawn, seeded = (state.pop("OverlapWeights")["codes"] for state in (here, sim.snapshot()[client]))
        assert drawn.shape == seeded.shape
        assert (drawn != seeded).any()


@pytest.fixture
def parties(owned: Path, tmp_path: Path) -> Path:
    """The running project, whose sites bring tables of their own (`projects.tables`) for as long as a test lasts."""
    tables(tmp_path / "data")
    return bring(owned, tmp_path / "data")


@pytest.mark.slow
def test_glasu_between_parties_with_tables_of_their_own(parties: Path, tmp_path: Path) -> None:
    config = experiment(
        "glasu", rounds=2, algorithm_settings={"optimizer": "sgd", "lr": 0.5}, **tables(tmp_path / "again")
    )
    summary = run(config, parties, tmp_path / "out", False, Watcher())
    expected, sim = simulated(config)
    number = json.loads((tmp_path / "out/run.json").read_text())["run"]
    for site in SITES:
        kept = decode((parties / site / "runs" / number / "state.safetensors").read_bytes())
        assert distance(kept, sim.snapshot()[site]) <= 1e-5
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)
    held = read_table(tmp_path / "out", PARTITION).to_pydict()
    assert (held["nodes"], held["features"]) == ([60] * 3, [1, 2, 3])
    check_facts(CliRunner().invoke(app, ["ledger", str(tmp_path / "out")]).output, "(align)")
    CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    check_facts((tmp_path / "out/report.html").read_text(), "blinded ids")
    commands.run("predict", tmp_path / "out", code=2)
    before = len(read_table(tmp_path / "out", LEDGER))
    told = commands.run("sites", "predict", tmp_path / "out", "--sites", parties)
    check_facts(told, f"bank-a/runs/{number}/predictions.parquet")
    assert len(pq.read_table(parties / "bank-a/runs" / number / "predictions.parquet")) == 60
    assert len(read_table(tmp_path / "out", LEDGER)) > before
    commands.run("sites", "predict", tmp_path, "--sites", parties, code=2)


@pytest.mark.slow
def test_glasu_whose_layers_are_added_up_in_secure_sums(owned: Path, tmp_path: Path) -> None:
    config = experiment("glasu", rounds=2, algorithm_settings={"optimizer": "sgd", "lr": 0.5, "secure_sum": True})
    run(config, cut_again(owned, config), tmp_path / "out", False, Watcher())
    expected, sim = simulated(config)
    assert distance(Checkpoint.load(tmp_path / "out" / CHECKPOINT).state, renamed(expected.state, sim)) == 0
