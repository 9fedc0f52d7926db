"""A table with our numbers next to the paper's, assembled from finished runs, written as Markdown and Parquet."""

import dataclasses
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import plain_errors, write, write_table
from fedweave.papers.grid import PlannedCell, PlannedRun
from fedweave.papers.paper import Quantity
from fedweave.reports import drawing
from fedweave.reports.drawing import CLASSES, COLORS, DASHES, Bars, Dots, LineSeries, Mark, Panel, legend_of, percent

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
NUMBERS = frozenset(
    {"paper", "ours", "difference", BEST, "its difference", "from shapes", "95 % interval", "seeds"}
)  # to the right
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


def shown(row: TableRow, headings: Sequence[str]) -> list[str]:
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
    text = markdown(title, notes, heads, [shown(row, heads) for row in rows])
    write(stem.with_name(f"{stem.name}.md"), lambda file: file.write(text.encode()))


def markdown(title: str, notes: Sequence[str], heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of `lines` under `heads` as Markdown."""
    rule = ["---:" if head in NUMBERS else "---" for head in heads]
    return "\n\n".join([f"# {title}", *notes, piped(heads, rule, *lines)]) + "\n"


def piped(*lines: Sequence[str]) -> str:
    """Lines of cells as lines of a Markdown table: the heads, the rule below them, and the rows."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _row(planned: PlannedCell, failed: Mapping[str, str]) -> TableRow:
    cell, expected = planned.cell, planned.cell.quantity.expected
    by_seed, fault = _by_seed(planned, cell.quantity, failed)
    values, without = [value for value in by_seed if value is not None], by_seed.count(None)
    ours, spread = averaged(values)
    top, top_spread, status = None, None, planned.status or fault
    if cell.quantity.best is not None:
        best, fault = _by_seed(planned, replace(cell.quantity, read=cell.quantity.best, per=None), failed)
        (top, top_spread), status = averaged([value for value in best if value is not None]), status or fault
    if without:
        status = status or f"N/A in {without} of {len(planned.runs)} runs: {cell.quantity.absent}"
    if values and ours is None:
        status = status or "undefined: its divisor is 0 in all runs"
    return TableRow(
        row=cell.row,
        column=cell.column,
        split=cell.split,
        unit=cell.quantity.unit,
        paper=cell.paper.value,
        paper_spread=cell.paper.spread,
        ours=ours,
        spread=spread,
        difference=None if ours is None or cell.paper.value is None else ours - cell.paper.value,
        best_on_test=top,
        best_on_test_spread=top_spread,
        seeds=len(values),
        expected=None if expected is None else expected(cell.document),
        status=status or MEASURED,
        digits=cell.quantity.digits,
        by_seed=tuple(None if value is None else _ratio([value]) for value in by_seed),
    )


def _by_seed(planned: PlannedCell, quantity: Quantity, failed: Mapping[str, str]) -> tuple[list[Measured | None], str]:
    """The number of each seed's runs, None where there is none, and the first fault if there is one."""
    results = [_value(needed, quantity, failed) for needed in planned.needed]
    faults = [fault for _, fault in results if fault]
    return [value for value, _ in results], f"failed: {faults[0]}" if faults else ""


def averaged(values: Sequence[Measured]) -> tuple[float | None, float | None]:
    """The ratio of the means, and the sample standard deviation of the seeds' pseudo-values (Tukey's jackknife).

    Without a divisor the pseudo-values are the values themselves. None where a divisor is 0, or with too few values.
    """
    whole, n = _ratio(values), len(values)
    parts = [_ratio([*values[:at], *values[at + 1 :]]) for at in range(n)] if n > 1 else []
    if whole is None or not parts or None in parts:
        return whole, None
    return whole, statistics.stdev(n * whole - (n - 1) * part for part in parts if part is not None)


def _ratio(values: Sequence[Measured]) -> float | None:
    below = sum(per for _, per in values)
    return sum(value for value, _ in values) / below if below else None


def _value(needed: Sequence[PlannedRun], quantity: Quantity, failed: Mapping[str, str]) -> tuple[Measured | None, str]:
    """The number of one seed's runs, or None; and the fault of the runs, "" if they have none."""
    if broken := [run.name for run in needed if run.name in failed]:
        return None, f"{broken[0]}: {failed[broken[0]]}"
    directories = [run.directory for run in needed]
    try:
        value, per = quantity.read(*directories), 1.0 if quantity.per is None else quantity.per(*directories)
    except FedweaveError as error:
        return None, f"{needed[0].name}: {error}"
    if value is None or per is None:
        return None, "" if quantity.absent else f"{needed[0].name}: it has no such number"
    return (value, per), ""


def _with_spread(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


# ----------------------------------------------------------------------------------------------------
# Pictures of results, each a file of SVG by itself: lines over rounds or another number, two numbers of each
# experiment against one another, and shares. The panels are the report's, and `report.drawing` draws them.


EDGE, LETTER = (
    2,
    0.56,
)  # pixels to the left of title and legend; the width of a letter on average, as a share of its size
TITLE, NAME, KEY = 12, 11, 28  # sizes of text, and pixels of a name's symbol
# What a page's style says of these (`style.css`), for a file that has none; "{}" is the mark's color.
_STYLES = {
    "plot": 'fill="#444444"',
    "key": 'fill="{}" stroke="{}"',
    "grid": 'fill="none" stroke="#E6E6E6"',
    "axis": 'fill="none" stroke="#999999"',
    "line": 'fill="none" stroke-width="2"',
    "band": 'fill="{}" fill-opacity="0.18"',
    "dot": 'fill="{}"',
}

Curve = Mapping[int, float]  # {round: value}


class Point(NamedTuple):
    """Mean and standard deviation (0 of one seed) at a round or another number."""

    at: float
    mean: float
    spread: float


class Marker(NamedTuple):
    """One experiment: the label of its mark, and both numbers with their deviations over the seeds."""

    label: str
    x: float
    y: float
    dx: float
    dy: float


Lines = Mapping[str, Sequence[Point]]
Places = Mapping[str, Sequence[Marker]]


def draw_curves(
    stem: Path, title: str, over: str, planned: Sequence[PlannedCell], rows: Sequence[TableRow]
) -> list[str]:
    """Write a picture for each column and unit with finished runs, a line for each row; returns the names of the files.

    The file is `stem`.svg if there is only one picture, else it has column and unit in its name. over: "round", for the
    quantities that have a curve; or a number in the columns' names ("Cora, overlap 0.1").
    """
    panels = _over_rounds(planned) if over == "round" else _over_columns(over, rows)
    files = []
    for (column, unit), lines in panels.items():
        name = stem.name if len(panels) == 1 else f"{stem.name}-{column}-{unit}".lower().replace(" ", "-")
        above = title if len(panels) == 1 else f"{title}: {column}"
        files.append(save_picture(stem.with_name(f"{name}.svg"), curves(above, unit, lines, over)))
    return files


def draw_planes(stem: Path, title: str, plane: tuple[str, str], rows: Sequence[TableRow]) -> list[str]:
    """Write `stem`-<data set>.svg for each data set with measured rows; returns the names of the files written.

    plane: the columns across and up. rows: "data set, method" or "data set, method, label" in both columns.
    """
    return [
        save_picture(stem.with_name(f"{stem.name}-{panel.lower()}.svg"), plane_of(f"{title}: {panel}", plane, lines))
        for panel, lines in places(plane, rows).items()
    ]


def draw_stacks(stem: Path, title: str, rows: Sequence[TableRow]) -> list[str]:
    """Write `stem`.svg of the rows that are measured in every column; returns its name, [] without such rows."""
    columns = list(dict.fromkeys(row.column for row in rows))
    numbers = {(row.row, row.column): row.ours for row in rows if row.ours is not None}
    shares = {
        name: [numbers[name, column] for column in columns]
        for name in dict.fromkeys(row.row for row in rows)
        if all((name, column) in numbers for column in columns)
    }
    return [save_picture(stem.with_name(f"{stem.name}.svg"), stacks(title, columns, shares))] if shares else []


def save_picture(path: Path, drawn: str) -> str:
    """Write a picture, whole or not at all; returns the file's name."""
    write(path, lambda file: file.write(drawn.encode()))
    return str(path)


def curves(title: str, unit: str, lines: Lines, over: str = "round") -> str:
    """The picture of `lines` in `unit` over the rounds or the number `over`, in bands of one deviation."""
    marks = []
    for at, (name, line) in enumerate(lines.items()):
        x, y = [point.at for point in line], [point.mean for point in line]
        spread = any(point.spread for point in line)
        low, high = ([it.mean + sign * it.spread for it in line] if spread else [] for sign in (-1, 1))
        marks.append(LineSeries(name, x, y, COLORS[at % len(COLORS)], DASHES[at % len(DASHES)], low, high))
    return picture(Panel(title, tuple(marks), below=over, beside=unit))


def plane_of(title: str, plane: tuple[str, str], lines: Places) -> str:
    """The picture of two numbers in per cent: thin crosses are one deviation to either side."""
    marks: list[Mark] = []
    for at, (name, line) in enumerate(lines.items()):
        labels, x, y, dx, dy = zip(*line, strict=True)
        tone = COLORS[at % len(COLORS)]
        marks.append(Dots(name, x, y, tone, errors=dy, wide=dx, labels=labels))
        marks += [LineSeries(name, x, y, tone)] if len(line) > 1 else []
    return picture(Panel(title, tuple(marks), below=f"{plane[0]}, %", beside=f"{plane[1]}, %"))


def stacks(title: str, columns: Sequence[str], shares: Mapping[str, Sequence[float]]) -> str:
    """The picture: bars of one height, one for each name, whose pieces are in the order of the columns."""
    whole = {name: max(sum(values), 1e-12) for name, values in shares.items()}
    marks = tuple(
        Bars(column, [values[at] / whole[name] for name, values in shares.items()], CLASSES[at % len(CLASSES)])
        for at, column in enumerate(columns)
    )
    return picture(Panel(title, marks, tuple(shares), low=0.0, high=1.0, stacked=True, form=percent))


def picture(shown: Panel) -> str:
    """A panel on white paper, below its title and its legend."""
    title = textwrap.wrap(shown.title, int((drawing.WIDTH - 2 * EDGE) / (LETTER * TITLE)), break_long_words=True)
    keys = legend_of(shown.marks)
    spots = legend([key.name for key in keys], 18.0 * len(title) + 14)
    top, style = spots[-1][1] + 8, 'font-size="11" font-family="sans-serif" fill="#444444"'
    height = top + drawing.HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.WIDTH} {height:g}" {style}>']
    parts.append(f'<rect width="{drawing.WIDTH}" height="{height:g}" fill="white"/>')
    parts += [_text(EDGE, 18 * at + 18, line, TITLE) for at, line in enumerate(title)]
    for (x, y), key in zip(spots, keys, strict=True):
        place = f'<svg x="{x:.1f}" y="{y - 10:.1f}" width="24" height="12"'
        parts += [_with_attributes(drawing.symbol(key)).replace("<svg", place, 1), _text(x + KEY, y, key.name, NAME)]
    place = f'<svg y="{top:g}" width="{drawing.WIDTH}" height="{drawing.HEIGHT}"'
    return "\n".join([*parts, _with_attributes(drawing.panel(shown)).replace("<svg", place, 1), "</svg>"]) + "\n"


def legend(names: Sequence[str], first: float) -> list[tuple[float, float]]:
    """The places of marks' names and symbols, in the rows that they need, the first at the height `first`."""
    x, y, spots = float(EDGE), first, list[tuple[float, float]]()
    for name in names:
        wide = KEY + LETTER * NAME * len(name) + 14
        if x > EDGE and x + wide > drawing.WIDTH:
            x, y = float(EDGE), y + 17
        spots.append((x, y))
        x += wide
    return spots


def _text(x: float, y: float, words: str, size: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'


def _with_attributes(svg: str) -> str:
    """The SVG with attributes instead of classes."""

    def attributes_of(match: re.Match[str]) -> str:
        name, tone = match[1].split()[0], match[2] or ""
        attribute = (
            f' stroke="{tone}"' if tone and name == "line" else f'fill="{tone}"' if tone and name == "bar" else ""
        )
        return _STYLES.get(name, "").replace("{}", tone) + attribute

    return re.sub(r'class="([\w ]+)"(?: style="--c:([^"]*)")?', attributes_of, svg)


def units(split_units: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """{(split, unit): its title in a picture}; the title has the split, "local F1", where several splits share the
    unit."""
    pairs = set(split_units)
    splits = Counter(unit for _, unit in pairs)
    return {(split, unit): f"{split} {unit}" if splits[unit] > 1 else unit for split, unit in pairs}


def mean_curve(seeds: Sequence[Curve]) -> list[Point]:
    """The mean over seeds in the rounds that all seeds have."""
    common = sorted(set.intersection(*map(set, seeds)))
    samples = ((number, [seed[number] for seed in seeds]) for number in common)
    return [Point(number, statistics.fmean(of), statistics.stdev(of) if len(of) > 1 else 0.0) for number, of in samples]


def places(plane: tuple[str, str], rows: Sequence[TableRow]) -> dict[str, dict[str, list[Marker]]]:
    """{data set: {method: its markers}} for the rows that have both numbers."""
    by_cell = {(row.row, row.column): row for row in rows if row.ours is not None}
    panels: dict[str, dict[str, list[Marker]]] = {}
    for name in dict.fromkeys(row.row for row in rows):
        x, y = (by_cell.get((name, column)) for column in plane)
        if x is None or y is None or x.ours is None or y.ours is None:
            continue
        panel, method, *label = name.split(", ")
        marker = Marker(", ".join(label), x.ours, y.ours, x.spread or 0.0, y.spread or 0.0)
        panels.setdefault(panel, {}).setdefault(method, []).append(marker)
    return panels


def _over_rounds(planned: Sequence[PlannedCell]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    panels: dict[tuple[str, str], dict[str, list[Point]]] = {}
    unit_titles = units((it.cell.split, it.cell.quantity.unit) for it in planned)
    for it in planned:
        done, curve = [run.directory for run in it.runs if run.finished()], it.cell.quantity.curve
        if curve is not None and done:
            lines = panels.setdefault((it.cell.column, unit_titles[it.cell.split, it.cell.quantity.unit]), {})
            lines[it.cell.row] = mean_curve([curve(run) for run in done])
    return panels


def _over_columns(over: str, rows: Sequence[TableRow]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    panels: dict[tuple[str, str], dict[str, list[Point]]] = {}
    unit_titles = units((row.split, row.unit) for row in rows)
    for row in rows:
        column, _, number = row.column.partition(f", {over} ")
        if row.ours is not None:
            lines = panels.setdefault((column, unit_titles[row.split, row.unit]), {})
            lines.setdefault(row.row, []).append(Point(float(number), row.ours, row.spread or 0.0))
    return panels
