"""Rows of a table against each other: differences between runs with the same seed, and how sure they are."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fedweave.experiment.runs.files import write, write_table
from fedweave.papers.table import Row, markdown
from fedweave.report.cells import interval

HEADS = ["row", "against", "column", "test", "unit", "difference", "95 % interval", "seeds"]
NOTE = (
    "Row minus the row it is set against, between runs with the same seed: the mean over the seeds that both have, and "
    "its two-sided 95 % interval by Student's t."
)


@dataclass(frozen=True)
class Difference:
    """`row` minus `against` where both have the same column, split and unit: the mean over `seeds` pairs of runs with
    the same seed, and its two-sided 95 % interval from `low` to `high`; None of fewer than two. digits: decimals to
    show."""

    row: str
    against: str
    column: str
    split: str
    unit: str
    difference: float
    low: float | None
    high: float | None
    seeds: int
    digits: int


COLUMNS = [field.name for field in dataclasses.fields(Difference) if field.name != "digits"]
_TYPES = dict.fromkeys(("difference", "low", "high"), pa.float64()) | {"seeds": pa.int64()}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])


def differences(rows: Sequence[Row], against: Sequence[str]) -> list[Difference]:
    """Of every row and each row named in `against`, where any seed has both numbers; of two that are both named, the
    later minus the earlier."""
    there = {(row.row, row.column, row.split, row.unit): row for row in rows}
    found = []
    for row in rows:
        for name in against[: against.index(row.row)] if row.row in against else against:
            other = there.get((name, row.column, row.split, row.unit))
            if other is not None and (both := _paired(row, other)):
                low, high = interval(both)
                mean = statistics.fmean(both)
                place = row.row, name, row.column, row.split, row.unit
                found.append(Difference(*place, mean, low, high, len(both), row.digits))
    return found


def told(it: Difference) -> list[str]:
    """Its text under `HEADS`."""
    signed = f"+,.{it.digits}f"
    between = "" if it.low is None or it.high is None else f"{it.low:{signed}} to {it.high:{signed}}"
    return [it.row, it.against, it.column, it.split, it.unit, f"{it.difference:{signed}}", between, str(it.seeds)]


def save_differences(stem: Path, title: str, notes: Sequence[str], found: Sequence[Difference]) -> list[str]:
    """Write `stem`-differences.md for people and .parquet with the columns of `SCHEMA`; returns both names."""
    to = stem.with_name(f"{stem.name}-differences")
    columns = {name: pa.array([getattr(it, name) for it in found], SCHEMA.field(name).type) for name in COLUMNS}
    text = markdown(f"{title}: differences", [*notes, NOTE], HEADS, [told(it) for it in found])
    write_table(to.with_name(f"{to.name}.parquet"), pa.table(columns, SCHEMA))
    write(to.with_name(f"{to.name}.md"), lambda file: file.write(text.encode()))
    return [f"{to}.md", f"{to}.parquet"]


def _paired(row: Row, other: Row) -> list[float]:
    """Row minus other by seed, where both have a number."""
    pairs = zip(row.by_seed, other.by_seed, strict=False)
    return [one - two for one, two in pairs if one is not None and two is not None]
