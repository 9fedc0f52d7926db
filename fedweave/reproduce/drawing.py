"""What pictures of results are drawn with, as SVG: axes with round numbers, strokes and texts."""

from collections.abc import Iterator
from html import escape

from fedweave.report.axis import Axis

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 60, 45  # margins


def begin(title: str) -> Iterator[str]:
    """The start of a picture with its title."""
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    yield text(LEFT, 20, title, size=13)


def axes(across: Axis, up: Axis, unit: str, below: str) -> Iterator[str]:
    """Lines and numbers; `unit` stands above the upright axis, `below` under the other."""
    bottom = HEIGHT - BOTTOM
    for tick in up.ticks:
        yield stroke(f"M{LEFT},{up.place(tick):.1f} H{WIDTH - RIGHT}", "#E6E6E6", width=1)
        yield text(LEFT - 8, up.place(tick) + 4, f"{tick:g}", "end")
    for tick in across.ticks:
        yield text(across.place(tick), bottom + 18, f"{tick:g}", "middle")
    yield stroke(f"M{LEFT},{bottom} H{WIDTH - RIGHT}", "#999999", width=1)
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, below, "middle")
    yield text(12, TOP - 8, unit)


def stroke(path: str, colour: str, dash: str = "", width: int = 2) -> str:
    """A line along a path of SVG."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    """Text, as it is."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
