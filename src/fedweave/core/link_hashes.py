"""Hashes for links: of the name of a node, of a pair of nodes in either order, and random numbers from these.

The split of the links and the pairs that are not links follow from them. So split and pairs depend neither on the
partition of the data, nor on the order of its rows, nor on the process that computes them.
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import torch

from fedweave.core.random import word
from fedweave.ops.hashing import GOLDEN, finalize

_BITS = 53  # of the numbers in [0, 1), all that a float64 holds
_MASK = (1 << 63) - 1  # of the bits of int64 without its sign


def hashes_of(names: Sequence[str], key: bytes = b"") -> np.ndarray:
    """int64 [n]: a hash of each name; every holder of the `key` computes the same."""
    digests = [hmac.digest(key, b"fedweave link\0" + name.encode(), hashlib.sha256)[:8] for name in names]
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


def pair_hashes(first: np.ndarray, second: np.ndarray, relation: np.ndarray | None, seed: int) -> np.ndarray:
    """int64 [m]: a hash of each pair of ends, of its relation and of a seed. first, second: hashes of the ends, int64
    [m]; which is the first does not matter. relation: int64 [m]."""
    ends = torch.from_numpy(np.stack([np.minimum(first, second), np.maximum(first, second)]))  # [2, m]
    start = torch.tensor((word("links") ^ seed) & _MASK, device="cpu")
    keys = finalize(finalize(ends[0] ^ finalize(start)) * 3 + ends[1])
    if relation is not None:
        keys = finalize(keys * 3 + torch.from_numpy(np.asarray(relation)))
    return keys.numpy()


def draws(keys: np.ndarray, number: int) -> np.ndarray:
    """int64 [...], not negative: draw `number` (from 0) of each of the keys int64 [...], by SplitMix64."""
    step = (number + 1) * GOLDEN & ((1 << 64) - 1)
    signed_step = step - (1 << 64) if step >> 63 else step  # the same bits as int64
    bits = finalize(torch.from_numpy(keys) + signed_step)
    return (bits >> 1).numpy() & _MASK


def uniform(keys: np.ndarray) -> np.ndarray:
    """float64 [...] in [0, 1): draw 0 of each of the keys int64 [...]."""
    unit: np.ndarray = (draws(keys, 0) >> (63 - _BITS)).astype(np.float64) / 2.0**_BITS
    return unit


def split_of(keys: np.ndarray, ratios: tuple[float, float, float]) -> np.ndarray:
    """Masks bool [3, m] (TRAIN, VAL, TEST) of links by their `pair_hashes`, in about these shares; if the ratios add up
    to less than 1, the remaining links are in none."""
    stops = np.cumsum(ratios)
    if abs(stops[-1] - 1) < 1e-9:  # else rounding could leave a link out
        stops[-1] = 1.0
    starts = np.array([0.0, *stops[:2]])
    position = uniform(keys)  # [m]
    masks: np.ndarray = (position >= starts[:, None]) & (position < stops[:, None])
    return masks
