"""The columns of the ledger, in one table: the file's schema, its rows and its readers follow from `COLUMNS`.

A new column is an entry of `COLUMNS`, and a field with a default where its value comes from: of `Line` if it differs
between the leaves of a message, else of `Entry`. `core.ledger` sets it (`record`, `add_now`). Journals store an `Entry`
by the names of its fields and a `Line` by their order, so neither may change. Nothing here needs torch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from fedweave.core.types import FRAMING


class Line(NamedTuple):
    """What the ledger has of one leaf of a message.

    mechanism: in words. applied: the mechanism as JSON (`core.mechanism.Applied.text`); None without one.
    """

    key: str
    shape: str
    bytes: int
    mechanism: str = "none"
    reveals: str = ""
    applied: str | None = None


@dataclass
class Entry:
    """Messages of one structure in one call: the same columns for each of `clients`."""

    round: int
    call: int
    step: str
    clients: tuple[str, ...]
    direction: str  # "up" from the client, "down" to it, "peer" from it to another
    keys: tuple[Line, ...]  # one for each leaf
    size: int  # bytes of the whole message as serialized
    seconds: float  # that each client computed its reply for; 0 except on the way up
    to: tuple[str, ...] = ()  # the peer to which each of `clients` sent; () where the server is the other end
    at: float = 0.0  # seconds since 1970
    purpose: str = ""  # one of `core.types.PURPOSES`; "" if the caller set none


class LedgerRow(NamedTuple):
    """What columns read their values from: one leaf of the messages of an entry, which has a row for each client.

    first: whether the line is the first of its message.
    """

    entry: Entry
    line: Line
    first: bool


class LedgerColumn(NamedTuple):
    """A column of the ledger.

    meaning:    in words, for the documentation.
    value:      its value, equal for all clients of the entry; with `per_client`, a sequence with a value for each.
    per_client: see `value`.
    optional:   whether cells may be empty; files of earlier versions may lack the column, and then read as if all were.
    """

    name: str
    type: pa.DataType
    meaning: str
    value: Callable[[LedgerRow], Any]
    per_client: bool = False
    optional: bool = False


WORD = pa.dictionary(pa.int32(), pa.string())

COLUMNS = (
    LedgerColumn("round", pa.int32(), "the round; 0 is the time before the first", lambda row: row.entry.round),
    LedgerColumn("call", pa.int32(), "the number of the call in its round, from 0", lambda row: row.entry.call),
    LedgerColumn("step", WORD, "the algorithm's step that the call runs", lambda row: row.entry.step),
    LedgerColumn(
        "client", WORD, "who sent the message, or received it", lambda row: row.entry.clients, per_client=True
    ),
    LedgerColumn(
        "direction",
        WORD,
        "`up` from the client to the server, `down` from the server to it, `peer` from it to another client",
        lambda row: row.entry.direction,
    ),
    LedgerColumn(
        "key",
        WORD,
        f"the part of the message, as a path in its tree; `{FRAMING}` for the bytes that belong to no part",
        lambda row: row.line.key,
    ),
    LedgerColumn("shape", WORD, "shape and type of the part", lambda row: row.line.shape),
    LedgerColumn("bytes", pa.int64(), "bytes; the rows of a message add up to its size", lambda row: row.line.bytes),
    LedgerColumn("mechanism", WORD, "how the part is protected, in words, or `none`", lambda row: row.line.mechanism),
    LedgerColumn("reveals", WORD, "what the receiver learns from the part, as declared", lambda row: row.line.reveals),
    LedgerColumn(
        "seconds",
        pa.float64(),
        "how long the client computed its reply; in the first row of a message, 0 in its others",
        lambda row: row.entry.seconds if row.first else 0.0,
    ),
    LedgerColumn(
        "to",
        WORD,
        "the client that received the message of another one; empty if the server is the other end",
        lambda row: row.entry.to or [None] * len(row.entry.clients),
        per_client=True,
        optional=True,
    ),
    LedgerColumn(
        "applied",
        WORD,
        "the mechanism as JSON, from which ε is computed; empty without one",
        lambda row: row.line.applied,
        optional=True,
    ),
    LedgerColumn(
        "at",
        pa.timestamp("ms", "UTC"),
        "when it was sent",
        lambda row: round(1000 * row.entry.at) or None,
        optional=True,
    ),
    LedgerColumn(
        "purpose",
        WORD,
        "what for: `set-up`, `training`, `evaluation` or `prediction`",
        lambda row: row.entry.purpose,
        optional=True,
    ),
)


def schema(columns: Sequence[LedgerColumn] = COLUMNS) -> pa.Schema:
    """The Arrow schema of a ledger with these columns."""
    return pa.schema([(column.name, column.type) for column in columns])


SCHEMA = schema()


def table_of(entries: Iterable[Entry], columns: Sequence[LedgerColumn] = COLUMNS) -> pa.Table:
    """The rows of entries: for each leaf, and for the framing of its message, a row for each client."""
    values: dict[str, list[object]] = {column.name: [] for column in columns}
    for entry in entries:
        framing = entry.size - sum(line.bytes for line in entry.keys)
        for position, line in enumerate([*entry.keys, Line(FRAMING, "", framing)]):
            row = LedgerRow(entry, line, position == 0)
            for column in columns:
                value = column.value(row)
                values[column.name].extend(value if column.per_client else [value] * len(entry.clients))
    return pa.table({column.name: pa.array(values[column.name], column.type) for column in columns}, schema(columns))


def add_absent_columns(table: pa.Table, columns: Sequence[LedgerColumn] = COLUMNS) -> pa.Table:
    """The table of a ledger, with an empty column for each optional one that it lacks."""
    for column in columns:
        if column.optional and column.name not in table.column_names:
            table = table.append_column(column.name, pa.nulls(len(table), column.type))
    return table
