"""Local differential privacy of labels (randomised response), and of codes and links: the mechanisms 𝓜_N and 𝓜_E of
Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping subgraphs", section
V-B1.

What is random is given as words: hashed 64-bit numbers of a key (`core.random`), one for each element, so that the same
key draws the same noise again.

Deviations: 𝓜_N is normalised by the actual sum of its weights; the closed form of eq. 21 is that sum only where x is 0
or 1.
"""

import math

import torch
from torch import Tensor

from fedweave.core import random

_MOST = 1e6  # from here on ε is as good as infinite, and exponents stay finite
_DIGITS = 53  # of a drawn number


def flip_probability(epsilon: float) -> float:
    """p_e = 1 / (1 + e^ε), with which 𝓜_E flips a bit (eq. 22); 0 for infinite ε."""
    return 1 / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0


def level_probabilities(x: Tensor, levels: int, epsilon: float) -> Tensor:
    """P(𝓜_N gives i | x), float64 [..., levels + 1] for i = 0..levels, in proportion to
    exp(ε (1 − ⌊levels · |x − i / levels|⌋ / levels)), of values x in [0, 1] (eq. 21). Infinite ε gives the nearest
    levels. No output is more than e^ε times as likely for one x as for another (tests/privacy enumerate them)."""
    given = torch.arange(levels + 1, dtype=torch.float64, device=x.device) / levels
    away = (x.double()[..., None] - given).abs()
    steps = torch.floor(levels * away + 1e-12)  # a whole number of steps may be rounded to just below it
    return torch.softmax(-min(epsilon, _MOST) * steps / levels, -1)


def noisy_levels(x: Tensor, levels: int, epsilon: float, words: Tensor) -> Tensor:
    """𝓜_N on each element of x [...] in [0, 1]: uint8 [...], the i of the output i / levels; words int64 [...]. With
    levels = 1 and x of 0 and 1 it is randomised response with `flip_probability`. What is no number counts as 0."""
    ends = level_probabilities(x.nan_to_num().clamp(0, 1), levels, epsilon).cumsum(-1)[..., :-1]
    return (uniform(words)[..., None] >= ends).sum(-1).to(torch.uint8)


def kept_probability(epsilon: float, classes: int) -> float:
    """e^ε / (e^ε + c − 1), with which `randomised_response` leaves a label as it is."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def randomised_response(y: Tensor, classes: int, epsilon: float, words: Tensor) -> Tensor:
    """Each label of y int64 [n] with `kept_probability`, else any other, all alike; −1 stays. words: int64 [2n].

    No output is more than e^ε times as likely for one label as for another. What a label becomes depends on its words
    and on the label alone, so that with the same words it is the same again.
    """
    stays, other = uniform(words).view(-1, 2).unbind(1)
    moved = (y + 1 + (other * (classes - 1)).long()) % classes
    return torch.where((y < 0) | (stays < kept_probability(epsilon, classes)), y, moved)


def noisy_links(links: Tensor, nodes: Tensor, epsilon: float, key: Tensor) -> Tensor:
    """𝓜_E on the upper triangle of an adjacency, mirrored: bool [b, b] without diagonal.

    links: bool [b, b], symmetric. nodes: int64 [b], the numbers of its nodes; what a pair draws depends on these and on
    the key alone, so that the pair gives the same bit again in another minibatch.
    """
    high, low = torch.maximum(nodes[:, None], nodes), torch.minimum(nodes[:, None], nodes)
    words = random.fold(key, high * (high - 1) // 2 + low)
    return (links ^ (uniform(words) < flip_probability(epsilon))) & (high > low)


def true_density(observed: Tensor, flip: float) -> Tensor:
    """(P_0 − p_e) / (1 − 2 p_e): the share of ones before each bit was flipped with probability `flip`, given the share
    afterwards (theorem V.3). It is unbiased, and may be negative."""
    return (observed - flip) / (1 - 2 * flip)


def sparsified(noisy: Tensor, distance: Tensor, valid: Tensor, epsilon: float) -> Tensor:
    """The ones of a noisy adjacency that are left when as many remain as there were before the noise: bool [b, b].

    Those between the nodes that are farthest apart by their noisy codes go first, of equal distances the later ones. It
    sees nothing but what was noised, so that it is post-processing.

    noisy: bool [b, b], symmetric. distance: [b, b] between noisy codes. valid: bool [b], False at padding.
    """
    upper = torch.ones_like(noisy).triu(1)
    pairs = (valid.sum() * (valid.sum() - 1) // 2).clamp(min=1).double()
    ones = (noisy & upper & valid & valid[:, None]).flatten()
    density = true_density(ones.sum().double() / pairs, flip_probability(epsilon))
    kept = (density.clamp(min=0) * pairs).round()
    far = torch.where(ones, distance.flatten().double(), math.inf)
    rank = far.argsort(stable=True).argsort(stable=True)
    left = (ones & (rank < kept)).view(noisy.shape)
    return left | left.mT


def uniform(words: Tensor) -> Tensor:
    """float64 in [0, 1) of hashed words int64, with 53 random bits each."""
    return (words >> 64 - _DIGITS & (1 << _DIGITS) - 1).double() * 2.0**-_DIGITS


def packed(bits: Tensor) -> Tensor:
    """Bool [..., k] as uint8 [..., ⌈k / 8⌉], the first bit the lowest; undone by `unpacked`."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    result: Tensor = (padded.unflatten(-1, (-1, 8)) << _places(bits)).sum(-1, dtype=torch.uint8)
    return result


def unpacked(words: Tensor, count: int) -> Tensor:
    """Bool [..., count] of uint8 [..., ⌈count / 8⌉]."""
    return (words[..., None] >> _places(words) & 1).flatten(-2)[..., :count].bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
