"""Clients whose replies are missing are named where a result is shown, not only in a table of the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.experiment.build import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.runs.files import METRICS
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.run import RunBackend, run
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.reports.absences import absence_sentence, faults, long_absence_sentence
from fedweave.reports.html import render
from fedweave.reports.notes import fairest_notes, notes
from fedweave.reports.terminal import Terminal, screen, show_result
from tests.refusals import check_facts

DOCUMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"local_steps": 1},
    "engine": {"threads": 1, "checkpoint_seconds": 0.0},
}


def rows(*told: tuple[int, str, str, float]) -> pa.Table:
    """(round, client, metric, value) as rows of metrics.parquet."""
    plain = [{"round": at, "client": who, "split": "train", "metric": what, "value": n} for at, who, what, n in told]
    return pa.Table.from_pylist(plain, schema=METRICS_SCHEMA)


def test_those_most_often_missing_come_first_with_the_reason() -> None:
    table = rows(
        (1, "a", "missing", 2),
        (1, "b", "missing", 1),
        (1, "b", "refused", 1),
        (2, "b", "missing", 3),
        (2, "c", "late", 1),
    )
    assert faults(table)["b"] == {"missing": {1: 1, 2: 3}, "refused": {1: 1}, "late": {}}
    assert absence_sentence(table).startswith(
        "replies are missing of b in 2 rounds (what was sent was refused), of a in 1 round: these rounds went on with"
    )
    assert absence_sentence(rows((1, "a", "late", 1), (1, "a", "accuracy", 0.5))) == ""
    many = rows(*((1, name, "missing", 1.0) for name in "edcba"))
    check_facts(absence_sentence(many), "a in 1", "b in 1", "c in 1", "2 more")


def test_who_missed_half_of_the_rounds_is_in_the_headline_and_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows((1, "b", "missing", 1), (2, "b", "missing", 2), (2, "a", "missing", 1), (4, "a", "accuracy", 1))
    assert (
        long_absence_sentence(table) == "This result is mostly without some members: of 4 rounds b in 2 took no part."
    )
    assert long_absence_sentence(table.slice(1)) == long_absence_sentence(table.slice(0, 0)) == ""
    lost = RunBackend(extra_metrics=lambda fed, round: rows((round, "client-1", "missing", 1)) if round > 1 else None)
    directory = tmp_path / "run"
    summary = run(resolve(DOCUMENT | {"rounds": 4}), directory, Terminal(screen(quiet=True)), here=lost)
    assert summary["missed"] == {"client-1": 3}
    show_result(screen(), summary, directory)
    said, note = "of 4 rounds client-1 in 3 took no part", "replies are missing of client-1 in 3 rounds"
    printed = " ".join(capsys.readouterr().out.split())
    assert (said in printed[:200], f"note: {note}" in printed) == (True, True)
    page = render([read_run(directory)])
    assert (said in page[page.index('class="verdict') :][:300], note.partition("replies ")[2] in page) == (True, True)


def test_a_best_round_that_lacks_clients_is_noted() -> None:
    assert notes({"best_val/round": 16, "best_val/val/accuracy": 0.9}) == {}
    [said] = notes({"best_val/round": 16, "best_val/missing": 1.0}).values()
    assert said == (
        "the round of best validation accuracy, 16, lacks the scores of 1 client; no evaluated round lacks fewer."
    )
    [said] = fairest_notes({"best_fair/round": 3, "best_fair/missing": 2.0}).values()
    check_facts(said, "3,", "2 clients")


def test_of_a_run_under_way_the_best_round_is_one_that_lacks_nobody(tmp_path: Path) -> None:
    """As its summary will say, from rows, of which a client that was missing has others."""
    directory = tmp_path / "run"
    run(resolve(DOCUMENT | {"rounds": 2}), directory, Terminal(screen(quiet=True)))
    table = pq.read_table(directory / METRICS).to_pylist()
    first, last = ([row for row in table if row["round"] == number] for number in (1, 2))
    kept = [row for row in last if row["client"] != "client-1"]
    for row in kept:
        row["value"] = 1.0 if row["metric"] == "accuracy" else row["value"]
    evaluated = pa.Table.from_pylist([*first, *kept], schema=METRICS_SCHEMA)
    pq.write_table(pa.concat_tables([evaluated, rows((2, "client-1", "missing", 1))]), directory / METRICS)
    (directory / "summary.json").unlink()
    metrics = read_run(directory).summary["metrics"]
    assert (metrics["best_val/round"], metrics["scores/missing"]) == (1, 1.0)


def test_the_page_says_what_could_not_be_compared_between_sites(tmp_path: Path) -> None:
    def noted(config: Config) -> SimpleNamespace:
        built = build(config)
        names = ("columns", "digests")  # of its class
        note = "the columns of bank-c could not be compared"
        return SimpleNamespace(**vars(built) | {name: getattr(built, name) for name in names} | {"note": note})

    summary = run(resolve(DOCUMENT), tmp_path / "run", Terminal(screen(quiet=True)), here=RunBackend(noted))
    assert summary["note"] == "the columns of bank-c could not be compared"
    check_facts(render([read_run(tmp_path / "run")]), "bank-c")
