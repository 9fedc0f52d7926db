"""Communities as clients: few edges are cut, sizes are balanced."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.bounds import Clients, Count, NonNegative, Positive
from fedweave.core.plugins import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.base import Partition, check_enough, group, need_classes
from fedweave.partition.divided import Divided
from fedweave.partition.ego_networks import edges_among


def dealt(labels: np.ndarray, parts: int, slack: float) -> np.ndarray:
    """int64 [n]: the part 0..parts-1 of every node, given communities `labels` int64 [n].

    With equal shares of n / parts nodes, communities above (1 - slack) of one are chopped into pieces of that size, in
    the order of nodes. Then, largest first, each piece goes to the next part in turn that it fills to (1 + slack) of a
    share at most; where none has room, to the smallest. No part is empty if there are at least `parts` nodes.
    """
    share = len(labels) / parts
    piece, most = max(1, int(share * (1 - slack) + 1e-9)), int(share * (1 + slack) + 1e-9)
    whole = group(labels, labels.max(initial=0) + 1)
    pieces = [nodes[at : at + piece] for nodes in whole for at in range(0, len(nodes), piece)]
    part, size, turn = np.empty(len(labels), dtype=np.int64), np.zeros(parts, dtype=np.int64), 0
    for nodes in sorted(pieces, key=len, reverse=True):
        order = (turn + np.arange(parts)) % parts
        room = order[size[order] + len(nodes) <= most]
        chosen = int(room[0]) if len(room) else int(size.argmin())
        part[nodes] = chosen
        size[chosen] += len(nodes)
        turn = chosen + 1
    return part


_FINER = 1.3  # least growth of the resolution per level; 2 keeps 1 % fewer of Cora's edges
_HASTE = 1 / 3  # further growth by the power of (largest / allowed size); loses no edges, 1/2 would, 0 is half as fast
_LEVELS = 40  # _FINER ** 40 = 36,000; larger communities are then cut along a breadth-first order


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
                      FederatedScope (`dealt`). Clients are more alike then, and more edges are cut.
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

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts and, with `holdout`, a global test set.

        Raises:
            ConfigError: fewer nodes than clients (outside the held-out community), or no published split.
        """
        check_enough(data.nodes, self.clients)
        rng = generator(seed, "partition/louvain")
        graph = _adjacency(data)
        labels = _communities(graph, 1.0, rng)
        if self.packing == "in_turn":
            check_enough(data.nodes, self.clients + self.holdout)
            hand = dealt(labels, self.clients + self.holdout, self.slack) + (not self.holdout)
        else:
            hand = self._linked(graph, labels, rng)
        out, *held = group(hand, self.clients + 1)
        parts = self.divided(data, held, seed)
        tested = edges_among(data, [out])[0] if data.example == "edge" else out
        return Partition(parts, tested[data.labeled[tested]] if self.holdout else None)

    def _linked(self, graph: sp.csr_matrix, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 [n]: the client of every node, counted from 1; 0 is the global test."""
        hand, nodes = np.zeros(len(labels), dtype=np.int64), np.arange(len(labels))
        if self.holdout:
            out = labels == np.abs(np.bincount(labels) - len(labels) / (self.clients + 1)).argmin()
            nodes = np.flatnonzero(~out)
            check_enough(len(nodes), self.clients)
        hand[nodes] = 1 + _balance(graph[nodes][:, nodes], labels[nodes], self.clients, self.slack, rng)
        return hand


def communities(data: Dataset, resolution: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: the Louvain community 0..K-1 of every node."""
    return _communities(_adjacency(data), resolution, rng)


def _adjacency(data: Dataset) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(data.edges.shape[1]), tuple(data.edges)), shape=(data.nodes, data.nodes))


