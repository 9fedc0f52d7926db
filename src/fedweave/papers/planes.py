"""Two numbers of each experiment against one another, drawn as SVG: a picture per data set, a line per method."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedweave.experiment.runs.files import write
from fedweave.papers.table import Row
from fedweave.report.axis import Axis

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, BOTTOM = 60, 15, 45  # margins
EDGE = 12  # of title and unit
LETTER = 0.56  # width of one on average, as a share of its size


def begin(title: str) -> Iterator[str]:
    """The start of a picture with its title."""
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    yield text(EDGE, 20, title, size=min(13, (WIDTH - 2 * EDGE) / (LETTER * max(len(title), 1))))


def legend(labels: Sequence[str], key: int) -> tuple[list[tuple[float, float]], float]:
    """Where the lines' names stand, in as many rows as they take, each after a key of so many pixels; and where the
    upright axis may begin."""
    x, y, places = float(EDGE), 44.0, list[tuple[float, float]]()
    for label in labels:
        wide = key + LETTER * 12 * len(label) + 18
        if x > EDGE and x + wide > WIDTH:
            x, y = float(EDGE), y + 18
        places.append((x, y))
        x += wide
    return places, y + 34


def axes(across: Axis, up: Axis, unit: str, below: str, top: float) -> Iterator[str]:
    """Lines and numbers; `unit` stands above the upright axis, which begins at `top`, `below` under the other."""
    bottom = HEIGHT - BOTTOM
    for tick in up.ticks:
        yield stroke(f"M{LEFT},{up.place(tick):.1f} H{WIDTH - RIGHT}", "#E6E6E6", width=1)
        yield text(LEFT - 8, up.place(tick) + 4, f"{tick:g}", "end")
    for tick in across.ticks:
        yield text(across.place(tick), bottom + 18, f"{tick:g}", "middle")
    yield stroke(f"M{LEFT},{bottom} H{WIDTH - RIGHT}", "#999999", width=1)
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, below, "middle")
    yield text(EDGE, top - 12, unit)


def save(path: Path, picture: str) -> None:
    """Write a picture, whole or not at all."""
    write(path, lambda file: file.write(picture.encode()))


def stroke(path: str, colour: str, dash: str = "", width: int = 2) -> str:
    """A line along a path of SVG."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def text(x: float, y: float, words: str, anchor: str = "start", size: float = 12) -> str:
    """Text, as it is."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}">{escape(words)}</text>'


NEAR = 12  # pixels within which labels would cover each other


class Marker(NamedTuple):
    """One experiment: what stands beside it, and both numbers with their deviations over the seeds."""

    label: str
    x: float
    y: float
    dx: float
    dy: float


Lines = Mapping[str, Sequence[Marker]]


def draw(stem: Path, title: str, plane: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    """Write `stem`-<data set>.svg for each data set with measured rows; returns the names of the files written.

    plane: the columns across and up. rows: "data set, method" or "data set, method, label" in both columns.
    """
    files = []
    for panel, lines in panels(plane, rows).items():
        path = stem.with_name(f"{stem.name}-{panel.lower()}.svg")
        save(path, svg(f"{title}: {panel}", plane, lines))
        files.append(str(path))
    return files


def panels(plane: tuple[str, str], rows: Sequence[Row]) -> dict[str, dict[str, list[Marker]]]:
    """{data set: {method: its spots}} of the rows that have both numbers."""
    found = {(row.row, row.column): row for row in rows if row.ours is not None}
    across, up = plane
    panels: dict[str, dict[str, list[Marker]]] = {}
    for name in dict.fromkeys(row.row for row in rows):
        x, y = found.get((name, across)), found.get((name, up))
        if x is None or y is None or x.ours is None or y.ours is None:
            continue
        panel, method, *label = name.split(", ")
        marker = Marker(", ".join(label), x.ours, y.ours, x.spread or 0.0, y.spread or 0.0)
        panels.setdefault(panel, {}).setdefault(method, []).append(marker)
    return panels


def svg(title: str, plane: tuple[str, str], lines: Lines) -> str:
    """The picture, in per cent: thin crosses are one deviation to either side."""
    from fedweave.report.colours import COLOURS

    spots = [marker for line in lines.values() for marker in line]
    across = Axis(0, max(marker.x + marker.dx for marker in spots), LEFT, WIDTH - RIGHT)
    low, high = min(marker.y - marker.dy for marker in spots), max(marker.y + marker.dy for marker in spots)
    places, top = legend(list(lines), 14)
    up = Axis(low, high, HEIGHT - BOTTOM, top)
    parts = [*begin(title), *axes(across, up, f"{plane[1]}, %", f"{plane[0]}, %", top)]
    for at, (method, line) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        x, y = places[at]
        parts += [_dot(x + 4, y - 4, colour), text(x + 14, y, method)]
        parts += _line([(across.place(marker.x), up.place(marker.y)) for marker in line], colour)
        for marker in line:
            parts += _marker(marker, across, up, colour)
        parts += _labels(
            [(across.place(marker.x), up.place(marker.y), marker.label) for marker in line if marker.label]
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Sequence[tuple[float, float]], colour: str) -> Iterator[str]:
    if len(points) > 1:
        yield stroke("M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points), colour)


def _marker(marker: Marker, across: Axis, up: Axis, colour: str) -> Iterator[str]:
    x, y = across.place(marker.x), up.place(marker.y)
    if marker.dx:
        left = across.place(max(marker.x - marker.dx, 0))
        yield stroke(f"M{left:.1f},{y:.1f} H{across.place(marker.x + marker.dx):.1f}", colour, width=1)
    if marker.dy:
        yield stroke(
            f"M{x:.1f},{up.place(marker.y - marker.dy):.1f} V{up.place(marker.y + marker.dy):.1f}", colour, width=1
        )
    yield _dot(x, y, colour)


def _labels(spots: Sequence[tuple[float, float, str]]) -> Iterator[str]:
    """What stands beside the spots of a line; those that would cover each other stand in one place."""
    together: dict[tuple[float, float], list[str]] = {}
    for x, y, label in spots:
        near = (place for place in together if max(abs(place[0] - x), abs(place[1] - y)) < NEAR)
        together.setdefault(next(near, (x, y)), []).append(label)
    for (x, y), labels in together.items():
        yield text(x + 6, y - 6, ", ".join(labels), size=10)


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
