"""What locked a site out, exhausted it, or spoke to its owner's terminal (docs/security.md)."""

import errno
import io
import json
import logging
import lzma
import os
import re
import resource
import socket
import sys
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from safetensors.torch import save
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.accounts.ledger import as_csv, as_rows
from fedweave.algorithms import ALGORITHMS
from fedweave.cli import app
from fedweave.cli.sites import Teller
from fedweave.core import decompression
from fedweave.core.ledger import Ledger
from fedweave.core.ledger_columns import Entry, Line
from fedweave.core.text import printable
from fedweave.datasets import npz, table_files, tu_files
from fedweave.errors import ConfigError, DataError, FedweaveError, UserError
from fedweave.experiment.config import load, resolve
from fedweave.experiment.runs import files
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.sites.flare.folder import log_to
from fedweave.sites.flare.journal import entries
from fedweave.sites.flare.memory import Store
from fedweave.sites.flare.policy_names import read_checked, reply_fields
from fedweave.sites.operation import processes
from fedweave.sites.operation.certificates import certificate
from fedweave.sites.operation.processes import SiteProcess
from fedweave.sites.operation.project import Project
from tests import commands
from tests.refusals import check_facts, refusal
from tests.security.cheating import SITE, Cheat, agreed, reply, set_policy
from tests.security.fuzzing import limit
from tests.sites.projects import SITES, call_request

ROOT = Path(__file__).parents[2]
runner = CliRunner()


@pytest.mark.parametrize(
    "lie",
    [
        {"round": 1.5},
        {"round": "1"},
        {"round": True},
        {"round": -7},
        {"round": 10**30},
        {"again": None},
        {"saved": 1.5},
        {"step": ["FedAvg.train"]},
        {"step": "../../x"},
        {"received": {"step": "FedAvg.train"}},
        {"to": {"bank-b": "bank-a"}},
        {"kind": "exec"},
    ],
)
def test_a_request_of_another_form_is_refused_and_harms_no_later_job(project: Path, lie: dict[str, Any]) -> None:
    server = Cheat(project)
    server.join()
    answer = server.say(call_request(server.config, "FedAvg.train"), server.weights(), **lie)
    check_facts(answer.refusal, "form")
    reply(after_all(project))


@pytest.mark.parametrize("text", ["", "[" * 10**5, "null", '"join"', '{"kind": ["join"]}', '{"kind": 1e400}'])
def test_no_text_raises_anything(project: Path, text: str) -> None:
    answer = Cheat(project).member.answer(text, b"")
    check_facts(answer.refusal, "form")


@pytest.mark.parametrize("run", ["../x", "a/b", "", "a" * 65, "no-run", "é"])
def test_a_runs_name_is_no_path(project: Path, run: str) -> None:
    server = Cheat(project, run=run)
    assert server.join().refusal
    assert not (project / SITE / "runs").exists()


