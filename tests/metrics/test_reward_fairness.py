"""Correlation of accuracies alone and together against NumPy and by hand, and payoffs by quality."""

import numpy as np
import pytest

from fedweave.metrics.client_fairness import pearson, per_group
from tests.refusals import refusal


@pytest.mark.parametrize("seed", range(5))
def test_the_correlation_is_numpys_and_its_interval_fishers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alone = rng.random(10)
    together = alone + rng.normal(0, 0.2, 10)
    found = pearson(alone, together)
    assert found.value == pytest.approx(np.corrcoef(alone, together)[0, 1])
    half = 1.959963984540054 / np.sqrt(10 - 3)
    low, high = np.tanh(np.arctanh(found.value) - half), np.tanh(np.arctanh(found.value) + half)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_clients_without_an_accuracy_are_left_out() -> None:
    alone, together = np.array([0.1, 0.5, np.nan, 0.9]), np.array([0.2, 0.4, 0.9, 0.6])
    assert pearson(alone, together).value == pytest.approx(1)
    assert np.isnan(pearson(alone, together).low)


def test_where_one_side_does_not_vary_there_is_no_correlation() -> None:
    assert np.isnan(pearson(np.ones(5), np.arange(5.0)).value)
    assert np.isnan(pearson(np.arange(5.0), np.ones(5)).value)
    assert np.isnan(pearson(np.ones(1), np.ones(1)).value)


def test_lengths_must_agree() -> None:
    with refusal("data.lengths"):
        pearson(np.ones(3), np.ones(4))


def test_payoffs_by_quality() -> None:
    paid = {"low-0": 0.1, "low-1": 0.3, "medium-0": 0.5, "high-0": 0.7}
    assert per_group(paid) == pytest.approx({"low": 0.2, "medium": 0.5, "high": 0.7})
    assert per_group({"client-0": 1.0}) == {}
    assert per_group({"low-0": 1.0, "bank": 1.0}) == {}
