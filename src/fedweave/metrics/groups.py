"""How differently a model treats two groups of people, from additive counts: adding them over clients gives the metric
of all nodes together, as in `classification`.

A group is the nodes of one value, 0 or 1, of the sensitive attribute s; nodes where it is unknown belong to none. The
label is binary and class 1 the favorable one. Signed gaps are group 1 minus group 0.

Every metric has its noise floor, which also follows from `counts`, so that clients send nothing for it: the gap that
chance alone shows, E|gap| of a classifier whose predictions ignore the group. Given the sizes n_0 and n_1 of the groups
and K positive predictions among all N = n_0 + n_1 nodes, such a classifier places the K at random, so that the number
in group 1 is hypergeometric, X, and the gap X / n_1 - (K - X) / n_0 = N / (n_0 n_1) (X - E X). A measured gap near this
value says nothing about the model.
"""

from collections.abc import Mapping

import numpy as np
import scipy
import torch
from torch import Tensor

from fedweave.core.graph import TEST, VAL
from fedweave.core.tree import Tree
from fedweave.core.types import Record, Values
from fedweave.errors import DataError
from fedweave.metrics import classification
from fedweave.metrics.classification import PREDICTED, TRUE, rank_pairs, ratio
from fedweave.metrics.selection import PLAIN, near_constant

COUNTED = ("groups", "group_auc")
MEASURED = "groups"  # prefix of all metrics' names in tables
SELECTION = ("gaps", "accuracy", "constant", "alike")
OTHERWISE = ("score", "chance")  # where another metric than the accuracy selects


def counts(logits: Tensor, y: Tensor, sensitive: Tensor, masks: Tensor, auc: bool = True) -> Tree:
    """One client's additive counts for every metric, for S sets of nodes.

    logits [n, 2]; y int64 [n], -1 where unlabeled; sensitive int64 [n], -1 where unknown; masks bool [S, n], False
    where unlabeled. Returns float64:

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
    known = ((sensitive == 0) | (sensitive == 1)) & ((y == 0) | (y == 1))
    cell = 4 * sensitive + 2 * y + (margin > 0)
    member = known[:, None] & (cell[:, None] == torch.arange(8, device=cell.device))
    out = {"groups": (masks.to(torch.float64) @ member.to(torch.float64)).reshape(-1, 2, 2, 2)}
    if not auc:
        return out
    group = sensitive == torch.arange(2, device=sensitive.device)[:, None]
    sets = (masks[:, None] & group).flatten(0, 1)  # every set's group 0, then its group 1
    pairs = rank_pairs(margin[:, None], (y == 1)[:, None], sets, ("auc",))["auc"]
    return out | {"group_auc": pairs.reshape(-1, 2, 2).transpose(1, 2)}


def values(pairs: Values) -> Record:
    """The metrics of `counts`, merged or not, with any leading axes: a float or a NumPy array for each.

    With R_s the share of group s that is predicted 1, and TPR_s and FPR_s this share among its nodes of label 1 and 0:
    "sp_signed":      R_1 - R_0, statistical parity; "sp" its absolute value.
    "eo_signed":      TPR_1 - TPR_0, equal opportunity (Hardt et al. 2016); "eo" its absolute value.
    "fpr_signed":     FPR_1 - FPR_0.
    "equalised_odds": the larger of |TPR_1 - TPR_0| and |FPR_1 - FPR_0|.
    "predicted", "favorable": among the nodes of both groups, the shares that are predicted 1, and that have label 1.
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
        "favorable": ratio(nodes[..., 1].sum(-1), nodes.sum((-2, -1))),
        "accuracy_group0": correct[..., 0],
        "accuracy_group1": correct[..., 1],
    }
    if "group_auc" in pairs:
        right, every = np.moveaxis(np.asarray(pairs["group_auc"], np.float64), -2, 0)
        area = ratio(right, every)
        out |= {"auc_group0": area[..., 0], "auc_group1": area[..., 1]}
    return {name: value if np.ndim(value) else float(value) for name, value in out.items()}


def _gap(share: np.ndarray) -> np.ndarray:
    """Group 1 minus group 0, over the last axis."""
    result: np.ndarray = share[..., 1] - share[..., 0]
    return result


