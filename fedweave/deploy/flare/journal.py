"""A ledger that forgets nothing: every entry is on disk before the run goes on."""

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedweave.core.ledger import Entry, Ledger, Line
from fedweave.core.mechanism import LDP, Applied, Gaussian, Mechanism, read_applied
from fedweave.errors import FedweaveError


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
    """The entries in a journal's file; a last line that a killed process left half-written is skipped.

    Raises:
        FedweaveError: a line states a mechanism that is not known here; names file and line.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    found = []
    for number, text in enumerate(lines, 1):
        try:
            found += [_entry(json.loads(text))] if text else []
        except FedweaveError as error:
            raise FedweaveError(f"{path}, line {number}: {error}") from error
    return found


def _entry(fields: dict[str, Any]) -> Entry:
    keys = tuple(_line(own) for own in fields["keys"])
    return Entry(**fields | {"clients": tuple(fields["clients"]), "keys": keys, "to": tuple(fields.get("to", ()))})


def _line(own: list[Any]) -> Line:
    found = Line(*own)
    if len(own) < len(Line._fields):  # of a version that had mechanisms in words alone
        return found._replace(applied=Applied(found.key.split("/")[0], mechanisms_in(found.mechanism)).text())
    if found.applied is not None:
        read_applied(found.applied)
    return found


def mechanisms_in(words: str) -> tuple[Mechanism, ...]:
    """What the words of an old journal state a cost of: "ε = 1", and "μ = 0.5" of Gaussian noise on rows."""
    found: list[Mechanism] = []
    if epsilon := _number_after("ε", words):
        found.append(LDP(epsilon, "message"))
    if mu := _number_after("μ", words):
        found.append(Gaussian(1.0, mu))
    return tuple(found)


def _number_after(sign: str, words: str) -> float:
    """The positive number in "sign = number", 0 if there is none."""
    _, _, rest = words.replace(" ", "").partition(f"{sign}=")
    digits = "".join(itertools.takewhile(lambda letter: letter in "0123456789.e+-", rest))
    try:
        value = float(digits)
    except ValueError:
        return 0.0
    return value if 0 < value < math.inf else 0.0


def _end_last_line(path: Path) -> None:
    if path.exists():
        whole = path.read_bytes()
        with open(path, "rb+") as file:
            file.truncate(whole.rfind(b"\n") + 1)
