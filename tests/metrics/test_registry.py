"""What the registry of metrics owes those that read it: settings, sites, groups, and names of results."""

import numpy as np
import pytest
import torch

from fedweave.core.types import CLASS, LABELS, NUMBER
from fedweave.metrics import classification, labels, numbers
from fedweave.metrics.kinds import means
from fedweave.metrics.selection import METRICS, OF_RANKS, OF_SCORES, PLAIN, RMSE_OF_MEAN, is_possible, metrics_of
from fedweave.reports.result_names import RESULTS, better, entry
from fedweave.sites.flare.sitefile import FINE

MASKS = torch.ones(3, 40, dtype=torch.bool)
PAIRS = {
    (CLASS, 2): classification.counts(
        torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2, MASKS
    ),
    (CLASS, 3): classification.counts(
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3, MASKS
    ),
    (LABELS, 0): labels.counts(
        torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(80).view(40, 2) % 3 % 2, MASKS
    ),
    (NUMBER, 0): numbers.counts(
        torch.randn(40, 1, generator=torch.Generator().manual_seed(0)),
        torch.arange(40.0).double()[:, None],
        MASKS,
        None,
    ),
}
VALUES = {CLASS: classification.values, LABELS: labels.values, NUMBER: numbers.values}


@pytest.mark.parametrize("of", PAIRS)
def test_what_is_measured_is_described_and_what_is_described_is_measured(of: tuple[str, int]) -> None:
    """Also where scores are in a sum, whose means have the same numbers."""
    target, classes = of
    measured, summed = VALUES[target](PAIRS[of]), means(PAIRS[of])
    assert {name for name in measured if entry(name) is None} == set()
    expected = {*metrics_of(target, classes), "loss"}
    assert expected <= measured.keys() & summed.keys()
    for name in expected:
        total, count = np.asarray(summed[name], np.float64)[0, :2, ...].reshape(2, -1)[:, -1]
        assert count == 1
        assert total == pytest.approx(float(np.asarray(measured[name])[0]), rel=1e-12), name


def test_a_metric_leaves_a_site_by_a_measure_that_policies_know() -> None:
    known = {*FINE, PLAIN}
    assert {name for name, metric in METRICS.items() if (metric.measure or name) not in known} == {RMSE_OF_MEAN}
    assert OF_SCORES == ("average_precision", "recall_at_1", "precision_at_1")


def test_a_constant_prediction_reaches_something_by_whatever_judges() -> None:
    judging = {name for name in metrics_of(CLASS, 2) if METRICS[name].judges} - {*OF_RANKS}
    reached = {name: classification.chance(name, np.array([30.0, 10.0]), 1) for name in judging}
    assert reached["accuracy"] == 0.75
    assert all(0 <= value <= 1 for value in reached.values())


def test_no_result_has_the_name_of_a_metric() -> None:
    assert METRICS.keys() & RESULTS.keys() == set()


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("global/auc", "high"),
        ("fairness/worst_rmse", "low"),
        ("pooled/brier", "low"),
        ("groups/global/sp", "low"),
        ("within/members", ""),
        ("fairness/undefined_auc", ""),
        ("intervals/worst_coverage", ""),
        ("unknown", ""),
    ],
)
def test_which_end_is_better_follows_from_the_metric(name: str, which: str) -> None:
    assert better(name) == which


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("accuracy", 1.0, True),
        ("accuracy", 1e9, False),
        ("accuracy", -1e9, False),
        ("spearman", -1.0, True),
        ("r2", -40.0, True),
        ("r2", 1.1, False),
        ("rmse", 1e9, True),
        ("rmse", -1.0, False),
        ("auc", float("nan"), False),
    ],
)
def test_values_that_no_metric_can_have(name: str, value: float, possible: bool) -> None:
    assert is_possible(name, value) is possible
