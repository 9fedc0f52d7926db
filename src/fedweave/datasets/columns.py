"""How the columns of a user's tables of nodes and edges are read: features, categories, gaps, ids, ends, splits."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.graph import SPLITS
from fedweave.core.graph_arrays import Matrix
from fedweave.core.target import is_labeled
from fedweave.core.text import counted
from fedweave.datasets.base import NO_LOOPS, note_loops, to_undirected
from fedweave.datasets.cells import GAPS, is_gap, is_name, numbers_in
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.column_names import EDGES, NODES, OF_EDGES
from fedweave.datasets.features import one_hot
from fedweave.datasets.name_matching import NameIndex, as_whole, places
from fedweave.datasets.row_numbers import HEAD
from fedweave.datasets.table import Table, is_text, refuse_name
from fedweave.errors import ConfigError, DataError, Faults

_LOG = logging.getLogger(__name__)


def gap_columns(missing: Sequence[str] | None, of_edges: bool) -> list[str]:
    """The columns of edges, or of nodes, among the names in [data] missing, such as "income" and "edges.fee"."""
    return [name.removeprefix(OF_EDGES) for name in missing or () if name.startswith(OF_EDGES) == of_edges]


def check_gaps(missing: Sequence[str] | None, categories: Mapping[str, object] | None) -> None:
    """Refuse columns in [data] missing that are in [data] categories, too."""
    for name in missing or ():
        if name in (categories or {}):
            raise ConfigError(f"data: missing names {name!r}, whose empty cells are in none of its categories.")


def fill_gaps(table: Table, names: Sequence[str]) -> Table:
    """The table with 0 in empty cells of the columns `names`, or cells with a word for a gap (`GAPS`); at its end a
    column for each that marks the gaps."""
    data = table.data
    for name in names:
        if name not in data.column_names:
            what = f"[data] missing names the column {name!r}, which does not exist"
            refuse(table.path, what, "Correct its name.", "column-named")
        cells = table.number_cells(name)
        if pa.types.is_null(cells.type):
            cells = cells.cast(pa.float64())
        gaps = cells.is_null(nan_is_null=True)
        if is_text(cells.type):
            words = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
            gaps = pc.or_(gaps, pc.is_in(words, pa.array(["", *GAPS], cells.type), skip_nulls=True))
        zero = pa.scalar("0").cast(cells.type)
        data = data.set_column(data.column_names.index(name), name, pc.if_else(gaps, zero, cells))
        data = data.append_column(f"{name} is missing", gaps.cast(pa.uint8()))
    return replace(table, data=data)


def expand_lists(table: Table, known: Sequence[str] = ()) -> Table:
    """The table with columns of lists of numbers split into a column for each place, except for the `known`: "emb
    0" and "emb 1" of "emb". A list may be text in square brackets, as CSV has it."""
    data = table.data
    for name in table.columns:
        if name in known:
            continue
        cells = _lists(data[name])
        kind = cells.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        of_numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        if not is_list or not any(is_kind(kind.value_type) for is_kind in of_numbers):
            continue
        # Lists of one length in every row become that many columns.
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        width, at = int(lengths.max(initial=0)), data.column_names.index(name)
        what = f"{name!r} holds {{}} numbers, not {width}".format
        remedy = "Give lists of one length in every row, or one column for each number."
        refuse_rows(table, lengths != max(width, 1), lambda row: what(lengths[row]), remedy)  # noqa: B023
        values, data = cells.flatten(), data.remove_column(at)
        for place in range(width):
            new_name = f"{name} {place}"
            if new_name in data.column_names:
                refuse_name(table.path, new_name)
            data = data.add_column(at + place, new_name, values.take(pa.array(np.arange(place, len(values), width))))
    return replace(table, data=data)


_LIST = r"^\s*\[.*\]\s*$"


def _lists(column: pa.ChunkedArray) -> pa.Array:
    """A column of text as lists of numbers, if each cell is one in square brackets, "[0.1, 2]" or "[0.1 2]", or empty;
    other columns as they are."""
    cells = column.combine_chunks()
    if not is_text(cells.type):
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


