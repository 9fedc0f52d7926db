"""The ledger: what each client sent or received, when and what for, per call and key."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from fedweave.core.federation import UNDECLARED, StepInfo
from fedweave.core.ledger_columns import SCHEMA, Entry, Line, add_absent_columns, table_of
from fedweave.core.mechanism import Applied
from fedweave.core.replies import ReplyBatch
from fedweave.core.shown import Shown
from fedweave.core.tree import Leaf, Tree, encoded_size, encoding, leaves, nest
from fedweave.core.types import EVALUATION, HELD
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows


class MessageForm(NamedTuple):
    """A tree by its form. size: bytes as serialized. parts: (path, shape and dtype in words, bytes) of each leaf."""

    size: int
    parts: tuple[tuple[str, str, int], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the leaves."""
        return tuple(path for path, _, _ in self.parts)


def message_form(tree: Tree) -> MessageForm:
    """The form of a tree."""
    flat = dict(leaves(tree))
    if all(type(leaf) is Tensor for leaf in flat.values()):
        return _form_of_tensors(tuple((path, leaf.shape, leaf.dtype) for path, leaf in flat.items()))
    return MessageForm(encoded_size(tree), tuple((path, *_leaf_form(leaf)) for path, leaf in flat.items()))


def batch_form(replies: ReplyBatch) -> MessageForm:
    """The form of each tree of a batch, equal for all."""
    if all(type(leaf) is Tensor for leaf in replies.flat.values()):
        return _form_of_tensors(tuple((path, leaf.shape[1:], leaf.dtype) for path, leaf in replies.flat.items()))
    return message_form(replies.one(0))


@lru_cache(maxsize=1024)
def _form_of_tensors(tensors: tuple[tuple[str, torch.Size, torch.dtype], ...]) -> MessageForm:
    like = {path: torch.empty(shape, dtype=dtype, device="cpu") for path, shape, dtype in tensors}
    return MessageForm(encoded_size(nest(like)), tuple((path, *_leaf_form(leaf)) for path, leaf in like.items()))


def _leaf_form(leaf: Leaf) -> tuple[str, int]:
    """Shape and dtype in words, and bytes."""
    if isinstance(leaf, Sparsified | Tensor | TouchedRows):
        form = f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
        if isinstance(leaf, Sparsified):
            return f"{form}, sparse", leaf.nbytes
        return form, leaf.shape.numel() * leaf.dtype.itemsize
    return type(leaf).__name__, len(leaf.encode()) if isinstance(leaf, str) else 8


REPEATED = "which parts of its message have not changed since the last one, and are not sent again"


def line(path: str, shape: str, size: int, info: StepInfo) -> Line:
    """The columns for the leaf at `path`, with what `info` declares of it."""
    key = info.covering(path)
    if key is None:
        return Line(path, shape, size, reveals=REPEATED if path == HELD else "")
    declared = info.sends[key]
    if not declared.mechanisms:
        return Line(path, shape, size, reveals=declared.reveals)
    applied = Applied(key, declared.mechanisms)
    return Line(path, shape, size, str(applied), declared.reveals, applied.text())


class Counts(NamedTuple):
    """How many entries of the sparse leaves at `paths` travel to each client: rows `at` of `all`, int64 [P, paths],
    anywhere."""

    paths: tuple[str, ...]
    all: Tensor
    at: Sequence[int]

    def read(self) -> list[list[int]]:
        """A list for each client; waits for the device."""
        known = self.all.tolist()
        return [known[at] for at in self.at]


