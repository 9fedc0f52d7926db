"""The matrices by which messages pass and small graphs are pooled, in SciPy; `core.edges.Edges.operator` says what each
is."""

import numpy as np
import scipy.sparse as sp

MOTIF_MEAN = "motif_mean"
KINDS_SUM, KINDS_SPREAD = "kinds_sum", "kinds_spread"
RETURNS, DEGREES = 16, 16  # columns of "structure"


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


def _without_self(a: sp.csr_matrix) -> sp.csr_matrix:
    degree = np.asarray(a.sum(1)).ravel()
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return sp.csr_matrix(scale @ a @ scale)


def _two_hops(a: sp.csr_matrix) -> sp.csr_matrix:
    reached = sp.csr_matrix(((a @ a) > 0).astype(a.dtype))
    beyond = sp.csr_matrix(reached - reached.multiply(looped(a) > 0))
    beyond.eliminate_zeros()
    return _without_self(beyond)


def _structure(a: sp.csr_matrix) -> sp.csr_matrix:
    degree = np.diff(a.indptr)
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros(len(degree)), where=degree > 0))
    walk = sp.csr_matrix(scale @ a.astype(np.float64) @ scale)  # similar to D^-1 A, with the same diagonals of powers
    powers = [walk]
    for _ in range(1, RETURNS // 2):
        powers.append(powers[-1] @ walk)
    pairs = ((powers[(k + 1) // 2 - 1], powers[k // 2 - 1]) for k in range(2, RETURNS + 1))
    returns = [walk.diagonal(), *(np.asarray(one.multiply(other).sum(1)).ravel() for one, other in pairs)]
    classes = np.eye(DEGREES)[np.clip(degree, 1, DEGREES) - 1] * (degree > 0)[:, None]
    return sp.csr_matrix(np.concatenate([np.stack(returns, 1), classes], 1).astype(a.dtype))


OPERATORS = {
    "structure": _structure,
    "sum": lambda a: a,
    "sum_with_self": looped,
    "mean": mean,
    "mean_or_self": _mean_or_self,
    "gcn": _gcn,
    "neighbours": _without_self,
    "two_hops": _two_hops,
}
POOLS = {"pool_sum": lambda members: members, "pool_mean": mean}
