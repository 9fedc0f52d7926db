"""The IID cut: every node or small graph goes to a client at random."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition
from fedweave.partition.splits import check_clients, check_enough, check_ratios, divide


@dataclass(frozen=True)
class Random:
    """Uniformly random disjoint clients whose sizes differ by at most one node, or small graph.

    clients:          how many, P.
    train, val, test: ratios of every client's labelled examples, stratified by label.
    public_split:     take the dataset's published masks instead of the ratios.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph")
    clients: int = 10
    train: float = 0.2
    val: float = 0.4
    test: float = 0.4
    public_split: bool = False

    def __post_init__(self) -> None:
        check_clients(self.clients)
        check_ratios(self.train, self.val, self.test)

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer examples than clients, or no published split although one is asked for.
        """
        check_enough(data.examples, self.clients, example=data.example)
        order = generator(seed, "partition/random").permutation(data.examples)
        held = [np.sort(own) for own in np.array_split(order, self.clients)]
        return Partition(divide(data, held, (self.train, self.val, self.test), self.public_split, seed))
