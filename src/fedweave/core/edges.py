"""The raw edges of one client, in NumPy, and the matrices derived from them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core import edge_attributes as carrying
from fedweave.core.edge_attributes import EdgeAttributes, EdgeMessages
from fedweave.core.operators import OPERATORS, POOLS, Precomputed
from fedweave.ops.sparse import Csr, Sparse, StackedCsr, rounded
from fedweave.ops.tape import derived

Maker = Callable[["EdgeList"], sp.csr_matrix]
DERIVED: dict[str, Maker] = {}  # what `derived` registered
BESIDE = " | "  # between the names of matrices of equal rows that are to be one
OF_NODES: set[str] = set()  # the derived matrices with a row for each node; a sample takes its nodes' rows


def derived_matrix(name: str, of_nodes: bool = False) -> Callable[[Maker], Maker]:
    """Register the matrix `name` of a client's edges, made once for each; `core.edges.Edges.operator` then returns it.

    of_nodes: it has a row for each node and depends on no message, so that mini-batches of graphs take rows of it.
    A matrix of one paper is defined in the file that uses it; no other file knows it.
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
    extra:    what was precomputed on the same data, for makers of `derived` matrices.
    features: [m, d], the nodes'; None if no matrix compares them.
    memo:     what makers of `derived` matrices leave for one another.
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
        self.index, self.nodes, self.examples = _fixed(index), nodes, examples
        self.weight, self.graph_of = weight, graph_of
        self.extra, self.features, self.edge_attrs = extra or Precomputed(), features, attributes
        self._matrices: dict[str, Csr] = {}
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
        """The total nodes, and the total neighbors, of that many small graphs that have the most of them."""
        m = self.membership
        each = np.diff(m.indptr), m @ np.diff(self.adjacency.indptr)
        nodes, edges = (int(np.sort(sizes)[-graphs:].sum()) for sizes in each)
        return nodes, edges

    @cached_property
    def messages(self) -> EdgeMessages:
        """The matrices of messages along single edges; edges without attributes pass messages both ways."""
        bare = EdgeAttributes(self.index[:, self.index[0] < self.index[1]], directed=False)
        kind = np.float32 if self.weight is None else self.weight.dtype
        return EdgeMessages(self.edge_attrs or bare, self.nodes, kind)

    @property
    def timed(self) -> bool:
        """Whether messages go along other edges for each split that they serve (`EdgeAttributes.split_times`)."""
        return self.edge_attrs is not None and self.edge_attrs.split_times is not None

    def seen(self, split: int) -> "EdgeList":
        """The edges along which messages for the examples of a split (`core.graph.SPLITS`) go; `self` if all do."""
        if self.edge_attrs is None or not self.timed:
            return self
        if split not in self._seen:
            attributes = self.edge_attrs.taken(carrying.seen(self.edge_attrs, split))._replace(
                split_times=None, examples=False
            )
            source, target = attributes.ends
            codes = np.concatenate([source * self.nodes + target, target * self.nodes + source])
            there = np.isin(self.index[0] * self.nodes + self.index[1], codes)
            weight = None if self.weight is None else self.weight[there]
            self._seen[split] = EdgeList(self.index[:, there], self.nodes, weight, attributes=attributes)
        return self._seen[split]

    def operator(self, kind: str, split: int = 0) -> Csr:
        """One of the matrices of `Edges.operator`, built once, from the edges that a split sees (`seen`)."""
        parts = kind.split(BESIDE)
        if self.timed and not carrying.OF_EXAMPLES.issuperset(parts):
            return self.seen(split).operator(kind)
        if kind not in self._matrices:
            if parts[1:]:
                matrix = sp.hstack([self.operator(part).scipy() for part in parts], "csr")
            elif kind in DERIVED:
                matrix = DERIVED[kind](self)
            elif kind in carrying.OF_EXAMPLES:
                matrix = self._of_examples(kind)
            elif kind in (single := carrying.kinds()):
                matrix = self.messages.matrix(*single[kind])
            else:
                matrix = POOLS[kind](self.membership) if kind in POOLS else OPERATORS[kind](self.adjacency)
            self._matrices[kind] = Csr.of(matrix)
        return self._matrices[kind]

    def _of_examples(self, kind: str) -> sp.csr_matrix:
        if self.edge_attrs is None or not self.edge_attrs.examples:
            raise ValueError("the examples are no edges; choose [data] task = 'edges', or a model without `on_edges`")
        dtype = np.float32 if self.weight is None else self.weight.dtype
        if kind == carrying.OWN:
            return self.messages.of_examples(self.examples)
        return carrying.of_examples(self.edge_attrs, kind, self.examples, self.nodes, dtype)


