"""What the columns of a user's tables of nodes and edges mean (docs/data-format.md), how each is read, and which may
have empty cells.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.graph import SPLITS
from fedweave.core.text import counted
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.edges import NO_LOOPS, note_loops, undirected
from fedweave.datasets.features import one_hot
from fedweave.datasets.remedies import GAPS, NUMERIC, is_gap
from fedweave.datasets.table import Known, Table, as_whole, places, refuse_name
from fedweave.errors import ConfigError, DataError, Faults

OF_EDGES = "edges."


def gaps_of(missing: Sequence[str] | None, of_edges: bool) -> list[str]:
    """Of the names in [data] missing, such as "income" and "edges.fee", the columns of edges, or of nodes."""
    named = [(name.startswith(OF_EDGES), name.removeprefix(OF_EDGES)) for name in missing or ()]
    return [name for is_of_edges, name in named if is_of_edges == of_edges]


def check_gaps(missing: Sequence[str] | None, categories: Mapping[str, object] | None) -> None:
    """Refuse columns in [data] missing that are in [data] categories, too.

    Raises:
        ConfigError: names one.
    """
    if both := [name for name in missing or () if name in (categories or {})]:
        raise ConfigError(f"data: missing names {both[0]!r}, whose empty cells are in none of its categories.")


def gaps_filled(table: Table, names: Sequence[str]) -> Table:
    """With 0 in the cells of these columns that are empty or hold a word for that (`GAPS`), and behind all others a
    column for each that says where they were.

    Raises:
        DataError: there is no such column.
    """
    data = table.data
    for name in names:
        if name not in data.column_names:
            refuse(
                table.path,
                f"there is no column {name!r}, which [data] missing names",
                "Correct its name.",
                "column-named",
            )
        cells = data[name].combine_chunks()
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if pa.types.is_null(cells.type):
            cells = cells.cast(pa.float64())
        gaps = cells.is_null(nan_is_null=True)
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            words = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
            gaps = pc.or_(gaps, pc.is_in(words, pa.array(["", *GAPS], cells.type), skip_nulls=True))
        zero = pa.scalar("0").cast(cells.type)
        data = data.set_column(data.column_names.index(name), name, pc.if_else(gaps, zero, cells))
        data = data.append_column(f"{name} is missing", gaps.cast(pa.uint8()))
    return replace(table, data=data)


def spread(table: Table, known: Sequence[str] = ()) -> Table:
    """With a column for each place of the columns that hold a list of numbers in every row, but for the `known`: "emb
    0" and "emb 1" of "emb".

    Raises:
        DataError: lists differ in length, or one is missing; names file, row and column.
    """
    data = table.data
    for name in (name for name in table.columns if name not in known):
        cells = data[name].combine_chunks()
        if not _holds_numbers(cells.type):
            continue
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        width, at = int(lengths.max(initial=0)), data.column_names.index(name)
        _refuse_uneven(table, name, lengths, width)
        names = [f"{name} {place}" for place in range(width)]
        if taken := sorted(set(names) & set(data.column_names)):
            refuse_name(table.path, taken[0])
        values, data = cells.flatten(), data.remove_column(at)
        for place, own in enumerate(names):
            data = data.add_column(at + place, own, values.take(pa.array(np.arange(place, len(values), width))))
    return replace(table, data=data)


def _refuse_uneven(table: Table, name: str, lengths: np.ndarray, width: int) -> None:
    remedy = "Give lists of one length in every row, or one column for each number."
    said = lambda row: f"{name!r} holds {lengths[row]} numbers, not {width}"  # noqa: E731
    refuse_rows(table, lengths != max(width, 1), said, remedy)


def _holds_numbers(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of numbers."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(is_list(kind) for is_list in lists) and any(is_one(kind.value_type) for is_one in numbers)


NODES = ("id", "label", "sens", "split")
EDGES = ("source", "target")
Categories = Mapping[str, str | tuple[str, ...]]
AUTO = "auto"  # in the place of a column's categories: those that rows of training have

_LOG = logging.getLogger(__name__)


class Seen(tuple[str, ...]):
    """Categories that rows of training have: another value, which nobody declared, is in none of them, with a note."""

    __slots__ = ()


def seen(table: Table, column: str, rows: np.ndarray | None = None) -> Seen:
    """The values of a column in the `rows` (bool [rows], all if None), sorted, without words for a gap.

    Raises:
        DataError: there is no such column, or these rows have no value.
    """
    if column not in table.columns:
        refuse(table.path, f"there is no column {column!r}, which [data] categories names", "Correct its name.")
    cells = table.texts(column)
    cells = cells if rows is None else cells.filter(pa.array(rows))
    values = sorted(text for text in cells.drop_null().unique().to_pylist() if not is_gap(text))
    if not values:
        refuse(table.path, f"column {column!r} is empty in every row of training", "Leave it out: ignore in [data].")
    return Seen(values)


def _categories_of(table: Table, column: str, names: str | tuple[str, ...]) -> np.ndarray:
    """int64 [rows], the places of the column's values in `names`, -1 in none."""
    if not isinstance(names, Seen):
        return table.kinds(column, tuple(names), f"categories.{column}")
    cells = table.texts(column)
    found: np.ndarray = places(cells, pa.array(names, pa.string())).fill_null(-1).to_numpy(False).astype(np.int64)
    others = [text for text in cells.filter(pa.array(found < 0)).drop_null().to_pylist() if not is_gap(text)]
    if others:
        kinds = [*dict.fromkeys(others)]
        more = f" and {counted(len(kinds) - 1, 'more value')}" if kinds[1:] else ""
        said = f"{kinds[0]!r}{more} in {counted(len(others), 'row')}, which no row of training has: in no category"
        _LOG.warning("note: %s: %s is %s", table.path, column, said)
    return found


