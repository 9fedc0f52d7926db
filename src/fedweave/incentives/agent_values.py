"""Agents' values and the models that they receive for them (FairGraphFL, sections 3.1 to 3.3). All numbers are
float64."""

import torch
from torch import Tensor

from fedweave.errors import UserError
from fedweave.incentives.shapley import Value

NONE = torch.iinfo(torch.int64).max  # no motif, in `distinct`
REMAINDER = 2.0**-48  # relative size of rounding errors in float64 sums
CANCELED = 1e-13  # share of the squared sum of lengths; below it, only rounding errors of canceling updates remain


def alignment(updates: Tensor, whole: Tensor) -> Tensor:
    """φ_i = cos(u_i, u_N) (Eq. 9), float64 [N], for updates [N, D] and the global update [D]; 0 if either is zero."""
    updates, whole = updates.double(), whole.double()
    lengths = updates.norm(dim=1) * whole.norm()
    return torch.where(lengths > 0, updates @ whole / torch.where(lengths > 0, lengths, 1.0), 0.0)


def diversity(motif: Tensor) -> Tensor:
    """d_i = k_i / K, float64 [N], the share of all agents' motifs that agent i has; 0 if no agent has a motif.

    motif: int64 [N, …], a list for each agent with −1 at padding.
    """
    return (motif >= 0).sum(1).double() / (distinct(motif) != NONE).sum().clamp(min=1)


def distinct(motif: Tensor) -> Tensor:
    """The distinct motifs of all lists, int64 [N · …] rising, padded with `NONE` to the number of all entries. `unique`
    would wait for a device to count them."""
    ordered = motif.flatten().sort().values
    first = torch.cat([ordered[:1] >= 0, (ordered[1:] != ordered[:-1]) & (ordered[1:] >= 0)])
    return torch.where(first, ordered, NONE).sort().values


def quota(r: Tensor, size: int, beta: float = 1.0) -> Tensor:
    """⌊D tanh(β r_i) / max_j tanh(β r_j)⌋ (Eq. 4), int64 [N]: number of the D = `size` entries of the global update
    that each agent receives; 0 where r_i ≤ 0."""
    if not beta > 0:
        raise UserError(f"beta is {beta}; it must be above 0.")
    reach = torch.tanh(beta * r.double().relu())
    max_reach = reach.max()
    share = torch.where(max_reach > 0, reach / max_reach, 0.0)  # first the share: the best agent's is exactly 1
    return (size * share).floor().long()


def reward(whole: Tensor, quota: Tensor) -> Tensor:
    """What each agent downloads, [N, D]: the `quota` [N] entries of `whole` [D] of largest magnitude, 0 elsewhere.

    Of equal magnitudes, the first ones count. Entries below `REMAINDER` of the largest count as 0: they remain when
    updates cancel, and depend on the order in which clients were added up.
    """
    whole = torch.where(whole.abs() < REMAINDER * whole.abs().max(), 0.0, whole)
    order = torch.argsort(whole.abs(), descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return torch.where(rank < quota[:, None], whole, 0.0)


def cosine_value(updates: Tensor, r: Tensor) -> Value:
    """The value function ν(S) = cos(u_S, u_N) (Eq. 8) of updates [N, D] and values r [N], for coalitions [c, N].

    u_S is the ReLU(r)-weighted mean over S. ν is 0 where u_S or u_N is zero: S has no agent with a positive value, or
    updates cancel up to rounding. It uses the updates' inner products: N² numbers for any D.
    """
    updates = updates.double()
    gram = updates @ updates.T
    weights = r.to(gram).relu()
    lengths = gram.diagonal().sqrt()
    with_all = gram @ weights  # [N]
    square_all = weights @ with_all

    def value(masks: Tensor) -> Tensor:
        mixed = masks.to(gram) * weights  # [c, N]
        square = ((mixed @ gram) * mixed).sum(1)
        defined = (square > CANCELED * (mixed @ lengths) ** 2) & (square_all > CANCELED * (weights @ lengths) ** 2)
        return torch.where(defined, mixed @ with_all / torch.where(defined, square * square_all, 1.0).sqrt(), 0.0)

    return value
