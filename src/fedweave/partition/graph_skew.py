"""Collections of small graphs cut by what the graphs are like (OpenFGL's feature and topology skew)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedweave.core.maker import noted
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.splits import check_clients, check_enough, check_ratios, divide

BY = ("features", "degree")


@dataclass(frozen=True)
class GraphSkew:
    """Small graphs in the order of one number, in pieces of equal size: the first client holds those with the least.

    by:               "features", the mean over a graph's nodes and columns, or "degree", the mean over its nodes
                      (feature skew and topology skew). Equal graphs stay in the order of the data.
    clients:          how many, P.
    train, val, test: ratios of every client's labelled graphs, stratified by label.
    public_split:     take the dataset's published masks instead of the ratios.
    """

    examples: ClassVar[tuple[str, ...]] = ("graph",)
    by: Literal["features", "degree"] = "features"
    clients: int = 10
    train: float = 0.8
    val: float = 0.1
    test: float = 0.1
    public_split: bool = False

    def __post_init__(self) -> None:
        check_clients(self.clients)
        check_ratios(self.train, self.val, self.test)
        if self.by not in BY:
            raise ConfigError(f"[partition] by = {self.by!r}: must be 'features' or 'degree'.")

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer graphs than clients, or no published split.
        """
        check_enough(data.examples, self.clients, example=data.example)
        if self.by == "degree":
            of_nodes = np.bincount(data.edges[0], minlength=data.nodes).astype(np.float64)
        else:
            of_nodes = np.asarray(data.x.mean(1), dtype=np.float64).ravel()
        graph_of = np.asarray(data.graph_of)
        means = np.bincount(graph_of, of_nodes) / np.bincount(graph_of)
        held = [np.sort(own) for own in np.array_split(np.argsort(means, kind="stable"), self.clients)]
        return Partition(divide(data, held, (self.train, self.val, self.test), self.public_split, seed))
