"""What one evaluation says of two groups of people: every metric with its noise floor and its trade-offs, of each
client and of all, and what a round is chosen by.

All of it follows from the counts of `group_fairness`, `noise_floor` included, so that nobody sends anything for it.
"""

from collections.abc import Mapping

import numpy as np

from fedweave.core.graph import TEST, VAL
from fedweave.core.records import Values
from fedweave.metrics import group_fairness
from fedweave.metrics.classification import ratio
from fedweave.metrics.noise_floor import noise_floor
from fedweave.metrics.reference import TRUE

MEASURED = "groups"  # of all metrics' names in tables
SELECTION = ("gaps", "accuracy", "constant")
_TRUE_POSITIVES = 0  # twice these, of each class, in the pairs called "f1"


def measures(pairs: Values, accuracy: object, auc: object) -> dict[str, np.ndarray]:
    """{"groups/…": values of the pairs' leading axes}: `group_fairness.values`, a "…_floor" beside each gap, and
    "tradeoff_accuracy" and "tradeoff_auc" of the accuracy and AUC; {} where nothing was counted by group."""
    if "groups" not in pairs:
        return {}
    found = group_fairness.values(pairs) | noise_floor(pairs)
    found |= {
        "tradeoff_accuracy": group_fairness.tradeoff(accuracy, found["sp"], found["eo"]),
        "tradeoff_auc": group_fairness.tradeoff(auc, found["sp"], found["eo"]),
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


def selection(pairs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What a round is chosen by (`fairest`), from the clients' pairs [P, 3, …] on their validation examples, added up:
    "gaps" SP + EO of people of a known group; of all people "accuracy", and "constant", the accuracy of the better
    constant prediction. {} without groups; NaN where a group is empty."""
    if "groups" not in pairs:
        return {}
    gaps = group_fairness.values({"groups": pairs["groups"].sum(0)[VAL]})
    right, labels = (pairs[name].sum(0)[VAL, at] for name, at in (("f1", _TRUE_POSITIVES), ("classes", TRUE)))
    shares = {"accuracy": right.sum() / 2, "constant": labels.max()}
    return {"gaps": gaps["sp"] + gaps["eo"]} | {k: float(ratio(v, labels.sum())) for k, v in shares.items()}


def fairer(now: Mapping[str, float], before: Mapping[str, float], margin: float) -> bool:
    """Whether a round of `selection` now is to be preferred to an earlier one.

    A round counts as fair if its accuracy lies above the constant prediction's by more than `margin`; without that
    bound a constant prediction, which has no gaps, would win. Of fair rounds the one with the lowest gaps is chosen;
    while there is none, the one with the highest accuracy; of equal ones the first.
    """
    return _rank(now, margin) > _rank(before, margin)


def _rank(found: Mapping[str, float], margin: float) -> tuple[bool, float]:
    fair = bool(found["accuracy"] > found["constant"] + margin and not np.isnan(found["gaps"]))
    return fair, -found["gaps"] if fair else found["accuracy"]


def _prefixed(medians: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{MEASURED}/median/{name}": value for name, value in medians.items()}
