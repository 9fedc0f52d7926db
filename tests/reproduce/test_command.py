"""`fedweave reproduce` as its user meets it."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.experiment.runs import run as runs
from fedweave.papers import selection
from fedweave.papers.paper import Paper, Protocol, Setting, change
from fedweave.papers.quantities import accuracy
from fedweave.python.training import Silent
from fedweave.sweeps import scheduler
from fedweave.sweeps.scheduler import Stopped
from tests.refusals import check_facts
from tests.reproduce.tiny import cell, table

GOOD = cell("good", 0.5), cell("good", 0.6, "local")
BAD = cell("bad", 0.5, partition={"clients": 61})
TWICE = replace(GOOD[0], quantity=accuracy("global", best=True))
ABSENT = cell("absent", 0.5, algorithm={"name": "nowhere"})
CROSSED = replace(ABSENT, row="high", column="far")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper "tiny" with two tables and a figure; returns the working directory."""
    tables = {1: table(*GOOD, BAD, ABSENT, seeds=1), 4: table(GOOD[0], seeds=1)}
    settings = {
        "wide": Setting(lambda it: change(it, model={"hidden": 5})),
        "far": Setting(lambda it: change(it, algorithm={"lr": 0.02})),
        "of others": Setting(lambda it: it),
    }
    script = Protocol(settings, lambda it: change(it, rounds=4, eval_every=2), (TWICE,), (), 1, ("A protocol.",))
    monkeypatch.setitem(selection.PAPERS, "tiny", Paper("Tiny (Nobody 2025)", tables, {2: table(ABSENT, CROSSED)}))
    monkeypatch.setitem(selection.PROTOCOLS, "tiny", {"script": script})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reproduce(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["reproduce", *words])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_it_lists_what_there_is(tiny: Path) -> None:
    code, out, _ = reproduce()
    assert code == 0
    for line in (
        "tiny: Tiny (Nobody 2025)",
        "  --table 4   a small table",
        "  --figure 2  a small table",
        "fedego: FedEgo",
    ):
        assert line in out
    assert list(tiny.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tinny"],
            "there is no 'tinny'. Did you mean 'tiny'? Choose one of fedego, fairgfl, fairgraphfl, f2gnn, glasu, tiny.",
        ),
        (["tiny", "--table", "3"], "there is no table 3; choose one of 1, 4."),
        (["tiny", "--figure", "1"], "there is no figure 1; choose one of 2."),
        (["tiny", "--protocol", "scrip"], "there is no 'scrip'. Did you mean 'script'? Choose one of clean, script."),
        (["tiny", "--jobs", "0"], "--jobs"),
        (["tiny", "--one-off"], "--one-off is a table of its own, of a protocol"),
        (["tiny", "--seeds", "3-"], "--seeds 3-: give the first and the last"),
        (["tiny", "--seeds", "1,1"], "--seeds 1,1: give"),
        (["tiny", "--table", "4", "--data", "cora"], "--data: no table has 'cora'; choose one of synthetic."),
        (["tiny", "--only", "god"], "there is no 'god'. Did you mean 'good'? Choose one of good, bad, absent, high,"),
        (["f2gnn", "--only", "NBA"], 'Choose one of "NBA, F²GNN", "NBA, F²GNN, last round", '),
        (["tiny", "--only", "high", "--only", "synthetic"], "has its row and its column among high, synthetic"),
    ],
)
def test_what_there_is_not_exits_2_and_writes_nothing(tiny: Path, words: list[str], message: str) -> None:
    code, out, err = reproduce(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tiny.iterdir()) == []


@pytest.mark.often("names1-kept1")
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (("good",), [("good", "global"), ("good", "local")]),
        (("good", "bad"), [("good", "global"), ("good", "local"), ("bad", "global")]),
        (("good", "synthetic"), [("good", "global"), ("good", "local")]),
        (("synthetic",), [("good", "global"), ("good", "local"), ("bad", "global"), ("absent", "global")]),
    ],
)
def test_only_rows_and_columns_of_some_names_are_run(tiny: Path, names: tuple[str, ...], kept: list[Any]) -> None:
    reproduce("tiny", "--table", "1", *(word for name in names for word in ("--only", name)))
    rows = pq.read_table(tiny / f"reproduced/tiny-table1-{'-'.join(names)}.parquet").to_pylist()
    assert [(row["row"], row["split"]) for row in rows] == kept


