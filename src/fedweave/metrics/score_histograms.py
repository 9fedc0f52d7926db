"""How one model's scores order the examples of all clients, from histograms that add up over clients. A server can
learn their sum without learning a score, or one client's counts.

Scores are margins: the logit of a class minus the logarithm of the sum of the others' exponentials. The edges between
bins are fixed beforehand, evenly over asinh of 16 margins, and one of them is 0: bins are 0.0014 wide there, and from a
margin of 1 on 2.3 % of it.
"""

import math
from collections.abc import Mapping

import numpy as np
import scipy
import torch
from torch import Tensor

from fedweave.core.graph import VAL
from fedweave.core.tree import Tree
from fedweave.metrics.classification import mean_of_classes, ratio
from fedweave.metrics.rank_sums import on_grid
from fedweave.metrics.ranking import (
    ALERTED,
    CALIBRATION_BINS,
    alert_metrics,
    alerts,
    flag_metrics,
    share_of,
    worth_of_flagging,
    worth_of_none,
)
from fedweave.metrics.selection import Threshold

BINS = 1024
FARTHEST = 4096.0  # the margin from which on all examples are in the last bin
_FINE = 16.0
_SPAN = math.asinh(_FINE * FARTHEST)
MARGINS, BRIER, CALIBRATION = "margins", "brier", "calibration"
ERROR = "_error"  # suffix of a metric's name: how far it may be from the metric of the scores themselves


def histograms(logits: Tensor, y: Tensor, masks: Tensor) -> Tree:
    """One client's additive counts of scores, for S sets of examples; arguments as for
    `classification.counts`. float64:

    "margins" [S, k, 2, BINS]: how many examples outside and inside a class have a margin in each bin; with two classes
                               only for the second (k = 1), else for each.
    "brier" [S, 2]:            with two classes, the sum of squared errors of the second's probability, and examples.
    "calibration" [S, 3, 15]:  likewise, by 15 equal bins of that probability, its sum, examples, and positives.

    Works under `torch.func.vmap`.
    """
    logits = logits.to(torch.float64)
    if logits.shape[-1] == 2:
        margin, truth = logits[:, 1:] - logits[:, :1], (y == 1).long()[:, None]  # [n, k]
    else:
        identity = torch.eye(logits.shape[-1], dtype=torch.bool, device=y.device)
        margin = logits - torch.logsumexp(torch.where(identity, -torch.inf, logits[:, None]), -1)
        truth = (y[:, None] == torch.arange(logits.shape[-1], device=y.device)).long()
    place = ((torch.asinh(_FINE * margin) / _SPAN + 1) * (BINS / 2)).floor().clamp(0, BINS - 1).long()
    classes = margin.shape[1]
    at = (torch.arange(classes, device=y.device) * 2 + truth) * BINS + place
    weight = masks[:, :, None].to(torch.float64).expand(-1, -1, classes)
    sums = {MARGINS: _sums_by_bin(at, weight, classes * 2 * BINS).view(-1, classes, 2, BINS)}
    if logits.shape[-1] != 2:
        return sums
    p, positive = torch.sigmoid(margin[:, 0]), truth[:, 0].to(torch.float64)
    at = (p * CALIBRATION_BINS).floor().clamp(max=CALIBRATION_BINS - 1).long()
    amounts = (on_grid(p), torch.ones_like(p), positive)
    by_bin = [_sums_by_bin(at, masks * amount, CALIBRATION_BINS) for amount in amounts]
    squared = (masks * on_grid((p - positive) ** 2)).sum(-1)
    brier = torch.stack([squared, masks.sum(-1).to(torch.float64)], 1)
    return sums | {BRIER: brier, CALIBRATION: torch.stack(by_bin, 1)}


def _sums_by_bin(at: Tensor, weight: Tensor, size: int) -> Tensor:
    """Sums [S, size] of weights [S, …] by places […]."""
    weight = weight.reshape(len(weight), -1)
    zeros = torch.zeros(len(weight), size, dtype=torch.float64, device=at.device)
    return zeros.scatter_add(1, at.reshape(1, -1).expand(len(weight), -1), weight)


def edges() -> np.ndarray:
    """The margins between the bins, float64 [BINS + 1]; the first and the last are infinite."""
    inner = np.sinh((np.arange(1, BINS) / (BINS / 2) - 1) * _SPAN) / _FINE
    return np.concatenate([[-np.inf], inner, [np.inf]])


