"""How clients' examples are divided into train, val and test, where the partition itself does not: by ratios, by the
data's own split, by time, or by the scaffolds of molecules.

`Column` is the partition by the data's own column: every node, or small graph, belongs to its owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedweave.core.bounds import Fraction, Share
from fedweave.core.graph import SPLITS, TEST, TRAIN
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Beside, Settings
from fedweave.datasets.base import Dataset
from fedweave.datasets.molecules import scaffolds_of
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.ego_networks import edges_among
from fedweave.partition.splits import check_ratios, divide, group, sizes_of_splits

LATEST = 1e5  # days since 1970, the year 2243: later times of data are not dates
SHARES = (0.6, 0.8)  # of the examples until the ends of training and of validation
_DAY = 86_400e6  # microseconds


@dataclass(frozen=True, kw_only=True)
class Divided(Settings):
    """A partition whose clients' examples are divided.

    train, val, test: ratios of every client's labeled examples, stratified by label.
    use_dataset_split:     whether to take the data's own split instead of the ratios.
    split:            "random" draws by the ratios. "time" trains on examples up to `train_until`, validates on examples
                      up to `val_until` and tests on later ones; no message for an example goes along an edge that is
                      later than the end of its split. "scaffold" is for molecules: all with one scaffold are in one
                      of the three. By ratios, the scaffolds that are frequent at a client train and rare ones test.
    train_until, val_until: a time in the data's unit, a date such as "2024-03-31", or a share below 1 of the data's
                      labeled examples, with or without a client; by default .6 and .8.
    """

    train: Share = 0.2
    val: Fraction = 0.4
    test: Fraction = 0.4
    use_dataset_split: bool = False
    split: Literal["random", "time", "scaffold"] = "random"
    train_until: Annotated[float | str | None, Beside("split", "time")] = None
    val_until: Annotated[float | str | None, Beside("split", "time")] = None

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)
        if self.split != "random" and self.use_dataset_split:
            raise ConfigError(
                f'split = "{self.split}": the data\'s own split is taken, too. Leave out split or use_dataset_split.',
                code="config.public-split",
            )
        for name in ("train_until", "val_until"):
            moment(name, getattr(self, name))  # raises an error unless it is a date

    def divide_nodes(self, data: Dataset, nodes: Sequence[np.ndarray], seed: int) -> tuple[Part, ...]:
        """Parts of `nodes`, the sorted nodes of each client, or small graphs where these are the examples. An edge as
        an example belongs to the client that has both ends."""
        examples = edges_among(data, list(nodes)) if data.example == "edge" else nodes
        ratios = (self.train, self.val, self.test)
        if self.split == "time":
            parts = parts_by_time(data, examples, self._end_times(data))
        elif self.split == "scaffold":
            parts = _parts_by_scaffold(data, examples, ratios, seed)
        else:
            parts = divide(data, examples, ratios, self.use_dataset_split, seed)
        if data.example != "edge":
            return parts
        return tuple(replace(part, nodes=numbers) for part, numbers in zip(parts, nodes, strict=True))

    def _end_times(self, data: Dataset) -> tuple[float, float]:
        """The last times of training and of validation."""
        if data.time is None:
            setting = "edge_time" if data.example == "edge" else "node_time"
            raise ConfigError(
                f'partition.split = "time": the {data.example}s of {data.name!r} have no times. Name their column by '
                f"data.{setting}.",
                code="config.no-times",
            )
        if data.edge_attrs is None or data.edge_attrs.time is None:
            raise ConfigError(
                f'partition.split = "time": the edges of {data.name!r}, along which messages go, have no times. Name '
                "their column by data.edge_time."
            )
        times = np.sort(data.time[data.has_label])
        train_until = SHARES[0] if self.train_until is None else self.train_until
        val_until = SHARES[1] if self.val_until is None else self.val_until
        train_end = _time_of_share(moment("train_until", train_until), times)
        val_end = _time_of_share(moment("val_until", val_until), times)
        counts = np.diff([0, *np.searchsorted(times, [train_end, val_end], "right"), len(times)])
        if train_end >= val_end or counts[0] == 0:
            remedy = "Give two times or shares, the second later."
            dates = [setting for setting in (self.train_until, self.val_until) if isinstance(setting, str)]
            if dates and times[-1] > LATEST:
                remedy = (
                    f"The times are numbers, and {dates[0]} is a date: write the times as dates, such as 2024-01-31, "
                    "or give numbers here."
                )
            raise ConfigError(
                f"partition.train_until = {train_end if self.train_until is None else train_until}, val_until = "
                f"{val_end if self.val_until is None else val_until}: divide times {times[0]:.10g} to {times[-1]:.10g} "
                f"badly ({counts[0]:,} train, {counts[1]:,} val, {counts[2]:,} test). {remedy}",
                code="config.times",
            )
        return train_end, val_end


def moment(name: str, value: float | str | None) -> float:
    """A number unchanged, a date or time as days since 1970; NaN for None."""
    if not isinstance(value, str):
        return float("nan") if value is None else float(value)
    try:
        if value.strip().isdigit():  # which NumPy takes for a year
            raise ValueError(value)
        return float(np.datetime64(value, "us").astype(np.int64) / _DAY)
    except ValueError as error:
        raise ConfigError(
            f"{name} = {value!r}: give a time, a date such as 2024-03-31, or a share below 1.", code="config.value"
        ) from error


def _time_of_share(end: float, times: np.ndarray) -> float:
    """The time `end`; if it is a share, the time up to which this share of the sorted `times` lies."""
    if not 0 < end < 1 or not len(times):
        return end
    return float(times[max(0, int(np.ceil(end * len(times) - 1e-9)) - 1)])


def parts_by_time(data: Dataset, examples: Sequence[np.ndarray], split_times: tuple[float, float]) -> tuple[Part, ...]:
    """Parts of `examples` (int64, sorted, for each client), split by the last times of training and of validation."""
    time = np.asarray(data.time)
    split = np.searchsorted(split_times, time)  # an example at the end of a split is in that split
    masks = (split == np.arange(3)[:, None]) & data.has_label  # [3, e]
    parts = [Part.of(data, numbers, masks[:, numbers]) for numbers in examples]
    return tuple(replace(part, split_times=split_times) for part in parts)


def largest_first(numbers: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(number, how often it occurs) of int64 [m] that count from 0, the most frequent first, ties in a random order."""
    counts = np.bincount(numbers)
    order = rng.permutation(len(counts))
    order = order[np.argsort(-counts[order], kind="stable")]
    return [(int(at), int(counts[at])) for at in order]


