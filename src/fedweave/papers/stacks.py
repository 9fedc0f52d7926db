"""Shares drawn as SVG: a bar for each row of a table, a piece of it for each column."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedweave.papers.planes import BOTTOM, HEIGHT, RIGHT, WIDTH, begin, legend, save, text
from fedweave.papers.table import Row

LETTERS = 110  # pixels for the rows' names

Bars = Mapping[str, Sequence[float]]


def draw(stem: Path, title: str, rows: Sequence[Row]) -> list[str]:
    """Write `stem`.svg of the rows that are measured in every column; returns its name, nothing if there are none."""
    columns = list(dict.fromkeys(row.column for row in rows))
    found = {(row.row, row.column): row.ours for row in rows if row.ours is not None}
    bars = {
        name: [found[name, column] for column in columns]
        for name in dict.fromkeys(row.row for row in rows)
        if all((name, column) in found for column in columns)
    }
    if not bars:
        return []
    path = stem.with_name(f"{stem.name}.svg")
    save(path, svg(title, columns, bars))
    return [str(path)]


def svg(title: str, columns: Sequence[str], bars: Bars) -> str:
    """The picture: bars of one length, whose pieces are in the order of the columns."""
    from fedweave.report.colours import CLASSES

    places, top = legend(columns, 14)
    parts = list(begin(title))
    for at, ((x, y), column) in enumerate(zip(places, columns, strict=True)):
        parts += [_piece(x, y - 9, 10, 10, CLASSES[at % len(CLASSES)]), text(x + 14, y, column)]
    high = (HEIGHT - BOTTOM - top) / len(bars)
    for at, (name, shares) in enumerate(bars.items()):
        y, x, length = top + at * high, float(LETTERS), WIDTH - RIGHT - LETTERS
        parts.append(text(LETTERS - 8, y + 0.6 * high, name, "end"))
        for number, share in enumerate(shares):
            wide = length * share / max(sum(shares), 1e-12)
            parts.append(_piece(x, y + 0.1 * high, wide, 0.8 * high, CLASSES[number % len(CLASSES)]))
            x += wide
    for share in (0, 25, 50, 75, 100):
        place = LETTERS + length * share / 100
        parts.append(text(place, HEIGHT - BOTTOM + 18, f"{share} %", "end" if share == 100 else "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _piece(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'
