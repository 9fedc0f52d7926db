"""How well scores find a positive class: what a share of alerts catches, how true probabilities are, and from which
score on an example is flagged. All of it on the host, from the scores of examples side by side."""

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import expit

from fedweave.metrics.judging import HALF, Flagging, Judging, Threshold, looked_for

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
        **of_alerts(caught, positives, n),
        "brier": float(np.mean((p - truth) ** 2)) if n else math.nan,
        "calibration_error": calibration_error(p, truth),
        **of_flagged(hits, int(flagged.sum()), positives, n),
    }


def of_alerts(caught: Mapping[str, float], positives: float, n: int) -> dict[str, float]:
    """Recall and precision of the alerts of n examples, by how many positives are among each share of them."""
    recall = {name: share_of(hits, positives) for name, hits in caught.items()}
    return recall | {"precision_at_1": share_of(caught["recall_at_1"], alerts(n, ALERTED["recall_at_1"]))}


def of_flagged(hits: float, flagged: float, positives: float, n: float) -> dict[str, float]:
    """The "recall", "precision", "f1_positive" and "flagged", a share of n examples, by counts."""
    return {
        "recall": share_of(hits, positives),
        "precision": share_of(hits, flagged),
        "f1_positive": share_of(2 * hits, positives + flagged),
        "flagged": share_of(flagged, n),
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


def threshold(p: np.ndarray, truth: np.ndarray, how: Threshold) -> float:
    """From which probability on an example is flagged, by validation examples (`judging.Judging.threshold`); halfway
    between two of them. 0.5 where no example is positive, or nothing is asked for."""
    if isinstance(how, float | int):
        return float(how)
    if how == "auto" or not truth.any():
        return HALF
    order = np.argsort(-p, kind="stable")
    ranked, hits = p[order], np.cumsum(truth[order])
    last = np.append(ranked[1:] != ranked[:-1], True)  # equal probabilities are flagged together
    worth = _worth(hits, np.arange(1, len(p) + 1), how)
    if worth[last].max() < _of_none(int(truth.sum()), how):
        return float((1 + ranked[0]) / 2) if ranked[0] < 1 else float(np.nextafter(1, 2))
    best = int(np.argmax(np.where(last, worth, -np.inf)))
    return float((ranked[best] + ranked[best + 1]) / 2) if best + 1 < len(p) else float(ranked[best] / 2)


def by_validation(judging: Judging, metrics: Mapping[str, float | None], p: np.ndarray, y: np.ndarray) -> Flagging:
    """Which examples of two classes are flagged, by validation examples of one model: probabilities [n, 2], classes."""
    positive = looked_for(judging, metrics)
    how = "f1" if judging.threshold == "auto" else judging.threshold
    return Flagging(positive, threshold(p[:, positive].astype(np.float64), y == positive, how))


def threshold_of_counts(negative: np.ndarray, positive: np.ndarray, how: Threshold) -> int:
    """The first flagged bin of examples that are counted by bins of rising scores [b], the middle one where no example
    is positive, or nothing is asked for; `how` as `threshold` has it, a number apart."""
    hits = np.cumsum(positive[::-1])
    if how == "auto" or not hits[-1]:
        return len(positive) // 2
    worth = _worth(hits, np.cumsum((positive + negative)[::-1]), how)
    return len(positive) if worth.max() < _of_none(int(hits[-1]), how) else len(positive) - 1 - int(np.argmax(worth))


def _worth(hits: np.ndarray, count: np.ndarray, how: Threshold) -> np.ndarray:
    """Of flagging so many examples, falling by score, the last of which are all."""
    positives, n = hits[-1], count[-1]
    if not isinstance(how, Mapping):
        found: np.ndarray = 2 * hits / (count + positives)
    elif "recall_at" in how:
        found = -np.abs(count - how["recall_at"] * n)
    else:
        found = -(how["cost"]["miss"] * (positives - hits) + how["cost"]["alarm"] * (count - hits))
    return found.astype(np.float64)


def _of_none(positives: int, how: object) -> float:
    """What it is worth to flag nothing, where that may be the cheapest."""
    return -how["cost"]["miss"] * positives if isinstance(how, Mapping) and "cost" in how else -math.inf


def share_of(total: float, count: float) -> float:
    """total / count, NaN where the count is 0."""
    return float(total / count) if count else math.nan
