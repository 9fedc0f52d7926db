"""Keys and words from a secret of 256 bits, and hashed words from keys that are not secret.

BLAKE2b derives secret keys, SHAKE-256 draws their words; both are in the standard library. The words of other keys are
the finalizer of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators"), elementwise
on int64 tensors, and so the same under any batching.

A secret key is uint8 [32]. The host reads it and places the drawn words on the key's device, so it waits for the
device. Only plain steps of single clients, at sites, draw this way. All other keys are int64 scalars, and their hash
can be inverted: a reader of some noise can compute such a key, and from it all other noise that the key draws.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import UserError

BYTES = 32


def is_secret(source: Tensor) -> bool:
    """Whether a key is a secret key."""
    return source.dtype == torch.uint8


def from_bytes(content: bytes) -> Tensor:
    """The key made of any bytes: uint8 [32]."""
    return _tensor(hashlib.blake2b(content, digest_size=BYTES).digest(), np.uint8)


def derive(parent: Tensor, part: int | str | Tensor) -> Tensor:
    """A key for the purpose `part`, uint8 [32]. If `part` is int64 [...] with at least one dimension: a word for each
    of its numbers, int64 [...]; equal numbers have equal words."""
    if isinstance(part, Tensor) and part.dim():
        return _words(_content(parent), part)
    text = f"{type(part).__name__} {int(part) if isinstance(part, Tensor) else part}"
    content = hashlib.blake2b(text.encode(), key=_content(parent), digest_size=BYTES).digest()
    return _tensor(content, np.uint8).to(parent.device)


def secret_bits(source: Tensor, count: int) -> Tensor:
    """`count` words of the key `source`: int64 [count]. A longer draw begins with the words of a shorter one."""
    return _tensor(hashlib.shake_256(b"bits" + _content(source)).digest(8 * count), np.int64).to(source.device)


def _content(key: Tensor) -> bytes:
    """The bytes of a key.

    Raises:
        UserError: the key is read inside a transform of PyTorch, which hides its bytes.
    """
    try:
        return bytes(key.cpu().numpy())
    except RuntimeError as error:
        raise UserError(
            "a secret key cannot be read inside torch.func's grad or vmap; draw from it before, and pass that in.",
            code="user.secret",
        ) from error


def _words(key: bytes, numbers: Tensor) -> Tensor:
    distinct, place = np.unique(numbers.cpu().numpy(), return_inverse=True)
    each = (hashlib.blake2b(number.tobytes(), key=key, digest_size=8) for number in distinct.astype(np.int64))
    words = b"".join(hashed.digest() for hashed in each)
    return torch.from_numpy(np.frombuffer(words, np.int64)[place.reshape(numbers.shape)].copy()).to(numbers.device)


def _tensor(content: bytes, kind: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, kind).copy())


GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # the same 64 bits, read as a signed number
MIX1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX2 = 0x94D049BB133111EB - (1 << 64)


def finalize(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64 on each element of `z` int64."""
    # in place where a tensor is new: twice as fast, because the words of a dropout mask do not fit in cache
    z = (z >> 30).bitwise_and_(0x3FFFFFFFF).bitwise_xor_(z).mul_(MIX1)
    z = (z >> 27).bitwise_and_(0x1FFFFFFFFF).bitwise_xor_(z).mul_(MIX2)
    return (z >> 31).bitwise_and_(0x1FFFFFFFF).bitwise_xor_(z)


def bits(source: Tensor, count: int) -> Tensor:
    """`count` hashed words of the key `source`, an int64 scalar or a secret key (`is_secret`): int64 [count], uniform
    over all 2^64 values."""
    if is_secret(source):
        return secret_bits(source, count)
    return finalize(source + torch.arange(1, count + 1, dtype=torch.int64, device=source.device) * GOLDEN)
