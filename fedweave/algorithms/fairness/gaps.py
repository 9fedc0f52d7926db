"""Gaps between groups that can be differentiated."""

from typing import NamedTuple

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

    def gap(among: Tensor) -> Tensor:
        groups = [among & (sens == s) for s in (0, 1)]
        sizes = [group.sum().to(p.dtype) for group in groups]
        means = [(p * group).sum() / size.clamp(min=1) for group, size in zip(groups, sizes, strict=True)]
        return (means[1] - means[0]) * (sizes[0] * sizes[1] > 0)

    return SoftGaps(gap(nodes), gap(nodes & (y == 1)))
