"""The whole edges of a client and, inside a vectorized call, of a batch of clients at once: what layers and samplers
read of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core.edge_list import EdgeList, EdgeLists, stack_operators
from fedweave.ops.csr import StackedCsr
from fedweave.ops.rows import round_up
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import derived


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

    first, degree: int64 [n]; the messages that reach node v are at first[v], …, first[v] + degree[v] - 1.
    source, edge:  int32 [m], where each starts and the edge that it goes along, padded with 0.
    strength:      float64 [n], the sum of the weights of what reaches a node.
    """

    first: Tensor
    degree: Tensor
    source: Tensor
    edge: Tensor
    strength: Tensor


class OfEdges(NamedTuple):
    """The inputs of models from each edge of one client that training uses, or from every edge where edges are the
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
        self._largest: dict[int, tuple[int, int]] = {}

    @property
    def sizes(self) -> tuple[int, int]:
        """(P, nodes)."""
        return len(self.members), self.nodes

    @property
    def depends_on_split(self) -> bool:
        return not isinstance(self.members, EdgeLists) and any(member.depends_on_split for member in self.members)

    @property
    def entries(self) -> int:
        """The number of edges, counted in both directions."""
        if isinstance(self.members, EdgeLists):
            return int(self.members.starts[-1])
        return sum(member.index.shape[1] for member in self.members)

    @derived
    def operator(self, kind: str, split: int = 0) -> StackedCsr:
        return stack_operators(self.members, kind, split, self.device)

    @derived
    def neighbors(self, split: int = 0) -> Neighbors:
        """The neighbors of every node, [P, …], along the edges of a split."""
        edges = self.members
        if not isinstance(edges, EdgeLists):
            edges = EdgeLists.of([member.at(split) for member in edges])
        a, clients = edges.adjacency, len(edges)
        starts = a.indptr[:: self.nodes].astype(np.int64)  # [P + 1], each client's first entry
        client = np.repeat(np.arange(clients), np.diff(starts))  # of each entry
        columns = np.zeros((clients, max(1, *np.diff(edges.starts))), np.int64)
        columns[client, np.arange(len(client)) - starts[client]] = a.indices - client * self.nodes
        first = a.indptr[:-1].reshape(clients, -1).astype(np.int64) - starts[:-1, None]  # [P, n]
        degree = np.diff(a.indptr).reshape(clients, -1).astype(np.int64)  # [P, n]
        return Neighbors(*(torch.from_numpy(table).to(self.device) for table in (first, degree, columns)))

    @derived
    def incoming(self, way: str, split: int) -> Incoming:
        tables = [member.at(split).messages.incoming(way) for member in self.members]
        return Incoming(*(_stack(parts).to(self.device) for parts in zip(*tables, strict=True)))

    @derived
    def of_edges(self, split: int | None) -> OfEdges:
        tables = [member.messages.inputs for member in self._members_at(split)]
        return OfEdges(*(_stack(parts).to(self.device) for parts in zip(*tables, strict=True)))

    @derived
    def feature_offsets(self, split: int | None) -> Tensor:
        return _stack([member.messages.offset_and_rest[0] for member in self._members_at(split)]).to(self.device)

    def _members_at(self, split: int | None) -> list[EdgeList]:
        return [member if split is None else member.at(split) for member in self.members]

    def largest(self, graphs: int) -> tuple[int, int]:
        """The most nodes, and the most neighbors in all, that this number of small graphs of a client can have."""
        if graphs not in self._largest:
            sizes = [member.largest(graphs) for member in self.members]
            self._largest[graphs] = max(nodes for nodes, _ in sizes), max(neighbors for _, neighbors in sizes)
        return self._largest[graphs]

    def padded_size(self, name: object, size: int) -> int:
        """The length to pad the list `name` to, which now has `size` entries: the largest requested so far, rounded up.
        Each combination of sizes is traced as a separate computation (`ops.recording`)."""
        self._sizes[name] = max(self._sizes.get(name, 0), round_up(size, 32, 8))
        return self._sizes[name]


class Edges:
    """The edges of one client; inside a vectorized call, of all clients at once.

    shrinks: whether a message-passing layer returns fewer nodes than it receives (see `sampling.ego_graphs`); never
             here.
    split:   the split (`core.graph.SPLITS`) whose examples its messages serve, where that matters; by default
             training's, which has the fewest edges.
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
        """The same edges with messages for the examples of a split (`EdgeList.at`)."""
        return Edges(self.cache, self.client_index, split) if self.cache.depends_on_split else self

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
        Names of `core.edge_attributes.operator_name` are matrices of single edges, with attributes and directions.
        Names with `BESIDE` between them are one matrix [m, n + …] of these side by side.
        Other names are registered by `register_matrix`.
        """
        return Sparse(self.cache.operator(kind, self.split), self.client_index)

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The nodes that get new values, here all, and for each of them the mean over its neighbors."""
        return h, self.operator(kind) @ h

    @property
    def neighbors(self) -> Neighbors:
        """The neighbors of every node, to sample from."""
        return Neighbors(*self._part(self.cache.neighbors(self.split if self.cache.depends_on_split else 0)))

    def incoming(self, way: str) -> Incoming:
        """The messages that reach every node along the edges of this split, one way, to sample from."""
        return Incoming(*self._part(self.cache.incoming(way, self.split if self.cache.depends_on_split else 0)))

    def of_edges(self, examples: bool = False) -> OfEdges:
        """The inputs of models from the edges of this split; with `examples`, from all edges."""
        return OfEdges(*self._part(self.cache.of_edges(self._split_of_features(examples))))

    def feature_offsets(self, examples: bool = False) -> Tensor:
        """float32 [k]: the number of each column that the stored features of this split's edges omit
        (`core.edge_attributes.EdgeMessages.offset_and_rest`); with `examples`, of all edges."""
        [offsets] = self._part([self.cache.feature_offsets(self._split_of_features(examples))])
        return offsets

    def _split_of_features(self, examples: bool) -> int | None:
        return self.split if self.cache.depends_on_split and not examples else None

    def _part(self, tables: Iterable[Tensor]) -> Iterator[Tensor]:
        """One client's part of tables [P, …]; the table of a single client may be large and is not copied."""
        return (table[0] if len(table) == 1 else table.index_select(0, self.client_index[None])[0] for table in tables)


def _stack(parts: Sequence[np.ndarray]) -> Tensor:
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
