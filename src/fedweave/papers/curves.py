"""The curves of a figure, drawn as SVG: a line per row of the table, the mean over seeds in a band of one deviation."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedweave.papers.grid import PlannedCell
from fedweave.papers.planes import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, axes, begin, legend, save, stroke, text
from fedweave.papers.table import Row
from fedweave.report.axis import Axis

Curve = Mapping[int, float]  # {round: value}


class Point(NamedTuple):
    """Mean and standard deviation (0 of one seed) at a round or another number."""

    at: float
    mean: float
    spread: float


Lines = Mapping[str, Sequence[Point]]


def draw(stem: Path, title: str, over: str, planned: Sequence[PlannedCell], rows: Sequence[Row]) -> list[str]:
    """Write a picture for each column and unit of which there are finished runs, `stem`.svg if there is one alone, with
    a line for each row of the table; returns the names of the files written.

    over: "round", for the quantities that have a curve; or a number in the columns' names ("Cora, overlap 0.1").
    """
    panels = _over_rounds(planned) if over == "round" else _over_columns(over, rows)
    files = []
    for (column, unit), lines in panels.items():
        name = stem.name if len(panels) == 1 else f"{stem.name}-{column}-{unit}".lower().replace(" ", "-")
        above = title if len(panels) == 1 else f"{title}: {column}"
        path = stem.with_name(f"{name}.svg")
        save(path, svg(above, unit, lines, over))
        files.append(str(path))
    return files


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


def svg(title: str, unit: str, lines: Lines, over: str = "round") -> str:
    """The picture: `lines` in `unit` over rounds or what is `over`, with axes and a legend, in the report's colours."""
    from fedweave.report.colours import COLOURS, DASHES

    points = [point for line in lines.values() for point in line]
    across = Axis(0, max(point.at for point in points), LEFT, WIDTH - RIGHT)
    low, high = (pick(p.mean + sign * p.spread for p in points) for pick, sign in ((min, -1), (max, 1)))
    places, top = legend(list(lines), 34)
    up = Axis(low, high, HEIGHT - BOTTOM, top)
    parts = [*begin(title), *axes(across, up, unit, over, top)]
    for at, (label, line) in enumerate(lines.items()):
        parts += _line(across.place, up.place, line, COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)])
        x, y = places[at]
        parts.append(stroke(f"M{x:.1f},{y - 4} h28", COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)]))
        parts.append(text(x + 34, y, label))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(
    across: Callable[[float], float], up: Callable[[float], float], line: Sequence[Point], colour: str, dash: str
) -> Iterator[str]:
    if any(point.spread for point in line):
        edge = [(it.at, it.mean + it.spread) for it in line] + [(it.at, it.mean - it.spread) for it in line[::-1]]
        corners = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in edge)
        yield f'<polygon points="{corners}" fill="{colour}" opacity="0.18"/>'
    yield stroke("M" + " L".join(f"{across(it.at):.1f},{up(it.mean):.1f}" for it in line), colour, dash)
