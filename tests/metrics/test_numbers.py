"""Metrics of numbers and of several labels, against scikit-learn and SciPy."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as reference
from torch.func import vmap

from fedweave.algorithms.scoring import pairs_of
from fedweave.core.target import scale_of, to_scale
from fedweave.metrics import labels, numbers
from fedweave.metrics.classification import merge
from fedweave.metrics.intervals import BIN_ERROR, half_width, histograms, intervals, intervals_of_counts

CASES = [(50, 1, False), (200, 3, True), (7, 2, False)]


def drawn(n, t, gaps, seed=0, ties=True):
    """Outputs in units of a scale, numbers with gaps, masks of two sets, the scale and predictions."""
    rng = np.random.default_rng(seed)
    y = 100 + 20 * rng.normal(size=(n, t))
    p = y + 10 * rng.normal(size=(n, t))
    if ties:
        y, p = y.round(-1), p.round(-1)
    if gaps:
        y[rng.random(y.shape) < 0.2] = np.nan
    first = rng.random(n) < 0.6
    masks = np.stack([first, ~first])
    scale = torch.from_numpy(scale_of(y))
    outputs = to_scale(torch.from_numpy(p), scale)
    return outputs, torch.from_numpy(y), torch.from_numpy(masks), scale, p


def expected(y, p):
    """The metrics of each column by scikit-learn and SciPy, averaged."""
    rows = []
    for true, guess in zip(y.T, p.T, strict=True):
        there = ~np.isnan(true)
        true, guess = true[there], guess[there]
        rmse = reference.root_mean_squared_error(true, guess)
        rows.append(
            {
                "rmse": rmse,
                "mae": reference.mean_absolute_error(true, guess),
                "r2": reference.r2_score(true, guess),
                "nrmse": rmse / true.std(),
                "pearson": stats.pearsonr(true, guess).statistic,
                "spearman": stats.spearmanr(true, guess).statistic,
            }
        )
    return {name: np.mean([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize(("n", "t", "gaps"), CASES)
def test_numbers_are_judged_as_scikit_learn_and_scipy_do(n, t, gaps):
    outputs, y, masks, scale, p = drawn(n, t, gaps)
    measured = numbers.values(numbers.counts(outputs, y, masks, scale))
    for at, mask in enumerate(masks.numpy()):
        for name, value in expected(y.numpy()[mask], p[mask]).items():
            assert measured[name][at] == pytest.approx(value, abs=1e-9), name


def test_sums_of_clients_give_the_metrics_of_all_their_examples():
    outputs, y, masks, scale, _ = drawn(120, 2, True)
    whole = numbers.counts(outputs, y, masks, scale)
    parts = [numbers.counts(outputs[at], y[at], masks[:, at], scale) for at in torch.arange(120).split(37)]
    merged = numbers.values(merge(parts))
    for name in ("rmse", "mae", "r2", "nrmse", "pearson"):
        np.testing.assert_allclose(merged[name], numbers.values(whole)[name], rtol=1e-12)


def test_what_is_constant_has_no_correlation_and_what_is_unknown_no_error():
    y = torch.tensor([[3.0, 1.0], [3.0, float("nan")], [3.0, 2.0]], dtype=torch.float64)
    outputs = torch.tensor([[1.0, 1.0], [2.0, 5.0], [3.0, 1.0]], dtype=torch.float64)
    masks = torch.tensor([[True, True, True], [False, False, False]])
    each = numbers.per_target(numbers.counts(outputs, y, masks, None))
    assert each["rmse"][0].tolist() == [pytest.approx((5 / 3) ** 0.5), pytest.approx(0.5**0.5)]
    assert all(each[name][0].isnan().tolist() == [True, True] for name in ("pearson", "spearman"))
    assert each["r2"][0].isnan().tolist() == [True, False]
    assert all(value[1].isnan().all() for value in each.values())


def test_the_training_mean_is_what_predictions_are_compared_with():
    y = torch.tensor([[1.0], [3.0], [5.0], [9.0]], dtype=torch.float64)
    masks = torch.tensor([[True, True, False, False], [False] * 4, [False, False, True, True]])
    pairs = {k: v.numpy() for k, v in numbers.counts(torch.zeros(4, 1), y, masks, None).items()}
    mean = numbers.train_means(pairs)
    assert mean.tolist() == [2.0]
    rmse = numbers.references(pairs, mean)["rmse_of_mean"]
    assert rmse.tolist()[::2] == [1.0, pytest.approx(((9 + 49) / 2) ** 0.5)]
    assert np.isnan(rmse[1])


def test_groups_are_compared_by_their_mean_errors():
    y = torch.zeros(4, 1, dtype=torch.float64)
    outputs = torch.tensor([[1.0], [-3.0], [2.0], [7.0]])
    masks, sensitive = torch.ones(1, 4, dtype=torch.bool), torch.tensor([0, 0, 1, -1])
    pairs = {k: v.numpy() for k, v in numbers.counts(outputs, y, masks, None, sensitive).items()}
    gaps = {name: float(value[0]) for name, value in numbers.between_groups(pairs).items()}
    assert gaps == {
        "groups/mae_group0": 2.0,
        "groups/mae_group1": 2.0,
        "groups/mae_signed": 0.0,
        "groups/bias_group0": -1.0,
        "groups/bias_group1": 2.0,
        "groups/bias_signed": 3.0,
    }


@pytest.mark.parametrize("seed", range(3))
def test_labels_are_judged_as_scikit_learn_does(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(-1, 2, (80, 4))
    y[:, 3] = 1  # has no examples of both kinds
    logits = (rng.normal(size=(80, 4)) + (y == 1)).round(1)
    measured = labels.counts(*map(torch.from_numpy, (logits, y, np.ones((1, 80), bool))))
    metrics = {name: float(value[0]) for name, value in labels.values(measured).items()}
    known = [y[:, at] >= 0 for at in range(3)]
    columns = [(y[there, at], logits[there, at]) for at, there in enumerate(known)]
    assert metrics["labels"] == 3
    assert metrics["auc"] == pytest.approx(np.mean([reference.roc_auc_score(*one) for one in columns]), abs=1e-9)
    precision = np.mean([reference.average_precision_score(*one) for one in columns])
    assert metrics["average_precision"] == pytest.approx(precision, abs=1e-8)  # sums are on a grid of 2^-30
    flat = y >= 0
    loss = reference.log_loss(y[flat], 1 / (1 + np.exp(-logits[flat])))
    assert metrics["loss"] == pytest.approx(loss, abs=1e-8)
    assert metrics["accuracy"] == ((logits > 0) == (y == 1))[flat].mean()


@pytest.mark.parametrize("target", ["number", "labels"])
def test_clients_at_once_are_judged_as_one_by_one(target):
    outputs, y, masks, scale, _ = drawn(60, 3, True)
    many = torch.stack([outputs, -outputs, outputs**2]).float()
    ys = torch.stack([y, y.roll(1, 0), y.flip(0)])
    if target == "labels":
        ys, scale = torch.where(ys.isnan(), -1, (ys > 100).long()), None
    sensitive = torch.arange(60) % 3 - 1

    def one(o, truth):
        return pairs_of(o, truth, masks, sensitive, scale=scale)

    together = vmap(one)(many, ys)
    for at in range(3):
        for name, value in one(many[at], ys[at]).items():
            torch.testing.assert_close(together[name][at], value, rtol=1e-6, atol=1e-9)


# ----------------------------------------------------------------------------------------------------
# Prediction intervals.


def test_the_half_width_is_the_conformal_quantile():
    errors = np.arange(1.0, 20.0)  # 19 of them: 0.9 · 20 = 18
    assert half_width(errors, 0.9) == 18
    assert half_width(errors, 0.95) == 19
    assert half_width(errors, 0.99) == np.inf


def test_intervals_cover_new_examples_as_often_as_they_promise():
    rng = np.random.default_rng(0)
    coverage = []
    for _ in range(400):
        error = abs(rng.standard_t(3, size=(200, 1)))
        masks = np.zeros((3, 200), bool)
        masks[1, :40], masks[2, 40:] = True, True
        coverage.append(intervals([(error, masks)], 0.9)["intervals/coverage"][2])
    assert np.mean(coverage) == pytest.approx(37 / 41, abs=0.01)  # ⌈0.9 · 41⌉ of 41


def test_a_coverage_below_the_least_is_rare_where_examples_are_alike_and_certain_where_they_are_not():
    rng, below = np.random.default_rng(1), np.zeros(2)
    for _ in range(400):
        error = abs(rng.standard_normal((600, 1)))
        masks = np.zeros((3, 600), bool)
        masks[1, :300], masks[2, 300:] = True, True
        unlike = np.where(masks[2][:, None], 2 * error, error)
        for at, errors in enumerate((error, unlike)):
            found = intervals([(errors[:300], masks[:, :300]), (errors[300:], masks[:, 300:])], 0.9)
            assert found["intervals/nominal"][2] == 0.9
            below[at] += found["intervals/coverage"][2] < found["intervals/least_coverage"][2]
    assert below[0] / 400 < 0.06
    assert below[1] == 400


def test_intervals_by_counts_are_wider_by_a_bin_at_most():
    outputs, y, _, scale, p = drawn(300, 2, True, ties=False)
    masks = np.zeros((3, 300), bool)
    masks[1, :150], masks[2, 150:] = True, True
    counts = histograms(outputs, y, torch.from_numpy(masks), scale).numpy()
    by_counts = intervals_of_counts(counts, 0.8)
    exact = intervals([(abs(p - y.numpy()), masks)], 0.8)
    for at in range(2):
        ratio = by_counts[f"intervals/half_width/{at}"][2] / exact[f"intervals/half_width/{at}"][2]
        assert 1 <= ratio * (1 + 1e-9) <= (1 + BIN_ERROR) * (1 + 1e-9)
    assert by_counts["intervals/bin_error"][2] == BIN_ERROR < 0.023
    assert by_counts["intervals/least_coverage"][2] == pytest.approx(exact["intervals/least_coverage"][2], abs=0.01)
    assert by_counts["intervals/coverage"][2] == pytest.approx(exact["intervals/coverage"][2], abs=0.03)
