"""Functions for group fairness: differentiable soft gaps, weights of clients by fairness, the divergence of two models'
predictions on a client's nodes, and the balance of its edges between two groups of nodes (F²GNN, definition 1, sections
V-A and V-B; there, leading axes are clients).
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, over_clients, vectorize
from fedweave.ops.tape import kernel

Prefer = Literal["fair", "as_printed", "script"]


def f2gnn_weights(balances: Tensor, gaps: Tensor, lam: float, tau: float, prefer: Prefer = "fair") -> Tensor:
    """γ [P] of F²GNN (eq. 4), float64, sums to 1: softmax((λ γ_E + γ_F) / τ) with γ_E = softmax(B).

    balances: float [P] group balance scores B. gaps: float [P] |ΔSP| + |ΔEO| of the clients' models. lam: λ.
    tau:      temperature τ > 0; at 4 all weights are nearly equal.
    prefer:   γ_F = exp(softmax(-gaps)) with "fair"; exp(softmax(gaps)) "as_printed", which favors unfair clients;
              softmax(1 / (gaps + 1e-5)) with "script".
    """
    balances, gaps = balances.double(), gaps.double()
    if prefer == "script":
        fairness = torch.softmax(1 / (gaps + 1e-5), 0)
    else:
        fairness = torch.softmax(gaps if prefer == "as_printed" else -gaps, 0).exp()
    return torch.softmax((lam * torch.softmax(balances, 0) + fairness) / tau, 0)


def fairfed_weights(omega: Tensor, deviation: Tensor, beta: float) -> Tensor:
    """ω [P] of FairFed after a round (Ezzeldin et al. 2023, eq. 6), float64, sums to 1.

    ω_k <- ω_k - β (Δ_k - mean Δ), negative values set to 0, then normalized. The sum of the ω is positive: before
    negative values are set to 0, it equals the sum of the last round.

    omega: float [P] of the last round. deviation: float [P] Δ, see `fairfed_deviation`. beta: β >= 0.
    """
    after = (omega.double() - beta * (deviation.double() - deviation.double().mean())).clamp(min=0)
    return after / after.sum()


def fairfed_deviation(gaps: Tensor, gap: Tensor, accuracies: Tensor, accuracy: Tensor) -> Tensor:
    """Δ [P] of FairFed (eq. 6), float64: |F_k - F| between the clients' signed gaps F [P] and the gap over all, or
    |Acc_k - Acc| where a client's gap is undefined (NaN), all for the global model that the clients received."""
    unfair = (gaps.double() - gap).abs()
    return torch.where(unfair.isnan(), (accuracies.double() - accuracy).abs(), unfair)


class SoftGaps(NamedTuple):
    """Signed differences of the groups' mean probability of class 1, group 1 minus group 0, in [-1, 1].

    sp: over all nodes (statistical parity).
    eo: over the nodes of label 1 (equal opportunity).
    """

    sp: Tensor
    eo: Tensor


def shares(y: Tensor, sensitive: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of every node in ΔSP and in ΔEO, float […, 2, n], for labels y and groups int64 […, n] over
    `nodes` bool […, n]: 1 / its group's size in group 1, the negative of that in group 0; 0 for all where a group is
    empty."""
    among = torch.stack([nodes, nodes & (y == 1)], -2)
    ones, zeros = ((among & (sensitive == group)[..., None, :]).to(dtype) for group in (1, 0))
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
    """The gradient […, n] with respect to p, from the gradient `grad` […, 2] with respect to the gaps."""
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
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        return _Gaps.apply(*over_clients(info.batch_size, in_dims, *tensors)), 0


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
    if graph.sensitive is None:
        raise ValueError("the graph has no sensitive attribute; its edges have no groups")
    adjacency = graph.whole_edges.operator("sum")
    member = (graph.sensitive[:, None] == torch.arange(2, device=graph.sensitive.device)).to(adjacency.dtype)
    return _count_edges(adjacency @ member, member)


@vectorize
def _count_edges(near: Tensor, member: Tensor) -> Tensor:
    """[…, 2] from the group of every node and its neighbors in each group, […, n, 2]: exact counts."""
    joined = member.mT.to(torch.float64) @ near.to(torch.float64)  # [2, 2], each edge in both directions
    return torch.stack([joined.diagonal(dim1=-2, dim2=-1).sum(-1), joined.sum((-2, -1))], -1) / 2


def balance(edges: Tensor) -> Balance:
    """The score from `group_edges`, summed or not, any leading axes [..., 2].

    H are shares of the edges. B = 1 means equal numbers of edges within and between groups. That is independence of
    edges and groups only for groups of equal size: with random mixing, unequal groups have H_intra above one half (a
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
    """`jensen_shannon` of two stacked distributions [..., 2, k]."""
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
