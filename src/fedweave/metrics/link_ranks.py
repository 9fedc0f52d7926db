"""How high links are ranked among pairs that are not links, as additive (sum, count) pairs of queries or users."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedweave.core.graph import LISTS, QUERY, QUERY_COUNT, SOURCE, TEST, VAL, Graph
from fedweave.core.tree import Tree
from fedweave.metrics.rank_sums import on_grid
from fedweave.metrics.selection import HITS

LIST_LENGTH = 20  # items of a user's list that count
ROUNDING = 1e-3  # largest distance of a sum of users' rounded shares from the whole number that it stands for
OF_RANK: dict[str, Callable[[Tensor], Tensor]] = {  # functions of the ranks of queries, from 1
    "mrr": lambda rank: 1 / rank,
    **{f"hits_at_{k}": lambda rank, k=k: (rank <= k).to(rank.dtype) for k in HITS},  # type: ignore[misc]
}


def ranks_of(score: Tensor, ranks: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The rank of each link in its two queries, 1 + #{s⁻ > s⁺} + ½ #{s⁻ = s⁺}, float64 [e, 2], and bool [e, 2], which
    of these queries exist. score [e]; ranks: `Graph.ranks`, int64 [2, e]; above: the ranks minus 1, if they are known
    (`core.model.count_above`). Works under `torch.func.vmap`."""
    exists = torch.arange(2, device=score.device) < ranks[QUERY_COUNT][:, None]  # [e, 2]
    if above is not None:
        return 1 + above, exists
    query = ranks[QUERY]  # [e], 2 times the row of the link, plus 1 in its second query; -1 of pairs in none
    is_candidate, index = query >= 0, query.clamp(min=0)
    link_score = score.gather(0, index // 2)
    is_above = (score > link_score).to(torch.float64) + 0.5 * (score == link_score).to(torch.float64)
    total = torch.zeros(2 * len(score), dtype=torch.float64, device=score.device)
    return 1 + total.scatter_add(0, index, torch.where(is_candidate, is_above, 0.0)).view(-1, 2), exists


def per_link(score: Tensor, ranks: Tensor, above: Tensor | None = None, rows: Tensor | None = None) -> Tree:
    """{"mrr", "hits_at_1", …: float64 [e, 2], the sum over the queries of each link, and their number}; arguments as
    for `ranks_of`. rows: int64 [m], which links are in the result, [m, 2]. Works under `torch.func.vmap`."""
    rank, exists = ranks_of(score, ranks, above)
    if rows is not None:
        both = rows[:, None].expand(-1, 2)
        rank, exists = rank.gather(0, both), exists.gather(0, both)
    number = exists.sum(1).to(torch.float64)
    pairs = {}
    for name, of_rank in OF_RANK.items():
        value = torch.where(exists, on_grid(of_rank(rank)), 0.0).sum(1)
        pairs[name] = torch.stack([value, number], 1)
    return pairs


def per_user(
    score: Tensor, pairs: Tensor, y: Tensor, masks: Tensor, ranks: Tensor, nodes: int, above: Tensor | None
) -> Tree:
    """Recall and NDCG of users' lists of 20 items, where links lead from users to items, as
    `torch_geometric.metrics.LinkPredRecall` and `LinkPredNDCG`: {"recall_at_20", "ndcg_at_20": float64 [e, 2]}, what
    each link adds to the sum over users and to their number.

    A user's list ranks the items that the user has no training link to; the user's items of the split should be in it.
    Links with equal scores come in their order. score [e]; pairs, y, masks, ranks: of `Graph`; above: as for
    `ranks_of`. Works under `torch.func.vmap`.
    """
    user = pairs[SOURCE]
    is_evaluated = (y == 1) & masks[VAL:].any(0) & (ranks[QUERY_COUNT] > 0)  # [e]: links of VAL and TEST with ranks
    # 1. A link's position in its user's list: its rank among the items that are not links, after the user's evaluated
    # links with higher scores.
    rank, _ = ranks_of(score, ranks, above)
    group = torch.where(is_evaluated, user, nodes)
    by_score = torch.argsort(-score, stable=True)
    order = by_score.gather(0, torch.argsort(group.gather(0, by_score), stable=True))  # by user, then by score
    ordered = group.gather(0, order)
    index = torch.arange(len(score), device=score.device)
    begins = torch.cat([torch.ones_like(is_evaluated[:1]), ordered[1:] != ordered[:-1]])  # at the first of a user
    earlier = index - torch.where(begins, index, 0).cummax(0).values  # number of the user's links with higher scores
    position = rank[:, 0] + torch.zeros_like(rank[:, 0]).scatter(0, order, earlier.to(rank.dtype))
    # 2. How many items the link's user has in the link's split; 0 of pairs that are not evaluated.
    items = torch.zeros(len(score), dtype=torch.float64, device=score.device)
    for split in (VAL, TEST):
        in_split = (is_evaluated & masks[split]).to(torch.float64)
        count = torch.zeros(nodes, dtype=torch.float64, device=score.device).scatter_add(0, user, in_split)
        items = items + in_split * count.gather(0, user)
    # 3. The shares of a user's links add up to one user.
    is_hit = (position <= LIST_LENGTH) & (items > 0)
    discount = 1 / torch.log2(torch.arange(2, LIST_LENGTH + 2, dtype=torch.float64, device=score.device))
    ideal = discount.cumsum(0).gather(0, (items.long() - 1).clamp(0, LIST_LENGTH - 1))  # DCG of the best list
    share = torch.where(items > 0, 1 / items.clamp(min=1), 0.0)
    recall = on_grid(torch.where(is_hit, share, 0.0))
    ndcg = on_grid(torch.where(is_hit, 1 / torch.log2(1 + position) / ideal, 0.0))
    users = on_grid(share)
    return {"recall_at_20": torch.stack([recall, users], 1), "ndcg_at_20": torch.stack([ndcg, users], 1)}


def rank_metrics(logits: Tensor, graph: Graph, above: Tensor | None, rows: Tensor | None = None) -> Tree:
    """All rank metrics of each link of a graph: {name: float64 [e, 2]}; {} where the data has no ranks. logits [e, 2];
    above: from `core.model.count_above`. rows: as for `per_link`, where users have no lists."""
    if graph.ranks is None or graph.pairs is None:
        return {}
    score, ranks = logits[:, 1], graph.ranks
    metrics = per_link(score, ranks, above, rows)
    if LISTS in graph.extra:
        metrics |= per_user(score, graph.pairs, graph.y, graph.masks, ranks, graph.nodes, above)
    return metrics


def sum_links(metrics: Tree, masks: Tensor) -> Tree:
    """The sums of `per_link` and `per_user` over each set of links, bool [S, e]: {name: float64 [S, 2]}. If all shares
    of a user are in the set, they count as one user, to the bit."""
    sums = {}
    for name, pair in metrics.items():
        total, count = (masks.to(torch.float64) @ pair).unbind(1)
        whole = count.round()
        sums[name] = torch.stack([total, torch.where((count - whole).abs() < ROUNDING, whole, count)], 1)
    return sums