def check_columns(
    table: Table, required: tuple[str, ...], known: tuple[str, ...], closed: bool = False, hint: str = ""
) -> None:
    """Refuse a table without `required` columns, with a misspelt one of the `known` or, where it is `closed`, with any
    other; `hint` says what else would allow it.

    Raises:
        DataError: names the file, the column and what it has.
    """
    found = f"it has {', '.join(table.columns)}"
    for name in table.columns:
        if name not in known and name.strip().casefold() in known:
            refuse(
                table.path, f"the column name {name!r} is almost {name.strip().casefold()!r}", "Spell it exactly so."
            )
    if absent := [name for name in required if name not in table.columns]:
        what = f"there is no column {' and no column '.join(map(repr, absent))}; {found}"
        refuse(table.path, what, _naming(table, absent, known), "column-missing")
    extra = [name for name in table.columns if name not in known] if closed else []
    ignore = f"ignore = {json.dumps([f'{table.path.stem}.{name}' for name in extra])}"
    if "weight" in extra:
        what = "edge weights are not used unless they are named" if hint else "edge weights are not supported"
        use = 'Say edge_weight = "weight" in [data]' if hint else "Remove the column weight"
        refuse(table.path, what, f"{use}, or {ignore}; then every edge counts 1.")
    if extra:
        remedy = f"Allowed are {', '.join(known)}{f'; {hint}' if hint else ''}; {ignore} leaves out the others."
        refuse(table.path, f"unknown columns: {', '.join(extra)}", remedy, "column-unknown")


def _naming(table: Table, absent: Sequence[str], known: Sequence[str]) -> str:
    """What to do about columns that are `absent`: others may have their meaning, in their order if as many."""
    others, parts = [name for name in table.columns if name not in known], table.columns[0].split()
    if len(table.columns) == 1 and len(parts) > 1:
        return f"Cells are split by commas: write {','.join(parts)}, and likewise all rows."
    own = others if len(others) == len(absent) else ["…"] * len(absent)
    pairs = ", ".join(f"{name} = {json.dumps(of, ensure_ascii=False)}" for name, of in zip(absent, own, strict=True))
    return f"If columns of another name say it: [data] columns = {{{pairs}}}. See docs/data-format.md for all columns."


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
    given = categories or {}
    return tuple(
        full
        for name in nodes.columns
        if name not in known
        for full in ([f"{name} = {value}" for value in given[name]] if name in given else [name])
    )


def features_of(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None, apart: bool = True
) -> np.ndarray | sp.csr_matrix:
    """float32 [n, d]: the columns of `feature_names`, sparse where some are of categories.

    apart: False for examples to be predicted, of which a few may well have nearly the same numbers.

    Raises:
        DataError: a value is not a number, or none of its column's `categories`, or float32 does not keep a column's
            differences; names file, row and column.
    """
    given, faults, columns = categories or {}, Faults(DataError), list[np.ndarray | sp.csr_matrix]()
    for name in given.keys() - set(nodes.columns):
        refuse(
            nodes.path, f"there is no column {name!r}, which [data] categories names", "Add it, or correct its name."
        )
    for name in (name for name in nodes.columns if name not in known):
        with faults:
            if name in given:
                columns.append(one_hot(_categories_of(nodes, name, given[name]), len(given[name])))
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
    named = group_names(nodes, groups)
    return nodes.kinds("sens", named, "groups") if named else nodes.whole("sens", empty="unknown")


