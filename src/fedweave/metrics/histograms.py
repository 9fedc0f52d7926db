"""How one model's scores order the examples of all members, from histograms that add up over members: what somebody
knows who learns no score, and no member's own numbers.

Scores are margins: the logit of a class less the logarithm of the sum of the others' exponentials. The edges between
bins are fixed beforehand, evenly over asinh of 16 margins, and one of them is 0: bins are 0.0014 wide there, and from a
margin of 1 on 2.3 % of it.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from fedweave.core.graph import VAL
from fedweave.core.tree import Tree
from fedweave.metrics.classification import mean_of_classes, on_grid, ratio
from fedweave.metrics.flagging import ALERTED, alerts, of_alerts, of_flagged, share_of, threshold_of_counts
from fedweave.metrics.flagging import BINS as CALIBRATED
from fedweave.metrics.judging import Threshold

BINS = 1024
FARTHEST = 4096.0  # the margin from which on all examples are in the last bin
_FINE = 16.0
_SPAN = math.asinh(_FINE * FARTHEST)
MARGINS, BRIER, CALIBRATION = "margins", "brier", "calibration"
ERROR = "_error"  # of a metric's name: how far it may be from that of the scores themselves


def histograms(logits: Tensor, y: Tensor, masks: Tensor) -> Tree:
    """What one client's scores add to those of all, for S sets of examples; arguments as `classification.counts` has
    them. float64:

    "margins" [S, k, 2, BINS]: how many examples that are not and that are of a class have a margin in each bin; of two
                               classes the second alone (k = 1), else of each.
    "brier" [S, 2]:            of two classes, the sum of squared errors of the second's probability, and examples.
    "calibration" [S, 3, 15]:  and by 15 equal bins of that probability its sum, examples, and those of the class.

    Works under `torch.func.vmap`.
    """
    margin, truth = _margins(logits.to(torch.float64), y)
    place = ((torch.asinh(_FINE * margin) / _SPAN + 1) * (BINS / 2)).floor().clamp(0, BINS - 1).long()
    classes = margin.shape[1]
    at = (torch.arange(classes, device=y.device) * 2 + truth) * BINS + place
    counted = masks[:, :, None].to(torch.float64)
    found = {MARGINS: _scattered(at, counted.expand(-1, -1, classes), classes * 2 * BINS).view(-1, classes, 2, BINS)}
    if logits.shape[-1] != 2:
        return found
    p, positive = torch.sigmoid(margin[:, 0]), truth[:, 0].to(torch.float64)
    within = (p * CALIBRATED).floor().clamp(max=CALIBRATED - 1).long()
    by_bin = [_scattered(within, masks * own, CALIBRATED) for own in (on_grid(p), torch.ones_like(p), positive)]
    squared = (masks * on_grid((p - positive) ** 2)).sum(-1)
    brier = torch.stack([squared, masks.sum(-1).to(torch.float64)], 1)
    return found | {BRIER: brier, CALIBRATION: torch.stack(by_bin, 1)}


def _margins(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] and whether each example is of the class, int64."""
    if logits.shape[-1] == 2:
        return logits[:, 1:] - logits[:, :1], (y == 1).long()[:, None]
    own = torch.eye(logits.shape[-1], dtype=torch.bool, device=y.device)
    others = torch.logsumexp(torch.where(own, -torch.inf, logits[:, None]), -1)
    return logits - others, (y[:, None] == torch.arange(logits.shape[-1], device=y.device)).long()


def _scattered(at: Tensor, weight: Tensor, size: int) -> Tensor:
    """Sums [S, size] of weights [S, …] by places […]."""
    weight = weight.reshape(len(weight), -1)
    zeros = torch.zeros(len(weight), size, dtype=torch.float64, device=at.device)
    return zeros.scatter_add(1, at.reshape(1, -1).expand(len(weight), -1), weight)


def edges() -> np.ndarray:
    """The margins between the bins, float64 [BINS + 1], the first and the last of them without end."""
    inner = np.sinh((np.arange(1, BINS) / (BINS / 2) - 1) * _SPAN) / _FINE
    return np.concatenate([[-np.inf], inner, [np.inf]])


