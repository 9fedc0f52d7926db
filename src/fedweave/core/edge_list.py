"""The raw edges of one client, and of several, in NumPy, and the matrices derived from them in SciPy."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core import edge_attributes
from fedweave.core.edge_attributes import EdgeAttributes, EdgeMessages
from fedweave.core.operators import OPERATORS, POOLS, Precomputed
from fedweave.ops.csr import Csr, StackedCsr

Builder = Callable[["EdgeList"], sp.csr_matrix]
DERIVED: dict[str, Builder] = {}  # what `register_matrix` registered
BESIDE = " | "  # between the names of matrices of equal rows that are to be one
OF_NODES: set[str] = set()  # the derived matrices with a row for each node; a sample takes its nodes' rows


def register_matrix(name: str, of_nodes: bool = False) -> Callable[[Builder], Builder]:
    """Register the matrix `name` of a client's edges, built once for each; `core.edges.Edges.operator` then returns it.

    of_nodes: it has a row for each node and depends on no message, so that mini-batches of graphs take rows of it.
    A matrix of one paper is defined in the file that uses it; no other file knows it.
    """

    def register(build: Builder) -> Builder:
        DERIVED[name] = build
        if of_nodes:
            OF_NODES.add(name)
        return build

    return register


class EdgeList:
    """The raw edges of one client, in NumPy.

    index:    int64 [2, E], both directions of every undirected edge, no self loops; cannot be written to.
    nodes:    rows of the graph, padding included.
    weight:   float [E]; None where all are 1.
    graph_of: int64 [m ≤ nodes], the small graph of each node; None where nodes are the examples.
    examples: small graphs, or edges where these are the examples, padding included.
    extra:    what was precomputed on the same data, for builders of registered matrices.
    features: [m, d], the nodes'; None if no matrix compares them.
    memo:     what builders of registered matrices share with one another.
    edge_attrs:  the same edges with their attributes, as the data has them; None where edges have none.
    """

    def __init__(
        self,
        index: np.ndarray,
        nodes: int,
        weight: np.ndarray | None = None,
        graph_of: np.ndarray | None = None,
        examples: int = 0,
        extra: Precomputed | None = None,
        features: "np.ndarray | sp.csr_matrix | None" = None,
        attributes: EdgeAttributes | None = None,
    ) -> None:
        self.index, self.nodes, self.examples = _read_only(index), nodes, examples
        self.weight, self.graph_of = weight, graph_of
        self.extra, self.features, self.edge_attrs = extra or Precomputed(), features, attributes
        self._matrices: dict[str, Csr] = {}
        self._of_split: dict[int, EdgeList] = {}
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
        """The total nodes, and the total neighbors, of that many small graphs that have the most of them."""
        nodes = np.diff(self.membership.indptr)  # of each small graph
        neighbors = self.membership @ np.diff(self.adjacency.indptr)
        return int(np.sort(nodes)[-graphs:].sum()), int(np.sort(neighbors)[-graphs:].sum())

    @cached_property
    def messages(self) -> EdgeMessages:
        """The matrices of messages along single edges; edges without attributes pass messages both ways."""
        without_attributes = EdgeAttributes(self.index[:, self.index[0] < self.index[1]], directed=False)
        dtype = np.float32 if self.weight is None else self.weight.dtype
        return EdgeMessages(self.edge_attrs or without_attributes, self.nodes, dtype)

    @property
    def depends_on_split(self) -> bool:
        """Whether messages go along other edges for each split that they serve (`EdgeAttributes.split_times`)."""
        return self.edge_attrs is not None and self.edge_attrs.split_times is not None

    def at(self, split: int) -> "EdgeList":
        """The edges along which messages for the examples of a split (`core.graph.SPLITS`) go; `self` if all do."""
        if self.edge_attrs is None or not self.depends_on_split:
            return self
        if split not in self._of_split:
            visible = edge_attributes.is_visible(self.edge_attrs, split)  # bool [M]
            attributes = self.edge_attrs.select(visible)._replace(split_times=None, examples=False)
            source, target = attributes.ends
            codes = np.concatenate([source * self.nodes + target, target * self.nodes + source])
            there = np.isin(self.index[0] * self.nodes + self.index[1], codes)
            weight = None if self.weight is None else self.weight[there]
            self._of_split[split] = EdgeList(self.index[:, there], self.nodes, weight, attributes=attributes)
        return self._of_split[split]

    def operator(self, kind: str, split: int = 0) -> Csr:
        """One of the matrices of `Edges.operator`, built once, from the edges of a split (`at`)."""
        parts = kind.split(BESIDE)
        if self.depends_on_split and not edge_attributes.OF_EXAMPLES.issuperset(parts):
            return self.at(split).operator(kind)
        if kind not in self._matrices:
            if len(parts) > 1:
                matrix = sp.hstack([self.operator(part).scipy() for part in parts], "csr")
            elif kind in DERIVED:
                matrix = DERIVED[kind](self)
            elif kind in edge_attributes.OF_EXAMPLES:
                matrix = self._of_examples(kind)
            elif kind in edge_attributes.kinds():
                matrix = self.messages.matrix(*edge_attributes.kinds()[kind])
            else:
                matrix = POOLS[kind](self.membership) if kind in POOLS else OPERATORS[kind](self.adjacency)
            self._matrices[kind] = Csr.of(matrix)
        return self._matrices[kind]

    def _of_examples(self, kind: str) -> sp.csr_matrix:
        if self.edge_attrs is None or not self.edge_attrs.examples:
            raise ValueError("the examples are not edges; choose [data] task = 'edges', or a model without `on_edges`")
        dtype = np.float32 if self.weight is None else self.weight.dtype
        if kind == edge_attributes.EXAMPLE_FEATURES:
            return self.messages.of_examples(self.examples)
        return edge_attributes.of_examples(self.edge_attrs, kind, self.examples, self.nodes, dtype)


class EdgeLists(Sequence[EdgeList]):
    """The raw edges of P clients with graphs of one size, whose examples are nodes and whose edges have no attributes,
    in one piece; a client's `EdgeList` is built when it is first used.

    pairs: int64 [2, E], positions within a client, client after client. starts: int64 [P + 1], where each one's begin.
    nodes: rows of each graph, padding included. weight: see `EdgeList`.
    """

    def __init__(self, pairs: np.ndarray, starts: np.ndarray, nodes: int, weight: np.ndarray | None = None) -> None:
        self.pairs, self.starts, self.nodes, self.weight = _read_only(pairs), starts, nodes, weight
        self._lists: dict[int, EdgeList] = {}

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "EdgeLists":
        """The same edges as the clients' separate lists."""
        starts = np.cumsum([0, *(member.index.shape[1] for member in members)])
        weights = [member.weight for member in members if member.weight is not None]
        pairs = np.concatenate([member.index for member in members], 1)
        edges = cls(pairs, starts, members[0].nodes, np.concatenate(weights) if weights else None)
        if len(members) == 1:  # one client keeps its adjacency
            edges.adjacency = members[0].adjacency
        return edges

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[client] for client in range(len(self))[at]]
        at = range(len(self))[at]
        if at not in self._lists:
            span = slice(self.starts[at], self.starts[at + 1])
            weight = None if self.weight is None else self.weight[span]
            self._lists[at] = EdgeList(self.pairs[:, span], self.nodes, weight, examples=self.nodes)
        return self._lists[at]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def adjacency(self) -> sp.csr_matrix:
        """Block-diagonal, [P nodes, P nodes]: see `EdgeList.adjacency`."""
        index = self.pairs + np.repeat(self.nodes * np.arange(len(self)), np.diff(self.starts))
        values = np.ones(index.shape[1], np.float32) if self.weight is None else self.weight
        return sp.csr_matrix((values, (index[1], index[0])), shape=(self.nodes * len(self),) * 2)

    def operator(self, kind: str) -> Csr:
        """The `kind` matrices of all clients below each other, [P nodes, nodes], equal to the single clients' ones."""
        return Csr.of(OPERATORS[kind](self.adjacency)).diagonal_blocks(self.nodes)


def stack_operators(members: Sequence[EdgeList], kind: str, split: int, device: torch.device) -> StackedCsr:
    """The `kind` matrices of several clients with graphs of one size. Clients that lack a plain matrix get it together,
    as the blocks of one matrix with the same numbers: a call of SciPy takes longer to begin than a small graph
    takes."""
    plain = kind in OPERATORS and kind not in DERIVED
    if isinstance(members, EdgeLists) and plain:
        return StackedCsr.from_whole(members.operator(kind), len(members), device)
    missing = [member for member in members if kind not in member._matrices]
    if plain and len(missing) > 1 and not any(member.depends_on_split for member in members):
        blocks = EdgeLists.of(missing).operator(kind).split(missing[0].nodes)
        for member, block in zip(missing, blocks, strict=True):
            member._matrices[kind] = block
    matrices = [member.operator(kind, split) for member in members]
    rows, cols = max(matrix.rows for matrix in matrices), max(matrix.cols for matrix in matrices)
    return StackedCsr(matrices, rows, cols, device)


def _read_only(index: np.ndarray) -> np.ndarray:
    """The same array, read-only: matrices are built from it, so a step must not write to it."""
    view = index.view()
    view.flags.writeable = False
    return view
