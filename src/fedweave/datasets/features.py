"""How node features are stored and scaled."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedweave.errors import ConfigError

OVER_NODES = ("scale", "standard", "minmax")  # depend on which other nodes there are
NORMALISE = ("none", "row", "binary", *OVER_NODES)

# Above this share of nonzeros a dense product is faster than a sparse one, and hardly larger in memory.
DENSE_FROM = 0.2


def compact(x: "np.ndarray | sp.csr_matrix") -> "np.ndarray | sp.csr_matrix":
    """The same float32 [n, d] matrix, as `csr_matrix` if its share of nonzeros is below `DENSE_FROM`, else dense."""
    nonzero = np.count_nonzero(x) if isinstance(x, np.ndarray) else x.nnz
    if nonzero < DENSE_FROM * x.shape[0] * x.shape[1]:
        return sp.csr_matrix(x)
    return x if isinstance(x, np.ndarray) else x.toarray()


def one_hot(numbers: np.ndarray, columns: int | None = None) -> sp.csr_matrix:
    """float32 [m, columns]: 1 in column `numbers[i]` of row i, for int64 [m] from 0; a row of zeros for -1. `columns`
    is the highest number + 1 if None."""
    known = np.flatnonzero(numbers >= 0)
    width = int(numbers.max(initial=-1)) + 1 if columns is None else columns
    ones = np.ones(len(known), np.float32)
    return sp.csr_matrix((ones, (known, numbers[known])), shape=(len(numbers), width))


def check_normalise(how: str) -> None:
    """Raise ConfigError unless `how` is one of `NORMALISE`."""
    if how not in NORMALISE:
        raise ConfigError(f"normalise = {how!r} is not known; choose one of {', '.join(NORMALISE)}.")


def scaling(over: "np.ndarray | sp.csr_matrix", how: str) -> tuple[np.ndarray, np.ndarray]:
    """(shift, divisor), float64 [d] each: `normalise` makes (x - shift) / divisor of a column x; a constant one it
    leaves ("scale") or sets to 0, which is a divisor of infinity.

    over: features float32 [n, d] as they are. how: one of `OVER_NODES`.
    """
    if how == "minmax":
        known = np.asarray(over, np.float64)
        low, span = known.min(0), np.ptp(known, 0)
        return low + span / 2, np.where(span > 0, span / 2, np.inf)
    from sklearn.preprocessing import StandardScaler  # slow to import

    scaler = StandardScaler(with_mean=how == "standard").fit(over.astype(np.float64))
    constant = (scaler.var_ == 0) & (how == "standard")
    shift = scaler.mean_ if how == "standard" else np.zeros(over.shape[1])
    return shift, np.where(constant, np.inf, scaler.scale_)


def normalise(
    x: "np.ndarray | sp.csr_matrix", how: str, name: str, over: "np.ndarray | sp.csr_matrix | None" = None
) -> "np.ndarray | sp.csr_matrix":
    """Scale features float32 [m, d], columns by what they are over the n nodes `over` float32 [n, d], by default x
    itself.

    "none":     as they are.
    "row":      each row divided by the sum of its absolute values (Kipf and Welling 2017, section 5.2); rows of zeros
                stay.
    "binary":   1 where a feature is not 0, as for the words of a text that are counted or weighed elsewhere.
    "scale":    each column divided by its standard deviation over all n nodes, so that zeros stay zeros and sparse
                features sparse; constant columns stay.
    "standard": each column to mean 0 and standard deviation 1 over all n nodes; constant columns become 0.
    "minmax":   each column to [-1, 1] over all n nodes, 2 (x - min) / (max - min) - 1 (`feature_norm` in the code of
                FairGNN, Dai and Wang 2021, and NIFTY, Agarwal et al. 2021); constant columns become 0.

    Raises:
        ConfigError: `how` is unknown, or is "standard" or "minmax" for sparse features, which would make them dense.
    """
    check_normalise(how)
    over = x if over is None else over
    if how == "none":
        return x
    if how == "binary":
        return (x != 0).astype(np.float32)
    from sklearn.preprocessing import StandardScaler, normalize  # takes seconds to load

    if how == "row":
        return normalize(x, norm="l1")
    if how == "scale":
        scaler = StandardScaler(with_mean=False).fit(over.astype(np.float64))
        return scaler.transform(x.astype(np.float64)).astype(np.float32)
    if sp.issparse(over):
        raise ConfigError(
            f'normalise = "{how}" would fill the sparse features of {name} ({over.shape[0]} x {over.shape[1]}); '
            'use "none", "row" or "scale".'
        )
    known = np.asarray(over, np.float64)  # float32 sums over many rows would lose digits
    wide = np.asarray(x.toarray() if isinstance(x, sp.csr_matrix) else x, np.float64)
    if how == "standard":
        return StandardScaler().fit(known).transform(wide).astype(np.float32)
    low, span = known.min(0), np.ptp(known, 0)
    scaled = 2 * np.divide(wide - low, span, out=np.full_like(wide, 0.5), where=span > 0) - 1
    return scaled.astype(np.float32)


def rescaled(
    x: "np.ndarray | sp.csr_matrix", how: str, shift: Sequence[float] = (), divisor: Sequence[float | None] = ()
) -> "np.ndarray | sp.csr_matrix":
    """Features float32 [m, d] scaled by numbers that `scaling` found over other nodes, one for each column, where `how`
    is one of `OVER_NODES`; a divisor of None is infinity."""
    if how not in OVER_NODES:
        return normalise(x, how, "")
    factor = np.array([0.0 if value is None else 1 / value for value in divisor])
    if how == "scale" and isinstance(x, sp.csr_matrix):
        return sp.csr_matrix(x.astype(np.float64) @ sp.diags(factor)).astype(np.float32)
    wide = np.asarray(x.toarray() if isinstance(x, sp.csr_matrix) else x, np.float64)
    scaled: np.ndarray = ((wide - np.array(shift)) * factor).astype(np.float32)
    return scaled


def widened(x: "np.ndarray | sp.csr_matrix", columns: int) -> "np.ndarray | sp.csr_matrix":
    """x with zeros on the right up to `columns`; sparse stays sparse."""
    if isinstance(x, sp.csr_matrix):
        return sp.csr_matrix((x.data, x.indices, x.indptr), shape=(x.shape[0], columns))
    return np.pad(x, ((0, 0), (0, columns - x.shape[1]))) if columns > x.shape[1] else x
