"""The raw edges of one client, in NumPy, and the matrices made of them."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core import carried as carrying
from fedweave.core.carried import Carried, Messages
from fedweave.core.operators import KINDS_SPREAD, KINDS_SUM, MOTIF_MEAN, OPERATORS, POOLS, looped, mean
from fedweave.core.sizes import least_rows
from fedweave.ops.csr import Csr


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


class MotifTable(NamedTuple):
    """Motifs that a client's examples have in common with others', K rows of which the last may be padding.

    numbers: int64 [K], the same for the same motif at every client; -1 is padding.
    having:  [K, e], 1 where an example has a motif; empty rows at padding.
    names:   what people call them; none at padding.
    """

    numbers: np.ndarray
    having: sp.csr_matrix
    names: tuple[str, ...] = ()


class EdgeList:
    """The raw edges of one client, in NumPy.

    index:    int64 [2, E], both directions of every undirected edge, no self loops; cannot be written to.
    nodes:    rows of the graph, padding included.
    weight:   float [E]; None where all are 1.
    graph_of: int64 [m ≤ nodes], the small graph of each node; None where nodes are the examples.
    examples: small graphs, padding included.
    motifs:   the motifs that the small graphs share with others; None if nobody asked for them.
    features: [m, d], the nodes'; None if nobody compares them.
    carried:  the same edges as they were given, with what they carry; None where they carry nothing.
    """

    def __init__(
        self,
        index: np.ndarray,
        nodes: int,
        weight: np.ndarray | None = None,
        graph_of: np.ndarray | None = None,
        examples: int = 0,
        motifs: MotifTable | None = None,
        features: "np.ndarray | sp.csr_matrix | None" = None,
        carried: Carried | None = None,
    ) -> None:
        self.index, self.nodes, self.examples = _fixed(index), nodes, examples
        self.weight, self.graph_of = weight, graph_of
        self.motifs, self.features, self.carried = motifs, features, carried
        self._made: dict[str, Csr] = {}

    @cached_property
    def adjacency(self) -> sp.csr_matrix:
        """[nodes, nodes]; entry (i, j) is the weight of the edge from j to i."""
        values = np.ones(self.index.shape[1], np.float32) if self.weight is None else self.weight
        return sp.csr_matrix((values, (self.index[1], self.index[0])), shape=(self.nodes, self.nodes))

    @cached_property
    def membership(self) -> sp.csr_matrix:
        """[examples, nodes]; entry (i, j) is 1 where node j belongs to small graph i.

        Raises:
            ValueError: nodes are the examples.
        """
        if self.graph_of is None:
            raise ValueError("the examples are nodes, so there is nothing to pool; choose model.pool = 'none'")
        values = np.ones(len(self.graph_of), np.float32 if self.weight is None else self.weight.dtype)
        return sp.csr_matrix(
            (values, (self.graph_of, np.arange(len(self.graph_of)))), shape=(self.examples, self.nodes)
        )

    def largest(self, graphs: int) -> tuple[int, int]:
        """The nodes, and the neighbours, of so many small graphs that have the most of them."""
        m = self.membership
        each = np.diff(m.indptr), m @ np.diff(self.adjacency.indptr)
        nodes, edges = (int(np.sort(sizes)[-graphs:].sum()) for sizes in each)
        return nodes, edges

    @cached_property
    def alike(self) -> tuple[np.ndarray, np.ndarray]:
        """One node of each kind, and the kind of each (see `core.kinds`); every node is one if nobody compares them."""
        if self.features is None:
            return np.arange(self.nodes), np.arange(self.nodes)
        return kinds(self.features, self.adjacency)

    @cached_property
    def messages(self) -> Messages:
        """By which messages go along single edges; of edges that carry nothing, along each both ways."""
        bare = Carried(self.index[:, self.index[0] < self.index[1]], directed=False)
        kind = np.float32 if self.weight is None else self.weight.dtype
        return Messages(self.carried or bare, self.nodes, kind)

    @property
    def known_motifs(self) -> MotifTable:
        """`motifs`, with a column for each example, padding included.

        Raises:
            ValueError: nobody looked for motifs.
        """
        if self.motifs is None:
            raise ValueError(
                "no motifs are known here; they are looked for in small graphs, where a part asks for them"
            )
        numbers, having, names = self.motifs
        kind = np.float32 if self.weight is None else self.weight.dtype
        csr = (having.data.astype(kind), having.indices, having.indptr)
        return MotifTable(numbers, sp.csr_matrix(csr, shape=(len(numbers), self.examples)), names)

    def operator(self, kind: str) -> Csr:
        """One of the matrices of `Edges.operator`, built once."""
        if kind not in self._made:
            if kind == MOTIF_MEAN:
                made = mean(self.known_motifs.having)
            elif kind == KINDS_SUM:
                made = looped(self.adjacency)[self.alike[0]]
                made.resize(least_rows(made.shape[0]), self.nodes)
            elif kind == KINDS_SPREAD:
                ones, rows = np.ones(self.nodes, self.adjacency.dtype), np.arange(self.nodes)
                made = sp.csr_matrix((ones, (rows, self.alike[1])), shape=(self.nodes, least_rows(len(self.alike[0]))))
            elif kind in (single := carrying.kinds()):
                made = self.messages.matrix(*single[kind])
            else:
                made = POOLS[kind](self.membership) if kind in POOLS else OPERATORS[kind](self.adjacency)
            self._made[kind] = Csr.of(made)
        return self._made[kind]


def _fixed(index: np.ndarray) -> np.ndarray:
    """The same array, but a step that writes to it is refused: matrices were made of it."""
    seen = index.view()
    seen.flags.writeable = False
    return seen
