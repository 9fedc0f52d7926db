"""How features are stored and scaled. They are stored as float32, which merges values that are large and close."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave.core.graph_arrays import Matrix, dense
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError

BLUR = 0.01  # of a column's standard deviation: rounding up to here loses nothing that a model could learn
NOISE = 1e-12  # of a column's largest number: differences up to here are float64's own rounding
EXACT = 2.0**53  # whole numbers from here on are one in float64 already
INTEGER = r"^\s*[+-]?\d+(\.0*)?\s*$"


def exact(cells: pa.Array, values: np.ndarray) -> np.ndarray:
    """The values of a column for `find_merged`: `values` float64 [n], which were made from `cells`; or integers with
    all digits, where cells are whole numbers too large for float64 to distinguish."""
    if pa.types.is_floating(cells.type) or np.abs(values).max(initial=0) < EXACT:
        return values
    digits = list[int]()
    for cell in cells.to_pylist():
        is_whole = re.match(INTEGER, cell) is not None if isinstance(cell, str) else cell == int(cell)
        if not is_whole:
            return values
        digits.append(int(cell.partition(".")[0] if isinstance(cell, str) else cell))
    return np.array(digits, object)


def find_merged(values: np.ndarray) -> tuple[int, int] | None:
    """Two rows of numbers [n], which may be Python's of any length, whose different values are one in float32, where
    rounding to it blurs the column, the later row first; None where it does not, as in a constant column."""
    if len(values) == 0 or np.can_cast(values.dtype, np.float32):
        return None
    if values.dtype.kind in "iu" and np.abs(values.astype(np.float64)).max() >= EXACT:
        values = values.astype(object)
    is_long = values.dtype == object
    values = values if is_long else values.astype(np.float64)
    narrow = values.astype(np.float32)
    error = values - (np.array(list(map(int, narrow)), object) if is_long else narrow)
    if float(np.abs(error).max()) <= BLUR * (values - values.min()).astype(np.float64).std():
        return None
    if not is_long and np.ptp(values) <= NOISE * np.abs(values).max() and (values % 1 != 0).any():
        return None
    order = np.argsort(values, kind="stable")
    merged = np.flatnonzero((np.diff(values[order]) > 0) & (np.diff(narrow[order]) == 0))
    if not len(merged):
        return None
    pair = order[merged[0] : merged[0] + 2]
    return int(pair.max()), int(pair.min())


def refuse_merged(values: np.ndarray, name: str, refuse_at: Callable[[int, str, str], None]) -> None:
    """Refuse finite numbers [n] that `find_merged` finds, by `refuse_at` with the row, what is wrong and what to do."""
    rows = find_merged(values)
    if rows is None:
        return
    is_tiny = float(np.abs(values).max()) < np.finfo(np.float32).tiny
    move = "Multiply it by a number" if is_tiny else f"Subtract {values.min()}"
    value, other = values[rows[0]], values[rows[1]]
    what = f"{name} is {value}, which float32 cannot tell from {other}, so that the column loses its differences"
    refuse_at(rows[0], what, f"{move} in every row, the same wherever this column is.")


CONSTANT = "constant"  # name of the only feature of nodes without features
NO_FEATURES = "the nodes have no features: each has the constant 1"


def with_constant(data: Dataset, of_links: bool = False) -> Dataset:
    """`data` in which every node has the one feature 1, where edges or links are the examples and nodes have no
    feature.

    So models see how nodes are joined and what edges carry (Egressy et al. 2024 do the same), and nothing of edges that
    are another client's or come later, as a degree would tell.
    """
    if not (data.example == "edge" or of_links) or data.features:
        return data
    x = np.ones((data.nodes, 1), np.float32)
    return replace(data, x=x, columns=(CONSTANT,), notes=(*data.notes, NO_FEATURES))


AUTO = "auto"  # every client by its own nodes
LOCAL = "own"  # `Dataset.scaling` of what has been scaled so
OVER_NODES = ("scale", "standard", "minmax")  # by numbers over the nodes of all clients
BY_NODES = (*OVER_NODES, AUTO)  # depend on which other nodes there are
NORMALIZE = ("none", "row", "binary", *BY_NODES)
COUNT = 10  # the largest number of a column of indicators or small counts
WORDY = 100  # the largest number of a column of words, which is 0 for some, at least one in `SOME`
SOME = 20
HEAVY = 10.0  # kurtosis of a column from which on "auto" takes asinh of it; a normal distribution has 3
_ROWS = 1 << 14  # that are read at once
_CELLS, _COLUMNS = 1 << 22, 4  # cells that are scaled at once in float64, and the fewest columns
FILLED = 1 << 26  # cells that sparse features may have to be filled for `OVER_NODES`
# Above this share of nonzeros a dense product is faster than a sparse one, and hardly larger in memory.
DENSE_FROM = 0.2


def compact(x: Matrix) -> Matrix:
    """A float32 [n, d] matrix as `csr_matrix` if its share of nonzeros is below `DENSE_FROM`, else dense."""
    nonzero = np.count_nonzero(x) if isinstance(x, np.ndarray) else x.nnz
    if nonzero < DENSE_FROM * x.shape[0] * x.shape[1]:
        return sp.csr_matrix(x)
    return dense(x)


def one_hot(numbers: np.ndarray, columns: int | None = None) -> sp.csr_matrix:
    """float32 [m, columns]: 1 in column `numbers[i]` of row i, for int64 [m] from 0; a row of zeros for -1. `columns`
    is the highest number + 1 if None."""
    rows = np.flatnonzero(numbers >= 0)
    width = int(numbers.max(initial=-1)) + 1 if columns is None else columns
    ones = np.ones(len(rows), np.float32)
    return sp.csr_matrix((ones, (rows, numbers[rows])), shape=(len(numbers), width))


def amounts(x: Matrix) -> np.ndarray:
    """int64, the columns of x [n, d] that are neither indicators nor small counts: some number is not whole, below 0 or
    above `COUNT`. Of some of the rows they are some of these columns."""
    if isinstance(x, np.ndarray):
        columns = np.zeros(x.shape[1], bool)
        for begin in range(0, len(x), _ROWS):  # not a copy of all features
            undecided = np.flatnonzero(~columns)
            if not len(undecided):
                break
            columns[undecided] = _is_amount(x[begin : begin + _ROWS, undecided]).any(0)
        return np.flatnonzero(columns)
    return np.unique(x.indices[_is_amount(x.data)]).astype(np.int64)


def _is_amount(values: np.ndarray) -> np.ndarray:
    return np.asarray((values % 1 != 0) | (values < 0) | (values > COUNT))


def measurements(x: Matrix) -> np.ndarray:
    """int64, the columns of x [n, d] that "auto" scales: `amounts`, but for words: numbers up to `WORDY` of what some
    rows do not have at all."""
    columns = amounts(x)
    if not x.shape[0] or not len(columns):
        return columns[:0]
    values = x[:, columns]
    largest = abs(values).max(0)
    largest = largest.toarray()[0] if sp.issparse(largest) else largest
    nonzeros = np.count_nonzero(values, 0) if isinstance(values, np.ndarray) else values.getnnz(0)
    return np.asarray(columns[(SOME * (x.shape[0] - nonzeros) < x.shape[0]) | (largest > WORDY)])


class ScalingNumbers(NamedTuple):
    """What columns are scaled by: of a column x, (x - shift) / divisor, or (asinh(x) - shift) / divisor.

    shift, divisor: float64 [d]; a divisor of infinity makes a column 0. asinh: bool [d].
    """

    shift: np.ndarray
    divisor: np.ndarray
    asinh: np.ndarray


class Scaler(NamedTuple):
    """A scaling of features by their values over some nodes.

    numbers: see `ScalingNumbers`. apply: of features float32 [m, d], the scaled ones.
    """

    numbers: ScalingNumbers
    apply: Callable[[Matrix], Matrix]


def scaling(over: Matrix, how: str) -> ScalingNumbers:
    """The numbers by which `normalize` scales; a constant column it leaves ("scale") or sets to 0. Where all columns
    are constant they stay.

    over: features float32 [n, d] as they are. how: one of `BY_NODES`.
    """
    return scaler_of(over, how).numbers


def column_blocks(columns: np.ndarray, rows: int) -> list[np.ndarray]:
    """The columns int64 [k], a few at a time where they have many rows; [] of no columns."""
    width = max(_COLUMNS, _CELLS // max(1, rows))
    return np.array_split(columns, max(1, len(columns) // width)) if len(columns) else []


def heavy_tailed(values: np.ndarray) -> np.ndarray:
    """bool [k]: the columns of float64 [n, k], such as amounts from 0 to 800,000, whose kurtosis is above `HEAVY` and
    asinh halves it at least. asinh is log(2 x) of a large x and x near 0, the same for either sign."""
    before, after = _kurtosis(values), _kurtosis(np.arcsinh(values))
    return np.asarray((before > HEAVY) & (2 * after < before))


def _kurtosis(values: np.ndarray) -> np.ndarray:
    """float64 [k]: the mean fourth power of columns [n, k] of mean 0 and deviation 1; 0 of constant ones."""
    squares = (values - values.mean(0)) ** 2
    variance = squares.mean(0)
    fourth = np.square(squares, out=squares).mean(0)
    kurtosis: np.ndarray = np.divide(fourth, variance**2, out=np.zeros_like(variance), where=variance > 0)
    return kurtosis


def scaler_of(over: Matrix, how: str) -> Scaler:
    """The `Scaler` of features `over` float32 [n, d], where `how` is one of `BY_NODES`."""
    numbers = ScalingNumbers(np.zeros(over.shape[1]), np.ones(over.shape[1]), np.zeros(over.shape[1], bool))
    if how == AUTO:
        for columns in column_blocks(measurements(over), over.shape[0]):
            values = dense(over[:, columns]).astype(np.float64)
            heavy = heavy_tailed(values)
            values[:, heavy] = np.arcsinh(values[:, heavy])
            mean, variance, deviation = _moments(values)
            numbers.shift[columns], numbers.asinh[columns] = mean, heavy
            numbers.divisor[columns] = np.where(variance == 0, np.inf, deviation)
        return Scaler(numbers, lambda x: apply_scaling(x, how, *numbers))
    if not sp.issparse(over) and over.shape[0] and (over == over[:1]).all():  # no feature differs between nodes
        return Scaler(numbers, lambda x: x)
    if how == "scale":
        from sklearn.preprocessing import StandardScaler  # slow to import

        scaler = StandardScaler(with_mean=False).fit(over.astype(np.float64))
        scale = lambda x: scaler.transform(x.astype(np.float64)).astype(np.float32)  # noqa: E731
        return Scaler(numbers._replace(divisor=scaler.scale_), scale)
    values = dense(over).astype(np.float64)  # float32 sums over many rows would lose digits
    if how == "standard":
        mean, variance, deviation = _moments(values)
        scale = lambda x: ((dense(x).astype(np.float64) - mean) / deviation).astype(np.float32)  # noqa: E731
        return Scaler(numbers._replace(shift=mean, divisor=np.where(variance == 0, np.inf, deviation)), scale)
    low, span = values.min(0), np.ptp(values, 0)
    divisor = np.where(span > 0, span / 2, np.inf)
    return Scaler(numbers._replace(shift=low + span / 2, divisor=divisor), lambda x: _between(x, low, span))


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean, the variance and the standard deviation, 1 where a column is nearly constant, float64 [d] each, of
    columns [n, d]: to the bit those of scikit-learn's `StandardScaler`, which takes a second to import."""
    n, eps = len(values), np.finfo(np.float64).eps
    mean = values.sum(0) / n
    centered = values - mean
    variance = ((centered**2).sum(0) - centered.sum(0) ** 2 / n) / n
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    return mean, variance, np.where(constant, 1.0, np.sqrt(variance))


