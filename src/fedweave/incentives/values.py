"""What an agent is worth and what model it gets for it (FairGraphFL, sections 3.1 to 3.3). Everything in float64."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.errors import UserError


class Updated(NamedTuple):
    """values: float64 [N], the agents' new values r^t. changed: False where they could not be normalised and stay."""

    values: Tensor
    changed: bool


def alignment(updates: Tensor, whole: Tensor) -> Tensor:
    """φ_i = cos(u_i, u_N) (Eq. 9), float64 [N], of updates [N, D] and the global one [D]; 0 where either is zero."""
    updates, whole = updates.double(), whole.double()
    lengths = updates.norm(dim=1) * whole.norm()
    return torch.where(lengths > 0, updates @ whole / torch.where(lengths > 0, lengths, 1.0), 0.0)


def diversity(motif: Tensor) -> Tensor:
    """d_i = k_i / K, float64 [N], the share of all agents' motifs that agent i has, of lists `motif` int64 [N, …] with
    −1 at padding; 0 where nobody has any."""
    return (motif >= 0).sum(1).double() / max(1, len(torch.unique(motif[motif >= 0])))


def updated(r: Tensor, phi: Tensor, diversity: Tensor, alpha1: float = 0.05, alpha2: float = 1.0) -> Updated:
    """r_i ← r_i + α1 (φ_i + α2 d_i), divided by their sum (Eq. 10); all [N].

    Dividing by a sum of zero or less would turn good agents into bad ones: then the round changes nothing and says so.
    """
    new = r.double() + alpha1 * (phi.double() + alpha2 * diversity.double())
    total = new.sum()
    return Updated(new / total, True) if total > 0 else Updated(r.double(), False)


def quota(r: Tensor, size: int, beta: float = 1.0) -> Tensor:
    """⌊D tanh(β r_i) / max_j tanh(β r_j)⌋ (Eq. 4), int64 [N]: how many of the D = `size` entries of the global update
    each agent gets; 0 where r_i ≤ 0.

    Raises:
        UserError: beta is not positive.
    """
    if not beta > 0:
        raise UserError(f"beta is {beta}; it must be above 0.")
    reach = torch.tanh(beta * r.double().relu())
    most = reach.max()
    share = reach / most if most > 0 else torch.zeros_like(reach)  # first the share: the best agent's is exactly 1
    return (size * share).floor().long()


def reward(whole: Tensor, quota: Tensor) -> Tensor:
    """What each agent downloads, [N, D]: the `quota` [N] entries of `whole` [D] of largest magnitude, 0 elsewhere.

    Of entries of equal magnitude, the first ones.
    """
    order = torch.argsort(whole.abs(), descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return torch.where(rank < quota[:, None], whole, 0.0)
