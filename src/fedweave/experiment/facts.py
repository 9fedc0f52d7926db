"""What a run checks and reports of its data and clients, beside what trains. `fedweave shard` writes it down, so that
the main process of a cluster's run opens no shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedweave.core.graph import TRAIN, VAL
from fedweave.core.types import CLASS, Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.notes import feature_notes, name_notes, single_class_notes, time_notes, validation_notes
from fedweave.metrics.kinds import selection_of
from fedweave.metrics.selection import Judging
from fedweave.partition import notes_on_unused, repeats
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.statistics import totals


@dataclass(frozen=True)
class DataFacts:
    """The facts of data that is not opened.

    columns: see `partition.statistics.statistics`. totals: see `totals_of`. notes: see `data_notes`. digests: see
    `datasets.contents.digests`. form: the fields of `experiment.runs.data_form.DataForm`. used: examples that clients
    train or are evaluated on. entries: see `experiment.shelf.runs.entries_of`. amounts, edge_amounts: whether "auto"
    scales some feature of nodes, and of edges.
    """

    columns: dict[str, list[Any]]
    totals: dict[str, int]
    notes: Sequence[str]
    digests: dict[str, str]
    form: Record
    used: int
    entries: float
    amounts: bool
    edge_amounts: bool


def totals_of(data: Dataset, partition: Partition) -> dict[str, int]:
    """`partition.statistics.totals`, with the edges as listed ("given") and those to other members' nodes in members'
    own tables ("elsewhere"), where there are any."""
    numbers = totals(data, partition)
    if data.edge_attrs is not None:
        numbers["given"] = data.edge_attrs.total
    if data.outside is not None:
        numbers["elsewhere"] = data.outside.edge_attrs.total
    return numbers


def positive_in_data(judging: Judging, data: Dataset, train: np.ndarray) -> int | None:
    """The number of the positive class, as a run chooses it; None unless examples are of two classes.

    train: the training examples, int64.

    Raises:
        ConfigError: the data has no such class.
    """
    if data.target != CLASS or data.links is not None or data.classes != 2:
        return None
    y = data.y[train]
    return selection_of(judging.of(data.labels, data.classes), np.bincount(y[y >= 0], minlength=2))[1]


def data_notes(partitioner: object, data: Dataset, partition: Partition, judging: Judging) -> list[str]:
    """Notes on odd data, and on what came with it and is not used. partitioner: what made the partition."""
    names = client_ids(len(partition.parts), partition.names)
    nodes = {name: part.nodes for name, part in zip(names, partition.parts, strict=True)}
    of_cut = (*notes_on_unused(partitioner, data, partition), *repeats(data, partition))
    of_columns = (*single_class_notes(data), *name_notes(data), *feature_notes(data))
    train, validation = [np.zeros(0, np.int64)], dict[str, np.ndarray]()
    for name, part in zip(names, partition.parts, strict=True):
        if part.labels:
            train.append(part.examples[part.masks[TRAIN]])
            validation[name] = part.examples[part.masks[VAL]]
    positive = positive_in_data(judging, data, np.concatenate(train))
    of_members = validation_notes(data, validation, positive).values()
    return [*of_cut, *of_columns, *of_members, *time_notes(data, partition.parts[0].split_times, nodes)]
