"""What batching rules (`torch.autograd.Function.vmap`) share: P clients' tensors as one."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedweave.ops.tape import kernel

Context: TypeAlias = Any  # PyTorch's of one operation; what it remembers between the passes is set as attributes


Dims: TypeAlias = tuple[Any, ...]  # of each operand: where it has clients, None if it is the same for all
Operands: TypeAlias = tuple[Any, ...]


class Batch(Protocol):
    """What a batching rule is told: of how many clients."""

    @property
    def batch_size(self) -> int:
        """How many."""
        ...


class Operation(torch.autograd.Function):
    """An autograd function whose arguments' names are looked up once: PyTorch asks for them at each call, which takes
    as long as a small kernel."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]

    if TYPE_CHECKING:  # PyTorch's has no types

        @classmethod
        def apply(cls, *operands: object) -> Tensor:
            """Its result on these operands."""
            ...


def over_clients(clients: int, dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """The tensors with clients first, [P, …]; `dims` says where each has them, None being the same for all."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]


def shifted(index: Tensor, count: int) -> Tensor:
    """Row numbers int64 [P, k, …] as numbers in all clients' matrices of `count` rows below each other: [P k, …]."""
    offset = torch.arange(len(index), device=index.device) * count
    return (index + offset.view(-1, *[1] * (index.dim() - 1))).flatten(0, 1)


def together(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function from tensors with any leading axes to a tensor, not to be differentiated, as a function of one
    client's: one computation for all clients of a batch, and one call in a recording."""
    whole = kernel(function)

    class Together(Operation):
        @staticmethod
        def forward(*given: Tensor) -> Tensor:
            return whole(*given)

        @staticmethod
        def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
            ctx.mark_non_differentiable(output)

        @staticmethod
        def vmap(info: Batch, in_dims: Dims, *given: Tensor) -> tuple[Tensor, int]:
            return Together.apply(*over_clients(info.batch_size, in_dims, *given)), 0

    return Together.apply
