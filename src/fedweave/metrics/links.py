"""How high links are ranked among pairs that are not links, as additive (sum, count) pairs of queries."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedweave.core.graph import LISTS, QUERY, QUERY_COUNT, SOURCE, TEST, VAL, Graph
from fedweave.core.tree import Tree
from fedweave.metrics.rank_sums import on_grid
from fedweave.metrics.selection import HITS

LIST_LENGTH = 20  # items of a user's list that count
ROUNDING = 1e-3  # limit of the distance between a sum of users' rounded shares and a whole number
OF_RANK: dict[str, Callable[[Tensor], Tensor]] = {  # functions of the ranks of queries, from 1
    "mrr": lambda rank: 1 / rank,
    **{f"hits_at_{k}": lambda rank, k=k: (rank <= k).to(rank.dtype) for k in HITS},  # type: ignore[misc]
}


def ranks_of(score: Tensor, ranks: Tensor, behind: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The rank of each link in its queries, 1 + #{s⁻ > s⁺} + ½ #{s⁻ = s⁺}, float64 [e, 2], and bool [e, 2], which of
    these queries exist. score [e]; ranks: `Graph.ranks`, int64 [2, e]; behind: the ranks minus 1, if they are known
    (`core.candidates`). Works under `torch.func.vmap`."""
    query = ranks[QUERY]
    exists = torch.arange(2, device=score.device) < ranks[QUERY_COUNT][:, None]
    if behind is not None:
        return 1 + behind, exists
    used, index = query >= 0, query.clamp(min=0)
    link = score.gather(0, index // 2)
    above = (score > link).to(torch.float64) + 0.5 * (score == link).to(torch.float64)
    total = torch.zeros(2 * len(score), dtype=torch.float64, device=score.device)
    return 1 + total.scatter_add(0, index, torch.where(used, above, 0.0)).view(-1, 2), exists


def per_link(score: Tensor, ranks: Tensor, behind: Tensor | None = None) -> Tree:
    """{"mrr", "hits_at_1", …: float64 [e, 2], the sum over the queries of each link, and their number}; arguments as
    for `ranks_of`. Works under `torch.func.vmap`."""
    rank, exists = ranks_of(score, ranks, behind)
    number = exists.sum(1).to(torch.float64)
    pairs = {}
    for name, of_rank in OF_RANK.items():
        value = torch.where(exists, on_grid(of_rank(rank)), 0.0).sum(1)
        pairs[name] = torch.stack([value, number], 1)
    return pairs


def per_user(score: Tensor, graph: Graph, behind: Tensor | None = None) -> Tree:
    """{"recall_at_20", "ndcg_at_20": float64 [e, 2], the share of each link in the sum over users, and in their number}
    where links lead to items, as `torch_geometric.metrics.LinkPredRecall` and `LinkPredNDCG` with k = 20.

    A user's list ranks the items that the user has no training link to; the user's items of the split should be in it.
    Links with equal scores come in their order. score [e]. Works under `torch.func.vmap`.
    """
    return per_user_of(score, graph.pairs, graph.y, graph.masks, graph.ranks, graph.nodes, behind)  # type: ignore[arg-type]


def per_user_of(
    score: Tensor, pairs: Tensor, y: Tensor, masks: Tensor, ranks: Tensor, nodes: int, behind: Tensor | None
) -> Tree:
    """`per_user` from the parts of a graph."""
    user, link = pairs[SOURCE], (y == 1) & masks[VAL:].any(0)
    rank, _ = ranks_of(score, ranks, behind)
    group = torch.where(link, user, nodes)
    first = torch.argsort(-score, stable=True)
    order = first.gather(0, torch.argsort(group.gather(0, first), stable=True))
    ordered = group.gather(0, order)
    place = torch.arange(len(score), device=score.device)
    new = torch.cat([torch.ones_like(link[:1]), ordered[1:] != ordered[:-1]])
    before = place - torch.where(new, place, 0).cummax(0).values  # links of the same user with higher scores
    position = rank[:, 0] + torch.zeros_like(rank[:, 0]).scatter(0, order, before.to(rank.dtype))
    each = torch.zeros(len(score), dtype=torch.float64, device=score.device)
    for split in (VAL, TEST):
        member = (link & masks[split]).to(torch.float64)
        count = torch.zeros(nodes, dtype=torch.float64, device=score.device).scatter_add(0, user, member)
        each = each + member * count.gather(0, user)
    inside = (position <= LIST_LENGTH) & (each > 0)
    gain = 1 / torch.log2(torch.arange(2, LIST_LENGTH + 2, dtype=torch.float64, device=score.device))
    best = gain.cumsum(0).gather(0, (each.long() - 1).clamp(0, LIST_LENGTH - 1))
    share = torch.where(each > 0, 1 / each.clamp(min=1), 0.0)
    recall = on_grid(torch.where(inside, share, 0.0))
    ndcg = on_grid(torch.where(inside, 1 / torch.log2(1 + position) / best, 0.0))
    users = on_grid(share)
    return {"recall_at_20": torch.stack([recall, users], 1), "ndcg_at_20": torch.stack([ndcg, users], 1)}


def of_graph(logits: Tensor, graph: Graph, behind: Tensor | None) -> Tree:
    """All rank metrics of each link of a graph: {name: float64 [e, 2]}; {} where the data has no ranks. logits [e, 2];
    behind: from `core.model.behind`."""
    if graph.ranks is None:
        return {}
    score = logits[:, 1]
    ranked = per_link(score, graph.ranks, behind)
    return ranked | (per_user(score, graph, behind) if LISTS in graph.extra else {})


def sum_links(each: Tree, masks: Tensor) -> Tree:
    """The sums of `per_link` over each set of links, bool [S, e]: float64 [S, 2]. If all shares of a user are in the
    set, they count as one user, to the bit."""
    sums = {}
    for name, pair in each.items():
        total, count = (masks.to(torch.float64) @ pair).unbind(1)
        whole = count.round()
        sums[name] = torch.stack([total, torch.where((count - whole).abs() < ROUNDING, whole, count)], 1)
    return sums
