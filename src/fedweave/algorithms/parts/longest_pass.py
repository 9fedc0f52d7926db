"""The longest pass of any client over its training examples, in mini-batches.

Without secure aggregation it is the largest number that a client sends. With it, it is the power of two above: the sum
reveals how many clients have 1, 2, up to 4, … mini-batches.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core.federation import Sends
from fedweave.core.mechanism import SecureSum
from fedweave.core.replies import Replies

_POWERS = 41  # 2^0 to 2^40


def batches_declaration(plain: Sends, within: SecureSum | None) -> Sends:
    """The declaration for a number of mini-batches: `plain` without secure aggregation."""
    if within is None:
        return plain
    reveals = "nothing by itself; with the others' how many clients have 1, 2, up to 4, up to 8, … mini-batches"
    return Sends(reveals, replace(within, bits=64, fraction=0))


def encode_batches(count: Tensor, within: SecureSum | None) -> Tensor:
    """The number; with secure aggregation int64 [41], 1 at the smallest k with count ≤ 2^k."""
    if within is None:
        return count
    powers = 1 << torch.arange(_POWERS, device=count.device)
    above = (powers >= count).long()  # [41], 0 below k and 1 from it on
    return above - torch.nn.functional.pad(above[:-1], (1, 0))


def max_batches(replies: Replies, key: str, within: SecureSum | None) -> int:
    """The largest number of mini-batches, at least 1, from the clients' replies."""
    if within is None:
        return max(1, int(replies.stack(key).max()))
    largest: int = 1 << int(replies.total(key).nonzero().max())
    return largest
