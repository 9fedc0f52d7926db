"""How well scores find a positive class: recall among a share of alerts, calibration of probabilities, and the
threshold from which an example is flagged. All of it on the host, from the scores of examples side by side.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.graph import VAL, Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS, NUMBER, Kind, from_scale, kind_of
from fedweave.core.tree import Tree, device_of
from fedweave.metrics import labels, numbers
from fedweave.metrics.classification import class_auc_pairs, mean_of_classes, on_grid, ratio, values
from fedweave.metrics.intervals import intervals, intervals_of_counts
from fedweave.metrics.selection import HALF, Flagging, Judging, Threshold, looked_for

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
    caught = {name: hits_of_alerts(margin, truth, share) for name, share in ALERTED.items()}
    return {
        "average_precision": float(average_precision_score(truth, margin)) if positives else math.nan,
        **of_alerts(caught, positives, n),
        "brier": float(np.mean((p - truth) ** 2)) if n else math.nan,
        "calibration_error": calibration_error(p, truth),
        **of_flagged(hits, int(flagged.sum()), positives, n),
    }


def of_alerts(caught: Mapping[str, float], positives: float, n: int) -> dict[str, float]:
    """Recall and precision of the alerts of n examples, by the number of positives in each share of alerts."""
    recall = {name: share_of(hits, positives) for name, hits in caught.items()}
    return recall | {"precision_at_1": share_of(caught["recall_at_1"], alerts(n, ALERTED["recall_at_1"]))}


def of_flagged(hits: float, flagged: float, positives: float, n: float) -> dict[str, float]:
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
    border = np.sort(margin)[-count]
    above, equal = margin > border, margin == border
    left = (count - above.sum()) / equal.sum()
    return float((above & truth).sum() + left * (equal & truth).sum())


def calibration_error(p: np.ndarray, truth: np.ndarray, bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error: over `bins` of equal width the mean of |mean probability - share of positives|,
    weighted by examples; NaN without any."""
    if not len(p):
        return math.nan
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    apart = np.bincount(place, p, bins) - np.bincount(place, truth.astype(np.float64), bins)
    return float(np.abs(apart).sum() / len(p))


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
    """The first flagged bin of examples that are counted by bins of rising scores [b]; the middle bin where no example
    is positive, or with "auto". how: as in `threshold`, but no number."""
    hits = np.cumsum(positive[::-1])
    if how == "auto" or not hits[-1]:
        return len(positive) // 2
    worth = _worth(hits, np.cumsum((positive + negative)[::-1]), how)
    return len(positive) if worth.max() < _of_none(int(hits[-1]), how) else len(positive) - 1 - int(np.argmax(worth))


def _worth(hits: np.ndarray, count: np.ndarray, how: Threshold) -> np.ndarray:
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


def _of_none(positives: int, how: object) -> float:
    """The worth of flagging nothing, which can be the cheapest choice."""
    return -how["cost"]["miss"] * positives if isinstance(how, Mapping) and "cost" in how else -math.inf


def share_of(total: float, count: float) -> float:
    """total / count, NaN where the count is 0."""
    return float(total / count) if count else math.nan


# ----------------------------------------------------------------------------------------------------
# How one model's scores order the examples of all clients, from histograms that add up over clients. A server can learn
# their sum without learning a score, or one client's counts. Scores are margins: the logit of a class minus the
# logarithm of the sum of the others' exponentials. The edges between bins are fixed beforehand, evenly over asinh of 16
# margins, and one of them is 0: bins are 0.0014 wide there, and from a margin of 1 on 2.3 % of it.


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
    margin, truth = _margins(logits.to(torch.float64), y)
    place = ((torch.asinh(_FINE * margin) / _SPAN + 1) * (BINS / 2)).floor().clamp(0, BINS - 1).long()
    classes = margin.shape[1]
    at = (torch.arange(classes, device=y.device) * 2 + truth) * BINS + place
    counted = masks[:, :, None].to(torch.float64)
    sums = {MARGINS: _scattered(at, counted.expand(-1, -1, classes), classes * 2 * BINS).view(-1, classes, 2, BINS)}
    if logits.shape[-1] != 2:
        return sums
    p, positive = torch.sigmoid(margin[:, 0]), truth[:, 0].to(torch.float64)
    within = (p * CALIBRATION_BINS).floor().clamp(max=CALIBRATION_BINS - 1).long()
    by_bin = [
        _scattered(within, masks * amount, CALIBRATION_BINS) for amount in (on_grid(p), torch.ones_like(p), positive)
    ]
    squared = (masks * on_grid((p - positive) ** 2)).sum(-1)
    brier = torch.stack([squared, masks.sum(-1).to(torch.float64)], 1)
    return sums | {BRIER: brier, CALIBRATION: torch.stack(by_bin, 1)}


