"""Attacks of a curious server or member: identities from codes, labels, links from repeated queries, and membership
from a model's outputs."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.core import random
from fedweave.ops.hashing import bits
from fedweave.privacy.mechanisms import flip_probability, uniform


def reidentification_rate(noisy: Tensor, clean: Tensor, owner: Tensor) -> float:
    """The share of noisy codes [m, d] whose nearest clean code [n, d] in L1 belongs to their `owner` int64 [m]; k
    equally near codes count 1 / k."""
    right = 0.0
    for codes, owners in zip(noisy.split(1024), owner.split(1024), strict=True):
        distance = torch.cdist(codes.double(), clean.double(), p=1)  # [m, n]
        near = distance <= distance.amin(1, keepdim=True) + 1e-9
        right += float((near.gather(1, owners[:, None])[:, 0] / near.sum(1)).sum())
    return right / len(noisy)


def labels_from_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Labels from the gradient [b, h] of a cross-entropy in the inputs of a linear classifier with `weight` [h, c]:
    int64 [b], a label for each row; −1 where the row is 0, which has no label in the loss.

    A row is (p − y) Wᵀ / n with the predicted probabilities p and the label y as one-hot vector. Least squares gives
    (p − y) / n, whose only negative entry belongs to the label. Where inputs were dropped the gradient is 0, and their
    rows of W are left out. With fewer than c inputs left the result is a guess.
    """
    alive = gradient != 0
    alive_weight = torch.where(alive[:, :, None], weight.double(), 0.0)
    difference = torch.linalg.pinv(alive_weight) @ gradient.double()[:, :, None]  # (p − y) / n, [b, c, 1]
    return torch.where(alive.any(1), difference[:, :, 0].argmin(1), -1)


def majority_accuracy(flip: float, votes: int) -> float:
    """The probability that most of `votes` independent copies of a bit, each flipped with probability `flip`, are
    right; a tie counts half."""
    from scipy.stats import binom  # half a second, which every process of a run would spend

    tie = float(binom.pmf(votes / 2, votes, flip)) if votes % 2 == 0 else 0.0
    return float(binom.cdf((votes - 1) // 2, votes, flip)) + tie / 2


def repeated_query_accuracy(truth: Tensor, epsilon: float, queries: int, key: Tensor, permanent: bool) -> float:
    """The share of `truth` bool [n] that rounding the mean of the answers to `queries` queries finds; ties count half.
    Each bit is flipped with `flip_probability`. With `permanent` noise all answers are the same; otherwise each answer
    has separate noise, like answers of several holders."""
    sums = torch.zeros_like(truth, dtype=torch.int64)
    for query in range(queries):
        words = bits(random.fold(key, 0 if permanent else query), len(truth))
        sums += truth ^ (uniform(words) < flip_probability(epsilon))
    right = torch.where(truth, 2 * sums - queries, queries - 2 * sums)
    return float((right > 0).double().mean() + (right == 0).double().mean() / 2)


class Separation(NamedTuple):
    """How well a number tells the examples that a model was trained on from others.

    auc:       0.5 by chance. advantage: true positive rate minus false positive rate at the best threshold (Yeom et
               al., CSF 2018), at least 0.
    by_chance: what the advantage exceeds in 5 % of cases where there is no difference: √(ln 20 (m + n) / (2 m n)) for
               m and n examples (Smirnov 1939), without ties.
    """

    auc: float
    advantage: float
    by_chance: float


def separation(members: np.ndarray, non_members: np.ndarray) -> Separation:
    """How well numbers [m] of members, which tend to be larger, are distinguished from numbers [n] of non-members."""
    from sklearn.metrics import roc_auc_score, roc_curve  # takes long to import

    m, n = len(members), len(non_members)
    truth, score = np.repeat([True, False], [m, n]), np.concatenate([members, non_members])
    false, true, _ = roc_curve(truth, score)
    by_chance = min(1.0, math.sqrt(math.log(20) * (m + n) / (2 * m * n)))
    return Separation(float(roc_auc_score(truth, score)), float((true - false).max()), by_chance)
