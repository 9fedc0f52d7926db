"""Partitions: ways to cut a dataset into clients.

Each is a frozen dataclass (fields = parameters) with the single method `cut(data, seed) -> Partition`. Its class
variable `examples` says whether it can cut a graph's nodes ("node", the default) or a collection of small graphs
("graph").
"""

from typing import Any

from fedweave.core.graph import TRAIN
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.outside import called
from fedweave.partition.base import Part, Partition
from fedweave.partition.check import check
from fedweave.partition.dirichlet import Dirichlet
from fedweave.partition.ego_networks import EgoNetworks
from fedweave.partition.graphs import GraphsIID, Perturbed
from fedweave.partition.iid import Random
from fedweave.partition.label_skew import LabelSkew
from fedweave.partition.louvain import Louvain
from fedweave.partition.overlap import Overlap
from fedweave.partition.owners import Column, Folders
from fedweave.partition.statistics import statistics, totals
from fedweave.partition.vertical import Parties, Vertical

PARTITIONS: dict[str, type] = {
    "louvain": Louvain,
    "label_skew": LabelSkew,
    "dirichlet": Dirichlet,
    "random": Random,
    "column": Column,
    "folders": Folders,
    "ego_networks": EgoNetworks,
    "overlap": Overlap,
    "vertical": Vertical,
    "parties": Parties,
    "graphs_iid": GraphsIID,
    "perturbed": Perturbed,
}

OWNERS = 'data.owner is not used by this partition; partition.name = "column" makes a client of each owner'

__all__ = [
    "PARTITIONS",
    "Column",
    "Dirichlet",
    "EgoNetworks",
    "Folders",
    "GraphsIID",
    "LabelSkew",
    "Louvain",
    "Overlap",
    "Part",
    "Parties",
    "Partition",
    "Perturbed",
    "Random",
    "Vertical",
    "cut",
    "statistics",
    "totals",
    "unused",
]


def cut(partition: Any, data: Dataset, seed: int) -> Partition:
    """`partition.cut(data, seed)`, if it can cut such data.

    Raises:
        ConfigError: it cuts nodes and the examples are small graphs, or the other way round; names those that fit. It
            comes from outside the package and fails, or what it returns is no cut of `data`.
    """
    fits = [name for name, kind in PARTITIONS.items() if data.example in _examples(kind)]
    if data.example not in _examples(type(partition)):
        own = next((name for name, kind in PARTITIONS.items() if kind is type(partition)), type(partition).__name__)
        raise ConfigError(
            f"partition.name = {own!r} cuts {' and '.join(_examples(type(partition)))}s, but the examples of "
            f"{data.name!r} are {data.example}s; choose one of {', '.join(fits)}."
        )
    if type(partition) in PARTITIONS.values():
        return partition.cut(data, seed)  # type: ignore[no-any-return]
    name = type(partition).__name__
    return check(called(f"partition {name!r}", lambda: partition.cut(data, seed), ConfigError), data, name)


def unused(partition: Any, data: Dataset, found: Partition) -> list[str]:
    """What to say of a split and owners of one's own that the cut `found` of `data`, which `partition` made, does not
    go by."""
    owners = [] if data.owner is None or isinstance(partition, Column) else [OWNERS]
    return [*filter(None, [_unused_split(partition, data, found)]), *owners]


def _unused_split(partition: Any, data: Dataset, found: Partition) -> str:
    public = data.public if data.ids else None
    if public is None or all((public[TRAIN][part.examples] == part.masks[TRAIN]).all() for part in found.parts):
        return ""
    if hasattr(partition, "public_split"):
        return "the tables' column split is not used, but ratios; partition.public_split = true takes it"
    fits = [
        name for name, kind in PARTITIONS.items() if data.example in _examples(kind) and hasattr(kind, "public_split")
    ]
    return f"the tables' column split is not used: this partition draws its own; {', '.join(fits)} can take it"


def _examples(kind: type) -> tuple[str, ...]:
    return getattr(kind, "examples", ("node",))
