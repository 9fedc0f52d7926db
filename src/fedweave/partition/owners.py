"""The cut that the data itself says: every node, or small graph, is its owner's."""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.core.maker import noted
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.splits import group


@dataclass(frozen=True)
class Column(Divided):
    """A client for each owner that the data names, in order of name; edges between owners are lost."""

    examples: ClassVar[tuple[str, ...]] = ("node", "graph", "edge")
    remedy: ClassVar[str] = 'name the column of {}s that says whose they are, such as [data] owner = "branch"'

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into its owners' parts.

        Raises:
            ConfigError: the data names no owners, or has no split although one is asked for.
        """
        if data.owner is None:
            remedy = self.remedy.format(data.dealt_as)
            raise ConfigError(
                f"[partition]: nobody says whose the {data.dealt_as}s of {data.name!r} are; {remedy}.",
                code="config.no-owners",
            )
        held = group(data.owner, len(data.owners))
        parts = self.divided(data, held, seed)
        return Partition(parts, names=data.owners)


@dataclass(frozen=True)
class Folders(Column):
    """A client for each sub-folder of the data set "members", in order of name."""

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    remedy: ClassVar[str] = 'set [data] name = "members" and path to a folder with a sub-folder for each member'
