"""How far apart the predictions of two models are on a client's nodes, and how balanced its edges are between two
groups of nodes (F²GNN, definition 1, sections V-A and V-B). Leading axes: clients.
"""

import math
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


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence in bits, in [0, 1], of distributions p and q over the last axis [..., k]."""
    return _divergence(torch.stack([p, q], -2))


def _divergence(both: Tensor) -> Tensor:
    """The same of two distributions [..., 2, k]."""
    entropies = torch.special.xlogy(both, both) - torch.special.xlogy(both, both.mean(-2, keepdim=True))
    result: Tensor = entropies.sum((-2, -1)).clamp(min=0) / (2 * math.log(2))
    return result


def class_divergence(p: Tensor, q: Tensor, nodes: Tensor) -> Tensor:
    """[…] in [0, 1]: `jensen_shannon` of the mean class probabilities over `nodes` bool […, n], where p and q
    […, n, c] are two models'. The reading of F²GNN's text; 0 without nodes. Works under `torch.func.vmap`."""
    return jensen_shannon(_mean_over(p, nodes), _mean_over(q, nodes))


def node_divergence(p: Tensor, q: Tensor, nodes: Tensor) -> Tensor:
    """[…] in [0, sqrt(log 2)]: the Jensen-Shannon distance, the square root of the divergence in nats, of two
    distributions over `nodes` bool […, n]; p and q […, n, 2] are two models' class probabilities.

    Each distribution is uniform over the nodes that the model predicts 1, or over all if there are none. That is what
    F²GNN's code computes, which takes the softmax over nodes of hard predictions at temperature .001 and SciPy's
    distance. 0 without nodes. Works under `torch.func.vmap`.
    """
    both = _over_positives(torch.stack([p, q], -3), nodes[..., None, :])
    return (_divergence(both) * math.log(2)).sqrt()


def _mean_over(p: Tensor, nodes: Tensor) -> Tensor:
    """[…, c]: the mean of p […, n, c] over `nodes`; zeros if there are none."""
    return (p * nodes[..., None]).sum(-2) / nodes.sum(-1, keepdim=True).clamp(min=1)


def _over_positives(p: Tensor, nodes: Tensor) -> Tensor:
    """[…, n] distribution, uniform over the nodes of class 1; over all nodes if there is none."""
    positive = nodes & (p[..., 1] > p[..., 0])
    chosen = torch.where(positive.any(-1, keepdim=True), positive, nodes).to(p.dtype)
    return chosen / chosen.sum(-1, keepdim=True).clamp(min=1)
