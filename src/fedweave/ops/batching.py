"""What batching rules (`torch.autograd.Function.vmap`) share: P clients' tensors as one."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedweave.ops.tape import kernel

Context: TypeAlias = Any  # PyTorch's context of one operation; the passes share values as its attributes
Dims: TypeAlias = tuple[Any, ...]  # for each operand the axis of clients, or None if it is the same for all
Operands: TypeAlias = tuple[Any, ...]


class Batch(Protocol):
    """PyTorch's information for a batching rule."""

    @property
    def batch_size(self) -> int:
        """Number of clients."""


class Operation(torch.autograd.Function):
    """An autograd function that looks up its arguments' names once.

    PyTorch asks for them at each call, which takes as long as a small kernel.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]

    if TYPE_CHECKING:  # PyTorch's has no types

        @classmethod
        def apply(cls, *operands: object) -> Tensor:
            """The result of the operation on these operands."""


class Constant(Operation):
    """An operation whose results have no gradient."""

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor | tuple[Tensor, ...]) -> None:
        """Mark all results."""
        ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


def over_clients(clients: int, dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """The tensors with clients first, [P, …]; `dims` has each tensor's axis of clients, or None if all share it."""
    stacked = []
    for tensor, dim in zip(tensors, dims, strict=False):
        stacked.append(tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0))
    return stacked


def merge_clients(clients: int, dims: tuple[int | None, ...], axis: int, *tensors: Tensor) -> list[Tensor]:
    """The tensors of all clients as one client's, with clients next to each other along `axis`; dims: see
    `over_clients`."""
    merged = []
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None:
            stacked = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], clients, *tensor.shape[axis:])
        else:
            stacked = tensor.movedim(dim, axis)
        merged.append(stacked.flatten(axis, axis + 1))
    return merged


def flat_index(index: Tensor, count: int) -> Tensor:
    """Row numbers int64 [P, k, …] as numbers in all clients' matrices of `count` rows below each other: [P k, …]."""
    offset = torch.arange(len(index), device=index.device) * count
    return (index + offset.view(-1, *[1] * (index.dim() - 1))).flatten(0, 1)


def vectorize(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function of one client's tensors, which is one computation for all clients of a batch.

    `function` accepts any leading axes and returns a tensor without a gradient. It is one call in a recording.
    """
    whole = kernel(function)

    class BatchFunction(Constant):
        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            return whole(*tensors)

        @staticmethod
        def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
            return BatchFunction.apply(*over_clients(info.batch_size, in_dims, *tensors)), 0

    return BatchFunction.apply
