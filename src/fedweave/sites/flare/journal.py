"""A persistent ledger: every entry is on disk before the run continues."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter

from fedweave.core.ledger import Ledger
from fedweave.core.ledger_columns import Entry, Line
from fedweave.core.mechanism import read_applied
from fedweave.core.types import Record, Values
from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import plain_errors
from fedweave.experiment.runs.files import read as content
from fedweave.sites.flare.chain import Chain, ChainEntry, Head
from fedweave.sites.flare.folder import private_file, private_folder

_ENTRY, _MAX_SIZE = TypeAdapter(Entry), 2**53
_FIELDS = Line._fields.index("applied") + 1  # of a line, at least; later ones have defaults
_NOTE_FIELDS: dict[str, dict[str, type]] = {  # required fields of notes, by kind
    "saved": {"round": int},
    "crowd": {"sites": list, "data": str},
    "data": {"data": str, "rest": str, "left_out": list, "training": list, "seen": list, "key": str},
    "lists": {"counts": dict},
    "cut": {"round": int, "cut": int, "values": int},
}
LATEST = 2.0**37  # seconds since 1970: later than any time that a calendar here can write


class Journal(Ledger):
    """A `Ledger` kept in a file of JSON lines.

    A message that was sent cannot be taken back. So entries after the last checkpoint stay when a run resumes, and a
    repeated round has its entries twice. last: the latest entry. notes: the notes in the file when it was opened.
    chain: the chain of the site's accounts, which links each entry; None at a server.
    """

    last: Entry
    chain: Chain | None = None

    def __init__(self, path: Path) -> None:
        super().__init__()
        private_folder(path.parent)
        records = read_journal(path)
        for entry in records.entries:
            super().add(entry)
        self.path, self.notes = path, records.notes
        self.latest = max((entry.round for entry in records.entries), default=0)
        _end_last_line(path)
        self._file = open(path, "a", encoding="utf-8", opener=private_file)  # noqa: SIM115

    def add(self, entry: Entry) -> None:
        """See `Ledger.add`. The entry is on the disk when this returns, and survives a loss of power."""
        super().add(entry)
        self.last = entry
        if self.chain is None:
            self._write(vars(entry))
        else:
            link = {"number": self.chain.head.number + 1, "before": self.chain.head.hash}
            self.chain.after(self._write(vars(entry) | link))
        with plain_errors(self.path):
            os.fsync(self._file.fileno())

    def note(self, kind: str, **fields: object) -> None:
        """Write a note with the time. It survives the process and, once an entry follows, a loss of power."""
        self._write({"note": kind, "at": now(), **fields})

    def _write(self, fields: Values) -> bytes:
        line = json.dumps(fields, ensure_ascii=False)
        with plain_errors(self.path):
            self._file.write(line + "\n")
            self._file.flush()
        return line.encode()

    def restore(self, table: pa.Table) -> None:
        """Nothing to do: the file has all rows of `table` and those after it."""


class Records(NamedTuple):
    """The content of a journal's file: entries, notes (`Journal.note`), the numbers of damaged lines, the position
    after the last complete line in bytes, and the entries' links in the site's chain, if they have any."""

    entries: list[Entry]
    notes: list[Record]
    damaged: list[int]
    end: int
    links: list[ChainEntry]


def journal_path(folder: Path, run: str) -> Path:
    """The file of the journal of a run in the `folder` of the server or a site."""
    return folder / "ledgers" / f"{run}.jsonl"


def journals(folder: Path) -> list[Path]:
    """The journals of all runs that the server or a site in `folder` took part in."""
    return sorted(journal_path(folder, "*").parent.glob("*.jsonl"))


def last_epoch(journal: Journal) -> int:
    """The last epoch of keys for secure aggregation in a journal when it was opened; -1 if there was none."""
    epochs = (note.get("epoch") for note in journal.notes if note["note"] == "epoch")
    return max((epoch for epoch in epochs if isinstance(epoch, int)), default=-1)


def now() -> str:
    """The present time in UTC, for a note."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def append_note(path: Path, kind: str, **fields: object) -> None:
    """Like `Journal.note`, for a file that no process has open. The note is on the disk when this returns."""
    _end_last_line(path)
    with open(path, "a", encoding="utf-8", opener=private_file) as file:
        file.write(json.dumps({"note": kind, "at": now(), **fields}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def entries(path: Path) -> list[Entry]:
    """The entries in a journal's file (see `read`)."""
    return read_journal(path).entries


def read_journal(path: Path, start: int = 0) -> Records:
    """The content of a journal's file from byte `start` on, without an incomplete last line.

    Raises:
        FedweaveError: a line has a mechanism that this version does not know; names the file and line.
    """
    if not path.exists():
        return Records([], [], [], 0, [])
    whole = content(path, start)
    records = Records([], [], [], start + whole.rfind(b"\n") + 1, [])
    for number, text in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            fields = json.loads(text) if text else {"note": ""}
            if "note" in fields:
                records.notes.append(_check_note(fields))
            else:
                _read_entry(text, fields, records)
        except FedweaveError as error:
            raise FedweaveError(f"{path}, line {number}: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            records.damaged.append(number)
    return records


def _check_note(fields: Record) -> Record:
    if not all(isinstance(fields[key], str) for key in ("note", "at") if fields["note"]):
        raise TypeError("a note's kind and time are words")
    for key, kind in _NOTE_FIELDS.get(fields["note"], {}).items():
        if type(fields[key]) is not kind:
            raise TypeError(f"{key} is no {kind.__name__}")
    json.dumps(fields, ensure_ascii=False).encode()  # half a character is none
    return fields


def _read_entry(text: bytes, fields: Record, records: Records) -> None:
    """Add the entry of a line, and its link in the chain, to `records`, or raise an error and add nothing."""
    entry = _ENTRY.validate_json(text, strict=True)
    sizes = [entry.size, *(line.bytes for line in entry.keys)]
    if not all(0 <= size < _MAX_SIZE for size in sizes) or max(abs(entry.round), abs(entry.call)) >= 2**31:
        raise ValueError("sizes, rounds and calls are numbers that fit")
    if not (0 <= entry.at < LATEST and 0 <= entry.seconds < LATEST):
        raise ValueError("a time is a number of seconds")
    if entry.direction not in ("up", "down", "peer") or len(entry.to) not in (0, len(entry.clients)):
        raise ValueError("a message goes up, down, or to peers, one for each client")
    # The default of `applied` means no mechanism: a line cut off before it would look as if it had cost no ε.
    if any(len(line) < _FIELDS for line in fields["keys"]):
        raise ValueError("every key has the fields of a line up to its mechanism")
    for line in entry.keys:
        if line.applied is not None:
            read_applied(line.applied)
    if "number" in fields:  # not of a server, or of a version without
        number, before = fields["number"], fields["before"]
        if type(number) is not int or not 0 < number < 10**15 or not isinstance(before, str):
            raise ValueError("an entry's number counts, and what is before it is a hash")
        records.links.append(ChainEntry(Head.of(number, text), before))
    records.entries.append(entry)


def _end_last_line(path: Path) -> None:
    if path.exists():
        whole = path.read_bytes()
        with open(path, "rb+") as file:
            file.truncate(whole.rfind(b"\n") + 1)
