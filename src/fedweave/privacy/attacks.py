"""What a curious server or member finds out: identities by codes, labels, and links by repeated questions."""

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.ops.hashing import bits
from fedweave.privacy.mechanisms import flip_probability, uniform


def reidentified(noisy: Tensor, clean: Tensor, owner: Tensor) -> float:
    """The share of noisy codes [m, d] of which the nearest of all clean codes [n, d] in L1 is the one of their `owner`
    int64 [m]; of k equally near ones, 1 / k."""
    right = 0.0
    for some, owners in zip(noisy.split(1024), owner.split(1024), strict=True):
        away = torch.cdist(some.double(), clean.double(), p=1)
        near = away <= away.amin(1, keepdim=True) + 1e-9
        right += float((near.gather(1, owners[:, None])[:, 0] / near.sum(1)).sum())
    return right / len(noisy)


def labels_from_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """int64 [b]: the label of each row of the gradient [b, h] of a cross-entropy in the inputs of a linear classifier
    with `weight` [h, c]; −1 where the row is 0, which has no label in the loss.

    A row is (p − y) Wᵀ / n with the predicted probabilities p and the label y as one-hot vector. Least squares gives
    (p − y) / n, of which the label's entry alone is negative. Where inputs were dropped the gradient is 0, and their
    rows of W are left out; with fewer than c inputs left it is a guess.
    """
    alive = gradient != 0
    seen = torch.where(alive[:, :, None], weight.double(), 0.0)
    away = torch.linalg.pinv(seen) @ gradient.double()[:, :, None]
    return torch.where(alive.any(1), away[:, :, 0].argmin(1), -1)


def majority_accuracy(flip: float, votes: int) -> float:
    """The probability that most of `votes` independent copies of a bit, each flipped with probability `flip`, are
    right; of a tie, half."""
    from scipy.stats import binom  # half a second, which every process of a run would spend

    tie = float(binom.pmf(votes / 2, votes, flip)) if votes % 2 == 0 else 0.0
    return float(binom.cdf((votes - 1) // 2, votes, flip)) + tie / 2


def repeated_queries(truth: Tensor, epsilon: float, queries: int, key: Tensor, permanent: bool) -> float:
    """The share of `truth` bool [n] that rounding the mean of the answers to `queries` queries finds, a tie counting
    half; each bit is flipped with `flip_probability`. With `permanent` noise every answer is the same; else each has
    its own, as that of several holders has."""
    sums = torch.zeros_like(truth, dtype=torch.int64)
    for query in range(queries):
        words = bits(random.fold(key, 0 if permanent else query), len(truth))
        sums += truth ^ (uniform(words) < flip_probability(epsilon))
    right = torch.where(truth, 2 * sums - queries, queries - 2 * sums)
    return float((right > 0).double().mean() + (right == 0).double().mean() / 2)
