"""Partitions of molecules by their Bemis-Murcko scaffolds: laboratories work on chemical series of their own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedweave.core.bounds import Clients
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.datasets.molecules import scaffolds_of
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.dirichlet import Dirichlet
from fedweave.partition.divided import Divided, largest_first
from fedweave.partition.splits import check_enough, group

_DRAWS = 100


@dataclass(frozen=True, kw_only=True)
class Scaffolds(Divided):
    """Molecules by scaffold: all with one scaffold are at one client.

    The scaffold with the most molecules is dealt first, each to the client that has the fewest so far. So sizes differ
    by at most the size of the largest scaffold. The seed draws the order of scaffolds that are equally large. Molecules
    without a ring are one scaffold.

    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("graph",)
    clients: Clients = 10
    train: float = 0.8
    val: float = 0.1
    test: float = 0.1

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        scaffolds = np.unique(scaffolds_of(data), return_inverse=True)[1]
        check_enough(int(scaffolds.max()) + 1, self.clients, example="scaffold")
        sizes, client = np.zeros(self.clients, np.int64), np.empty(int(scaffolds.max()) + 1, np.int64)
        for scaffold, count in largest_first(scaffolds, generator(seed, "partition/scaffold")):
            client[scaffold] = sizes.argmin()
            sizes[client[scaffold]] += count
        return Partition(self.divide_nodes(data, group(client[scaffolds], self.clients), seed))


@dataclass(frozen=True, kw_only=True)
class ScaffoldDirichlet(Dirichlet):
    """Molecules by scaffold, each scaffold spread over the clients in proportions ~ Dirichlet(alpha).

    As in FLIT+ (Zhu et al. 2022, "Federated learning of molecular properties with graph neural networks in a
    heterogeneous setting") and FederatedScope's `scaffold_lda`, with scaffolds instead of classes. As in their code, a
    client that has its equal share gets nothing more. Here the largest scaffolds are dealt first, and a scaffold's
    molecules are drawn one by one by its proportions. Otherwise rounding would deal all scaffolds with a single
    molecule to one client.

    alpha:            concentration, > 0; small is heterogeneous, large approaches equal shares.
    min_nodes:        smallest number of molecules per client; a draw that gives a client fewer is repeated, at most
                      100 times.
    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("graph",)
    train: float = 0.8
    val: float = 0.1
    test: float = 0.1

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.examples, self.clients, self.min_nodes, data.example)
        scaffolds = np.unique(scaffolds_of(data), return_inverse=True)[1]
        rng = generator(seed, "partition/scaffold_dirichlet")
        members = group(scaffolds, int(scaffolds.max()) + 1)
        for _ in range(_DRAWS):
            owner, sizes = np.empty(data.examples, np.int64), np.zeros(self.clients, np.int64)
            for scaffold, count in largest_first(scaffolds, rng):
                below = sizes < data.examples / self.clients
                share = np.where(below, rng.dirichlet(np.full(self.clients, self.alpha)), 0.0)
                if share.sum() == 0:  # with a small alpha nothing may be left for clients with room
                    share = below.astype(np.float64)
                owner[members[scaffold]] = rng.choice(self.clients, count, p=share / share.sum())
                sizes += np.bincount(owner[members[scaffold]], minlength=self.clients)
            if np.bincount(owner, minlength=self.clients).min() >= self.min_nodes:
                return Partition(self.divide_nodes(data, group(owner, self.clients), seed))
        raise ConfigError(
            f"partition.alpha = {self.alpha}: none of {_DRAWS} draws gave each of {self.clients} clients "
            f"min_nodes = {self.min_nodes} of {data.examples}. Raise alpha, or lower min_nodes or clients.",
            code="config.draws",
        )
