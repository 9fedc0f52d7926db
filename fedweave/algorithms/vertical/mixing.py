"""Weighted sums of few rows each, for all clients at once inside a vectorised call, without a copy of every row."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def mix(h: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Σ_j weight[i, j] h[index[i, j]]: h [n, k], index int64 and weight [m, j], giving [m, k]; differentiable in h, any
    number of times."""
    return _Mix.apply(h, index, weight)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(index, h, mode="sum", per_sample_weights=weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        h, *rest = inputs
        ctx.save_for_backward(*rest)
        ctx.count = h.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Spread.apply(grad, *ctx.saved_tensors, ctx.count), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        h, index, weight = _stacked(info.batch_size, in_dims, tensors)
        out = _Mix.apply(h.flatten(0, 1), _shifted(index, h.shape[1]), weight.flatten(0, 1))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Spread(torch.autograd.Function):
    """The transpose of `_Mix`, with `count` rows."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, weight: Tensor, count: int) -> Tensor:
        return torch.ops.fedweave.gathered.default(grad, index, weight, count)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Mix.apply(grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> tuple[Tensor, int]:
        grad, index, weight = _stacked(info.batch_size, in_dims, operands[:3])
        count = operands[3]
        rows = grad.flatten(0, 1), _shifted(index, count), weight.flatten(0, 1)
        return _Spread.apply(*rows, info.batch_size * count).unflatten(0, (info.batch_size, -1)), 0


def _stacked(clients: int, dims: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """All [P, …]."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]


def _shifted(index: Tensor, count: int) -> Tensor:
    """Row numbers in all clients' matrices of `count` rows below each other."""
    return (index + (torch.arange(len(index), device=index.device) * count)[:, None, None]).flatten(0, 1)
