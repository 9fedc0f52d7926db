"""What clients that are not called keep, a row for each; where it is much, in files that are mapped into memory, which
take none while nobody asks for it."""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import DiskFull

_IN_MEMORY = 256 << 20  # bytes of one leaf, beyond which it is in a file
_LOADED = 1 << 20  # bytes of an array, beyond which `seldom` has it in a file
_FIRST = 64  # rows


class Filed:
    """Rows of stacked leaves, each for ever its client's own, on the host.

    like: {path: a stacked leaf} with their shapes and dtypes; numbers and strings are those of all rows.
    leaves: the same with as many rows as there is room for.
    """

    def __init__(self, like: Mapping[str, Any]) -> None:
        self.leaves: dict[str, Any] = dict(like)
        self._rows: dict[str, int] = {}
        self._grow(_FIRST, 0)

    def put(self, clients: Sequence[str], leaves: Mapping[str, Any], rows: Sequence[int] | None = None) -> list[int]:
        """Keep some `rows` of stacked leaves, None: all, as those of as many clients; gives their rows here.

        Raises:
            DiskFull: there is no room for the file.
        """
        held = len(self._rows)
        at = [self._rows.setdefault(client, len(self._rows)) for client in clients]
        if len(self._rows) > self._room:
            self._grow(max(2 * self._room, len(self._rows)), held)
        there = torch.tensor(at, device="cpu")
        chosen = None if rows is None else torch.tensor(rows, device="cpu")
        for path, leaf in leaves.items():
            if isinstance(leaf, Tensor):
                own = leaf if chosen is None else leaf.index_select(0, chosen.to(leaf.device))
                self.leaves[path].index_copy_(0, there, own.to("cpu"))
        return at

    def _grow(self, room: int, held: int) -> None:
        self._room = room
        for path, leaf in self.leaves.items():
            if isinstance(leaf, Tensor):
                self.leaves[path] = roomy((room, *leaf.shape[1:]), leaf.dtype)
                self.leaves[path][:held] = leaf[:held]


def roomy(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the host; where it is large, in a file without a name, which goes with it.

    Raises:
        DiskFull: there is no room for the file.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= _IN_MEMORY:
        return torch.empty(shape, dtype=dtype, device="cpu")
    with _space(size, "what clients keep that are not called") as file:
        mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
    return torch.from_numpy(mapped).view(dtype).view(*shape)


def seldom(array: np.ndarray) -> np.ndarray:
    """Numbers that are seldom looked at; where they are many, in a file without a name, of which memory has what was
    looked at last.

    Raises:
        DiskFull: there is no room for the file.
    """
    if array.nbytes <= _LOADED:
        return array
    with _space(array.nbytes, "the data of a run on workers") as file:
        array.tofile(file)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "c", shape=array.shape))


@contextmanager
def _space(size: int, what: str) -> Iterator[IO[bytes]]:
    """A file without a name with room for so many bytes."""
    with tempfile.TemporaryFile() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        except OSError as error:
            raise DiskFull(
                f"{size / 1e9:.1f} GB for {what} cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror}. Free space there, or name another place by the environment variable TMPDIR."
            ) from error
        yield file
