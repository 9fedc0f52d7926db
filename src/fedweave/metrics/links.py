"""How high links are ranked among pairs that are none, as additive (sum, count) pairs of queries."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedweave.core.graph import ASKED, QUERY
from fedweave.core.tree import Tree
from fedweave.metrics.classification import on_grid
from fedweave.metrics.selection import HITS

OF_RANK: dict[str, Callable[[Tensor], Tensor]] = {  # of the ranks of queries, from 1
    "mrr": lambda rank: 1 / rank,
    **{f"hits_at_{most}": lambda rank, most=most: (rank <= most).to(rank.dtype) for most in HITS},  # type: ignore[misc]
}


def ranks_of(score: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """The rank of each link in its queries, 1 + #{s⁻ > s⁺} + ½ #{s⁻ = s⁺}, float64 [e, 2], and bool [e, 2], which of
    these there are. score [e]; ranks: `Graph.ranks`, int64 [2, e]. Works under `torch.func.vmap`."""
    query = ranks[QUERY]
    there, of = query >= 0, query.clamp(min=0)
    link = score.gather(0, of // 2)
    above = (score > link).to(torch.float64) + 0.5 * (score == link).to(torch.float64)
    behind = torch.zeros(2 * len(score), dtype=torch.float64, device=score.device)
    behind = behind.scatter_add(0, of, torch.where(there, above, 0.0))
    return 1 + behind.view(-1, 2), torch.arange(2, device=score.device) < ranks[ASKED][:, None]


def per_link(score: Tensor, ranks: Tensor) -> Tree:
    """{"mrr", "hits_at_1", …: float64 [e, 2], the sum over the queries of each link, and their number}.

    score [e]; ranks: `Graph.ranks`. Works under `torch.func.vmap`.
    """
    rank, asked = ranks_of(score, ranks)
    number = asked.sum(1).to(torch.float64)
    values = {name: torch.where(asked, on_grid(of(rank)), 0.0).sum(1) for name, of in OF_RANK.items()}
    return {name: torch.stack([value, number], 1) for name, value in values.items()}


def added(each: Tree, masks: Tensor) -> Tree:
    """`per_link` added up over each set of links, bool [S, e]: float64 [S, 2]."""
    chosen = masks.to(torch.float64)
    return {name: chosen @ pair for name, pair in each.items()}
