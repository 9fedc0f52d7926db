"""Nodes of small graphs that are alike, so that what a first layer makes of them is computed once."""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, repeat

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_list import EdgeList, derived
from fedweave.core.operators import looped
from fedweave.core.sizes import least_rows

SUM, SPREAD = "kinds_sum", "kinds_spread"


@derived(SUM)
def kinds_sum(edges: EdgeList) -> sp.csr_matrix:
    """[k, n]: the rows of A + I of one node of each kind."""
    made = looped(edges.adjacency)[alike(edges)[0]]
    made.resize(least_rows(made.shape[0]), edges.nodes)
    return made


@derived(SPREAD)
def kinds_spread(edges: EdgeList) -> sp.csr_matrix:
    """[n, k]: gives every node what its kind has."""
    first, kind = alike(edges)
    ones, rows = np.ones(edges.nodes, edges.adjacency.dtype), np.arange(edges.nodes)
    return sp.csr_matrix((ones, (rows, kind)), shape=(edges.nodes, least_rows(len(first))))


def alike(edges: EdgeList) -> tuple[np.ndarray, np.ndarray]:
    """One node of each kind, int64 [k], and the kind of each, int64 [n]; every node is one if nobody compares them."""
    if SUM not in edges.memo:
        each = np.arange(edges.nodes)
        edges.memo[SUM] = (each, each) if edges.features is None else kinds(edges.features, edges.adjacency)
    first, kind = edges.memo[SUM]
    return first, kind


def kinds(features: "np.ndarray | sp.csr_matrix", adjacency: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """int64 [k] one node of each kind, and int64 [n] the kind of each.

    Nodes of one kind have the same features, and neighbours with the same features. features: [m, d] of the first m ≤ n
    nodes; the others are padding, have no features and are a separate kind. adjacency: [n, n], of ones.
    """
    nodes = adjacency.shape[0]
    own = _numbered(_rows(sp.csr_matrix(features, copy=True)), nodes)[1]
    around = np.split(own[adjacency.indices], adjacency.indptr[1:-1])
    pairs = ((int(kind), np.sort(others).tobytes()) for kind, others in zip(own, around, strict=True))
    return _numbered(pairs, nodes)


def _rows(x: sp.csr_matrix) -> Iterator[bytes]:
    """The rows, equal where their entries are."""
    x.sum_duplicates()
    for first, last in pairwise(x.indptr):
        yield x.indices[first:last].tobytes() + b"/" + x.data[first:last].tobytes()


def _numbered(things: Iterable[object], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Number `things` by first appearance: where each of the k numbers comes first, int64 [k], and the number of each
    of `count` places, int64; places beyond the last thing share one more number."""
    known: dict[object, int] = {}
    number, first = np.empty(count, np.int64), []
    for at, thing in zip(range(count), chain(things, repeat(None)), strict=False):
        if thing not in known:
            known[thing] = len(known)
            first.append(at)
        number[at] = known[thing]
    return np.array(first, np.int64), number
