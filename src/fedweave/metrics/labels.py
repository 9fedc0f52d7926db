"""Metrics of several yes-or-no labels per example as additive (sum, count) pairs, as in `classification`. Each label is
evaluated on its own, over the examples where it is known. A metric is the mean over the labels that have examples of
both kinds.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core.tree import Tree
from fedweave.core.types import Record, Values
from fedweave.metrics.classification import mean_of_classes, rank_pairs, ratio, value_and_count
from fedweave.metrics.rank_sums import on_grid

ALWAYS = ("loss", "accuracy", "labels")  # always in the result of `counts`
_ORDER = ("auc", "average_precision")


def counts(logits: Tensor, y: Tensor, masks: Tensor, whole: bool = True) -> Tree:
    """One client's additive counts for every metric, for S sets of examples.

    logits [n, t]; y int64 [n, t], 0 or 1, -1 where unknown; masks bool [S, n]. Returns float64 pairs over known
    labels:

    "loss" [S, 2]:     sum of binary cross-entropies (nats), labels.
    "accuracy" [S, 2]: labels that are right by logit > 0, labels.
    "labels" [S, 2, t]: per label its positives, and how many are known.
    "auc" [S, 2, t]:   per label pairs (positive, negative) that the logit orders correctly, ties counted half, and all.
    "average_precision" [S, 2, t]: per label as in `classification.counts`.

    The last two are left out with `whole=False`. Works under `torch.func.vmap`.
    """
    known = masks[:, :, None] & (y >= 0)  # [S, n, t]
    count = known.to(torch.float64).sum(1)  # [S, t]
    losses = on_grid((F.softplus(logits) - y.clamp(min=0).to(logits.dtype) * logits).to(torch.float64))
    right = (logits > 0) == (y == 1)
    pairs = {
        "loss": torch.stack([torch.where(known, losses, 0.0).sum((1, 2)), count.sum(-1)], 1),
        "accuracy": torch.stack([(known & right).to(torch.float64).sum((1, 2)), count.sum(-1)], 1),
        "labels": torch.stack([(known & (y == 1)).to(torch.float64).sum(1), count], 1),
    }
    return pairs | rank_pairs(logits, y == 1, known.mT, _ORDER) if whole else pairs


def per_target(pairs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ "auc" and "average_precision" of each label [..., t], NaN where it has no examples of both kinds; {} without
    their pairs."""
    if "auc" not in pairs:
        return {}
    both = pairs["auc"][..., 1, :] > 0
    metrics = {name: ratio(pairs[name][..., 0, :], pairs[name][..., 1, :]) for name in _ORDER}
    return {name: np.where(both, value, np.nan) for name, value in metrics.items()}


def values(pairs: Values) -> Record:
    """The metrics of `counts`' pairs, merged or not, with any leading axes: "loss", "accuracy", the means of "auc" and
    "average_precision" over the labels that have examples of both kinds, and "labels", the number of such labels; a
    float or a NumPy array for each. NaN where there is nothing to count. Metrics without pairs are left out."""
    pair = {name: np.asarray(value, np.float64) for name, value in pairs.items()}
    out: dict[str, np.ndarray] = {}
    for name in ("loss", "accuracy"):
        if name in pair:
            out[name] = ratio(pair[name][..., 0], pair[name][..., 1])
    each = per_target(pair)
    for name, value in each.items():
        out[name] = mean_of_classes(value)
    if each:
        defined = (~np.isnan(each["auc"])).sum(-1).astype(np.float64)
        out["labels"] = np.where(pair["labels"][..., 1, :].sum(-1) > 0, defined, np.nan)
    return {name: value if value.ndim else float(value) for name, value in out.items()}


def means(pairs: Tree) -> Tree:
    """`values` of one client's `counts`, float64 [S, 2] each: the value and 1, or zeros where it is not defined. Sums
    of them over clients give means. Works under `vmap`."""
    out: Tree = {name: value_and_count(*pairs[name].unbind(1)) for name in ("loss", "accuracy")}
    both = pairs["auc"][:, 1] > 0
    for name in _ORDER:
        value = pairs[name][:, 0] / pairs[name][:, 1].clamp(min=1)
        out[name] = value_and_count(torch.where(both, value, 0.0).sum(-1), both.to(torch.float64).sum(-1))
    return out


def of_each(pairs: Values) -> dict[str, float]:
    """{"auc/0", "average_precision/0": …} of every label, from pairs of one set; {} without them."""
    metrics = per_target({name: np.asarray(value, np.float64) for name, value in pairs.items()})
    result = dict[str, float]()
    for name, values in metrics.items():
        result |= {f"{name}/{at}": float(value) for at, value in enumerate(values)}
    return result
