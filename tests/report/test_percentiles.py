"""Many members in few numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedweave.experiment.runs.reading import Run, group_runs, read_run
from fedweave.reports import gains, tables
from fedweave.reports.gains import count_beyond_noise, difference_sign
from fedweave.reports.html import render
from tests.refusals import check_facts
from tests.report.test_report import Page
from tests.report.test_report import runs as runs

COUNT, TESTED = 200, 40


def many(run: Run, accuracies: np.ndarray, tested: int = TESTED) -> Run:
    """The run as if it had a client for each accuracy."""
    [part] = run.partition.slice(0, 1).to_pylist() if run.partition is not None else [{}]
    names = [f"client-{at}" for at in range(len(accuracies))]
    split = pa.Table.from_pylist([part | {"client": name, "test": tested} for name in names])
    rows = [
        {"round": run.done, "client": name, "split": "test", "metric": "accuracy", "value": float(value)}
        for name, value in zip(names, accuracies, strict=True)
    ]
    metrics = pa.Table.from_pylist(rows, run.metrics.schema)
    return replace(run, metrics=metrics, partition=split, summary=run.summary | {"clients": len(names)})


def test_what_is_beyond_noise_by_hand() -> None:
    """18 of 20 and 10 of 20: 19/22 - 11/22 = .364 is more than 1.96 √(.00535 + .01136) = .253; 14 of 20 is not."""
    pairs = ((0.9, 0.5, 20), (0.5, 0.9, 20), (0.7, 0.5, 20), (1.0, 0.0, 1))
    assert [difference_sign(*pair) for pair in pairs] == [1, -1, 0, 0]
    assert [difference_sign(0.5, 0.5, count) for count in (1, 10, 1000)] == [0, 0, 0]
    assert difference_sign(0.52, 0.5, 100_000) == 1


@pytest.mark.parametrize(("share", "tested"), [(0.5, 20), (0.9, 30), (0.1, 200)])
def test_noise_alone_is_rarely_beyond_noise(share: float, tested: int) -> None:
    draws = np.random.default_rng(0).binomial(tested, share, (4000, 2)) / tested
    ways = np.array([difference_sign(one, other, tested) for one, other in draws.tolist()])
    assert [(ways == way).mean() < 0.035 for way in (1, -1)] == [True, True]


def test_a_page_of_many_members_has_percentiles_and_who_gains_beyond_noise(runs: dict[str, Path]) -> None:
    joined, alone = read_run(runs["s0"]), read_run(runs["alone"])
    base = np.full(COUNT, 0.5)
    after = base.copy()
    after[:30], after[30:40], after[40:60] = 1.0, 0.0, 0.55  # the last by two examples of forty
    found = [many(joined, after), many(alone, base)]
    assert count_beyond_noise(*found) == (30, 10)
    [own] = gains.member_gains(group_runs(found))
    assert own.beyond_noise == (30, 10)
    check_facts(gains.gain_sentences([own])[0], "30", "10")
    page = Page(render(found))
    wanted = [f"{value:+.4f}" for value in np.percentile(after - base, (5, 10, 50, 90))]
    spread = page.tables["gain"][1]
    assert spread[0][2:] == ["members", "5 %", "10 %", "50 %", "90 %", "gain beyond noise", "lose beyond noise"]
    assert [one.replace("\N{MINUS SIGN}", "-") for one in spread[1][2:]] == [str(COUNT), *wanted, "30", "10"]
    assert [cell.text for cell in tables.spreads(group_runs(found)).rows[1][3:]] == ["0.5000"] * 4


def test_what_is_not_known_is_not_counted(runs: dict[str, Path]) -> None:
    joined, alone = read_run(runs["s0"]), read_run(runs["alone"])
    assert count_beyond_noise(*(replace(one, partition=None) for one in (joined, alone))) is None
    assert count_beyond_noise(many(joined, np.ones(90), 0), many(alone, np.zeros(90), 0)) is None
    few = gains.member_gains(group_runs([joined, alone]))
    assert (gains.member_spreads(few).rows, "beyond" in gains.gain_sentences(few)[0]) == ((), False)
