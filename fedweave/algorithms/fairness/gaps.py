"""Gaps between groups that can be differentiated."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedweave.ops.batched import Operation, over_clients
from fedweave.ops.tape import kernel


class SoftGaps(NamedTuple):
    """Signed differences of the groups' mean probability of class 1, group 1 minus group 0, in [-1, 1].

    sp: over all nodes (statistical parity).
    eo: over the nodes of label 1 (equal opportunity).
    """

    sp: Tensor
    eo: Tensor


class Members(NamedTuple):
    """Who is in which group, of all nodes and of those of label 1.

    nodes: float […, 2, 2, n], [set, group, node] is 1 where the node is in both; 0 in a set where a group is empty.
    sizes: float […, 2, 2], how many are in both, at least 1.
    """

    nodes: Tensor
    sizes: Tensor


def members(y: Tensor, sens: Tensor, nodes: Tensor, dtype: torch.dtype) -> Members:
    """Of labels y and groups sens int64 […, n], over `nodes` bool […, n]."""
    sets, groups = torch.stack([nodes, nodes & (y == 1)], -2), torch.stack([sens == 0, sens == 1], -2)
    inside = (sets[..., None, :] & groups[..., None, :, :]).to(dtype)
    sizes = inside.sum(-1)
    return Members(inside * (sizes.prod(-1) > 0)[..., None, None], sizes.clamp(min=1))


def soft_gaps(p: Tensor, among: Members) -> SoftGaps:
    """F²GNN's gaps (section V-A): scalars from probabilities p float [n] of class 1. A gap with an empty group is 0 and
    has no gradient. Works under `torch.func.vmap`."""
    return SoftGaps(*_Gaps.apply(p, *among).unbind())


def total_gap(p: Tensor, among: Members) -> Tensor:
    """|ΔSP| + |ΔEO| of `soft_gaps`, scalar."""
    return _Gaps.apply(p, *among).abs().sum()


@kernel
def _gaps(p: Tensor, nodes: Tensor, sizes: Tensor) -> Tensor:
    """[…, 2] of p […, n]."""
    means = (nodes * p[..., None, None, :]).sum(-1) / sizes
    return means[..., 1] - means[..., 0]


@kernel
def _gradient(grad: Tensor, nodes: Tensor, sizes: Tensor) -> Tensor:
    """Of p: […, n], where that of the gaps is grad […, 2]."""
    return (nodes * (torch.stack([-grad, grad], -1) / sizes)[..., None]).sum((-3, -2))


class _Gaps(Operation):
    """Both gaps […, 2], in few kernels for all clients of a batch; linear in p."""

    @staticmethod
    def forward(p: Tensor, nodes: Tensor, sizes: Tensor) -> Tensor:
        return _gaps(p, nodes, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _gradient(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Tensor) -> tuple[Tensor, int]:
        return _Gaps.apply(*over_clients(info.batch_size, in_dims, *given)), 0
