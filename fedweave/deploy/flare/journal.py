"""A ledger that forgets nothing: every entry is on disk before the run goes on."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedweave.core.ledger import Entry, Ledger


class Journal(Ledger):
    """A `Ledger` kept in a file of JSON lines.

    What crossed a wire cannot be taken back, so what was recorded after the last checkpoint stays when a run resumes:
    rounds that are done again stand twice. last: the entry recorded last.
    """

    last: Entry

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True)
        for entry in entries(path):
            super().add(entry)
        _end_last_line(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def add(self, entry: Entry) -> None:
        """See `Ledger.add`; the entry is on the disk when this returns, and outlasts a loss of power."""
        super().add(entry)
        self.last = entry
        self._file.write(json.dumps(vars(entry), ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def restore(self, table: pa.Table) -> None:
        """Nothing to do: the file has all rows of `table` and those after it."""


def journal_path(folder: Path, run: str) -> Path:
    """Where the server or a site in `folder` keeps the journal of a run."""
    return folder / "ledgers" / f"{run}.jsonl"


def journals(folder: Path) -> list[Path]:
    """The journals of all runs that the server or a site in `folder` took part in."""
    return sorted(journal_path(folder, "*").parent.glob("*.jsonl"))


def entries(path: Path) -> list[Entry]:
    """The entries in a journal's file; a last line that a killed process left half-written is skipped."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [_entry(json.loads(line)) for line in lines if line]


def _entry(fields: dict[str, Any]) -> Entry:
    keys = tuple(tuple(key) for key in fields["keys"])
    return Entry(**fields | {"clients": tuple(fields["clients"]), "keys": keys, "to": tuple(fields.get("to", ()))})


def _end_last_line(path: Path) -> None:
    if path.exists():
        whole = path.read_bytes()
        with open(path, "rb+") as file:
            file.truncate(whole.rfind(b"\n") + 1)
