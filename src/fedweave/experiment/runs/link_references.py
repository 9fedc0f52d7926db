"""References for link prediction: scores by the edges that carry messages, on the pairs that models are
tested on (Liben-Nowell and Kleinberg 2007, "The link-prediction problem for social networks", section 3).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.candidates import Queries, behind
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, FOREIGN_TRAINED, QUERY, QUERY_COUNT, TEST
from fedweave.core.link_examples import LinkExamples
from fedweave.experiment.build import Built
from fedweave.experiment.graphs import links_of
from fedweave.metrics import links as ranking
from fedweave.metrics.classification import counts, merge, values
from fedweave.metrics.selection import CROSSING, OF_RANKS, REFERENCE
from fedweave.partition.base import client_ids
from fedweave.partition.client_data import shares
from fedweave.partition.crossing import CrossingLinks

AT_ONCE = 1 << 18  # pairs that are scored together
METRICS = ("auc", "average_precision", *OF_RANKS)


class RowProducts(NamedTuple):
    """Scores that are products of rows: of u and v, first[u] · second[v]. Both are [n, k]."""

    first: sp.csr_matrix
    second: sp.csr_matrix

    def of_pairs(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """float64 [m]."""
        return np.asarray(self.first[u].multiply(self.second[v]).sum(1)).ravel()

    def of_all(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """float64 [len(u), len(v)], of each u with each v."""
        return np.asarray((self.first[u] @ self.second[v].T).toarray())


def common_neighbors(a: sp.csr_matrix) -> RowProducts:
    """|Γ(u) ∩ Γ(v)|; a: [n, n], who is joined to whom."""
    return RowProducts(a, a)


def adamic_adar(a: sp.csr_matrix) -> RowProducts:
    """Σ 1 / log |Γ(z)| over the common neighbors z, which have two neighbors at least."""
    degree = np.asarray(a.sum(1)).ravel()
    return RowProducts(sp.csr_matrix(a @ sp.diags(1 / np.log(degree.clip(2)))), a)


def preferential_attachment(a: sp.csr_matrix) -> RowProducts:
    """|Γ(u)| |Γ(v)|."""
    degree = sp.csr_matrix(a.sum(1))
    return RowProducts(degree, degree)


REFERENCES: dict[str, Callable[[sp.csr_matrix], RowProducts]] = {
    "common_neighbors": common_neighbors,
    "adamic_adar": adamic_adar,
    "preferential_attachment": preferential_attachment,
}


def link_references(built: Built) -> dict[str, float]:
    """{"reference/common_neighbors/auc", …}: on the test pairs of all clients, as "global/auc" is, by the edges that
    carry messages at each of them."""
    # 1. The link examples and the number of nodes of each evaluated client.
    data, partition = built.data, built.partition
    names = client_ids(len(partition.parts), partition.names)
    evaluated = set(built.fed.evaluated_clients or names)
    clients = list[tuple[LinkExamples, int]]()
    for name, share in zip(names, shares(data, partition.parts), strict=True):
        if name in evaluated:
            clients.append((links_of(share), share.nodes))

    # 2. Their links to other members' nodes, if models are trained on these.
    crossing = list[tuple[LinkExamples, int, Mapping[str, np.ndarray]]]()
    finder = next((finder for finder in built.algorithm.finders if isinstance(finder, CrossingLinks)), None)
    if finder is not None:
        everywhere = zip(names, finder.everywhere(data, partition), strict=True)
        arrays_of_clients = [precomputed.arrays for name, precomputed in everywhere if name in evaluated]
        for (links, nodes), arrays in zip(clients, arrays_of_clients, strict=True):
            crossing.append((links, nodes, arrays))

    # 3. The metrics of each reference on both.
    results = dict[str, float]()
    for name, reference in REFERENCES.items():
        within, across = list[dict[str, torch.Tensor]](), list[dict[str, torch.Tensor]]()
        for links, nodes in clients:
            within += _test_metrics(links, nodes, reference)
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
    score = reference(adjacency).of_pairs(source[tested], target[tested])
    logits, y = torch.from_numpy(np.stack([0 * score, score], 1)), torch.from_numpy(table[tested, 5])  # [t, 2], [t]
    pairs = counts(logits, y, torch.ones(1, len(tested), dtype=torch.bool, device="cpu"))
    yield {name: pair[0] for name, pair in pairs.items()}


def _test_metrics(
    links: LinkExamples, nodes: int, reference: Callable[[sp.csr_matrix], RowProducts]
) -> Iterator[dict[str, torch.Tensor]]:
    """The (sum, count) pairs of metrics over one client's test links. Nothing without test links."""
    ones = np.ones(links.edges.shape[1])
    adjacency = sp.csr_matrix((ones, (links.edges[0], links.edges[1])), shape=(nodes, nodes))
    products = reference(adjacency)
    source, target, _ = links.pairs
    # Test links and pairs, and the candidates of test links (`Graph.ranks` has twice the row of a link).
    is_scored = links.masks[TEST].copy()
    candidate = links.ranks[QUERY] >= 0
    is_scored[candidate] = links.masks[TEST][links.ranks[QUERY][candidate] // 2]
    places = np.flatnonzero(is_scored)
    if not len(places):
        return
    scores = np.zeros(len(source))  # [pairs]
    for first in range(0, len(places), AT_ONCE):
        chunk = places[first : first + AT_ONCE]
        scores[chunk] = products.of_pairs(source[chunk], target[chunk])
    logits, masks = torch.from_numpy(np.stack([0 * scores, scores], 1)), torch.from_numpy(links.masks[TEST:])
    pairs = counts(logits, torch.from_numpy(links.y), masks)
    if links.ranks[QUERY_COUNT].any():
        above = None if links.queries is None else _behind(links, nodes, products)
        ranked = ranking.per_link(logits[:, 1], torch.from_numpy(links.ranks), above)
        pairs |= ranking.sum_links(ranked, masks)
    yield {name: pair[0] for name, pair in pairs.items()}


def _behind(links: LinkExamples, nodes: int, products: RowProducts) -> torch.Tensor:
    """How many candidates score above each test link in its queries, a tie as half: float64 [e, 2]."""
    if links.queries is None:
        raise ValueError("these links are ranked among pairs")
    queries, *rest = (torch.from_numpy(part) for part in links.queries)
    tested = queries[:, torch.from_numpy(links.masks[TEST])[queries[0] // 2]]
    all_queries = Queries(tested, torch.from_numpy(links.pairs), *rest)
    stays = all_queries.ends[0]

    def scores(at: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(products.of_all(stays[at].numpy(), pool.numpy()))

    return behind(all_queries, scores, nodes)
