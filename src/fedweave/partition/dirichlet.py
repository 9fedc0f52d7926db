"""Nodes or small graphs dealt to clients at random: alike to all, or each class in shares of its own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.splits import check_clients, check_enough, group


@dataclass(frozen=True)
class Random(Divided):
    """Uniformly random disjoint clients whose sizes differ by at most one node, or small graph.

    clients:          how many, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph", "edge")
    clients: int = 10

    def __post_init__(self) -> None:
        check_clients(self.clients)
        super().__post_init__()

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer examples than clients, or no published split although one is asked for.
        """
        check_enough(data.dealt, self.clients, example=data.dealt_as)
        order = generator(seed, "partition/random").permutation(data.dealt)
        held = [np.sort(own) for own in np.array_split(order, self.clients)]
        return Partition(self.divided(data, held, seed))


_DRAWS = 100  # a setting that fails this often is asking for the improbable
_MOST_ALPHA = 1e9  # concentration far above which shares are the same, and some are no numbers


@dataclass(frozen=True)
class Dirichlet(Divided):
    """Disjoint clients; each label's nodes, or small graphs, spread over them in proportions ~ Dirichlet(alpha).

    The cut of Hsu, Qi and Brown (2019, "Measuring the effects of non-identical data distribution") in the per-label
    form of Li et al. (2022, "Federated learning on non-IID data silos"). Unlabelled examples are spread uniformly.

    alpha:            concentration, > 0; small is heterogeneous, large approaches equal shares.
    min_nodes:        least examples per client; proportions are redrawn, at most 100 times, until all have as many.
    clients:          how many, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph")
    clients: int = 10
    alpha: float = 0.5
    min_nodes: int = 5

    def __post_init__(self) -> None:
        check_clients(self.clients)
        super().__post_init__()
        if not 0 < self.alpha <= _MOST_ALPHA:
            allowed = f"must be above 0 and at most {_MOST_ALPHA:g}; 0.5 is common, 100 nearly uniform"
            raise ConfigError(
                f"[partition] alpha = {self.alpha}: {allowed}, and the partition random is uniform.",
                code="config.value",
            )
        if self.min_nodes < 1:
            raise ConfigError(
                f"[partition] min_nodes = {self.min_nodes}: must be a whole number >= 1.", code="config.value"
            )

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: too few examples; no draw gave every client `min_nodes`; no published split.
        """
        check_enough(data.examples, self.clients, self.min_nodes, data.example)
        rng = generator(seed, "partition/dirichlet")
        counts = self._counts(np.bincount(data.y + 1, minlength=data.classes + 1), rng)
        order = rng.permutation(data.examples)
        order = order[np.argsort(data.y[order], kind="stable")]
        owner = np.empty(data.examples, dtype=np.int64)
        owner[order] = np.repeat(np.tile(np.arange(self.clients), len(counts)), counts.ravel())
        held = group(owner, self.clients)
        return Partition(self.divided(data, held, seed))

    def _counts(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 [1 + c, P]: examples of each label per client; `sizes` int64 [1 + c], the unlabelled first."""
        for _ in range(_DRAWS):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(sizes))
            shares[0] = 1 / self.clients
            ends = np.rint(shares.cumsum(axis=1) * sizes[:, None]).astype(np.int64)
            ends[:, -1] = sizes
            counts: np.ndarray = np.diff(ends, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_nodes:
                return counts
        raise ConfigError(
            f"[partition] none of {_DRAWS} draws with alpha = {self.alpha} gave each of {self.clients} clients "
            f"min_nodes = {self.min_nodes} of {sizes.sum()}; raise alpha, or lower min_nodes or clients.",
            code="config.draws",
        )