class SparseForm:
    """The form of trees of one kind, which differ in how many entries of their sparse leaves travel."""

    def __init__(self, tree: Tree, paths: Sequence[str], info: StepInfo) -> None:
        flat = dict(leaves(tree))
        self._encoding, self._bytes_each = encoding(tree), {path: flat[path].bytes_each for path in paths}
        self._lines = list[Line]()
        for path, leaf in flat.items():
            # without the entries of a sparse leaf, which lie on a device
            known = Sparsified(leaf.dense, 0) if isinstance(leaf, Sparsified) else leaf
            self._lines.append(line(path, *_leaf_form(known), info))

    def with_counts(self, counts: Sequence[int]) -> tuple[int, tuple[Line, ...]]:
        """The serialized size of one such tree, and the lines of its leaves."""
        sizes = {path: each * count for (path, each), count in zip(self._bytes_each.items(), counts, strict=True)}
        lines = (leaf._replace(bytes=sizes.get(leaf.key, leaf.bytes)) for leaf in self._lines)
        return self._encoding.size(sizes), tuple(lines)


WAYS = ("up", "down", "peer", EVALUATION)  # the keys of the byte counts


class Uncounted(NamedTuple):
    """Becomes an entry for each client of `entry`, once it is read how many entries of sparse leaves travel."""

    entry: Entry
    form: SparseForm
    counts: Counts

    def repeat(self, round: int, counts: Tensor) -> "Uncounted":
        """The same in another round, with other numbers of entries."""
        return self._replace(entry=replace(self.entry, round=round), counts=self.counts._replace(all=counts))

    def entries(self) -> Iterator[Entry]:
        """These entries; waits for the device."""
        for client, counts in zip(self.entry.clients, self.counts.read(), strict=True):
            size, keys = self.form.with_counts(counts)
            yield replace(self.entry, clients=(client,), keys=keys, size=size)


class Mark(NamedTuple):
    """A place in a ledger (`Ledger.mark`): entries in memory, bytes by way, and whether some entries are uncounted."""

    entries: int
    bytes: dict[str, int]
    open: bool


