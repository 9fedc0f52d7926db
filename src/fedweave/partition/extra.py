"""What algorithms have looked for in clients' data before any step runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from fedweave.core.extra import Extra
from fedweave.core.sizes import agreed
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition


class Finder(Protocol):
    """Looks for something in clients' data; equal ones find the same. `algorithms.parts.Needs.finder` asks for it."""

    def everywhere(self, data: Dataset, partition: Partition) -> Sequence[Extra]:
        """What each of all clients has, in their order.

        Raises:
            ConfigError, DataError: there is nothing like it in such data.
        """
        ...

    def alone(self, data: Dataset, folder: Path) -> Extra:
        """What a client finds that is alone with its `data`, whose split is in `public`; it may keep files in `folder`.

        Raises:
            ConfigError, DataError: there is nothing like it in such data, or nobody who is alone can know it.
        """
        ...

    def tables(self, found: Mapping[str, Extra]) -> Mapping[str, pa.Table]:
        """{file: a table for readers} of what clients have, by their ids."""
        ...


@runtime_checkable
class HasFinders(Protocol):
    """An algorithm that may have something looked for."""

    @property
    def finders(self) -> tuple[Finder, ...]:
        """What looks for it."""
        ...


def finders_of(algorithm: object) -> tuple[Finder, ...]:
    """What an algorithm has looked for; () if nothing."""
    return algorithm.finders if isinstance(algorithm, HasFinders) else ()


def everywhere(finders: Sequence[Finder], data: Dataset, partition: Partition) -> list[Extra]:
    """What each client has of all that is looked for; lists of one length."""
    each = [finder.everywhere(data, partition) for finder in finders]
    found = [Extra.joined(own) for own in zip(*each, strict=True)] if each else [Extra()] * len(partition.parts)
    sizes = agreed(own.lists for own in found)
    return [own.padded(sizes) for own in found]
