"""A table with our numbers next to the paper's, assembled from finished runs, written as Markdown and Parquet."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from fedweave.core.text import markdown_table
from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import plain_errors, write, write_table
from fedweave.papers.grid import PlannedCell
from fedweave.papers.paper import Quantity
from fedweave.sweeps.runs import PlannedRun

MEASURED = "measured"
BEST = "best round, chosen on test"
BEST_NOTE = (
    f'"{BEST}": of every run the evaluated round with the highest value in this very test, for comparison with papers '
    "that print such maxima. It is no estimate of anything, and nothing may be chosen by it."
)
Measured = tuple[float, float]  # of one seed: a number and what it is divided by, 1 for a plain mean


@dataclass(frozen=True)
class TableRow:
    """One cell: the paper's number, ours (mean and sample standard deviation over `seeds` runs) and their difference.

    expected: the number by arithmetic. status: "measured", "not available: why", "N/A in n of m runs: why" or "failed:
    why"; ours is over the runs that have the number. digits: decimals to show. by_seed: the number of every run, None
    where there is none. best_on_test: mean and deviation of the quantity's `best`, over the same runs.
    """

    row: str
    column: str
    split: str
    unit: str
    paper: float | None
    paper_spread: float | None
    ours: float | None
    spread: float | None
    difference: float | None
    best_on_test: float | None
    best_on_test_spread: float | None
    seeds: int
    expected: float | None
    status: str
    digits: int
    by_seed: tuple[float | None, ...]


COLUMNS = [field.name for field in dataclasses.fields(TableRow) if field.name not in ("digits", "by_seed")]
NUMBERS = frozenset(  # columns that are aligned to the right
    {"paper", "ours", "difference", BEST, "its difference", "from shapes", "95 % interval", "seeds"}
)
_TYPES = dict.fromkeys(("row", "column", "split", "unit", "status"), pa.string()) | {"seeds": pa.int64()}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.float64())) for name in COLUMNS])


def assemble(planned: Iterable[PlannedCell], failed: Mapping[str, str]) -> list[TableRow]:
    """One row per cell; `failed` maps the names of runs that failed to the reason."""
    return [_row(cell, failed) for cell in planned]


def headings(rows: Sequence[TableRow]) -> list[str]:
    """The headings that a person sees; arithmetic and best rounds only where the rows have them."""
    arithmetic = ["from shapes"] if any(row.expected is not None for row in rows) else []
    best = [BEST, "its difference"] if any(row.best_on_test is not None for row in rows) else []
    return ["row", "column", "test", "unit", "paper", "ours", "difference", *best, *arithmetic, "seeds", "status"]


def row_texts(row: TableRow, headings: Sequence[str]) -> list[str]:
    """The row's text under each of `headings`."""
    beyond = None if row.best_on_test is None or row.paper is None else row.best_on_test - row.paper
    text = {
        "row": row.row,
        "column": row.column,
        "test": row.split,
        "unit": row.unit,
        "paper": _with_spread(row.paper, row.paper_spread, row.digits),
        "ours": _with_spread(row.ours, row.spread, row.digits),
        "difference": "" if row.difference is None else f"{row.difference:+,.{row.digits}f}",
        BEST: _with_spread(row.best_on_test, row.best_on_test_spread, row.digits),
        "its difference": "" if beyond is None else f"{beyond:+,.{row.digits}f}",
        "from shapes": _with_spread(row.expected, None, row.digits),
        "seeds": str(row.seeds),
        "status": row.status,
    }
    return [text[heading] for heading in headings]


