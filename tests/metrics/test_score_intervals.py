"""Intervals of AUC and average precision: against the definition, a value by hand, scikit-learn, and their coverage."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, roc_auc_score

from fedweave.metrics import score_intervals
from fedweave.metrics.score_intervals import average_precision_interval, delong, wilson

NORMAL = 1.959963984540054


def drawn(seed: int, n: int, coarse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.3
    score = rng.standard_normal(n) + truth
    return (np.round(score) if coarse else score), truth


def test_delong_by_hand() -> None:
    """Positives 3 and 2, negatives 2 and 1: the components are (1, 3/4) and (3/4, 1), each of variance 1/32."""
    low, high = delong(np.array([3.0, 2, 2, 1]), np.array([True, True, False, False]))
    half = NORMAL * math.sqrt(1 / 32 / 2 + 1 / 32 / 2)
    assert (low, high) == pytest.approx((7 / 8 - half, 1.0))


@pytest.mark.parametrize(("seed", "coarse"), [*product(range(3), (False, True))])
def test_delong_is_the_variance_of_the_structural_components(seed: int, coarse: bool) -> None:
    """All pairs of a positive and a negative, as the paper defines them."""
    score, truth = drawn(seed, 60, coarse)
    pairs = np.subtract.outer(score[truth], score[~truth])
    psi = (pairs > 0) + 0.5 * (pairs == 0)
    m, n = psi.shape
    variance = np.var(psi.mean(1), ddof=1) / m + np.var(psi.mean(0), ddof=1) / n
    low, high = delong(score, truth)
    area, half = roc_auc_score(truth, score), NORMAL * math.sqrt(variance)
    assert (low, high) == pytest.approx((max(0, area - half), min(1, area + half)))


@pytest.mark.parametrize(("positives", "negatives"), [(2, 2), (5, 30), (200, 40)])
def test_a_perfect_order_has_the_interval_of_as_many_hits_as_there_are_separate_pairs(
    positives: int, negatives: int
) -> None:
    truth = np.arange(positives + negatives) < positives
    pairs = min(positives, negatives)
    expected = binomtest(pairs, pairs).proportion_ci(method="exact")
    assert delong(truth.astype(np.float64), truth) == pytest.approx((expected.low, 1.0))
    assert delong(-truth.astype(np.float64), truth) == pytest.approx((0.0, 1 - expected.low))


def test_intervals_of_a_perfect_order_cover_the_true_value() -> None:
    """Seven positives and seven negatives of an AUC of .9 are in perfect order in some samples; few intervals miss."""
    rng, shift = np.random.default_rng(0), math.sqrt(2) * 1.2815515655446004  # Φ(shift / √2) = 0.9
    truth = np.arange(14) < 7
    samples = [rng.standard_normal(14) + shift * truth for _ in range(400)]
    perfect = [one for one in samples if one[truth].min() > one[~truth].max()]
    assert len(perfect) > 20
    assert all(low <= 0.9 <= high for low, high in (delong(one, truth) for one in perfect))


def test_too_few_examples_have_no_interval() -> None:
    assert all(map(math.isnan, delong(np.arange(3.0), np.array([True, False, False]))))
    assert all(map(math.isnan, average_precision_interval(np.arange(3.0), np.zeros(3, bool), 0)))
    assert all(map(math.isnan, average_precision_interval(np.zeros(0), np.zeros(0, bool), 0)))


@pytest.mark.parametrize("coarse", [False, True])
def test_the_bootstrap_is_of_scikit_learns_average_precision(coarse: bool) -> None:
    score, truth = drawn(0, 80, coarse)
    rng, values = np.random.default_rng(7), []
    for _ in range(score_intervals.REPLICATES):
        at = np.sort(np.argsort(-score, kind="stable")[rng.integers(80, size=80)])
        values.append(average_precision_score(truth[at], score[at]))
    assert average_precision_interval(score, truth, 7) == pytest.approx(np.percentile(values, (2.5, 97.5)).tolist())
    assert average_precision_interval(score, truth, 7) != average_precision_interval(score, truth, 8)


def test_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    """Of 200 samples; by chance as many as 182 of 200 at 95 %."""
    areas = [delong(*drawn(seed, 150)) for seed in range(200)]
    true = roc_auc_score(*drawn(0, 400_000)[::-1])
    assert sum(low <= true <= high for low, high in areas) >= 182


@pytest.mark.parametrize("examples", [1, 2, 58, 100_000])
def test_the_interval_of_a_share_is_scipys(examples: int) -> None:
    for hits in {0, 1, examples // 3, examples - 1, examples}:
        expected = binomtest(hits, examples).proportion_ci(0.95, "wilson")
        assert wilson(hits / examples, examples) == pytest.approx((expected.low, expected.high), abs=1e-12)
