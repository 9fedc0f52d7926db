"""What programs read of a member: logs in JSON without any value of the data, and the states of runs as metrics."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.errors import ClientsMissing, DataError, FedweaveError, UserError
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.resuming import Interrupted
from fedweave.sites.flare.folder import LOG, LOG_FORMAT, SITE_FILE, log_to
from fedweave.sites.flare.server import Progress, record_job
from fedweave.sites.flare.sitefile import write_site_file
from fedweave.sites.flare.states import StateFile, states
from fedweave.sites.operation import gauges
from fedweave.sites.operation.processes import last_record, members, wait_until_open
from fedweave.sites.operation.running import run
from tests.refusals import refusal
from tests.sites.projects import SITES, experiment, joined, make_project
from tests.sites.test_monitoring import logger
from tests.sites.test_prediction_at_home import banks, customers, trained

__all__ = ["banks", "logger"]
ROOT = Path(__file__).parents[2]
PLANTED_ID, PLANTED_LABEL = "KUNDE-4711-PLANTED", "PLANTED-VERDICT"
PLANTED = re.compile(f"{PLANTED_ID}|{PLANTED_LABEL}", re.IGNORECASE)


def plant(project: Path) -> None:
    """An id and a label of their own in every table."""
    for site in SITES:
        for path in (project / site / "data").glob("*.csv"):
            text = re.sub(r"\bc7\b", PLANTED_ID, path.read_text())
            path.write_text(re.sub(r"\bhigh\b", PLANTED_LABEL, text))
        about = {"path": "data", "labels": ["low", PLANTED_LABEL], "normalize": "row"}
        write_site_file(project / site / SITE_FILE, about)


def spoil(project: Path, site: str) -> None:
    """A label there that no class has, at the planted id."""
    nodes = project / site / "data/nodes.csv"
    nodes.write_text(re.sub(rf"({PLANTED_ID}),[^,]+", rf"\1,{PLANTED_LABEL}-ODD", nodes.read_text()))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_of_a_run_and_of_a_refusal_tell_no_id_and_no_label(
    banks: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv(LOG_FORMAT, form)
    plant(banks)
    log_to(path := banks / LOG)
    trained(banks)
    assert not PLANTED.search(path.read_text())
    spoil(banks, "bank-a")
    before = len(path.read_text())
    with refusal("clients-missing"):
        joined(banks, experiment(), "r2")
    ledgers = "".join(file.read_text() for file in banks.glob("*/ledgers/*.jsonl"))
    assert '"refused"' in ledgers
    assert not PLANTED.search(ledgers)
    found = path.read_text()[before:]
    assert bool(PLANTED.search(found)) == (form == "text")  # the owner's own, who has to find the row
    if form == "json":
        [refused] = [line for line in map(json.loads, found.splitlines()) if line["event"] == "refused"]
        assert (refused["site"], refused["run"], refused["code"]) == ("bank-a", "r2", "data.row")
        assert last_record(json.dumps(refused)) == "DataError [data.row]"
        assert last_record('{"level": "WARNING", "event": "left-out", "reason": "gone"}\n{"x": 1}') == "gone"


def test_each_line_in_json_names_the_event_the_run_the_site_and_the_round(
    banks: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    log_to(path := banks / LOG)
    trained(banks)
    logger.error("a value %s", PLANTED_ID)  # of a call that names no fields
    *answers, other = lines(path)
    assert all({"time", "level", "event", "site", "run"} <= line.keys() for line in answers)
    assert {line["run"] for line in answers} == {"r1"}
    assert {line["site"] for line in answers} == {*SITES}
    steps = [line for line in answers if line.get("step") == "FedAvg.train" and line["request"] == "step"]
    assert sorted((line["site"], line["round"]) for line in steps) == [(s, r) for s in SITES for r in (1, 2)]
    assert all("update" in line["left"][0]["keys"] and line["left"][0]["bytes"] > 0 for line in steps)
    assert (other["event"], other["text"]) == ("note", "a value %s")


@pytest.mark.parametrize(
    ("error", "event", "state", "failures"),
    [
        (None, "run-done", "done", 0),
        (Interrupted(15, 1, 3), "run-stopped", "stopped", 0),
        (FedweaveError("too few sites"), "run-failed", "failed", 1),
        (KeyError("x"), "run-failed", "failed", 1),
        (ClientsMissing("train", {"bank-b": "it is gone"}, 3, 3), "run-failed", "paused", 0),
    ],
)
def test_the_server_keeps_the_state_of_a_run_for_its_metrics(
    tmp_path: Path,
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    event: str,
    state: str,
    failures: int,
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    log_to(tmp_path / LOG)
    progress = Progress(states=StateFile(tmp_path, "r7", SITES))
    progress.link = type("Link", (), {"silent": {"bank-b"}, "lost": {}, "owing": ()})()
    progress.ledger = type("Sizes", (), {"sizes": lambda self: {}, "latest": 0})()
    about = type("Config", (), {"general": type("General", (), {"rounds": 3})()})()
    built = type("Built", (), {"fed": type("Fed", (), {"ledger": progress.ledger})(), "note": ""})()
    with record_job("run r7", progress):
        progress.begin(about, built, tmp_path, 0)
        progress.step(Checkpoint(round=1, seconds=2.0))
        during = measured(tmp_path)
        progress.step(Checkpoint(round=2, seconds=5.0))
        if error is not None:
            raise error
    assert during["fedweave_run_state", ("r7", "running")] == 1
    assert (during["fedweave_run_round", ("r7",)], during["fedweave_round_seconds", ("r7",)]) == (1, 2.0)
    after = measured(tmp_path)
    assert [labels for (name, labels), on in after.items() if name == "fedweave_run_state" and on] == [("r7", state)]
    assert (after["fedweave_run_round", ("r7",)], after["fedweave_run_rounds", ("r7",)]) == (2, 3)
    assert after["fedweave_round_seconds", ("r7",)] == 3.0
    assert after["fedweave_run_failures_total", ()] == failures
    missing = {labels[1] for (name, labels), value in after.items() if name == "fedweave_site_missing" and value}
    assert missing == ({"bank-b"} if state == "paused" else set())
    first, *_, last = lines(tmp_path / LOG)
    assert (first["event"], first["run"]) == ("run-begins", "r7")
    assert (last["event"], last["run"], last["round"], last["rounds"]) == (event, "r7", 2, 3)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (DataError(f"test/nodes.csv: node {PLANTED_ID} is {PLANTED_LABEL}", code="data.row"), "data.row", None),
        (KeyError(PLANTED_ID), None, None),
        (UserError("init_from: no such run", code="init.run"), "init.run", "init_from: no such run"),
    ],
)
def test_the_servers_log_in_json_tells_no_row_of_its_own_data(
    tmp_path: Path,
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: str | None,
    reason: str | None,
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    log_to(tmp_path / LOG)
    progress = Progress(states=StateFile(tmp_path, "r7", SITES))
    with record_job("run r7", progress):
        raise error
    *_, last = lines(tmp_path / LOG)
    assert not PLANTED.search((tmp_path / LOG).read_text())
    assert (last["error"], last.get("code"), last.get("reason")) == (type(error).__name__, code, reason)
    assert progress.error


def test_a_site_keeps_the_state_of_a_run_and_a_killed_process_interrupts_it(banks: Path) -> None:
    plant(banks)
    spoil(banks, "bank-b")
    with refusal("clients-missing"):
        joined(banks, experiment(), "r0")
    customers(banks / "bank-b/data", 1)
    plant(banks)
    _, _, link = joined(banks, experiment(rounds=2), "r1")
    assert measured(banks / "bank-a")["fedweave_run_state", ("r1", "running")] == 1
    for member in link.members.values():
        member.end()
    assert [(one.run, one.state, one.failures) for one in states(banks / "bank-b")] == [
        ("r0", "failed", 1),
        ("r1", "stopped", 0),  # before its last round
    ]
    code = f"from pathlib import Path; from {states.__module__} import StateFile; StateFile(Path({str(banks)!r}), 'r9')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [(one.run, one.state) for one in states(banks)] == [("r9", "interrupted")]
    StateFile(banks, "r9").write(state="running")
    assert [one.state for one in states(banks)] == ["running"]
    for damaged in (
        '{"run": "r9", "state": "x"}',
        '{"run": "r9", "round": "x"}',
        '{"run": "r9", "process": [1]}',
        "[]",
    ):
        (banks / "states/r9.json").write_text(damaged)
        assert [*states(banks)] == []


def test_a_run_that_ended_long_ago_is_in_no_metric_but_its_failures_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateFile(tmp_path, "r1").end("failed")
    monkeypatch.setattr(gauges, "RECENT", 0.0)
    told = measured(tmp_path)
    assert told["fedweave_run_failures_total", ()] == 1
    assert not any(name.startswith("fedweave_run_state") for name, _ in told)


def measured(folder: Path) -> dict[tuple[str, tuple[str, ...]], float]:
    """{(metric, its labels): value}."""
    samples = (sample for metric in gauges.Gauges(folder).collect() for sample in metric.samples)
    return {(one.name, tuple(one.labels.values())): one.value for one in samples}


def test_the_dashboard_and_the_alerts_name_metrics_that_there_are(project: Path) -> None:
    (project / "bank-a" / SITE_FILE).write_text('[data]\npath = "d"\n[policy]\nepsilon = 1.0\nbytes = 5\n')
    families = [*gauges.Gauges(project / "bank-a").collect(), *gauges.Gauges(project / "server").collect()]
    there = {one.name + ("_total" if one.type == "counter" else "") for one in families}
    dashboard = json.loads((ROOT / "examples/operations/grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (ROOT / "examples/operations/alerts.yml").read_text()
    named = [*re.findall(r"\bfedweave_[a-z_]+", "\n".join(queries)), *re.findall(r"\bfedweave_[a-z_]+", alerts)]
    assert {*named} <= there
    assert there <= {*re.findall(r"\bfedweave_[a-z_]+", (ROOT / "docs/monitoring.md").read_text())}
    assert all(re.search(r"\b(fedweave_[a-z_]+|up\{)", query) for query in queries)
    ids, spots = [panel["id"] for panel in dashboard["panels"]], [panel["gridPos"] for panel in dashboard["panels"]]
    assert len(ids) == len({*ids})
    assert all(spot["x"] + spot["w"] <= 24 for spot in spots)  # the width of Grafana's grid


@pytest.fixture
def in_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A project whose processes log in JSON, with planted ids and labels."""
    project = make_project(tmp_path / "banks")
    (project / "server/test.npz").unlink(missing_ok=True)
    for at, site in enumerate(SITES):
        customers(project / site / "data", at)
    plant(project)
    started = members(project)
    try:
        for member in started:
            member.start(1, "json")
            if member.kind == "server":
                wait_until_open(member, "localhost", json.loads((project / "project.json").read_text())["port"])
        yield project
    finally:
        for member in reversed(started):
            member.stop()


