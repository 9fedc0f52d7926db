"""The whole edges of a client, and of a batch of clients at once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core.edge_list import EdgeList, EdgeLists, operators
from fedweave.ops.csr import StackedCsr
from fedweave.ops.rows import rounded
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import derived


class Neighbours(NamedTuple):
    """Who can be reached from each node of one client in one hop.

    first, degree: int64 [n]; the neighbours of node v are `columns[first[v] : first[v] + degree[v]]`.
    columns:       int64 [E], padded with 0.
    """

    first: Tensor
    degree: Tensor
    columns: Tensor


class Incoming(NamedTuple):
    """The messages that reach each node of one client along single edges, one way (`core.carried.WAYS`).

    first, degree: int64 [n]; those of node v stand at first[v], …, first[v] + degree[v] - 1.
    source, edge:  int32 [m], where each starts and the edge that it goes along, padded with 0.
    strength:      float64 [n], the sum of the weights of what reaches a node.
    """

    first: Tensor
    degree: Tensor
    source: Tensor
    edge: Tensor
    strength: Tensor


class OfEdges(NamedTuple):
    """What models read of each edge of one client, of those that training sees, or of all where they are the examples:
    features float32 [M, k], weight float32 [M] and ends int64 [M, 2], padded with 0."""

    features: Tensor
    weight: Tensor
    ends: Tensor


class BatchCache:
    """The raw edges of a batch of clients, each padded to `nodes` rows, with what is computed from them once: operators
    and tables of neighbours, stacked over clients, and the padded sizes of lists of nodes.

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
        """How many edges there are, both directions."""
        if isinstance(self.members, EdgeLists):
            return int(self.members.starts[-1])
        return sum(member.index.shape[1] for member in self.members)

    @derived
    def operator(self, kind: str, split: int = 0) -> StackedCsr:
        """See `Edges.operator`."""
        return operators(self.members, kind, split, self.device)

    @derived
    def neighbours(self, split: int = 0) -> Neighbours:
        """The neighbours of every node, [P, …], that a split sees."""
        seen = self.members
        if not isinstance(seen, EdgeLists):
            seen = EdgeLists.of([member.seen(split) for member in seen])
        a, clients = seen.adjacency, len(seen)
        starts = a.indptr[:: self.nodes].astype(np.int64)
        owner = np.repeat(np.arange(clients), np.diff(starts))
        columns = np.zeros((clients, max(1, *np.diff(seen.starts))), np.int64)
        columns[owner, np.arange(len(owner)) - starts[owner]] = a.indices - owner * self.nodes
        first, degree = (own.reshape(clients, -1).astype(np.int64) for own in (a.indptr[:-1], np.diff(a.indptr)))
        tables = first - starts[:-1, None], degree, columns
        return Neighbours(*(torch.from_numpy(table).to(self.device) for table in tables))

    @derived
    def incoming(self, way: str, split: int) -> Incoming:
        """See `Edges.incoming`, [P, …]."""
        own = [member.seen(split).messages.incoming(way) for member in self.members]
        return Incoming(*(_stacked(parts).to(self.device) for parts in zip(*own, strict=True)))

    @derived
    def of_edges(self, split: int | None) -> OfEdges:
        """See `Edges.of_edges`, [P, …]."""
        members = [member if split is None else member.seen(split) for member in self.members]
        own = [member.messages.read for member in members]
        return OfEdges(*(_stacked(parts).to(self.device) for parts in zip(*own, strict=True)))

    @derived
    def usual(self, split: int | None) -> Tensor:
        """See `Edges.usual`, [P, k]."""
        members = [member if split is None else member.seen(split) for member in self.members]
        return _stacked([member.messages.apart[0] for member in members]).to(self.device)

    def most_of(self, graphs: int) -> tuple[int, int]:
        """The most nodes, and the most neighbours in all, that so many small graphs of a client can have."""
        if graphs not in self._most:
            own = [member.largest(graphs) for member in self.members]
            self._most[graphs] = max(nodes for nodes, _ in own), max(edges for _, edges in own)
        return self._most[graphs]

    def padded_size(self, name: object, size: int) -> int:
        """The length to pad the list `name` to, which now has `size` entries: the largest requested so far, rounded up.
        Each combination of sizes is recorded as a separate computation (`ops.recording`)."""
        self._sizes[name] = max(self._sizes.get(name, 0), rounded(size, 32, 8))
        return self._sizes[name]