def after_all(project: Path) -> Any:
    """The answer to an honest server's first round."""
    server = Cheat(project)
    assert not server.join().refusal
    return server.call("FedAvg.train")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff\xfe\x00",
        b"[[[[",
        b"null",
        b"7",
        b'{"note": 3}',
        b'{"round": 1.5, "call": 0, "step": "FedAvg.train", "clients": ["bank-b"], "direction": "up", "keys": [],'
        b' "size": 9, "seconds": 0.0, "to": []}',
        b'{"round": 1, "call": 0, "step": "FedAvg.train", "clients": 3, "direction": "up", "keys": [[]], "size": 9}',
    ],
)
def test_a_damaged_line_of_a_journal_is_said_and_left_out(
    project: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = Cheat(project)
    server.join()
    path, count = project / SITE / "ledgers/r1.jsonl", len(server.records().entries)
    path.write_bytes(line + b"\n" + path.read_bytes())
    (project / SITE / "runs/r1/before-1.5").touch()
    with caplog.at_level(logging.WARNING):
        reply(after_all(project))
    assert any("r1.jsonl: damaged lines: 1;" in record.getMessage() for record in caplog.records)
    assert len(server.records().entries) == count + 2
    shown = runner.invoke(app, ["audit", str(project / SITE)])
    check_facts(shown.output, "1 damaged line")
    assert shown.exit_code == 0


def test_a_job_cannot_ask_for_a_million_threads(project: Path) -> None:
    document = agreed().plain()
    with refusal("config.value", "engine.threads"):
        resolve(document | {"engine": document["engine"] | {"threads": 10**6}})
    lie = document | {"engine": document["engine"] | {"threads": 10**6}}
    check_facts(Cheat(project).join(document=lie).refusal, "ConfigError")
    commands.run("sites", "start", project, "--threads", "1000000", code=2)


@pytest.mark.parametrize("where", ["a message", "a generous configuration", "a checkpoint", "a site's state"])
def test_a_few_bytes_with_sparse_leaves_do_not_fill_the_memory(project: Path, tmp_path: Path, where: str) -> None:
    """Three leaves of a gigabyte each, none with an entry."""
    told = {f"w{at}": f"sparse float32 {1 << 28}" for at in range(3)}
    blob = save(dict.fromkeys(told, torch.zeros(0, dtype=torch.uint8)), {"python": json.dumps(told)})
    assert len(blob) < 400
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    allowed = {"a message": 512_000_000, "a generous configuration": 1 << 30}.get(where, 0)
    if where == "a checkpoint":
        (tmp_path / "state").write_bytes(blob)
        with pytest.raises(FedweaveError, match="3221225472"):
            Checkpoint.load(tmp_path / "state")
    elif where == "a site's state":
        (tmp_path / "state.safetensors").write_bytes(blob)
        with pytest.raises(FedweaveError, match="3221225472"):
            Store(tmp_path)
    else:
        server = Cheat(project, agreed(reply_mb=1e6) if allowed > 512_000_000 else None)
        reply(server.join())
        answer = server.member.answer(call_request(server.config, "FedAvg.train"), blob)
        check_facts(answer.refusal, "ReplyRefused")
        told_why = server.refusals()[-1]["why"]
        check_facts(told_why, "3221225472", f"{allowed}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


# --- policies


@pytest.mark.parametrize(
    ("policy", "code", "facts"),
    [
        ('deny = ["lables"]', "policy", ("policy.deny:", "'lables'")),
        ("noise = {updates = 1.0}", "policy", ("policy.noise:", "'updates'")),
        ('unbounded = ["own/groups", "owner"]', "policy", ("policy.unbounded:", "'owner'")),
        ('deny = ["own/gruops"]', "policy", ("policy.deny:", "'own/gruops'", "below own there are loss,")),
        ("noise = {update = -1.0}", "site", ("policy.noise",)),
        ("calls = {trian = 9}", "unknown-name", ("policy.calls:", "'trian'", "'train'")),
        ('algorithms = ["fedavg"]\nparts = ["secure_sums"]', "unknown-name", ("policy.parts:", "'secure_sum'")),
        ('parts = ["secure_sum"]', "", ("policy.parts:", "policy.algorithms")),
        ('files = ["/nowhere/own.py"]', "no-file", ("policy.files:", "/nowhere/own.py")),
        ('algorithms = ["fedavgg"]', "unknown-name", ("policy.algorithms:", "'fedavgg'", "'fedavg'")),
    ],
)
def test_a_rule_for_what_no_algorithm_has_is_refused(
    project: Path, policy: str, code: str, facts: tuple[str, ...]
) -> None:
    set_policy(project, policy)
    with refusal(f"config.{code}".removesuffix("."), *facts):
        read_checked(project / SITE / "site.toml")
    check_facts(Cheat(project).join().refusal, "ConfigError")


def test_the_keys_of_every_algorithm_are_known(project: Path) -> None:
    names = {"update", "w", "h", "theta", "egos/label", "gradient", "own", "trained", "labels", "ids", "n"}
    assert names <= reply_fields()
    keys, calls = 'deny = ["egos", "update/0/weight", "own/auc"]', 'calls = {join = 9, "GLASU.infer" = 9}'
    set_policy(project, f"{keys}\n{calls}\nalgorithms = {json.dumps([*ALGORITHMS])}")
    assert read_checked(project / SITE / "site.toml")[1].deny == ("egos", "update/0/weight", "own/auc")


OWN = """
class FedControl(FedAvg):
    @on_client(sends={"control": ONCE})
    def steer(self, client, ctx, weights):
        raise SystemExit("read, not run")
"""


@pytest.mark.parametrize(
    ("policy", "code", "fact"),
    [
        ('deny = ["control"]\nunbounded = ["control/0"]', "", ""),
        ('calls = {steer = 9, "FedControl.steer" = 9, "FedControl.train" = 8}', "", ""),
        ('deny = ["contorl"]', "config.policy", "'contorl'"),
        ('calls = {"FedControl.stear" = 9}', "config.unknown-name", "'FedControl.stear'"),
    ],
)
def test_rules_for_what_a_listed_file_sends_are_taken(
    project: Path, tmp_path: Path, policy: str, code: str, fact: str
) -> None:
    """The file is read for its names; to run it before a job asks for it would be to trust it too early."""
    own, site = tmp_path / "own.py", project / SITE / "site.toml"
    own.write_text(OWN)
    set_policy(project, f'{policy}\nfiles = ["{own}"]')
    if code:
        with refusal(code, fact):
            read_checked(site)
        return
    assert read_checked(site)[1].files == (str(own),)
    set_policy(project, policy)
    with pytest.raises(ConfigError):
        read_checked(site)


def test_a_listed_file_that_is_no_python_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class (")
    set_policy(project, f'files = ["{tmp_path}/own.py"]')
    with refusal("config.code", "policy.files:", "own.py", "Python:"):
        read_checked(project / SITE / "site.toml")


# --- messages from others


EVIL = "\x1b[2J\x9b31m[bold]ok[/bold]\u202e\ud800\x07"


def test_nothing_that_others_say_steers_a_terminal(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def harmless(text: str) -> bool:
        return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)

    assert harmless(printable(EVIL))
    assert printable("ε = 1, “ü”") == "ε = 1, “ü”"
    Teller()({"status": "running", "round": 1, "rounds": 2, "seconds": 1.0, "summary": {}, "lost": {"a": EVIL}})
    shown = capsys.readouterr().out
    check_facts(shown, "ok")
    assert harmless(shown)
    logger = logging.getLogger("fedweave")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    log_to(tmp_path / "fedweave.log")
    logging.getLogger("fedweave.site.x").error("refused what %s sent", EVIL)
    assert harmless((tmp_path / "fedweave.log").read_text())
    assert (tmp_path / "fedweave.log").stat().st_mode & 0o777 == 0o600
    monkeypatch.undo()
    Cheat(project).member.answer(json.dumps({"kind": EVIL}), b"")
    server = Cheat(project)
    server.join()
    server.member.answer(call_request(server.config, "x", 1) + EVIL.encode("ascii", "ignore").decode(), b"")
    told = runner.invoke(app, ["audit", str(project / SITE)]).output
    assert harmless(told)


# --- processes


def test_start_says_that_the_port_is_taken(tmp_path: Path) -> None:
    (tmp_path / "server/startup").mkdir(parents=True)
    (tmp_path / "server/startup/fed_server.json").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        Project(SITES, "localhost", port).save(tmp_path)
        result = runner.invoke(app, ["sites", "start", str(tmp_path)])
    assert result.exit_code == 2
    check_facts(result.stderr, f"port {port}")
    assert "process" not in result.stdout
    processes.check_port(SiteProcess(tmp_path / "server"), port)  # free again


def test_what_a_sites_process_writes_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process in NVFlare's place."""
    site = tmp_path / "bank-a"
    site.mkdir(mode=0o755)
    (tmp_path / "writes.py").write_text("import os; os.makedirs('made'); open('made/file', 'w')")
    monkeypatch.setitem(processes._MODULES, "client", "writes")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "check_startup", lambda path: None)
    SiteProcess(site).start()
    while not (site / "made/file").exists():
        pass
    modes = {path.name: path.stat().st_mode & 0o777 for path in (site, *site.rglob("*"))}
    assert modes["bank-a"] == modes["made"] == 0o700
    assert modes["file"] == modes["process.log"] == 0o600
    assert sys.executable


# --- what the owner sees


def test_the_audit_shows_what_was_asked_what_left_what_it_cost_and_what_was_refused(project: Path) -> None:
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.train"))
    reply(server.call("FedAvg.score"))
    server.call("FedAvg.score")
    told = " ".join(runner.invoke(app, ["audit", str(project / SITE)]).output.split())
    for words in (
        "training, from the start: fedavg, configuration ",
        "refused step FedAvg.score, occurrence 1 in round 1: CallRefused: FedAvg.score",
        "training bank-b → server FedAvg.train: update ",
        "evaluation bank-b → server FedAvg.score: own ",
        "change of the model weights",
        "set-up bank-b → server (join): labels ",
        "no ε follows",
        "all runs: ",
    ):
        assert words in told
    own = json.loads(runner.invoke(app, ["ledger", str(project / SITE), "--json"]).output)
    assert {row["purpose"] for row in own} == {"set-up", "training", "evaluation"}
    assert sum(row["bytes"] for row in own) == sum(entry.size for entry in server.records().entries)
    commands.run("audit", project, code=2)


def test_every_test_here_stands_in_the_threat_model() -> None:
    """docs/_site/promises.toml names the tests of each promise, and no other."""
    written = set(re.findall(r'"(test_\w+)"', (ROOT / "docs/_site/promises.toml").read_text()))
    files = [*Path(__file__).parent.glob("test_*.py"), *(ROOT / "tests").rglob("test_*.py")]
    there = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    here = {
        name
        for file in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert written <= there
    assert here - written == {"test_every_test_here_stands_in_the_threat_model"}


# --- files that are none, and output that nobody can take


@pytest.mark.parametrize("what", ["configuration", "data", "run", "journal", "certificate"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, what: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = {
        "configuration": load,
        "data": lambda path: npz.read(path, "data"),
        "run": files.read,
        "journal": entries,
        "certificate": certificate,
    }[what]
    with limit(10), pytest.raises(UserError):
        read(path)


def test_a_device_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to("/dev/null")
    with limit(10), refusal("user.unusable-file", "a device"), files.lock(tmp_path):
        pass


def test_a_small_archive_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "MAX_UNPACKED", 1 << 20)  # of a GiB, which takes long to write
    with zipfile.ZipFile(tmp_path / "pairs.npz", "w", zipfile.ZIP_DEFLATED) as held:
        held.writestr("y.npy", bytes(2 << 20))
    with pytest.raises(DataError, match="2,097,152"):
        npz.read(tmp_path / "pairs.npz", "bomb")
    with refusal("file.damaged", "damaged:", "2,097,152"):
        files.read_pairs(tmp_path)
    (tmp_path / "DS_graph_indicator.txt").write_text("1\n")
    (tmp_path / "DS_graph_labels.txt").write_text("0\n")
    (tmp_path / "DS_A.txt.xz").write_bytes(lzma.compress(b" " * (2 << 20)))
    with pytest.raises(DataError, match="1,048,576"):
        tu_files.read(tmp_path, "DS")


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_word_that_stands_once_and_is_meant_often_is_refused(nested: bool, tmp_path: Path) -> None:
    """4 kB that would be 3 GB of text; in lists no such file is read at all."""
    often = pa.DictionaryArray.from_arrays(pa.array(np.zeros(30_000, np.int32)), ["x" * 100_000])
    words = pa.array([["x" * 100_000]] * 10) if nested else often
    pq.write_table(pa.table({"step": words}), tmp_path / "ledger.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "ledger.parquet").stat().st_size < 5000
    said = r"column 'step' holds list<" if nested else r"bytes would take 3,00\d,\d"
    with pytest.raises(FedweaveError, match=said):
        files.read_table(tmp_path, "ledger.parquet")
    with pytest.raises(DataError, match=said):
        table_files.read(tmp_path / "ledger.parquet")


def test_a_long_word_that_is_stored_as_the_one_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand times the same word, of which every one but the first takes no room."""
    monkeypatch.setattr(table_files, "OF_TABLES", table_files.OF_TABLES._replace(floor=1 << 24))
    often = pa.table({"id": ["x" * 100_000] * 1000})
    path = tmp_path / "nodes.parquet"
    pq.write_table(often, path, compression="zstd", use_dictionary=False, column_encoding={"id": "DELTA_BYTE_ARRAY"})
    size = path.stat().st_size
    assert size < 5000
    with pytest.raises(DataError, match=rf"{size:,} .*16,777,216"):
        table_files.read(path)


def test_a_page_replaces_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "device")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with limit(10), refusal("user.unusable-file", "a folder, a pipe"):
        files.write(tmp_path / "device", lambda file: file.write(b"page"))
    files.write(tmp_path / "link", lambda file: file.write(b"page"))
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_small_table_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """90 million equal rows take a megabyte."""
    column = pa.chunked_array([pa.array(np.zeros(10_000_000, np.int8))] * 9)
    big = pa.table(dict.fromkeys(("round", "value", "x"), column))
    pq.write_table(big, tmp_path / "metrics.parquet", compression="zstd")
    size = (tmp_path / "metrics.parquet").stat().st_size
    assert size < 1_050_000
    with pytest.raises(FedweaveError, match="90,000,000"):
        files.read_table(tmp_path, "metrics.parquet")
    with pytest.raises(DataError, match="90,000,000"):
        table_files.read(tmp_path / "metrics.parquet")


def test_words_of_others_are_no_formulas_in_a_spreadsheet() -> None:
    row = {"from": ["=1+1"], "to": ["@x"], "key": "-2+3", "reveals": "+1", "bytes": 7}
    assert as_csv([row]).splitlines()[1] == "'=1+1,'@x,'-2+3,'+1,7"


def test_no_words_of_others_steer_a_terminal_out_of_a_printed_ledger() -> None:
    """As CSV and as JSON: an escape, a mark that turns the order of letters, and the end of a line."""
    odd, kept = "a\x1b[2J\u202eb\n\u2066", Ledger()
    line = Line(f"k{odd}", "float32", 4, "none", f"r{odd}")
    kept.add(Entry(1, 0, f"s{odd}", (f"c{odd}",), "up", (line,), 4, 0.0))
    rows = as_rows(kept.table())
    for text in (as_csv(rows), json.dumps(rows, ensure_ascii=False)):
        assert not [letter for letter in text.replace("\n", "") if unicodedata.category(letter) in ("Cc", "Cf")]
    assert as_csv(rows).count("\n") == 1 + len(rows)
    assert rows[0]["step"] == r"sa\x1b[2J\u202eb\n\u2066"


class Full(io.StringIO):
    """A standard output on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_the_other_end_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    assert typer.main.get_command(app).main(["list", "algorithms"], standalone_mode=False) == 1
    check_facts(capsys.readouterr().err, "full")


def test_a_full_disk_at_a_site_is_told_to_its_owner_by_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server = Cheat(project)
    server.join()
    monkeypatch.setattr(os, "fsync", full)
    check_facts(server.call("FedAvg.train", 1).refusal, "DiskFull")
    check_facts(server.refusals()[-1]["why"], "full")
    assert not any(record.exc_info for record in caplog.records)


def test_a_run_resumes_with_the_data_that_it_began_with(project: Path) -> None:
    server = Cheat(project)
    server.join()
    reply(server.call("FedAvg.train", 1))
    reply(server.call("FedAvg.train", 2, saved=1))
    path = project / SITE / "data.npz"
    arrays = dict(np.load(path))
    arrays["x_data"][0] += 1
    np.savez(path, **arrays)
    answer = Cheat(project).join(after=1)
    check_facts(answer.refusal, "refused")
    check_facts(server.refusals()[-1]["why"], "data:", "r1")
    assert not Cheat(project, run="r2").join().refusal


def test_a_huge_configuration_is_refused_and_not_read(tmp_path: Path) -> None:
    """Five million keys took a minute and a half."""
    path = tmp_path / "c.toml"
    path.write_text("".join(f"a{key} = 1\n" for key in range(500_000)))
    with refusal("config.unreadable", "4 MiB"):
        load(path)
