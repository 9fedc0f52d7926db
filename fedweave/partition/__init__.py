"""Partitions: ways to cut a dataset into clients.

Each is a frozen dataclass (fields = parameters) with the single method `cut(data, seed) -> Partition`.
"""

from fedweave.partition.base import Part, Partition
from fedweave.partition.dirichlet import Dirichlet
from fedweave.partition.ego_networks import EgoNetworks
from fedweave.partition.iid import Random
from fedweave.partition.label_skew import LabelSkew
from fedweave.partition.louvain import Louvain
from fedweave.partition.statistics import statistics, totals
from fedweave.partition.vertical import Parties, Vertical

PARTITIONS: dict[str, type] = {
    "louvain": Louvain,
    "label_skew": LabelSkew,
    "dirichlet": Dirichlet,
    "random": Random,
    "ego_networks": EgoNetworks,
    "vertical": Vertical,
    "parties": Parties,
}

__all__ = [
    "PARTITIONS",
    "Dirichlet",
    "EgoNetworks",
    "LabelSkew",
    "Louvain",
    "Part",
    "Parties",
    "Partition",
    "Random",
    "Vertical",
    "statistics",
    "totals",
]