def group_names(nodes: Table, groups: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """What the groups in the column sens are called, in order; () where they are numbers or there is no such column."""
    if "sens" not in nodes.columns:
        return ()
    present = nodes.texts("sens").drop_null()
    if groups is None and (len(present) == 0 or pc.any(pc.match_substring_regex(present, NUMERIC)).as_py()):
        return ()
    return groups or tuple(sorted(present.unique().to_pylist()))


def owners_of(table: Table, column: str) -> tuple[str, ...]:
    """The names in a column that says whose each row is, sorted; a whole number that is written as "7.0" is "7".

    Raises:
        DataError: a cell is empty or says so in words ("nan"), or a name begins or ends with a blank, which would make
            a member of its own.
    """
    names = as_whole(table.filled(column)).unique().to_pylist()
    table.refuse_blanks(column)
    table.refuse_gaps(column)
    return tuple(sorted(names))


def edges_of(edges: Table, ids: pa.Array, loops: str = "refuse") -> np.ndarray:
    """int64 [2, 2 E]: both directions of every edge between the nodes `ids`, each once.

    Raises:
        DataError: see `ends_of`.
    """
    (source, target), _ = ends_of(edges, ids, loops)
    return undirected(source, target, len(ids))


def ends_of(edges: Table, ids: pa.Array, loops: str = "refuse") -> tuple[np.ndarray, np.ndarray]:
    """int64 [2, E]: the ends of every edge as places in `ids`, and int64 [E]: its row.

    loops: "refuse", "keep", or "drop", which leaves out edges of a node with itself, and logs how many.

    Raises:
        DataError: an end is not among the nodes, or both are the same; names file and row.
    """
    faults, ends, known = Faults(DataError), list[np.ndarray](), Known(ids)
    for name in EDGES:
        cells = edges.filled(name)
        numbers = places(cells, ids)
        missing = numbers.is_null().to_numpy(False)
        remedy = "Add a row with this id to nodes, or remove the edge."
        with faults:
            refuse_rows(edges, missing, partial(_no_node, name, cells, known), remedy)
        ends.append(numbers.fill_null(-1 - len(ends)).to_numpy(zero_copy_only=False))
    alone = ends[0] == ends[1]
    if loops == "refuse":
        with faults:
            what = "the edge joins {!r} with itself"
            refuse_rows(edges, alone, lambda row: what.format(ids[int(ends[0][row])].as_py()), NO_LOOPS)
    faults.refuse()
    if loops == "keep":
        return np.stack(ends).astype(np.int64), np.arange(edges.rows)
    note_loops(int(alone.sum()), edges.rows, edges.path)
    return np.stack(ends).astype(np.int64)[:, ~alone], np.flatnonzero(~alone)


def elsewhere(edges: Table, ids: pa.Array) -> pa.Array:
    """What edges name as one of their ends that is not among `ids`, each once, in the order in which it occurs.

    Raises:
        DataError: neither end of an edge is a node; names file and row.
    """
    cells = [edges.filled(name) for name in EDGES]
    absent = [places(own, ids).is_null() for own in cells]
    neither = np.logical_and(*(own.to_numpy(False) for own in absent))
    what = "neither {!r} nor {!r} is a node"
    said = lambda row: what.format(*(own[row].as_py() for own in cells))  # noqa: E731
    refuse_rows(edges, neither, said, "An edge to another member's node has one end among this one's; remove the edge.")
    return pc.unique(pa.chunked_array([own.filter(there) for own, there in zip(cells, absent, strict=True)]))


def _no_node(name: str, cells: pa.Array, known: Known, row: int) -> str:
    cell = cells[row].as_py()
    return f"{name} {cell!r} is no node{known.hint(cell)}"


def split_of(examples: Table, y: np.ndarray, example: str = "node") -> np.ndarray:
    """bool [3, rows]: the train, val and test ones of the column "split"; messages call a row `example`.

    Raises:
        DataError: a value is no split, or an unlabelled row has one; names file and row.
    """
    cells = examples.texts("split")
    which: np.ndarray = (
        pc.index_in(cells, pa.array(SPLITS), skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
    )
    unknown = (which < 0) & cells.is_valid().to_numpy(False)
    remedy = f"Use {', '.join(SPLITS)}, or leave the cell empty."
    refuse_rows(examples, unknown, lambda row: f"split is {cells[row].as_py()!r}", remedy)
    what = f"the {example} is in a split but has no label"
    refuse_rows(examples, (which >= 0) & (y < 0), lambda row: what, "Label it, or leave its split empty.")
    result: np.ndarray = which == np.arange(len(SPLITS))[:, None]
    return result
