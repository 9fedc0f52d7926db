"""What algorithms precompute on clients' data before any step runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from fedweave.core.operators import Precomputed
from fedweave.core.sizes import common_lengths
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition


class Precompute(Protocol):
    """A precomputation on clients' data; equal objects give equal results. See `algorithms.parts.Needs.finder`."""

    def everywhere(self, data: Dataset, partition: Partition) -> Sequence[Precomputed]:
        """The result of each client, in their order."""

    def alone(self, data: Dataset, folder: Path) -> Precomputed:
        """The result of a client that has only its own `data`, whose split is in `public`; it may store files in
        `folder`."""

    def tables(self, results: Mapping[str, Precomputed]) -> Mapping[str, pa.Table]:
        """{file: a table for readers} of the clients' results, by their ids."""


def everywhere(finders: Sequence[Precompute], data: Dataset, partition: Partition) -> list[Precomputed]:
    """The results of all precomputations for each client, with lists of one length."""
    if finders:
        by_finder = [finder.everywhere(data, partition) for finder in finders]
        results = [Precomputed.merge(pieces) for pieces in zip(*by_finder, strict=True)]
    else:
        results = [Precomputed()] * len(partition.parts)
    sizes = common_lengths(pieces.lists for pieces in results)
    return [pieces.pad(sizes) for pieces in results]