def _between(x: Matrix, low: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Features float32 [m, d] from [low, low + span] to [-1, 1]; 0 where `span` is."""
    wide = dense(x).astype(np.float64)
    share = np.divide(wide - low, span, out=np.full_like(wide, 0.5), where=span > 0)
    return np.asarray((2 * share - 1).astype(np.float32))


def normalize(x: Matrix, how: str, name: str, over: Matrix | None = None) -> Matrix:
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
    "auto":     columns that measure something (`measurements`) as "standard" does, asinh of those with a heavy tail
                (`heavy_tailed`), and others as they are.

    Where all columns are constant, the last three leave them: nothing would be left.
    """
    if how not in NORMALIZE:
        raise ConfigError(f"normalize = {how!r} is not known; choose one of {', '.join(NORMALIZE)}.")
    over = x if over is None else over
    if how == "none":
        return x
    if how == "binary":
        return (x != 0).astype(np.float32)
    if how == "row":
        return _normalize_rows(x)
    for features in (x, over):
        fills = how in ("standard", "minmax") and sp.issparse(features)
        if fills and features.shape[0] * features.shape[1] > FILLED:
            raise ConfigError(
                f'normalize = "{how}" would fill the sparse features of {name} ({features.shape[0]} x '
                f'{features.shape[1]}); use "none", "row" or "scale".'
            )
    return scaler_of(over, how).apply(x)


def _normalize_rows(x: Matrix) -> Matrix:
    """x [m, d], each row divided by the sum of its absolute values: to the bit scikit-learn's `normalize(x, "l1")`,
    which takes a second to import."""
    if isinstance(x, np.ndarray):
        sums = np.abs(x).sum(1)
        return np.asarray(x / np.where(sums < 10 * np.finfo(x.dtype).eps, 1, sums)[:, None])
    rows = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    sums = np.bincount(rows, np.abs(x.data), x.shape[0])  # float64, in the order of the entries
    sums[sums == 0] = 1
    return sp.csr_matrix(((x.data / sums[rows]).astype(x.dtype), x.indices.copy(), x.indptr.copy()), x.shape)


def apply_scaling(
    x: Matrix,
    how: str,
    shift: Sequence[float] | np.ndarray = (),
    divisor: Sequence[float | None] | np.ndarray = (),
    asinh: Sequence[bool] | np.ndarray = (),
) -> Matrix:
    """Features float32 [m, d] scaled by numbers that `scaling` found over other nodes, one for each column, where `how`
    is one of `BY_NODES`; a divisor of None is infinity, and no `asinh` is that of no column."""
    if how not in BY_NODES:
        return normalize(x, how, "")
    if how == AUTO:
        divisors = np.array([math.inf if value is None else value for value in divisor])
        return _scale_columns(x, ScalingNumbers(np.array(shift), divisors, np.array(asinh, bool)))
    factor = np.array([0.0 if value is None else 1 / value for value in divisor])
    if how == "scale" and isinstance(x, sp.csr_matrix):
        return sp.csr_matrix(x.astype(np.float64) @ sp.diags(factor)).astype(np.float32)
    wide = np.asarray(x.toarray() if isinstance(x, sp.csr_matrix) else x, np.float64)
    return np.asarray(((wide - np.array(shift)) * factor).astype(np.float32))


def _scale_columns(x: Matrix, numbers: ScalingNumbers) -> Matrix:
    """x with scaled numbers in the columns that `numbers` change; sparse stays sparse."""
    shift, divisor, asinh = numbers
    columns = np.flatnonzero((shift != 0) | (divisor != 1))
    if not len(columns):
        return x

    def scale(columns: np.ndarray) -> np.ndarray:
        values = dense(x[:, columns]).astype(np.float64)
        if len(asinh):
            heavy = asinh[columns]
            values[:, heavy] = np.arcsinh(values[:, heavy])
        values -= shift[columns]
        values *= 1 / divisor[columns]
        return values.astype(np.float32)

    if isinstance(x, np.ndarray):
        whole = x.copy()
        for block in column_blocks(columns, len(x)):
            whole[:, block] = scale(block)
        return whole
    scaled = scale(columns)
    factor = np.ones(x.shape[1], np.float32)
    factor[columns] = 0
    unscaled = sp.csr_matrix(x @ sp.diags(factor, dtype=np.float32))
    unscaled.eliminate_zeros()
    places = (np.repeat(np.arange(x.shape[0]), len(columns)), np.tile(columns, x.shape[0]))
    return sp.csr_matrix(unscaled + sp.csr_matrix((scaled.ravel(), places), shape=x.shape), dtype=np.float32)


def of_party(how: str) -> str:
    """The scaling of a party's columns: "auto" is none, so that parties can predict new nodes without the old."""
    return "none" if how == AUTO else how


def scale_by_holders(data: Dataset, how: str, name: str) -> Dataset:
    """The data with its features scaled as `normalize` does. "auto" leaves the features: each holder of data scales
    them by its own nodes (`by_holder`)."""
    return replace(data, scaling=AUTO) if how == AUTO else replace(data, x=_normalized(data, how, name))


def _normalized(data: Dataset, how: str, name: str) -> Matrix:
    """The features of `data` as `normalize` scales them; columns of whole graphs over graphs instead of nodes."""
    if data.graph_columns is None:
        return normalize(data.x, how, name)
    first, values = data.graph_columns.first, graph_values(data)
    if how in BY_NODES:
        values = normalize(values, how, name)
    return with_graph_values(data, normalize(data.x[:, :first], how, name), values)


def graph_values(data: Dataset) -> Matrix:
    """float32 [e, g]: the columns of whole graphs."""
    if data.graph_columns is None:
        return data.x[data.first_nodes][:, :0]
    return data.x[data.first_nodes][:, data.graph_columns.places]


def with_graph_values(data: Dataset, x: Matrix, values: Matrix) -> Matrix:
    """`beside_nodes`, dense where that is small."""
    return compact(beside_nodes(x, values, data.first_nodes))


def beside_nodes(x: Matrix, values: Matrix, first_nodes: np.ndarray) -> sp.csr_matrix:
    """float32 [n, d + g]: columns of nodes x [n, d] and, on their right, of whole graphs, `values` [e, g]: in the rows
    of first nodes int64 [e]."""
    ones, graphs = np.ones(len(first_nodes), np.float32), np.arange(len(first_nodes))
    place = sp.csr_matrix((ones, (first_nodes, graphs)), shape=(x.shape[0], len(graphs)))
    whole = sp.csr_matrix(sp.hstack([x, place @ sp.csr_matrix(values)], "csr", np.float32))
    whole.sort_indices()  # products leave the columns of a row in any order
    return whole


def feature_scaling_numbers(data: Dataset, how: str) -> ScalingNumbers:
    """`scaling` of the features of `data`; those of whole graphs over graphs instead of nodes."""
    if data.graph_columns is None:
        return scaling(data.x, how)
    pairs = zip(scaling(data.x[:, : data.graph_columns.first], how), scaling(graph_values(data), how), strict=True)
    return ScalingNumbers(*(np.concatenate(pair) for pair in pairs))


def scaled_by(data: Dataset, how: str, numbers: ScalingNumbers) -> Matrix:
    """The features of `data`, scaled by known numbers of all columns."""
    if data.graph_columns is None:
        return apply_scaling(data.x, how, *numbers)
    at, places = slice(0, data.graph_columns.first), data.graph_columns.places
    x = apply_scaling(data.x[:, at], how, *(part[at] for part in numbers))
    return with_graph_values(data, x, apply_scaling(graph_values(data), how, *(part[places] for part in numbers)))


def by_holder(data: Dataset) -> Dataset:
    """The data of one client, with features scaled by its own nodes where `Dataset.scaling` is "auto"."""
    if data.scaling != AUTO:
        return data
    scaled = _normalized(data, AUTO, "")
    return replace(data, x=scaled, scaling="none" if scaled is data.x else LOCAL)


def pad_columns(x: Matrix, columns: int) -> Matrix:
    """x with zeros on the right up to `columns`; sparse stays sparse."""
    if isinstance(x, sp.csr_matrix):
        return sp.csr_matrix((x.data, x.indices, x.indptr), shape=(x.shape[0], columns))
    return np.pad(x, ((0, 0), (0, columns - x.shape[1]))) if columns > x.shape[1] else x
