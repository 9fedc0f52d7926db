"""Louvain communities as clients: few edges are cut, sizes are balanced."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.bounds import Clients, NonNegative
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.ego_networks import edges_among
from fedweave.partition.splits import check_enough, group


def deal_in_turn(labels: np.ndarray, parts: int, slack: float) -> np.ndarray:
    """int64 [n]: the part 0..parts-1 of every node, given communities `labels` int64 [n].

    With equal shares of n / parts nodes, communities above (1 - slack) of one are chopped into pieces of that size, in
    the order of nodes. Then, largest first, each piece goes to the next part in turn that it fills to (1 + slack) of a
    share at most; where none has room, to the smallest. No part is empty if there are at least `parts` nodes.
    """
    share = len(labels) / parts
    piece_size = max(1, int(share * (1 - slack) + 1e-9))
    max_size = int(share * (1 + slack) + 1e-9)
    pieces = []
    for nodes in group(labels, labels.max(initial=0) + 1):
        pieces += [nodes[at : at + piece_size] for at in range(0, len(nodes), piece_size)]
    part = np.empty(len(labels), dtype=np.int64)  # [n]
    size = np.zeros(parts, dtype=np.int64)  # [parts]
    turn = 0
    for nodes in sorted(pieces, key=len, reverse=True):
        order = (turn + np.arange(parts)) % parts
        room = order[size[order] + len(nodes) <= max_size]
        chosen = int(room[0]) if len(room) else int(size.argmin())
        part[nodes] = chosen
        size[chosen] += len(nodes)
        turn = chosen + 1
    return part


_MIN_GROWTH = 1.3  # of the resolution per level; 2 keeps 1 % fewer of Cora's edges
_GROWTH_POWER = 1 / 3  # of (largest / allowed size), by which it grows more; 1/2 would lose edges, 0 is half as fast
_LEVELS = 40  # _MIN_GROWTH ** 40 = 36,000; larger communities are then cut along a breadth-first order


@dataclass(frozen=True)
class Louvain(Divided):
    """Disjoint clients made of Louvain communities (Blondel et al., 2008), as in FedEgo section 5.4 and FedSage.

    Communities above the largest client size are split by Louvain at a finer resolution; then, largest first, each
    goes to the client with most edges to it among those with room, or to the smallest where none has an edge. Nodes
    without edges are spread so that sizes even out. No client is empty or holds above ceil(n / P (1 + slack)) nodes.

    clients:          number of clients, P.
    slack:            largest relative deviation of sizes from n / P; more slack keeps more edges.
    packing:          "linked" as above, or "in_turn": communities that are too large are chopped in the order of nodes.
                      Then all are dealt to the clients in turn, largest first, as in FedEgo's released code and in
                      FederatedScope (`deal_in_turn`). Clients are more alike then, and more edges are cut.
    holdout:          whether the community whose size is closest to n / (P + 1) becomes the global test set, which no
                      client holds and which keeps only labeled nodes. With "in_turn" it is the first of P + 1 shares.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    clients: Clients = 10
    slack: NonNegative = 0.1
    packing: Literal["linked", "in_turn"] = "linked"
    holdout: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing == "in_turn" and self.slack >= 1:
            raise ConfigError(
                f'slack = {self.slack}: with packing = "in_turn" communities above (1 - slack) of a client\'s share '
                "are chopped. Give less than 1.",
                code="config.value",
            )

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.nodes, self.clients)
        rng = generator(seed, "partition/louvain")
        graph = adjacency(data)
        labels = _communities(graph, 1.0, rng)
        if self.packing == "in_turn":
            check_enough(data.nodes, self.clients + self.holdout)
            owner = deal_in_turn(labels, self.clients + self.holdout, self.slack)
            if not self.holdout:
                owner += 1
        else:
            owner = np.zeros(data.nodes, dtype=np.int64)
            nodes = np.arange(data.nodes)
            if self.holdout:
                community = np.abs(np.bincount(labels) - data.nodes / (self.clients + 1)).argmin()
                nodes = np.flatnonzero(labels != community)
                check_enough(len(nodes), self.clients)
            owner[nodes] = 1 + _balance(graph[nodes][:, nodes], labels[nodes], self.clients, self.slack, rng)
        test_nodes, *client_nodes = group(owner, self.clients + 1)  # the owner 0 is the global test
        parts = self.divide_nodes(data, client_nodes, seed)
        test = edges_among(data, [test_nodes])[0] if data.example == "edge" else test_nodes
        return Partition(parts, test[data.has_label[test]] if self.holdout else None)


