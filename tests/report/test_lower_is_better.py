"""Where an error judges, lower values are better: marks, verdicts, gains, the order of runs, and notes."""

import pytest

from fedweave.metrics.selection import METRICS, OF_POSITIVE, headline, rank
from fedweave.reports.cells import Cell, direction, mark_best
from fedweave.reports.effects import ranking
from fedweave.reports.notes import intervals, notes
from fedweave.reports.paired import paired_tests
from tests.refusals import check_facts

SEEDS = (0, 1, 2, 3)


def by_seed(value: float) -> dict[object, float]:
    return {seed: value + 0.001 * seed for seed in SEEDS}


@pytest.mark.parametrize(("name", "best"), [("rmse", 0), ("worst_nrmse", 0), ("r2", 1), ("accuracy", 1), ("loss", 0)])
def test_the_better_value_is_starred(name: str, best: int) -> None:
    cells = mark_best(
        [Cell("a"), Cell("b")], [by_seed(1.0), by_seed(2.0)], name, "rmse" if name != "accuracy" else name
    )
    assert [cell.best for cell in cells] == [best == 0, best == 1]


def test_a_difference_upwards_is_worse_of_errors() -> None:
    up, down = paired_tests([[1.0, 1.1, 0.9]])[0], paired_tests([[-1.0, -1.1, -0.9]])[0]
    assert (up, down) == (1, -1)
    assert [direction(name, "rmse") for name in ("local/rmse", "local/r2", "local/accuracy")] == [-1, 1, 0]


def test_the_lowest_error_comes_first() -> None:
    assert ranking({"a": 2.0, "b": 1.0}, "{:.0f}".format, "rmse") == "1 (b), 2 (a)"
    assert ranking({"a": 2.0, "b": 1.0}, "{:.0f}".format, "auc") == "2 (a), 1 (b)"
    assert rank("global/mae", 2.0) < rank("global/mae", 1.0)


def test_notes_speak_of_what_is_predicted() -> None:
    metrics = {"judged/rmse": -1.0, "global/rmse": 3.0, "global/rmse_of_mean": 2.0, "local/rmse": 1.0}
    metrics |= {"local/rmse_of_mean": 2.0, "shelf/local/rmse": 0.5, "fairness/undefined_clients": 0.0}
    check_facts(headline(metrics), "RMSE", "3.0000 all examples", "1.0000 member mean")
    assert set(notes(metrics)) == {"global", "shelf"}
    assert set(notes(metrics | {"global/rmse": 1.0, "local/rmse": 0.4})) == set()
    labels = {"judged/auc": -1.0, "global/auc": 0.5, "global/labels": 3.0, "global/accuracy": 0.9}
    assert set(notes(labels)) == {"chance"}
    assert set(notes(labels | {"global/auc": 0.7})) == set()


def test_intervals_are_said_with_the_error_of_bins_where_there_is_one() -> None:
    known = {"intervals/width": 2.0, "intervals/coverage": 0.9}
    assert intervals({}) == ""
    check_facts(intervals(known | {"intervals/bin_error": 0.022}), "2.2%")


def test_metrics_that_judge_are_those_that_settings_name() -> None:
    from typing import get_args

    from fedweave.experiment.config.sections import Metric

    assert {name for name, metric in METRICS.items() if metric.judges} == set(get_args(Metric)) - {"auto"}
    assert OF_POSITIVE[:3] == ("average_precision", "recall_at_1", "precision_at_1")
