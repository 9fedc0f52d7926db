"""Pictures of results, each a file of SVG by itself: lines over rounds or another number, two numbers of each
experiment against one another, and shares. The panels are the report's, and `report.svg` draws them."""

import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedweave.experiment.runs.files import write
from fedweave.papers.grid import PlannedCell
from fedweave.papers.table import Row
from fedweave.report import svg
from fedweave.report.colours import CLASSES, COLOURS, DASHES
from fedweave.report.panels import Bars, Dots, Line, Mark, Panel, legend_of, percent

EDGE, LETTER = 2, 0.56  # pixels beside title and legend; the width of a letter on average, as a share of its size
TITLE, NAME, KEY = 12, 11, 28  # sizes of text, and pixels of a name's symbol
# What a page's style says of these (`style.css`), for a file that has none; "{}" is the mark's colour.
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
    """One experiment: what stands beside it, and both numbers with their deviations over the seeds."""

    label: str
    x: float
    y: float
    dx: float
    dy: float


Lines = Mapping[str, Sequence[Point]]
Places = Mapping[str, Sequence[Marker]]


def draw_curves(stem: Path, title: str, over: str, planned: Sequence[PlannedCell], rows: Sequence[Row]) -> list[str]:
    """Write a picture for each column and unit of which there are finished runs, `stem`.svg if there is one alone, with
    a line for each row of the table; returns the names of the files written.

    over: "round", for the quantities that have a curve; or a number in the columns' names ("Cora, overlap 0.1").
    """
    panels = _over_rounds(planned) if over == "round" else _over_columns(over, rows)
    files = []
    for (column, unit), lines in panels.items():
        name = stem.name if len(panels) == 1 else f"{stem.name}-{column}-{unit}".lower().replace(" ", "-")
        above = title if len(panels) == 1 else f"{title}: {column}"
        files.append(save(stem.with_name(f"{name}.svg"), curves(above, unit, lines, over)))
    return files


def draw_planes(stem: Path, title: str, plane: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    """Write `stem`-<data set>.svg for each data set with measured rows; returns the names of the files written.

    plane: the columns across and up. rows: "data set, method" or "data set, method, label" in both columns.
    """
    return [
        save(stem.with_name(f"{stem.name}-{panel.lower()}.svg"), plane_of(f"{title}: {panel}", plane, lines))
        for panel, lines in places(plane, rows).items()
    ]


def draw_stacks(stem: Path, title: str, rows: Sequence[Row]) -> list[str]:
    """Write `stem`.svg of the rows that are measured in every column; returns its name, nothing if there are none."""
    columns = list(dict.fromkeys(row.column for row in rows))
    found = {(row.row, row.column): row.ours for row in rows if row.ours is not None}
    shares = {
        name: [found[name, column] for column in columns]
        for name in dict.fromkeys(row.row for row in rows)
        if all((name, column) in found for column in columns)
    }
    return [save(stem.with_name(f"{stem.name}.svg"), stacks(title, columns, shares))] if shares else []


def save(path: Path, drawn: str) -> str:
    """Write a picture, whole or not at all; returns the file's name."""
    write(path, lambda file: file.write(drawn.encode()))
    return str(path)


def curves(title: str, unit: str, lines: Lines, over: str = "round") -> str:
    """The picture: `lines` in `unit` over rounds or what is `over`, in bands of one deviation."""
    marks = []
    for at, (name, line) in enumerate(lines.items()):
        x, y = [point.at for point in line], [point.mean for point in line]
        spread = any(point.spread for point in line)
        low, high = ([it.mean + sign * it.spread for it in line] if spread else [] for sign in (-1, 1))
        marks.append(Line(name, x, y, COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)], low, high))
    return picture(Panel(title, tuple(marks), below=over, beside=unit))


def plane_of(title: str, plane: tuple[str, str], lines: Places) -> str:
    """The picture of two numbers in per cent: thin crosses are one deviation to either side."""
    marks: list[Mark] = []
    for at, (name, line) in enumerate(lines.items()):
        labels, x, y, dx, dy = zip(*line, strict=True)
        tone = COLOURS[at % len(COLOURS)]
        marks.append(Dots(name, x, y, tone, errors=dy, wide=dx, labels=labels))
        marks += [Line(name, x, y, tone)] if len(line) > 1 else []
    return picture(Panel(title, tuple(marks), below=f"{plane[0]}, %", beside=f"{plane[1]}, %"))


def stacks(title: str, columns: Sequence[str], shares: Mapping[str, Sequence[float]]) -> str:
    """The picture: bars of one height, one for each name, whose pieces are in the order of the columns."""
    whole = {name: max(sum(own), 1e-12) for name, own in shares.items()}
    marks = tuple(
        Bars(column, [own[at] / whole[name] for name, own in shares.items()], CLASSES[at % len(CLASSES)])
        for at, column in enumerate(columns)
    )
    return picture(Panel(title, marks, tuple(shares), low=0.0, high=1.0, stacked=True, form=percent))


