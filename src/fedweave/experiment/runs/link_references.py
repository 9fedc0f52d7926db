"""References for link prediction: scores that use only the training links, on the pairs that
models are tested on (Liben-Nowell and Kleinberg 2007, "The link-prediction problem for social networks", section 3).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.candidates import Queries, behind
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, FOREIGN_TRAINED, TEST
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
        """float64 [m, k], of each u with each v."""
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
    names = client_ids(len(built.partition.parts), built.partition.names)
    evaluated = set(built.fed.evaluated_clients or names)
    client_data = zip(names, shares(built.data, built.partition.parts), strict=True)
    clients = [
        (links_of(share), share.nodes)
        for name, share in client_data
        if name in evaluated or len(built.fed.clients) == 1
    ]
    finders = (finder for finder in built.algorithm.finders if isinstance(finder, CrossingLinks))
    foreign = next((finder.everywhere(built.data, built.partition) for finder in finders), [])
    across_members = [one.arrays for name, one in zip(names, foreign, strict=False) if name in evaluated]
    crossing = [(*client, arrays) for client, arrays in zip(clients, across_members, strict=False)]
    results = dict[str, float]()
    for name, reference in REFERENCES.items():
        pairs = [pair for links, nodes in clients for pair in _test_metrics(links, nodes, reference)]
        metrics = values(merge(pairs)) if pairs else {}
        results |= {f"{REFERENCE}/{name}/{key}": float(metrics[key]) for key in METRICS if key in metrics}
        across = [pair for client in crossing for pair in _test_metrics_across(*client, reference)]
        metrics = values(merge(across)) if across else {}
        results |= {f"{REFERENCE}/{name}/{CROSSING}/{key}": float(metrics[key]) for key in METRICS if key in metrics}
    return {name: value for name, value in results.items() if not np.isnan(value)}


def _test_metrics_across(
    links: LinkExamples,
    nodes: int,
    foreign: Mapping[str, np.ndarray],
    reference: Callable[[sp.csr_matrix], RowProducts],
) -> Iterator[dict[str, torch.Tensor]]:
    """The pairs of metrics of one client's test links to other members' nodes, by the training links that it knows
    itself; foreign nodes come behind its own."""
    table, trained, ends = (foreign[name] for name in (FOREIGN_PAIRS, FOREIGN_TRAINED, FOREIGN_NODES))
    source, target = table[:, 0], nodes + table[:, 1]
    rows, size = trained[trained >= 0], nodes + len(ends)
    first, second = (
        np.concatenate([inner, outer[rows], back[rows]])
        for inner, outer, back in ((links.edges[0], source, target), (links.edges[1], target, source))
    )
    both = sp.csr_matrix((np.ones(len(first)), (first, second)), shape=(size, size))
    both.data[:] = 1
    at = np.flatnonzero((table[:, 4] == TEST) & (table[:, 5] >= 0))
    if not len(at):
        return
    s = reference(both).of_pairs(source[at], target[at])
    logits, y = torch.from_numpy(np.stack([0 * s, s], 1)), torch.from_numpy(table[at, 5])
    yield {
        name: pair[0]
        for name, pair in counts(logits, y, torch.ones(1, len(at), dtype=torch.bool, device="cpu")).items()
    }


def _test_metrics(
    links: LinkExamples, nodes: int, reference: Callable[[sp.csr_matrix], RowProducts]
) -> Iterator[dict[str, torch.Tensor]]:
    """The (sum, count) pairs of metrics over one client's test links."""
    ones = np.ones(links.edges.shape[1])
    products = reference(sp.csr_matrix((ones, (links.edges[0], links.edges[1])), shape=(nodes, nodes)))
    source, target, _ = links.pairs
    tested = links.masks[TEST].copy()
    candidate = links.ranks[0] >= 0
    tested[candidate] = links.masks[TEST][links.ranks[0][candidate] // 2]
    at, s = np.flatnonzero(tested), np.zeros(len(source))
    for first in range(0, len(at), AT_ONCE):
        some = at[first : first + AT_ONCE]
        s[some] = products.of_pairs(source[some], target[some])
    if not len(at):
        return
    logits, masks = torch.from_numpy(np.stack([0 * s, s], 1)), torch.from_numpy(links.masks[TEST:])
    pairs = counts(logits, torch.from_numpy(links.y), masks)
    if links.ranks[1].any():
        behind = None if links.queries is None else _behind(links, nodes, products)
        ranked = ranking.per_link(logits[:, 1], torch.from_numpy(links.ranks), behind)
        pairs |= ranking.sum_links(ranked, masks)
    yield {name: pair[0] for name, pair in pairs.items()}


def _behind(links: LinkExamples, nodes: int, products: RowProducts) -> torch.Tensor:
    """The number of nodes that score above each test link."""
    if links.queries is None:
        raise ValueError("these links are ranked among pairs")
    queries, *rest = (torch.from_numpy(part) for part in links.queries)
    tested = queries[:, torch.from_numpy(links.masks[TEST])[queries[0] // 2]]
    all_queries = Queries(tested, torch.from_numpy(links.pairs), *rest)
    stays = all_queries.ends[0]

    def scores(at: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(products.of_all(stays[at].numpy(), pool.numpy()))

    return behind(all_queries, scores, nodes)
