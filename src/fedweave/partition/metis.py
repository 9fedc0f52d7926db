"""Clients of equal size between which METIS cuts as few edges as it can (Karypis and Kumar 1998, "A fast and high
quality multilevel scheme for partitioning irregular graphs"), and clients of communities with similar labels, as
"louvain_plus" and "metis_plus" of OpenFGL (Li et al. 2025, "OpenFGL: a comprehensive benchmark for federated graph
learning").
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedweave.core.bounds import Clients, Count, Positive
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.communities import adjacency, communities
from fedweave.partition.divided import Divided
from fedweave.partition.splits import check_classes, check_enough, group


@dataclass(frozen=True)
class Metis(Divided):
    """Disjoint clients by METIS: sizes within a few per cent, few edges cut, as in FED-PUB and later work. Needs
    `pip install 'fedweave[metis]'`.

    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    clients: Clients = 10

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.nodes, self.clients)
        owner = metis_parts(data, self.clients, generator(seed, "partition/metis"))
        return Partition(self.divide_nodes(data, nodes_of_clients(owner, self.clients), seed))


def metis_parts(data: Dataset, parts: int, rng: np.random.Generator) -> np.ndarray:
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
    graph = adjacency(data)
    neighbors = pymetis.CSRAdjacency(adj_starts=graph.indptr, adjacent=graph.indices)
    _, owner = pymetis.part_graph(parts, neighbors, options=pymetis.Options(seed=int(rng.integers(2**31))))
    return np.asarray(owner, dtype=np.int64)


def nodes_of_clients(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted nodes of every client, from the client of each node."""
    nodes = group(owner, clients)
    empty = sum(not len(members) for members in nodes)
    if empty:
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

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.nodes, self.clients)
        rng = generator(seed, "partition/louvain_plus")
        owner = _join_similar(data, communities(data, self.resolution, rng), self.clients, rng, "raise resolution")
        return Partition(self.divide_nodes(data, nodes_of_clients(owner, self.clients), seed))


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
            message = f"communities = {self.communities}: must be at least clients, which is {self.clients}."
            raise ConfigError(message, code="config.value")

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.nodes, self.communities)
        rng = generator(seed, "partition/metis_plus")
        owner = _join_similar(data, metis_parts(data, self.communities, rng), self.clients, rng, "raise communities")
        return Partition(self.divide_nodes(data, nodes_of_clients(owner, self.clients), seed))


def _join_similar(
    data: Dataset, community: np.ndarray, clients: int, rng: np.random.Generator, remedy: str
) -> np.ndarray:
    """int64 [n]: the client of every node; k-means joins communities by the shares of labels among their nodes."""
    from sklearn.cluster import KMeans

    check_classes(data, "louvain_plus and metis_plus join communities of like classes")
    names, community = np.unique(community, return_inverse=True)
    known = data.y >= 0
    cell = community[known] * data.classes + data.y[known]
    counts = np.bincount(cell, minlength=len(names) * data.classes).reshape(len(names), data.classes)  # [K, c]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    different = len(np.unique(shares, axis=0))
    if different < clients:
        raise ConfigError(
            f"partition.clients = {clients}: only {different} communities differ in labels. Lower clients or {remedy}.",
            code="config.communities",
        )
    seed = int(rng.integers(2**31))
    clusters = KMeans(clients, n_init=10, random_state=seed).fit_predict(shares)
    return np.asarray(clusters[community].astype(np.int64))
