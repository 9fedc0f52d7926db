"""What is allowed of data and seldom meant: one class, names that look alike, columns that number the rows. A row index
says nothing of the examples, however it came into a table.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.features import apart, by_holder, repeated
from fedweave.datasets.remedies import NUMERIC
from fedweave.datasets.table import WHOLE, Table, alike, difference

PANDAS = "__index_level_"  # so begin the names of row indexes that pandas writes to Parquet
UNNAMED = r"Unnamed: 0(\.\d+)*"  # what it calls them that it reads from CSV, where they come first and have no name
FEWEST = 20  # rows: of fewer, numbers may well be all different and close together
STEPS = 0.9  # the least share of steps of one, where several tables stand one below the other
HEAD = 200  # rows by which most columns are told from row numbers
WHOLE_STEPS = 0.2  # how far from whole numbers of steps gaps may be


def is_index(table: Table, column: str) -> bool:
    """Whether a column without a name of its own is a row index: whole numbers that number the rows or are all
    different, or text that is; one that pandas names so in Parquet always is."""
    if column.startswith(PANDAS):
        return True
    if not re.fullmatch(UNNAMED, column) and (column.strip() or column != table.columns[0]):
        return False
    try:
        cells = table.data[column].combine_chunks().cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    if len(cells) == 0 or cells.null_count:
        return False
    different = len(cells.unique()) == len(cells)
    if pc.all(pc.match_substring_regex(cells, WHOLE)).as_py():
        return different or numbers_rows(np.array(cells.to_pylist(), np.float64))
    return different and not pc.any(pc.match_substring_regex(cells, NUMERIC)).as_py()


def numbers_rows(values: np.ndarray) -> bool:
    """Whether numbers [n] are those of the rows, perhaps scaled: all different and without large gaps in any order, in
    steps of one but for a few, or whole numbers that only rise."""
    held = np.unique(values).astype(np.float64)
    if len(values) < FEWEST or len(held) == 1:
        return False
    gaps = np.diff(held)
    step, blur = gaps.min(), 8 * float(np.finfo(np.float32).eps) * np.abs(held).max()
    if blur > WHOLE_STEPS * step or (np.abs(gaps / step - np.round(gaps / step)) > WHOLE_STEPS).any():
        return False
    different = len(held) == len(values)
    steps = np.diff(values.astype(np.float64)) / step
    rising = (steps > 0).all() and not (held % 1).any()
    dense = (held[-1] - held[0]) / step < 2 * len(values)
    return bool(different and (dense or rising)) or float((np.abs(steps - 1) < WHOLE_STEPS).mean()) >= STEPS


def row_numbers(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """int64, the columns of features x [n, d] that number the rows."""
    if x.shape[0] < FEWEST:
        return np.zeros(0, np.int64)
    moving = np.flatnonzero((np.diff(_dense(x[:HEAD]), axis=0) != 0).mean(0) >= STEPS)
    found = [numbers_rows(_dense(x[:, [at]]).ravel()) for at in moving]
    result: np.ndarray = moving[np.array(found, bool)]
    return result


def _dense(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    return x.toarray() if isinstance(x, sp.csr_matrix) else x


LEAST = 5  # examples of a class of which numbers apart from the others' are no chance
APART = 1000.0  # times the median column's largest number; of the public sets at hand none is beyond 12


def odd_features(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of column that is odd, with the columns' names, or their numbers from 0."""
    if data.example == "node":
        yield from _labels_read_off(data.x, data.y, lambda columns: column_names(data, columns), "feature")
    elif data.example == "edge" and data.carried is not None and data.carried.features is not None:
        called = data.carried.columns or tuple(map(str, range(data.carried.width)))
        yield from _labels_read_off(
            data.carried.features, data.y, lambda columns: _few(called, columns), "edge feature"
        )
    largest = _largest(by_holder(data).x)
    usual = float(np.median(largest[largest > 0])) if (largest > 0).any() else 0.0
    if usual and len(far := np.flatnonzero(largest > APART * usual)):
        yield (
            f"{_columns(data, far)} numbers up to {largest[far].max() / usual:,.0f} times those of the median column, "
            "which hides the others from a model; scale features, by data.normalise or before"
        )


def _labels_read_off(
    x: "np.ndarray | sp.csr_matrix", y: np.ndarray, names: Callable[[np.ndarray], str], what: str
) -> Iterator[str]:
    """A sentence on the columns that say the same as the label, and one on those that fall into a range for each."""
    same = repeated(x, y)
    ranges = np.setdiff1d(apart(x, y, LEAST), same)
    for columns, how in ((same, "one value for each class"), (ranges, "numbers of which no two classes share a range")):
        if len(columns):
            verb = f"{what} {names(columns)} has" if len(columns) == 1 else f"{what}s {names(columns)} have"
            yield (
                f"the {verb} {how}, so that a model reads the label off; leave out what is not known before the "
                "label is"
            )


