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
from fedweave.papers.table import assemble, save
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
    save(tmp_path / "out" / "small", "Small", ["One | note."], assemble(planned, {}))

    rows = pq.read_table(tmp_path / "out" / "small.parquet").to_pylist()
    assert rows[0] == {
        "row": "a", "column": "synthetic", "split": "global", "unit": "F1", "paper": 0.55, "paper_spread": 0.01,
        "ours": pytest.approx(0.6), "spread": pytest.approx(0.02**0.5), "difference": pytest.approx(0.05), "seeds": 2,
        "best_on_test": None, "best_on_test_spread": None, "expected": None, "status": "measured",
    }  # fmt: skip
    assert (rows[1]["ours"], rows[1]["spread"], rows[1]["difference"]) == (0.25, 0.0, None)
    assert (rows[2]["ours"], rows[2]["seeds"], rows[2]["paper"]) == (None, 0, 0.5)
    assert (
        (tmp_path / "out" / "small.md").read_text()
        == """# Small

One | note.

| row | column | test | unit | paper | ours | difference | seeds | status |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |
| a | synthetic | global | F1 | 0.5500 ± 0.0100 | 0.6000 ± 0.1414 | +0.0500 | 2 | measured |
| b | synthetic | local | F1 |  | 0.2500 ± 0.0000 |  | 2 | measured |
| c | synthetic | global | F1 | 0.5000 ± 0.0100 |  |  | 0 | not available: there is no algorithm 'nowhere' yet |
"""
    )


def test_one_seed_has_no_deviation_and_arithmetic_has_a_column(tmp_path: Path) -> None:
    counted = replace(cell("a", 0.5), quantity=replace(accuracy("global"), expected=lambda it: it["rounds"] / 40))
    planned = grid.plan(table(counted, seeds=1), tmp_path, grid.Stock())
    finish(planned[0].runs[0], global_accuracy=0.4)
    [row] = assemble(planned, {})
    assert (row.spread, row.seeds, row.expected) == (None, 1, 0.5)
    save(tmp_path / "one", "One", [], [row])
    check_facts((tmp_path / "one.md").read_text(), "| 0.4000 | -0.1000 | 0.5000 | 1 | measured |")


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
    save(tmp_path / "mb", "MB", [], assemble(planned, {}))
    check_facts((tmp_path / "mb.md").read_text(), "| MB | 2,000.0 ± 0.0 | 1,234.6 | -765.4 | 1 |")


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