def communities(data: Dataset, resolution: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: the Louvain community 0..K-1 of every node."""
    return _communities(adjacency(data), resolution, rng)


def adjacency(data: Dataset) -> sp.csr_matrix:
    """[n, n]: 1 for each edge."""
    return sp.csr_matrix((np.ones(data.edges.shape[1]), tuple(data.edges)), shape=(data.nodes, data.nodes))


def _communities(graph: sp.csr_matrix, resolution: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: community 0..K-1 of every node."""
    from sknetwork.clustering import Louvain as Detector  # 0.2 s that only this partition should pay

    if graph.nnz == 0:
        return np.arange(graph.shape[0])
    seed = int(rng.integers(2**31))
    return np.asarray(Detector(resolution, shuffle_nodes=True, random_state=seed).fit_predict(graph).astype(np.int64))


def _balance(
    graph: sp.csr_matrix, labels: np.ndarray, clients: int, slack: float, rng: np.random.Generator
) -> np.ndarray:
    """int64 [n]: client of every node, given communities `labels` int64 [n]."""
    degree = np.diff(graph.indptr)
    linked = np.flatnonzero(degree)
    isolated = rng.permutation(np.flatnonzero(degree == 0))
    slack = min(slack, clients)  # more slack than room for all nodes changes nothing
    mean = len(linked) / clients
    min_size = 0
    max_size = 1
    if mean >= 1:
        min_size = max(1, math.floor(mean * (1 - slack) + 1e-9))
        max_size = math.ceil(mean * (1 + slack) - 1e-9)
    owner = np.empty(len(labels), dtype=np.int64)
    inner = graph[linked][:, linked]
    owner[linked] = _pack(inner, _refine(inner, labels[linked], max_size, rng), clients, min_size, max_size)
    sizes = np.bincount(owner[linked], minlength=clients)
    smallest = [(int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(smallest)
    for node in isolated:
        size, owner[node] = smallest[0]
        heapq.heapreplace(smallest, (size + 1, int(owner[node])))
    return owner


def _refine(graph: sp.csr_matrix, labels: np.ndarray, max_size: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: communities, those above `max_size` nodes split at rising resolution, all at once per level."""
    resolution = 1.0
    for _ in range(_LEVELS):
        sizes = np.bincount(labels, minlength=1)
        if sizes.max() <= max_size:
            break
        large = np.flatnonzero(sizes[labels] > max_size)
        resolution *= max(_MIN_GROWTH, (sizes.max() / max_size) ** _GROWTH_POWER)
        inside = graph[large][:, large].tocoo()
        same = labels[large][inside.row] == labels[large][inside.col]
        parts = sp.csr_matrix((inside.data[same], (inside.row[same], inside.col[same])), shape=inside.shape)
        labels = labels.copy()
        labels[large] = labels.max() + 1 + _communities(parts, resolution, rng)
        labels = np.unique(labels, return_inverse=True)[1]
    return labels


def _pack(graph: sp.csr_matrix, labels: np.ndarray, clients: int, min_size: int, max_size: int) -> np.ndarray:
    """int64 [n]: client of every node, with min_size <= nodes per client <= max_size; `labels` int64 [n] are
    communities.

    A community that fits nowhere is cut in two along a breadth-first order. `spare` counts the nodes that are not
    needed to lift the small clients to `min_size`; it stays >= 0, so some client may always take one more node.
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee  # slow to import

    owner = np.full(len(labels), -1)  # [n]
    size = np.zeros(clients, dtype=np.int64)  # [P]
    remaining = len(labels)
    pieces = [(-len(nodes), turn, nodes) for turn, nodes in enumerate(group(labels, labels.max(initial=0) + 1))]
    heapq.heapify(pieces)
    turn = len(pieces)
    while remaining:
        _, _, nodes = heapq.heappop(pieces)  # the largest one
        short = np.maximum(min_size - size, 0)
        spare = remaining - short.sum()
        room = np.minimum(max_size - size, short + spare)  # [P]
        if len(nodes) > room.max():
            order = nodes[reverse_cuthill_mckee(graph[nodes][:, nodes], symmetric_mode=True)]
            for half in np.split(order, [room.max()]):
                heapq.heappush(pieces, (-len(half), turn, half))
                turn += 1
            continue
        neighbor_owners = owner[graph[nodes].indices]
        edges = np.bincount(neighbor_owners[neighbor_owners >= 0], minlength=clients)
        score = np.where(room >= len(nodes), edges - size / (max_size + 1), -np.inf)  # edges first, then the smallest
        chosen = score.argmax()
        owner[nodes] = chosen
        size[chosen] += len(nodes)
        remaining -= len(nodes)
    return owner
