"""Warnings about data that is allowed but seldom meant: one class, names that look alike, columns that number the rows.
A row index has no information about the examples, even if another program wrote it.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.graph import SPLITS
from fedweave.core.target import CLASS, LABELS, labeled, where_known
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.datasets.base import NO_LOOPS, Dataset, check_loops, note_loops, undirected
from fedweave.datasets.cells import DATES, DECIMAL_COMMA, GAPS, NESTED, NUMBER, NUMERIC, is_gap, is_name, numbers_in
from fedweave.datasets.check import first, refuse, refuse_rows
from fedweave.datasets.features import apart, by_holder, one_hot, repeated
from fedweave.datasets.settings import TableSettings
from fedweave.datasets.table import (
    WHOLE,
    NameIndex,
    Table,
    Tables,
    alike,
    as_whole,
    difference,
    find,
    meant_empty,
    places,
    read,
    refuse_name,
)
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError, DataError, Faults

PANDAS = "__index_level_"  # so begin the names of row indexes that pandas writes to Parquet
UNNAMED = r"Unnamed: 0(\.\d+)*"  # what it calls them that it reads from CSV, where they come first and have no name
FEWEST = 20  # rows: of fewer, numbers may well be all different and close together
STEPS = 0.9  # the least share of steps of one, where several tables stand one below the other
HEAD = 200  # rows that are enough to distinguish most columns from row numbers
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
    """Whether values [n] number the rows, perhaps scaled: all different and without large gaps in any order, in steps
    of one except for a few, or whole numbers that only rise."""
    different_values = np.unique(values).astype(np.float64)
    if len(values) < FEWEST or len(different_values) == 1:
        return False
    gaps = np.diff(different_values)
    step, blur = gaps.min(), 8 * float(np.finfo(np.float32).eps) * np.abs(different_values).max()
    if blur > WHOLE_STEPS * step or (np.abs(gaps / step - np.round(gaps / step)) > WHOLE_STEPS).any():
        return False
    different = len(different_values) == len(values)
    steps = np.diff(values.astype(np.float64)) / step
    rising = (steps > 0).all() and not (different_values % 1).any()
    dense = (different_values[-1] - different_values[0]) / step < 2 * len(values)
    return bool(different and (dense or rising)) or float((np.abs(steps - 1) < WHOLE_STEPS).mean()) >= STEPS


def row_numbers(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """int64, the columns of features x [n, d] that number the rows."""
    if x.shape[0] < FEWEST:
        return np.zeros(0, np.int64)
    moving = np.flatnonzero((np.diff(_dense(x[:HEAD]), axis=0) != 0).mean(0) >= STEPS)
    flags = [numbers_rows(_dense(x[:, [at]]).ravel()) for at in moving]
    result: np.ndarray = moving[np.array(flags, bool)]
    return result


def _dense(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    return x.toarray() if isinstance(x, sp.csr_matrix) else x


_LINE = 1e-9  # below 1, of the correlation of two columns that are a straight line
_MOST_CELLS = 10**8  # of features that are looked at for that
LEAST = 5  # examples of a class from which on disjoint ranges of numbers are no chance
APART = 1000.0  # times the median column's largest number; of the public sets at hand none is beyond 12


def odd_features(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of odd column, with the columns' names, or their numbers from 0."""
    if data.example == "node":
        yield from _read_off(data, data.x, lambda columns: column_names(data, columns), "feature")
    elif data.example == "edge" and data.edge_attrs is not None and data.edge_attrs.features is not None:
        called = data.edge_attrs.columns or tuple(map(str, range(data.edge_attrs.width)))
        yield from _read_off(data, data.edge_attrs.features, lambda columns: _few(called, columns), "edge feature")
    largest = _largest(by_holder(data).x)
    usual = float(np.median(largest[largest > 0])) if (largest > 0).any() else 0.0
    if usual and len(far := np.flatnonzero(largest > APART * usual)):
        yield (
            f"{_columns(data, far)} numbers up to {largest[far].max() / usual:,.0f} times the median column's, "
            "which hides the others from a model; scale features, by data.normalize or before"
        )


def _read_off(
    data: Dataset, x: "np.ndarray | sp.csr_matrix", names: Callable[[np.ndarray], str], what: str
) -> Iterator[str]:
    """A sentence on the columns of the examples' features x [e, d] that give away the target."""
    if data.target == CLASS:
        yield from _labels_read_off(x, data.y, names, what)
        return
    has_target = where_known(data.y)
    for target, y, rows in zip(data.targets or map(str, range(data.outputs)), data.y.T, has_target.T, strict=True):
        columns = _proportional(x[rows], y[rows].astype(np.float64))
        if len(columns):
            verb = "has" if len(columns) == 1 else "have"
            yield (
                f"the {what}{'' if len(columns) == 1 else 's'} {names(columns)} {verb} the same differences as the "
                f"{'label' if data.target == LABELS else 'number'} {target}, so that a model reads it off; leave out "
                "what is not known before"
            )


def _proportional(x: "np.ndarray | sp.csr_matrix", y: np.ndarray) -> np.ndarray:
    """int64, the columns of x [n, d] that are a straight line over y float64 [n], up to rounding."""
    if len(y) < FEWEST or x.shape[0] * x.shape[1] > _MOST_CELLS or np.ptp(y) == 0:
        return np.zeros(0, np.int64)
    wide = _dense(x).astype(np.float64)
    wide -= wide.mean(0)
    other = y - y.mean()
    size = np.sqrt((wide**2).sum(0) * (other**2).sum())
    return np.flatnonzero((np.abs(other @ wide) > (1 - _LINE) * size) & (size > 0))


def _labels_read_off(
    x: "np.ndarray | sp.csr_matrix", y: np.ndarray, names: Callable[[np.ndarray], str], what: str
) -> Iterator[str]:
    """A sentence on the columns that equal the label, and one on columns with disjoint ranges for the classes."""
    same = repeated(x, y)
    ranges = np.setdiff1d(apart(x, y, LEAST), same)
    for columns, how in ((same, "one value for each class"), (ranges, "numbers in a separate range for each class")):
        if len(columns):
            verb = f"{what} {names(columns)} has" if len(columns) == 1 else f"{what}s {names(columns)} have"
            yield (
                f"the {verb} {how}, so that a model reads the label off; leave out what is not known before the "
                "label is"
            )


