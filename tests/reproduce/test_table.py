"""Tables against means, deviations and bytes worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.core.ledger_columns import SCHEMA
from fedweave.papers import grid
from fedweave.papers.paper import Printed, Quantity, parse_numbers
from fedweave.papers.quantities import MB, accuracy, megabytes, minutes
from fedweave.papers.table import VERDICT_NOTE, TableRow, assemble, headings, page, row_texts, save, verdict
from tests.refusals import check_facts, refusal
from tests.reproduce.tiny import cell, finish, table


def test_means_deviations_and_files(tmp_path: Path) -> None:
    unpaired = cell("b", None, "local", model={"hidden": 5})
    absent = cell("c", 0.5, algorithm={"name": "nowhere"})
    planned = grid.plan(table(cell("a", 0.55), unpaired, absent, seeds=2), tmp_path, grid.Stock())
    for run, value in zip(planned[0].runs, (0.5, 0.7), strict=True):
        finish(run, global_accuracy=value)
    for run, value in zip(planned[1].runs, (0.25, 0.25), strict=True):
        finish(run, local_accuracy=value)
    names = save(tmp_path / "out" / "small", "Small", ["One | note."], assemble(planned, {}))
    assert names == [str(tmp_path / "out" / f"small.{ending}") for ending in ("csv", "parquet")]
    rows = pq.read_table(tmp_path / "out" / "small.parquet").to_pylist()
    assert rows[0] == {
        "row": "a", "column": "synthetic", "split": "global", "unit": "F1", "paper": 0.55, "paper_spread": 0.01,
        "ours": pytest.approx(0.6), "spread": pytest.approx(0.02**0.5), "difference": pytest.approx(0.05), "seeds": 2,
        "best_on_test": None, "best_on_test_spread": None, "expected": None, "status": "measured",
    }  # fmt: skip
    assert (rows[1]["ours"], rows[1]["spread"], rows[1]["difference"]) == (0.25, 0.0, None)
    assert (rows[2]["ours"], rows[2]["seeds"], rows[2]["paper"]) == (None, 0, 0.5)
    assert (tmp_path / "out" / "small.csv").read_text().splitlines()[3] == (
        '"c","synthetic","global","F1",0.5,0.01,,,,,,0,,"not available: there is no algorithm \'nowhere\' yet"'
    )


def compared(difference: float, spread: float | None, paper_spread: float | None) -> TableRow:
    """A row of which the paper prints 0.5."""
    ours = 0.5 + difference
    best = None, None
    return TableRow(
        "a", "x", "global", "F1", 0.5, paper_spread, ours, spread, difference, *best, 2, None, "measured", 2, ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("difference", "spread", "paper_spread", "wanted"),
    [  # 2 √(.03² + .04²) = .1
        (0.099, 0.03, 0.04, "within spread"),
        (0.101, 0.03, 0.04, "above"),
        (-0.101, 0.04, 0.03, "below"),
        (0.08, None, 0.03, "within spread"),  # 2 √(2 · .03²) = .085
        (0.09, 0.03, None, "above"),
        (0.09, None, None, ""),
    ],
)
def test_a_verdict_compares_with_both_deviations(
    difference: float, spread: float | None, paper_spread: float | None, wanted: str
) -> None:
    assert verdict(compared(difference, spread, paper_spread)) == wanted


def test_a_page_has_the_numbers_that_the_paper_prints_and_links_to_the_rest() -> None:
    """What all rows share stands above them; a number that is not there is counted."""
    rows = [
        compared(0.1, 0.0, 0.0),
        replace(compared(-0.1, 0.0, 0.0), row="b|c"),
        replace(compared(0.0, None, 0.0), ours=None, difference=None, status="not available: it is far"),
        replace(compared(0.0, None, 0.0), paper=None, difference=None),
    ]
    blocks = page("Small", ["A note."], rows, ["s.csv", "s.parquet", "s-differences.csv", "s-a.svg"]).split("\n\n")
    assert blocks == [
        "# Small",
        "A note.",
        VERDICT_NOTE,
        "In all rows: column x, test global, unit F1, seeds 2.",
        "| row | paper | ours | difference | verdict |\n"
        "| --- | ---: | ---: | ---: | --- |\n"
        "| a | 0.50 ± 0.00 | 0.60 ± 0.00 | +0.10 | above |\n"
        "| b\\|c | 0.50 ± 0.00 | 0.40 ± 0.00 | -0.10 | below |",
        "1 number of the paper: not available: it is far.",
        "[CSV: 4 rows](s.csv), [differences between rows](s-differences.csv).",
        "![s-a](s-a.svg)\n",
    ]


def test_one_seed_has_no_deviation_and_arithmetic_has_a_column(tmp_path: Path) -> None:
    counted = replace(cell("a", 0.5), quantity=replace(accuracy("global"), expected=lambda it: it["rounds"] / 40))
    planned = grid.plan(table(counted, seeds=1), tmp_path, grid.Stock())
    finish(planned[0].runs[0], global_accuracy=0.4)
    [row] = assemble(planned, {})
    assert (row.spread, row.seeds, row.expected) == (None, 1, 0.5)
    assert row_texts(row, headings([row]))[-5:] == ["0.4000", "-0.1000", "0.5000", "1", "measured"]


def test_failures_are_named_and_the_other_seeds_still_count(tmp_path: Path) -> None:
    planned = grid.plan(table(cell("a", 0.5), seeds=3), tmp_path, grid.Stock())
    first, second, third = planned[0].runs
    finish(first, global_accuracy=0.4)
    finish(third, global_accuracy=0.6)
    [row] = assemble(planned, {second.name: "it burnt"})
    assert row.status == f"failed: {second.name}: it burnt"
    assert (row.ours, row.seeds) == (0.5, 2)


def test_a_number_that_a_run_does_not_have_is_a_failure(tmp_path: Path) -> None:
    planned = grid.plan(table(cell("a", 0.5), seeds=1), tmp_path, grid.Stock())
    [run] = planned[0].runs
    finish(run, local_accuracy=0.4)
    assert assemble(planned, {})[0].status == f"failed: {run.name}: it has no such number"
    (run.directory / "summary.json").write_text("{}")
    check_facts(assemble(planned, {})[0].status, "summary.json")


def test_quantities_read_summary_and_ledger(tmp_path: Path) -> None:
    [planned] = grid.plan(table(cell("a"), seeds=1), tmp_path, grid.Stock())
    [run] = planned.runs
    finish(run, global_accuracy=0.5)
    lines = [
        ("FedEgo.train", "up", "egos/embedding", 3 * MB),
        ("FedEgo.train", "up", "egos/label", MB),
        ("FedEgo.train", "up", "theta/0/weight", 5 * MB),
        ("FedEgo.train", "down", "theta/0/weight", 7 * MB),
        ("FedEgo.train", "down", "labels", 11 * MB),
        ("FedEgo.train", "down", "(names and framing)", 13 * MB),
        ("FedEgo.score", "down", "theta/0/weight", 17 * MB),
    ]
    rows = [
        dict.fromkeys(SCHEMA.names, "") | {"round": 1, "call": 1, "seconds": 0.0, "at": None}
        | {"step": step, "direction": way, "key": key, "bytes": size} for step, way, key, size in lines
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), run.directory / "ledger.parquet")
    assert megabytes(("egos",)).read(run.directory) == 4
    assert megabytes(("theta", "phi")).read(run.directory) == 12
    assert minutes().read(run.directory) == 1.5
    assert accuracy("global").read(run.directory) == 0.5
    assert accuracy("local").read(run.directory) is None


def test_quantities_are_not_only_accuracies(tmp_path: Path) -> None:
    thousands = replace(cell("a", 2000.0), quantity=Quantity("MB", lambda run: 1234.56, digits=1))
    planned = grid.plan(table(thousands, seeds=1), tmp_path, grid.Stock())
    [row] = assemble(planned, {})
    assert row_texts(row, ["unit", "paper", "ours", "difference"]) == ["MB", "2,000.0 ± 0.0", "1,234.6", "-765.4"]


def test_printed_tables() -> None:
    text = """
    Method  | Cora            | Wiki
    FedAvg  | 0.9473 ± 0.0012 | Out Of Memory
    FedSage | 11,250          | .5 ±.25
    """
    assert parse_numbers(text) == {
        ("FedAvg", "Cora"): Printed(0.9473, 0.0012),
        ("FedAvg", "Wiki"): Printed(None, None),
        ("FedSage", "Cora"): Printed(11250.0, None),
        ("FedSage", "Wiki"): Printed(0.5, 0.25),
    }
    with refusal("paper.cells", "'b' has 1"):
        parse_numbers("a | x | y\nb | 1")
