"""The gradient-based Shapley value beside its approximation by a cosine (FairGraphFL, section 3.2)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.incentives.shapley import Value, shapley
from fedweave.incentives.values import alignment

CANCELLED = 1e-13  # of the squared sum of lengths: less than that is what rounding leaves of updates that cancel
EQUAL = 1e-12  # of the largest value: numbers that vary less are equal up to rounding


class GradientShapley(NamedTuple):
    """Of each of N agents, float64 [N]: `values`, the Shapley values of ν, and their standard `error` (0 where exact);
    `cosine`, the approximation. correlation: Pearson's between values and cosine, NaN where one does not vary."""

    values: Tensor
    error: Tensor
    cosine: Tensor
    correlation: float


def gradient_shapley(
    updates: Tensor, r: Tensor, rng: np.random.Generator | None = None, permutations: int = 1000
) -> GradientShapley:
    """Shapley values (Eq. 3) of ν(S) = cos(u_S, u_N) (Eq. 8) of updates [N, D] and agents' values r [N], beside
    φ_i = cos(u_i, u_N) (Eq. 9).

    Exact for at most 12 agents, from one batch of all coalitions; above from `permutations` drawn with `rng`.

    Raises:
        UserError: there are more than 12 agents and no `rng`.
    """
    cosine = alignment(updates, r.to(updates.device, torch.float64).relu() @ updates.double()).cpu()
    values, error, _ = shapley(cosine_value(updates, r), len(updates), rng, permutations)
    return GradientShapley(values, error, cosine, correlation(values, cosine))


def cosine_value(updates: Tensor, r: Tensor) -> Value:
    """The value function ν(S) = cos(u_S, u_N) (Eq. 8) of updates [N, D] and values r [N], for coalitions [c, N].

    u_S is the ReLU(r)-weighted mean over S. ν is 0 where u_S or u_N is zero: nobody of positive value in S, or updates
    that cancel up to rounding. It works on the updates' inner products: N² numbers, whatever D is.
    """
    updates = updates.double()
    gram = updates @ updates.T
    weights = r.to(gram).relu()
    lengths = gram.diagonal().sqrt()
    with_all = gram @ weights
    square_all = weights @ with_all

    def value(masks: Tensor) -> Tensor:
        mixed = masks.to(gram) * weights
        square = ((mixed @ gram) * mixed).sum(1)
        defined = (square > CANCELLED * (mixed @ lengths) ** 2) & (square_all > CANCELLED * (weights @ lengths) ** 2)
        return torch.where(defined, mixed @ with_all / torch.where(defined, square * square_all, 1.0).sqrt(), 0.0)

    return value


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's correlation of two float64 [N]; NaN where either is constant up to rounding."""
    varies = [bool((part - part.mean()).abs().max() > EQUAL * part.abs().max()) for part in (one, other)]
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1]) if all(varies) else float("nan")