def _margins(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Margins [n, k], and whether each example belongs to the class, int64."""
    if logits.shape[-1] == 2:
        return logits[:, 1:] - logits[:, :1], (y == 1).long()[:, None]
    identity = torch.eye(logits.shape[-1], dtype=torch.bool, device=y.device)
    others = torch.logsumexp(torch.where(identity, -torch.inf, logits[:, None]), -1)
    return logits - others, (y[:, None] == torch.arange(logits.shape[-1], device=y.device)).long()


def _scattered(at: Tensor, weight: Tensor, size: int) -> Tensor:
    """Sums [S, size] of weights [S, …] by places […]."""
    weight = weight.reshape(len(weight), -1)
    zeros = torch.zeros(len(weight), size, dtype=torch.float64, device=at.device)
    return zeros.scatter_add(1, at.reshape(1, -1).expand(len(weight), -1), weight)


def edges() -> np.ndarray:
    """The margins between the bins, float64 [BINS + 1]; the first and the last are infinite."""
    inner = np.sinh((np.arange(1, BINS) / (BINS / 2) - 1) * _SPAN) / _FINE
    return np.concatenate([[-np.inf], inner, [np.inf]])


def pooled_from_histograms(sums: Mapping[str, np.ndarray], positive: int, how: Threshold) -> dict[str, np.ndarray]:
    """Metrics of all clients' examples, float64 [3] by split; NaN where there is nothing to count.

    "auc" (the mean over classes where there are more than two) and, for two classes, "average_precision", each with its
    possible error, "auc_error" and "average_precision_error". For two classes also "recall_at_1" and so on, and the
    metrics of `flagging.scores` from the "threshold" on, an edge that `how` chooses on validation examples. "brier" and
    "calibration_error" are exact.

    sums: sums of `histograms`. positive: the class, of two. For class 0 a score on an edge counts as below it, so a
    chosen threshold is the next number above the edge.
    """
    margins = sums[MARGINS]
    if BRIER not in sums:
        each = np.array([[auc(*counts) for counts in split] for split in margins])
        return {"auc": mean_of_classes(each[..., 0]), f"auc{ERROR}": mean_of_classes(each[..., 1])}
    if positive == 0:
        margins = margins[:, :, ::-1, ::-1]
    splits = margins[:, 0]
    fixed = float(how) if isinstance(how, float | int) else None
    where = threshold_of_counts(splits[VAL, 0], splits[VAL, 1], how) if fixed is None else _nearest(fixed)
    at = _probability(where, closed=positive == 1) if fixed is None else fixed
    rows = [_of_split(split[0], split[1], where) for split in splits]
    whole = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    total, examples, true = np.moveaxis(sums[CALIBRATION], 1, 0)
    apart = np.abs(total - true).sum(-1)
    whole |= {"brier": ratio(*sums[BRIER].T), "calibration_error": ratio(apart, examples.sum(-1))}
    return whole | {"threshold": np.full(len(rows), at)}


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


def _of_split(negative: np.ndarray, positive: np.ndarray, where: int) -> dict[str, float]:
    """The metrics of the examples of one split, by rising bins; examples from the bin `where` on are flagged."""
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


def _caught(negative: np.ndarray, positive: np.ndarray, share: float) -> float:
    """Positives among the `share` of highest scores; in the bin at the border each counts by its chance to be there."""
    n = positive + negative
    left = alerts(int(n.sum()), share) - (np.cumsum(n[::-1])[::-1] - n)  # alerts that the bins above a bin leave
    return float((positive * np.clip(ratio(left, n), 0, 1))[n > 0].sum())


# ----------------------------------------------------------------------------------------------------
# Scores of one model over the examples of all clients together: in a simulation, which holds all of them, or from sums
# of histograms. Examples of different clients are compared with each other here, so these numbers are no sums over
# clients. An order of examples (AUC) needs their logits side by side, which no client sends; clients send how many
# examples have which score, in a sum over all (`histograms`).


POOLED = "pooled"  # prefix of all metrics' names
_OF_LABELS = ("auc", "average_precision")


class Alarm(NamedTuple):
    """The positive one of two classes, and the setting of the threshold from which examples are flagged."""

    positive: int
    threshold: Threshold


def example_outputs(model: Model, w: Tree, graph: Graph) -> Tree:
    """The model's outputs for a graph's examples that are in a split: "logits" [e, c], "y" [e] and "masks" [3, e]. For
    numbers, "logits" are predictions in the data's units."""
    graph = graph.to(device_of(w))
    used = graph.masks.any(0)
    with torch.no_grad():
        return {"logits": inferred_outputs(model, w, graph)[used], "y": graph.y[used], "masks": graph.masks[:, used]}


def inferred_outputs(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The model's outputs for a graph's examples, [e, c]; numbers are in the data's units."""
    outputs = models.infer(model, w, graph)
    return from_scale(outputs, graph.scale) if graph.target == NUMBER else outputs


def split_examples(outputs: Tensor, y: Tensor, masks: Tensor) -> list[Tree]:
    """`example_outputs` of each of P clients whose `outputs` [P, e, c], `y` [P, e] and `masks` [P, 3, e] are
    stacked. Padding rows are in no split."""
    used = masks.any(1)
    sizes = used.sum(1).tolist()
    columns = (torch.split(tensor[used], sizes) for tensor in (outputs, y, masks.movedim(1, -1)))
    return [{"logits": logits, "y": truth, "masks": split.T} for logits, truth, split in zip(*columns, strict=True)]


def pooled_examples(clients: Sequence[Tree], alarm: Alarm | None = None, share: float = 0.0) -> dict[str, np.ndarray]:
    """Metrics of one model on the train, val and test examples of all clients together, float64 [3] each.

    "pooled/auc", NaN where a split lacks positives or negatives; an example that two clients hold counts twice. With an
    `alarm` and two classes also the metrics of `scores`, from the "pooled/threshold" on, which validation examples
    decide. For several labels also "pooled/average_precision". For numbers "pooled/spearman" and, with a `share`, the
    `intervals` that cover this share of examples. clients: `example_outputs` of each client."""
    if (target := kind_of(clients[0]["y"])) != CLASS:
        return _of_targets(clients, target, share)
    with torch.no_grad():
        named = (("logits", 0), ("y", 0), ("masks", 1))
        logits, y, masks = (torch.cat([one[name] for one in clients], dim) for name, dim in named)
        pairs = torch.cat([class_auc_pairs(logits[mask], y[mask], mask[mask][None]) for mask in masks])
    whole = {"auc": np.asarray(values({"auc": pairs.cpu()})["auc"])}
    if alarm is not None and logits.shape[-1] == 2:
        whole |= _flagged(logits.cpu(), y.cpu().numpy(), masks.cpu().numpy(), alarm)
    return {f"{POOLED}/{name}": value for name, value in whole.items()}


def _of_targets(clients: Sequence[Tree], target: Kind, share: float) -> dict[str, np.ndarray]:
    """`pooled_examples` of numbers or labels."""
    with torch.no_grad():
        outputs, y = (torch.cat([one[name] for one in clients]) for name in ("logits", "y"))
        masks = torch.cat([one["masks"] for one in clients], 1)
        if target == LABELS:
            pairs = [labels.counts(outputs[mask], y[mask], mask[mask][None]) for mask in masks]
            metrics = [labels.values({k: v.cpu()[0] for k, v in one.items()}) for one in pairs]
        else:
            pairs = [numbers.counts(outputs[mask], y[mask], mask[mask][None], None) for mask in masks]
            metrics = [numbers.values({k: v.cpu()[0] for k, v in one.items()}) for one in pairs]
    names = _OF_LABELS if target == LABELS else ("spearman",)
    whole = {f"{POOLED}/{name}": np.array([one[name] for one in metrics]) for name in names}
    if target == LABELS or not share:
        return whole
    each = [(abs(one["logits"] - one["y"]).cpu().numpy(), one["masks"].cpu().numpy()) for one in clients]
    return whole | intervals(each, share)


def pooled_sums(total: Tree, alarm: Alarm, share: float = 0.0) -> dict[str, np.ndarray]:
    """`pooled_examples` from sums of clients' histograms (`algorithms.scoring.totals`), with bounds of the error; {}
    where no client has any."""
    sums = {name: tensor.cpu().numpy() for name, tensor in total.get("histogram", {}).items()}
    if "residuals" in sums:
        return intervals_of_counts(sums["residuals"], share) if share else {}
    if not sums:
        return {}
    if not sums[MARGINS].any():
        return {}
    return {f"{POOLED}/{name}": v for name, v in pooled_from_histograms(sums, alarm.positive, alarm.threshold).items()}


def _flagged(logits: Tensor, y: np.ndarray, masks: np.ndarray, alarm: Alarm) -> dict[str, np.ndarray]:
    """The metrics of `scores` for each split."""
    margin, truth = (logits[:, alarm.positive] - logits[:, 1 - alarm.positive]).double().numpy(), y == alarm.positive
    p = probabilities(margin)
    at = threshold(p[masks[VAL]], truth[masks[VAL]], alarm.threshold)
    each = [scores(margin[mask], truth[mask], at) for mask in masks]
    return {name: np.array([row[name] for row in each]) for name in each[0]} | {"threshold": np.full(len(masks), at)}