def pooled(found: Mapping[str, np.ndarray], positive: int, how: Threshold) -> dict[str, np.ndarray]:
    """Of all members' examples float64 [3], by split: "auc", the mean over classes where there are more than two, and
    of two classes "average_precision", each with how far it may be off, "auc_error" and "average_precision_error";
    "recall_at_1" and so on, and what `flagging.scores` says from the "threshold" on that `how` chooses of the edges on
    validation examples. "brier" and "calibration_error" are exact. NaN where there is nothing to count.

    found: sums of `histograms`. positive: the class, of two; what lies on an edge counts as below it for class 0, for
    which a chosen threshold is the next number above the edge's.
    """
    margins = found[MARGINS]
    if BRIER not in found:
        each = np.array([[auc(*own) for own in split] for split in margins])
        return {"auc": mean_of_classes(each[..., 0]), f"auc{ERROR}": mean_of_classes(each[..., 1])}
    if positive == 0:
        margins = margins[:, :, ::-1, ::-1]
    splits = margins[:, 0]
    given = float(how) if isinstance(how, float | int) else None
    where = threshold_of_counts(splits[VAL, 0], splits[VAL, 1], how) if given is None else _nearest(given)
    at = _probability(where, closed=positive == 1) if given is None else given
    rows = [_of_split(split[0], split[1], where) for split in splits]
    whole = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    total, examples, true = np.moveaxis(found[CALIBRATION], 1, 0)
    apart = np.abs(total - true).sum(-1)
    whole |= {"brier": ratio(*found[BRIER].T), "calibration_error": ratio(apart, examples.sum(-1))}
    return whole | {"threshold": np.full(len(rows), at)}


def _probability(where: int, closed: bool) -> float:
    """From which on the bins from `where` on are flagged; above 1 for none. closed: whether what lies on an edge is in
    the bin above it, as it is not where bins are reversed."""
    if where == BINS:
        return float(np.nextafter(1, 2))
    found = expit(edges()[where])
    return float(found if closed or not where else np.nextafter(found, 2))


def _nearest(p: float) -> int:
    """The bin whose lower edge is nearest to that of a probability."""
    with np.errstate(divide="ignore"):
        place = (np.arcsinh(_FINE * logit(p)) / _SPAN + 1) * (BINS / 2)
    return int(np.clip(np.round(place), 0, BINS))


def _of_split(negative: np.ndarray, positive: np.ndarray, where: int) -> dict[str, float]:
    """What the examples of one split say, by rising bins; those from the bin `where` on are flagged."""
    area, off = auc(negative, positive)
    precision, far = average_precision(negative, positive)
    positives, n = positive.sum(), positive.sum() + negative.sum()
    hits, flagged = positive[where:].sum(), positive[where:].sum() + negative[where:].sum()
    caught = {name: _caught(negative, positive, share) for name, share in ALERTED.items()}
    return {
        "auc": area,
        f"auc{ERROR}": off,
        "average_precision": precision,
        f"average_precision{ERROR}": far,
        **of_alerts(caught, positives, int(n)),
        **of_flagged(hits, flagged, positives, n),
    }


def auc(negative: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Of counts by rising bins, ties counted half, and how far that of the scores may be from it: half the sum over
    bins of p_b q_b, their shares of the positives and the negatives."""
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative
    tied = float((positive * negative).sum())
    return share_of(float((positive * below).sum()) + tied / 2, pairs), share_of(tied / 2, pairs)


def average_precision(negative: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Of counts by rising bins, each bin's examples at once, and how far that of the scores may be from it: they lie
    between those with a bin's positives first, all of one score, and with its positives last."""
    p, q = positive[::-1], negative[::-1]
    tp, fp, count = np.cumsum(p), np.cumsum(q), p.astype(np.int64)
    total = p.sum()
    together = float((p * ratio(tp, tp + fp))[p > 0].sum())
    number = np.arange(1, int(total) + 1)  # of each positive by falling scores
    first = float((p * ratio(tp, tp + fp - q))[p > 0].sum())
    last = float((number / (number + np.repeat(fp, count))).sum())
    return share_of(together, total), share_of(max(first - together, together - last), total)


def _caught(negative: np.ndarray, positive: np.ndarray, share: float) -> float:
    """Positives among the `share` of highest scores; of the bin at the border each counts by its chance to be there."""
    n = positive + negative
    left = alerts(int(n.sum()), share) - (np.cumsum(n[::-1])[::-1] - n)  # for a bin, once those above are alerts
    return float((positive * np.clip(ratio(left, n), 0, 1))[n > 0].sum())
