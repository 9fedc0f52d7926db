"""Classification metrics as additive (sum, count) pairs: adding pairs over clients gives the federated metric. For
loss, accuracy and F1 it equals the metric of all examples together. AUC pairs compare examples of the same client only,
so the pooled AUC is stratified by client: scores are never compared across clients (or across their personal models).

Pairs are float64. Counts are exact in it (float32 stops at 2^24, which the pairs of positives and negatives of 8,192
examples reach), and losses are rounded to `GRID` so that their sums are exact too: no order of summation, batching or
padding changes a bit.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.core.graph import TEST, TRAIN
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import Record, Values
from fedweave.errors import DataError
from fedweave.metrics.selection import OF_RANKS, OF_SCORES
from fedweave.ops.batching import Batch, Constant, Dims
from fedweave.ops.tape import kernel

ALWAYS = ("loss", "accuracy", "f1")  # always in the result of `counts`
COUNTED = (*ALWAYS, "classes", "auc", *OF_SCORES)  # the last ones only for two classes
_SURE = math.log(0.9)
ALERTS = 100  # one of this many examples is an alert
GRID = 2.0**-30  # an example's loss is off by at most 5e-10; sums stay exact up to 2^23
PREDICTED, TRUE = 0, 1  # of the pairs "classes"
RARE_OF_TWO = 0.25  # share of the rarer of two classes below which accuracy does not select


def counts(logits: Tensor, y: Tensor, masks: Tensor, whole: bool = True) -> Tree:
    """One client's additive counts for every metric, for S sets of examples.

    logits [n, c]; y int64 [n], -1 where unlabeled; masks bool [S, n], False where unlabeled. Returns float64 pairs:

    "loss" [S, 2]:     sum of cross-entropies (nats), examples.
    "accuracy" [S, 2]: correct, examples.
    "f1" [S, 2, c]:    per class 2 tp, predicted + true.
    "classes" [S, 2, c]: how often each class is predicted, and how often it is the label.
    "auc" [S, 2, c]:   per class against the rest: pairs (positive, negative) that the probability of the class orders
                       correctly, ties counted half, and all such pairs.

    "average_precision" [S, 2, c]: with two classes, per class the sum over its examples of the precision among all
                       examples that score at least as high, and its examples (scikit-learn's, without interpolation).
    "recall_at_1" [S, 2, c]: per class how many of its examples are among the `ALERTS` of highest score, and how many
                       there are; of equal scores at the border each counts by its chance to be among them.
    "precision_at_1" [S, 2, c]: these hits, and alerts.

    With `whole=False` everything from "classes" on is left out, because ordering examples costs most. The last three
    need two classes.

    Works under `torch.func.vmap`.
    """
    log_p = torch.log_softmax(logits, -1)
    classes = torch.arange(logits.shape[-1], device=logits.device)
    examples = masks.sum(-1)
    predicted = logits.argmax(-1)
    loss = -log_p.gather(-1, y.clamp(min=0)[:, None])[:, 0].to(torch.float64)
    loss = torch.where(masks, on_grid(loss), 0.0)
    truth, guess = y[:, None] == classes, predicted[:, None] == classes  # [n, c]
    members = masks.to(torch.float64)
    true, guessed, hit = (members @ each.to(torch.float64) for each in (truth, guess, truth & guess))  # [S, c]
    pairs = {
        "loss": _pair(loss.sum(-1), examples),
        "accuracy": _pair((masks & (predicted == y)).sum(-1), examples),
        "f1": _pair(2 * hit, true + guessed),
    }
    if not whole:
        return pairs
    pairs["classes"] = _pair(guessed, true)
    ties = _sort(_order(logits, log_p), masks)
    positive = ties.positives(truth)
    pairs["auc"] = _auc_pairs(ties, positive)
    return pairs | _alert_pairs(ties, positive) if logits.shape[-1] == 2 else pairs


def class_auc_pairs(logits: Tensor, y: Tensor, masks: Tensor) -> Tensor:
    """Only the pairs "auc" of `counts`, [S, 2, c]."""
    truth = y[:, None] == torch.arange(logits.shape[-1], device=logits.device)
    return auc_pairs(_order(logits, torch.log_softmax(logits, -1)), truth, masks)


def _order(logits: Tensor, log_p: Tensor) -> Tensor:
    """A score of each class [n, c] that orders examples as its probability p does; `log_p` is the logarithm of p.

    In single precision p is 1 wherever a model is sure, and such examples would tie. So where p > 0.9, the score is the
    logarithm of the odds."""
    if logits.shape[-1] == 2:
        return logits - logits.flip(-1)
    first = torch.arange(logits.shape[-1], device=logits.device) == logits.argmax(-1, keepdim=True)
    others = torch.logsumexp(torch.where(first, -torch.inf, logits), -1, keepdim=True)
    return torch.where(first & (log_p > _SURE), logits - others, log_p)


def _pair(total: Tensor, count: Tensor) -> Tensor:
    return torch.stack([total.to(torch.float64), count.to(torch.float64)], 1)


def auc_pairs(score: Tensor, truth: Tensor, masks: Tensor) -> Tensor:
    """Correctly ordered pairs and all pairs [S, 2, c], from one sort of score [n, c] per class.

    truth bool [n, c]: whether the example is a positive of the class; masks bool [S, n]: the examples of each set, or
    [S, c, n]: of each set and class.

    For a positive example let `below` count the set's examples of lower score, and `up_to` all examples of no higher
    score. The sum of (below + up_to) / 2 over the P positives, minus P^2 / 2 for pairs of two positives, is the
    statistic U of Mann and Whitney (1947).
    """
    ties = _sort(score, masks)
    return _auc_pairs(ties, ties.positives(truth))


def label_pairs(score: Tensor, truth: Tensor, masks: Tensor) -> Tree:
    """The pairs "auc" and "average_precision" of `counts`, for several yes-or-no labels: [S, 2, c] each; arguments as
    for `auc_pairs`."""
    ties = _sort(score, masks)
    positive = ties.positives(truth)
    precision = _alert_pairs(ties, positive)["average_precision"]
    return {"auc": _auc_pairs(ties, positive), "average_precision": precision}


def average_ranks(values: Tensor, masks: Tensor) -> Tensor:
    """The rank from 1 of each value within each set, ties averaged: float64 [S, c, n]. Values outside a set have an
    arbitrary rank. values [n, c], masks [S, c, n]."""
    ties = _sort(values, masks)
    place = _Argsort.apply(ties.order).expand(masks.shape)  # the inverse of the order
    return ((ties.below + ties.up_to + 1).to(torch.float64) / 2).gather(-1, place)


class _Sorted(NamedTuple):
    """Examples by rising score, for S sets and c classes.

    order:  int64 [c, n], the examples. first: [c, n], where the ties of each begin.
    chosen: bool [S, c, n], whether each belongs to the set. total: [S, c, 1], the set's examples.
    below, up_to: [S, c, n], how many of the set have a lower score, and how many no higher one.
    """

    order: Tensor
    first: Tensor
    chosen: Tensor
    below: Tensor
    up_to: Tensor
    total: Tensor

    def positives(self, truth: Tensor) -> Tensor:
        """bool [S, c, n]: whether each belongs to the set and to the class; truth bool [n, c]."""
        return self.chosen & truth.mT.gather(-1, self.order)


def _sort(score: Tensor, masks: Tensor) -> _Sorted:
    order = _Argsort.apply(score.mT)  # [c, n]
    ascending = score.mT.gather(-1, order)
    end = torch.ones_like(order[:, :1], dtype=torch.bool)
    differs = ascending[:, 1:] != ascending[:, :-1]
    place = torch.arange(len(score), device=score.device)
    first = torch.where(torch.cat([end, differs], 1), place, 0).cummax(-1).values  # where an example's ties begin
    after = torch.where(torch.cat([differs, end], 1), place + 1, len(score)).flip(-1).cummin(-1).values.flip(-1)
    shape = (len(masks), *order.shape)
    of_each = masks if masks.dim() == 3 else masks[:, None]
    chosen = of_each.expand(shape).gather(-1, order.expand(shape))  # [S, c, n]
    before = torch.nn.functional.pad(chosen.cumsum(-1), (1, 0))  # how many of the set's examples precede each place
    below, up_to = before.gather(-1, first.expand(shape)), before.gather(-1, after.expand(shape))
    return _Sorted(order, first, chosen, below, up_to, before[..., -1:])


def _auc_pairs(ties: _Sorted, positive: Tensor) -> Tensor:
    positives = positive.sum(-1)
    doubled = (positive * (ties.below + ties.up_to)).sum(-1) - positives**2
    return _pair(doubled / 2, positives * (ties.total[..., 0] - positives))


def _alert_pairs(ties: _Sorted, positive: Tensor) -> Tree:
    """The pairs of `counts` for the examples that score highest."""
    positives, alerts = positive.sum(-1), (ties.total + ALERTS - 1) // ALERTS
    before = torch.nn.functional.pad(positive.cumsum(-1), (1, 0))
    not_lower = before[..., -1:] - before.gather(-1, ties.first.expand(positive.shape))  # positives of no lower score
    precision = not_lower.double() / (ties.total - ties.below).clamp(min=1)
    equal = (ties.up_to - ties.below).clamp(min=1)
    probability = ((alerts - ties.total + ties.up_to).double() / equal).clamp(0, 1)  # that it is an alert
    hits = on_grid(positive * probability).sum(-1)
    return {
        "average_precision": _pair(on_grid(positive * precision).sum(-1), positives),
        "recall_at_1": _pair(hits, positives),
        "precision_at_1": _pair(torch.minimum(hits, alerts[..., 0]), alerts[..., 0]),
    }


def on_grid(values: Tensor) -> Tensor:
    """Values rounded to `GRID`, so that their sum is equal in any order."""
    return torch.round(values / GRID) * GRID


@kernel
def _argsort(score: Tensor) -> Tensor:
    """Indices that sort the last axis. On the CPU by NumPy: measured 6 times as fast as torch for many short rows."""
    if score.device.type != "cpu":
        return score.argsort(-1)
    return torch.from_numpy(np.argsort(score.numpy(), -1))


class _Argsort(Constant):
    """Indices that sort the last axis, for any number of axes before it."""

    @staticmethod
    def forward(score: Tensor) -> Tensor:
        return _argsort(score)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, score: Tensor) -> tuple[Tensor, int]:
        return _Argsort.apply(score.movedim(in_dims[0], 0)), 0


def means(pairs: Tree) -> Tree:
    """`values` of one client's `counts`, float64 [S, 2] each, or [S, 2, c] for each of two classes: the value and 1, or
    zeros where it is not defined. Sums of them over clients give means. Works under `vmap`."""
    two_classes = "average_precision" in pairs
    metrics: Tree = {}
    f1 = value_and_count(*pairs["f1"].unbind(1))  # [S, 2, c]
    area = value_and_count(*pairs["auc"].unbind(1))
    for name in ("loss", "accuracy", "macro_f1", *OF_RANKS, *(OF_SCORES if two_classes else ())):
        if name == "macro_f1":
            metrics[name] = value_and_count(*f1.sum(-1).unbind(1))
        elif name in pairs:
            metrics[name] = value_and_count(*pairs[name].unbind(1))
    if not two_classes:
        return metrics | {"auc": value_and_count(*area.sum(-1).unbind(1))}
    (flagged, true), hits = pairs["classes"].unbind(1), pairs["f1"][:, 0] / 2
    occurs = (true > 0).to(torch.float64)
    metrics |= {"auc": area[..., 1], "recall": value_and_count(hits, true), "f1_positive": f1}
    metrics["precision"] = torch.stack([hits / flagged.clamp(min=1), occurs], 1)
    for name in ("precision", "precision_at_1", "f1_positive"):
        metrics[name] = metrics[name] * occurs[:, None]
    return metrics


def value_and_count(total: Tensor, count: Tensor) -> Tensor:
    """[S, 2, …] of total and count [S, …]: the ratio and 1, or zeros where the count is 0."""
    defined = (count > 0).to(torch.float64)
    return torch.stack([total / count.clamp(min=1) * defined, defined], 1)


def mean_values(sums: Values, positive: int = 1) -> dict[str, np.ndarray]:
    """The means over clients, float64 [S], from the sums of their `means`; NaN where no client has a value."""
    means = {}
    for name, value in sums.items():
        pair = np.asarray(value, np.float64)  # [S, 2] or [S, 2, c]
        pair = pair if pair.ndim == 2 else pair[..., positive]
        means[name] = ratio(pair[:, 0], pair[:, 1])
    return means


def merge(trees: Sequence[Tree]) -> Tree:
    """The pairs of several clients, added.

    Raises:
        DataError: `trees` is empty.
    """
    if not trees:
        raise DataError("there are no counts to merge; give the counts of at least one client.", code="data.no-clients")
    return map_leaves(lambda *pairs: sum(pairs[1:], start=pairs[0]), *trees)


def values(pairs: Values, positive: int = 1) -> Record:
    """The metrics of `counts`' pairs, merged or not, with any leading axes: a float or a NumPy array for each.

    "loss" is the mean, "f1" micro F1, "macro_f1" the mean over classes that occur in truth or prediction. "auc" is the
    AUC of class 1 if there are two classes, else the mean over classes that have both positives and negatives. NaN
    where the count is empty. Metrics without pairs are left out.

    With two classes there are also metrics of the class `positive`: "average_precision" (merged, the mean over its
    examples of their precision at their own client), and "recall_at_1" and "precision_at_1" of the hundredth of each
    client's examples with the highest scores. By the model's own decision there are "recall", "precision" (0 where it
    predicts no positive) and "f1_positive". All are NaN where no example is of that class, so that all means over
    clients include the same clients.
    """
    pair = {name: np.asarray(value, np.float64) for name, value in pairs.items()}
    out: dict[str, np.ndarray] = {}
    for name in ("loss", "accuracy"):
        if name in pair:
            out[name] = ratio(pair[name][..., 0], pair[name][..., 1])
    if "f1" in pair:
        doubled, total = _sides(pair["f1"])
        out["f1"] = ratio(_class_sum(doubled), _class_sum(total))
        out["macro_f1"] = mean_of_classes(ratio(doubled, total))
    if "auc" in pair:
        each = ratio(*_sides(pair["auc"]))
        out["auc"] = each[..., 1] if each.shape[-1] == 2 else mean_of_classes(each)
    for name in OF_RANKS:
        if name in pair:
            out[name] = ratio(pair[name][..., 0], pair[name][..., 1])
    for name in OF_SCORES:
        if name in pair:
            out[name] = ratio(*_sides(pair[name], positive))
    if "precision_at_1" in out and "recall_at_1" in pair:
        out["precision_at_1"] = np.where(pair["recall_at_1"][..., 1, positive] > 0, out["precision_at_1"], np.nan)
    if "classes" in pair and "f1" in pair and pair["f1"].shape[-1] == 2:
        hits, both = _sides(pair["f1"], positive)
        flagged, true = _sides(pair["classes"], positive)
        out |= {
            "recall": ratio(hits / 2, true),
            "precision": np.where(true > 0, hits / 2 / np.maximum(flagged, 1), np.nan),
            "f1_positive": np.where(true > 0, ratio(hits, both), np.nan),
        }
    return {name: value if value.ndim else float(value) for name, value in out.items()}


def _sides(pair: np.ndarray, classes: int | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of pairs [..., 2, c], of one class or of all."""
    return pair[..., 0, classes], pair[..., 1, classes]


def by_class(pairs: Values) -> dict[str, float]:
    """{"recall/0", "precision/0", "f1/0": …} of every class c, from `counts`' pairs of one set; {} without these; NaN
    where there is nothing to count. pairs: "f1" and "classes" [2, c]."""
    if "classes" not in pairs:
        return {}
    hits, both = np.asarray(pairs["f1"], np.float64)
    predicted, true = np.asarray(pairs["classes"], np.float64)
    metrics = {"recall": ratio(hits / 2, true), "precision": ratio(hits / 2, predicted), "f1": ratio(hits, both)}  # [c]
    result = dict[str, float]()
    for name, values in metrics.items():
        result |= {f"{name}/{number}": float(value) for number, value in enumerate(values)}
    return result


def ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """total / count, NaN where the count is 0."""
    result: np.ndarray = total / np.where(count > 0, count, np.nan)
    return result


def mean_of_classes(per_class: np.ndarray) -> np.ndarray:
    """The mean over the last axis of the defined values, NaN where there are none."""
    defined = ~np.isnan(per_class)
    return ratio(_class_sum(np.where(defined, per_class, 0)), _class_sum(defined))


def _class_sum(per_class: np.ndarray) -> np.ndarray:
    """The sum over the last axis, in the order in which NumPy adds numbers that follow each other."""
    if per_class.shape[-1] >= 8:  # NumPy adds fewer one after another, in any memory layout
        per_class = np.ascontiguousarray(per_class)
    result: np.ndarray = per_class.sum(-1)
    return result


def majority_classes(classes: np.ndarray) -> np.ndarray:
    """int64 [...]: the most frequent class of the training examples, the first of equally frequent ones; -1 without
    examples. classes: float64 [..., 3, 2, c] as in `classification.counts`."""
    trained = classes[..., TRAIN, TRUE, :]
    return np.where(trained.sum(-1) > 0, trained.argmax(-1), -1)


def references(classes: np.ndarray, majority: np.ndarray) -> dict[str, np.ndarray]:
    """The majority-class baseline of every set of examples, float64 [..., S], NaN where a set is empty:

    "majority": the accuracy of always predicting the class `majority` int64 [...]; NaN where that is -1.
    "classes_predicted": how many classes the model predicts.

    classes: float64 [..., S, 2, c], how often each class is predicted and true.
    """
    true = classes[..., TRUE, :]
    at = np.broadcast_to(np.maximum(majority, 0)[..., None, None], (*true.shape[:-1], 1))
    share = ratio(np.take_along_axis(true, at, -1)[..., 0], true.sum(-1))
    predicted = (classes[..., PREDICTED, :] > 0).sum(-1).astype(np.float64)
    return {
        "majority": np.where((majority >= 0)[..., None], share, np.nan),
        "classes_predicted": np.where(predicted > 0, predicted, np.nan),
    }


def chance(metric: str, labels: np.ndarray, positive: int) -> float:
    """The best value of a metric that a constant score or prediction reaches; labels: float64 [c], the examples of each
    class."""
    share = ratio(labels, np.broadcast_to(labels.sum(), labels.shape))
    constant_f1 = 2 * share / (1 + share)  # of always predicting a class
    best = {
        "accuracy": share.max(),
        "macro_f1": constant_f1.max() / max(1, (labels > 0).sum()),
        "auc": 0.5,
        "average_precision": share[positive],
        "recall_at_1": 1 / ALERTS,
        "f1_positive": constant_f1[positive],
    }
    return float(best[metric])


def rarest(classes: np.ndarray) -> float:
    """The share of the rarest class among the training examples, where accuracy says little because it is small: of two
    classes less than a quarter, so that a constant prediction is right for more than three quarters; of more classes
    less than a tenth and a third of an equal share. Else NaN.

    classes: float64 [3, 2, c] of all clients together; a class without examples does not count.
    """
    true = classes[:, TRUE]
    occurs, trained = true.sum(0) > 0, true[TRAIN]
    if not trained.any():
        return math.nan
    share, count = float(trained[occurs].min() / trained.sum()), int(occurs.sum())
    limit = RARE_OF_TWO if count == 2 else min(0.1, 1 / (3 * count))
    return share if share < limit else math.nan


def personal(pairs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Metrics of every client's own model on the global test set, float64 [P]; {} if no client's was evaluated on it:

    "global_test/accuracy":    the share of correct predictions.
    "global_test/predicted/2": the share of predictions that are class 2.
    "global_test/true/2":      the share of examples that are.

    pairs: by metric, float64 [P, S, 2] or [P, S, 2, c], as in `classification.counts`.
    """
    metrics = {}
    if "accuracy" in pairs:
        correct, examples = pairs["accuracy"][:, TEST].T
        metrics["global_test/accuracy"] = ratio(correct, examples)
    if "classes" in pairs:
        for kind, name in ((PREDICTED, "predicted"), (TRUE, "true")):
            counts = pairs["classes"][:, TEST, kind].T  # [c, P]
            for number, count in enumerate(counts):
                metrics[f"global_test/{name}/{number}"] = ratio(count, counts.sum(0))
    return metrics
