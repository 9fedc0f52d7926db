"""How differently a model treats two groups of people, from additive counts: adding them over clients gives the metric
of all nodes together, as in `classification`.

A group is the nodes of one value, 0 or 1, of the sensitive attribute s; nodes where it is unknown belong to none. The
label is binary and class 1 the favourable one. Signed gaps are group 1 minus group 0.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.records import Record, Values
from fedweave.core.tree import Tree
from fedweave.errors import DataError
from fedweave.metrics.classification import ordered_pairs, ratio

COUNTED = ("groups", "group_auc")


def check_groups(classes: int, sens: np.ndarray | None, name: str, groups: Sequence[str] = ()) -> None:
    """Refuse data whose groups or labels are not two; `name` is what the message calls it, sens int64 [n]. groups: what
    they are called, if they have names.

    Raises:
        DataError: there is no sensitive attribute, it has values besides 0, 1 and -1, or there are not two classes.
    """
    if sens is None:
        raise DataError(
            f"{name} has no sensitive attribute; group fairness needs one (column or array sens, 0 or 1).",
            code="data.no-sens",
        )
    if classes != 2:
        raise DataError(
            f"{name} has {classes} classes; group fairness compares two: make class 1 the favourable one.",
            code="data.two-classes",
        )
    high = int(sens.max(initial=-1))
    if high > 1 and groups:
        raise DataError(
            f"{name}: people are of the groups {', '.join(groups)}; group fairness compares two: correct misspelt "
            "names, or make two groups of them (an empty cell is in none).",
            code="data.groups",
        )
    if high > 1:
        raise DataError(
            f"{name}: sens has the value {high}; group fairness compares two groups: recode it as 0 and 1.",
            code="data.groups",
        )


def counts(logits: Tensor, y: Tensor, sens: Tensor, masks: Tensor, auc: bool = True) -> Tree:
    """What one client contributes to every metric, for S sets of nodes.

    logits [n, 2]; y int64 [n], -1 where unlabelled; sens int64 [n], -1 where unknown; masks bool [S, n], False where
    unlabelled. Returns float64:

    "groups" [S, 2, 2, 2]:  nodes by group, label and prediction (class 1 if its logit is the larger one).
    "group_auc" [S, 2, 2]:  pairs (positive, negative) within one group that the margin between the logits orders
                            correctly, ties counted half, and all such pairs; the last axis is the group. Left out with
                            `auc=False` (it costs most).

    Works under `torch.func.vmap`.

    Raises:
        DataError: there are not two classes.
    """
    if logits.shape[-1] != 2:
        raise DataError(
            f"group fairness is defined for two classes; the model has {logits.shape[-1]}.", code="data.two-classes"
        )
    margin = logits[:, 1] - logits[:, 0]
    known = ((sens == 0) | (sens == 1)) & ((y == 0) | (y == 1))
    cell = 4 * sens + 2 * y + (margin > 0)
    member = known[:, None] & (cell[:, None] == torch.arange(8, device=cell.device))
    out = {"groups": (masks.to(torch.float64) @ member.to(torch.float64)).reshape(-1, 2, 2, 2)}
    if not auc:
        return out
    group = sens == torch.arange(2, device=sens.device)[:, None]
    sets = (masks[:, None] & group).flatten(0, 1)  # every set's group 0, then its group 1
    pairs = ordered_pairs(margin[:, None], (y == 1)[:, None], sets)
    return out | {"group_auc": pairs.reshape(-1, 2, 2).transpose(1, 2)}


def values(pairs: Values) -> Record:
    """The metrics of `counts`, merged or not, with any leading axes: a float or a NumPy array for each.

    With R_s the share of group s that is predicted 1, TPR_s and FPR_s that among its nodes of label 1 and 0:
    "sp_signed":      R_1 - R_0, statistical parity; "sp" its absolute value.
    "eo_signed":      TPR_1 - TPR_0, equal opportunity (Hardt et al. 2016); "eo" its absolute value.
    "fpr_signed":     FPR_1 - FPR_0.
    "equalised_odds": the larger of |TPR_1 - TPR_0| and |FPR_1 - FPR_0|.
    "predicted", "favourable": the shares of both groups together that are predicted 1, and that are of label 1.
    "accuracy_group0", "accuracy_group1", and if counted "auc_group0", "auc_group1".

    NaN where a group that it needs is empty, never 0.
    """
    table = np.asarray(pairs["groups"], np.float64)
    nodes, predicted = table.sum(-1), table[..., 1]
    sp = _gap(ratio(predicted.sum(-1), nodes.sum(-1)))
    fpr, eo = _gap(np.moveaxis(ratio(predicted, nodes), -1, 0))  # labels 0 and 1
    correct = ratio(table[..., 0, 0] + table[..., 1, 1], nodes.sum(-1))
    out = {
        "sp": abs(sp),
        "sp_signed": sp,
        "eo": abs(eo),
        "eo_signed": eo,
        "fpr_signed": fpr,
        "equalised_odds": np.maximum(abs(eo), abs(fpr)),
        "predicted": ratio(predicted.sum((-2, -1)), nodes.sum((-2, -1))),
        "favourable": ratio(nodes[..., 1].sum(-1), nodes.sum((-2, -1))),
        "accuracy_group0": correct[..., 0],
        "accuracy_group1": correct[..., 1],
    }
    if "group_auc" in pairs:
        right, every = np.moveaxis(np.asarray(pairs["group_auc"], np.float64), -2, 0)
        area = ratio(right, every)
        out |= {"auc_group0": area[..., 0], "auc_group1": area[..., 1]}
    return {name: value if np.ndim(value) else float(value) for name, value in out.items()}


def skill(pairs: Values) -> np.ndarray:
    """TPR - FPR of both groups together, 0 for every constant prediction (Youden 1950); pairs: those of `counts`."""
    table = np.asarray(pairs["groups"], np.float64).sum(-3)
    return _gap(ratio(table[..., 1], table.sum(-1)))


def _gap(share: np.ndarray) -> np.ndarray:
    """Group 1 minus group 0, over the last axis."""
    result: np.ndarray = share[..., 1] - share[..., 0]
    return result


def tradeoff(score: object, sp: object, eo: object) -> np.ndarray | float:
    """score / (eo + sp), the trade-offs of F²GNN (section VI-A) where `score` is an accuracy or AUC; any equal shapes.

    NaN where a gap is undefined, and where both are 0, as those of a constant classifier are.
    """
    out = ratio(np.asarray(score, np.float64), np.asarray(eo, np.float64) + np.asarray(sp, np.float64))
    return out if out.ndim else float(out)


def over_clients(own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each metric [P, ...] of P clients its median [...] over those where it is defined (the mean of the two middle
    values, NaN if there are none), and as "<metric>_undefined" how many it leaves out."""
    out: dict[str, np.ndarray] = {}
    for name, value in own.items():
        undefined = np.isnan(value)
        out[name] = np.ma.filled(np.ma.median(np.ma.array(value, mask=undefined), 0), np.nan)
        out[f"{name}_undefined"] = undefined.sum(0)
    return out
