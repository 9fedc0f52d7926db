"""Two numbers of each experiment against one another, drawn as SVG: a picture per data set, a line per method."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedweave.report.axis import Axis
from fedweave.reproduce.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, axes, begin, legend, save, stroke, text
from fedweave.reproduce.table import Row

NEAR = 12  # pixels within which labels would cover each other


class Spot(NamedTuple):
    """One experiment: what stands beside it, and both numbers with their deviations over the seeds."""

    label: str
    x: float
    y: float
    dx: float
    dy: float


Lines = Mapping[str, Sequence[Spot]]


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


def panels(plane: tuple[str, str], rows: Sequence[Row]) -> dict[str, dict[str, list[Spot]]]:
    """{data set: {method: its spots}} of the rows that have both numbers."""
    found = {(row.row, row.column): row for row in rows if row.ours is not None}
    across, up = plane
    panels: dict[str, dict[str, list[Spot]]] = {}
    for name in dict.fromkeys(row.row for row in rows):
        x, y = found.get((name, across)), found.get((name, up))
        if x is None or y is None or x.ours is None or y.ours is None:
            continue
        panel, method, *label = name.split(", ")
        spot = Spot(", ".join(label), x.ours, y.ours, x.spread or 0.0, y.spread or 0.0)
        panels.setdefault(panel, {}).setdefault(method, []).append(spot)
    return panels


def svg(title: str, plane: tuple[str, str], lines: Lines) -> str:
    """The picture, in per cent: thin crosses are one deviation to either side."""
    from fedweave.report.colours import COLOURS

    spots = [spot for line in lines.values() for spot in line]
    across = Axis(0, max(spot.x + spot.dx for spot in spots), LEFT, WIDTH - RIGHT)
    low, high = min(spot.y - spot.dy for spot in spots), max(spot.y + spot.dy for spot in spots)
    places, top = legend(list(lines), 14)
    up = Axis(low, high, HEIGHT - BOTTOM, top)
    parts = [*begin(title), *axes(across, up, f"{plane[1]}, %", f"{plane[0]}, %", top)]
    for at, (method, line) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        x, y = places[at]
        parts += [_dot(x + 4, y - 4, colour), text(x + 14, y, method)]
        parts += _line([(across.place(spot.x), up.place(spot.y)) for spot in line], colour)
        for spot in line:
            parts += _spot(spot, across, up, colour)
        parts += _labels([(across.place(spot.x), up.place(spot.y), spot.label) for spot in line if spot.label])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Sequence[tuple[float, float]], colour: str) -> Iterator[str]:
    if len(points) > 1:
        yield stroke("M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points), colour)


def _spot(spot: Spot, across: Axis, up: Axis, colour: str) -> Iterator[str]:
    x, y = across.place(spot.x), up.place(spot.y)
    if spot.dx:
        left = across.place(max(spot.x - spot.dx, 0))
        yield stroke(f"M{left:.1f},{y:.1f} H{across.place(spot.x + spot.dx):.1f}", colour, width=1)
    if spot.dy:
        yield stroke(f"M{x:.1f},{up.place(spot.y - spot.dy):.1f} V{up.place(spot.y + spot.dy):.1f}", colour, width=1)
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