def picture(shown: Panel) -> str:
    """A panel on white paper, below its title and its legend."""
    title = textwrap.wrap(shown.title, int((svg.WIDTH - 2 * EDGE) / (LETTER * TITLE)), break_long_words=True)
    keys = legend_of(shown.marks)
    spots = legend([key.name for key in keys], 18.0 * len(title) + 14)
    top, style = spots[-1][1] + 8, 'font-size="11" font-family="sans-serif" fill="#444444"'
    height = top + svg.HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {svg.WIDTH} {height:g}" {style}>']
    parts.append(f'<rect width="{svg.WIDTH}" height="{height:g}" fill="white"/>')
    parts += [_text(EDGE, 18 * at + 18, line, TITLE) for at, line in enumerate(title)]
    for (x, y), key in zip(spots, keys, strict=True):
        place = f'<svg x="{x:.1f}" y="{y - 10:.1f}" width="24" height="12"'
        parts += [_styled(svg.symbol(key)).replace("<svg", place, 1), _text(x + KEY, y, key.name, NAME)]
    place = f'<svg y="{top:g}" width="{svg.WIDTH}" height="{svg.HEIGHT}"'
    return "\n".join([*parts, _styled(svg.panel(shown)).replace("<svg", place, 1), "</svg>"]) + "\n"


def legend(names: Sequence[str], first: float) -> list[tuple[float, float]]:
    """Where marks' names and symbols stand, in as many rows as they take, the `first` at that height."""
    x, y, spots = float(EDGE), first, list[tuple[float, float]]()
    for name in names:
        wide = KEY + LETTER * NAME * len(name) + 14
        if x > EDGE and x + wide > svg.WIDTH:
            x, y = float(EDGE), y + 17
        spots.append((x, y))
        x += wide
    return spots


def _text(x: float, y: float, words: str, size: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'


def _styled(drawn: str) -> str:
    """With attributes in the place of classes."""

    def said(found: re.Match[str]) -> str:
        name, tone = found[1].split()[0], found[2] or ""
        own = f' stroke="{tone}"' if tone and name == "line" else f'fill="{tone}"' if tone and name == "bar" else ""
        return _STYLES.get(name, "").replace("{}", tone) + own

    return re.sub(r'class="([\w ]+)"(?: style="--c:([^"]*)")?', said, drawn)


def units(found: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """{(split, unit): how a picture says it}: with the split, "local F1", where a unit is that of several."""
    pairs = set(found)
    splits = Counter(unit for _, unit in pairs)
    return {(split, unit): f"{split} {unit}" if splits[unit] > 1 else unit for split, unit in pairs}


def averaged(seeds: Sequence[Curve]) -> list[Point]:
    """The rounds that all seeds have."""
    common = sorted(set.intersection(*map(set, seeds)))
    found = ((number, [seed[number] for seed in seeds]) for number in common)
    return [Point(number, statistics.fmean(of), statistics.stdev(of) if len(of) > 1 else 0.0) for number, of in found]


def places(plane: tuple[str, str], rows: Sequence[Row]) -> dict[str, dict[str, list[Marker]]]:
    """{data set: {method: its markers}} of the rows that have both numbers."""
    found = {(row.row, row.column): row for row in rows if row.ours is not None}
    panels: dict[str, dict[str, list[Marker]]] = {}
    for name in dict.fromkeys(row.row for row in rows):
        x, y = (found.get((name, column)) for column in plane)
        if x is None or y is None or x.ours is None or y.ours is None:
            continue
        panel, method, *label = name.split(", ")
        marker = Marker(", ".join(label), x.ours, y.ours, x.spread or 0.0, y.spread or 0.0)
        panels.setdefault(panel, {}).setdefault(method, []).append(marker)
    return panels


def _over_rounds(planned: Sequence[PlannedCell]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    panels: dict[tuple[str, str], dict[str, list[Point]]] = {}
    named = units((it.cell.split, it.cell.quantity.unit) for it in planned)
    for it in planned:
        done, curve = [run.directory for run in it.runs if run.finished()], it.cell.quantity.curve
        if curve is not None and done:
            lines = panels.setdefault((it.cell.column, named[it.cell.split, it.cell.quantity.unit]), {})
            lines[it.cell.row] = averaged([curve(run) for run in done])
    return panels


def _over_columns(over: str, rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    panels: dict[tuple[str, str], dict[str, list[Point]]] = {}
    named = units((row.split, row.unit) for row in rows)
    for row in rows:
        column, _, number = row.column.partition(f", {over} ")
        if row.ours is not None:
            lines = panels.setdefault((column, named[row.split, row.unit]), {})
            lines.setdefault(row.row, []).append(Point(float(number), row.ours, row.spread or 0.0))
    return panels