def metrics_of_histograms(sums: Mapping[str, np.ndarray], positive: int, how: Threshold) -> dict[str, np.ndarray]:
    """Metrics of all clients' examples, float64 [3] by split; NaN where there is nothing to count.

    "auc" (the mean over classes where there are more than two) and, for two classes, "average_precision", each with its
    possible error, "auc_error" and "average_precision_error". For two classes also "recall_at_1" and so on, and the
    metrics of `ranking.scores` from the "threshold" on, an edge that `how` chooses on validation examples. "brier" and
    "calibration_error" are exact.

    sums: sums of `histograms`. positive: the class, of two. For class 0 a score on an edge counts as below it, so a
    chosen threshold is the next number above the edge.
    """
    margins = sums[MARGINS]
    if BRIER not in sums:
        areas = [auc(*counts) for counts in margins.reshape(-1, *margins.shape[2:])]
        areas_and_errors = np.array(areas).reshape(*margins.shape[:2], 2)  # [3, c, 2]
        return {
            "auc": mean_of_classes(areas_and_errors[..., 0]),
            f"auc{ERROR}": mean_of_classes(areas_and_errors[..., 1]),
        }
    if positive == 0:
        margins = margins[:, :, ::-1, ::-1]
    splits = margins[:, 0]  # [3, 2, BINS]
    if isinstance(how, float | int):
        first, at = _nearest(how), float(how)
    else:
        first = _first_flagged(splits[VAL, 0], splits[VAL, 1], how)
        at = _probability(first, closed=positive == 1)
    rows = [_split_metrics(negative, positives, first) for negative, positives in splits]
    metrics = dict[str, np.ndarray]()
    for name in rows[0]:
        metrics[name] = np.array([row[name] for row in rows])
    total, examples, true = np.moveaxis(sums[CALIBRATION], 1, 0)
    metrics["brier"] = ratio(*sums[BRIER].T)
    metrics["calibration_error"] = ratio(np.abs(total - true).sum(-1), examples.sum(-1))
    return metrics | {"threshold": np.full(len(rows), at)}


def _first_flagged(negative: np.ndarray, positive: np.ndarray, how: Threshold) -> int:
    """The first flagged bin, by counts of validation examples in rising bins [b]; the middle bin where no example is
    positive, or with "auto". how: as in `ranking.threshold`, but no number."""
    hits = np.cumsum(positive[::-1])
    if how == "auto" or not hits[-1]:
        return len(positive) // 2
    worth = worth_of_flagging(hits, np.cumsum((positive + negative)[::-1]), how)
    if worth.max() < worth_of_none(int(hits[-1]), how):
        return len(positive)
    return len(positive) - 1 - int(np.argmax(worth))


def _probability(where: int, closed: bool) -> float:
    """The probability from which on the bins from `where` on are flagged; above 1 for none. closed: whether a score on
    an edge is in the bin above it; where bins are reversed, it is in the bin below."""
    if where == BINS:
        return float(np.nextafter(1, 2))
    edge = scipy.special.expit(edges()[where])
    return float(edge if closed or not where else np.nextafter(edge, 2))


def _nearest(p: float) -> int:
    """The bin whose lower edge is nearest to the margin of a probability."""
    with np.errstate(divide="ignore"):
        place = (np.arcsinh(_FINE * scipy.special.logit(p)) / _SPAN + 1) * (BINS / 2)
    return int(np.clip(np.round(place), 0, BINS))


def _split_metrics(negative: np.ndarray, positive: np.ndarray, where: int) -> dict[str, float]:
    """The metrics of the examples of one split, by rising bins; examples from the bin `where` on are flagged."""
    area, off = auc(negative, positive)
    precision, far = average_precision(negative, positive)
    positives, n = positive.sum(), positive.sum() + negative.sum()
    hits, flagged = positive[where:].sum(), positive[where:].sum() + negative[where:].sum()
    counts, used = positive + negative, positive + negative > 0
    alert_hits = {}
    for name, share in ALERTED.items():
        above = np.cumsum(counts[::-1])[::-1] - counts  # examples in the bins above each
        probability = np.clip(ratio(alerts(int(n), share) - above, counts), 0, 1)  # that one of a bin is an alert
        alert_hits[name] = float((positive * probability)[used].sum())
    return {
        "auc": area,
        f"auc{ERROR}": off,
        "average_precision": precision,
        f"average_precision{ERROR}": far,
        **alert_metrics(alert_hits, positives, int(n)),
        **flag_metrics(hits, flagged, positives, n),
    }


def auc(negative: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """The AUC by counts of rising bins, ties counted half, and how far it may be from the AUC of the scores: half the
    sum over bins of p_b q_b, their shares of the positives and the negatives."""
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative
    tied = float((positive * negative).sum())
    return share_of(float((positive * below).sum()) + tied / 2, pairs), share_of(tied / 2, pairs)


def average_precision(negative: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """The average precision by counts of rising bins, each bin's examples at once, and its largest error. The extremes
    of the scores' average precision are all positives of a bin first, with one score, and all last."""
    p, q = positive[::-1], negative[::-1]
    tp, fp, count = np.cumsum(p), np.cumsum(q), p.astype(np.int64)
    total = p.sum()
    together = float((p * ratio(tp, tp + fp))[p > 0].sum())
    number = np.arange(1, int(total) + 1)  # the place of each positive by falling scores
    first = float((p * ratio(tp, tp + fp - q))[p > 0].sum())
    last = float((number / (number + np.repeat(fp, count))).sum())
    return share_of(together, total), share_of(max(first - together, together - last), total)
