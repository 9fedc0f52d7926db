"""A sum that hides its terms from who adds them up: pairwise masks (Bonawitz et al. 2017, "Practical secure aggregation
for privacy-preserving machine learning", section 4), without the recovery of clients that drop out: all must take part.

Every two clients share a secret, which one of them drew and sent to the other past the server. Each client sends fixed
point numbers to which it adds, modulo 2^32, a word hashed from every secret it gave and from which it takes away one
hashed from every secret it was given: over all clients the words cancel.

The server learns nothing but the sum if it follows the protocol and no client tells it secrets. The words' hash is not
a cryptographic one (`core.random`).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedweave.core import random

FRACTION = 16  # binary digits behind the point
_WORD = 1 << 32


def turns(clients: int) -> int:
    """How many secrets a client gives: one to the client that many places further on each turn from 1, so that every
    two share at least one."""
    return clients // 2


def receivers(clients: Sequence[str], turn: int) -> Mapping[str, tuple[str]]:
    """Who gives a secret to whom in a turn, as `Federation.send` takes it."""
    return {client: (clients[(at + turn) % len(clients)],) for at, client in enumerate(clients)}


def seal(h: Tensor, share: Tensor, given: Tensor, got: Tensor, use: Tensor) -> Tensor:
    """What leaves of a term h: int32 in its shape. The term is rounded to multiples of 2^-16 and kept within ±2^15 ·
    share, so that no sum wraps around.

    share: scalar, 1 / clients. given, got: int64 [turns], the secrets. use: int64 scalar, another one for every sum,
    since equal words would show the difference of two terms.
    """
    most = (share.to(torch.float64) * (_WORD // 2 - 1)).floor()
    out = (h.to(torch.float64) * 2**FRACTION).round().clamp(-most, most).to(torch.int64)
    for turn in range(len(given)):
        out = out + _words(given[turn], use, h) - _words(got[turn], use, h)
    return _wrapped(out)


def opened(sealed: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ of the terms, from what all clients sealed: int32 [clients, …]."""
    return (_wrapped(sealed.to(torch.int64).sum(0)).to(torch.float64) * 2.0**-FRACTION).to(dtype)


def _words(secret: Tensor, use: Tensor, h: Tensor) -> Tensor:
    """A hashed word for each entry of h, int64 within 32 bits."""
    return (random.bits(random.fold(secret, use), h.numel()) & (_WORD - 1)).view(h.shape)


def _wrapped(total: Tensor) -> Tensor:
    """`total` modulo 2^32 as int32."""
    return ((total + _WORD // 2) % _WORD - _WORD // 2).to(torch.int32)
