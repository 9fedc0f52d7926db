"""What was looked for in a client's data besides what all graphs have, for an algorithm that asks for it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

NODES, EXAMPLES = "nodes", "examples"
Found = TypeVar("Found")


class Extra(NamedTuple):
    """What belongs to a client's graph as it was loaded.

    arrays:   {name: [r, …]}, which steps see as `Graph.extra`.
    matrices: {name: [r, …]}, for makers of `derived` operators.
    along:    {name: what the rows of it are: `NODES`, `EXAMPLES`, or the name of a list that all clients pad to one
              length}.
    words:    {name: what people call its rows}, where they have such words.
    """

    arrays: Mapping[str, np.ndarray] = {}
    matrices: Mapping[str, sp.csr_matrix] = {}
    along: Mapping[str, str] = {}
    words: Mapping[str, tuple[str, ...]] = {}

    @classmethod
    def joined(cls, several: Sequence["Extra"]) -> "Extra":
        """All that these have."""
        return cls(*({name: own for one in each for name, own in one.items()} for each in zip(*several, strict=True)))

    @property
    def lists(self) -> dict[str, int]:
        """{list: its length}, on which clients agree (`core.sizes.agreed`)."""
        own = {self.along[name]: array.shape[0] for name, array in (*self.arrays.items(), *self.matrices.items())}
        return {name: size for name, size in own.items() if name not in (NODES, EXAMPLES)}

    def padded(self, sizes: Mapping[str, int]) -> "Extra":
        """The same with rows of -1, or empty ones, up to the sizes of what they are along, where these are given."""
        arrays, matrices = dict(self.arrays), dict(self.matrices)
        for name, own in self.arrays.items():
            more = sizes.get(self.along[name], len(own)) - len(own)
            arrays[name] = np.pad(own, ((0, more), *[(0, 0)] * (own.ndim - 1)), constant_values=-1)
        for name, matrix in self.matrices.items():
            more = sizes.get(self.along[name], matrix.shape[0]) - matrix.shape[0]
            matrices[name] = sp.vstack([matrix, sp.csr_matrix((more, matrix.shape[1]), dtype=matrix.dtype)], "csr")
        return self._replace(arrays=arrays, matrices=matrices)


def asked(found: Mapping[str, Found], name: str) -> Found:
    """What was found under a name.

    Raises:
        ValueError: nobody looked for it.
    """
    if name not in found:
        raise ValueError(
            f"no {name} are known here; they are looked for in data as it is loaded, where an algorithm asks for them"
        )
    return found[name]