class EdgeLists(Sequence[EdgeList]):
    """The raw edges of P clients with graphs of one size, whose examples are nodes and whose edges have no attributes,
    in one piece; a client's `EdgeList` is made when it is first used.

    pairs: int64 [2, E], positions within a client, client after client. starts: int64 [P + 1], where each one's begin.
    nodes: rows of each graph, padding included. weight: see `EdgeList`.
    """

    def __init__(self, pairs: np.ndarray, starts: np.ndarray, nodes: int, weight: np.ndarray | None = None) -> None:
        self.pairs, self.starts, self.nodes, self.weight = _fixed(pairs), starts, nodes, weight
        self._lists: dict[int, EdgeList] = {}

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "EdgeLists":
        """The same edges as the clients' separate lists."""
        starts = np.cumsum([0, *(member.index.shape[1] for member in members)])
        weights = [member.weight for member in members if member.weight is not None]
        pairs = np.concatenate([member.index for member in members], 1)
        joined = cls(pairs, starts, members[0].nodes, np.concatenate(weights) if weights else None)
        if len(members) == 1:  # one client keeps its adjacency
            joined.adjacency = members[0].adjacency
        return joined

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
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
        return Csr.of(OPERATORS[kind](self.adjacency)).of_blocks(self.nodes)


def operators(members: Sequence[EdgeList], kind: str, split: int, device: torch.device) -> StackedCsr:
    """The `kind` matrices of several clients with graphs of one size. Clients that lack a plain matrix get it together,
    as the blocks of one matrix with the same numbers: a call of SciPy takes longer to begin than a small graph
    takes."""
    plain = kind in OPERATORS and kind not in DERIVED
    if isinstance(members, EdgeLists) and plain:
        return StackedCsr.cut(members.operator(kind), len(members), device)
    bare = [member for member in members if kind not in member._matrices]
    if plain and len(bare) > 1 and not any(member.timed for member in members):
        blocks = EdgeLists.of(bare).operator(kind).apart(bare[0].nodes)
        for member, block in zip(bare, blocks, strict=True):
            member._matrices[kind] = block
    own_ones = [member.operator(kind, split) for member in members]
    return StackedCsr(own_ones, max(one.rows for one in own_ones), max(one.cols for one in own_ones), device)


def _fixed(index: np.ndarray) -> np.ndarray:
    """The same array, read-only: matrices were made of it, so a step must not write to it."""
    seen = index.view()
    seen.flags.writeable = False
    return seen


# ----------------------------------------------------------------------------------------------------
# The whole edges of a client, and of a batch of clients at once.


class Neighbors(NamedTuple):
    """The nodes that one hop reaches from each node of one client.

    first, degree: int64 [n]; the neighbors of node v are `columns[first[v] : first[v] + degree[v]]`.
    columns:       int64 [E], padded with 0.
    """

    first: Tensor
    degree: Tensor
    columns: Tensor


class Incoming(NamedTuple):
    """The messages that reach each node of one client along single edges, one way (`core.edge_attributes.WAYS`).

    first, degree: int64 [n]; the messages that reach node v stand at first[v], …, first[v] + degree[v] - 1.
    source, edge:  int32 [m], where each starts and the edge that it goes along, padded with 0.
    strength:      float64 [n], the sum of the weights of what reaches a node.
    """

    first: Tensor
    degree: Tensor
    source: Tensor
    edge: Tensor
    strength: Tensor


class OfEdges(NamedTuple):
    """The inputs of models from each edge of one client that training sees, or from every edge where edges are the
    examples: features float32 [M, k], weight float32 [M] and ends int64 [M, 2], padded with 0."""

    features: Tensor
    weight: Tensor
    ends: Tensor


