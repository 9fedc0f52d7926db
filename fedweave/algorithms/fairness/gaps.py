"""Gaps between groups that can be differentiated."""

from typing import NamedTuple

import torch
from torch import Tensor


class SoftGaps(NamedTuple):
    """Signed differences of the groups' mean probability of class 1, group 1 minus group 0, in [-1, 1].

    sp: over all nodes (statistical parity).
    eo: over the nodes of label 1 (equal opportunity).
    """

    sp: Tensor
    eo: Tensor


def soft_gaps(p: Tensor, y: Tensor, sens: Tensor, nodes: Tensor) -> SoftGaps:
    """F²GNN's gaps (section V-A): scalars from probabilities p float [n] of class 1, labels y and groups sens int64 [n]
    over `nodes` bool [n]. A gap with an empty group is 0 and has no gradient. Works under `torch.func.vmap`."""

    sets = torch.stack([nodes, nodes & (y == 1)])
    member = (sets[:, None] & (sens == torch.arange(2, device=sens.device)[:, None])).to(p.dtype)  # [set, group, n]
    sizes = member.sum(-1)
    means = (member * p).sum(-1) / sizes.clamp(min=1)
    sp, eo = ((means[:, 1] - means[:, 0]) * (sizes[:, 0] * sizes[:, 1] > 0)).unbind()
    return SoftGaps(sp, eo)
