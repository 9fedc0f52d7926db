"""How clients' own models do where all are judged on the same examples, and which classes they predict there."""

from collections.abc import Mapping

import numpy as np

from fedweave.core.graph import TEST
from fedweave.metrics.classification import ratio
from fedweave.metrics.reference import PREDICTED, TRUE


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
