"""The curves of a figure, drawn as SVG: one line per cell, the mean over seeds in a band of one standard deviation."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedweave.reproduce.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, axes, begin, legend, stroke, text
from fedweave.reproduce.grid import PlannedCell
from fedweave.runs.files import write

DASHES = ("", "7 4", "2 3", "8 3 2 3")  # tell the lines apart in print
Curve = Mapping[int, float]  # {round: value}


class Point(NamedTuple):
    """Mean and standard deviation (0 of one seed) at a round."""

    round: int
    mean: float
    spread: float


def draw(stem: Path, title: str, curve: Callable[[Path], Curve], planned: Sequence[PlannedCell]) -> list[str]:
    """Write `stem`.svg with a line for each cell that has finished runs; returns the names of the files written."""
    done = {it.cell.row: [run.directory for run in it.runs if run.finished()] for it in planned}
    lines = {row: averaged([curve(run) for run in runs]) for row, runs in done.items() if runs}
    if not lines:
        return []
    picture = svg(title, planned[0].cell.quantity.unit, lines)
    write(stem.with_name(f"{stem.name}.svg"), lambda file: file.write(picture.encode()))
    return [f"{stem}.svg"]


def averaged(seeds: Sequence[Curve]) -> list[Point]:
    """The rounds that all seeds have."""
    common = sorted(set.intersection(*map(set, seeds)))
    found = ((number, [seed[number] for seed in seeds]) for number in common)
    return [Point(number, statistics.fmean(of), statistics.stdev(of) if len(of) > 1 else 0.0) for number, of in found]


def svg(title: str, unit: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """The picture: `lines` over rounds, in `unit`, with axes and a legend, in the colours of the report."""
    from fedweave.report.colours import COLOURS

    points = [point for line in lines.values() for point in line]
    across = Axis(0, max(point.round for point in points), LEFT, WIDTH - RIGHT)
    low, high = (pick(p.mean + sign * p.spread for p in points) for pick, sign in ((min, -1), (max, 1)))
    places, top = legend(list(lines), 34)
    up = Axis(low, high, HEIGHT - BOTTOM, top)
    parts = [*begin(title), *axes(across, up, unit, "round", top)]
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
        edge = [(it.round, it.mean + it.spread) for it in line] + [(it.round, it.mean - it.spread) for it in line[::-1]]
        corners = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in edge)
        yield f'<polygon points="{corners}" fill="{colour}" opacity="0.18"/>'
    yield stroke("M" + " L".join(f"{across(it.round):.1f},{up(it.mean):.1f}" for it in line), colour, dash)
