"""A table with our numbers next to the paper's, assembled from finished runs: its rows in CSV and Parquet, and a page
with those of which the paper prints a number."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from fedweave.core.text import counted, markdown_table
from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import plain_errors, write, write_csv, write_table
from fedweave.papers.grid import PlannedCell
from fedweave.papers.paper import Quantity
from fedweave.sweeps.runs import PlannedRun

MEASURED = "measured"
BEST = "best round, chosen on test"
BEST_NOTE = (
    f'"{BEST}": of every run the evaluated round with the highest value in this very test, for comparison with papers '
    "that print such maxima. It is not an estimate of anything, and nothing may be chosen by it."
)
WITHIN, ABOVE, BELOW = "within spread", "above", "below"
VERDICT_NOTE = (
    f'Verdict: "{WITHIN}" if our number and the paper\'s differ by at most 2 √(s² + p²), else "{ABOVE}" or "{BELOW}". '
    "s and p are their standard deviations over seeds; a missing one is taken to be as large as the other."
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


def verdict(row: TableRow) -> str:
    """Whether our number is within the spread of the paper's, above or below; "" without both, or any deviation."""
    spreads = [spread for spread in (row.spread, row.paper_spread) if spread is not None]
    if row.difference is None or not spreads:
        return ""
    if abs(row.difference) <= 2 * math.hypot(spreads[0], spreads[-1]):
        return WITHIN
    return ABOVE if row.difference > 0 else BELOW


def save(stem: Path, title: str, notes: Sequence[str], rows: Sequence[TableRow]) -> list[str]:
    """Write `stem`.csv and `stem`.parquet with the columns of `SCHEMA`, title and notes in the latter's metadata;
    returns both names."""
    with plain_errors(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: pa.array([getattr(row, name) for row in rows], SCHEMA.field(name).type) for name in COLUMNS}
    about = {"title": title, "notes": "\n".join(notes)}
    return save_columns(stem, pa.table(columns, SCHEMA.with_metadata(about)))


def save_columns(stem: Path, columns: pa.Table) -> list[str]:
    """Write `stem`.csv, with numbers to six significant digits, and `stem`.parquet; returns both names."""
    rounded = columns
    for index, field in enumerate(columns.schema):
        if pa.types.is_floating(field.type):
            values = columns.column(index).to_pylist()
            shorter = pa.array([None if value is None else float(f"{value:.6g}") for value in values], field.type)
            rounded = rounded.set_column(index, field, shorter)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("csv", "parquet")]
    write_csv(paths[0], rounded)
    write_table(paths[1], columns)
    return list(map(str, paths))


def save_page(stem: Path, title: str, notes: Sequence[str], rows: Sequence[TableRow], files: Sequence[str]) -> str:
    """Write `stem`.md, which links to those of `files` that a browser shows; returns its name."""
    path = stem.with_name(f"{stem.name}.md")
    text = page(title, notes, rows, [Path(file).name for file in files])
    write(path, lambda file: file.write(text.encode()))
    return str(path)


def page(title: str, notes: Sequence[str], rows: Sequence[TableRow], files: Sequence[str]) -> str:
    """The page about a table in Markdown: notes, the numbers that the paper prints next to ours, links and pictures.

    files: names of .csv files, the first with all rows, and of pictures (.svg); others are left out.
    """
    blocks = [f"# {title}", *notes]
    compared = [row for row in rows if row.difference is not None]
    if any(map(verdict, rows)):
        blocks.append(VERDICT_NOTE)
    if compared:
        blocks += _compared(compared)
    missing = Counter(row.status for row in rows if row.paper is not None and row.ours is None)
    blocks += [f"{counted(number, 'number')} of the paper: {status}." for status, number in missing.items()]
    tables = [file for file in files if file.endswith(".csv")]
    words = f"CSV: {counted(len(rows), 'row')}", "differences between rows"
    blocks.append(", ".join(f"[{text}]({file})" for text, file in zip(words, tables, strict=False)) + ".")
    blocks += [f"![{Path(file).stem}]({file})" for file in files if file.endswith(".svg")]
    return "\n\n".join(blocks) + "\n"


def _compared(rows: Sequence[TableRow]) -> list[str]:
    """Rows with both numbers as a table, and a sentence of what all rows have in common."""
    heads = [head for head in headings(rows) if head not in ("its difference", "from shapes", "status")]
    texts = {head: [row_texts(row, [head])[0] for row in rows] for head in heads}
    texts["verdict"] = list(map(verdict, rows))
    texts["status"] = [row.status.replace(MEASURED, "") for row in rows]
    for head in ("verdict", "status"):
        if not any(texts[head]):
            del texts[head]
    common = {head: texts[head][0] for head in ("column", "test", "unit", "seeds") if len({*texts[head]}) == 1}
    heads = [head for head in texts if head not in common]
    rule = ["---:" if head in NUMBERS else "---" for head in heads]
    lines = zip(*(texts[head] for head in heads), strict=True)
    said = ", ".join(f"{head} {text}" for head, text in common.items() if text)
    return [*([f"In all rows: {said}."] if said else []), markdown_table([heads, rule, *lines])]


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
