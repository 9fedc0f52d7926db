"""Classification metrics as additive (sum, count) pairs: adding pairs over clients gives the federated metric. For
loss, accuracy and F1 it equals the metric of all examples together. AUC pairs compare examples of the same client only,
so the pooled AUC is stratified by client: scores are never compared across clients (or across their personal models).

Pairs are float64. Counts are exact in it (float32 stops at 2^24, which the pairs of positives and negatives of 8,192
examples reach), and losses are rounded (`on_grid`) so that their sums are exact too: no order of summation, batching or
padding changes a bit.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.graph import TEST, TRAIN
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import Record, Values
from fedweave.errors import DataError
from fedweave.metrics.rank_sums import ALERTS, AverageRanks, RankSums, ascending, on_grid
from fedweave.metrics.selection import OF_RANKS, OF_SCORES

ALWAYS = ("loss", "accuracy", "f1")  # always in the result of `counts`
COUNTED = (*ALWAYS, "classes", "auc", *OF_SCORES)  # the last ones only for two classes
_SURE = math.log(0.9)
PREDICTED, TRUE = 0, 1  # of the pairs "classes"
RARE_OF_TWO = 0.25  # share of the rarer of two classes below which accuracy does not select


def counts(logits: Tensor, y: Tensor, masks: Tensor, whole: bool = True, ranks: bool = True) -> Tree:
    """One client's additive counts for every metric, for S sets of examples.

    logits [n, c]; y int64 [n], -1 where unlabeled; masks bool [S, n], False where unlabeled, no example in two sets.
    Returns float64 pairs:

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

    With `whole=False` everything from "classes" on is left out, with `ranks=False` everything from "auc" on, because
    ordering examples costs most. The last three need two classes.

    Works under `torch.func.vmap`.
    """
    log_p = torch.log_softmax(logits, -1)
    predicted, label, sets = logits.argmax(-1), y.clamp(min=0), _set_numbers(masks)  # [n]
    loss = -log_p.gather(-1, label[:, None])[:, 0].to(torch.float64)
    loss = torch.where(masks, on_grid(loss), 0.0)
    right = predicted == y

    def count(classes: Tensor, counted: Tensor) -> Tensor:
        """float64 [S, c]: how many of the `counted` examples have which of these classes."""
        table = torch.zeros((len(masks) + 1) * logits.shape[-1], dtype=torch.float64, device=logits.device)
        sums = table.scatter_add(0, sets * logits.shape[-1] + classes, counted.to(torch.float64))
        counts: Tensor = sums.view(len(masks) + 1, -1)[:-1]  # the last set is "none"
        return counts

    examples, everyone = masks.sum(-1), torch.ones_like(right)
    true, guessed, hit = count(label, everyone), count(predicted, everyone), count(label, right)  # [S, c]
    pairs = {
        "loss": _pair(loss.sum(-1), examples),
        "accuracy": _pair((masks & right).sum(-1), examples),
        "f1": _pair(2 * hit, true + guessed),
    }
    if not whole:
        return pairs
    pairs["classes"] = _pair(guessed, true)
    if not ranks:
        return pairs
    names = ("auc", *OF_SCORES) if logits.shape[-1] == 2 else ("auc",)
    truth = y[:, None] == torch.arange(logits.shape[-1], device=logits.device)  # [n, c]
    return pairs | rank_pairs(_order(logits, log_p), truth, masks, names)


def class_scores(logits: Tensor) -> Tensor:
    """A score of each class [n, c] that orders examples as its probability does; of two classes the difference of
    their logits."""
    return _order(logits, torch.log_softmax(logits, -1))


def auc_pairs(score: Tensor, truth: Tensor, masks: Tensor) -> Tensor:
    """Only the pairs "auc" of `counts` for one class, [S, 2], with little memory: score [n]; truth bool [n]."""
    pairs = list[Tensor]()
    for mask in masks:
        positive, negative = score[mask & truth], ascending(score[mask & ~truth])
        below, up_to = (torch.searchsorted(negative, positive, right=right).sum() for right in (False, True))
        pairs.append(
            _pair((below + up_to).double() / 2, torch.full_like(below, positive.numel() * negative.numel()), 0)
        )
    return torch.stack(pairs)


def _order(logits: Tensor, log_p: Tensor) -> Tensor:
    """A score of each class [n, c] that orders examples as its probability p does; `log_p` is the logarithm of p.

    In single precision p is 1 wherever a model is sure, and such examples would tie. So where p > 0.9, the score is the
    logarithm of the odds."""
    if logits.shape[-1] == 2:
        return logits - logits.flip(-1)
    first = torch.arange(logits.shape[-1], device=logits.device) == logits.argmax(-1, keepdim=True)
    others = torch.logsumexp(torch.where(first, -torch.inf, logits), -1, keepdim=True)
    return torch.where(first & (log_p > _SURE), logits - others, log_p)


def _pair(total: Tensor, count: Tensor, dim: int = 1) -> Tensor:
    return torch.stack([total.to(torch.float64), count.to(torch.float64)], dim)


def rank_pairs(score: Tensor, truth: Tensor, masks: Tensor, names: Sequence[str]) -> Tree:
    """The pairs of `counts` with these `names` ("auc" and `OF_SCORES`), from one sort of score [n, c] per class:
    [S, 2, c] each.

    truth bool [n, c]: whether the example is a positive of the class; masks bool [S, n]: the examples of each set, or
    [S, c, n]: of each set and class. No example is in two sets.

    For a positive example let `below` count its set's examples of lower score, and `up_to` all examples of no higher
    score. The sum of (below + up_to) / 2 over the P positives, minus P^2 / 2 for pairs of two positives, is the
    statistic U of Mann and Whitney (1947).
    """
    numbers = _set_numbers(masks).expand(score.mT.shape)
    alerted = len(names) > 1
    total, positives, u, *rest = RankSums.apply(score.mT, truth.mT, numbers, len(masks), alerted).unbind(-1)  # [c, S]
    pairs = {"auc": _pair(u.mT, (positives * (total - positives)).mT)}
    if alerted:
        precision, hits = rest
        alerts = torch.ceil(total / ALERTS)
        pairs |= {
            "average_precision": _pair(precision.mT, positives.mT),
            "recall_at_1": _pair(hits.mT, positives.mT),
            "precision_at_1": _pair(torch.minimum(hits, alerts).mT, alerts.mT),
        }
    return {name: pairs[name] for name in names}


def average_ranks(values: Tensor, masks: Tensor) -> Tensor:
    """The rank from 1 of each value within its set, ties averaged: float64 [c, n]. Values outside all sets have an
    arbitrary rank. values [n, c], masks [S, c, n]; no value is in two sets."""
    return AverageRanks.apply(values.mT, _set_numbers(masks))


def _set_numbers(masks: Tensor) -> Tensor:
    """The number of each example's set, S of those in none: int64 [n] or [c, n] from masks [S, n] or [S, c, n]."""
    numbers = masks.new_full(masks.shape[1:], len(masks), dtype=torch.int64)
    for number in reversed(range(len(masks))):  # on a CPU a tenth of the time of `amin` over sets
        numbers = torch.where(masks[number], number, numbers)
    return numbers.contiguous()


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
