"""The table of baselines: its pages are those of its runs, and its runs are those of its code."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import false_discovery_control, ttest_rel

from benchmarks import baselines_table
from benchmarks.baselines_page import choices, findings_page, p_value, p_values, reject, results_csv
from benchmarks.baselines_table import KEYS, Runs, choose
from fedweave.errors import UserError

DOCS = Path(__file__).parents[2] / "docs"
RUNS = DOCS / "results" / "baselines-runs.csv"
DATA = Path(os.environ.get("FEDWEAVE_DATA", "../shared/data")).resolve()
CELL = ("cora", "louvain", "fedtgp")  # a cheap one, whose server draws normal numbers


def rows() -> list[dict[str, str]]:
    with RUNS.open(newline="") as file:
        return list(csv.DictReader(file))


def test_pages_are_those_of_the_runs() -> None:
    runs = Runs(RUNS, fixed=True)
    findings = (DOCS / "findings" / "baselines.md").read_text()
    assert findings_page(findings, choices(runs)) == findings
    assert results_csv(runs) == (DOCS / "results" / "baselines.csv").read_text()


def test_every_run_says_of_which_commit_it_is() -> None:
    found = {row["commit"] for row in rows()}
    assert all(len(commit) == 8 and set(commit) <= set("0123456789abcdef") for commit in found), found


def test_stars_are_corrected_for_their_number() -> None:
    """The procedure against SciPy, the chances against its paired test. By hand: .01 ≤ .05 · 1/4, .02 ≤ .05 · 2/4,
    but .04 > .05 · 3/4 and .6 > .05."""
    assert reject({"a": 0.02, "b": 0.6, "c": 0.01, "d": 0.04}) == {"a", "c"}
    assert reject({"a": 0.049, "b": 0.049}) == {"a", "b"}  # the largest k counts, not the first that is too large
    assert reject({}) == set()
    p = p_values(choices(Runs(RUNS, fixed=True)))
    significant = false_discovery_control(list(p.values())) <= 0.05
    assert [key in reject(p) for key in p] == significant.tolist()
    assert sum(significant) < sum(value <= 0.05 for value in p.values())
    one, two = np.random.default_rng(0).normal(size=(2, 5))
    assert p_value((one - two).tolist()) == pytest.approx(ttest_rel(one, two).pvalue, abs=1e-12)
    assert [p_value([0.25] * 2), p_value([0.25] * 3), p_value([0.0] * 3)] == [1, 0, 1]


def test_a_row_is_added_with_the_commit_and_files_of_other_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: dict[str, Any] = {"val": 0.5, "test": 0.25, "global": 0.3, "trained": 0.3, "seconds": 1.0}
    monkeypatch.setattr(baselines_table, "run", lambda key, device: measured | {"bytes_up": 1.0, "bytes_down": 2.0})
    monkeypatch.setattr(baselines_table, "commit", lambda: "0123abcd+")
    where = {"set": "cora", "cut": "louvain", "clients": 10, "rounds": 60}
    file = tmp_path / "runs.csv"
    choice = choose(Runs(file), where, "fedavg", seeds=2)
    assert (choice.commits(), choice.tests(), choice.edge) == (["0123abcd+"], {0: 0.25, 1: 0.25}, True)
    again = Runs(file, fixed=True)
    assert choose(again, where, "fedavg", seeds=2) == choice
    assert choose(again, where, "fedavg", seeds=3) is None
    assert len(file.read_text().splitlines()) == 1 + 4  # three rates of seed 0, one of seed 1
    file.write_text(file.read_text().replace(",commit", ""))
    with pytest.raises(UserError, match="columns"):
        Runs(file)


def reproduced(number: int) -> None:
    """One of the cell's rows, drawn by a seed, is what today's code measures."""
    of_cell = [row for row in rows() if (row["set"], row["cut"], row["method"]) == CELL]
    row = of_cell[np.random.default_rng(57).permutation(len(of_cell))[number]]
    key = {name: row[name] for name in KEYS} | {name: int(row[name]) for name in ("clients", "rounds", "seed")}
    found = baselines_table.run(key)
    for name in ("val", "test", "global", "trained", "bytes_up", "bytes_down"):
        assert found[name] == pytest.approx(float(row[name]), rel=1e-9), (row, name)


@pytest.mark.skipif(not (DATA / CELL[0]).exists(), reason=f"{DATA / CELL[0]} is not there")
@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_rows_are_what_the_code_measures(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(DATA))
    reproduced(number)