def _communities(graph: sp.csr_matrix, resolution: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: community 0..K-1 of every node."""
    from sknetwork.clustering import Louvain as Detector  # 0.2 s that only this partition should pay

    if graph.nnz == 0:
        return np.arange(graph.shape[0])
    seed = int(rng.integers(2**31))
    result: np.ndarray = Detector(resolution, shuffle_nodes=True, random_state=seed).fit_predict(graph).astype(np.int64)
    return result


def _balance(
    graph: sp.csr_matrix, labels: np.ndarray, clients: int, slack: float, rng: np.random.Generator
) -> np.ndarray:
    """int64 [n]: client of every node, given communities `labels` int64 [n]."""
    degree = np.diff(graph.indptr)
    linked, isolated = np.flatnonzero(degree), rng.permutation(np.flatnonzero(degree == 0))
    mean, slack = len(linked) / clients, min(slack, clients)  # more slack than room for all nodes changes nothing
    most = math.ceil(mean * (1 + slack) - 1e-9) if mean >= 1 else 1
    least = max(1, math.floor(mean * (1 - slack) + 1e-9)) if mean >= 1 else 0
    owner = np.empty(len(labels), dtype=np.int64)
    inner = graph[linked][:, linked]
    owner[linked] = _pack(inner, _refine(inner, labels[linked], most, rng), clients, least, most)
    smallest = [(int(size), client) for client, size in enumerate(np.bincount(owner[linked], minlength=clients))]
    heapq.heapify(smallest)
    for node in isolated:
        size, owner[node] = smallest[0]
        heapq.heapreplace(smallest, (size + 1, int(owner[node])))
    return owner


def _refine(graph: sp.csr_matrix, labels: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: communities, those above `most` nodes split at rising resolution, all at once per level."""
    resolution = 1.0
    for _ in range(_LEVELS):
        sizes = np.bincount(labels, minlength=1)
        if sizes.max() <= most:
            break
        large = np.flatnonzero(sizes[labels] > most)
        resolution *= max(_FINER, (sizes.max() / most) ** _HASTE)
        inside = graph[large][:, large].tocoo()
        same = labels[large][inside.row] == labels[large][inside.col]
        parts = sp.csr_matrix((inside.data[same], (inside.row[same], inside.col[same])), shape=inside.shape)
        labels = labels.copy()
        labels[large] = labels.max() + 1 + _communities(parts, resolution, rng)
        labels = np.unique(labels, return_inverse=True)[1]
    return labels


def _pack(graph: sp.csr_matrix, labels: np.ndarray, clients: int, least: int, most: int) -> np.ndarray:
    """int64 [n]: client of every node, with least <= nodes per client <= most; `labels` int64 [n] are communities.

    A community that fits nowhere is cut in two along a breadth-first order. `spare` counts the nodes that are not
    needed to lift the small clients to `least`; it stays >= 0, so some client may always take one more node.
    """
    owner, size = np.full(len(labels), -1), np.zeros(clients, dtype=np.int64)
    left = len(labels)
    pieces = [(-len(nodes), turn, nodes) for turn, nodes in enumerate(group(labels, labels.max(initial=0) + 1))]
    from scipy.sparse.csgraph import reverse_cuthill_mckee  # slow to import

    heapq.heapify(pieces)
    turn = len(pieces)
    while left:
        _, _, nodes = heapq.heappop(pieces)
        short = np.maximum(least - size, 0)
        spare = left - short.sum()
        room = np.minimum(most - size, short + spare)
        if len(nodes) > room.max():
            order = nodes[reverse_cuthill_mckee(graph[nodes][:, nodes], symmetric_mode=True)]
            for half in np.split(order, [room.max()]):
                heapq.heappush(pieces, (-len(half), turn, half))
                turn += 1
            continue
        near = owner[graph[nodes].indices]
        edges = np.bincount(near[near >= 0], minlength=clients)
        score = np.where(room >= len(nodes), edges - size / (most + 1), -np.inf)  # edges first, then the smallest
        chosen = score.argmax()
        owner[nodes] = chosen
        size[chosen] += len(nodes)
        left -= len(nodes)
    return owner


# ----------------------------------------------------------------------------------------------------
# Clients of equal size between which METIS cuts as few edges as it can (Karypis and Kumar 1998, "A fast and high
# quality multilevel scheme for partitioning irregular graphs"), and clients of communities with similar labels, as
# "louvain_plus" and "metis_plus" of OpenFGL (Li et al. 2025, "OpenFGL: a comprehensive benchmark for federated graph
# learning").


@dataclass(frozen=True)
class Metis(Divided):
    """Disjoint clients by METIS: sizes within a few per cent, few edges cut, as in FED-PUB and later work. Needs
    `pip install 'fedweave[metis]'`.

    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    clients: Clients = 10

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer nodes than clients, METIS leaves a client without nodes, or no published split.
            UserError: pymetis is not installed.
        """
        check_enough(data.nodes, self.clients)
        owner = parts_of(data, self.clients, generator(seed, "partition/metis"))
        return Partition(self.divided(data, held(owner, self.clients), seed))


def parts_of(data: Dataset, parts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: METIS's part 0..parts-1 of every node.

    Raises:
        UserError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError as error:
        raise UserError(
            "the partitions metis and metis_plus need pymetis: pip install 'fedweave[metis]'. Without it, louvain cuts "
            "few edges, too.",
            code="user.metis",
        ) from error
    graph = sp.csr_matrix((np.ones(data.edges.shape[1]), tuple(data.edges)), shape=(data.nodes, data.nodes))
    adjacency = pymetis.CSRAdjacency(adj_starts=graph.indptr, adjacent=graph.indices)
    _, owner = pymetis.part_graph(parts, adjacency, options=pymetis.Options(seed=int(rng.integers(2**31))))
    return np.asarray(owner, dtype=np.int64)


def held(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted nodes of every client, from the client of each node.

    Raises:
        ConfigError: a client has no node.
    """
    nodes = group(owner, clients)
    if empty := sum(not len(members) for members in nodes):
        raise ConfigError(f"partition.clients = {clients}: {empty} of them would hold no node. Lower clients.")
    return nodes


@dataclass(frozen=True)
class LouvainPlus(Divided):
    """Disjoint clients; k-means joins Louvain communities with similar shares of labels into one client. Sizes differ
    much, and labels more than with `louvain`.

    clients:          number of clients, P.
    resolution:       resolution of Louvain; more gives more and smaller communities.
    """

    clients: Clients = 10
    resolution: Positive = 1.0

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer communities that differ in labels than clients, or no published split.
        """
        check_enough(data.nodes, self.clients)
        rng = generator(seed, "partition/louvain_plus")
        owner = _alike(data, communities(data, self.resolution, rng), self.clients, rng, "raise resolution")
        parts = self.divided(data, held(owner, self.clients), seed)
        return Partition(parts)


@dataclass(frozen=True)
class MetisPlus(Metis):
    """Disjoint clients; k-means joins METIS parts with similar shares of labels into one client. Needs `pip install
    'fedweave[metis]'`.

    communities: number of parts that METIS makes.
    """

    examples: ClassVar[tuple[str, ...]] = ("node",)
    communities: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.communities < self.clients:
            raise ConfigError(
                f"communities = {self.communities}: must be at least clients, which is {self.clients}.",
                code="config.value",
            )

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer nodes than communities, fewer communities that differ in labels than clients, or no
                published split. UserError: pymetis is not installed.
        """
        check_enough(data.nodes, self.communities)
        rng = generator(seed, "partition/metis_plus")
        owner = _alike(data, parts_of(data, self.communities, rng), self.clients, rng, "raise communities")
        parts = self.divided(data, held(owner, self.clients), seed)
        return Partition(parts)


def _alike(data: Dataset, community: np.ndarray, clients: int, rng: np.random.Generator, remedy: str) -> np.ndarray:
    """int64 [n]: the client of every node; k-means joins communities by the shares of labels among their nodes.

    Raises:
        ConfigError: there are fewer different communities than clients.
    """
    from sklearn.cluster import KMeans

    need_classes(data, "louvain_plus and metis_plus join communities of like classes")
    names, community = np.unique(community, return_inverse=True)
    known = data.y >= 0
    cell = community[known] * data.classes + data.y[known]
    counts = np.bincount(cell, minlength=len(names) * data.classes).reshape(len(names), data.classes)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if (different := len(np.unique(shares, axis=0))) < clients:
        raise ConfigError(
            f"partition.clients = {clients}: only {different} communities differ in labels. Lower clients or {remedy}.",
            code="config.communities",
        )
    seed = int(rng.integers(2**31))
    clusters = KMeans(clients, n_init=10, random_state=seed).fit_predict(shares)
    result: np.ndarray = clusters[community].astype(np.int64)
    return result
