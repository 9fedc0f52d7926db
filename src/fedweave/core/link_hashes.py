"""Hashes of a link: of a name, of a pair of names in either order, and random numbers from these.

The split of the links and the pairs that are not links follow from them. So these depend neither on the partition of
the data, nor on the order of its rows, nor on the process that computes them.
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import torch

from fedweave.core.random import word
from fedweave.ops.hashing import GOLDEN, finalize

_BITS = 53


def hashes_of(names: Sequence[str], key: bytes = b"") -> np.ndarray:
    """int64 [n]: a hash of each name; every holder of the `key` computes the same."""
    digests = [hmac.digest(key, b"fedweave link\0" + name.encode(), hashlib.sha256)[:8] for name in names]
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


def pair_hashes(first: np.ndarray, second: np.ndarray, relation: np.ndarray | None, seed: int) -> np.ndarray:
    """int64 [m]: a hash of each pair of ends, of its relation and of a seed. The ends' hashes are int64 [m]; their
    order does not matter."""
    ends = torch.from_numpy(np.stack([np.minimum(first, second), np.maximum(first, second)]))
    start = torch.tensor((word("links") ^ seed) & ((1 << 63) - 1), device="cpu")
    keys = finalize(finalize(ends[0] ^ finalize(start)) * 3 + ends[1])
    if relation is not None:
        keys = finalize(keys * 3 + torch.from_numpy(np.asarray(relation)))
    return keys.numpy()


def words(keys: np.ndarray, at: int) -> np.ndarray:
    """int64 [...], not negative: the draw number `at` of each of the keys int64 [...]."""
    step = (at + 1) * GOLDEN & ((1 << 64) - 1)
    return (finalize(torch.from_numpy(keys) + (step - (1 << 64) if step >> 63 else step)) >> 1).numpy() & (
        (1 << 63) - 1
    )


def places(keys: np.ndarray) -> np.ndarray:
    """float64 [...] in [0, 1) of keys int64 [...]."""
    unit: np.ndarray = (words(keys, 0) >> (63 - _BITS)).astype(np.float64) / 2.0**_BITS
    return unit


def split_of(keys: np.ndarray, ratios: tuple[float, float, float]) -> np.ndarray:
    """Masks bool [3, m] of links by their `pair_hashes`, in about these shares."""
    ends = np.cumsum(ratios)
    ends[-1] = 1.0 if abs(ends[-1] - 1) < 1e-9 else ends[-1]
    at = places(keys)
    masks: np.ndarray = (at < ends[:, None]) & (at >= np.array([0.0, *ends[:2]])[:, None])
    return masks
