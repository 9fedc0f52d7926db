"""Local differential privacy of labels (randomized response), and of codes and links: the mechanisms 𝓜_N and 𝓜_E of
Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping subgraphs", section
V-B1.

Randomness comes as words: hashed 64-bit numbers of a key (`core.random`), one for each element, so that the same key
draws the same noise again.

Deviations: 𝓜_N is normalized by the actual sum of its weights; the closed form of eq. 21 equals that sum only where x
is 0 or 1.
"""

import math

import torch
from torch import Tensor

from fedweave.core import random

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
    distance = (x.double()[..., None] - grid).abs()
    steps = torch.floor(levels * distance + 1e-12)  # rounding may put a whole number of steps just below it
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
    """Bool [..., k] as uint8 [..., ⌈k / 8⌉], the first bit the lowest; `unpack_bits` undoes it."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    result: Tensor = (padded.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)
    return result


def unpack_bits(words: Tensor, count: int) -> Tensor:
    """Bool [..., count] from uint8 [..., ⌈count / 8⌉]."""
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    return (words[..., None] >> places & 1).flatten(-2)[..., :count].bool()