def _largest(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """The largest absolute number [d] of each column."""
    found = abs(x).max(axis=0)
    return found.toarray()[0] if sp.issparse(found) else np.asarray(found)


def column_names(data: Dataset, columns: np.ndarray) -> str:
    """What the features int64 [m] are called, a party's with it before, or their numbers from 0; of many, the first."""
    own = {
        at: f"{p.name}/{name}"
        for p in data.parties or ()
        for at, name in zip(p.columns.tolist(), p.names, strict=False)
    }
    names = data.columns or tuple(own.get(at, str(at)) for at in range(data.features))
    return _few(names, columns)


def _few(names: Sequence[str], columns: np.ndarray) -> str:
    """The names at int64 places `columns`; of many, the first."""
    named = [names[at] for at in columns.tolist()]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")


def _columns(data: Dataset, columns: np.ndarray) -> str:
    """Who they are, and the verb that fits: "the feature age has", for what follows."""
    shown = column_names(data, columns)
    return f"the feature {shown} has" if len(columns) == 1 else f"the features {shown} have"


_SHOWN = 3  # pairs of names


def odd_data(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of names that look alike, and for columns that number the rows."""
    kinds = {"classes": data.labels, "groups": data.groups, "owners": data.owners}
    kinds |= {"kinds of nodes": data.node_kinds, "kinds of edges": data.edge_kinds}
    for what, names in kinds.items():
        pairs = list(alike(names))
        told = ", ".join(f"{one!r} and {two!r} differ in {difference(one, two)}" for one, two in pairs[:_SHOWN])
        more = f", and {len(pairs) - _SHOWN:,} more pairs" if pairs[_SHOWN:] else ""
        if pairs:
            yield f"of the {what}, {told}{more}; are they meant to be different? If not, write them alike in all tables"
    if len(numbered := row_numbers(data.x)):
        few, shown = len(numbered) == 1, column_names(data, numbered)
        yield (
            f"the feature{'' if few else 's'} {shown} {'numbers' if few else 'number'} the rows, so that a model reads "
            f"off where in the table an example stands; leave {'it' if few else 'them'} out (ignore in [data]) unless "
            "the order means something"
        )


UNITS = 1000.0  # from which factor on times of two clients are not in one unit; a day has 86,400 seconds


def odd_times(data: Dataset, until: tuple[float, float] | None, held: Mapping[str, np.ndarray]) -> Iterator[str]:
    """A sentence for each way in which a split by time lacks one unit of time, or edges that are early enough.

    until: the ends of training and of validation; None where the split is not by time. held: the nodes of each client,
    int64, by its name.
    """
    if until is None or data.carried is None or data.carried.time is None or not data.carried.total:
        return
    edges, nodes, names = data.carried.time, data.node_time, list(held)
    if nodes is not None and (nodes.min() > edges.max() or nodes.max() < edges.min()):
        yield (
            f"the nodes' times, {_span(nodes)}, and the edges' times, {_span(edges)}, do not overlap; are both in one "
            "unit? Dates are days since 1970"
        )
    holder = np.full(data.nodes, len(names))  # of the nodes of no client, and of edges between two
    for at, own in enumerate(held.values()):
        holder[own] = at
    source, target = holder[data.carried.ends]
    client = np.where(source == target, source, len(names))
    for what, times, whose in (("nodes", nodes, holder), ("edges", edges, client)):
        last = np.zeros(len(names) + 1)
        np.maximum.at(last, whose, 0.0 if times is None else np.abs(times))
        last[last == 0] = np.nan
        if np.nanmax(last[:-1], initial=0) > UNITS * np.nanmin(last[:-1], initial=np.inf):
            low, high = int(np.nanargmin(last[:-1])), int(np.nanargmax(last[:-1]))
            told = f"{last[low]:.10g} at {names[low]} and {last[high]:.10g} at {names[high]}"
            yield f"the {what}' times go up to {told}; are all in one unit? Dates are days since 1970"
    total, early = (np.bincount(own, minlength=len(names) + 1)[:-1] for own in (client, client[edges <= until[0]]))
    late = np.flatnonzero((total > 0) & (early == 0))
    if edges.min() > until[0]:
        yield (
            f"no edge is early enough for training: the first is at {edges.min():.10g}, and training ends at "
            f"{until[0]:.10g}"
        )
    elif len(late):
        verb = "has" if len(late) == 1 else "have"
        yield (
            f"{_few(names, late)} {verb} edges, and none that is early enough for training, which ends at "
            f"{until[0]:.10g}"
        )


def _span(times: np.ndarray) -> str:
    return f"{times.min():.10g} to {times.max():.10g}"


def one_class(data: Dataset) -> Iterator[str]:
    """A sentence if all labelled examples are of one class."""
    held = np.unique(data.y[data.y >= 0])
    if len(held) == 1:
        label = data.labels[held[0]] if data.labels else held[0]
        yield (
            f"all labelled {data.example}s are of one class, {label}: any model that says so is right, and no score "
            "says anything"
        )
