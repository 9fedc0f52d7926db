"""Pictures of results as separate SVG files: lines over rounds or another number, two numbers of each experiment
against one another, and shares.

`reports.drawing` draws their panels; here they get a title, a legend, and attributes instead of a page's style.
"""

import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedweave.experiment.runs.files import write
from fedweave.reports import drawing
from fedweave.reports.colors import CLASSES, COLORS, DASHES
from fedweave.reports.panels import Bars, Dots, LineSeries, Mark, Panel, legend_of, percent

EDGE = 2  # pixels to the left of title and legend
LETTER = 0.56  # mean width of a letter, as a share of its size
TITLE = 12  # size of the title's text
NAME = 11  # size of the names' text in the legend
KEY = 28  # pixels of a name's symbol
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


def save_picture(path: Path, drawn: str) -> str:
    """Write a picture, whole or not at all; returns the file's name."""
    write(path, lambda file: file.write(drawn.encode()))
    return str(path)


def curves(title: str, unit: str, lines: Lines, over: str = "round") -> str:
    """The picture of `lines` in `unit` over the rounds or the number `over`, in bands of one deviation."""
    marks = []
    for at, (name, line) in enumerate(lines.items()):
        x = [point.at for point in line]
        y = [point.mean for point in line]
        low, high = list[float](), list[float]()
        if any(point.spread for point in line):
            low = [point.mean - point.spread for point in line]
            high = [point.mean + point.spread for point in line]
        marks.append(LineSeries(name, x, y, COLORS[at % len(COLORS)], DASHES[at % len(DASHES)], low, high))
    return picture(Panel(title, tuple(marks), below=over, beside=unit))


def scatter(title: str, axes: tuple[str, str], lines: Places) -> str:
    """The picture of two numbers in per cent: thin crosses are one deviation to either side."""
    marks: list[Mark] = []
    for at, (name, line) in enumerate(lines.items()):
        labels, x, y, dx, dy = zip(*line, strict=True)
        tone = COLORS[at % len(COLORS)]
        marks.append(Dots(name, x, y, tone, errors=dy, wide=dx, labels=labels))
        if len(line) > 1:
            marks.append(LineSeries(name, x, y, tone))
    return picture(Panel(title, tuple(marks), below=f"{axes[0]}, %", beside=f"{axes[1]}, %"))


def stacks(title: str, columns: Sequence[str], shares: Mapping[str, Sequence[float]]) -> str:
    """The picture: bars of one height, one for each name, whose pieces are in the order of the columns."""
    totals = [max(sum(values), 1e-12) for values in shares.values()]
    marks = []
    for at, column in enumerate(columns):
        heights = [values[at] / total for values, total in zip(shares.values(), totals, strict=True)]
        marks.append(Bars(column, heights, CLASSES[at % len(CLASSES)]))
    return picture(Panel(title, tuple(marks), tuple(shares), low=0.0, high=1.0, stacked=True, form=percent))


def picture(panel: Panel) -> str:
    """A panel on white paper, below its title and its legend."""
    title = textwrap.wrap(panel.title, int((drawing.WIDTH - 2 * EDGE) / (LETTER * TITLE)), break_long_words=True)
    keys = legend_of(panel.marks)
    places = legend([key.name for key in keys], 18.0 * len(title) + 14)
    top = places[-1][1] + 8
    height = top + drawing.HEIGHT
    style = 'font-size="11" font-family="sans-serif" fill="#444444"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.WIDTH} {height:g}" {style}>']
    parts.append(f'<rect width="{drawing.WIDTH}" height="{height:g}" fill="white"/>')
    parts += [_text(EDGE, 18 * at + 18, line, TITLE) for at, line in enumerate(title)]
    for (x, y), key in zip(places, keys, strict=True):
        place = f'<svg x="{x:.1f}" y="{y - 10:.1f}" width="24" height="12"'
        parts.append(_with_attributes(drawing.symbol_svg(key)).replace("<svg", place, 1))
        parts.append(_text(x + KEY, y, key.name, NAME))
    place = f'<svg y="{top:g}" width="{drawing.WIDTH}" height="{drawing.HEIGHT}"'
    parts.append(_with_attributes(drawing.panel_svg(panel)).replace("<svg", place, 1))
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(names: Sequence[str], first: float) -> list[tuple[float, float]]:
    """The places of marks' names and symbols, in the rows that they need, the first at the height `first`."""
    places: list[tuple[float, float]] = []
    x, y = float(EDGE), first
    for name in names:
        width = KEY + LETTER * NAME * len(name) + 14
        if x > EDGE and x + width > drawing.WIDTH:
            x, y = float(EDGE), y + 17
        places.append((x, y))
        x += width
    return places


def _text(x: float, y: float, words: str, size: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'


def _with_attributes(svg: str) -> str:
    """The SVG with attributes instead of classes."""

    def attributes_of(match: re.Match[str]) -> str:
        name, tone = match[1].split()[0], match[2] or ""
        style = _STYLES.get(name, "").replace("{}", tone)
        if tone and name == "line":
            return f'{style} stroke="{tone}"'
        if tone and name == "bar":
            return f'{style}fill="{tone}"'
        return style

    return re.sub(r'class="([\w ]+)"(?: style="--c:([^"]*)")?', attributes_of, svg)


def mean_curve(seeds: Sequence[Curve]) -> list[Point]:
    """The mean over seeds in the rounds that all seeds have."""
    points = []
    for round in sorted(set.intersection(*map(set, seeds))):
        values = [seed[round] for seed in seeds]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        points.append(Point(round, statistics.fmean(values), deviation))
    return points
