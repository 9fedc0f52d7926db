"""How well scores find a positive class: recall among a share of alerts, calibration of probabilities, and the
threshold from which an example is flagged. All of it on the host, from the scores of examples side by side.
"""

import math
from collections.abc import Mapping

import numpy as np
import scipy

from fedweave.metrics.selection import HALF, Flagging, Judging, Threshold, positive_class

ALERTED = {"recall_at_1": 0.01, "recall_at_5": 0.05}
CALIBRATION_BINS = 15


def probabilities(margin: np.ndarray) -> np.ndarray:
    """Probabilities of the positive class, float64 [n], from its logits minus the other's."""
    result: np.ndarray = scipy.special.expit(np.asarray(margin, np.float64))
    return result


def scores(margin: np.ndarray, truth: np.ndarray, at: float) -> dict[str, float]:
    """Metrics of n examples: "average_precision", "recall_at_1", "recall_at_5", "precision_at_1", "brier",
    "calibration_error", and "recall", "precision", "f1_positive" and "flagged" (a share) of the examples whose
    probability is at least `at`; NaN where there is nothing to count.

    margin float64 [n]: logits of the positive class minus logits of the other. truth bool [n]: which are positive.
    """
    from sklearn.metrics import average_precision_score  # takes long to import

    p, n, positives = probabilities(margin), len(truth), int(truth.sum())
    flagged = p >= at
    hits = int((flagged & truth).sum())
    alert_hits = {name: hits_of_alerts(margin, truth, share) for name, share in ALERTED.items()}
    return {
        "average_precision": float(average_precision_score(truth, margin)) if positives else math.nan,
        **alert_metrics(alert_hits, positives, n),
        "brier": float(np.mean((p - truth) ** 2)) if n else math.nan,
        "calibration_error": calibration_error(p, truth),
        **flag_metrics(hits, int(flagged.sum()), positives, n),
    }


def alert_metrics(hits: Mapping[str, float], positives: float, n: int) -> dict[str, float]:
    """Recall and precision of the alerts of n examples, by the number of positives in each share of alerts."""
    recall = {name: share_of(count, positives) for name, count in hits.items()}
    return recall | {"precision_at_1": share_of(hits["recall_at_1"], alerts(n, ALERTED["recall_at_1"]))}


def flag_metrics(hits: float, flagged: float, positives: float, n: float) -> dict[str, float]:
    """ "recall", "precision", "f1_positive" and "flagged", a share of n examples, from counts."""
    return {
        "recall": share_of(hits, positives),
        "precision": share_of(hits, flagged),
        "f1_positive": share_of(2 * hits, positives + flagged),
        "flagged": share_of(flagged, n),
    }


def alerts(n: int, share: float) -> int:
    """The number of alerts that are a `share` of n examples, at least one unless n is 0."""
    return math.ceil(share * n - 1e-9)


def hits_of_alerts(margin: np.ndarray, truth: np.ndarray, share: float) -> float:
    """The number of positives among the `share` of highest scores; equal scores at the border count by their chance to
    be among them."""
    count = alerts(len(truth), share)
    if not count:
        return 0.0
    border = np.partition(margin, -count)[-count]
    above, equal = margin > border, margin == border
    probability = (count - above.sum()) / equal.sum()  # that one at the border is an alert
    return float((above & truth).sum() + probability * (equal & truth).sum())


def calibration_error(p: np.ndarray, truth: np.ndarray, bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error: over `bins` of equal width the mean of |mean probability - share of positives|,
    weighted by examples; NaN without any."""
    if not len(p):
        return math.nan
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    difference = np.bincount(place, p, bins) - np.bincount(place, truth.astype(np.float64), bins)
    return float(np.abs(difference).sum() / len(p))


def threshold(p: np.ndarray, truth: np.ndarray, how: Threshold) -> float:
    """The probability from which an example is flagged, by validation examples (`judging.Judging.threshold`); halfway
    between two of them. 0.5 where no example is positive, or with "auto"."""
    if isinstance(how, float | int):
        return float(how)
    if how == "auto" or not truth.any():
        return HALF
    order = np.argsort(-p, kind="stable")
    ranked, hits = p[order], np.cumsum(truth[order])
    last = np.append(ranked[1:] != ranked[:-1], True)  # equal probabilities are flagged together
    worth = worth_of_flagging(hits, np.arange(1, len(p) + 1), how)
    if worth[last].max() < worth_of_none(int(truth.sum()), how):
        return float((1 + ranked[0]) / 2) if ranked[0] < 1 else float(np.nextafter(1, 2))
    best = int(np.argmax(np.where(last, worth, -np.inf)))
    return float((ranked[best] + ranked[best + 1]) / 2) if best + 1 < len(p) else float(ranked[best] / 2)


def by_validation(judging: Judging, metrics: Mapping[str, float | None], p: np.ndarray, y: np.ndarray) -> Flagging:
    """Which examples of two classes are flagged, by validation examples of one model: probabilities [n, 2], classes."""
    positive = positive_class(judging, metrics)
    how = "f1" if judging.threshold == "auto" else judging.threshold
    return Flagging(positive, threshold(p[:, positive].astype(np.float64), y == positive, how))


def worth_of_flagging(hits: np.ndarray, count: np.ndarray, how: Threshold) -> np.ndarray:
    """The worth of flagging the `count` examples with the highest scores, `hits` of them positive; the last entry flags
    all examples."""
    positives, n = hits[-1], count[-1]
    if not isinstance(how, Mapping):
        result: np.ndarray = 2 * hits / (count + positives)
    elif "recall_at" in how:
        result = -np.abs(count - how["recall_at"] * n)
    else:
        result = -(how["cost"]["miss"] * (positives - hits) + how["cost"]["alarm"] * (count - hits))
    return result.astype(np.float64)


def worth_of_none(positives: int, how: object) -> float:
    """The worth of flagging nothing, which can be the cheapest choice."""
    if isinstance(how, Mapping) and "cost" in how:
        return float(-how["cost"]["miss"] * positives)
    return -math.inf


def share_of(total: float, count: float) -> float:
    """total / count, NaN where the count is 0."""
    return float(total / count) if count else math.nan
