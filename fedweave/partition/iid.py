"""The IID cut: every node goes to a client at random."""

from dataclasses import dataclass

import numpy as np

from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition
from fedweave.partition.splits import check_clients, check_enough, check_ratios, divide


@dataclass(frozen=True)
class Random:
    """Uniformly random disjoint clients whose sizes differ by at most one node.

    clients:          how many, P.
    train, val, test: ratios of every client's labelled nodes, stratified by label (see `splits.divide`).
    public_split:     take the dataset's published masks instead of the ratios.
    """

    clients: int = 10
    train: float = 0.2
    val: float = 0.4
    test: float = 0.4
    public_split: bool = False

    def __post_init__(self) -> None:
        check_clients(self.clients)
        check_ratios(self.train, self.val, self.test)

    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer nodes than clients, or no published split although one is asked for.
        """
        check_enough(data.nodes, self.clients)
        order = generator(seed, "partition/random").permutation(data.nodes)
        held = [np.sort(nodes) for nodes in np.array_split(order, self.clients)]
        return Partition(divide(data, held, (self.train, self.val, self.test), self.public_split, seed))
