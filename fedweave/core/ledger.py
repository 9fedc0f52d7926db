"""The ledger: what left whom, per call and key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fedweave.core.tree import Tree, encoded_size, leaves

SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("call", pa.int32()),
        ("step", pa.dictionary(pa.int32(), pa.string())),
        ("client", pa.dictionary(pa.int32(), pa.string())),
        ("direction", pa.dictionary(pa.int32(), pa.string())),
        ("key", pa.dictionary(pa.int32(), pa.string())),
        ("shape", pa.dictionary(pa.int32(), pa.string())),
        ("bytes", pa.int64()),
        ("mechanism", pa.dictionary(pa.int32(), pa.string())),
        ("reveals", pa.dictionary(pa.int32(), pa.string())),
        ("seconds", pa.float64()),
    ]
)
FRAMING = "(names and framing)"


@dataclass
class Entry:
    """Messages of one structure in one call: the same columns for each of `clients`."""

    round: int
    call: int
    step: str
    clients: tuple[str, ...]
    direction: str  # "up" from the client, "down" to it
    keys: tuple[tuple[str, str, int, str, str], ...]  # key, shape, bytes, mechanism, reveals
    size: int  # bytes of the whole message as serialised
    seconds: float  # per client; 0 on the way down


@dataclass
class Ledger:
    """Grows by one entry per call, direction and message structure; a row per client and key when written out.

    The bytes of a call's keys and of its framing add up to the serialised messages exactly.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    _entries: list[Entry] = field(default_factory=list)
    _written: list[pa.Table] = field(default_factory=list)

    def record(
        self,
        round: int,
        call: int,
        step: str,
        clients: Sequence[str],
        direction: str,
        message: Tree,
        seconds: float = 0.0,
        mechanisms: Any = None,
        reveals: Any = None,
    ) -> None:
        """Note that each of `clients` exchanged a tree of the structure of `message`."""
        size = encoded_size(message)
        keys = tuple(
            (
                path,
                *_measure(leaf),
                (mechanisms or {}).get(path.split("/")[0], "none"),
                (reveals or {}).get(path.split("/")[0], ""),
            )
            for path, leaf in leaves(message)
        )
        self._entries.append(Entry(round, call, step, tuple(clients), direction, keys, size, seconds))
        if direction == "up":
            self.bytes_up += size * len(clients)
        else:
            self.bytes_down += size * len(clients)

    def table(self) -> pa.Table:
        """All rows, columns as `SCHEMA`."""
        if self._entries:
            self._written.append(_rows(self._entries))
            self._entries = []
        if not self._written:
            return SCHEMA.empty_table()
        self._written = [pa.concat_tables(self._written).unify_dictionaries().combine_chunks()]
        return self._written[0]

    def restore(self, table: pa.Table) -> None:
        """Continue after the rows of `table`."""
        self._entries, self._written = [], [table.cast(SCHEMA)]
        totals = {"up": 0, "down": 0}
        for row in table.group_by("direction").aggregate([("bytes", "sum")]).to_pylist():
            totals[row["direction"]] = row["bytes_sum"]
        self.bytes_up, self.bytes_down = totals["up"], totals["down"]


def _measure(leaf: Any) -> tuple[str, int]:
    if hasattr(leaf, "shape"):
        return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}", leaf.shape.numel() * leaf.dtype.itemsize
    return type(leaf).__name__, len(leaf.encode()) if isinstance(leaf, str) else 8


def _rows(entries: list[Entry]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for e in entries:
        framing = e.size - sum(key[2] for key in e.keys)
        lines = [*e.keys, (FRAMING, "", framing, "none", "")]
        for i, (key, shape, size, mechanism, reveals) in enumerate(lines):
            many = len(e.clients)
            seconds = e.seconds if i == 0 else 0.0
            row = (e.round, e.call, e.step, None, e.direction, key, shape, size, mechanism, reveals, seconds)
            for name, value in zip(SCHEMA.names, row, strict=True):
                columns[name].extend(e.clients if name == "client" else [value] * many)
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)