def test_failures_are_reported_the_rest_is_measured_and_nothing_runs_twice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = reproduce("tiny", "--table", "1", "--jobs", "2")
    assert code == 1
    check_facts(out, "2 runs, 0 of them", "run 2/2")
    rows = pq.read_table(tiny / "reproduced/tiny-table1.parquet").to_pylist()
    assert [(row["row"], row["split"], row["status"].split(":")[0]) for row in rows] == [
        ("good", "global", "measured"),
        ("good", "local", "measured"),
        ("bad", "global", "failed"),
        ("absent", "global", "not available"),
    ]
    check_facts(rows[2]["status"], "clients = 61")
    page = (tiny / "reproduced/tiny-table1.md").read_text()
    assert rows[2]["status"] in page
    check_facts(page, "(tiny-table1.csv)")
    check_facts(out, "'nowhere'")
    assert len(list((tiny / "reproduced/runs").glob("*.log"))) == 1  # of the failed run
    before = {path: path.stat().st_mtime_ns for path in (tiny / "reproduced/runs").rglob("*")}

    monkeypatch.setattr(scheduler, "execute", lambda *_: pytest.fail("something was run"))
    code, out, _ = reproduce("tiny", "--table", "4")  # its only experiment is one of table 1
    assert code == 0
    check_facts(out, "1 run, 1 of them")
    assert {path: path.stat().st_mtime_ns for path in (tiny / "reproduced/runs").rglob("*")} == before
    [row] = pq.read_table(tiny / "reproduced/tiny-table4.parquet").to_pylist()
    assert row["ours"] == rows[0]["ours"]


def test_without_a_number_all_tables_and_figures_and_each_failed_run_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(runs: Any, jobs: int, watch: Any) -> dict[str, str]:
        tried.extend(run.name for run in runs)
        return {run.name: "it burnt" for run in runs}

    monkeypatch.setattr(scheduler, "execute", fail)
    code, out, _ = reproduce("tiny", "--quick", "--out", "there")
    assert code == 1
    assert len(tried) == len(set(tried)) == 2
    assert sorted(path.name for path in (tiny / "there").glob("*.md")) == [
        f"tiny-{name}-quick.md" for name in ("figure2", "table1", "table4")
    ]
    note = "2 rounds of 20, on "
    assert note in out
    assert note in (tiny / "there/tiny-table4-quick.md").read_text()


def test_ctrl_c_says_how_to_continue(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(scheduler, "execute", stop)
    code, _, err = reproduce("tiny", "--table", "4", "--quick", "--jobs", "2", "--out", "my runs")
    assert code == 130
    assert err == (
        "stopped; 0 of 1 run of this table done. Continue with: "
        "fedweave reproduce tiny --table 4 --quick --out 'my runs' --jobs 2"
    )


@pytest.mark.slow
def test_one_off_shows_each_setting_beside_the_best_round(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs under both protocols, of the seeds that are asked for; settings that change nothing have no row."""

    def in_process(planned: Any, *_: Any) -> dict[str, str]:
        for run in planned:
            runs.run(run.config, run.directory, Silent())
        return {}

    monkeypatch.setattr(scheduler, "execute", in_process)
    code, out, _ = reproduce("tiny", "--protocol", "script", "--one-off", "--seeds", "3-4", "--data", "synthetic")
    assert code == 0
    check_facts(out, "8 runs, 0 of them")
    stem = tiny / "reproduced" / "tiny-script-one-off-synthetic"
    rows = pq.read_table(f"{stem}.parquet").to_pylist()
    names = ["everything on", "without: wide", "without: far", "clean"]
    assert [row["row"] for row in rows] == [f"good, {name}" for name in names]
    assert [row["paper"] for row in rows] == [0.5, None, None, None]
    assert all(row["seeds"] == 2 and row["best_on_test"] >= row["ours"] - 1e-12 for row in rows)
    check_facts(Path(f"{stem}.md").read_text(), "best round, chosen on test", f"({stem.name}-differences.csv)")
    check_facts(Path(f"{stem}-differences.csv").read_text(), '"good, without: wide","good, everything on"')
    names = {path.name.split("-")[2] for path in (tiny / "reproduced" / "runs").iterdir() if path.is_dir()}
    assert names == {"s3", "s4"}
    check_facts(reproduce("tiny", "--protocol", "script", "--one-off", "--seeds", "3-4")[1], "8 of them")