def save(stem: Path, title: str, notes: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Write `stem`.md for people and `stem`.parquet with the columns of `SCHEMA`, title and notes in its metadata."""
    with plain_errors(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: pa.array([getattr(row, name) for row in rows], SCHEMA.field(name).type) for name in COLUMNS}
    about = {"title": title, "notes": "\n".join(notes)}
    write_table(stem.with_name(f"{stem.name}.parquet"), pa.table(columns, SCHEMA.with_metadata(about)))
    heads = headings(rows)
    text = markdown(title, notes, heads, [row_texts(row, heads) for row in rows])
    write(stem.with_name(f"{stem.name}.md"), lambda file: file.write(text.encode()))


def markdown(title: str, notes: Sequence[str], heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of `lines` under `heads` as Markdown."""
    rule = ["---:" if head in NUMBERS else "---" for head in heads]
    return "\n\n".join([f"# {title}", *notes, markdown_table([heads, rule, *lines])]) + "\n"


def _row(planned: PlannedCell, failed: Mapping[str, str]) -> TableRow:
    cell = planned.cell
    quantity = cell.quantity
    by_seed, fault = _by_seed(planned, quantity, failed)
    values = [value for value in by_seed if value is not None]
    ours, spread = mean_and_spread(values)
    status = planned.status or fault
    best = best_spread = None
    if quantity.best is not None:
        best_by_seed, fault = _by_seed(planned, replace(quantity, read=quantity.best, per=None), failed)
        best, best_spread = mean_and_spread([value for value in best_by_seed if value is not None])
        status = status or fault
    missing = by_seed.count(None)
    if missing:
        status = status or f"N/A in {missing} of {len(planned.runs)} runs: {quantity.absent}"
    if values and ours is None:
        status = status or "undefined: its divisor is 0 in all runs"
    return TableRow(
        row=cell.row,
        column=cell.column,
        split=cell.split,
        unit=quantity.unit,
        paper=cell.paper.value,
        paper_spread=cell.paper.spread,
        ours=ours,
        spread=spread,
        difference=None if ours is None or cell.paper.value is None else ours - cell.paper.value,
        best_on_test=best,
        best_on_test_spread=best_spread,
        seeds=len(values),
        expected=None if quantity.expected is None else quantity.expected(cell.document),
        status=status or MEASURED,
        digits=quantity.digits,
        by_seed=tuple(None if value is None else _ratio([value]) for value in by_seed),
    )


def _by_seed(planned: PlannedCell, quantity: Quantity, failed: Mapping[str, str]) -> tuple[list[Measured | None], str]:
    """The number of each seed's runs, None where there is none, and the first fault if there is one."""
    results = [_value(runs, quantity, failed) for runs in planned.runs_by_seed]
    faults = [fault for _, fault in results if fault]
    return [value for value, _ in results], f"failed: {faults[0]}" if faults else ""


def mean_and_spread(values: Sequence[Measured]) -> tuple[float | None, float | None]:
    """The ratio of the means, and the sample standard deviation of the seeds' pseudo-values (Tukey's jackknife).

    Without a divisor the pseudo-values are the values themselves. None where a divisor is 0, or with too few values.
    """
    n = len(values)
    whole = _ratio(values)
    if whole is None or n < 2:
        return whole, None
    pseudo_values = []
    for at in range(n):
        without_one = _ratio([*values[:at], *values[at + 1 :]])
        if without_one is None:
            return whole, None
        pseudo_values.append(n * whole - (n - 1) * without_one)
    return whole, statistics.stdev(pseudo_values)


def _ratio(values: Sequence[Measured]) -> float | None:
    divisor = sum(per for _, per in values)
    return sum(value for value, _ in values) / divisor if divisor else None


def _value(runs: Sequence[PlannedRun], quantity: Quantity, failed: Mapping[str, str]) -> tuple[Measured | None, str]:
    """The number of one seed's runs, or None; and the fault of the runs, "" if they have none."""
    for run in runs:
        if run.name in failed:
            return None, f"{run.name}: {failed[run.name]}"
    directories = [run.directory for run in runs]
    try:
        value = quantity.read(*directories)
        per = 1.0 if quantity.per is None else quantity.per(*directories)
    except FedweaveError as error:
        return None, f"{runs[0].name}: {error}"
    if value is None or per is None:
        return None, "" if quantity.absent else f"{runs[0].name}: it has no such number"
    return (value, per), ""


def _with_spread(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")
