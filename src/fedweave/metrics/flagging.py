"""How well scores find a positive class: what a share of alerts catches, how true probabilities are, and from which
score on an example is flagged. All of it on the host, from the scores of examples side by side."""

import math
from typing import Any

import numpy as np
from scipy.special import expit

from fedweave.metrics.judging import HALF

ALERTED = {"recall_at_1": 0.01, "recall_at_5": 0.05}
BINS = 15


def probabilities(margin: np.ndarray) -> np.ndarray:
    """Of the positive class, float64 [n], from its logits less the other's."""
    found: np.ndarray = expit(np.asarray(margin, np.float64))
    return found


def scores(margin: np.ndarray, truth: np.ndarray, at: float) -> dict[str, float]:
    """Of n examples: "average_precision", "recall_at_1", "recall_at_5", "precision_at_1", "brier",
    "calibration_error", and "recall", "precision", "f1_positive" and "flagged" (a share) of those whose probability is
    `at` or more; NaN where there is nothing to count.

    margin float64 [n]: logits of the positive class less those of the other. truth bool [n]: which are positive.
    """
    from sklearn.metrics import average_precision_score  # takes long to import

    p, n, positives = probabilities(margin), len(truth), int(truth.sum())
    flagged = p >= at
    hits = int((flagged & truth).sum())
    caught = {name: hits_of_alerts(margin, truth, share) for name, share in ALERTED.items()}
    return {
        "average_precision": float(average_precision_score(truth, margin)) if positives else math.nan,
        **{name: _ratio(found, positives) for name, found in caught.items()},
        "precision_at_1": _ratio(caught["recall_at_1"], alerts(n, ALERTED["recall_at_1"])),
        "brier": float(np.mean((p - truth) ** 2)) if n else math.nan,
        "calibration_error": calibration_error(p, truth),
        "recall": _ratio(hits, positives),
        "precision": _ratio(hits, int(flagged.sum())),
        "f1_positive": _ratio(2 * hits, positives + int(flagged.sum())),
        "flagged": _ratio(int(flagged.sum()), n),
    }


def alerts(n: int, share: float) -> int:
    """How many of n examples a share of them is, at least one of any."""
    return math.ceil(share * n - 1e-9)


def hits_of_alerts(margin: np.ndarray, truth: np.ndarray, share: float) -> float:
    """How many positives are among the `share` of highest scores; of equal scores at the border each counts by its
    chance to be among them."""
    count = alerts(len(truth), share)
    if not count:
        return 0.0
    border = np.sort(margin)[-count]
    above, equal = margin > border, margin == border
    left = (count - above.sum()) / equal.sum()
    return float((above & truth).sum() + left * (equal & truth).sum())


def calibration_error(p: np.ndarray, truth: np.ndarray, bins: int = BINS) -> float:
    """The expected calibration error: over `bins` of equal width the mean of |mean probability - share of positives|,
    weighted by examples; NaN without any."""
    if not len(p):
        return math.nan
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    apart = np.bincount(place, p, bins) - np.bincount(place, truth.astype(np.float64), bins)
    return float(np.abs(apart).sum() / len(p))


def threshold(p: np.ndarray, truth: np.ndarray, how: Any) -> float:
    """From which probability on an example is flagged, by validation examples (`judging.Judging.threshold`); halfway
    between two of them. 0.5 where no example is positive, or nothing is asked for."""
    if isinstance(how, float | int):
        return float(how)
    if how == "auto" or not truth.any():
        return HALF
    order = np.argsort(-p, kind="stable")
    ranked, hits = p[order], np.cumsum(truth[order])
    last = np.append(ranked[1:] != ranked[:-1], True)  # equal probabilities are flagged together
    count = np.arange(1, len(p) + 1)
    if isinstance(how, str):
        worth = 2 * hits / (count + truth.sum())
    elif "recall_at" in how:
        worth = -np.abs(count - how["recall_at"] * len(p))
    else:
        worth = -(how["cost"]["miss"] * (truth.sum() - hits) + how["cost"]["alarm"] * (count - hits)).astype(np.float64)
        if worth[last].max() < -how["cost"]["miss"] * truth.sum():  # nothing flagged is cheaper
            return float((1 + ranked[0]) / 2) if ranked[0] < 1 else float(np.nextafter(1, 2))
    best = int(np.argmax(np.where(last, worth, -np.inf)))
    return float((ranked[best] + ranked[best + 1]) / 2) if best + 1 < len(p) else float(ranked[best] / 2)


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
