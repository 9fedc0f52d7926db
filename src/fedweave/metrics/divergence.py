"""How far apart the predictions of two models are on a client's nodes (F²GNN, section V-A). Leading axes: clients."""

import math

import torch
from torch import Tensor


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
