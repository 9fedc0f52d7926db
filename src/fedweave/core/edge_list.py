"""The raw edges of one client, in NumPy, and the matrices made of them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core import carried as carrying
from fedweave.core.carried import Carried, Messages
from fedweave.core.extra import Extra
from fedweave.core.operators import OPERATORS, POOLS
from fedweave.ops.csr import Csr, StackedCsr

Maker = Callable[["EdgeList"], sp.csr_matrix]
DERIVED: dict[str, Maker] = {}  # what `derived` registered
BESIDE = " | "  # between the names of matrices of equal rows that are to be one
OF_NODES: set[str] = set()  # of these, those with a row for each node, of which a sample takes its own


def derived(name: str, of_nodes: bool = False) -> Callable[[Maker], Maker]:
    """Register the matrix `name` of a client's edges, made once for each, which `core.edges.Edges.operator` then gives.

    of_nodes: it has a row for each node and depends on no message, so that mini-batches of graphs take rows of it.
    A paper's own stands beside what uses it; nobody else knows it.
    """

    def register(make: Maker) -> Maker:
        DERIVED[name] = make
        OF_NODES.update([name] * of_nodes)
        return make

    return register


class EdgeList:
    """The raw edges of one client, in NumPy.

    index:    int64 [2, E], both directions of every undirected edge, no self loops; cannot be written to.
    nodes:    rows of the graph, padding included.
    weight:   float [E]; None where all are 1.
    graph_of: int64 [m ≤ nodes], the small graph of each node; None where nodes are the examples.
    examples: small graphs, or edges where these are the examples, padding included.
    extra:    what was looked for in the same data, for makers of `derived` matrices.
    features: [m, d], the nodes'; None if nobody compares them.
    memo:     what makers of `derived` matrices leave for one another.
    carried:  the same edges as they were given, with what they carry; None where they carry nothing.
    """

    def __init__(
        self,
        index: np.ndarray,
        nodes: int,
        weight: np.ndarray | None = None,
        graph_of: np.ndarray | None = None,
        examples: int = 0,
        extra: Extra | None = None,
        features: "np.ndarray | sp.csr_matrix | None" = None,
        carried: Carried | None = None,
    ) -> None:
        self.index, self.nodes, self.examples = _fixed(index), nodes, examples
        self.weight, self.graph_of = weight, graph_of
        self.extra, self.features, self.carried = extra or Extra(), features, carried
        self._made: dict[str, Csr] = {}
        self._seen: dict[int, EdgeList] = {}
        self.memo: dict[str, tuple[np.ndarray, ...]] = {}

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
    def messages(self) -> Messages:
        """By which messages go along single edges; of edges that carry nothing, along each both ways."""
        bare = Carried(self.index[:, self.index[0] < self.index[1]], directed=False)
        kind = np.float32 if self.weight is None else self.weight.dtype
        return Messages(self.carried or bare, self.nodes, kind)

    @property
    def timed(self) -> bool:
        """Whether the edges that messages go along depend on the split that they serve (`Carried.until`)."""
        return self.carried is not None and self.carried.until is not None

    def seen(self, split: int) -> "EdgeList":
        """The edges along which messages for the examples of a split (`core.graph.SPLITS`) go; these where all do."""
        if self.carried is None or not self.timed:
            return self
        if split not in self._seen:
            kept = self.carried.taken(carrying.seen(self.carried, split))._replace(until=None, examples=False)
            source, target = kept.ends
            codes = np.concatenate([source * self.nodes + target, target * self.nodes + source])
            there = np.isin(self.index[0] * self.nodes + self.index[1], codes)
            weight = None if self.weight is None else self.weight[there]
            self._seen[split] = EdgeList(self.index[:, there], self.nodes, weight, carried=kept)
        return self._seen[split]

    def operator(self, kind: str, split: int = 0) -> Csr:
        """One of the matrices of `Edges.operator`, built once; of the edges that are `seen` in a split."""
        parts = kind.split(BESIDE)
        if self.timed and not carrying.OF_EXAMPLES.issuperset(parts):
            return self.seen(split).operator(kind)
        if kind not in self._made:
            if parts[1:]:
                made = sp.hstack([self.operator(part).scipy() for part in parts], "csr")
            elif kind in DERIVED:
                made = DERIVED[kind](self)
            elif kind in carrying.OF_EXAMPLES:
                made = self._of_examples(kind)
            elif kind in (single := carrying.kinds()):
                made = self.messages.matrix(*single[kind])
            else:
                made = POOLS[kind](self.membership) if kind in POOLS else OPERATORS[kind](self.adjacency)
            self._made[kind] = Csr.of(made)
        return self._made[kind]

    def _of_examples(self, kind: str) -> sp.csr_matrix:
        if self.carried is None or not self.carried.examples:
            raise ValueError("the examples are no edges; choose [data] task = 'edges', or a model without `on_edges`")
        dtype = np.float32 if self.weight is None else self.weight.dtype
        if kind == carrying.OWN:
            return self.messages.of_examples(self.examples)
        return carrying.of_examples(self.carried, kind, self.examples, self.nodes, dtype)


class EdgeLists(Sequence[EdgeList]):
    """The raw edges of P clients with graphs of one size, whose examples are nodes and whose edges carry nothing, in
    one piece; each one's `EdgeList` is made when somebody asks for it.

    pairs: int64 [2, E], positions within a client, client after client. starts: int64 [P + 1], where each one's begin.
    nodes: rows of each graph, padding included. weight: see `EdgeList`.
    """

    def __init__(self, pairs: np.ndarray, starts: np.ndarray, nodes: int, weight: np.ndarray | None = None) -> None:
        self.pairs, self.starts, self.nodes, self.weight = _fixed(pairs), starts, nodes, weight
        self._made: dict[int, EdgeList] = {}

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "EdgeLists":
        """Of clients that have theirs."""
        starts = np.cumsum([0, *(member.index.shape[1] for member in members)])
        weights = [member.weight for member in members if member.weight is not None]
        pairs = np.concatenate([member.index for member in members], 1)
        found = cls(pairs, starts, members[0].nodes, np.concatenate(weights) if weights else None)
        if len(members) == 1:  # it keeps its own
            found.adjacency = members[0].adjacency
        return found

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        at = range(len(self))[at]
        if at not in self._made:
            own = slice(self.starts[at], self.starts[at + 1])
            weight = None if self.weight is None else self.weight[own]
            self._made[at] = EdgeList(self.pairs[:, own], self.nodes, weight, examples=self.nodes)
        return self._made[at]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def adjacency(self) -> sp.csr_matrix:
        """Block-diagonal, [P nodes, P nodes]: see `EdgeList.adjacency`."""
        index = self.pairs + np.repeat(self.nodes * np.arange(len(self)), np.diff(self.starts))
        values = np.ones(index.shape[1], np.float32) if self.weight is None else self.weight
        return sp.csr_matrix((values, (index[1], index[0])), shape=(self.nodes * len(self),) * 2)

    def operator(self, kind: str) -> Csr:
        """A plain matrix of all clients below each other, [P nodes, nodes], with the numbers of each one's."""
        return Csr.of(OPERATORS[kind](self.adjacency)).of_blocks(self.nodes)


def operators(members: Sequence[EdgeList], kind: str, split: int, device: torch.device) -> StackedCsr:
    """The same matrix of each of several clients with graphs of one size; of those that have not made theirs, a plain
    one is made at once, as the blocks of one matrix, with the same numbers: SciPy takes longer to begin than small
    graphs take."""
    plain = kind in OPERATORS and kind not in DERIVED
    if isinstance(members, EdgeLists) and plain:
        return StackedCsr.cut(members.operator(kind), len(members), device)
    bare = [member for member in members if kind not in member._made]
    if plain and len(bare) > 1 and not any(member.timed for member in members):
        made = EdgeLists.of(bare).operator(kind).apart(bare[0].nodes)
        for member, own in zip(bare, made, strict=True):
            member._made[kind] = own
    own_ones = [member.operator(kind, split) for member in members]
    return StackedCsr(own_ones, max(one.rows for one in own_ones), max(one.cols for one in own_ones), device)


def _fixed(index: np.ndarray) -> np.ndarray:
    """The same array, but a step that writes to it is refused: matrices were made of it."""
    seen = index.view()
    seen.flags.writeable = False
    return seen