@dataclass(repr=False)
class Ledger(Shown):
    """Grows by one entry per call, direction and message structure; a row per client and key when written out.

    The bytes of a call's keys and of its framing add up to the serialized messages exactly. purpose: what the present
    calls are for; the code that makes the calls sets it. latest: the latest round that it contained when it was
    opened.
    """

    purpose: str = ""
    latest: int = 0
    _bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    _entries: list[Entry | Uncounted] = field(default_factory=list)
    _open: bool = False  # whether some of them are uncounted
    _written: list[pa.Table] = field(default_factory=list)
    _rows_in_files: int = 0  # the first rows
    _tables_in_files: Callable[[], Iterable[pa.Table]] = tuple

    def facts(self) -> dict[str, object]:
        return {f"bytes_{way}": size for way, size in self.sizes().items()}

    @property
    def bytes_up(self) -> int:
        """From clients to the server."""
        return self.sizes()["up"]

    @property
    def bytes_down(self) -> int:
        """From the server to clients."""
        return self.sizes()["down"]

    @property
    def bytes_peer(self) -> int:
        """From clients to each other."""
        return self.sizes()["peer"]

    @property
    def bytes_evaluation(self) -> int:
        """In all directions for evaluation; they are also counted in the others."""
        return self.sizes()[EVALUATION]

    def record(
        self,
        round: int,
        call: int,
        step: str,
        clients: Sequence[str],
        direction: str,
        message: Tree | MessageForm,
        seconds: float = 0.0,
        info: StepInfo = UNDECLARED,
        to: Sequence[str] = (),
        counts: Counts | None = None,
    ) -> None:
        """Record that each of `clients` exchanged a tree of the structure of `message`, with its peer in `to` if any.

        info: the declaration of the tree. counts: the numbers of entries in which clients' messages differ; reading the
        ledger waits for the device that holds them.
        """
        where, when = (round, call, step, tuple(clients), direction), (time.time(), self.purpose)
        if counts is not None and not isinstance(message, MessageForm):
            entry = Entry(*where, (), 0, seconds, (), *when)
            self._entries.append(Uncounted(entry, SparseForm(message, counts.paths, info), counts))
            self._open = True
            return
        form = message if isinstance(message, MessageForm) else message_form(message)
        keys = tuple(line(*part, info) for part in form.parts)
        self.add(Entry(*where, keys, form.size, seconds, tuple(to), *when))

    @contextmanager
    def new_entries(self) -> "Iterator[list[Entry | Uncounted]]":
        """A list that gets the entries that are recorded inside, at its end."""
        entries, before = list[Entry | Uncounted](), len(self._entries)
        yield entries
        entries += self._entries[before:]

    def mark(self) -> Mark:
        """Where the ledger is now, for `rewind`."""
        return Mark(len(self._entries), dict(self._bytes), self._open)

    def rewind(self, mark: Mark) -> None:
        """Take back what was recorded after `mark`, of which nothing was read: a simulation scores a model again, by
        other metrics, where a member would send one reply with all of them."""
        del self._entries[mark.entries :]
        self._bytes, self._open = dict(mark.bytes), mark.open

    def add_now(self, entry: Entry | Uncounted) -> None:
        """Record messages that were measured elsewhere and are sent now, for the present purpose."""
        if isinstance(entry, Uncounted):
            now = replace(entry.entry, at=time.time(), purpose=self.purpose)
            self._entries.append(entry._replace(entry=now))
            self._open = True
        else:
            self.add(replace(entry, at=time.time(), purpose=self.purpose))

    def add(self, entry: Entry) -> None:
        """Record messages that were measured elsewhere."""
        self._entries.append(entry)
        self._count(entry.direction, entry.purpose, entry.size * len(entry.clients))

    def _count(self, direction: str, purpose: str | None, size: int) -> None:
        self._bytes[direction] += size
        self._bytes[EVALUATION] += size if purpose == EVALUATION else 0

    def _count_open(self) -> list[Entry]:
        """The entries that are not written out yet, all of them counted."""
        if self._open:
            entries, self._entries, self._open = self._entries, [], False
            for item in entries:
                if isinstance(item, Entry):
                    self._entries.append(item)
                else:
                    for entry in item.entries():
                        self.add(entry)
        return [item for item in self._entries if isinstance(item, Entry)]

    def sizes(self) -> dict[str, int]:
        """Bytes so far by direction, and all bytes for evaluation in any direction."""
        self._count_open()
        return dict(self._bytes)

    @property
    def rows(self) -> int:
        """The number of rows."""
        entries = self._count_open()
        if entries:
            self._written.append(table_of(entries))
            self._entries = []
        return self._rows_in_files + sum(map(len, self._written))

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in tables of moderate size."""
        new = self.since(self._rows_in_files)
        yield from self._tables_in_files()
        yield new

    def table(self) -> pa.Table:
        """All rows, columns as `SCHEMA`."""
        if self._rows_in_files:
            return pa.concat_tables(self.tables()).unify_dictionaries().combine_chunks()
        self._written = [self.since(0)]
        return self._written[0]

    def since(self, row: int) -> pa.Table:
        """The rows from that number on, in time that depends on how many these are."""
        new, remaining = [SCHEMA.empty_table()], self.rows - row
        if row < self._rows_in_files:
            return self.table().slice(row)
        for table in reversed(self._written):
            if remaining > 0:
                new.append(table.slice(max(0, len(table) - remaining)))
                remaining -= len(table)
        return pa.concat_tables(new[::-1]).unify_dictionaries().combine_chunks()

    def file(self, tables: Callable[[], Iterable[pa.Table]]) -> None:
        """Keep no row in memory; `tables` reads all rows up to now, which are in files."""
        self._rows_in_files, self._tables_in_files, self._written = self.rows, tables, []

    def restore(self, table: pa.Table) -> None:
        """Continue after the rows of `table`."""
        self._rows_in_files, self._tables_in_files = 0, tuple
        self._entries, self._open = [], False
        self._written = [add_absent_columns(table).select(SCHEMA.names).cast(SCHEMA)]
        self._bytes = dict.fromkeys(WAYS, 0)
        for row in table.group_by(["direction", "purpose"]).aggregate([("bytes", "sum")]).to_pylist():
            self._count(row["direction"], row["purpose"], row["bytes_sum"])
