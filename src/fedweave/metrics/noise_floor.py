"""The gap between groups that chance alone shows: E|gap| of a classifier whose predictions ignore the group.

Given the sizes n_0 and n_1 of the groups and K positive predictions among all N = n_0 + n_1 nodes, such a classifier
places the K at random, so that the number in group 1 is hypergeometric, X, and the gap
X / n_1 - (K - X) / n_0 = N / (n_0 n_1) (X - E X). A measured gap near this value says nothing about the model.
"""

from typing import Any

import numpy as np
from scipy.special import gammaln

from fedweave.core.records import Record, Values
from fedweave.metrics.classification import ratio


def noise_floor(pairs: Values) -> Record:
    """E|gap| beside each gap of `group_fairness.values`, from the same counts "groups" [..., 2, 2, 2].

    "sp_floor" keeps the numbers of positive predictions and the sizes of the groups, "eo_floor" those among the nodes
    of label 1; both are exact. "equalised_odds_floor" is E max(|A|, |B|) = sqrt(2 / pi (Var A + Var B)), for the gaps
    A and B at either label as independent normal variables. NaN where a group is empty, as the gap.
    """
    table = np.asarray(pairs["groups"], np.float64)
    nodes, predicted = table.sum(-1), table[..., 1].sum(-2)  # [..., group, label], [..., label]
    size = nodes.sum(-1)  # [..., group]
    by_label = [_variance(nodes[..., 0, y], nodes[..., 1, y], predicted[..., y]) for y in (0, 1)]
    out = {
        "sp_floor": expected_gap(size[..., 0], size[..., 1], predicted.sum(-1)),
        "eo_floor": expected_gap(nodes[..., 0, 1], nodes[..., 1, 1], predicted[..., 1]),
        "equalised_odds_floor": np.sqrt(2 / np.pi * (by_label[0] + by_label[1])),
    }
    return {name: value if np.ndim(value) else float(value) for name, value in out.items()}


def expected_gap(n0: object, n1: object, positive: object) -> Any:
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


def _variance(n0: np.ndarray, n1: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Variance of the gap, K (N - K) / (n0 n1 (N - 1))."""
    total = n0 + n1
    return ratio(k * (total - k), n0 * n1 * np.maximum(total - 1, 1))


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    result: np.ndarray = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result
