"""The columns of a run's tables, so that a damaged or foreign file is reported when it is read."""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fedweave.core import ledger_columns

DIRECTIONS = ("up", "down", "peer")  # of a ledger's messages
MAX_VALUE = 1e300  # of a metric, beyond which no axis can be drawn; a model has diverged long before


class TableColumn(NamedTuple):
    """One column: which types it may have, these types in words, and whether every row has a value.

    A column whose values are all absent may be of the type null."""

    fits: Callable[[pa.DataType], bool]
    words: str
    full: bool = True


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_integer_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) and types.is_integer(kind.value_type))


INTEGER = TableColumn(types.is_integer, "whole numbers")
NUMBER = TableColumn(_is_number, "numbers")
TEXT = TableColumn(_is_text, "text")
TIME = TableColumn(types.is_timestamp, "times")
INTEGERS = TableColumn(_is_integer_list, "lists of whole numbers")


def _ledger_column(column: ledger_columns.LedgerColumn) -> TableColumn:
    for kind in (INTEGER, NUMBER, TIME):
        if kind.fits(column.type):
            return kind._replace(full=not column.optional)
    return TEXT._replace(full=not column.optional)


LEDGER_COLUMNS = {column.name: _ledger_column(column) for column in ledger_columns.COLUMNS}
TABLES: dict[str, dict[str, TableColumn]] = {
    "metrics.parquet": {"round": INTEGER, "client": TEXT, "split": TEXT, "metric": TEXT, "value": NUMBER},
    "ledger.parquet": LEDGER_COLUMNS,
    "earlier-ledger.parquet": {**LEDGER_COLUMNS, "run": INTEGER},
    "partition.parquet": {
        "client": TEXT,
        "labels": INTEGERS._replace(full=False),
        **dict.fromkeys(("nodes", "edges_kept", "edges_cut", "train", "val", "test"), INTEGER._replace(full=False)),
    },
    "columns.parquet": {
        "column": TEXT,
        "kind": TEXT,
        "value": TEXT._replace(full=False),
        "shift": NUMBER._replace(full=False),
        "divisor": NUMBER._replace(full=False),
    },
    "contributions.parquet": {"client": TEXT, "round": INTEGER, "leave_one_out": NUMBER._replace(full=False)},
    "motifs.parquet": {"client": TEXT, "motif": TEXT, "graphs": INTEGER},
    "predictions.parquet": {"client": TEXT},  # and "predicted", or "predicted_…" of each target
}


def check_columns(table: pa.Table, name: str) -> None:
    """Raise ValueError if the table of the file `name` is not as a run writes it; the message names the column."""
    for column, (fits, words, full) in TABLES.get(name, {}).items():
        if table.column_names.count(column) != 1:
            raise ValueError(f"it has {table.column_names.count(column) or 'no'} columns {column!r}, and needs one")
        values = table[column]
        if not fits(values.type) and not types.is_null(values.type):
            raise ValueError(f"its column {column!r} holds {values.type}, not {words}")
        if full and values.null_count:
            raise ValueError(f"its column {column!r} is empty in {values.null_count} rows")

    if name == "ledger.parquet":
        unknown = set(table["direction"].unique().to_pylist()) - {*DIRECTIONS}
        if unknown:
            raise ValueError(f"its column 'direction' has {min(unknown)[:40]!r}, and may have {', '.join(DIRECTIONS)}")
    if name == "metrics.parquet":
        size = pc.abs(table["value"].cast(pa.float64()))
        if pc.any(pc.and_(pc.is_finite(size), pc.greater(size, MAX_VALUE))).as_py():
            raise ValueError(f"its column 'value' has numbers beyond {MAX_VALUE:.0e}")
    if name == "partition.parquet":
        rows = [counts for counts in table["labels"].to_pylist() if counts]
        if len({len(counts) for counts in rows}) > 1 or any(None in counts for counts in rows):
            raise ValueError("its column 'labels' has not one count for each class in every row")
    if name == "predictions.parquet":
        _check_classes(table)


def _check_classes(table: pa.Table) -> None:
    predicted = [name for name in table.column_names if name.partition("_")[0] == "predicted"]
    classes = {name.removeprefix("p_") for name in table.column_names if name.startswith("p_")}
    if not predicted:
        raise ValueError("it has no column 'predicted', and needs one")
    if predicted != ["predicted"] or not classes:
        return  # of numbers, or of several labels
    for name in {"predicted", "true"} & set(table.column_names):
        unknown = set(map(str, pc.unique(table[name].drop_null()).to_pylist())) - classes
        if unknown:
            raise ValueError(
                f"its column {name!r} has {min(unknown)[:40]!r}, and there is no column of probabilities for that class"
            )
