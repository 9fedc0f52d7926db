"""Nodes or small graphs dealt to clients at random: uniformly, or each class in shares of its own."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedweave.core.bounds import Clients, Count
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.splits import check_classes, check_enough, group


@dataclass(frozen=True)
class Random(Divided):
    """Uniformly random disjoint clients whose sizes differ by at most one node, or small graph.

    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph", "edge")
    clients: Clients = 10

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.units, self.clients, example=data.unit)
        order = generator(seed, "partition/random").permutation(data.units)
        examples = [np.sort(piece) for piece in np.array_split(order, self.clients)]
        return Partition(self.divide_nodes(data, examples, seed))


_DRAWS = 100  # settings that fail this often are too improbable
_MAX_ALPHA = 1e9  # far above this concentration all shares are equal, and some are NaN


@dataclass(frozen=True)
class Dirichlet(Divided):
    """Disjoint clients; each label's nodes, or small graphs, spread over them in proportions ~ Dirichlet(alpha).

    The partition of Hsu, Qi and Brown (2019, "Measuring the effects of non-identical data distribution") in the
    per-label form of Li et al. (2022, "Federated learning on non-IID data silos"). Unlabeled examples are spread
    uniformly.

    alpha:            concentration, > 0; small is heterogeneous, large approaches equal shares.
    min_nodes:        smallest number of examples per client; proportions that give a client fewer are drawn again, at
                      most 100 times.
    clients:          number of clients, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph")
    clients: Clients = 10
    alpha: Annotated[float, Field(gt=0, le=_MAX_ALPHA)] = 0.5
    min_nodes: Count = 5

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_classes(data, "dirichlet deals each class in shares of its own")
        check_enough(data.examples, self.clients, self.min_nodes, data.example)
        rng = generator(seed, "partition/dirichlet")
        counts = self._counts(np.bincount(data.y + 1, minlength=data.classes + 1), rng)  # [1 + c, P]
        order = rng.permutation(data.examples)
        order = order[np.argsort(data.y[order], kind="stable")]  # label after label, each in a random order
        owner = np.empty(data.examples, dtype=np.int64)
        owner[order] = np.repeat(np.tile(np.arange(self.clients), len(counts)), counts.ravel())
        return Partition(self.divide_nodes(data, group(owner, self.clients), seed))

    def _counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 [1 + c, P]: examples of each label per client; `sizes` int64 [1 + c], the unlabeled first."""
        for _ in range(_DRAWS):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(sizes))
            shares[0] = 1 / self.clients
            ends = np.rint(shares.cumsum(axis=1) * sizes[:, None]).astype(np.int64)
            ends[:, -1] = sizes
            counts: np.ndarray = np.diff(ends, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_nodes:
                return counts
        raise ConfigError(
            f"partition.alpha = {self.alpha}: none of {_DRAWS} draws gave each of {self.clients} clients "
            f"min_nodes = {self.min_nodes} of {sizes.sum()}. Raise alpha, or lower min_nodes or clients.",
            code="config.draws",
        )
