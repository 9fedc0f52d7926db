"""What a model is to be compared with: always predicting the class that is most frequent in training; and how clients'
own models do where all are judged on the same examples.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedweave.core.graph import TEST, TRAIN
from fedweave.metrics.classification import ALERTS, ratio

PREDICTED, TRUE = 0, 1


def majority_classes(classes: np.ndarray) -> np.ndarray:
    """int64 [...]: the most frequent class of the training examples, the first of equally frequent ones; -1 without
    examples. classes: float64 [..., 3, 2, c] as `classification.counts` has them."""
    trained = classes[..., TRAIN, TRUE, :]
    return np.where(trained.sum(-1) > 0, trained.argmax(-1), -1)


def references(classes: np.ndarray, majority: np.ndarray) -> dict[str, np.ndarray]:
    """Of every set of examples, float64 [..., S], NaN where it is empty:

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
    """What the best prediction reaches by a metric that is the same for all examples; labels: float64 [c], how many are
    of each class."""
    share = ratio(labels, np.broadcast_to(labels.sum(), labels.shape))
    alike = 2 * share / (1 + share)  # F1 of always predicting a class
    found = {
        "accuracy": share.max(),
        "macro_f1": alike.max() / max(1, (labels > 0).sum()),
        "auc": 0.5,
        "average_precision": share[positive],
        "recall_at_1": 1 / ALERTS,
        "f1_positive": alike[positive],
    }
    return float(found[metric])


def rarest(classes: np.ndarray) -> float:
    """The share of the training examples that the rarest class has, where that is so small that accuracy says little:
    less than a tenth, or, with many classes, less than a third of an equal share; else NaN.

    classes: float64 [3, 2, c] of all clients together; what none of their examples is of is no class of theirs.
    """
    true = classes[:, TRUE]
    there, trained = true.sum(0) > 0, true[TRAIN]
    if not trained.any():
        return math.nan
    share = float(trained[there].min() / trained.sum())
    return share if share < min(0.1, 1 / (3 * there.sum())) else math.nan


def personal(pairs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of every client's own model on the global test set, float64 [P]; {} where no client's was judged there:

    "global_test/accuracy":    the share of correct predictions.
    "global_test/predicted/2": the share of predictions that are class 2.
    "global_test/true/2":      the share of examples that are.

    pairs: by metric, float64 [P, S, 2] or [P, S, 2, c], as `classification.counts` has them.
    """
    found = {}
    if "accuracy" in pairs:
        correct, examples = pairs["accuracy"][:, TEST].T
        found["accuracy"] = ratio(correct, examples)
    if "classes" in pairs:
        for kind, name in ((PREDICTED, "predicted"), (TRUE, "true")):
            often = pairs["classes"][:, TEST, kind].T
            found |= {f"{name}/{number}": ratio(of, often.sum(0)) for number, of in enumerate(often)}
    return {f"global_test/{name}": value for name, value in found.items()}
