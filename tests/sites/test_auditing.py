"""A site's journal against the ledger that the run's administrator holds, and as a page for its owner."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.experiment.config import dumps
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.files import write_table
from fedweave.sites.flare.accounts import note_refusal
from fedweave.sites.flare.audit import audit, compare
from tests import commands
from tests.refusals import check_facts
from tests.sites.projects import copied, experiment, joined

runner = CliRunner()


@pytest.fixture(scope="module")
def trained(provisioned: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A project whose sites have trained the run "r1", and the server's ledger of it."""
    project = copied(provisioned, tmp_path_factory.mktemp("audited") / "project")
    fed, algorithm, _ = joined(project, experiment("fedavg", rounds=2))
    list(train(algorithm, fed, 2))
    return project, fed.ledger.table()


def changed(table: pa.Table, at: int, **values: Any) -> pa.Table:
    rows = table.to_pylist()
    rows[at] |= values
    return pa.Table.from_pylist(rows, table.schema)


def place(table: pa.Table, **wanted: Any) -> int:
    return next(at for at, row in enumerate(table.to_pylist()) if all(row[key] == wanted[key] for key in wanted))


def test_an_honest_ledger_agrees_with_every_sites_journal(trained: tuple[Path, pa.Table]) -> None:
    project, ledger = trained
    for site in ("bank-a", "bank-b", "bank-c"):
        assert compare(project / site, "r1", ledger) == ([], [])


def of_rounds(row: dict[str, Any], site: str) -> bool:
    return row["client"] == site and row["direction"] == "up" and row["round"] > 0


def test_what_a_ledger_leaves_out_adds_or_changes_is_named(trained: tuple[Path, pa.Table], tmp_path: Path) -> None:
    project, ledger = trained
    at = place(ledger, client="bank-b", step="FedAvg.train", key="n", round=2)
    size = ledger.to_pylist()[at]["bytes"]
    words = "number of training examples; protection: none"
    told = f"round 2: FedAvg.train: n, {size} bytes ({words})"
    without = pa.concat_tables([ledger.slice(0, at), ledger.slice(at + 1)])
    assert compare(project / "bank-b", "r1", without) == ([], [told])
    assert compare(project / "bank-a", "r1", without) == ([], [])
    twice = pa.concat_tables([ledger, ledger.slice(at, 1)])
    assert compare(project / "bank-b", "r1", twice) == ([told], [])
    larger = changed(ledger, at, bytes=size + 1)
    assert compare(project / "bank-b", "r1", larger) == ([told.replace(f"{size} bytes", f"{size + 1} bytes")], [told])
    softer = changed(ledger, at, reveals="nothing", mechanism="Gaussian noise of sigma 100")
    assert compare(project / "bank-b", "r1", softer) == (
        [told.replace(words, "nothing; protection: Gaussian noise of sigma 100")],
        [told],
    )
    mute = Path(shutil.copytree(project / "bank-b", tmp_path / "bank-b"))  # a site that joined and sent nothing
    journal = mute / "ledgers/r1.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("".join(f"{line}\n" for line in lines if "FedAvg" not in line))
    assert len(compare(mute, "r1", ledger)[0]) == len([row for row in ledger.to_pylist() if of_rounds(row, "bank-b")])
    renamed = changed(ledger, at, client="bank-c")
    assert compare(project / "bank-b", "r1", renamed) == ([], [told])
    assert compare(project / "bank-c", "r1", renamed) == ([told], [])


def test_the_command_compares_with_a_run(trained: tuple[Path, pa.Table], tmp_path: Path) -> None:
    project, ledger = trained
    write_table(tmp_path / "ledger.parquet", ledger)
    asked = ["audit", str(project / "bank-b"), "--against", str(tmp_path)]
    commands.run(*asked, code=2)
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1"}))
    commands.run(*asked)
    write_table(tmp_path / "ledger.parquet", ledger.slice(0, len(ledger) // 2))
    said = commands.run(*asked, code=1)
    check_facts(said, "round 2")
    (tmp_path / "run.json").write_text(json.dumps({"run": "other"}))
    said = commands.run(*asked, code=2)
    check_facts(said, "other")
    commands.run(*asked, "-o", tmp_path / "page.html", code=2)


def test_the_command_needs_no_configuration(trained: tuple[Path, pa.Table], tmp_path: Path) -> None:
    """A site's owner gets only the ledger and run.json of those who started the run."""
    project, ledger = trained
    write_table(tmp_path / "ledger.parquet", ledger)
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "sites": ["bank-a", "bank-b", "bank-c"]}))
    said = commands.run("audit", project / "bank-b", "--against", tmp_path)
    check_facts(said, "config.toml", "not compared")
    asked_to_join = [row["step"].startswith("(") for row in ledger.to_pylist()]
    assert any(asked_to_join)
    write_table(tmp_path / "ledger.parquet", ledger.filter(pa.array([not one for one in asked_to_join])))
    check_facts(commands.run("audit", project / "bank-b", "--against", tmp_path), "join", "not compared")