class Edges:
    """The edges of one client; inside a vectorised call, of all clients at once.

    shrinks: whether a message-passing layer returns fewer nodes than it receives (see `sampling.ego`); never here.
    split:   the split (`core.graph.SPLITS`) whose examples its messages serve, where that matters; unless somebody asks
             for another, training's, which knows least.
    """

    shrinks = False

    def __init__(self, cache: BatchCache, client_index: Tensor, split: int = 0) -> None:
        self.cache, self.client_index, self.split = cache, client_index, split

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "Edges":
        """One client's edges, or those of several of one size, stacked."""
        count = len(members)
        client_index = torch.arange(count, device="cpu") if count > 1 else torch.tensor(0, device="cpu")
        return cls(BatchCache(members, members[0].nodes), client_index)

    def to(self, device: torch.device | str) -> "Edges":
        """The same edges, what is computed from them on a device."""
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
        the degree of A + I (Kipf and Welling 2017, eq. 2). A node without neighbours has an empty row in the first two;
        in "mean_or_self", otherwise "mean", it is its own neighbour. "sum_with_self" is A + I. "neighbours" is D^-1/2 A
        D^-1/2, "two_hops" the same of the nodes at distance two (Zhu et al. 2020). "pool_sum" adds up the nodes of each
        small graph, "pool_mean" takes their mean.
        Names of `core.carried.named` are of single edges, with what they carry and in their directions.
        Names with `core.edge_list.BESIDE` between them are one matrix [m, n + …] of these side by side.
        Others are of what registered them (`core.edge_list.derived`).
        """
        return Sparse(self.cache.operator(kind, self.split), self.client_index)

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The nodes that get new values, here all, and for each of them the mean over its neighbours."""
        return h, self.operator(kind) @ h

    @property
    def neighbours(self) -> Neighbours:
        """The neighbours of every node, to sample from."""
        return Neighbours(*self._own(self.cache.neighbours(self.split if self.cache.timed else 0)))

    def incoming(self, way: str) -> Incoming:
        """The messages that reach every node along the edges of this split, one way, to sample from."""
        return Incoming(*self._own(self.cache.incoming(way, self.split if self.cache.timed else 0)))

    def of_edges(self, examples: bool = False) -> OfEdges:
        """What models read of the edges of this split; or of all, which are the `examples`."""
        return OfEdges(
            *self._own(self.cache.of_edges((None if examples else self.split) if self.cache.timed else None))
        )

    def usual(self, examples: bool = False) -> Tensor:
        """float32 [k]: the number of each column that the features of edges of this split are stored without
        (`core.carried.Messages.apart`); or of all edges, which are the `examples`."""
        [own] = self._own([self.cache.usual((None if examples else self.split) if self.cache.timed else None)])
        return own

    def _own(self, tables: Iterable[Tensor]) -> Iterator[Tensor]:
        """One client's part of tables [P, …]; nobody copies that of one client alone, which may be large."""
        return (table[0] if len(table) == 1 else table.index_select(0, self.client_index[None])[0] for table in tables)


def _stacked(parts: Sequence[np.ndarray]) -> Tensor:
    """Clients' arrays as one, each padded with 0 to the largest; of at least one row, which empty places name."""
    shape = np.max([part.shape for part in parts], 0).clip([1, *[0] * (parts[0].ndim - 1)])
    if len(parts) == 1 and parts[0].shape == tuple(shape):
        return torch.from_numpy(np.ascontiguousarray(parts[0]))[None]
    whole = np.zeros((len(parts), *shape), parts[0].dtype)
    for own, part in zip(whole, parts, strict=True):
        own[tuple(map(slice, part.shape))] = part
    return torch.from_numpy(whole)


pytree.register_pytree_node(
    Edges,
    lambda edges: ([edges.client_index], (edges.cache, edges.split)),
    lambda children, kept: Edges(kept[0], next(iter(children)), kept[1]),
)
