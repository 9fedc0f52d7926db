"""The IID cut: every node or small graph goes to a client at random."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.splits import check_clients, check_enough


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
