"""The record of what a run forgot and how well, and the folder that holds it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fedweave.core.shown import Shown, page
from fedweave.core.types import Record
from fedweave.errors import UserError, option
from fedweave.experiment.runs.files import FORGOTTEN, write

RECORD = "forgetting.json"
KIND = "fedweave forgetting 1"
BEFORE, EXACT, FAST = "before", "exact", "fast"  # the models


@dataclass(frozen=True, repr=False)
class Forgetting(Shown):
    """What a run forgot and how well. models: {"before", "exact", "fast": what is known of it}; without "fast" where
    that was not asked for, or is not possible. record: all of it, as the file `RECORD` has it."""

    directory: Path
    record: Record

    @classmethod
    def save(cls, folder: Path, record: Record) -> "Forgetting":
        """Write a record with its digest into the folder."""
        record["digest"] = digest(record)
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write(folder / RECORD, lambda file: file.write(text.encode()))
        return cls(folder, record)

    @property
    def exact(self) -> Path:
        """The directory of the run without what is forgotten."""
        return self.directory / EXACT

    @property
    def fast(self) -> Path | None:
        """The directory of the run that went on from the earlier model, if there is one."""
        return self.directory / FAST if FAST in self.record["models"] else None

    @property
    def table(self) -> pa.Table:
        """A row for each model."""
        rows = []
        for name, model in self.record["models"].items():
            row = {"model": name, **model}
            del row["weights"]
            attack = row.pop("attack") or {}
            rows.append(row | {key: attack.get(key) for key in ("auc", "advantage", "by_chance")})
        return pa.Table.from_pylist(rows)

    def facts(self) -> dict[str, object]:
        """How many examples are forgotten, and the metric of each model."""
        about = self.record["forgotten"]
        metrics = {f"{name} {self.record['metric']}": one["metric"] for name, one in self.record["models"].items()}
        return {"examples": about["examples"], **metrics, "directory": str(self.directory)}

    def _repr_html_(self) -> str:
        table = self.table
        return page(repr(self), [list(row.values()) for row in table.to_pylist()], table.column_names)


def digest(record: Record) -> str:
    """SHA-256 of all of a record but its digest."""
    rest = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def new_folder(directory: Path, out: Path | None = None) -> Path:
    """The folder for the record, which is not made yet: `out`, or the next number in the `FORGOTTEN` of `directory`.

    Raises:
        UserError: `out` is used.
    """
    if out is None:
        numbers = [int(path.name) for path in (directory / FORGOTTEN).glob("*") if path.name.isdecimal()]
        return directory / FORGOTTEN / str(max(numbers, default=0) + 1)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{option('out', out)}: it exists. Name a new folder.", code="forget.out")
    return out
