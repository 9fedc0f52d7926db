"""Local differential privacy of labels (randomized response), and of codes and links: the mechanisms 𝓜_N and 𝓜_E of
Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping subgraphs", section
V-B1.

Randomness comes as words: hashed 64-bit numbers of a key (`core.random`), one for each element, so that the same key
draws the same noise again.

Deviations: 𝓜_N is normalized by the actual sum of its weights; the closed form of eq. 21 equals that sum only where x
is 0 or 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import scipy
import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Between, ClipNorm, NonNegative
from fedweave.core.mechanism import Clipped, Cost, Gaussian, Mechanism
from fedweave.core.settings import Settings
from fedweave.ops.hashing import bits

_MAX_EPSILON = 1e6  # a larger ε counts as infinite, and exponents stay finite
_DIGITS = 53  # random bits of a drawn number


def flip_probability(epsilon: float) -> float:
    """p_e = 1 / (1 + e^ε), the probability that 𝓜_E flips a bit (eq. 22); 0 for infinite ε."""
    return 1 / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0


def level_probabilities(x: Tensor, levels: int, epsilon: float) -> Tensor:
    """P(𝓜_N gives i | x), float64 [..., levels + 1] for i = 0..levels, in proportion to
    exp(ε (1 − ⌊levels · |x − i / levels|⌋ / levels)), of values x in [0, 1] (eq. 21). Infinite ε gives the nearest
    levels. No output is more than e^ε times as likely for one x as for another (tests/privacy enumerate them)."""
    grid = torch.arange(levels + 1, dtype=torch.float64, device=x.device) / levels
    away = (x.double()[..., None] - grid).abs()
    steps = torch.floor(levels * away + 1e-12)  # rounding may put a whole number of steps just below it
    return torch.softmax(-min(epsilon, _MAX_EPSILON) * steps / levels, -1)


def noisy_levels(x: Tensor, levels: int, epsilon: float, words: Tensor) -> Tensor:
    """𝓜_N on each element of x [...] in [0, 1]: uint8 [...], the i of the output i / levels; words int64 [...]. With
    levels = 1 and x in {0, 1} it is randomized response with `flip_probability`. NaN counts as 0."""
    ends = level_probabilities(x.nan_to_num().clamp(0, 1), levels, epsilon).cumsum(-1)[..., :-1]
    return (uniform(words)[..., None] >= ends).sum(-1).to(torch.uint8)


def keep_probability(epsilon: float, classes: int) -> float:
    """e^ε / (e^ε + c − 1), the probability that `randomized_response` does not change a label."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def randomized_response(y: Tensor, classes: int, epsilon: float, words: Tensor) -> Tensor:
    """Keep each label of y int64 [n] with `keep_probability`, else replace it with any other, all equally likely; −1
    stays. words: int64 [2n].

    No output is more than e^ε times as likely for one label as for another. The result depends only on the label and
    its words, so that the same words give the same result.
    """
    stays, other = uniform(words).view(-1, 2).unbind(1)
    replacement = (y + 1 + (other * (classes - 1)).long()) % classes
    return torch.where((y < 0) | (stays < keep_probability(epsilon, classes)), y, replacement)


def noisy_links(links: Tensor, nodes: Tensor, epsilon: float, key: Tensor) -> Tensor:
    """𝓜_E on the upper triangle of an adjacency, mirrored: bool [b, b] without diagonal.

    links: bool [b, b], symmetric. nodes: int64 [b], the numbers of its nodes; the draw of a pair depends only on these
    and on the key, so that the pair gives the same bit again in another mini-batch.
    """
    high, low = torch.maximum(nodes[:, None], nodes), torch.minimum(nodes[:, None], nodes)
    words = random.fold(key, high * (high - 1) // 2 + low)
    return (links ^ (uniform(words) < flip_probability(epsilon))) & (high > low)


def true_density(observed: Tensor, flip: float) -> Tensor:
    """(P_0 − p_e) / (1 − 2 p_e): the share of ones before each bit was flipped with probability `flip`, given the share
    afterwards (theorem V.3). It is unbiased, and may be negative."""
    return (observed - flip) / (1 - 2 * flip)


def sparsify_links(noisy: Tensor, distance: Tensor, valid: Tensor, epsilon: float) -> Tensor:
    """Thin out the ones of a noisy adjacency to the estimated number before the noise: bool [b, b].

    Ones between nodes with the most distant noisy codes are removed first; of equal distances, the later ones. It reads
    only noisy values, so that it is post-processing.

    noisy: bool [b, b], symmetric. distance: [b, b] between noisy codes. valid: bool [b], False at padding.
    """
    upper = torch.ones_like(noisy).triu(1)
    pairs = (valid.sum() * (valid.sum() - 1) // 2).clamp(min=1).double()
    ones = (noisy & upper & valid & valid[:, None]).flatten()
    density = true_density(ones.sum().double() / pairs, flip_probability(epsilon))
    count = (density.clamp(min=0) * pairs).round()
    far = torch.where(ones, distance.flatten().double(), math.inf)
    rank = far.argsort(stable=True).argsort(stable=True)
    remaining = (ones & (rank < count)).view(noisy.shape)
    return remaining | remaining.mT


def uniform(words: Tensor) -> Tensor:
    """float64 in [0, 1) from hashed words int64, with 53 random bits each."""
    return (words >> 64 - _DIGITS & (1 << _DIGITS) - 1).double() * 2.0**-_DIGITS


def pack_bits(bits: Tensor) -> Tensor:
    """Bool [..., k] as uint8 [..., ⌈k / 8⌉], the first bit the lowest; `unpacked` undoes it."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    result: Tensor = (padded.unflatten(-1, (-1, 8)) << _places(bits)).sum(-1, dtype=torch.uint8)
    return result


def unpack_bits(words: Tensor, count: int) -> Tensor:
    """Bool [..., count] from uint8 [..., ⌈count / 8⌉]."""
    return (words[..., None] >> _places(words) & 1).flatten(-2)[..., :count].bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


# ----------------------------------------------------------------------------------------------------
# The Gaussian mechanism on rows, its noise, and its accountant.


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
