"""What one evaluation says of two groups of people: every metric with its noise floor and its trade-offs, of each
client and of all, and what a round is chosen by.

All of it follows from the counts of `group_fairness`, `noise_floor` included, so that nobody sends anything for it.
"""

from collections.abc import Mapping

import numpy as np

from fedweave.core.graph import TEST, VAL
from fedweave.core.records import Values
from fedweave.metrics import classification, group_fairness, reference
from fedweave.metrics.classification import ratio
from fedweave.metrics.judging import PLAIN, near_constant
from fedweave.metrics.noise_floor import noise_floor
from fedweave.metrics.reference import PREDICTED, TRUE

MEASURED = "groups"  # of all metrics' names in tables
SELECTION = ("gaps", "accuracy", "constant", "alike")
OTHERWISE = ("score", "chance")  # where not the accuracy judges
_TRUE_POSITIVES = 0  # twice these, of each class, in the pairs called "f1"


def measures(pairs: Values, accuracy: object, auc: object) -> dict[str, np.ndarray]:
    """{"groups/…": values of the pairs' leading axes}: `group_fairness.values`, a "…_floor" beside each gap, and
    "tradeoff_accuracy" and "tradeoff_auc" of the accuracy and AUC, and "tradeoff_skill", which is 0 for every constant
    prediction: (TPR - FPR) (1 - (SP + EO) / 2); {} where nothing was counted by group."""
    if "groups" not in pairs:
        return {}
    found = group_fairness.values(pairs) | noise_floor(pairs)
    found |= {
        "tradeoff_accuracy": group_fairness.tradeoff(accuracy, found["sp"], found["eo"]),
        "tradeoff_auc": group_fairness.tradeoff(auc, found["sp"], found["eo"]),
        "tradeoff_skill": group_fairness.skill(pairs) * (1 - (found["sp"] + found["eo"]) / 2),
    }
    return {f"{MEASURED}/{name}": value for name, value in found.items()}


def summarised(own: Mapping[str, np.ndarray], pooled: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Of the test split: "groups/global/…" of all examples, and over clients "groups/median/…" where the metric is
    defined and "groups/median/…_undefined", at how many clients it is not.

    own: `measures` of the clients' pairs, [P, 3]. pooled: those of all, [3].
    """
    named = {name.removeprefix(f"{MEASURED}/"): value for name, value in own.items()}
    found = {f"{MEASURED}/global/{name.removeprefix(f'{MEASURED}/')}": value[TEST] for name, value in pooled.items()}
    medians = group_fairness.over_clients({name: value[:, TEST] for name, value in named.items()})
    return {key: float(value) for key, value in (found | _prefixed(medians)).items()}


def selection(pairs: Mapping[str, np.ndarray], metric: str = PLAIN, positive: int = 1) -> dict[str, float]:
    """What a round is chosen by (`fairest`), from the clients' pairs [3, …] on their validation examples, added up:
    "gaps" SP + EO of people of a known group; of all people "accuracy", and "constant", the accuracy of the better
    constant prediction; "alike", 1 if one class is predicted for nearly everybody, else 0; and where another metric
    judges, "score", its value, and "chance", that of the best constant prediction. {} without groups; NaN where a group
    is empty."""
    if "groups" not in pairs:
        return {}
    gaps = group_fairness.values({"groups": pairs["groups"][VAL]})
    right, labels = (pairs[name][VAL, at] for name, at in (("f1", _TRUE_POSITIVES), ("classes", TRUE)))
    shares = {"accuracy": right.sum() / 2, "constant": labels.max()}
    found = {"gaps": gaps["sp"] + gaps["eo"]} | {k: float(ratio(v, labels.sum())) for k, v in shares.items()}
    predicted, true = (ratio(pairs["classes"][VAL, at, 1], labels.sum()) for at in (PREDICTED, TRUE))
    found["alike"] = float(near_constant(float(predicted), float(true)))
    if metric == PLAIN:
        return found
    value = classification.values({name: pair[VAL] for name, pair in pairs.items()}, positive)[metric]
    return found | {"score": float(value), "chance": reference.chance(metric, labels, positive)}


def fairer(now: Mapping[str, float], before: Mapping[str, float], margin: float) -> bool:
    """Whether a round of `selection` now is to be preferred to an earlier one.

    A round counts as fair if its accuracy, or the score that judges in its place, lies above the constant prediction's
    by more than `margin`, and it does not predict one class for nearly everybody (which a margin below 0 permits);
    without these bounds a constant prediction, which has no gaps, would win. Of fair rounds the one with the lowest
    gaps is chosen; while there is none, the one with the highest accuracy or score; of equal ones the first.
    """
    return _rank(now, margin) > _rank(before, margin)


def _rank(found: Mapping[str, float], margin: float) -> tuple[bool, float]:
    score, chance = judged(found)
    alike = found.get("alike") == 1 and margin >= 0
    fair = bool(score > chance + margin and not np.isnan(found["gaps"]) and not alike)
    return fair, -found["gaps"] if fair else score


def judged(found: Mapping[str, float]) -> tuple[float, float]:
    """Of a `selection` the value that judges, and that of a constant prediction."""
    other = not np.isnan(found.get("score", np.nan))
    return (found["score"], found["chance"]) if other else (found["accuracy"], found["constant"])


def _prefixed(medians: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{MEASURED}/median/{name}": value for name, value in medians.items()}
