"""What the tables of a run hold, so that a damaged or foreign one is named when it is read."""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

WAYS = ("up", "down", "peer")  # of a ledger's messages
MOST = 1e300  # of a metric, beyond which no axis can be drawn; a model has diverged long before


class Kind(NamedTuple):
    """What a column may hold: in `words`, and whether a type `fits`."""

    words: str
    fits: Callable[[pa.DataType], bool]


class Column(NamedTuple):
    """Of one column: its kind, and whether every row has a value."""

    kind: Kind
    full: bool = True


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_words(kind: pa.DataType) -> bool:
    return bool(types.is_string(_plain(kind)) or types.is_large_string(_plain(kind)))


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_counts(kind: pa.DataType) -> bool:
    return bool(types.is_null(kind) or (types.is_list(kind) and types.is_integer(kind.value_type)))


_WHOLE = Kind("whole numbers", lambda kind: types.is_integer(kind) or types.is_null(kind))
_NUMBERS = Kind("numbers", lambda kind: _is_number(kind) or types.is_null(kind))
_WORDS = Kind("text", lambda kind: _is_words(kind) or types.is_null(kind))
_COUNTS = Kind("lists of whole numbers", _is_counts)
_TIMES = Kind("times", lambda kind: types.is_timestamp(kind) or types.is_null(kind))
_ANY = Kind("classes", lambda kind: _is_words(kind) or types.is_integer(kind) or types.is_null(kind))

METRICS = {
    "round": Column(_WHOLE),
    "client": Column(_WORDS),
    "split": Column(_WORDS),
    "metric": Column(_WORDS),
    "value": Column(_NUMBERS),
}
LEDGER = {
    **dict.fromkeys(("round", "call", "bytes"), Column(_WHOLE)),
    **dict.fromkeys(("step", "client", "direction", "key", "shape", "mechanism", "reveals"), Column(_WORDS)),
    "seconds": Column(_NUMBERS),
    **dict.fromkeys(("to", "applied", "purpose"), Column(_WORDS, full=False)),
    "at": Column(_TIMES, full=False),
}
PARTITION = {
    "client": Column(_WORDS),
    **dict.fromkeys(("nodes", "edges_kept", "edges_cut", "train", "val", "test"), Column(_WHOLE, full=False)),
    "labels": Column(_COUNTS, full=False),
}
COLUMNS = {
    **dict.fromkeys(("column", "kind"), Column(_WORDS)),
    "value": Column(_WORDS, full=False),
    **dict.fromkeys(("shift", "divisor"), Column(_NUMBERS, full=False)),
}
MOTIFS = {"client": Column(_WORDS), "motif": Column(_WORDS), "graphs": Column(_WHOLE)}
CONTRIBUTIONS = {"client": Column(_WORDS), "round": Column(_WHOLE), "leave_one_out": Column(_NUMBERS, full=False)}
PREDICTIONS = {"client": Column(_WORDS), "predicted": Column(_ANY)}
OF_TABLE = {
    "metrics.parquet": METRICS,
    "ledger.parquet": LEDGER,
    "earlier-ledger.parquet": {**LEDGER, "run": Column(_WHOLE)},
    "partition.parquet": PARTITION,
    "columns.parquet": COLUMNS,
    "contributions.parquet": CONTRIBUTIONS,
    "motifs.parquet": MOTIFS,
    "predictions.parquet": PREDICTIONS,
}


def check_columns(table: pa.Table, name: str) -> None:
    """Raise ValueError if the table of the file `name` is not what a run writes there; says what and where."""
    for column, (kind, full) in OF_TABLE.get(name, {}).items():
        if table.column_names.count(column) != 1:
            raise ValueError(f"it has {table.column_names.count(column) or 'no'} columns {column!r}, and needs one")
        found = table[column]
        if not kind.fits(found.type):
            raise ValueError(f"its column {column!r} holds {found.type}, not {kind.words}")
        if full and found.null_count:
            raise ValueError(f"its column {column!r} is empty in {found.null_count} rows")
    if name == "ledger.parquet" and (odd := set(table["direction"].unique().to_pylist()) - {*WAYS}):
        raise ValueError(f"its column 'direction' has {min(odd)[:40]!r}, and may have {', '.join(WAYS)}")
    if name == "metrics.parquet":
        _check_values(table["value"])
    if name == "partition.parquet":
        _check_counts(table["labels"])
    if name == "predictions.parquet":
        _check_classes(table)


def _check_values(values: pa.ChunkedArray) -> None:
    size = pc.abs(values.cast(pa.float64()))
    if pc.any(pc.and_(pc.is_finite(size), pc.greater(size, MOST))).as_py():
        raise ValueError(f"its column 'value' has numbers beyond {MOST:.0e}")


def _check_counts(labels: pa.ChunkedArray) -> None:
    lengths = {len(counts) for counts in labels.to_pylist() if counts}
    if len(lengths) > 1 or any(count is None for counts in labels.to_pylist() for count in counts or ()):
        raise ValueError("its column 'labels' has not one count for each class in every row")


def _check_classes(table: pa.Table) -> None:
    known = {name.removeprefix("p_") for name in table.column_names if name.startswith("p_")}
    for name in {"predicted", "true"} & set(table.column_names):
        if strange := set(map(str, pc.unique(table[name].drop_null()).to_pylist())) - known:
            raise ValueError(
                f"its column {name!r} has {min(strange)[:40]!r}, of which there is no column of probabilities"
            )
