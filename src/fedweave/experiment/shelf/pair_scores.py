"""Scores of links without a model: by the edges that carry messages, on the pairs that models are tested on
(Liben-Nowell and Kleinberg 2007, "The link-prediction problem for social networks", section 3).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.candidates import Queries, count_above
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, FOREIGN_TRAINED, QUERY, QUERY_COUNT, TEST, VAL
from fedweave.core.link_examples import LinkExamples
from fedweave.experiment.build import Built
from fedweave.metrics import link_ranks
from fedweave.metrics.classification import counts, merge, values
from fedweave.metrics.selection import CROSSING, OF_RANKS, REFERENCE
from fedweave.partition.base import client_ids
from fedweave.partition.crossing import CrossingLinks

AT_ONCE = 1 << 18  # pairs that are scored together
METRICS = ("auc", "average_precision", *OF_RANKS)


class PairScores(Protocol):
    """A score of pairs of nodes, which is higher where a link is more likely.

    first, second: int64 [m], source and target of each pair. relation: int64 [m], 0 where all links are of one.
    """

    def of_pairs(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray) -> np.ndarray:
        """float64 [m]."""

    def of_all(self, stays: np.ndarray, pool: np.ndarray, relation: np.ndarray, replaced: int) -> np.ndarray:
        """float64 [q, c], of each query with each candidate. stays: int64 [q], the end that each query keeps. pool:
        int64 [c], the candidates for the other end, `replaced`: SOURCE or TARGET (`core.graph`)."""

    def of_training(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray, y: np.ndarray) -> np.ndarray:
        """float64 [m], of pairs to train on, as if those that are links (`y` = 1) were not known."""


class RowProducts(NamedTuple):
    """Scores that are products of rows: of u and v, first[u] · second[v]. Both are [n, k]."""

    first: sp.csr_matrix
    second: sp.csr_matrix

    def of_pairs(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray) -> np.ndarray:
        return np.asarray(self.first[first].multiply(self.second[second]).sum(1)).ravel()

    def of_all(self, stays: np.ndarray, pool: np.ndarray, relation: np.ndarray, replaced: int) -> np.ndarray:
        return np.asarray((self.first[stays] @ self.second[pool].T).toarray())

    def of_training(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.of_pairs(first, second, relation)  # a link is not a path of two edges between its ends


def common_neighbors(a: sp.csr_matrix) -> RowProducts:
    """|Γ(u) ∩ Γ(v)|; a: [n, n], who is joined to whom."""
    return RowProducts(a, a)


def adamic_adar(a: sp.csr_matrix) -> RowProducts:
    """Σ 1 / log |Γ(z)| over the common neighbors z, which have two neighbors at least."""
    degree = np.asarray(a.sum(1)).ravel()
    return RowProducts(sp.csr_matrix(a @ sp.diags(1 / np.log(degree.clip(2)))), a)


def resource_allocation(a: sp.csr_matrix) -> RowProducts:
    """Σ 1 / |Γ(z)| over the common neighbors z (Zhou, Lü and Zhang 2009, "Predicting missing links via local
    information")."""
    degree = np.asarray(a.sum(1)).ravel()
    return RowProducts(sp.csr_matrix(a @ sp.diags(1 / degree.clip(1))), a)


def preferential_attachment(a: sp.csr_matrix) -> RowProducts:
    """|Γ(u)| |Γ(v)|."""
    degree = sp.csr_matrix(a.sum(1))
    return RowProducts(degree, degree)


REFERENCES: dict[str, Callable[[sp.csr_matrix], RowProducts]] = {
    "common_neighbors": common_neighbors,
    "adamic_adar": adamic_adar,
    "resource_allocation": resource_allocation,
    "preferential_attachment": preferential_attachment,
}


class ScoredLinks(Protocol):
    """One client's links, its number of nodes, and the scores that its edges give, `REFERENCES` among them, by name."""

    @property
    def links(self) -> LinkExamples: ...
    @property
    def nodes(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, PairScores]: ...


def link_references(built: Built, members: Mapping[str, ScoredLinks]) -> dict[str, float]:
    """{"reference/common_neighbors/auc", …}: on the test pairs of all clients, as "global/auc" is, by the edges that
    carry messages at each of them. members: all clients (`shelf.pairs.member_pairs`)."""
    # 1. The link examples and the number of nodes of each evaluated client.
    data, partition = built.data, built.partition
    names = client_ids(len(partition.parts), partition.names)
    evaluated = set(built.fed.evaluated_clients or names)
    clients = [members[name] for name in names if name in evaluated]

    # 2. Their links to other members' nodes, if models are trained on these.
    crossing = list[tuple[LinkExamples, int, Mapping[str, np.ndarray]]]()
    finder = next((finder for finder in built.algorithm.finders if isinstance(finder, CrossingLinks)), None)
    if finder is not None:
        everywhere = zip(names, finder.everywhere(data, partition), strict=True)
        arrays_of_clients = [precomputed.arrays for name, precomputed in everywhere if name in evaluated]
        for member, arrays in zip(clients, arrays_of_clients, strict=True):
            crossing.append((member.links, member.nodes, arrays))

    # 3. The metrics of each reference on both.
    results = dict[str, float]()
    for name, reference in REFERENCES.items():
        within, across = list[dict[str, torch.Tensor]](), list[dict[str, torch.Tensor]]()
        for member in clients:
            within += _test_metrics(member.links, member.nodes, member.scores[name])
        for links, nodes, arrays in crossing:
            across += _test_metrics_across(links, nodes, arrays, reference)
        for prefix, pairs in ((f"{REFERENCE}/{name}", within), (f"{REFERENCE}/{name}/{CROSSING}", across)):
            metrics = values(merge(pairs)) if pairs else {}
            results |= {f"{prefix}/{key}": float(metrics[key]) for key in METRICS if key in metrics}
    return {name: value for name, value in results.items() if not np.isnan(value)}


def _test_metrics_across(
    links: LinkExamples,
    nodes: int,
    arrays: Mapping[str, np.ndarray],
    reference: Callable[[sp.csr_matrix], RowProducts],
) -> Iterator[dict[str, torch.Tensor]]:
    """The (sum, count) pairs of metrics of one client's test links to other members' nodes, by its edges that carry
    messages and its training links to such nodes; external nodes come behind its own. Nothing without test links."""
    table, trained, ends = arrays[FOREIGN_PAIRS], arrays[FOREIGN_TRAINED], arrays[FOREIGN_NODES]
    # Columns: own node, external node, relation, whether it leads from the own node, split, y.
    tested = np.flatnonzero(table[:, 4] == TEST)
    if not len(tested):
        return
    source, target = table[:, 0], nodes + table[:, 1]  # [pairs]
    rows, size = trained[:, 0], nodes + len(ends)
    first = np.concatenate([links.edges[0], source[rows], target[rows]])
    second = np.concatenate([links.edges[1], target[rows], source[rows]])
    adjacency = sp.csr_matrix((np.ones(len(first)), (first, second)), shape=(size, size))
    adjacency.data[:] = 1  # a pair may have several links
    score = reference(adjacency).of_pairs(source[tested], target[tested], table[tested, 2])
    logits, y = torch.from_numpy(np.stack([0 * score, score], 1)), torch.from_numpy(table[tested, 5])  # [t, 2], [t]
    pairs = counts(logits, y, torch.ones(1, len(tested), dtype=torch.bool, device="cpu"))
    yield {name: pair[0] for name, pair in pairs.items()}


def adjacency_of(links: LinkExamples, nodes: int) -> sp.csr_matrix:
    """[n, n]: 1 where an edge that carries messages joins two nodes."""
    ones = np.ones(links.edges.shape[1])
    return sp.csr_matrix((ones, (links.edges[0], links.edges[1])), shape=(nodes, nodes))


def _test_metrics(links: LinkExamples, nodes: int, scores: PairScores) -> Iterator[dict[str, torch.Tensor]]:
    """The (sum, count) pairs of metrics over one client's test links. Nothing without test links."""
    pairs = link_metrics(links, nodes, scores, TEST)
    if pairs is not None:
        yield pairs


def link_metrics(
    links: LinkExamples, nodes: int, scores: PairScores, split: int, ranked: bool = True
) -> dict[str, torch.Tensor] | None:
    """The (sum, count) pairs of metrics over one client's links of a split; None without such links.

    ranked: whether links are ranked among their candidates, too, where the data has candidates.
    """
    ranked = ranked and bool(links.ranks[QUERY_COUNT].any())
    places = scored_pairs(links, split, ranked)
    if not len(places):
        return None
    values = np.concatenate(
        [scores.of_pairs(*links.pairs[:, chunk]) for chunk in np.split(places, range(AT_ONCE, len(places), AT_ONCE))]
    )
    logits = torch.from_numpy(np.stack([0 * values, values], 1))  # [places, 2]
    masks, y = torch.from_numpy(links.masks[:, places]), torch.from_numpy(links.y[places])
    of_split = masks[split]
    pairs = counts(logits[of_split], y[of_split], of_split[of_split][None])  # candidates would only be sorted
    if ranked:
        above = None if links.queries is None else _count_above(links, nodes, scores, split)[torch.from_numpy(places)]
        ranks, score = torch.from_numpy(_ranks_among(links, places)), logits[:, 1]
        of_links = link_ranks.per_link(score, ranks, above)
        if has_lists(links):
            ends = torch.from_numpy(links.pairs[:, places])
            of_links |= link_ranks.per_user(score, ends, y, masks, ranks, nodes, above)
        pairs |= link_ranks.sum_links(of_links, of_split[None])
    return {name: pair[0] for name, pair in pairs.items()}


def scored_pairs(links: LinkExamples, split: int, ranked: bool) -> np.ndarray:
    """int64: the rows of the pairs whose scores the metrics of a split read. ranked: see `link_metrics`."""
    # The links and pairs, and the candidates of the links (`Graph.ranks` has twice the row of a link).
    is_scored = links.masks[split].copy()
    if ranked:
        candidate = links.ranks[QUERY] >= 0
        is_scored[candidate] = links.masks[split][links.ranks[QUERY][candidate] // 2]
        if has_lists(links):  # which other links of the user come before depends on their scores, too
            is_scored |= links.masks[VAL] | links.masks[TEST]
    return np.flatnonzero(is_scored)


def _ranks_among(links: LinkExamples, places: np.ndarray) -> np.ndarray:
    """`Graph.ranks` of some rows of the pairs, int64 [2, rows], which include the links of their queries."""
    number = np.full(links.pairs.shape[1], -1)
    number[places] = np.arange(len(places))
    query, count = links.ranks[:, places]
    return np.stack([np.where(query >= 0, 2 * number[query // 2] + query % 2, -1), count])


def has_lists(links: LinkExamples) -> bool:
    """Whether links are ranked in lists of items for each user."""
    return links.queries is not None and links.items is not None


def _count_above(links: LinkExamples, nodes: int, scores: PairScores, split: int) -> torch.Tensor:
    """How many candidates score above each link of the split in its queries, a tie as half: float64 [e, 2]."""
    if links.queries is None:
        raise ValueError("these links are ranked among pairs")
    queries, *rest = (torch.from_numpy(part) for part in links.queries)
    asked = queries[:, torch.from_numpy(links.masks[split])[queries[0] // 2]]
    all_queries = Queries(asked, torch.from_numpy(links.pairs), *rest)
    stays, _, relation = all_queries.ends

    def of_queries(at: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        replaced = int(asked[1, at[0]])  # one call is of queries that replace the same end
        # scipy indexes by arrays that own their memory.
        of_query, candidates, relations = (part.numpy().copy() for part in (stays[at], pool, relation[at]))
        return torch.from_numpy(scores.of_all(of_query, candidates, relations, replaced))

    return count_above(all_queries, of_queries, nodes)
