"""The Gaussian mechanism on rows, its noise, and the exact ε of its releases."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import scipy
import torch
from torch import Tensor

from fedweave.core.bounds import Between, ClipNorm, NonNegative
from fedweave.core.mechanism import Clipped, Cost, Gaussian, Mechanism
from fedweave.core.settings import Settings
from fedweave.ops.hashing import bits
from fedweave.privacy.mechanisms import uniform

_MAX_MU2 = 1e12  # for a larger μ², ε is neither useful nor accurate


@dataclass(frozen=True)
class GaussianRows(Settings):
    """Scales every row down to at most the norm `clip` and adds noise of standard deviation sigma · clip to each
    column; with sigma = 0 rows are not changed.

    The guarantee is (ε, delta)-differential privacy for one row: the receiver can hardly distinguish it from any other
    row. The guarantee does not cover the influence of a node's data on other nodes' rows.
    """

    clip: ClipNorm = 1.0
    sigma: NonNegative = 0.0
    delta: Between = 1e-5

    def apply(self, h: Tensor, key: Tensor) -> Tensor:
        """The rows of h [n, k] after clipping and noise.

        Norms are float64, in which the square of a row longer than `clip` does not vanish. A row that is not finite
        counts as 0: another party's message may cause such a row, and it would leave without noise.
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
        """ε of one row after this number of releases."""
        return epsilon(self.mu * math.sqrt(releases), self.delta) if self.sigma else math.inf

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The declaration of released rows."""
        if self.sigma == 0:
            return ()
        return Clipped(self.clip), Gaussian(self.sigma * self.clip, 2 * self.clip, "row", self.delta)


@lru_cache(maxsize=4096)  # many members have the same cost
def total_epsilon(cost: Cost, delta: float) -> float:
    """Total ε of `cost` at δ = `delta`: the pure ε plus the ε of all Gaussian releases together.

    Releases without a bound do not count.
    """
    if cost.squared_mu > _MAX_MU2:
        return math.inf
    return cost.epsilon + (epsilon(math.sqrt(cost.squared_mu), delta) if cost.squared_mu else 0.0)


def epsilon(mu: float, delta: float) -> float:
    """The smallest ε of a mechanism that is exactly μ-Gaussian differentially private (Dong, Roth and Su 2022,
    "Gaussian Differential Privacy", corollary 2.13).

    T releases with noise multiplier σ (noise over sensitivity) satisfy it with μ = √T / σ, and with no smaller μ (their
    corollary 3.3): this is exact, where Rényi accountants give bounds.
    """

    def excess(eps: float) -> float:
        above = math.exp(eps + scipy.special.log_ndtr(-mu / 2 - eps / mu))
        return float(scipy.special.ndtr(mu / 2 - eps / mu) - above) - delta

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
    return _root(excess, 0.0, top, 1e-9)


def noise_multiplier(target: float, delta: float, releases: int) -> float:
    """The least noise, in units of the sensitivity, with which `releases` together cost at most ε = `target`.

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

    The noise ends at 8.6 standard deviations. A normal distribution has less than 1e-17 beyond, which is negligible for
    any δ and any number of weights; `random.normal` ends at 5.9.
    """
    u = uniform(bits(key, 2 * math.prod(shape))).view(*shape, 2)
    return torch.sqrt(-2 * torch.log(u[..., 0] + 2.0**-54)) * torch.cos(2 * math.pi * u[..., 1])


def _root(function: Callable[[float], float], low: float, high: float, within: float) -> float:
    """The zero of a function between two numbers at which its signs differ."""
    from scipy.optimize import brentq  # a quarter of a second, which every process of a run would spend

    return float(brentq(function, low, high, xtol=within))
