"""What pictures of results are drawn with, as SVG: axes with round numbers, strokes and texts."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from fedweave.report.axis import Axis
from fedweave.runs.files import write

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