def _largest(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """The largest absolute number [d] of each column."""
    result = abs(x).max(axis=0)
    return result.toarray()[0] if sp.issparse(result) else np.asarray(result)


def column_names(data: Dataset, columns: np.ndarray) -> str:
    """The names of features int64 [m], with the party's in front, or their numbers from 0; only the first of many."""
    party_columns = {
        at: f"{p.name}/{name}"
        for p in data.parties or ()
        for at, name in zip(p.columns.tolist(), p.names, strict=False)
    }
    names = data.columns or tuple(party_columns.get(at, str(at)) for at in range(data.features))
    return _few(names, columns)


def _few(names: Sequence[str], columns: np.ndarray) -> str:
    """The names at int64 places `columns`; only the first of many."""
    texts = [names[at] for at in columns.tolist()]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def _columns(data: Dataset, columns: np.ndarray) -> str:
    """Who they are, and the verb that fits: "the feature age has", for what follows."""
    shown = column_names(data, columns)
    return f"the feature {shown} has" if len(columns) == 1 else f"the features {shown} have"


_SHOWN = 3  # pairs of names


def odd_data(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of names that look alike, and for columns that number the rows."""
    kinds = {"classes": data.labels, "groups": data.groups, "owners": data.owners}
    kinds |= {"kinds of nodes": data.node_kinds, "kinds of edges": data.edge_kinds}
    kinds |= {"relations": () if data.links is None else data.links.relations}
    yield from alike_names(kinds)
    if len(numbered := row_numbers(data.x)):
        few, shown = len(numbered) == 1, column_names(data, numbered)
        yield (
            f"the feature{'' if few else 's'} {shown} {'numbers' if few else 'number'} the rows, so a model learns "
            f"the place of an example in the table; leave {'it' if few else 'them'} out (ignore in [data]) unless "
            "the order means something"
        )


def alike_names(kinds: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence for each kind of names, {what they are: the names}, that has names that look alike."""
    for what, names in kinds.items():
        pairs = list(alike(names))
        text = ", ".join(f"{one!r} and {two!r} differ in {difference(one, two)}" for one, two in pairs[:_SHOWN])
        more = f", and {len(pairs) - _SHOWN:,} more pairs" if pairs[_SHOWN:] else ""
        if pairs:
            question = "are they meant to be different? If not, write them the same way in all tables"
            yield f"of the {what}, {text}{more}; {question}"


UNITS = 1000.0  # from which factor on times of two clients are not in one unit; a day has 86,400 seconds


def odd_times(data: Dataset, split_times: tuple[float, float] | None, held: Mapping[str, np.ndarray]) -> Iterator[str]:
    """A sentence for each way in which a split by time lacks one unit of time, or edges that are early enough.

    split_times: the ends of training and of validation; None where the split is not by time. held: the nodes of each
    client, int64, by its name.
    """
    if split_times is None or data.edge_attrs is None or data.edge_attrs.time is None or not data.edge_attrs.total:
        return
    edges, nodes, names = data.edge_attrs.time, data.node_time, list(held)
    if nodes is not None and (nodes.min() > edges.max() or nodes.max() < edges.min()):
        yield (
            f"the nodes' times, {_span(nodes)}, and the edges' times, {_span(edges)}, do not overlap; are both in one "
            "unit? Dates are days since 1970"
        )
    holder = np.full(data.nodes, len(names))  # of the nodes of no client, and of edges between two
    for at, rows in enumerate(held.values()):
        holder[rows] = at
    source, target = holder[data.edge_attrs.ends]
    client = np.where(source == target, source, len(names))
    for what, times, whose in (("nodes", nodes, holder), ("edges", edges, client)):
        last = np.zeros(len(names) + 1)
        np.maximum.at(last, whose, 0.0 if times is None else np.abs(times))
        last[last == 0] = np.nan
        if np.nanmax(last[:-1], initial=0) > UNITS * np.nanmin(last[:-1], initial=np.inf):
            low, high = int(np.nanargmin(last[:-1])), int(np.nanargmax(last[:-1]))
            span = f"{last[low]:.10g} at {names[low]} and {last[high]:.10g} at {names[high]}"
            yield f"the {what}' times go up to {span}; are all in one unit? Dates are days since 1970"
    total, early = (
        np.bincount(rows, minlength=len(names) + 1)[:-1] for rows in (client, client[edges <= split_times[0]])
    )
    late = np.flatnonzero((total > 0) & (early == 0))
    if edges.min() > split_times[0]:
        yield (
            f"no edge is early enough for training: the first is at {edges.min():.10g}, and training ends at "
            f"{split_times[0]:.10g}"
        )
    elif len(late):
        verb = "has" if len(late) == 1 else "have"
        yield (
            f"{_few(names, late)} {verb} edges, and none that is early enough for training, which ends at "
            f"{split_times[0]:.10g}"
        )


def _span(times: np.ndarray) -> str:
    return f"{times.min():.10g} to {times.max():.10g}"


def one_class(data: Dataset) -> Iterator[str]:
    """A sentence if all labeled examples are of one class; not for links, where pairs that are no links are drawn."""
    if data.target != CLASS:
        return
    classes = np.unique(data.y[data.y >= 0])
    if len(classes) == 1 and data.links is None:
        label = data.labels[classes[0]] if data.labels else classes[0]
        yield (
            f"all labeled {data.example}s are of one class, {label}: a model that always predicts it is right, and "
            "scores mean nothing"
        )


# ----------------------------------------------------------------------------------------------------
# What the columns of a user's tables of nodes and edges mean (docs/data-format.md), how each is read, and which may
# have empty cells.


OF_EDGES = "edges."


def gaps_of(missing: Sequence[str] | None, of_edges: bool) -> list[str]:
    """The columns of edges, or of nodes, among the names in [data] missing, such as "income" and "edges.fee"."""
    entries = [(name.startswith(OF_EDGES), name.removeprefix(OF_EDGES)) for name in missing or ()]
    return [name for is_of_edges, name in entries if is_of_edges == of_edges]


def check_gaps(missing: Sequence[str] | None, categories: Mapping[str, object] | None) -> None:
    """Refuse columns in [data] missing that are in [data] categories, too.

    Raises:
        ConfigError: names one.
    """
    if both := [name for name in missing or () if name in (categories or {})]:
        raise ConfigError(f"data: missing names {both[0]!r}, whose empty cells are in none of its categories.")


def gaps_filled(table: Table, names: Sequence[str]) -> Table:
    """The table with 0 in empty cells of the columns `names`, or cells with a word for a gap (`GAPS`); at its end a
    column for each that marks the gaps.

    Raises:
        DataError: there is no such column.
    """
    data = table.data
    for name in names:
        if name not in data.column_names:
            refuse(
                table.path,
                f"[data] missing names the column {name!r}, which does not exist",
                "Correct its name.",
                "column-named",
            )
        cells = table.cells(name)
        if pa.types.is_null(cells.type):
            cells = cells.cast(pa.float64())
        if pa.types.is_temporal(cells.type):
            refuse(table.path, f"column {name!r} holds {cells.type}", DATES)
        if pa.types.is_nested(cells.type):
            refuse(table.path, f"column {name!r} holds {cells.type}", NESTED, "column-nested")
        gaps = cells.is_null(nan_is_null=True)
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            words = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
            gaps = pc.or_(gaps, pc.is_in(words, pa.array(["", *GAPS], cells.type), skip_nulls=True))
        zero = pa.scalar("0").cast(cells.type)
        data = data.set_column(data.column_names.index(name), name, pc.if_else(gaps, zero, cells))
        data = data.append_column(f"{name} is missing", gaps.cast(pa.uint8()))
    return replace(table, data=data)


def spread(table: Table, known: Sequence[str] = ()) -> Table:
    """The table with columns of lists of numbers split into a column for each place, except for the `known`: "emb
    0" and "emb 1" of "emb". A list may be text in square brackets, as CSV has it.

    Raises:
        DataError: lists differ in length, or one is missing; names file, row and column.
    """
    data = table.data
    for name in (name for name in table.columns if name not in known):
        cells = _lists(data[name])
        if not _holds_numbers(cells.type):
            continue
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        width, at = int(lengths.max(initial=0)), data.column_names.index(name)
        _refuse_uneven(table, name, lengths, width)
        names = [f"{name} {place}" for place in range(width)]
        if duplicates := sorted(set(names) & set(data.column_names)):
            refuse_name(table.path, duplicates[0])
        values, data = cells.flatten(), data.remove_column(at)
        for place, new_name in enumerate(names):
            data = data.add_column(at + place, new_name, values.take(pa.array(np.arange(place, len(values), width))))
    return replace(table, data=data)


_LIST = r"^\s*\[.*\]\s*$"


def _lists(column: pa.ChunkedArray) -> pa.Array:
    """A column of text as lists of numbers, if each cell is one in square brackets, "[0.1, 2]" or "[0.1 2]", or empty;
    other columns as they are."""
    cells = column.combine_chunks()
    if not pa.types.is_string(cells.type) and not pa.types.is_large_string(cells.type):
        return cells
    head = cells.drop_null().slice(0, HEAD)
    if not len(head) or not pc.all(pc.match_substring_regex(head, _LIST)).as_py():
        return cells
    lists = list[list[float] | None]()
    for text in cells.to_pylist():
        numbers = numbers_in(text) if text is not None and re.match(_LIST, text) else []
        if text is not None and not numbers:
            return cells
        lists.append([float(number) for number in numbers] if numbers else None)
    return pa.array(lists, pa.list_(pa.float64()))


def _refuse_uneven(table: Table, name: str, lengths: np.ndarray, width: int) -> None:
    remedy = "Give lists of one length in every row, or one column for each number."
    describe = lambda row: f"{name!r} holds {lengths[row]} numbers, not {width}"  # noqa: E731
    refuse_rows(table, lengths != max(width, 1), describe, remedy)


def _holds_numbers(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of numbers."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(is_list(kind) for is_list in lists) and any(is_one(kind.value_type) for is_one in numbers)


OF_EXAMPLES = ("label", "sens", "split")  # the first table has them, be they nodes, small graphs or edges
NODES = ("id", *OF_EXAMPLES)
EDGES = ("source", "target")
# What columns mean, by what the examples are and by table; all others have names of their own.
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "node": {"nodes": NODES, "edges": EDGES},
    "edge": {"nodes": ("id",), "edges": (*EDGES, "id", *OF_EXAMPLES)},
    "graph": {
        "nodes": ("id", "graph", "label"),
        "edges": (*EDGES, "label"),
        "graphs": ("id", *OF_EXAMPLES, "smiles", "scaffold"),
    },
    "triple": {"triples": ("head", "relation", "tail", "split")},
}
SPLIT_WORDS = {name: at for at, name in enumerate(SPLITS)} | {"valid": 1, "validation": 1, "dev": 1}
MEANINGS = tuple(dict.fromkeys(name for tables in COLUMNS.values() for names in tables.values() for name in names))
Categories = Mapping[str, str | tuple[str, ...]]
AUTO = "auto"  # instead of a column's categories: the categories in training rows

_LOG = logging.getLogger(__name__)


class Seen(tuple[str, ...]):
    """Categories in the training rows: another value, which [data] does not list, is in none of them, with a note."""

    __slots__ = ()


def seen(table: Table, column: str, rows: np.ndarray | None = None) -> Seen:
    """The values of a column in the `rows` (bool [rows], all if None), sorted, without words for a gap.

    Raises:
        DataError: there is no such column, or these rows have no value.
    """
    if column not in table.columns:
        refuse(table.path, f"[data] categories names the column {column!r}, which does not exist", "Correct its name.")
    cells = table.texts(column)
    cells = cells if rows is None else cells.filter(pa.array(rows))
    values = sorted(text for text in cells.drop_null().unique().to_pylist() if not is_gap(text))
    if not values:
        refuse(table.path, f"column {column!r} is empty in every row of training", "Leave it out: ignore in [data].")
    return Seen(values)


def in_training(table: Table) -> np.ndarray | None:
    """bool [rows], rows whose split is "train"; None if there are none."""
    if "split" not in table.columns:
        return None
    trains = pc.fill_null(pc.equal(table.texts("split"), "train"), False)
    rows: np.ndarray = trains.to_numpy(zero_copy_only=False)
    return rows if rows.any() else None


def _categories_of(table: Table, column: str, names: str | tuple[str, ...]) -> np.ndarray:
    """int64 [rows], the places of the column's values in `names`, -1 in none."""
    if not isinstance(names, Seen):
        return table.kinds(column, tuple(names), f"categories.{column}")
    cells = table.texts(column)
    numbers: np.ndarray = places(cells, pa.array(names, pa.string())).fill_null(-1).to_numpy(False).astype(np.int64)
    others = [text for text in cells.filter(pa.array(numbers < 0)).drop_null().to_pylist() if not is_gap(text)]
    if others:
        kinds = [*dict.fromkeys(others)]
        more = f" and {counted(len(kinds) - 1, 'more value')}" if kinds[1:] else ""
        note = f"{kinds[0]!r}{more} in {counted(len(others), 'row')}, which no row of training has: in no category"
        _LOG.warning("note: %s: %s is %s", table.path, column, note)
    return numbers


def check_columns(
    table: Table,
    required: tuple[str, ...],
    known: tuple[str, ...],
    closed: bool = False,
    hint: str = "",
    ids: Callable[[], pa.Array] | None = None,
) -> None:
    """Refuse a table without `required` columns, with a misspelt one of the `known` or, where it is `closed`, with any
    other; `hint` names a setting that would allow it. ids: the names of what columns refer to, by which a row
    that stands where the header should is known.

    Raises:
        DataError: names the file, the column and what it has.
    """
    text = f"it has {', '.join(table.columns)}"
    for name in table.columns:
        if name not in known and name.strip().casefold() in known:
            refuse(
                table.path, f"the column name {name!r} is almost {name.strip().casefold()!r}", "Spell it exactly so."
            )
    if absent := [name for name in required if name not in table.columns]:
        what, naming = f"there is no column {' and no column '.join(map(repr, absent))}", _naming(table, absent, known)
        row = _like_a_row(table, known, ids)
        header = f"Put a line with the columns' names, {','.join(absent)}{'…' if table.columns[len(absent) :] else ''}"
        header += ", above it (in pandas: header=None, then name the columns)."
        if row and all(row):  # to give these columns a meaning would lose the row
            refuse(table.path, f"{what}, and {', '.join(table.columns[:5])} look like a row", header, "header")
        remedy = f"If that is a row: {header} If not: {naming}" if row else naming
        refuse(table.path, f"{what}; {text}", remedy, "column-missing")
    extra = [name for name in table.columns if name not in known] if closed else []
    ignore = f"ignore = {json.dumps([f'{table.path.stem}.{name}' for name in extra])}"
    if "weight" in extra:
        what = "edge weights are not used without edge_weight" if hint else "edge weights are not supported"
        use = 'Set edge_weight = "weight" in [data]' if hint else "Remove the column weight"
        refuse(table.path, what, f"{use}, or {ignore}; then every edge counts 1.")
    if extra:
        remedy = f"Allowed are {', '.join(known)}{f'; {hint}' if hint else ''}; {ignore} leaves out the others."
        refuse(table.path, f"unknown columns: {', '.join(extra)}", remedy, "column-unknown")


def _like_a_row(table: Table, known: Sequence[str], ids: Callable[[], pa.Array] | None) -> list[bool]:
    """Whether each column is called like a number, a value of its own or one of the `ids`; [] if none is, if one has a
    meaning, or if all are called by their numbers from 0, which may be names, too."""
    if set(table.columns) & set(known):
        return []
    named = set() if ids is None else set(ids().to_pylist())
    row = [name in named or _is_value(table, name) for name in table.columns]
    if table.columns == [str(at) for at in range(len(table.columns))]:
        return [False, *row]
    return row if any(row) else []


def refuse_row_as_names(edges: Table, names: Sequence[str | None], ids: pa.Array) -> None:
    """Refuse names of the columns of both ends, in [data] columns, that are `ids` of nodes: they are an edge of a table
    without a header, which would be lost. 0 and 1 may be names: so pandas calls columns without names.

    Raises:
        DataError: names them.
    """
    if None in names or list(names) == ["0", "1"]:
        return
    if pc.all(pc.is_in(pa.array(names, pa.string()), ids)).as_py():
        what = f"data.columns takes {' and '.join(map(repr, names))} for names, and they are ids of nodes"
        remedy = "If the first line is an edge, put a line source,target above it, and leave both out of data.columns."
        refuse(edges.path, f"{what}: that edge would be lost", remedy, "header")


def _is_value(table: Table, name: str) -> bool:
    """Whether a column is called like a number, or like one of its own cells."""
    if re.match(NUMBER, name):
        return True
    cells = table.data[name].combine_chunks()
    return pa.types.is_string(cells.type) and pc.any(pc.equal(cells, name)).as_py() is True


def _naming(table: Table, absent: Sequence[str], known: Sequence[str]) -> str:
    """The remedy for columns that are `absent`: other columns may have their meaning, in order if the numbers agree."""
    others, parts = [name for name in table.columns if name not in known], table.columns[0].split()
    if len(table.columns) == 1 and len(parts) > 1:
        return f"Cells are split by commas: write {','.join(parts)}, and likewise all rows."
    meant = [name for name in absent if name in MEANINGS]
    names = others if len(others) == len(meant) else ["…"] * len(meant)
    pairs = ", ".join(f"{name} = {json.dumps(of, ensure_ascii=False)}" for name, of in zip(meant, names, strict=True))
    remedies = [f"If columns of another name have this meaning: [data] columns = {{{pairs}}}."] if meant else []
    if "label" in absent:
        remedies.append(_several_targets(table, others))
    if of_settings := [
        name for name in absent if name not in meant
    ]:  # such as the owner's column: a name of the user's
        which = " and ".join(map(repr, of_settings))
        remedies.append(f"Change {which} where [data] names it (owner, node_time or targets).")
    return f"{' '.join(remedies)} See docs/data-format.md for all columns."


def _several_targets(table: Table, columns: Sequence[str]) -> str:
    """The remedy where numbers or several labels are predicted, with the `columns` that may be such targets."""
    if table.path.stem == "nodes":  # where other columns are features
        return 'If numbers or several labels are predicted: target = "number" or "labels", and targets = ["…"].'
    kinds: dict[str, list[str]] = {}
    for name in columns:
        cells = table.data[name].combine_chunks()
        if pa.types.is_boolean(cells.type) or pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
            cell_values = {value for value in cells.unique().to_pylist() if value is not None and value == value}
            kinds.setdefault(LABELS if cell_values <= {0, 1} else "number", []).append(name)
    settings = [
        f'target = "{kind}", targets = {json.dumps(names, ensure_ascii=False)}' for kind, names in kinds.items()
    ]
    return f"If numbers or several labels are predicted: {' or '.join(settings)}." if settings else ""


def ids_of(nodes: Table) -> pa.Array:
    """The nodes' ids as text, each once.

    Raises:
        DataError: an id is empty or repeated, or has a blank at an end; names file and row.
    """
    ids = nodes.filled("id")
    nodes.refuse_blanks("id")
    seen = pc.index_in(ids, ids).to_numpy(zero_copy_only=False)
    refuse_rows(
        nodes,
        seen != np.arange(nodes.rows),
        lambda row: f"id {ids[row].as_py()!r} is already in row {nodes.place(seen[row])[1]}",
        "Give every row an id of its own.",
    )
    return ids


def feature_names(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None
) -> tuple[str, ...]:
    """All columns that mean nothing else, which the `known` do; of a column of `categories` one for each of its
    values, "job = clerk"."""
    values = categories or {}
    return tuple(
        full
        for name in nodes.columns
        if name not in known
        for full in ([f"{name} = {value}" for value in values[name]] if name in values else [name])
    )


def features_of(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None, apart: bool = True
) -> np.ndarray | sp.csr_matrix:
    """float32 [n, d]: the columns of `feature_names`, sparse where some are of categories.

    apart: False for examples to be predicted, where a few may well have nearly the same numbers.

    Raises:
        DataError: a value is not a number, or none of its column's `categories`, or float32 does not keep a column's
            differences; names file, row and column.
    """
    values, faults, columns = categories or {}, Faults(DataError), list[np.ndarray | sp.csr_matrix]()
    for name in values.keys() - set(nodes.columns):
        refuse(
            nodes.path,
            f"[data] categories names the column {name!r}, which does not exist",
            "Add it, or correct its name.",
        )
    for name in (name for name in nodes.columns if name not in known):
        with faults:
            if name in values:
                columns.append(one_hot(_categories_of(nodes, name, values[name]), len(values[name])))
            else:
                columns.append(nodes.numbers(name, apart)[:, None])
    faults.refuse()
    if any(isinstance(column, sp.csr_matrix) for column in columns):
        return sp.csr_matrix(sp.hstack([sp.csr_matrix(column) for column in columns], "csr"))
    return np.concatenate(columns, 1) if columns else np.empty((nodes.rows, 0), np.float32)


def sens_of(nodes: Table, groups: tuple[str, ...] | None = None) -> np.ndarray | None:
    """int64 [n] sensitive attribute, -1 where the cell is empty; None without the column. Text is a place among
    `groups`, by default those present, sorted.

    Raises:
        DataError: a value is neither a whole number from 0 nor one of the groups; names file and row.
    """
    if "sens" not in nodes.columns:
        return None
    if groups is None:
        nodes.refuse_gaps("sens", "groups")
        nodes.refuse_blanks("sens", "groups")
    names = group_names(nodes, groups)
    return nodes.kinds("sens", names, "groups") if names else nodes.whole("sens", empty="unknown", key="groups")


def group_names(nodes: Table, groups: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The names of the groups in the column sens, in order; () where some are numbers or dates, or there is no such
    column. Bands of ages, such as 18-25, are names."""
    if "sens" not in nodes.columns:
        return ()
    present = nodes.texts("sens").drop_null().unique().to_pylist()
    return groups or (tuple(sorted(present)) if all(map(is_name, present)) else ())


def names_in(table: Table, column: str) -> pa.Array:
    """The cells of a column of names that no list declares, such as owners or entities; a whole number that is written
    as "7.0" is "7".

    Raises:
        DataError: a cell is empty or a word for that ("nan"), or a name begins or ends with a blank, which would make
            it another name.
    """
    names = as_whole(table.filled(column))
    table.refuse_blanks(column)
    table.refuse_gaps(column)
    return names


def owners_of(table: Table, column: str) -> tuple[str, ...]:
    """The names in a column of owners (`names_in`), sorted."""
    return tuple(sorted(names_in(table, column).unique().to_pylist()))


def edges_of(edges: Table, ids: pa.Array, loops: str = "refuse") -> np.ndarray:
    """int64 [2, 2 E]: both directions of every edge between the nodes `ids`, each once.

    Raises:
        DataError: see `ends_of`.
    """
    (source, target), _ = ends_of(edges, ids, loops)
    return undirected(source, target, len(ids))


ABSENT_END = "Add a row with this id to nodes, or remove the edge."


def ends_of(
    edges: Table, ids: pa.Array, loops: str = "refuse", remedy: str = ABSENT_END
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [2, E]: the ends of every edge as places in `ids`, and int64 [E]: its row.

    loops: "refuse", "keep", or "drop", which leaves out edges of a node with itself, and logs how many. remedy: for an
    end that is no node.

    Raises:
        DataError: an end is not among the nodes, or both are the same; names file and row.
    """
    faults, ends, known = Faults(DataError), list[np.ndarray](), NameIndex(ids)
    for name in EDGES:
        cells = edges.filled(name)
        numbers = places(cells, ids)
        missing = numbers.is_null().to_numpy(False)
        with faults:
            refuse_rows(edges, missing, partial(_no_node, name, cells, known), remedy)
        ends.append(numbers.fill_null(-1 - len(ends)).to_numpy(zero_copy_only=False))
    is_loop = ends[0] == ends[1]
    if loops == "refuse":
        with faults:
            what = "the edge joins {!r} with itself"
            refuse_rows(edges, is_loop, lambda row: what.format(ids[int(ends[0][row])].as_py()), NO_LOOPS)
    faults.refuse()
    if loops == "keep":
        return np.stack(ends).astype(np.int64), np.arange(edges.rows)
    note_loops(int(is_loop.sum()), edges.rows, edges.path)
    return np.stack(ends).astype(np.int64)[:, ~is_loop], np.flatnonzero(~is_loop)


def elsewhere(edges: Table, ids: pa.Array) -> pa.Array:
    """The names of ends of edges that are not among `ids`, each once, in the order in which they occur.

    Raises:
        DataError: neither end of an edge is a node; names file and row.
    """
    cells = [edges.filled(name) for name in EDGES]
    absent = [places(column, ids).is_null() for column in cells]
    neither = np.logical_and(*(column.to_numpy(False) for column in absent))
    what = "neither {!r} nor {!r} is a node"
    describe = lambda row: what.format(*(column[row].as_py() for column in cells))  # noqa: E731
    refuse_rows(
        edges,
        neither,
        describe,
        "An edge to another member's node must have one end in this table of nodes. Remove the edge.",
    )
    return pc.unique(
        pa.chunked_array([column.filter(is_absent) for column, is_absent in zip(cells, absent, strict=True)])
    )


def _no_node(name: str, cells: pa.Array, known: NameIndex, row: int) -> str:
    cell = cells[row].as_py()
    return f"{name} {cell!r} is no node{known.hint(cell)}"


def split_of(examples: Table, y: np.ndarray, example: str = "node") -> np.ndarray:
    """bool [3, rows]: the train, val and test ones of the column "split"; messages call a row `example`.

    Raises:
        DataError: a value is no split, or an unlabeled row has one; names file and row.
    """
    cells = examples.texts("split")
    words = pc.index_in(cells, pa.array(SPLIT_WORDS), skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
    which = np.array([*SPLIT_WORDS.values(), -1])[words]
    unknown = (which < 0) & cells.is_valid().to_numpy(False)
    remedy = f"Use {', '.join(SPLITS)}, or leave the cell empty."
    refuse_rows(examples, unknown, lambda row: f"split is {cells[row].as_py()!r}", remedy)
    what = f"the {example} is in a split but has no label"
    refuse_rows(examples, (which >= 0) & ~labeled(y), lambda row: what, "Label it, or leave its split empty.")
    result: np.ndarray = which == np.arange(len(SPLITS))[:, None]
    return result


# ----------------------------------------------------------------------------------------------------
# What all data sets of a user's tables have in common: columns under names of their owner's own, and classes. Labels
# are whole numbers that count classes, or names: other numbers, such as measurements, are neither unless their owner
# says so.


def check_naming(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Refuse a meaning that no column has, and names that are given twice.

    Raises:
        ConfigError: says which.
    """
    if odd := [meaning for meaning in columns if meaning not in MEANINGS]:
        raise ConfigError(
            f"data.columns: {odd[0]!r} is no meaning of a column; name columns for {', '.join(MEANINGS)}.",
            code="config.unknown-key",
        )
    names = [*columns.values(), *ignore]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"data.columns and data.ignore: {twice[0]!r} occurs twice.")


def named(
    tables: Sequence[Table], root: Path, columns: Mapping[str, str], ignore: Sequence[str], lacking: bool = False
) -> list[Table]:
    """The tables without blank rows, with columns renamed to their meanings by `columns` {meaning: own name}, and
    without the columns of `ignore`. The first table has the examples. "edges.weight" in `ignore` is only the column of
    the edges. A row index is left out unless `columns` names it.

    lacking: whether names may be in none of the tables.

    Raises:
        DataError: a name is in none of the tables where it could be, its meaning is there, too, or a column has none.
    """
    tables = [table.without(table.blank()) for table in tables]
    for table in tables:
        table.refuse_headers()
    has = "; ".join(f"{table.path.name} has {', '.join(table.columns)}" for table in tables)
    held = {name for table in tables for name in table.columns}
    known = held | {_full(table, name) for table in tables for name in table.columns}
    if absent := [name for name in ignore if name not in known and not lacking]:
        refuse(
            root,
            f"no table has the column {absent[0]!r}, which data.ignore names ({has})",
            "Correct its name.",
            "column-named",
        )
    meanings: list[dict[str, str]] = [{} for _ in tables]
    for meaning, entry in columns.items():
        there = _places(tables, meaning, entry)
        if not there and not lacking:
            which = f"no table that can say a {meaning}" if entry in held else "no table"
            what = f"{which} has the column {entry!r}, which data.columns names for {meaning} ({has})"
            refuse(root, what, "Correct its name.", "column-named")
        for at in there:
            meanings[at][entry] = meaning
    return [_renamed(table, entry, ignore) for table, entry in zip(tables, meanings, strict=True)]


def _places(tables: Sequence[Table], meaning: str, column: str) -> list[int]:
    """The tables where `column`, as its owner names it, has the meaning: all tables that can have the meaning; for
    meanings of examples only the first such table."""
    stems, triples = [table.path.stem for table in tables], COLUMNS["triple"]["triples"]
    known = COLUMNS["graph" if "graphs" in stems else "edge" if stems[0] == "edges" else "node"]
    found_in = [
        at
        for at, table in enumerate(tables)
        if column in table.columns
        and meaning in known.get(table.path.stem, triples)
        # the ends of edges keep their names, even if other columns have the same name
        and not (table.path.stem == "edges" and column in EDGES and meaning not in EDGES)
    ]
    return found_in[:1] if meaning in OF_EXAMPLES else found_in


def _renamed(table: Table, meaning: Mapping[str, str], ignore: Sequence[str]) -> Table:
    columns = [name for name in table.columns if not {name, _full(table, name)} & set(ignore)]
    indexes = [name for name in columns if name not in meaning and is_index(table, name)]
    columns = [name for name in columns if name not in indexes]
    for name in indexes if table.path.stem != "edges" else ():
        level = logging.INFO if name.startswith(PANDAS) else logging.WARNING
        _LOG.log(level, "note: %s: the column %r is a row index and left out", table.path, name)
    for column, name in meaning.items():
        if name in columns and name not in meaning:
            refuse(
                table.path,
                f"data.columns calls {column!r} the {name}, and there is a column {name!r}",
                f"Leave that one out: ignore = [{name!r}] in [data].",
                "column-taken",
            )
    if nameless := [name for name in columns if not name.strip() and name not in meaning]:
        refuse_name(table.path, nameless[0])
    return replace(table, data=table.data.select(columns).rename_columns([meaning.get(name, name) for name in columns]))


def _full(table: Table, column: str) -> str:
    """The column with its table in front, such as "edges.weight"."""
    return f"{table.path.stem}.{column}"


FEW = 1000  # classes, which may be empty as far as there are rows for them
FILLED = 0.01  # the least share of more classes that has a row


def refuse_stray(y: np.ndarray, refuse_at: Callable[[int, str], None]) -> None:
    """Reject classes int64 [m], -1 is unlabeled, if the highest would leave nearly all below it empty; calls
    `refuse_at` with the row and the problem.

    Raises:
        DataError: by `refuse_at`.
    """
    classes = int(y.max(initial=-1)) + 1
    if classes <= len(y) and classes <= FEW:
        return
    occurring = len(np.unique(y[y >= 0]))
    if classes > len(y) or occurring < FILLED * classes:
        row = int(y.argmax())
        refuse_at(row, f"label {y[row]} would make {classes:,} classes; only {occurring:,} occur among {len(y):,} rows")


def labels_in(table: Table, key: str) -> pa.Array:
    """The cells of the column "label" as strings, null where empty; `key` in [data] can list what they are.

    Raises:
        DataError: the column holds fractions, in a type of numbers; names file and row.
    """
    return table.texts("label", _remedy(key))


# "[0, 1, 0]", "[0 1 0]", "0;1;0", "3|7", "0,1,0", "0 1 0": one decimal comma is none of them
SEVERAL = (
    r"^\s*([\[({]\s*(.*[,;|].*|\d+(\s+\d+)+)\s*[\])}]|\d+(\s*[;|]\s*\d+)+|\d+(\s*,\s*\d+){2,}|\d+(\s+\d+){2,})\s*$"
)


def refuse_several(table: Table, key: str) -> None:
    """Refuse several targets in one cell of the column "label", where `key` in [data] lists no names: each combination
    would be a class of its own. Targets are numbers, a list in brackets, or names that other cells hold by themselves.

    Raises:
        DataError: names file, row and how many there are.
    """
    cells = labels_in(table, key)
    names = set(cells.drop_null().unique().to_pylist())
    pieces = {name: re.split(r"\s*[,;|]\s*", name) for name in names}
    odd = [
        name
        for name, parts in pieces.items()
        if re.match(SEVERAL, name) or (len(parts) > 1 and names.issuperset(parts))
    ]
    bad = np.asarray(pc.is_in(cells, pa.array(odd, pa.string())))
    if (row := first(bad)) is not None:
        more = f" (and so are {int(bad.sum()) - 1:,} more of {table.rows:,} {table.counted})" if bad.sum() > 1 else ""
        remedy = f"If such cells are names, list all of them in data.{key}."
        if key == "labels":  # of the examples; labels of nodes and edges of small graphs are no targets
            remedy = (
                "Give each label a column of its own, 1 or 0, and set data.target = 'labels' and data.targets to these "
                f"columns. {remedy}"
            )
        table.refuse_at(row, f"label is {cells[row].as_py()!r}, several targets in one cell{more}", remedy)


def refuse_numerals(table: Table, key: str) -> None:
    """Refuse numbers in the column "label" that are not written as whole ones, where `key` in [data] lists no names:
    each would be a name of its own, next to which 1 and 1.0 are two.

    Raises:
        DataError: names file, row and how many there are.
    """
    cells = labels_in(table, key)
    forms = "|".join((NUMBER, DECIMAL_COMMA))
    number, whole = (np.asarray(pc.match_substring_regex(cells, form).fill_null(False)) for form in (forms, WHOLE))
    bad = number & ~whole
    if (row := first(bad)) is not None:
        more = int(bad.sum()) - 1
        rest = (
            f" (and so {'are' if more > 1 else 'is'} {more:,} more of {table.rows:,} {table.counted})" if more else ""
        )
        what = f"label is {cells[row].as_py()!r}, a number, but not one like 0, 1 or 2{rest}"
        table.refuse_at(row, what, _remedy(key))


def _remedy(key: str) -> str:
    predicted = 'To predict numbers: [data] target = "number". To predict classes: ' if key == "labels" else ""
    return (
        f"{predicted}Round or bin such numbers into whole ones from 0; if they are names, give them as text and list "
        f"all of them in data.{key}."
    )


@dataclass(frozen=True)
class Classified(TableSettings, Targeted):
    """The common part of all data sets from a user's tables.

    favorable: the class, by name or number, whose prediction is the favorable one where groups of people are
               compared; it becomes class 1 of the two. None is the second of `labels`, without these by alphabet.
    """

    stems: ClassVar[tuple[str, ...]] = ("nodes", "edges")  # of the files, in the order of `Tables`

    favorable: str | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_naming(self.columns or {}, self.ignore or ())
        if not self.by_class:
            self._check_targets()
        if self.classes is not None and self.labels is not None:
            raise ConfigError(
                "data: give classes (labels are numbers) or labels (labels are names), not both.",
                code="config.conflict",
            )
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"data: labels = {list(self.labels)} is empty or names a class twice.")
        if self.favorable is not None:
            self._check_favorable(str(self.favorable))
        lists: dict[str, str | tuple[str, ...] | None] = {"groups": self.groups}
        lists |= {f"categories.{column}": names for column, names in (self.categories or {}).items()}
        for key, names in lists.items():
            if isinstance(names, str) and names != AUTO:
                raise ConfigError(
                    f'data.{key} = "{names}": it is no list. List all values, or set "{AUTO}" for those in training.',
                    code="config.value",
                )
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"data: {key} = {list(names)} is empty or names a value twice.")
        if both := set(self.labels or ()) & set(self._unlabeled):
            raise ConfigError(
                f"data: {min(both)!r} is in labels, so that it is a class, and in unlabeled.", code="config.conflict"
            )
        check_loops(self.loops, self.has_edge_attributes)

    def _check_targets(self) -> None:
        """Reject settings of classes, or conflicting settings of the targets' columns."""
        of_classes = {"classes": self.classes, "favorable": self.favorable, "labels": self.labels}
        alone = self.target == LABELS and self.targets is None  # then `labels` are their names
        if odd := [
            name for name, value in of_classes.items() if value is not None and not (alone and name == "labels")
        ]:
            raise ConfigError(
                f'data.{odd[0]}: is of classes, and data.target = "{self.target}". Leave it out.',
                code="config.conflict",
            )
        if alone and self.labels is None:
            raise ConfigError(
                'data.targets: is lacking; target = "labels" needs the columns of the labels. Name them in order.',
                code="config.missing",
            )
        others = {*(self.categories or {}), *(self.ignore or ())}
        if both := [name for name in self.targets or () if name in others]:
            raise ConfigError(
                f"data.targets: {both[0]!r} is a feature in data.categories, or left out in data.ignore. Name it once.",
                code="config.conflict",
            )

    def settled(self, examples: Table) -> Self:
        """These settings; where `labels` are columns of the examples' table, as targets of several labels."""
        if self.labels is None or "label" in examples.columns or self.targets is not None or self.by_number:
            return self
        columns = self.target == LABELS or set(self.labels) <= set(examples.columns)
        return replace(self, target=LABELS, targets=self.labels, labels=None) if columns else self

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns of examples with the targets."""
        return self.targets or ("label",)

    def _check_favorable(self, name: str) -> None:
        if self.classes is not None and (self.classes != 2 or name not in ("0", "1")):
            raise ConfigError(
                f"data.favorable = {name!r}: classes are the numbers 0 to {self.classes - 1}. The favorable class is "
                "one of two: give 0 or 1.",
                code="config.no-class",
            )
        if self.labels is not None and (len(self.labels) != 2 or name != self.labels[1]):
            raise ConfigError(
                f"data.favorable = {name!r}: data.labels = {list(self.labels)} has another order. The favorable "
                "class is the second of two: correct labels, and leave favorable out.",
                code="config.conflict",
            )

    def _ordered(self, table: Table) -> tuple[str, ...] | None:
        """The class names in order: `labels`, or two with `favorable` as the second; None where neither is set, or
        where `favorable` is class 1 of numbers.

        Raises:
            DataError: there are not two classes, or `favorable` is none of them.
        """
        if self.labels is not None or self.favorable is None:
            return self.labels
        name, labels = str(self.favorable), table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(labels, WHOLE)).as_py()
        present = sorted({one.partition(".")[0] for one in labels.to_pylist()} if whole else labels.to_pylist())
        if name not in present or len(present) != 2:
            what = f"data.favorable = {name!r} is not one of two classes; the classes are {', '.join(present)}"
            refuse(table.path, what, "Name one of two classes.", "no-class")
        if whole and name == "1" and present[0] == "0":
            return None
        return (*(set(present) - {name}), name)

    @property
    def _unlabeled(self) -> tuple[str, ...]:
        return (self.unlabeled,) if isinstance(self.unlabeled, str) else self.unlabeled or ()

    @property
    def has_edge_attributes(self) -> bool:
        """Whether anything but who is joined to whom counts of edges."""
        return False

    @property
    def of_edges(self) -> bool:
        """Whether edges are the examples."""
        return False

    @property
    def of_links(self) -> bool:
        """Whether links are predicted, which needs no features of nodes."""
        return False

    def examples(self, tables: Tables) -> Table:
        """The table of the examples."""
        return tables.graphs or (tables.edges if self.of_edges else tables.nodes)

    def tables(self, folder: Path, lacking: bool = False) -> Tables:
        """The tables in a folder, columns called by what they mean.

        lacking: whether columns in settings may be in none of the tables.

        Raises:
            DataError: a file is missing or not valid, or a column in settings is in none.
        """
        return self.named(folder, Tables(*(read(find(folder, stem)) for stem in self.stems)), lacking)

    def named(self, root: Path, tables: Tables, lacking: bool = False) -> Tables:
        """The tables with columns called by what they mean (`named`)."""
        held = [table for table in tables if table is not None]
        first_of = next(at for at, table in enumerate(held) if table is self.examples(tables))
        order = [first_of, *(at for at in range(len(held)) if at != first_of)]
        result = named([held[at] for at in order], root, self.columns or {}, self.ignore or (), lacking)
        for name in self.settled(result[0]).answers:
            if name in result[0].columns:
                result[0] = result[0].emptied(name, self._unlabeled)
        return Tables(*(result[order.index(at)] for at in range(len(held))))

    def names_of(self, table: Table) -> tuple[str, ...]:
        """The names of the classes; () where labels are numbers."""
        if not self.by_class:
            return ()
        if "label" not in table.columns:
            return self.labels or ()
        if names := self._ordered(table):
            return names
        present = table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(present, WHOLE)).as_py()
        return () if whole is not False else tuple(sorted(present.to_pylist()))

    def labels_of(self, table: Table, labelled: bool = True) -> tuple[np.ndarray, int]:
        """Classes int64 [rows], -1 where a label is missing, and how many classes there are; or numbers or labels
        [rows, t] (`core.target`), and 0. Without `labelled`, all may be missing.

        Raises:
            DataError: a label is not one of the configured ones; names file and row.
        """
        if not self.by_class:
            return self._targets_of(table, labelled), 0
        has_column = labelled or "label" in table.columns
        cells = labels_in(table, "labels") if has_column else pa.nulls(table.rows, pa.string())
        present = cells.drop_null()
        if len(present) == 0 and not labelled:
            return np.full(table.rows, -1), self.classes or len(self.labels or ())
        if len(present) == 0:
            column = (self.columns or {}).get("label", "label")
            refuse(table.path, f"column {column} is empty in every row", "Label at least one row.")
        whole, class_names = pc.match_substring_regex(present, WHOLE), self._ordered(table)
        if class_names is None:
            if pc.all(whole).as_py():
                return self._numbered(table)
            table.refuse_gaps("label", "labels")
            table.refuse_blanks("label", "labels")
        if self.classes is not None and class_names is None:
            table.whole("label", empty="unlabeled")  # its error names the label that is no number
        if class_names is None:
            refuse_several(table, "labels")
            refuse_numerals(table, "labels")
        if class_names is None and pc.any(whole).as_py():
            names = present.filter(pc.invert(whole))
            what = f"some labels are numbers, others are names ({names[0]})"
            refuse(table.path, what, f"Use one kind in column label. {meant_empty(names[0].as_py())}")
        classes = class_names or tuple(sorted(present.unique().to_pylist()))
        odd = sorted(set(present.unique().to_pylist()) - set(classes))
        remedy = f"Correct it or add it to labels. {meant_empty(*odd[:1])}"
        return table.among("label", cells, classes, remedy), len(classes)

    def _targets_of(self, table: Table, labelled: bool) -> np.ndarray:
        """Numbers or labels [rows, t]; without `labelled`, an absent column has only gaps."""
        faults, values = Faults(DataError), list[np.ndarray]()
        for name in self.answers:
            with faults:
                has_column = labelled or name in table.columns
                cells = table.targets(name) if has_column else np.full(table.rows, np.nan)
                values.append(self.column(cells, name, table))
        faults.refuse()
        y = self.joined(values)
        if labelled and not labeled(y).any():
            what = f"{', '.join(self.answers)}: empty in every row"
            refuse(table.path, what, "Give at least one row a value.", "target")
        return y

    def of_targets(self, y: np.ndarray) -> Record:
        """The fields of a `Dataset` for targets (`Targeted.fields`), by the owner's names of columns."""
        return self.fields(y, self.targets or ((self.columns or {}).get("label", "label"),))

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabeled")
        if self.classes is None:
            refuse_stray(y, lambda row, what: table.refuse_at(row, what, "Number the classes from 0, without gaps."))
            return y, int(y.max()) + 1
        if (row := first(y >= self.classes)) is not None:
            what = f"label {y[row]} is not in 0..{self.classes - 1}"
            table.refuse_at(row, what, "Correct it or raise classes.")
        return y, self.classes
