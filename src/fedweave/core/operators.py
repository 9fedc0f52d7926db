"""What layers multiply by: the interface of edges (of a whole graph, ego-graphs, a sample of neighbors, or a mini-batch
of small graphs), and the matrices by which messages pass and small graphs are pooled, in SciPy
(`core.edges.Edges.operator` defines each). And what is precomputed on a client's data for an algorithm that asks for
it.
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
            ValueError: the name is unknown here; lists the known names.
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


def add_self_loops(a: sp.csr_matrix) -> sp.csr_matrix:
    """A + I."""
    return a + sp.eye(a.shape[0], dtype=a.dtype, format="csr")


def _mean_or_self(a: sp.csr_matrix) -> sp.csr_matrix:
    isolated = sp.diags((np.diff(a.indptr) == 0).astype(a.dtype))
    return sp.csr_matrix(mean(a) + isolated)


def _gcn(a: sp.csr_matrix) -> sp.csr_matrix:
    loops = add_self_loops(a)
    scale = sp.diags(1 / np.sqrt(np.asarray(loops.sum(1)).ravel()))
    return scale @ loops @ scale


def normalize_symmetric(a: sp.csr_matrix) -> sp.csr_matrix:
    """D^-1/2 A D^-1/2 with D the sums of the rows, 0 where that is 0."""
    degree = np.asarray(a.sum(1)).ravel()
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return sp.csr_matrix(scale @ a @ scale)


def _two_hops(a: sp.csr_matrix) -> sp.csr_matrix:
    within_two = sp.csr_matrix(((a @ a) > 0).astype(a.dtype))
    two_hops = sp.csr_matrix(within_two - within_two.multiply(add_self_loops(a) > 0))
    two_hops.eliminate_zeros()
    return normalize_symmetric(two_hops)


OPERATORS = {
    "sum": lambda a: a,
    "sum_with_self": add_self_loops,
    "mean": mean,
    "mean_or_self": _mean_or_self,
    "gcn": _gcn,
    "neighbours": normalize_symmetric,
    "two_hops": _two_hops,
}
POOLS = {"pool_sum": lambda members: members, "pool_mean": mean}


NODES, EXAMPLES = "nodes", "examples"
Value = TypeVar("Value")


class Precomputed(NamedTuple):
    """Arrays and matrices that were precomputed on a client's graph as it was loaded, beside the fields of every graph.

    arrays:   {name: [r, …]}, which steps see as `Graph.extra`.
    matrices: {name: [r, …]}, for builders of registered matrices (`core.edge_list.register_matrix`).
    along:    {name: what its rows stand for: `NODES`, `EXAMPLES`, or the name of a list that all clients pad to one
              length}.
    words:    {name: names of its rows for people}, where rows have such names.
    """

    arrays: Mapping[str, np.ndarray] = {}
    matrices: Mapping[str, sp.csr_matrix] = {}
    along: Mapping[str, str] = {}
    words: Mapping[str, tuple[str, ...]] = {}

    @classmethod
    def merge(cls, several: Sequence["Precomputed"]) -> "Precomputed":
        """All entries of several objects."""
        arrays = dict[str, np.ndarray]()
        matrices = dict[str, sp.csr_matrix]()
        along = dict[str, str]()
        words = dict[str, tuple[str, ...]]()
        for one in several:
            arrays.update(one.arrays)
            matrices.update(one.matrices)
            along.update(one.along)
            words.update(one.words)
        return cls(arrays, matrices, along, words)

    @property
    def lists(self) -> dict[str, int]:
        """{list: its length}, on which clients agree (`core.sizes.common_lengths`)."""
        lengths = {self.along[name]: array.shape[0] for name, array in (*self.arrays.items(), *self.matrices.items())}
        return {name: size for name, size in lengths.items() if name not in (NODES, EXAMPLES)}

    def pad(self, sizes: Mapping[str, int]) -> "Precomputed":
        """The arrays and matrices, padded with rows of -1, or empty rows, up to the `sizes` of what rows stand for."""
        arrays, matrices = dict(self.arrays), dict(self.matrices)
        for name, array in self.arrays.items():
            missing = sizes.get(self.along[name], len(array)) - len(array)
            arrays[name] = np.pad(array, ((0, missing), *[(0, 0)] * (array.ndim - 1)), constant_values=-1)
        for name, matrix in self.matrices.items():
            missing = sizes.get(self.along[name], matrix.shape[0]) - matrix.shape[0]
            matrices[name] = sp.vstack([matrix, sp.csr_matrix((missing, matrix.shape[1]), dtype=matrix.dtype)], "csr")
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
