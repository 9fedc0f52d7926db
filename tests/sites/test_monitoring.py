"""What a site says of itself to its owner's monitoring: its status, its log, and metrics on loopback."""

import http.client
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import FedweaveError
from fedweave.experiment.config import dumps, load
from fedweave.experiment.runs.resuming import Interrupted
from fedweave.sites.flare import folder as own_folder
from fedweave.sites.flare import gatekeeper, site
from fedweave.sites.flare.accounts import note_refusal
from fedweave.sites.flare.folder import LOG, SITE_FILE, log_to
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.server import Progress, record_job
from fedweave.sites.operation import gauges, processes, status
from fedweave.sites.operation.processes import SiteProcess, attend, free_port, last_record
from tests import commands
from tests.privacy.authority import Authority
from tests.refusals import check_facts, refusal
from tests.sites.projects import experiment, join_request

runner = CliRunner()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """fedweave's own, as it was before."""
    own = logging.getLogger("fedweave")
    before = own.handlers, own.level, own.propagate
    yield own
    for handler in own.handlers:
        handler.close()
    own.handlers, own.propagate = before[0], before[2]
    own.setLevel(before[1])


def test_a_dead_site_makes_the_exit_code_1_and_is_named_for_programs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("server", "bank-a", "bank-b", "bank-c"):
        (project / folder).rename(project.parent / folder)  # as on the machine of an administrator
    lights = status.Lights(True, {"bank-a", "bank-b", "bank-c"}, {"bank-a", "bank-b", "bank-c"})
    monkeypatch.setattr(status, "ask", lambda *about: lights)
    done = runner.invoke(app, ["sites", "status", str(project), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["dead"]) == (0, [])
    lights.answering = {"bank-a", "bank-c"}
    (project / "admin/status.json").write_text(json.dumps({"status": "running", "round": 3, "rounds": 9, "at": 1.0}))
    done = runner.invoke(app, ["sites", "status", str(project), "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["dead"]) == (1, ["bank-b"])
    assert told["sites"]["bank-b"]["state"] == "down"
    assert told["server"] == told["server"] | {"state": "up", "dead": False, "here": False, "process": None}
    assert (told["run"]["round"], told["mistake"]) == (3, None)
    assert told["at"].endswith("Z")
    commands.run("sites", "status", project, code=1)


def test_at_a_site_its_own_process_counts_and_nobody_is_asked(project: Path) -> None:
    for folder in ("server", "admin", "bank-b", "bank-c"):
        (project / folder).rename(project.parent / folder)
    with socket.socket() as server:
        server.bind(("127.0.0.1", json.loads((project / "project.json").read_text())["port"]))
        server.listen()
        done = runner.invoke(app, ["sites", "status", str(project), "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["dead"], told["server"]["state"]) == (1, ["bank-a"], "up")
    assert told["sites"]["bank-b"]["state"] == "unknown"
    assert told["sites"]["bank-a"]["certificate_days"] > 300


def test_a_sites_log_says_of_each_call_who_asked_what_left_and_when(project: Path, logger: logging.Logger) -> None:
    log_to(project / "bank-a" / LOG)
    member = Member(project / "bank-a", "bank-a", lambda *about: {}, "ann@example.org")
    assert not member.answer(join_request(experiment(), "r7"), b"").refusal
    assert member.answer("{}", b"").refusal
    joined, refused = (project / "bank-a" / LOG).read_text().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC INFO run r7 of ann@example.org, join: left features", joined)
    assert re.search(r"\([\d,]+ bytes\)$", joined)
    check_facts(refused, "ERROR")
    assert last_record(f"{joined}\n{refused}\n{joined}\n").startswith("the request is not of fedweave's form")
    assert last_record(joined) == ""


def test_a_sites_log_says_when_a_job_begins_and_ends_and_whether_the_site_had_left_it(
    project: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = project / "bank-a"
    job = SimpleNamespace(get_prop=lambda name: {"submitter_name": "ann"})
    about = SimpleNamespace(workspace=SimpleNamespace(get_root_dir=lambda: str(kept)), fl_ctx=job, site_name="bank-a")
    monkeypatch.setattr(site, "collab", about)
    monkeypatch.setattr(site, "steady", lambda: None)
    monkeypatch.setattr(site, "obey", lambda kit: None)
    monkeypatch.setattr(site.os, "umask", lambda mask: mask)
    for spoiled in (False, True):
        one = site.Site()
        one.begin()
        assert not one._member.answer(join_request(experiment(), "r7"), b"").refusal
        if spoiled:
            one._member.answer("{}", b"")
        one.end()
    lines = [line.partition(" UTC ")[2] for line in (kept / LOG).read_text().splitlines()]
    assert lines[0] == lines[3] == "INFO a job of ann begins"
    assert lines[2] == "INFO run r7 of ann, the job ends"
    assert lines[-1].startswith("INFO run r7 of ann, the job ends; the site had left it: ")


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (None, "INFO", "run r7: done after round 2 of 3"),
        (Interrupted(signal.SIGTERM, 2, 3), "INFO", "run r7: stopped after round 2 of 3"),
        (FedweaveError("too few sites"), "ERROR", "run r7: failed after round 2 of 3: too few sites"),
        (KeyError("x"), "ERROR", "run r7: failed after round 2 of 3: the run failed at the server (KeyError: 'x')"),
    ],
)
def test_the_servers_log_says_when_a_run_begins_and_how_it_ends(
    tmp_path: Path, logger: logging.Logger, error: Exception | None, level: str, said: str
) -> None:
    log_to(tmp_path / LOG)
    progress = Progress(round=2, rounds=3)
    with record_job("run r7", progress):
        if error is not None:
            raise error
    lines = (tmp_path / LOG).read_text().splitlines()
    assert lines[0].endswith(" UTC INFO run r7: begins")
    check_facts(lines[-1], f"{level}", f"{said}")


def test_a_process_that_is_attended_to_is_ended_and_one_that_ends_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SiteProcess(project / "bank-a")
    (site.folder / "process.log").write_text("ValueError: it broke\n")
    began, alive, stopped = signal.getsignal(signal.SIGTERM), iter((7, 7)), []
    monkeypatch.setattr(processes, "_LOOK", 0.0)
    monkeypatch.setattr(SiteProcess, "pid", lambda self: next(alive, None))
    monkeypatch.setattr(SiteProcess, "stop", lambda self: stopped.append(self.folder.name))
    with refusal("process.failed", "bank-a: ValueError:"):
        attend([site])
    monkeypatch.setattr(SiteProcess, "pid", lambda self: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        attend([site])
    assert ended.value.code == 0
    assert stopped == ["bank-a", "bank-a"]
    assert signal.getsignal(signal.SIGTERM) is began


def test_a_full_log_is_followed_by_a_new_one_also_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    monkeypatch.setattr(own_folder, "LOG_BYTES", 300)
    path = tmp_path / LOG
    log_to(path)
    [one] = logger.handlers
    log_to(path)
    [other] = logger.handlers
    for number in range(12):
        record = logging.LogRecord("fedweave", logging.INFO, "", 0, f"line {number:02d} {'x' * 50}", None, None)
        (one if number % 2 else other).emit(record)
    one.close()
    files = [tmp_path / f"{LOG}.{n}" for n in (5, 4, 3, 2, 1)] + [path]
    found = re.findall(r"line (\d\d)", "".join(file.read_text() for file in files if file.exists()))
    assert found == [f"{number:02d}" for number in range(12)]
    assert all(file.stat().st_size <= 300 and file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())


def test_metrics_are_off_by_default_and_tell_on_loopback_what_left_and_was_refused(
    project: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, served = project / "bank-a", []
    monkeypatch.setattr(gauges, "serve", lambda *about: served.append(about))
    gatekeeper.expose(folder)
    assert not served
    monkeypatch.undo()
    document, port = load(folder / SITE_FILE), free_port()
    document["policy"] |= {"epsilon": 4.0, "bytes": 10_000, "unbounded": ["own", "n"]}
    (folder / SITE_FILE).write_text(dumps(document | {"site": {"metrics_port": port}}))
    before = runner.invoke(app, ["sites", "check", str(project)]).output
    gatekeeper.expose(folder)
    assert "metrics_port" not in before
    check_facts(runner.invoke(app, ["sites", "check", str(project)]).output, f"metrics_port {port}")
    member = Member(folder, "bank-a", lambda *about: {}, "ann")
    assert not member.answer(join_request(experiment("local"), "r7"), b"").refusal
    first = scraped(port)
    note_refusal(folder, "r7", "step x", "policy.bytes", "call-refused")
    second = scraped(port)
    assert first["fedweave_calls_total", "step=(join)"] == 1
    assert first["fedweave_bytes_total", "direction=up,key=features"] > 0
    assert first["fedweave_certificate_days", ""] > 300
    assert first["fedweave_last_reply_seconds", "client=bank-a"] > 1.7e9
    assert (first["fedweave_epsilon_spent", ""], first["fedweave_epsilon_left", ""]) == (0.0, 4.0)
    sent = sum(value for (name, _), value in first.items() if name == "fedweave_bytes_total")
    assert first["fedweave_bytes_left", ""] == 10_000 - sent < 10_000
    assert ("fedweave_refusals_total", "code=call-refused") not in first
    assert second["fedweave_refusals_total", "code=call-refused"] == 1
    (folder / "startup/rootCA.pem").write_bytes(Authority().root.public_bytes(Encoding.PEM))  # which ends in an hour
    assert 0 < scraped(port)["fedweave_certificate_days", ""] < 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example:{port}", 403),
        ("", 403),
    ],
)
def test_metrics_are_for_nobody_who_was_sent_there_under_another_name(
    project: Path, logger: logging.Logger, host: str, status: int
) -> None:
    gauges.serve(project / "bank-a", port := free_port())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics", headers={"Host": host.format(port=port)})
    answer = connection.getresponse()
    assert answer.status == status
    assert (b"fedweave_calls" in answer.read()) == (status == 200)


def test_a_probe_says_which_members_of_this_machine_run(project: Path) -> None:
    def probed(*words: object) -> tuple[int, list[str]]:
        done = runner.invoke(app, ["sites", "alive", *map(str, words)])
        return done.exit_code, done.stdout.splitlines()

    folder = project / "bank-a"
    sleeper = ("import time; time.sleep(60)", str(folder.resolve()))  # names the folder, as a site's process does
    with (
        subprocess.Popen([sys.executable, "-c", *sleeper]) as one,
        subprocess.Popen([sys.executable, "-c", sleeper[0]]) as other,
    ):
        try:
            (folder / "process.pid").write_text(str(one.pid))
            (project / "bank-b/process.pid").write_text(str(other.pid))  # a number that another process has got since
            code, lines = probed(project)
            assert (code, lines[0]) == (1, "server: not running")
            assert lines[1:] == [f"bank-a: process {one.pid}", "bank-b: not running", "bank-c: not running"]
            assert probed(project, "--only", "bank-a") == (0, [f"bank-a: process {one.pid}"])
            assert probed(project, "--only", "bank-b")[0] == 1
        finally:
            one.kill()
            other.kill()
    assert probed(project, "--only", "bank-a") == (1, ["bank-a: not running"])
    assert probed(project, "--only", "bank-x") == (2, [])
    assert probed(project / "admin") == (2, [])


def test_a_probe_is_quick_and_loads_neither_pytorch_nor_nvflare(project: Path) -> None:
    code = (
        "import sys; from fedweave.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'nvflare', 'pyarrow', 'numpy'} & {*sys.modules}))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, "sites", "alive", str(project)], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "[]"), done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0  # .2 alone


def test_processes_that_wait_for_jobs_load_no_pytorch() -> None:
    modules = ", ".join(processes._MODULES.values())
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def scraped(port: int) -> dict[tuple[str, str], float]:
    """{(metric, its labels): value} as a monitor reads it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = (sample for family in families for sample in family.samples)
    return {(one.name, ",".join(f"{k}={v}" for k, v in sorted(one.labels.items()))): one.value for one in samples}


def test_what_operators_are_told_of_is_there(project: Path, logger: logging.Logger) -> None:
    (project / "bank-a" / SITE_FILE).write_text('[data]\npath = "d"\n[policy]\nepsilon = 1.0\nbytes = 5\n')
    there = {one.name for name in ("bank-a", "server") for one in gauges.Gauges(project / name).collect()}
    operations = ROOT / "examples/operations"
    for text in ((ROOT / "docs/monitoring.md").read_text(), (operations / "alerts.yml").read_text()):
        named = set(re.findall(r"\bfedweave_[a-z_]+", text))
        assert named
        assert {name.removesuffix("_total") for name in named} <= there
    options = r"--[a-z]+\b"
    known = re.findall(options, runner.invoke(app, ["sites", "start", "--help"], env={"COLUMNS": "200"}).output)
    for name in ("compose.yaml", "fedweave@.service"):
        commands = re.findall(r"start,? .*", (operations / name).read_text())
        assert {*re.findall(options, "".join(commands))} == {"--only", "--foreground"} <= {*known}
