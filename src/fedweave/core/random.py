"""Randomness as an argument: counter-based keys, so that loop, vmap, chunks and the network draw the same numbers.

A key is an int64 scalar tensor. `fold` derives a new one from it and some purpose; the draws below hash (key, counter)
(`ops.hashing`). Nothing here or elsewhere touches a global generator. All draws work under `torch.func.vmap`.

An element's draw depends only on its number: the first rows of a longer array equal the shorter array, so a node's draw
does not depend on the rows of padding after it.

Dropout masks are drawn block by block, so that their words stay in a processor's cache. The comparison writes
floating-point numbers directly: kernels on bool tensors were measured ten times slower.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedweave.ops import hashing
from fedweave.ops.batching import Batch, Constant, Dims, over_clients
from fedweave.ops.hashing import GOLDEN, MIX1, MIX2, finalize
from fedweave.ops.hashing import bits as bits
from fedweave.ops.tape import kernel

_WORDS = 1 << 15  # hashed at once, 256 KiB
_ALL = (1 << 64) - 1


def mask(source: Tensor, shape: tuple[int, ...], threshold: int, value: float, dtype: torch.dtype) -> Tensor:
    """`value` where an element's draw for the key `source`, of the whole numbers from -32768 to 32767, is below
    `threshold`, and 0 elsewhere; four draws per hashed word."""
    return _Mask.apply(source[None], math.prod(shape), threshold, value, dtype).view(shape)


@kernel
def _mask(source: Tensor, count: int, threshold: int, value: float, dtype: torch.dtype) -> Tensor:
    """[P, count], a row for each of P keys."""
    out = torch.empty(len(source), count, dtype=dtype, device=source.device)
    if threshold > 32767:  # beyond int16
        return out.fill_(value)
    words = max(1, _WORDS // max(1, len(source)) if source.device.type == "cpu" else count)
    for first in range(0, count, 4 * words):
        part = out[:, first : first + 4 * words]
        last = first // 4 - (-part.shape[1] // 4)
        steps = torch.arange(first // 4 + 1, last + 1, dtype=torch.int64, device=source.device) * GOLDEN
        draws = finalize(source[:, None] + steps).view(torch.int16)[:, : part.shape[1]]
        torch.lt(draws, threshold, out=part)
        if value != 1:
            part.mul_(value)
    return out


class _Mask(Constant):
    """`mask` on keys [P], and the rule by which the masks of P clients are one computation."""

    @staticmethod
    def forward(source: Tensor, count: int, threshold: int, value: float, dtype: torch.dtype) -> Tensor:
        return _mask(source, count, threshold, value, dtype)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, source: Tensor, *fixed: object) -> tuple[Tensor, int]:
        (keys,) = over_clients(info.batch_size, in_dims, source)
        return _Mask.apply(keys.flatten(0, 1), *fixed).unflatten(0, (info.batch_size, -1)), 0


def key(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The root key of a run, from any integer. Keys folded from it, and their random numbers, lie on its device; the
    bits are the same everywhere."""
    return key_of(root(seed), device)


def root(seed: int) -> int:
    """The bits of the root key of a run, for work without a device (`fold_bits`, `key_of`)."""
    return _mix((seed ^ 0x6A09E667F3BCC909) & _ALL)


def fold_bits(parent: int, *purpose: int | str) -> int:
    """`fold` for a key's bits and fixed purposes. A server derives its keys without a device, which would need five
    kernels for each."""
    for part in purpose:
        word = (parent ^ _fixed(part)) * MIX1 & _ALL
        parent = word ^ word >> 32
    return parent


def key_of(bits: int, device: torch.device | str) -> Tensor:
    """A key with these bits on a device, without waiting for the device."""
    return torch.full((), _to_signed(bits), dtype=torch.int64, device=device)


def keys_of(bits: Sequence[int], device: torch.device | str) -> Tensor:
    """Keys with these bits on a device, int64 [keys]."""
    return torch.tensor([_to_signed(word) for word in bits], dtype=torch.int64, device=device)


def fold(parent: Tensor, *purpose: int | str | Tensor) -> Tensor:
    """A key for `purpose`, unrelated to the keys of other purposes and to `parent` itself.

    A fixed purpose costs only one multiplication and one shift, because steps derive many keys; the draws hash them in
    full. A number and a tensor that holds it are different purposes. A secret key (`ops.hashing`) gives a secret key,
    or words where a purpose is a tensor of numbers.
    """
    out = parent
    for part in purpose:
        if hashing.is_secret(out):
            out = hashing.derive(out, part)
        elif isinstance(part, Tensor):
            out = finalize(out * 3 + finalize(part))
        else:
            out = (out ^ _fixed(part)) * MIX1
            out = out ^ (out >> 32 & 0xFFFFFFFF)
    return out


@lru_cache(maxsize=4096)
def _fixed(part: int | str) -> int:
    return _to_signed(_mix(word(part) * GOLDEN + 1 & _ALL))


def _mix(z: int) -> int:
    """`ops.hashing.finalize` of 64 bits."""
    z = (z ^ z >> 30) * MIX1 & _ALL
    z = (z ^ z >> 27) * MIX2 & _ALL
    return z ^ z >> 31


def word(part: int | str) -> int:
    """The number that stands for a string in `fold`; a number stands for itself."""
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=7).digest()) if isinstance(part, str) else part


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for work outside the steps (partitions, synthetic data)."""
    return np.random.default_rng([seed & (2**63 - 1), word(purpose)])


def order(source: Tensor, member: Tensor) -> Tensor:
    """int64 [n]: a random number for each True of `member` bool [n], the largest int64 for each False, so that sorting
    brings the members first, in random order."""
    return torch.where(member, bits(source, member.shape[-1]) >> 1, torch.iinfo(torch.int64).max)


def uniform(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 in [0, 1) of the given shape, with 24 random bits each."""
    words = bits(source, math.prod(shape)) >> 40 & 0xFFFFFF
    return (words * 2.0**-24).to(torch.float32).reshape(shape)


def normal(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float32 of the given shape (Box-Muller, two words for each number)."""
    # In float64 and then rounded: devices differ in the last bits of their logarithms, which rounding takes away.
    u = uniform(source, (*shape, 2)).double()
    return (torch.sqrt(-2 * torch.log(u[..., 0] + 2.0**-25)) * torch.cos(2 * math.pi * u[..., 1])).float()


def keep(source: Tensor, shape: tuple[int, ...], rate: float) -> Tensor:
    """Bool of the given shape, True with probability `rate` rounded to 1/65536 (four draws per hashed word)."""
    return mask(source, shape, round(rate * 65536) - 32768, 1.0, torch.bool)


def dropout(source: Tensor, h: Tensor, rate: float) -> Tensor:
    """Zero each element of `h` with probability `rate` and rescale the rest so that the mean stays."""
    if not 0 <= rate < 1:
        raise ValueError(f"the dropout rate is {rate}; it must be at least 0 and below 1")
    threshold = max(1, round((1 - rate) * 65536))
    return h * mask(source, tuple(h.shape), threshold - 32768, 65536 / threshold, h.dtype)


def _to_signed(word: int) -> int:
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)
