"""What batching rules (`torch.autograd.Function.vmap`) share: P clients' tensors as one."""

import torch
from torch import Tensor


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
