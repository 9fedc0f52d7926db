"""Gaps between groups that can be differentiated."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.tape import kernel


class SoftGaps(NamedTuple):
    """Signed differences of the groups' mean probability of class 1, group 1 minus group 0, in [-1, 1].

    sp: over all nodes (statistical parity).
    eo: over the nodes of label 1 (equal opportunity).
    """

    sp: Tensor
    eo: Tensor


def shares(y: Tensor, sens: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of every node in ΔSP and in ΔEO, float […, 2, n], for labels y and groups sens int64 […, n] over
    `nodes` bool […, n]: 1 / its group's size in group 1, the negative of that in group 0; 0 for all where a group is
    empty."""
    among = torch.stack([nodes, nodes & (y == 1)], -2)
    ones, zeros = ((among & (sens == group)[..., None, :]).to(dtype) for group in (1, 0))
    sizes = torch.stack([ones.sum(-1), zeros.sum(-1)])[..., None]
    both = (sizes > 0).all(0)
    return (ones / sizes[0].clamp(min=1) - zeros / sizes[1].clamp(min=1)) * both


def soft_gaps(p: Tensor, shares: Tensor) -> SoftGaps:
    """F²GNN's gaps (section V-A): scalars from probabilities p float [n] of class 1 and `shares` [2, n]. A gap with an
    empty group is 0 and has no gradient. Works under `torch.func.vmap`."""
    return SoftGaps(*_Gaps.apply(p, shares).unbind())


def total_gap(p: Tensor, shares: Tensor) -> Tensor:
    """|ΔSP| + |ΔEO| of `soft_gaps`, scalar."""
    return _Gaps.apply(p, shares).abs().sum()


@kernel
def _gaps(p: Tensor, shares: Tensor) -> Tensor:
    """[…, 2] of p […, n]."""
    return (shares * p[..., None, :]).sum(-1)


@kernel
def _gradient(grad: Tensor, shares: Tensor) -> Tensor:
    """Of p: […, n], where that of the gaps is grad […, 2]."""
    return (shares * grad[..., None]).sum(-2)


class _Gaps(Operation):
    """Both gaps […, 2], in few kernels for all clients of a batch; linear in p."""

    @staticmethod
    def forward(p: Tensor, shares: Tensor) -> Tensor:
        return _gaps(p, shares)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        return _gradient(grad, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *given: Tensor) -> tuple[Tensor, int]:
        return _Gaps.apply(*over_clients(info.batch_size, in_dims, *given)), 0
