"""Differences between rows: paired over seeds, worked by hand and against SciPy's paired test."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_rel

from fedweave.papers import grid
from fedweave.papers.differences import differences, save_differences
from fedweave.papers.table import TableRow, assemble
from fedweave.reports.paired import interval, paired_differences, paired_test
from tests.reproduce.tiny import cell, finish, table


def row(name: str, *by_seed: float | None, column: str = "data") -> TableRow:
    return TableRow(name, column, "global", "F1", *(None,) * 7, len(by_seed), None, "measured", 2, by_seed)


def test_by_hand() -> None:
    rows = [row("ours", 3.0, 5.0, 7.0), row("plain", 2.0, 3.0, 4.0), row("ours", 1.0, column="other")]
    [found] = differences(rows, ("plain",))  # nothing to compare with in the other column
    assert (found.row, found.against, found.column, found.split, found.unit) == (
        "ours", "plain", "data", "global", "F1",
    )  # fmt: skip
    assert (found.difference, found.seeds) == (2.0, 3)  # of 1, 2, 3, whose deviation is 1
    half = 4.302653 / 3**0.5  # Student's t with 2 degrees of freedom at .975
    assert (found.low, found.high) == (pytest.approx(2 - half, abs=1e-6), pytest.approx(2 + half, abs=1e-6))


def test_intervals_are_those_of_the_paired_test() -> None:
    one, two = np.random.default_rng(0).normal(size=(2, 7))
    wanted = ttest_rel(one, two).confidence_interval(0.95)
    assert interval((one - two).tolist()) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert interval([0.25, 0.25]) == (0.25, 0.25)
    assert interval([0.25]) == (None, None)


def test_a_difference_is_significant_over_common_seeds_and_never_where_runs_are_equal() -> None:
    """Differences of .10, .11 and .12 are .11, give or take 2.5 of .01."""
    low, high = {0: 0.5, 1: 0.6, 4: 0.3, 2: 0.9}, {1: 0.7, 4: 0.42, 0: 0.61, 3: 0.1}
    assert paired_test(paired_differences(high, low)) == 1
    assert paired_test(paired_differences(low, high)) == -1
    assert paired_test(paired_differences(low, low)) == 0
    assert paired_test(paired_differences({0: 0.9}, {0: 0.1})) == 0


def test_fewer_than_three_seeds_say_nothing_even_where_their_differences_are_equal() -> None:
    assert interval([0.25, 0.25]) == (0.25, 0.25)
    assert [paired_test([0.25] * n) for n in range(4)] == [0, 0, 0, 1]
    assert [paired_test([-0.25] * n) for n in range(4)] == [0, 0, 0, -1]
    assert paired_test([0.1, 0.2, -0.1]) == 0


def test_seeds_without_one_of_the_numbers_are_left_out_of_pairs() -> None:
    rows = [row("ours", 3.0, None, 7.0, 8.0), row("plain", 2.0, 3.0, 5.0, None), row("none", None)]
    assert [(it.row, it.difference, it.seeds) for it in differences(rows, ("plain",))] == [("ours", 1.5, 2)]
    scarce = differences([row("ours", 3.0, None), row("plain", 2.0, 3.0)], ("plain",))
    assert [(it.low, it.high, it.seeds) for it in scarce] == [(None, None, 1)]


def test_of_two_rows_that_others_are_set_against_the_later_minus_the_earlier() -> None:
    rows = [row("a", 1.0), row("b", 3.0), row("c", 6.0)]
    found = {(it.row, it.against): it.difference for it in differences(rows, ("b", "c"))}
    assert found == {("a", "b"): -2.0, ("a", "c"): -5.0, ("c", "b"): 3.0}


def test_files_of_finished_runs(tmp_path: Path) -> None:
    small = replace(table(cell("ours"), cell("plain", model={"hidden": 5})), against=("plain",))
    planned = grid.plan(small, tmp_path, grid.Stock())
    for plan, values in zip(planned, ((0.5, 0.7), (0.4, 0.5)), strict=True):
        for run, value in zip(plan.runs, values, strict=True):
            finish(run, global_accuracy=value)
    found = differences(assemble(planned, {}), small.against)
    names = save_differences(tmp_path / "small", found)
    assert names == [f"{tmp_path / 'small-differences'}.csv", f"{tmp_path / 'small-differences'}.parquet"]
    [saved] = pq.read_table(names[1]).to_pylist()
    half = 12.706205 * 0.05  # 0.1 and 0.2: deviation 0.0707, over the root of 2
    assert saved == {
        "row": "ours", "against": "plain", "column": "synthetic", "split": "global", "unit": "F1",
        "difference": pytest.approx(0.15), "low": pytest.approx(0.15 - half), "high": pytest.approx(0.15 + half),
        "seeds": 2,
    }  # fmt: skip
    head, line = Path(names[0]).read_text().splitlines()
    assert head == '"row","against","column","split","unit","difference","low","high","seeds"'
    assert line == '"ours","plain","synthetic","global","F1",0.15,-0.48531,0.78531,2'
