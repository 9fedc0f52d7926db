"""How balanced a graph's edges are between two groups of nodes (F²GNN, definition 1 and section V-B)."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.ops.batched import together


class Balance(NamedTuple):
    """The group balance score of one graph.

    score:   float64 scalar, B = 1 - |H_intra - H_inter| in [0, 1]; 0 where it is not defined.
    defined: bool scalar, whether any edge joins nodes of known groups.
    """

    score: Tensor
    defined: Tensor


def group_edges(graph: Graph) -> Tensor:
    """float64 [2]: undirected edges within a group, and all whose two ends are of known groups; adds up over clients
    that share no edge. Works under `torch.func.vmap`.

    Raises:
        ValueError: the graph has no sensitive attribute.
    """
    if graph.sens is None:
        raise ValueError("the graph has no sensitive attribute; its edges have no groups")
    adjacency = graph.own_edges.operator("sum")
    member = (graph.sens[:, None] == torch.arange(2, device=graph.sens.device)).to(adjacency.dtype)
    return _counted(adjacency @ member, member)


@together
def _counted(near: Tensor, member: Tensor) -> Tensor:
    """[…, 2] from the group of every node and its neighbours in each group, […, n, 2]: exact counts."""
    joined = member.mT.to(torch.float64) @ near.to(torch.float64)  # [2, 2], each edge in both directions
    return torch.stack([joined.diagonal(dim1=-2, dim2=-1).sum(-1), joined.sum((-2, -1))], -1) / 2


def balance(edges: Tensor) -> Balance:
    """The score from `group_edges`, summed or not, any leading axes [..., 2].

    With shares H of the edges. B = 1 means as many edges within groups as between them, which is independence of edges
    and groups only where the groups are equally large: mixing at random, unequal groups have H_intra above one half (a
    tenth against nine tenths: .82, so B = .36).
    """
    within, every = edges[..., 0], edges[..., 1]
    defined = every > 0
    intra = within / every.clamp(min=1)
    return Balance(torch.where(defined, 1 - (2 * intra - 1).abs(), 0.0), defined)
