"""Clients of equal size between which METIS cuts as few edges as it can (Karypis and Kumar 1998, "A fast and high
quality multilevel scheme for partitioning irregular graphs"), and clients of communities that are alike in labels, as
"louvain_plus" and "metis_plus" of OpenFGL (Li et al. 2025, "OpenFGL: a comprehensive benchmark for federated graph
learning").
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.louvain import communities
from fedweave.partition.splits import check_clients, check_enough, group


@dataclass(frozen=True)
class Metis(Divided):
    """Disjoint clients by METIS: sizes within a few per cent, few edges cut, as in FED-PUB and what follows it. Needs
    `pip install 'fedweave[metis]'`.

    clients:          how many, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    clients: int = 10

    def __post_init__(self) -> None:
        check_clients(self.clients)
        super().__post_init__()

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
    """The sorted nodes of every client, given each node's.

    Raises:
        ConfigError: a client has none.
    """
    found = group(owner, clients)
    if empty := sum(not len(own) for own in found):
        raise ConfigError(f"[partition] clients = {clients}: {empty} of them would hold no node; lower clients.")
    return found


@dataclass(frozen=True)
class LouvainPlus(Divided):
    """Disjoint clients, each of the Louvain communities whose shares of labels k-means puts together. Sizes differ
    much, and labels more than by `louvain`.

    clients:          how many, P.
    resolution:       of Louvain; more gives more and smaller communities.
    """

    clients: int = 10
    resolution: float = 1.0

    def __post_init__(self) -> None:
        check_clients(self.clients)
        super().__post_init__()
        if not 0 < self.resolution < math.inf:
            raise ConfigError(f"[partition] resolution = {self.resolution}: must be a number above 0, such as 1.")

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
    """Disjoint clients, each of the METIS parts whose shares of labels k-means puts together. Needs `pip install
    'fedweave[metis]'`.

    communities: how many parts METIS makes.
    """

    examples: ClassVar[tuple[str, ...]] = ("node",)
    communities: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.communities < self.clients:
            raise ConfigError(f"[partition] communities = {self.communities}: at least clients = {self.clients}.")

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
        ConfigError: there are fewer different ones than clients.
    """
    from sklearn.cluster import KMeans

    names, community = np.unique(community, return_inverse=True)
    known = data.y >= 0
    cell = community[known] * data.classes + data.y[known]
    counts = np.bincount(cell, minlength=len(names) * data.classes).reshape(len(names), data.classes)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if (different := len(np.unique(shares, axis=0))) < clients:
        raise ConfigError(
            f"[partition] clients = {clients}, but only {different} communities differ in labels; lower clients or "
            f"{remedy}.",
            code="config.communities",
        )
    seed = int(rng.integers(2**31))
    clusters = KMeans(clients, n_init=10, random_state=seed).fit_predict(shares)
    result: np.ndarray = clusters[community].astype(np.int64)
    return result
