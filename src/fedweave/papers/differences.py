"""Rows of a table compared with each other: differences between runs with the same seed, and their intervals."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fedweave.papers.table import TableRow, save_columns
from fedweave.reports.paired import interval

HEADS = ["row", "against", "column", "test", "unit", "difference", "95 % interval", "seeds"]
NOTE = (
    "Row minus the row it is set against, between runs with the same seed: the mean over the seeds that both have, and "
    "its two-sided 95 % interval by Student's t."
)


@dataclass(frozen=True)
class Difference:
    """`row` minus `against` where both have the same column, split and unit.

    difference: the mean over `seeds` pairs of runs with the same seed. low, high: its two-sided 95 % interval; None
    with fewer than two seeds. digits: decimals to show.
    """

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


def differences(rows: Sequence[TableRow], against: Sequence[str]) -> list[Difference]:
    """The differences of every row to each row named in `against`, over the seeds that have both numbers.

    If both rows are in `against`, the later one minus the earlier one.
    """
    rows_by_place = {(row.row, row.column, row.split, row.unit): row for row in rows}
    results = []
    for row in rows:
        for name in against[: against.index(row.row)] if row.row in against else against:
            other = rows_by_place.get((name, row.column, row.split, row.unit))
            if other is None:
                continue
            pairs = zip(row.by_seed, other.by_seed, strict=False)  # rows may have different numbers of seeds
            gaps = [one - two for one, two in pairs if one is not None and two is not None]
            if gaps:
                low, high = interval(gaps)
                place = row.row, name, row.column, row.split, row.unit
                results.append(Difference(*place, statistics.fmean(gaps), low, high, len(gaps), row.digits))
    return results


def difference_texts(it: Difference) -> list[str]:
    """The difference as text under `HEADS`."""
    signed = f"+,.{it.digits}f"
    limits = "" if it.low is None or it.high is None else f"{it.low:{signed}} to {it.high:{signed}}"
    return [it.row, it.against, it.column, it.split, it.unit, f"{it.difference:{signed}}", limits, str(it.seeds)]


def save_differences(stem: Path, rows: Sequence[Difference]) -> list[str]:
    """Write `stem`-differences.csv and .parquet with the columns of `SCHEMA`; returns both names."""
    columns = {name: pa.array([getattr(it, name) for it in rows], SCHEMA.field(name).type) for name in COLUMNS}
    return save_columns(stem.with_name(f"{stem.name}-differences"), pa.table(columns, SCHEMA))
