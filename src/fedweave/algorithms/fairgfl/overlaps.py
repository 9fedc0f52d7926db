"""Estimates of the nodes and links that clients have in common (Zhou et al. 2026, section V-B2).

Clients upload minibatches: noisy codes uint8 [P, b, d], noisy adjacencies bool [P, b, b], the number of rows in use
`sizes` int64 [P], and their numbers of nodes int64 [P]. Common nodes and links are counted in these, and scaled up to
whole clients. `matches` and the functions on its pairs compute on the host, by NumPy.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ELEMENTS = 1 << 18  # distances computed at a time, so that they stay in the cache


@dataclass(frozen=True)
class Rates:
    """When two noisy codes are taken for the same node's, and how often that is so.

    most:  the largest distance, in steps of a level (see `distances`). true, false: the share of pairs of codes of one
           node, and of two nodes, that are so near.
    """

    most: int
    true: float
    false: float


def comparable(codes: Tensor, levels: int) -> Tensor:
    """Codes uint8 [n, d] as `distances` takes them: float32 [n, d], bits as -1 and 1."""
    return codes.float() if levels > 1 else 2 * codes.float() - 1


def distances(one: Tensor, other: Tensor, levels: int) -> Tensor:
    """L1 distance between `comparable` codes [n, d] and [m, d] in steps of a level: whole numbers float32 [n, m]."""
    if levels > 1:
        return torch.cdist(one, other, p=1)
    half = torch.full((), one.shape[1] / 2, device=one.device)
    return torch.addmm(half, one, other.T, alpha=-0.5)  # of a, b = ±1 half of 1 − a b; exact


def rates(first: Tensor, second: Tensor, levels: int, threshold: float | None, odds: float) -> Rates:
    """The rates on the public sample: two noisy copies uint8 [R, m, d] of each of its m nodes' codes.

    threshold: largest L1 / d; None takes the threshold with the least variance of an estimated intersection
    (`overlap_count`) of mini-batches with `odds` pairs of different nodes to each pair of one node.
    """
    steps = levels * first.shape[2]
    same = torch.zeros(steps + 1, dtype=torch.float64, device=first.device)
    different = torch.zeros_like(same)
    for one, other in zip(first, second, strict=True):
        distance = distances(comparable(one, levels), comparable(other, levels), levels).long()
        same += torch.bincount(distance.diagonal(), minlength=steps + 1)
        different += torch.bincount(distance.flatten(), minlength=steps + 1)
    different -= same
    true = (same.cumsum(0) / same.sum().clamp(min=1)).clamp(0, 1)
    false = (different.cumsum(0) / different.sum().clamp(min=1)).clamp(0, 1)
    if threshold is None:
        spread = true * (1 - true) + odds * false * (1 - false)
        difference = true - false
        max_distance = int(torch.where(difference > 0, spread / difference**2, torch.inf).argmin())
    else:
        max_distance = int(threshold * steps + 1e-9)
    return Rates(max_distance, float(true[max_distance]), float(false[max_distance]))


def matches(codes: Tensor, sizes: Tensor, levels: int, max_distance: int) -> np.ndarray:
    """The pairs of rows of different clients whose codes are at most `max_distance` apart: int64 [2, M], the lower row
    of a pair first; rows are counted through all clients' minibatches."""
    clients, batch, _ = codes.shape
    near = _NearLevels(codes.flatten(0, 1), levels) if levels > 1 else _NearBits(codes.flatten(0, 1))
    real, rows = (torch.arange(batch, device="cpu") < sizes[:, None]).flatten().numpy(), clients * batch
    width = max(1, _ELEMENTS // max(rows * batch, 1)) * batch
    blocks = []
    for start in range(0, rows - batch, width):
        after = start + batch  # nothing before can be of a later client
        low, high = near(slice(start, start + width), slice(after, rows), max_distance)
        low, high = low + start, high + after
        mask = (low // batch < high // batch) & real[low] & real[high]
        blocks.append(np.stack([low[mask], high[mask]]))
    return np.concatenate(blocks, axis=1) if blocks else np.zeros((2, 0), np.int64)


class _NearLevels:
    """Finds codes of several levels [n, d] that are near each other."""

    def __init__(self, codes: Tensor, levels: int) -> None:
        self._codes, self._levels = comparable(codes, levels), levels

    def __call__(self, one: slice, other: slice, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of the rows `one` and `other` at most `max_distance` apart, as places in them, in order."""
        near = distances(self._codes[one], self._codes[other], self._levels).numpy() <= np.float32(max_distance)
        low, high = np.nonzero(near)
        return low, high


class _NearBits:
    """Near pairs of binary codes, uint8 [n, d]. It compares all pairs in their first 64 bits, and the few near ones in
    the other bits."""

    def __init__(self, codes: Tensor) -> None:
        packed = np.packbits(codes.numpy(), axis=1)
        self._words = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)
        self._first = np.ascontiguousarray(self._words[:, 0])

    def __call__(self, one: slice, other: slice, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
        distance = np.bitwise_count(self._first[one, None] ^ self._first[other])
        at = np.flatnonzero(distance <= max_distance)
        low, high = at // distance.shape[1], at % distance.shape[1]
        if self._words.shape[1] > 1:
            rest = np.bitwise_count(self._words[one, 1:][low] ^ self._words[other, 1:][high]).sum(1)
            mask = distance.ravel()[at] + rest <= max_distance
            low, high = low[mask], high[mask]
        return low, high


def counts(pairs: np.ndarray, batch: int, clients: int) -> Tensor:
    """The number of pairs of rows between every two clients: float64 [P, P], symmetric."""
    low, high = pairs // batch
    upper = np.bincount(low * clients + high, minlength=clients**2).reshape(clients, clients)
    return torch.from_numpy(upper + upper.T).double()


def overlap_count(matched: Tensor, sizes: Tensor, error_rates: Rates) -> Tensor:
    """(M − f b_i b_k) / (t − f): the unbiased size of the intersection of minibatches with M matching pairs."""
    sizes = sizes.double()
    return (matched - error_rates.false * sizes[:, None] * sizes) / max(error_rates.true - error_rates.false, 1e-6)


def node_ratios(common: Tensor, sizes: Tensor, nodes: Tensor) -> Tensor:
    """N_ik = Ñ_ik n_k / b_k with Ñ_ik = |∩| / b_i, clipped to [0, 1]: float64 [P, P], 0 on the diagonal."""
    sizes, nodes = sizes.double(), nodes.double()
    return _clip(common / sizes[:, None] * (nodes / sizes))


def link_ratios(links: Tensor, pairs: np.ndarray, sizes: Tensor, nodes: Tensor) -> Tensor:
    """T_ik = T̃_ik n_k² / b_k², clipped to [0, 1]; T̃_ik is the share of the links in i's mini-batch whose ends match
    the ends of a link in k's: float64 [P, P], 0 on the diagonal and for minibatches without links."""
    clients, batch, _ = links.shape
    client, one, other = links.nonzero().numpy().T  # each link in both directions
    degree = np.bincount(client * batch + one, minlength=clients * batch)
    low, high = np.concatenate([pairs, pairs[::-1]], axis=1)
    at, first, second = _combinations(degree[low], degree[high])  # a link of each of two rows that match
    start, ends = degree.cumsum() - degree, client * batch + other
    low, high = low[at], high[at]
    same = np.isin(_pair_code(ends[start[low] + first], ends[start[high] + second]), _pair_code(*pairs))
    shared = np.bincount((low // batch * clients + high // batch)[same], minlength=clients**2)
    totals = np.bincount(client, minlength=clients)
    ratios = torch.from_numpy(shared.reshape(clients, clients) / np.maximum(totals, 1)[:, None])
    return _clip(ratios * (nodes.double() / sizes.double()) ** 2)


def _combinations(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For counts [M] of two kinds all combinations of the things counted: which of the M, and the numbers of both."""
    products = one * other
    at = np.repeat(np.arange(len(products)), products)
    number = np.arange(len(at)) - (products.cumsum() - products)[at]
    return at, number // other[at], number % other[at]


def _pair_code(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each unordered pair of rows."""
    result: np.ndarray = np.minimum(one, other) << 32 | np.maximum(one, other)
    return result


def accumulate(before: Tensor, now: Tensor, at: Tensor, together: Tensor, beta: float) -> Tensor:
    """β now + (1 − β) before for every two of the clients `at` int64 [P]; `before` [N, N] for other pairs, and `now`
    for two clients that were never in one round, `together` [N, N]."""
    rows, columns = at[:, None], at
    last = torch.where(together[rows, columns] > 0, before[rows, columns], now)
    out = before.clone()
    out[rows, columns] = beta * now + (1 - beta) * last
    return out


def _clip(ratios: Tensor) -> Tensor:
    return ratios.clamp(0, 1).fill_diagonal_(0)
