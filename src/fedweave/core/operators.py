"""The matrices by which messages pass and small graphs are pooled, in SciPy (`core.edges.Edges.operator` says what each
is), and what a layer may ask of edges, whatever they are of: a whole graph, ego-graphs, a sample of neighbours, a
mini-batch of small graphs.
"""

from typing import Protocol

import numpy as np
import scipy.sparse as sp
from torch import Tensor


class Operator(Protocol):
    """A constant matrix [m, n] that a layer multiplies by."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, …)."""
        ...

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Its product [m, k] with h [n, k]; differentiable in h, and one product for all clients of a batch."""
        ...


class MessagePassing(Protocol):
    """Edges among n rows of h, one for each node."""

    @property
    def shrinks(self) -> bool:
        """Whether message passing returns fewer rows, m, than it receives, n: those of the first m nodes."""
        ...

    def operator(self, kind: str) -> Operator:
        """The matrix [m, n] of a kind of message passing, or of pooling, [examples, n] (see `core.edges.Edges`).

        Raises:
            ValueError: there is no such matrix here; says which there are.
        """
        ...

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The rows of h [n, k] that get new values, and for each of them the mean over its neighbours, both [m, k], for
        `kind` "mean" or "mean_or_self".

        Raises:
            ValueError: there is no such mean here.
        """
        ...


def mean(a: sp.csr_matrix) -> sp.csr_matrix:
    """Every row of `a` divided by its sum; rows whose sum is 0 stay empty."""
    degree = np.asarray(a.sum(1)).ravel()
    return sp.diags(np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)) @ a


def looped(a: sp.csr_matrix) -> sp.csr_matrix:
    """A + I."""
    return a + sp.eye(a.shape[0], dtype=a.dtype, format="csr")


def _mean_or_self(a: sp.csr_matrix) -> sp.csr_matrix:
    alone = sp.diags((np.diff(a.indptr) == 0).astype(a.dtype))
    return sp.csr_matrix(mean(a) + alone)


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