SPLIT_WORDS = {name: at for at, name in enumerate(SPLITS)} | {"valid": 1, "validation": 1, "dev": 1}
Categories = Mapping[str, str | tuple[str, ...]]
AUTO = "auto"  # instead of a column's categories: the categories in training rows


class TrainingValues(tuple[str, ...]):
    """Categories in the training rows: another value, which [data] does not list, is in none of them, with a note."""

    __slots__ = ()


def training_values(table: Table, column: str, rows: np.ndarray | None = None) -> TrainingValues:
    """The values of a column in the `rows` (bool [rows], all if None), sorted, without words for a gap."""
    if column not in table.columns:
        what = f"[data] categories names the column {column!r}, which does not exist"
        refuse(table.path, what, "Correct its name.")
    cells = table.texts(column)
    cells = cells if rows is None else cells.filter(pa.array(rows))
    values = sorted(text for text in cells.drop_null().unique().to_pylist() if not is_gap(text))
    if not values:
        refuse(table.path, f"column {column!r} is empty in every row of training", "Leave it out: ignore in [data].")
    return TrainingValues(values)


def training_rows(table: Table) -> np.ndarray | None:
    """bool [rows], rows whose split is "train"; None if there are none."""
    if "split" not in table.columns:
        return None
    trains = pc.fill_null(pc.equal(table.texts("split"), "train"), False)
    rows: np.ndarray = trains.to_numpy(zero_copy_only=False)
    return rows if rows.any() else None


def _categories_of(table: Table, column: str, names: str | tuple[str, ...]) -> np.ndarray:
    """int64 [rows], the places of the column's values in `names`, -1 in none."""
    if not isinstance(names, TrainingValues):
        return table.kinds(column, tuple(names), f"categories.{column}")
    cells = table.texts(column)
    numbers: np.ndarray = places(cells, pa.array(names, pa.string())).fill_null(-1).to_numpy(False).astype(np.int64)
    new = [text for text in cells.filter(pa.array(numbers < 0)).drop_null().to_pylist() if not is_gap(text)]
    if new:
        more = f" and {counted(len(set(new)) - 1, 'more value')}" if len(set(new)) > 1 else ""
        note = f"{new[0]!r}{more} in {counted(len(new), 'row')}, which no row of training has: in no category"
        _LOG.warning("note: %s: %s is %s", table.path, column, note)
    return numbers


def ids_of(nodes: Table) -> pa.Array:
    """The nodes' ids as text, each once."""
    ids = nodes.nonempty_texts("id")
    nodes.refuse_blanks("id")
    first_rows = pc.index_in(ids, ids).to_numpy(zero_copy_only=False)
    what = "id {!r} is already in row {}".format
    describe = lambda row: what(ids[row].as_py(), nodes.place(first_rows[row])[1])  # noqa: E731
    refuse_rows(nodes, first_rows != np.arange(nodes.rows), describe, "Give every row an id of its own.")
    return ids


def feature_names(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None
) -> tuple[str, ...]:
    """All columns that mean nothing else, which the `known` do; of a column of `categories` one for each of its
    values, "job = clerk"."""
    values, names = categories or {}, list[str]()
    for name in nodes.columns:
        if name in values and name not in known:
            names += [f"{name} = {value}" for value in values[name]]
        elif name not in known:
            names.append(name)
    return tuple(names)


