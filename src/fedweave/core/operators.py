"""The matrices by which messages pass and small graphs are pooled, in SciPy (`core.edges.Edges.operator` defines each),
and the interface of edges that layers use: a whole graph, ego-graphs, a sample of neighbors, or a mini-batch of small
graphs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp
from torch import Tensor


class Operator(Protocol):
    """A constant matrix [m, n] that a layer multiplies by."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, …)."""

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Its product [m, k] with h [n, k]; differentiable in h, and one product for all clients of a batch."""


class MessagePassing(Protocol):
    """Edges among n rows of h, one for each node."""

    @property
    def shrinks(self) -> bool:
        """Whether message passing returns fewer rows, m, than it receives, n: the rows of the first m nodes."""

    def operator(self, kind: str) -> Operator:
        """The matrix [m, n] of a kind of message passing, or of pooling, [examples, n] (see `core.edges.Edges`).

        Raises:
            ValueError: there is no such matrix here; lists those that there are.
        """

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The rows of h [n, k] that get new values, and for each of them the mean over its neighbors, both [m, k], for
        `kind` "mean" or "mean_or_self".

        Raises:
            ValueError: there is no such mean here.
        """


def mean(a: sp.csr_matrix) -> sp.csr_matrix:
    """Every row of `a` divided by its sum; rows whose sum is 0 stay empty."""
    degree = np.asarray(a.sum(1)).ravel()
    return sp.diags(np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)) @ a


def looped(a: sp.csr_matrix) -> sp.csr_matrix:
    """A + I."""
    return a + sp.eye(a.shape[0], dtype=a.dtype, format="csr")


def _mean_or_self(a: sp.csr_matrix) -> sp.csr_matrix:
    isolated = sp.diags((np.diff(a.indptr) == 0).astype(a.dtype))
    return sp.csr_matrix(mean(a) + isolated)


def _gcn(a: sp.csr_matrix) -> sp.csr_matrix:
    whole = looped(a)
    scale = sp.diags(1 / np.sqrt(np.asarray(whole.sum(1)).ravel()))
    return scale @ whole @ scale


def normalised(a: sp.csr_matrix) -> sp.csr_matrix:
    """D^-1/2 A D^-1/2 with D the sums of the rows, 0 where that is 0."""
    degree = np.asarray(a.sum(1)).ravel()
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return sp.csr_matrix(scale @ a @ scale)


def _two_hops(a: sp.csr_matrix) -> sp.csr_matrix:
    reached = sp.csr_matrix(((a @ a) > 0).astype(a.dtype))
    beyond = sp.csr_matrix(reached - reached.multiply(looped(a) > 0))
    beyond.eliminate_zeros()
    return normalised(beyond)


OPERATORS = {
    "sum": lambda a: a,
    "sum_with_self": looped,
    "mean": mean,
    "mean_or_self": _mean_or_self,
    "gcn": _gcn,
    "neighbours": normalised,
    "two_hops": _two_hops,
}
POOLS = {"pool_sum": lambda members: members, "pool_mean": mean}


# ----------------------------------------------------------------------------------------------------
# What is precomputed on a client's data, in addition to the fields of every graph, for an algorithm that asks for it.


NODES, EXAMPLES = "nodes", "examples"
Value = TypeVar("Value")


class Precomputed(NamedTuple):
    """Precomputed arrays and matrices of a client's graph as it was loaded.

    arrays:   {name: [r, …]}, which steps see as `Graph.extra`.
    matrices: {name: [r, …]}, for makers of `derived` operators.
    along:    {name: what its rows stand for: `NODES`, `EXAMPLES`, or the name of a list that all clients pad to one
              length}.
    words:    {name: names of its rows for people}, where rows have such names.
    """

    arrays: Mapping[str, np.ndarray] = {}
    matrices: Mapping[str, sp.csr_matrix] = {}
    along: Mapping[str, str] = {}
    words: Mapping[str, tuple[str, ...]] = {}

    @classmethod
    def joined(cls, several: Sequence["Precomputed"]) -> "Precomputed":
        """All entries of several objects."""
        return cls(
            *({name: value for one in each for name, value in one.items()} for each in zip(*several, strict=True))
        )

    @property
    def lists(self) -> dict[str, int]:
        """{list: its length}, on which clients agree (`core.sizes.agreed`)."""
        lengths = {self.along[name]: array.shape[0] for name, array in (*self.arrays.items(), *self.matrices.items())}
        return {name: size for name, size in lengths.items() if name not in (NODES, EXAMPLES)}

    def padded(self, sizes: Mapping[str, int]) -> "Precomputed":
        """The arrays and matrices, padded with rows of -1, or empty rows, up to the `sizes` of what rows stand for."""
        arrays, matrices = dict(self.arrays), dict(self.matrices)
        for name, array in self.arrays.items():
            more = sizes.get(self.along[name], len(array)) - len(array)
            arrays[name] = np.pad(array, ((0, more), *[(0, 0)] * (array.ndim - 1)), constant_values=-1)
        for name, matrix in self.matrices.items():
            more = sizes.get(self.along[name], matrix.shape[0]) - matrix.shape[0]
            matrices[name] = sp.vstack([matrix, sp.csr_matrix((more, matrix.shape[1]), dtype=matrix.dtype)], "csr")
        return self._replace(arrays=arrays, matrices=matrices)


def lookup_precomputed(precomputed: Mapping[str, Value], name: str) -> Value:
    """The value that was precomputed under a name.

    Raises:
        ValueError: no algorithm asked for it.
    """
    if name not in precomputed:
        raise ValueError(
            f"{name!r} was not precomputed; declare it in the algorithm's `finders`, so that data is loaded with it"
        )
    return precomputed[name]
