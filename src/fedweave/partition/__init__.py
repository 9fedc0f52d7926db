"""Partitions: ways to cut a dataset into clients.

Each is a frozen dataclass (fields = parameters) with the single method `cut(data, seed) -> Partition`. Its class
variable `examples` says whether it can cut a graph's nodes ("node", the default) or a collection of small graphs
("graph").
"""

import numpy as np

from fedweave.core.graph import SPLITS, TEST, TRAIN
from fedweave.core.plugins import Maker, call_plugin, note
from fedweave.datasets import molecules
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition, Partitioner, SaysExamples, TakesSplit, check
from fedweave.partition.communities import Louvain
from fedweave.partition.dirichlet import Dirichlet, Random
from fedweave.partition.divided import Column, Divided, Folders
from fedweave.partition.edges import EdgeGroups
from fedweave.partition.ego_networks import EgoNetworks
from fedweave.partition.graphs import GraphsIID, GraphSkew, Perturbed
from fedweave.partition.label_skew import LabelSkew
from fedweave.partition.metis import LouvainPlus, Metis, MetisPlus
from fedweave.partition.noise import Noise
from fedweave.partition.overlap import Overlap
from fedweave.partition.scaffolds import ScaffoldDirichlet, Scaffolds
from fedweave.partition.shards import ShardClients
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
    "graph_skew": GraphSkew,
    "metis": Metis,
    "louvain_plus": LouvainPlus,
    "metis_plus": MetisPlus,
    "edges": EdgeGroups,
    "scaffold": Scaffolds,
    "scaffold_dirichlet": ScaffoldDirichlet,
    "shards": ShardClients,
}

OWNERS = 'data.owner is not used by this partition; partition.name = "column" makes a client of each owner'

__all__ = [
    "PARTITIONS",
    "Column",
    "Dirichlet",
    "EdgeGroups",
    "EgoNetworks",
    "Folders",
    "GraphSkew",
    "GraphsIID",
    "LabelSkew",
    "Louvain",
    "LouvainPlus",
    "Metis",
    "MetisPlus",
    "Noise",
    "Overlap",
    "Part",
    "Parties",
    "Partition",
    "Perturbed",
    "Random",
    "ScaffoldDirichlet",
    "Scaffolds",
    "ShardClients",
    "Vertical",
    "cut",
    "notes_on_unused",
    "repeats",
    "statistics",
    "totals",
]


def cut(partition: Partitioner, data: Dataset, seed: int) -> Partition:
    """`partition.cut(data, seed)`, if it can cut such data.

    Raises:
        ConfigError: it cuts nodes and the examples are small graphs, or the other way round; names partitions that fit.
            A partition from outside the package fails, or returns no partition of `data`.
    """
    fits = [name for name, kind in PARTITIONS.items() if data.example in _examples(kind)]
    if data.example not in _examples(type(partition)):
        names = {kind: name for name, kind in PARTITIONS.items()}
        partition_name = names.get(type(partition), type(partition).__name__)
        raise ConfigError(
            f"partition.name = {partition_name!r} cuts {' and '.join(_examples(type(partition)))}s, but the "
            f"examples of {data.name!r} are {data.example}s; choose one of {', '.join(fits)}.",
            code="config.examples",
        )
    if type(partition) in PARTITIONS.values():
        return partition.cut(data, seed)
    name = type(partition).__name__
    result = check(call_plugin(f"partition {name!r}", lambda: partition.cut(data, seed), ConfigError), data, name)
    return note(result, Maker(partition, (data, seed)))


def notes_on_unused(partition: object, data: Dataset, result: Partition) -> list[str]:
    """Notes on what came with the data and is not used: its reader's notes, and a split or owners that the partition
    `result` does not follow. `partition` made it, or is None where that is unknown."""
    notes = list(data.notes)
    # 1. The data's own split.
    takes_split = isinstance(partition, TakesSplit) and partition.use_dataset_split
    if data.public is not None and not takes_split and not _follows_split(data.public, result):
        totals_of_split = zip(SPLITS, data.public.sum(1).tolist(), strict=True)
        counts = ", ".join(f"{count:,} {name}" for name, count in totals_of_split)
        remedy = "partition.use_dataset_split = true takes it"
        if not isinstance(partition, TakesSplit):
            kinds = {name: kind for name, kind in PARTITIONS.items() if data.example in _examples(kind)}
            fits = [name for name, kind in kinds.items() if isinstance(kind, TakesSplit)]
            remedy = f"{', '.join(fits)} can take it, by use_dataset_split = true"
        notes.append(f"the data's own split ({counts}) is not used: this partition draws its own; {remedy}")
    # 2. Ratios, where the split is by time or that of links.
    if isinstance(partition, Divided) and (partition.split == "time" or data.links is not None):
        ratios = [name for name in SPLITS if getattr(partition, name) != getattr(type(partition), name)]
        remedy = "data.ratios divides links"
        if partition.split == "time":
            remedy = "a split by time ends where train_until and val_until say"
        if ratios:
            verb = "is" if len(ratios) == 1 else "are"
            notes.append(f"partition.{', partition.'.join(ratios)} {verb} not used: {remedy}")
    # 3. Owners, some of whom may have left.
    follows_owners = result.names is not None and set(result.names) <= set(data.owners or ())
    if data.owner is not None and not follows_owners:
        notes.append(OWNERS)
    return notes


def repeats(data: Dataset, partition: Partition) -> list[str]:
    """Notes on test examples of any client, or of the global test set, that also train somewhere in another row."""
    train = [part.examples[part.masks[TRAIN]] for part in partition.parts]
    test = [part.examples[part.masks[TEST]] for part in partition.parts]
    if partition.test is not None:
        test.append(partition.test)
    return molecules.repeats(data, np.unique(np.concatenate(train)), np.unique(np.concatenate(test)))


def _follows_split(public: np.ndarray, result: Partition) -> bool:
    """Whether all examples are used as the split bool [3, e] says; examples outside it may also train."""
    free = np.asarray(~public.any(0))
    for part in result.parts:
        allowed = public[:, part.examples].copy()
        allowed[TRAIN] |= free[part.examples]
        if (part.masks & ~allowed).any():
            return False
    return True


def _examples(kind: type) -> tuple[str, ...]:
    return kind.examples if isinstance(kind, SaysExamples) else ("node",)