@pytest.mark.slow
def test_no_log_of_real_processes_tells_an_id_or_a_label(in_json: Path, tmp_path: Path) -> None:
    run(experiment(rounds=2), in_json, tmp_path / "run", False, lambda now: None)
    spoil(in_json, "bank-a")
    with pytest.raises(FedweaveError):
        run(experiment(rounds=2), in_json, tmp_path / "again", False, lambda now: None)
    kinds = re.compile(r"log|ledgers/|states/|\.out$")
    logs = [file for file in in_json.rglob("*") if file.is_file() and kinds.search(str(file.relative_to(in_json)))]
    assert {LOG, "process.log", "log.txt"} <= {file.name for file in logs}
    assert [str(file) for file in logs if PLANTED.search(file.read_text(errors="replace"))] == []
    server = [line["event"] for line in lines(in_json / "server" / LOG)]
    assert server[:2] == ["run-begins", "run-done"]
    assert server[-1] == "run-failed"
    site = [line["event"] for line in lines(in_json / "bank-a" / LOG)]
    assert (site.count("job-begins"), site.count("job-ends"), site.count("refused")) == (2, 1, 1)
    assert os.environ.get(LOG_FORMAT) is None
    one, two = sorted(states(in_json / "server"), key=lambda state: state.at)
    assert (one.state, one.round, two.state) == ("done", 2, "failed")
    assert one.seconds > 0
