"""The cut that the data itself says: every node, or small graph, is its owner's."""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.core.maker import noted
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.splits import check_ratios, divide, group


@dataclass(frozen=True)
class Column:
    """A client for each owner that the data names, in order of name; edges between owners are lost.

    train, val, test: ratios of every client's labelled examples, stratified by label.
    public_split:     take the data's own column split instead of the ratios.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "graph")
    remedy: ClassVar[str] = 'name the column of {}s that says whose they are, such as [data] owner = "branch"'
    train: float = 0.2
    val: float = 0.4
    test: float = 0.4
    public_split: bool = False

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into its owners' parts.

        Raises:
            ConfigError: the data names no owners, or has no split although one is asked for.
        """
        if data.owner is None:
            remedy = self.remedy.format(data.example)
            raise ConfigError(f"[partition]: nobody says whose the {data.example}s of {data.name!r} are; {remedy}.")
        held = group(data.owner, len(data.owners))
        parts = divide(data, held, (self.train, self.val, self.test), self.public_split, seed)
        return Partition(parts, names=data.owners)


@dataclass(frozen=True)
class Folders(Column):
    """A client for each sub-folder of the data set "members", in order of name."""

    examples: ClassVar[tuple[str, ...]] = ("node",)
    remedy: ClassVar[str] = 'set [data] name = "members" and path to a folder with a sub-folder for each member'