def test_the_command_compares_the_configuration_too(trained: tuple[Path, pa.Table], tmp_path: Path) -> None:
    """Budgets and currencies stand there, and whoever started the run could write others afterwards."""
    project, ledger = trained
    write_table(tmp_path / "ledger.parquet", ledger)
    sites = ["bank-a", "bank-b", "bank-c"]
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "sites": sites}))
    config = experiment("fedavg", rounds=2)
    asked = ["audit", str(project / "bank-b"), "--against", str(tmp_path)]
    for document, of, code, said in (
        (config.plain(), sites, 0, "is the configuration that the site joined with"),
        (config.plain() | {"rounds": 3}, sites, 0, "is the configuration that the site joined with"),
        (config.plain() | {"seed": 77}, sites, 1, "is another configuration, or has other sites"),
        (config.plain(), sites[:2], 1, "is another configuration, or has other sites"),
        (config.plain() | {"model": {"name": "my.py:Model"}}, sites, 0, "is not compared"),
    ):
        (tmp_path / "config.toml").write_text(dumps(document))
        (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "sites": of}))
        told = runner.invoke(app, asked)
        assert said in " ".join(told.output.split())
        assert told.exit_code == code, told.output
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "sites": [3]}))
    commands.run(*asked, code=1)


@pytest.mark.parametrize(
    ("text", "said"), [("", "did not leave the site: round 1"), ("{rubbish\n", "1 damaged line of the journal")]
)
def test_a_journal_that_was_emptied_or_damaged_agrees_with_nothing(
    trained: tuple[Path, pa.Table], tmp_path: Path, text: str, said: str
) -> None:
    site = Path(shutil.copytree(trained[0] / "bank-b", tmp_path / "bank-b"))
    write_table(tmp_path / "ledger.parquet", trained[1])
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1"}))
    journal = site / "ledgers/r1.jsonl"
    journal.write_text(text and journal.read_text() + text)
    told = runner.invoke(app, ["audit", str(site), "--against", str(tmp_path)])
    assert said in told.output
    assert told.exit_code == 1


def test_the_owner_sees_how_much_of_its_caps_is_spent(trained: tuple[Path, pa.Table], tmp_path: Path) -> None:
    project = Path(shutil.copytree(trained[0], tmp_path / "project"))
    site = project / "bank-b"
    assert "policy." not in runner.invoke(app, ["audit", str(site)]).output
    path = site / "site.toml"
    policy = '[policy]\nepsilon = 2.5\ndelta = 1e-6\nunbounded = ["n"]\nbytes = 1000000\n'
    path.write_text(path.read_text().partition("[policy]")[0] + policy)
    told = " ".join(runner.invoke(app, ["audit", str(site)]).output.split())
    held = "of policy.epsilon = 2.5, 0 is spent at δ = 1e-06; it does not hold for n, what has left without a bound: "
    _, _, bare = told.partition(held)
    assert "FedAvg.train: update" in bare
    assert "FedAvg.train: n" not in bare.partition(" of policy.bytes")[0]
    left = sum(row["bytes"] for row in audit(site).ledger.to_pylist() if row["direction"] == "up")
    check_facts(told, "policy.bytes = 1,000,000", f"{left:,}")


def test_the_page_says_what_left_what_was_refused_and_runs_nothing(
    trained: tuple[Path, pa.Table], tmp_path: Path
) -> None:
    project = Path(shutil.copytree(trained[0], tmp_path / "project"))
    note_refusal(project / "bank-b", "r1", "step <script>alert(1)</script>", "policy.deny: n may not leave")
    commands.run("audit", project / "bank-b", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    check_facts(page, "bank-b")
    for words in (
        "FedAvg.train: update",
        "change of the model weights",
        "policy.deny: n may not leave",
        "r1, fedavg, since 20",
    ):
        assert words in page
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    for one in audit(project / "bank-b").runs[0].flows:
        check_facts(page, f"{one.bytes:,}")
