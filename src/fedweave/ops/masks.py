"""Dropout masks, drawn block by block, so that the words that they are made of stay in a processor's cache, and
compared straight into floating-point numbers: kernels on bool tensors were measured ten times slower."""

import math
from typing import Any

import torch
from torch import Tensor

from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.hashing import GOLDEN, finalise
from fedweave.ops.tape import kernel

_WORDS = 1 << 15  # hashed at once, 256 KiB


def mask(source: Tensor, shape: tuple[int, ...], threshold: int, value: float, dtype: torch.dtype) -> Tensor:
    """`value` where an element's draw for the key `source`, of the whole numbers from -32768 to 32767, is below
    `threshold`, and 0 elsewhere; four draws per hashed word."""
    return _Mask.apply(source[None], math.prod(shape), threshold, value, dtype).view(shape)


@kernel
def _mask(source: Tensor, count: int, threshold: int, value: float, dtype: torch.dtype) -> Tensor:
    """[P, count] of P keys."""
    out = torch.empty(len(source), count, dtype=dtype, device=source.device)
    if threshold > 32767:  # beyond int16
        return out.fill_(value)
    words = max(1, _WORDS // max(1, len(source)))
    for first in range(0, count, 4 * words):
        part = out[:, first : first + 4 * words]
        last = first // 4 - (-part.shape[1] // 4)
        steps = torch.arange(first // 4 + 1, last + 1, dtype=torch.int64, device=source.device) * GOLDEN
        draws = finalise(source[:, None] + steps).view(torch.int16)[:, : part.shape[1]]
        torch.lt(draws, threshold, out=part)
        if value != 1:
            part.mul_(value)
    return out


class _Mask(Operation):
    """`mask` on keys [P], and the rule that makes those of P clients one computation."""

    @staticmethod
    def forward(source: Tensor, *fixed: Any) -> Tensor:
        return _mask(source, *fixed)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, ...]:
        return (None,) * 5

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, source: Tensor, *fixed: object) -> tuple[Tensor, int]:
        (keys,) = over_clients(info.batch_size, in_dims, source)
        return _Mask.apply(keys.flatten(0, 1), *fixed).unflatten(0, (info.batch_size, -1)), 0
