"""Several noisy copies of one bit: asking again (Zhou et al. 2026, FairGFL, appendix F-A), or hearing it from several
holders."""

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.ops.hashing import bits
from fedweave.privacy.ldp import flip_probability, uniform


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
