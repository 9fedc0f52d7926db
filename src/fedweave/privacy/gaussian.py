"""The Gaussian mechanism on rows, its noise, and its accountant."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from scipy.special import log_ndtr, ndtr
from torch import Tensor

from fedweave.core.mechanism import Clipped, Cost, Gaussian, Mechanism
from fedweave.ops.hashing import bits
from fedweave.privacy.ldp import uniform

_MOST = 1e12  # μ² beyond which ε is of no use and of no accuracy


def check_clip(clip: float) -> None:
    """Refuse a norm whose square, or that of what is longer, a float64 cannot hold: nothing would be clipped to it.

    Raises:
        ValueError: says between which norms it must be.
    """
    if not 1e-100 <= clip <= 1e100:
        raise ValueError(f"clip is {clip}; it must be a positive norm, from 1e-100 to 1e100")


@dataclass(frozen=True)
class GaussianRows:
    """Every row is scaled down to the norm `clip` at most and gets noise of standard deviation sigma · clip per column;
    with sigma = 0 rows leave as they are.

    The guarantee is (ε, delta)-differential privacy for one row: whatever it was, the receiver can hardly tell it from
    another. It does not cover what a node's data does to other nodes' rows.

    Raises:
        ValueError: a negative sigma, a clip that is not positive, or a delta outside (0, 1).
    """

    clip: float = 1.0
    sigma: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma is {self.sigma}; it must be a number of at least 0 (0 adds no noise)")
        check_clip(self.clip)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}; it must lie between 0 and 1, such as 1e-5")

    def apply(self, h: Tensor, key: Tensor) -> Tensor:
        """The rows of h [n, k] as they may leave.

        Norms are of float64, where the square of nothing that is longer than `clip` vanishes. A row that is not finite
        counts as 0: the message of another may make it so, and as such it would leave without noise.
        """
        if self.sigma == 0:
            return h
        wide = h.double()
        norm = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        clipped = torch.where(norm.isfinite(), wide * (self.clip / norm.clamp(min=self.clip)), torch.zeros_like(wide))
        return (clipped + self.sigma * self.clip * noise(key, tuple(h.shape))).to(h.dtype)

    @property
    def mu(self) -> float:
        """μ of one release (Gaussian differential privacy); rows differ by up to 2 · clip. T releases have √T μ."""
        return 2 / self.sigma if self.sigma else math.inf

    def epsilon(self, releases: int) -> float:
        """ε of one row after that many releases of it."""
        return epsilon(self.mu * math.sqrt(releases), self.delta) if self.sigma else math.inf

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What is declared of rows that were released."""
        if self.sigma == 0:
            return ()
        return Clipped(self.clip), Gaussian(self.sigma * self.clip, 2 * self.clip, "row", self.delta)


@lru_cache(maxsize=4096)  # many members spend the same
def total_epsilon(cost: Cost, delta: float) -> float:
    """ε of what `cost` counts, at δ = `delta`: pure ones added to that of all Gaussian releases together.

    Releases without a bound are not in it.
    """
    if cost.squared_mu > _MOST:
        return math.inf
    return cost.epsilon + (epsilon(math.sqrt(cost.squared_mu), delta) if cost.squared_mu else 0.0)


def epsilon(mu: float, delta: float) -> float:
    """The smallest ε of a mechanism that is exactly μ-Gaussian differentially private (Dong, Roth and Su 2022,
    "Gaussian Differential Privacy", corollary 2.13).

    T releases with noise multiplier σ (noise over sensitivity) are so with μ = √T / σ, and no less (their corollary
    3.3): this is exact, where Rényi accountants give bounds.
    """

    def excess(eps: float) -> float:
        return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu))) - delta

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
    return _root(excess, 0.0, top, 1e-9)


def noise_multiplier(target: float, delta: float, releases: int) -> float:
    """The least noise, in units of the sensitivity, with which so many releases together cost ε = `target` at most.

    It is √releases / μ, with the μ whose `epsilon` is the target.
    """

    def excess(mu: float) -> float:
        return (epsilon(mu, delta) if mu else 0.0) - target

    top = 1.0
    while excess(top) < 0:
        top *= 2
    mu = _root(excess, 0.0 if top == 1 else top / 2, top, 1e-12)
    return math.sqrt(releases) / mu * (1 + 1e-9)  # the search may end just above the target


def noise(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float64 of the given shape (Box-Muller, two words of 53 random bits for each number).

    It ends at 8.6 standard deviations. Of a normal distribution less than 1e-17 lies beyond, which no δ feels, whatever
    the number of weights; `random.normal` ends at 5.9.
    """
    u = uniform(bits(key, 2 * math.prod(shape))).view(*shape, 2)
    return torch.sqrt(-2 * torch.log(u[..., 0] + 2.0**-54)) * torch.cos(2 * math.pi * u[..., 1])


def _root(function: Callable[[float], float], low: float, high: float, within: float) -> float:
    """Where a function is 0, between two numbers at which its signs differ."""
    from scipy.optimize import brentq  # a quarter of a second, which every process of a run would spend

    return float(brentq(function, low, high, xtol=within))