class BatchCache:
    """The raw edges of a batch of clients, each padded to `nodes` rows, with what is computed from them once: operators
    and tables of neighbors, stacked over clients, and the padded sizes of lists of nodes.

    The raw edges stay on the host, where NumPy computes; the results are placed on `device`.
    """

    def __init__(self, members: Sequence[EdgeList], nodes: int, device: torch.device | str = "cpu") -> None:
        self.members = members if isinstance(members, EdgeLists) else tuple(members)
        self.nodes, self.device = nodes, torch.device(device)
        self._sizes: dict[object, int] = {}
        self._most: dict[int, tuple[int, int]] = {}

    @property
    def sizes(self) -> tuple[int, int]:
        """(P, nodes)."""
        return len(self.members), self.nodes

    @property
    def timed(self) -> bool:
        """See `EdgeList.timed`."""
        return not isinstance(self.members, EdgeLists) and any(member.timed for member in self.members)

    @property
    def entries(self) -> int:
        """The number of edges, counted in both directions."""
        if isinstance(self.members, EdgeLists):
            return int(self.members.starts[-1])
        return sum(member.index.shape[1] for member in self.members)

    @derived
    def operator(self, kind: str, split: int = 0) -> StackedCsr:
        """See `Edges.operator`."""
        return operators(self.members, kind, split, self.device)

    @derived
    def neighbors(self, split: int = 0) -> Neighbors:
        """The neighbors of every node, [P, …], that a split sees."""
        seen = self.members
        if not isinstance(seen, EdgeLists):
            seen = EdgeLists.of([member.seen(split) for member in seen])
        a, clients = seen.adjacency, len(seen)
        starts = a.indptr[:: self.nodes].astype(np.int64)
        owner = np.repeat(np.arange(clients), np.diff(starts))
        columns = np.zeros((clients, max(1, *np.diff(seen.starts))), np.int64)
        columns[owner, np.arange(len(owner)) - starts[owner]] = a.indices - owner * self.nodes
        first, degree = (counts.reshape(clients, -1).astype(np.int64) for counts in (a.indptr[:-1], np.diff(a.indptr)))
        tables = first - starts[:-1, None], degree, columns
        return Neighbors(*(torch.from_numpy(table).to(self.device) for table in tables))

    @derived
    def incoming(self, way: str, split: int) -> Incoming:
        """See `Edges.incoming`, [P, …]."""
        tables = [member.seen(split).messages.incoming(way) for member in self.members]
        return Incoming(*(_stacked(parts).to(self.device) for parts in zip(*tables, strict=True)))

    @derived
    def of_edges(self, split: int | None) -> OfEdges:
        """See `Edges.of_edges`, [P, …]."""
        members = [member if split is None else member.seen(split) for member in self.members]
        tables = [member.messages.read for member in members]
        return OfEdges(*(_stacked(parts).to(self.device) for parts in zip(*tables, strict=True)))

    @derived
    def usual(self, split: int | None) -> Tensor:
        """See `Edges.usual`, [P, k]."""
        members = [member if split is None else member.seen(split) for member in self.members]
        return _stacked([member.messages.apart[0] for member in members]).to(self.device)

    def most_of(self, graphs: int) -> tuple[int, int]:
        """The most nodes, and the most neighbors in all, that this number of small graphs of a client can have."""
        if graphs not in self._most:
            sizes = [member.largest(graphs) for member in self.members]
            self._most[graphs] = max(nodes for nodes, _ in sizes), max(edges for _, edges in sizes)
        return self._most[graphs]

    def padded_size(self, name: object, size: int) -> int:
        """The length to pad the list `name` to, which now has `size` entries: the largest requested so far, rounded up.
        Each combination of sizes is traced as a separate computation (`ops.recording`)."""
        self._sizes[name] = max(self._sizes.get(name, 0), rounded(size, 32, 8))
        return self._sizes[name]


