"""Scores from sums of histograms: by hand, against the scores themselves, and within the bounds that are told."""

import math

import numpy as np
import pytest
import torch

from fedweave.metrics.classification import counts, mean_values, means, values
from fedweave.metrics.ranking import probabilities, scores, threshold
from fedweave.metrics.score_histograms import BINS, auc, average_precision, edges, histograms, metrics_of_histograms


def examples(n: int, scale: float, seed: int = 0, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits that know a little, classes, and three splits; some logits stand twice."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=draws)
    logits = scale * (torch.randn(n, classes, generator=draws) + torch.nn.functional.one_hot(y, classes))
    logits[: n // 4] = logits[n // 4 : 2 * (n // 4)]
    split = torch.randint(3, (n,), generator=draws)
    return logits, y, torch.arange(3)[:, None] == split


def told(found: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: own.numpy() for name, own in found.items()}


def test_auc_and_average_precision_of_three_bins_by_hand() -> None:
    """Positives 1, 1, 2 and negatives 3, 1, 0 by rising scores: of 16 pairs 1·0 + 1·3 + 2·4 = 11 are in order and
    1·3 + 1·1 = 4 tied; precisions 2/2, 3/4 and 4/8 of 2, 1 and 1 positives."""
    positive, negative = np.array([1.0, 1.0, 2.0]), np.array([3.0, 1.0, 0.0])
    assert auc(negative, positive) == (13 / 16, 2 / 16)
    area, off = average_precision(negative, positive)
    assert area == (2 * 1 + 3 / 4 + 4 / 8) / 4
    assert off == pytest.approx(max(3 / 3 - 3 / 4 + 4 / 5 - 4 / 8, 0) / 4)  # both at the front of their bins


@pytest.mark.parametrize("scale", [1e-3, 0.3, 5.0, 300.0])
@pytest.mark.parametrize("positive", [0, 1])
def test_what_histograms_say_is_within_the_bound_that_they_tell(scale: float, positive: int) -> None:
    logits, y, masks = examples(800, scale)
    found = metrics_of_histograms(told(histograms(logits, y, masks)), positive, "f1")
    margin = (logits[:, positive] - logits[:, 1 - positive]).double().numpy()
    truth = (y == positive).numpy()
    exact = values({"auc": counts(logits, y, masks)["auc"]}, positive)["auc"]
    for at, mask in enumerate(masks.numpy()):
        one = scores(margin[mask], truth[mask], found["threshold"][0])
        for name, own in (("auc", exact[at]), ("average_precision", one["average_precision"])):
            assert abs(found[name][at] - own) <= found[f"{name}_error"][at] + 1e-12
        assert found["brier"][at] == pytest.approx(one["brier"], abs=1e-6)
        assert found["calibration_error"][at] == pytest.approx(one["calibration_error"], abs=1e-6)
        for name in ("recall", "precision", "f1_positive", "flagged"):
            assert found[name][at] == pytest.approx(one[name], nan_ok=True)
    if scale >= 0.3:
        assert found["auc_error"].max() < 0.01
        best = threshold(probabilities(margin[masks[1]]), truth[masks[1].numpy()], "f1")
        most = scores(margin[masks[1]], truth[masks[1].numpy()], best)["f1_positive"]
        assert found["f1_positive"][1] == pytest.approx(most, abs=0.02)


def test_scores_that_are_tied_are_within_the_bound_too() -> None:
    """By hand: positives 1, 1 between a negative above and one in their bin, of scores 5, 1, 1, 0.999."""
    draws = np.random.default_rng(0)
    sets = [(np.array([5.0, 1, 1, 0.999]), np.array([0, 1, 1, 0]))]
    sets += [(draws.choice([5.0, 1, 0.999, 0.998, -2], 8), draws.integers(0, 2, 8)) for _ in range(50)]
    for margin, truth in sets:
        logits = torch.stack([torch.zeros(len(margin)), torch.tensor(margin)], 1).double()
        masks = torch.ones(3, len(margin), dtype=torch.bool)
        found = metrics_of_histograms(told(histograms(logits, torch.tensor(truth), masks)), 1, 0.5)
        if truth.any():
            exact = scores(margin, truth == 1, 0.5)["average_precision"]
            assert abs(found["average_precision"][0] - exact) <= found["average_precision_error"][0] + 1e-12


@pytest.mark.parametrize("positive", [0, 1])
def test_what_lies_on_the_threshold_is_flagged_as_its_probability_says(positive: int) -> None:
    """Of two examples in bins beside the edge 0 one lies on it."""
    margin = np.array([0.0, -5e-4]) if positive == 0 else np.array([0.0, 5e-4])
    logits, y = torch.stack([torch.zeros(2), torch.tensor(margin)], 1).double(), torch.tensor([1, 0])
    found = metrics_of_histograms(told(histograms(logits, y, torch.ones(3, 2, dtype=torch.bool))), positive, "auto")
    own = probabilities(margin if positive == 1 else -margin)
    assert found["flagged"][0] == (own >= found["threshold"][0]).mean()
    assert found["threshold"][0] == pytest.approx(0.5)


def test_sums_over_members_are_those_of_all_examples_to_the_bit() -> None:
    for classes in (2, 4):
        logits, y, masks = examples(300, 2.0, classes=classes)
        whole, parts = histograms(logits, y, masks), np.array_split(np.arange(300), 3)
        each = [histograms(logits[part], y[part], masks[:, part]) for part in parts]
        for name, own in whole.items():
            assert torch.equal(own, sum(one[name] for one in each))
        assert whole["margins"].sum() == len(y) * (1 if classes == 2 else classes)


def test_bins_have_an_edge_at_zero_and_rise() -> None:
    assert len(edges()) == BINS + 1
    assert edges()[BINS // 2] == 0
    assert (np.diff(edges()) > 0).all()
    found = metrics_of_histograms(told(histograms(*examples(100, 1.0))), 1, 0.5)
    assert found["threshold"].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("how", "flagged"),
    [
        ("f1", 2),
        ({"recall_at": 0.5}, 4),
        ({"cost": {"miss": 50, "alarm": 1}}, 6),
        ({"cost": {"miss": 1, "alarm": 9}}, 2),
    ],
)
def test_a_threshold_is_an_edge_that_validation_chooses(how: object, flagged: int) -> None:
    """Eight examples by falling scores, fraud 1, 1, 0, 0, 0, 1, 0, 0."""
    y, margin = torch.tensor([1, 1, 0, 0, 0, 1, 0, 0]), torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1])
    masks = torch.tensor([[False], [True], [False]]).expand(3, 8)
    found = metrics_of_histograms(told(histograms(torch.stack([0 * margin, margin], 1), y, masks)), 1, how)
    assert found["flagged"][1] == flagged / 8
    assert math.isnan(found["recall"][2])


@pytest.mark.parametrize("classes", [2, 4])
def test_means_over_members_are_those_of_each_ones_values(classes: int) -> None:
    members = [counts(*examples(60, 1.0, seed, classes)) for seed in range(3)]
    members[0]["auc"] = torch.zeros_like(members[0]["auc"])
    sums = {name: sum(means(own)[name] for own in members) for name in means(members[0])}
    found = mean_values(sums, 0)
    each = [values(own, 0) for own in members]
    for name, own in found.items():
        assert own == pytest.approx(np.nanmean([one[name] for one in each], 0), abs=1e-12)
