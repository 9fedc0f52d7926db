"""Ranks of links among all nodes that they could lead to. A query keeps one end of a link and replaces the other by
every candidate. Its scores are one row of a matrix; a few rows at a time are computed."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.core.graph import CANDIDATES, FILTERED, QUERIES, RELATION, SOURCE, TARGET, Graph
from fedweave.ops.batching import vectorize

AT_ONCE = 1 << 21  # scores that are computed together
Scores = Callable[[Tensor, Tensor], Tensor]  # (places of queries int64 [c], nodes int64 [m]) -> a new tensor [c, m]
Compare = Callable[..., Tensor]  # (what queries look for [c, k], candidates' rows [m, k], weights …) -> a new [c, m]
OfNodes = Callable[..., Tensor]  # (ends that queries keep int64 [c], candidates int64 [m], n, tensors …) -> [c, m]


class Queries(NamedTuple):
    """One client's queries.

    queries:    int64 [3, q]: twice the row of the link, plus 1 in the second query of it; the end that is replaced,
                SOURCE or TARGET; and the member of a union that asks. -1 at padding.
    pairs:      `Graph.pairs`, int64 [3, e].
    candidates: int64 [2, c]: a member, and a node by which it replaces an end. -1 at padding.
    filtered:   int64 [4, k]: a member, and source, target and relation of what is not a candidate: a link that it knows
                and, where links join two nodes, the end that stays with itself. -1 at padding.
    """

    queries: Tensor
    pairs: Tensor
    candidates: Tensor
    filtered: Tensor

    @classmethod
    def of(cls, graph: Graph) -> "Queries | None":
        """A graph's queries; None where not every node is a candidate."""
        if QUERIES not in graph.extra or graph.pairs is None:
            return None
        return cls(graph.extra[QUERIES], graph.pairs, graph.extra[CANDIDATES], graph.extra[FILTERED])

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """int64 [q] each: the node at the end that stays, the one at the end that is replaced, and the relation."""
        links = self.pairs.gather(1, (self.queries[0].clamp(min=0) // 2).expand(3, -1))
        source, target, relation = links.unbind(0)
        last = self.queries[1] == TARGET
        return torch.where(last, source, target), torch.where(last, target, source), relation.clamp(min=0)


def count_above(queries: Queries, scores: Scores, nodes: int) -> Tensor:
    """#{s⁻ > s⁺} + ½ #{s⁻ = s⁺} in both queries of each link, float64 [e, 2]. s⁺ is the link's score, and s⁻ are those
    of the member's candidates, without those that are filtered.

    scores: of queries against nodes. nodes: how many there are.
    """
    stays, leaves, relation = queries.ends
    total = torch.zeros(2 * queries.pairs.shape[1], dtype=torch.float64, device=stays.device)
    place = torch.full((nodes,), -1, device=stays.device)
    for member in queries.queries[2].unique().tolist():
        pool = queries.candidates[1, queries.candidates[0] == member]
        if member < 0 or not len(pool):
            continue
        place.fill_(-1)[pool] = torch.arange(len(pool), device=place.device)
        known = queries.filtered[1:, queries.filtered[0] == member]
        for end in (SOURCE, TARGET):
            rows = torch.nonzero((queries.queries[2] == member) & (queries.queries[1] == end))[:, 0]
            if not len(rows):
                continue
            codes = ((known[RELATION] * nodes + known[1 - end]) * nodes + known[end]).sort().values
            for at in rows.split(max(1, AT_ONCE // len(pool))):
                s = scores(at, pool)
                link = s.gather(1, place[leaves[at], None])
                first = (relation[at] * nodes + stays[at]) * nodes
                start, stop = torch.searchsorted(codes, first), torch.searchsorted(codes, first + nodes)
                row = torch.repeat_interleave(torch.arange(len(at), device=at.device), stop - start)
                before = (stop - start).cumsum(0) - (stop - start)
                other = codes[torch.arange(len(row), device=at.device) - before[row] + start[row]] % nodes
                excluded = place[other]
                s[row[excluded >= 0], excluded[excluded >= 0]] = torch.nan  # neither above nor equal
                total[queries.queries[0, at]] += ((s > link).sum(1) + (s >= link).sum(1)) / 2
    return total.view(-1, 2)


def counting(compare: Compare, weights: int, of_nodes: OfNodes | None = None) -> Callable[..., Tensor]:
    """`count_above` with the scores of `compare` and, if given, `of_nodes` added. The function takes the four tensors
    of `Queries`, the vectors that queries look for [q, k], rows of nodes [n, k], this number of `weights` of `compare`,
    and the tensors of `of_nodes`. It returns float64 [e, 2] and works under `torch.func.vmap`."""

    def count(*tensors: Tensor) -> Tensor:
        if tensors[0].dim() > 2:  # one client after another, since their lists differ in length
            return torch.stack([count(*each) for each in zip(*tensors, strict=True)])
        queries, vectors, rows = Queries(*tensors[:4]), tensors[4], tensors[5]
        of_compare, of_pairs = tensors[6 : 6 + weights], tensors[6 + weights :]
        stays, *_ = queries.ends

        def scores(at: Tensor, nodes: Tensor) -> Tensor:
            s = compare(vectors[at], rows.index_select(0, nodes), *of_compare)
            return s if of_nodes is None else s + of_nodes(stays[at], nodes, len(rows), *of_pairs)

        return count_above(queries, scores, len(rows))

    return vectorize(count)