def _parts_by_scaffold(
    data: Dataset, examples: Sequence[np.ndarray], ratios: tuple[float, float, float], seed: int
) -> tuple[Part, ...]:
    """The split of MoleculeNet (Wu et al. 2018) inside each client. Scaffolds, the largest first, go to the first of
    train, val and test that has room for all their molecules. If none has, they go to the test, or to none of the three
    where the ratios leave some over. A client that would not train trains on its smallest scaffold."""
    scaffolds = scaffolds_of(data)
    rng = generator(seed, "partition/split/scaffold")
    parts = []
    for client_examples in examples:
        labeled = np.flatnonzero(data.has_label[client_examples])
        numbers = np.unique(scaffolds[client_examples[labeled]], return_inverse=True)[1]
        room = sizes_of_splits(np.array([len(labeled)]), ratios)[0]
        last = TEST if room.sum() == len(labeled) else len(SPLITS)
        order = largest_first(numbers, rng)
        split = np.full(len(order), last)  # of each scaffold
        for scaffold, count in order:
            fitting = np.flatnonzero(count <= room)
            if len(fitting):
                split[scaffold] = fitting[0]
            if split[scaffold] < len(SPLITS):
                room[split[scaffold]] -= count
        if len(order) and not (split == TRAIN).any():
            split[order[-1][0]] = TRAIN
        masks = np.zeros((len(SPLITS), len(client_examples)), bool)
        masks[:, labeled] = split[numbers] == np.arange(len(SPLITS))[:, None]
        parts.append(Part.of(data, client_examples, masks))
    return tuple(parts)


@dataclass(frozen=True)
class Column(Divided):
    """A client for each owner that the data names, in order of name; edges between owners are lost."""

    examples: ClassVar[tuple[str, ...]] = ("node", "graph", "edge")
    remedy: ClassVar[str] = 'Name the column of {}s that has it, such as data.owner = "branch"'

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        if data.owner is None:
            remedy = f'{self.remedy.format(data.unit)}, or take a partition without owners: partition.name = "louvain"'
            message = f"partition: the {data.unit}s of {data.name!r} have no owner. {remedy}."
            raise ConfigError(message, code="config.no-owners")
        parts = self.divide_nodes(data, group(data.owner, len(data.owners)), seed)
        return Partition(parts, names=data.owners)


@dataclass(frozen=True)
class Folders(Column):
    """A client for each sub-folder of the data set "members", in order of name."""

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    remedy: ClassVar[str] = 'Set data.name = "members" and data.path to a folder with a sub-folder for each member'