def tradeoff(score: object, sp: object, eo: object) -> np.ndarray | float:
    """score / (eo + sp), the trade-offs of F²GNN (section VI-A) where `score` is an accuracy or AUC; any equal shapes.

    NaN where a gap is undefined, and where both gaps are 0, as for a constant classifier.
    """
    out = ratio(np.asarray(score, np.float64), np.asarray(eo, np.float64) + np.asarray(sp, np.float64))
    return out if out.ndim else float(out)


def over_clients(per_client: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each metric [P, ...] of P clients its median [...] over clients where it is defined (the mean of the two
    middle values, NaN without any), and as "<metric>_undefined" the number of other clients."""
    out: dict[str, np.ndarray] = {}
    for name, value in per_client.items():
        undefined = np.isnan(value)
        out[name] = np.ma.filled(np.ma.median(np.ma.array(value, mask=undefined), 0), np.nan)
        out[f"{name}_undefined"] = undefined.sum(0)
    return out


def noise_floor(pairs: Values) -> Record:
    """E|gap| for each gap of `values`, from the same counts "groups" [..., 2, 2, 2].

    "sp_floor" takes the numbers of positive predictions and the sizes of the groups as they are, "eo_floor" these
    numbers among the nodes of label 1; both are exact. "equalised_odds_floor" is E max(|A|, |B|) = sqrt(2 / pi (Var A +
    Var B)), for the gaps A and B at either label as independent normal variables. NaN where a group is empty, as the
    gap.
    """
    table = np.asarray(pairs["groups"], np.float64)
    nodes, predicted = table.sum(-1), table[..., 1].sum(-2)  # [..., group, label], [..., label]
    size = nodes.sum(-1)  # [..., group]
    # variance of the gap at each label, K (N - K) / (n_0 n_1 (N - 1)): [..., label]
    both, product = nodes.sum(-2), nodes[..., 0, :] * nodes[..., 1, :]
    variance = ratio(predicted * (both - predicted), product * np.maximum(both - 1, 1))
    out = {
        "sp_floor": expected_gap(size[..., 0], size[..., 1], predicted.sum(-1)),
        "eo_floor": expected_gap(nodes[..., 0, 1], nodes[..., 1, 1], predicted[..., 1]),
        "equalised_odds_floor": np.sqrt(2 / np.pi * (variance[..., 0] + variance[..., 1])),
    }
    return {name: value if np.ndim(value) else float(value) for name, value in out.items()}


def expected_gap(n0: object, n1: object, positive: object) -> np.ndarray:
    """E|X / n1 - (K - X) / n0| for K = `positive` nodes placed at random among n0 + n1; whole numbers of any shapes.

    By the closed form of the hypergeometric mean deviation (Diaconis and Zabell 1991, "Closed form summation for
    classical distributions"): E|X - E X| = 2 m (N - K - n1 + m) / N P(X = m) with m = floor(E X) + 1. NaN where n0 or
    n1 is 0.
    """
    n0, n1, k = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (n0, n1, positive)))
    total = np.maximum(n0 + n1, 1)
    m = np.floor(k * n1 / total) + 1
    beyond = (m > np.minimum(k, n1)) | (total - k - n1 + m < 0)  # X cannot exceed its mean: it is constant
    at = np.where(beyond, np.maximum(0, k - n0), m)
    log_p = _log_choose(k, at) + _log_choose(total - k, n1 - at) - _log_choose(total, n1)
    deviation = np.where(beyond, 0, 2 * m * (total - k - n1 + m) / total * np.exp(log_p))
    return ratio(total * deviation, n0 * n1)


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    gammaln = scipy.special.gammaln
    result: np.ndarray = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result


def measures(pairs: Values, accuracy: object, auc: object) -> dict[str, np.ndarray]:
    """{"groups/…": values of the pairs' leading axes}: `values`, a "…_floor" for each gap, "tradeoff_accuracy" and
    "tradeoff_auc" of the accuracy and AUC, and "tradeoff_skill", which is 0 for every constant prediction: (TPR - FPR)
    (1 - (SP + EO) / 2); {} without counts by group."""
    if "groups" not in pairs:
        return {}
    metrics = values(pairs) | noise_floor(pairs)
    table = np.asarray(pairs["groups"], np.float64).sum(-3)  # [..., label, prediction]
    skill = _gap(ratio(table[..., 1], table.sum(-1)))  # TPR - FPR of both groups together (Youden 1950)
    metrics |= {
        "tradeoff_accuracy": tradeoff(accuracy, metrics["sp"], metrics["eo"]),
        "tradeoff_auc": tradeoff(auc, metrics["sp"], metrics["eo"]),
        "tradeoff_skill": skill * (1 - (metrics["sp"] + metrics["eo"]) / 2),
    }
    return {f"{MEASURED}/{name}": value for name, value in metrics.items()}


def summary_of(per_client: Mapping[str, np.ndarray], pooled: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Metrics of the test split: "groups/global/…" over all examples; "groups/median/…", the median over clients where
    the metric is defined; and "groups/median/…_undefined", the number of other clients.

    per_client: `measures` of the clients' pairs, [P, 3]. pooled: `measures` of all clients' pairs, [3].
    """
    summary = {name.replace("/", "/global/", 1): float(value[TEST]) for name, value in pooled.items()}
    medians = over_clients({name: value[:, TEST] for name, value in per_client.items()})
    return summary | {name.replace("/", "/median/", 1): float(value) for name, value in medians.items()}


def selection(pairs: Mapping[str, np.ndarray], metric: str = PLAIN, positive: int = 1) -> dict[str, float]:
    """The numbers that choose a round (`fairest`), from the clients' pairs [3, …] on their validation examples, added
    up.

    "gaps": SP + EO among people of a known group. Among all people, "accuracy", and "constant", the accuracy of the
    better constant prediction; "alike", 1 if nearly all people get one prediction, else 0. Where another metric
    selects, "score", its value, and "chance", the value of the best constant prediction. {} without groups, or if
    clients do not measure that other metric; NaN where a group is empty."""
    if "groups" not in pairs:
        return {}
    measured = classification.values({name: pair[VAL] for name, pair in pairs.items()}, positive)
    if metric != PLAIN and (metric not in measured or not pairs.get(metric, pairs["groups"]).any()):
        return {}
    gaps = values({"groups": pairs["groups"][VAL]})
    predicted, labels = pairs["classes"][VAL, PREDICTED], pairs["classes"][VAL, TRUE]  # [2]
    doubled_hits, examples = pairs["f1"][VAL, 0], labels.sum()
    scores = {
        "gaps": gaps["sp"] + gaps["eo"],
        "accuracy": float(ratio(doubled_hits.sum() / 2, examples)),
        "constant": float(ratio(labels.max(), examples)),
        "alike": float(near_constant(float(ratio(predicted[1], examples)), float(ratio(labels[1], examples)))),
    }
    if metric != PLAIN:
        scores |= {"score": float(measured[metric]), "chance": classification.chance(metric, labels, positive)}
    return scores


def fairer(now: Mapping[str, float], before: Mapping[str, float], margin: float) -> bool:
    """Whether a round with the `selection` `now` is better than an earlier one.

    A round counts as fair under two conditions. Its accuracy, or the score that replaces it, is more than `margin`
    above the constant prediction's. It does not give nearly all people one prediction (a margin below 0 permits it).
    Without these bounds a constant prediction, which has no gaps, would win. Among fair rounds the one with the lowest
    gaps is chosen; while there is none, the one with the highest accuracy or score; of equal ones the first.
    """
    return _rank(now, margin) > _rank(before, margin)


def _rank(scores: Mapping[str, float], margin: float) -> tuple[bool, float]:
    score, chance = scores["accuracy"], scores["constant"]
    if not np.isnan(scores.get("score", np.nan)):
        score, chance = scores["score"], scores["chance"]
    one_prediction = scores.get("alike") == 1 and margin >= 0
    fair = bool(score > chance + margin and not np.isnan(scores["gaps"]) and not one_prediction)
    return fair, -scores["gaps"] if fair else score