class Edges:
    """The edges of one client; inside a vectorized call, of all clients at once.

    shrinks: whether a message-passing layer returns fewer nodes than it receives (see `sampling.ego_graphs`); never
             here.
    split:   the split (`core.graph.SPLITS`) whose examples its messages serve, where that matters; by default
             training's, which knows least.
    """

    shrinks = False

    def __init__(self, cache: BatchCache, client_index: Tensor, split: int = 0) -> None:
        self.cache, self.client_index, self.split = cache, client_index, split

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "Edges":
        """The edges of one client, or of several clients with graphs of one size, stacked."""
        count = len(members)
        client_index = torch.arange(count, device="cpu") if count > 1 else torch.tensor(0, device="cpu")
        return cls(BatchCache(members, members[0].nodes), client_index)

    def to(self, device: torch.device | str) -> "Edges":
        """The same edges, with the results derived from them on a device."""
        return Edges(BatchCache(self.members, self.nodes, device), self.client_index.to(device), self.split)

    def at(self, split: int) -> "Edges":
        """The same edges with messages for the examples of a split (`EdgeList.seen`)."""
        return Edges(self.cache, self.client_index, split) if self.cache.timed else self

    @property
    def members(self) -> Sequence[EdgeList]:
        """The clients' raw edges."""
        return self.cache.members

    @property
    def nodes(self) -> int:
        """The rows of every client, padding included."""
        return self.cache.nodes

    def operator(self, kind: str) -> Sparse:
        """A message-passing matrix [n, n], or one that pools, [e, n].

        "sum" A, "mean" D^-1 A (Hamilton et al. 2017, eq. 1's mean aggregator), "gcn" D~^-1/2 (A + I) D~^-1/2 with D~
        the degree of A + I (Kipf and Welling 2017, eq. 2). A node without neighbors has an empty row in the first two;
        in "mean_or_self", otherwise "mean", it is its own neighbor. "sum_with_self" is A + I. "neighbours" is D^-1/2 A
        D^-1/2, and "two_hops" is that matrix for the nodes at distance two (Zhu et al. 2020). "pool_sum" adds up the
        nodes of each small graph, "pool_mean" takes their mean.
        Names of `core.edge_attributes.named` are matrices of single edges, with their attributes and directions.
        Names with `BESIDE` between them are one matrix [m, n + …] of these side by side.
        Other names are registered by `derived_matrix`.
        """
        return Sparse(self.cache.operator(kind, self.split), self.client_index)

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The nodes that get new values, here all, and for each of them the mean over its neighbors."""
        return h, self.operator(kind) @ h

    @property
    def neighbors(self) -> Neighbors:
        """The neighbors of every node, to sample from."""
        return Neighbors(*self._part(self.cache.neighbors(self.split if self.cache.timed else 0)))

    def incoming(self, way: str) -> Incoming:
        """The messages that reach every node along the edges of this split, one way, to sample from."""
        return Incoming(*self._part(self.cache.incoming(way, self.split if self.cache.timed else 0)))

    def of_edges(self, examples: bool = False) -> OfEdges:
        """The inputs of models from the edges of this split; with `examples`, from all edges."""
        return OfEdges(
            *self._part(self.cache.of_edges((None if examples else self.split) if self.cache.timed else None))
        )

    def usual(self, examples: bool = False) -> Tensor:
        """float32 [k]: the number of each column that the stored features of this split's edges omit
        (`core.edge_attributes.EdgeMessages.apart`); with `examples`, of all edges."""
        [numbers] = self._part([self.cache.usual((None if examples else self.split) if self.cache.timed else None)])
        return numbers

    def _part(self, tables: Iterable[Tensor]) -> Iterator[Tensor]:
        """One client's part of tables [P, …]; the table of a single client may be large and is not copied."""
        return (table[0] if len(table) == 1 else table.index_select(0, self.client_index[None])[0] for table in tables)


def _stacked(parts: Sequence[np.ndarray]) -> Tensor:
    """Clients' arrays as one, each padded with 0 to the largest; at least one row, which empty places refer to."""
    shape = np.max([part.shape for part in parts], 0).clip([1, *[0] * (parts[0].ndim - 1)])
    if len(parts) == 1 and parts[0].shape == tuple(shape):
        return torch.from_numpy(np.ascontiguousarray(parts[0]))[None]
    whole = np.zeros((len(parts), *shape), parts[0].dtype)
    for row, part in zip(whole, parts, strict=True):
        row[tuple(map(slice, part.shape))] = part
    return torch.from_numpy(whole)


pytree.register_pytree_node(
    Edges,
    lambda edges: ([edges.client_index], (edges.cache, edges.split)),
    lambda children, context: Edges(context[0], next(iter(children)), context[1]),
)
