"""Hashed words: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number
generators"), elementwise on int64 tensors, and so the same under any batching."""

import torch
from torch import Tensor

from fedweave.ops import secret

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # the same 64 bits, read as a signed number
MIX1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX2 = 0x94D049BB133111EB - (1 << 64)


def finalise(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 on each element of `z` int64."""
    # in place where a tensor is new: twice as fast, for the words of a dropout mask do not fit in cache
    z = (z >> 30).bitwise_and_(0x3FFFFFFFF).bitwise_xor_(z).mul_(MIX1)
    z = (z >> 27).bitwise_and_(0x1FFFFFFFFF).bitwise_xor_(z).mul_(MIX2)
    return (z >> 31).bitwise_and_(0x1FFFFFFFF).bitwise_xor_(z)


def bits(source: Tensor, count: int) -> Tensor:
    """`count` hashed words of the key `source`, an int64 scalar or a secret key (`ops.secret`): int64 [count], uniform
    over all 2^64 values."""
    if secret.is_secret(source):
        return secret.bits(source, count)
    return finalise(source + torch.arange(1, count + 1, dtype=torch.int64, device=source.device) * GOLDEN)
