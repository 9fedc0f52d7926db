"""The curves of a figure, drawn as SVG: one line per cell, the mean over seeds in a band of one standard deviation."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedweave.reproduce.grid import PlannedCell
from fedweave.runs.files import write

DASHES = ("", "7 4", "2 3", "8 3 2 3")  # tell the lines apart in print
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 60, 45  # margins
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
    from fedweave.report.figures import COLOURS  # loads plotly, which no other table needs

    points = [point for line in lines.values() for point in line]
    across = _Axis(0, max(point.round for point in points), LEFT, WIDTH - RIGHT)
    low, high = (pick(p.mean + sign * p.spread for p in points) for pick, sign in ((min, -1), (max, 1)))
    up = _Axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 20, title, size=13),
        *_axes(across, up, unit),
    ]
    for at, (label, line) in enumerate(lines.items()):
        parts += _line(across.place, up.place, line, COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)])
        x = LEFT + 110 * at
        parts.append(_stroke(f"M{x},40 h28", COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)]))
        parts.append(_text(x + 34, 44, label))
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """From `low` to `high` or a little beyond, between the pixels `begin` and `end`; `ticks` are round numbers."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        span = (high - low) or 1.0
        rough = span / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * by for by in (1, 2, 5, 10) if power * by >= rough)
        first, last = math.floor(low / step), math.ceil((low + span) / step)
        self.ticks = [number * step for number in range(first, last + 1)]
        self._begin, self._scale = begin, (end - begin) / (self.ticks[-1] - self.ticks[0])

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self._begin + (value - self.ticks[0]) * self._scale


def _axes(across: _Axis, up: _Axis, unit: str) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for tick in up.ticks:
        yield _stroke(f"M{LEFT},{up.place(tick):.1f} H{WIDTH - RIGHT}", "#E6E6E6", width=1)
        yield _text(LEFT - 8, up.place(tick) + 4, f"{tick:g}", "end")
    for tick in across.ticks:
        yield _text(across.place(tick), bottom + 18, f"{tick:g}", "middle")
    yield _stroke(f"M{LEFT},{bottom} H{WIDTH - RIGHT}", "#999999", width=1)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "round", "middle")
    yield _text(12, TOP - 8, unit)


def _line(
    across: Callable[[float], float], up: Callable[[float], float], line: Sequence[Point], colour: str, dash: str
) -> Iterator[str]:
    if any(point.spread for point in line):
        edge = [(it.round, it.mean + it.spread) for it in line] + [(it.round, it.mean - it.spread) for it in line[::-1]]
        corners = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in edge)
        yield f'<polygon points="{corners}" fill="{colour}" opacity="0.18"/>'
    yield _stroke("M" + " L".join(f"{across(it.round):.1f},{up(it.mean):.1f}" for it in line), colour, dash)


def _stroke(path: str, colour: str, dash: str = "", width: int = 2) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