def features_of(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None, distinct: bool = True
) -> Matrix:
    """float32 [n, d]: the columns of `feature_names`, sparse where some are of categories.

    distinct: False for examples to be predicted, where a few may well have nearly the same numbers.
    """
    values, faults, columns = categories or {}, Faults(DataError), list[Matrix]()
    for name in values.keys() - set(nodes.columns):
        what = f"[data] categories names the column {name!r}, which does not exist"
        refuse(nodes.path, what, "Add it, or correct its name.")
    for name in nodes.columns:
        with faults:
            if name in values and name not in known:
                columns.append(one_hot(_categories_of(nodes, name, values[name]), len(values[name])))
            elif name not in known:
                columns.append(nodes.numbers(name, distinct)[:, None])
    faults.refuse()
    if any(isinstance(column, sp.csr_matrix) for column in columns):
        return sp.csr_matrix(sp.hstack([sp.csr_matrix(column) for column in columns], "csr"))
    return np.concatenate(columns, 1) if columns else np.empty((nodes.rows, 0), np.float32)


def sens_of(nodes: Table, groups: tuple[str, ...] | None = None) -> np.ndarray | None:
    """int64 [n] sensitive attribute, -1 where the cell is empty; None without the column. Text is a place among
    `groups`, by default those present, sorted."""
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
    as "7.0" is "7"."""
    names = as_whole(table.nonempty_texts(column))
    table.refuse_blanks(column)
    table.refuse_gaps(column)
    return names


def owners_of(table: Table, column: str) -> tuple[str, ...]:
    """The names in a column of owners (`names_in`), sorted."""
    return tuple(sorted(names_in(table, column).unique().to_pylist()))


def edges_of(edges: Table, ids: pa.Array, loops: str = "refuse") -> np.ndarray:
    """int64 [2, 2 E]: both directions of every edge between the nodes `ids`, each once."""
    return to_undirected(ends_of(edges, ids, loops)[0], len(ids))


ABSENT_END = "Add a row with this id to nodes, or remove the edge."


def ends_of(
    edges: Table, ids: pa.Array, loops: str = "refuse", remedy: str = ABSENT_END
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [2, E]: the ends of every edge as places in `ids`, and int64 [E]: its row.

    loops: "refuse", "keep", or "drop", which leaves out edges of a node with itself, and logs how many. remedy: for an
    end that is not a node.
    """
    faults, ends, known = Faults(DataError), list[np.ndarray](), NameIndex(ids)
    for name in EDGES:
        cells = edges.nonempty_texts(name)
        numbers = places(cells, ids)
        missing = numbers.is_null().to_numpy(False)
        with faults:
            describe = lambda row: f"{name} {cells[row].as_py()!r} is not a node{known.hint(cells[row].as_py())}"  # noqa: B023, E731
            refuse_rows(edges, missing, describe, remedy)
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


def external_names(edges: Table, ids: pa.Array) -> pa.Array:
    """The names of ends of edges that are not among `ids`, each once, in the order in which they occur."""
    cells = [edges.nonempty_texts(name) for name in EDGES]
    absent = [places(column, ids).is_null() for column in cells]
    neither = np.logical_and(*(column.to_numpy(False) for column in absent))
    what = "neither {!r} nor {!r} is a node".format
    remedy = "An edge to another member's node must have one end in this table of nodes. Remove the edge."
    refuse_rows(edges, neither, lambda row: what(*(column[row].as_py() for column in cells)), remedy)
    return pc.unique(pa.chunked_array(list(map(pa.Array.filter, cells, absent))))


def masks_of(examples: Table, y: np.ndarray, example: str = "node") -> np.ndarray:
    """bool [3, rows]: the train, val and test ones of the column "split"; messages call a row `example`."""
    cells = examples.texts("split")
    words = pc.index_in(cells, pa.array(SPLIT_WORDS), skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
    which = np.array([*SPLIT_WORDS.values(), -1])[words]
    unknown = (which < 0) & cells.is_valid().to_numpy(False)
    remedy = f"Use {', '.join(SPLITS)}, or leave the cell empty."
    refuse_rows(examples, unknown, lambda row: f"split is {cells[row].as_py()!r}", remedy)
    what = f"the {example} is in a split but has no label"
    refuse_rows(examples, (which >= 0) & ~is_labeled(y), lambda row: what, "Label it, or leave its split empty.")
    return np.asarray(which == np.arange(len(SPLITS))[:, None])
