"""Draws a panel as SVG whose colors follow the page, light or dark, and which is no wider than a telephone."""

import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from fedweave.reports.colors import ink, shade
from fedweave.reports.panels import Bars, Cloud, Dots, Heat, Key, LineSeries, Mark, Panel, plain_number

WIDTH, HEIGHT = 364, 250  # a telephone's 400 pixels less the page's margins
SIZE, LETTER = 11, 0.6  # of text; a letter's width to it, on the safe side
MAX_NAMES, MAX_LETTERS = 20, 16  # names that fit below an axis, and letters of each
TOP, RIGHT = 10, 8
TURN = 60  # degrees by which names are turned where they do not fit next to each other
LEVELS = 16  # colors of a heat map
SQUARE = 26  # pixels that a number in a square needs


class Axis:
    """An axis from `low` to `high` or a little beyond, between the pixels `begin` and `end`.

    `ticks` are round numbers, about `parts` of them.
    """

    def __init__(self, low: float, high: float, begin: float, end: float, parts: int = 6) -> None:
        span = high - low if high - low > sys.float_info.min * parts else max(1.0, abs(high))
        rough = span / parts
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * by for by in (1, 2, 5, 10) if power * by >= rough * (1 - 1e-9))
        first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
        self.ticks = [number * step for number in range(first, last + 1)]
        self._begin, self._scale = begin, (end - begin) / (self.ticks[-1] - self.ticks[0])

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self._begin + (value - self.ticks[0]) * self._scale


def panel_svg(panel: Panel | Heat) -> str:
    """The SVG of a panel."""
    height, *parts = _heat(panel) if isinstance(panel, Heat) else _panel(panel)
    body = "".join(parts)
    box = f'viewBox="0 0 {WIDTH} {height}"'
    return f'<svg class="plot" {box} role="img" aria-label="{escape(panel.title or panel.beside)}">{body}</svg>'


def symbol_svg(key: Key) -> str:
    """The small picture of a legend's entry."""
    if key.symbol == "line":
        body = f'<path class="line" d="M1 6H23" {_dash(key.dash)}/>'
    elif key.symbol in ("bar", "pale"):
        body = f'<rect class="{"bar pale" if key.symbol == "pale" else "bar"}" x="6" y="1" width="11" height="10"/>'
    else:
        body = _mark(key.symbol, 12, 6)
    return f'<svg class="key" style="--c:{key.tone}" viewBox="0 0 24 12" aria-hidden="true">{body}</svg>'


def _panel(panel: Panel) -> Iterator[str]:
    """The height, and then the parts."""
    low, high = _range(panel)
    labels, bottom = _shortened(panel.below_names), _below(panel.below_names, panel.below)
    end = HEIGHT - bottom
    up = Axis(low, high, end, TOP + 14 * bool(panel.beside), parts=5)
    left = max(10 + _wide(max((panel.form(tick) for tick in up.ticks), key=len)), _lean(panel.below_names))
    across = _across(panel, left)
    yield str(HEIGHT)
    yield from _grid(up, left, panel, end)
    if labels:
        yield from _names(labels, [across.place(at) for at in range(len(labels))], end)
    else:
        ticks = panel.ticks or {tick: panel.across(tick) for tick in across.ticks}
        for place, word in ticks.items():
            yield _text(across.place(place), end + 15, word, "middle")
    if panel.below:
        yield _text((left + WIDTH - RIGHT) / 2, HEIGHT - 5, panel.below, "middle")
    for level in panel.levels:
        yield f'<path class="level" d="M{left:.1f} {up.place(level):.1f}H{WIDTH - RIGHT}"/>'
    yield from _bars(panel, across, up)
    for mark in panel.marks:
        if isinstance(mark, LineSeries):
            yield from _line(mark, panel, across, up)
        elif isinstance(mark, Cloud):
            yield _cloud(mark, across, up)
        elif isinstance(mark, Dots):
            yield from _dots(mark, panel, across, up)
            yield from _labels(mark, across, up)


def _range(panel: Panel) -> tuple[float, float]:
    """The range of the vertical axis: all that is drawn, from 0 where there are bars."""
    heights = [*panel.levels]
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    if bars and panel.stacked:
        heights += [0.0, *np.sum([bar.y for bar in bars], 0)]
    elif bars:
        heights += [0.0, *np.concatenate([_reach(bar, 1) for bar in bars])]
    for mark in panel.marks:
        if not isinstance(mark, Bars):
            heights += [*_reach(mark, -1), *_reach(mark, 1)]
    finite = [float(height) for height in heights if math.isfinite(height)] or [0.0, 1.0]
    return min(finite) if panel.low is None else panel.low, max(finite) if panel.high is None else panel.high


def _reach(mark: Mark, sign: int) -> np.ndarray:
    """The upper ends of a mark's errors or band for `sign` 1, the lower ones for -1."""
    if isinstance(mark, LineSeries):
        return np.asarray((mark.low if sign < 0 else mark.high) or mark.y, float)
    result: np.ndarray = np.asarray(mark.y, float) + sign * np.asarray(mark.errors or 0.0, float)
    return result


def _across(panel: Panel, left: float) -> Axis:
    """The horizontal axis."""
    if panel.names:
        return _Places(len(panel.names), left, WIDTH - RIGHT)
    x = list[float]()
    for mark in panel.marks:
        if not isinstance(mark, Bars):
            x += mark.x
    x = x or [0, 1]
    for mark in panel.marks:
        if isinstance(mark, Dots):
            x += [value + error for value, error in zip(mark.x, mark.wide, strict=False)]
    last = Axis(min(0, *x), max(x), left, WIDTH - RIGHT, parts=5)
    room = _wide(panel.across(last.ticks[-1])) / 2  # the last number stands in the middle below its tick
    return Axis(min(0, *x), max(x), left, WIDTH - max(RIGHT, room), parts=5)


class _Places(Axis):
    """Names at equal distances."""

    def __init__(self, count: int, begin: float, end: float) -> None:
        self.ticks = [float(at) for at in range(count)]
        self._scale = (end - begin) / count
        self._begin = begin + self._scale / 2


def _below(names: Sequence[str], words: str) -> float:
    """How much room the text below the axis takes."""
    if not names:
        tall = 16.0
    elif len(names) > MAX_NAMES:
        tall = 4.0
    else:
        longest = max(map(_wide, _shortened(names)))
        tall = longest * math.sin(math.radians(TURN)) + SIZE if _turned(names) else 16.0
    return tall + (18 if words else 4)


def _turned(names: Sequence[str]) -> bool:
    """Whether the names do not fit next to each other."""
    return max(map(_wide, _shortened(names))) + 6 > (WIDTH - 60) / len(names)


def _lean(names: Sequence[str]) -> float:
    """How far turned names reach to the left of the first."""
    if not 0 < len(names) <= MAX_NAMES or not _turned(names):
        return 0.0
    return max(map(_wide, _shortened(names))) * math.cos(math.radians(TURN))


def _shortened(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= MAX_LETTERS else f"{name[: MAX_LETTERS - 1]}…" for name in names]


def _wide(text: str) -> float:
    """The width of a text in pixels, on the safe side."""
    return SIZE * LETTER * len(text)


def _names(labels: Sequence[str], places: Sequence[float], end: float) -> Iterator[str]:
    if len(labels) > MAX_NAMES:
        return
    for name, x in zip(labels, places, strict=True):
        if _turned(labels):
            yield _text(x + 4, end + 12, name, "end", f' transform="rotate(-{TURN} {x + 4:.1f} {end + 12:.1f})"')
        else:
            yield _text(x, end + 15, name, "middle")


def _grid(up: Axis, left: float, panel: Panel, end: float) -> Iterator[str]:
    for tick in up.ticks:
        yield f'<path class="grid" d="M{left:.1f} {up.place(tick):.1f}H{WIDTH - RIGHT}"/>'
        yield _text(left - 5, up.place(tick) + 4, panel.form(tick), "end")
    yield f'<path class="axis" d="M{left:.1f} {end:.1f}H{WIDTH - RIGHT}"/>'
    if panel.beside:
        yield _text(2, TOP, panel.beside, "start")


def _bars(panel: Panel, across: Axis, up: Axis) -> Iterator[str]:
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    if not bars:
        return
    whole = 0.8 * (across.place(1) - across.place(0))
    width = whole if panel.stacked else whole / len(bars)
    base = np.zeros(len(panel.names))
    for at, bar in enumerate(bars):
        for i, height in enumerate(bar.y):
            if not math.isfinite(height) or height == 0:
                continue
            foot, top = up.place(base[i]), up.place(base[i] + height)
            x = across.place(i) - whole / 2 + (0 if panel.stacked else at * width)
            label = f"{panel.names[i]}{f', {bar.name}' if bar.name else ''}: {panel.form(height)}"
            box = f'x="{x:.1f}" y="{min(foot, top):.1f}" width="{width:.1f}" height="{abs(foot - top):.1f}"'
            kind = "bar pale" if bar.pale else "bar"
            yield f'<rect class="{kind}" style="--c:{bar.tone}" {box}>{_title(label)}</rect>'
            if bar.errors:
                yield _whisker(x + width / 2, height, bar.errors[i], up)
        if panel.stacked:
            base = base + np.nan_to_num(np.asarray(bar.y, float))


def _line(mark: LineSeries, panel: Panel, across: Axis, up: Axis) -> Iterator[str]:
    points = [(across.place(x), up.place(y)) for x, y in zip(mark.x, mark.y, strict=True) if math.isfinite(y)]
    if not points:
        return
    if mark.low:
        top = [(across.place(x), up.place(y)) for x, y in zip(mark.x, mark.high, strict=True)]
        bottom = [(across.place(x), up.place(y)) for x, y in zip(mark.x, mark.low, strict=True)]
        yield f'<path class="band" style="--c:{mark.tone}" d="{_path([*top, *reversed(bottom)])}Z"/>'
    last = f"{mark.y[-1]:.4g}" if panel.form is plain_number else panel.form(mark.y[-1])
    title = _title(f"{mark.name}: {last} at {panel.across(mark.x[-1])}")
    if len(points) == 1:
        yield f'<g style="--c:{mark.tone}">{_mark("circle", *points[0])}{title}</g>'
    else:
        yield f'<path class="line" style="--c:{mark.tone}" {_dash(mark.dash)} d="{_path(points)}">{title}</path>'


def _dots(mark: Dots, panel: Panel, across: Axis, up: Axis) -> Iterator[str]:
    step = across.place(1) - across.place(0)
    for i, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if not math.isfinite(y):
            continue
        at = across.place(x) + mark.shift * step
        where = panel.names[round(x)] if panel.names else panel.across(x)
        if mark.errors:
            yield _whisker(at, y, mark.errors[i], up)
        if mark.wide:
            begin, end = across.place(max(x - mark.wide[i], across.ticks[0])), across.place(x + mark.wide[i])
            yield f'<path class="axis" d="M{begin:.1f} {up.place(y):.1f}H{end:.1f}"/>'
        title = _title(f"{where}{f', {mark.name}' if mark.name else ''}: {panel.form(y)}")
        small = " small" if len(mark.x) > 2 * MAX_NAMES else ""
        yield f'<g class="dot{small}" style="--c:{mark.tone}">{_mark(mark.symbol, at, up.place(y))}{title}</g>'


CLOUD_SYMBOLS = {
    "circle": "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
    "diamond": "m0 -2.8l2.8 2.8l-2.8 2.8l-2.8 -2.8z",
    "square": "m-2 -2h4v4h-4z",
    "triangle": "m0 -2.8l2.8 5h-5.6z",
    "cross": "m-.8 -2.8h1.6v2h2v1.6h-2v2h-1.6v-2h-2v-1.6h2z",
}


def _cloud(mark: Cloud, across: Axis, up: Axis) -> str:
    points = zip(mark.x, mark.y, strict=True)
    path = "".join(f"M{across.place(x):.1f} {up.place(y):.1f}{CLOUD_SYMBOLS[mark.symbol]}" for x, y in points)
    return f'<path class="bar" style="--c:{mark.tone}" d="{path}">{_title(f"{mark.name}: {len(mark.x):,}")}</path>'


def _labels(mark: Dots, across: Axis, up: Axis) -> Iterator[str]:
    """The labels next to marks; labels that would cover each other share one place."""
    labels_at: dict[tuple[float, float], list[str]] = {}
    for x, y, label in zip(mark.x, mark.y, mark.labels, strict=False):
        place = (across.place(x), up.place(y))
        for other in labels_at:
            if max(abs(other[0] - place[0]), abs(other[1] - place[1])) < SIZE:
                place = other
                break
        labels_at.setdefault(place, []).extend([label] if label else [])
    for (x, y), labels in labels_at.items():
        if labels:
            yield _text(x + 6, y - 6, ", ".join(labels), "start")


def _whisker(x: float, middle: float, error: float, up: Axis) -> str:
    return f'<path class="axis" d="M{x:.1f} {up.place(middle - error):.1f}V{up.place(middle + error):.1f}"/>'


def _mark(symbol: str, x: float, y: float) -> str:
    """A symbol of about ten pixels."""
    path = {
        "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        "diamond": "m0 -5l5 5l-5 5l-5 -5z",
        "square": "m-4 -4h8v8h-8z",
        "triangle": "m0 -5l5 9h-10z",
        "stroke": "m-5 -1h10v2h-10z",
        "cross": "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    }[symbol]
    return f'<path class="bar" d="M{x:.1f} {y:.1f}{path}"/>'


def _heat(heat: Heat) -> Iterator[str]:
    """The height, and then the parts."""
    rows, columns = heat.values.shape
    row_names = _shortened(heat.rows) if rows <= MAX_NAMES else []
    left = 8 + max(map(_wide, row_names), default=0) + (14 if heat.beside else 0)
    left = max(left, _lean(heat.columns))
    wide = WIDTH - RIGHT - left
    across = wide / columns  # of a square
    down = max(min(across, 230 / rows), SIZE + 3 if row_names else 0, _wide(heat.beside) / rows)
    top, end = TOP, TOP + rows * down
    height = end + _below(heat.columns, heat.below) + 26
    yield f"{height:.0f}"
    yield from _squares(heat, left, top, across, down)
    for row, name in enumerate(row_names):
        yield _text(left - 5, top + (row + 0.5) * down + 4, name, "end")
    if heat.columns:
        places = [left + (column + 0.5) * across for column in range(columns)]
        yield from _names(_shortened(heat.columns), places, end)
    if heat.below:
        yield _text(left + wide / 2, height - 31, heat.below, "middle")
    if heat.beside:
        yield _text(10, (top + end) / 2, heat.beside, "middle", f' transform="rotate(-90 10 {(top + end) / 2:.1f})"')
    yield from _scale(heat, left, height - 20)


def _squares(heat: Heat, left: float, top: float, across: float, down: float) -> Iterator[str]:
    """A path for each of a few colors, and the numbers in the squares where there is room."""
    shares = np.clip(np.nan_to_num(heat.values / (heat.top or 1.0)), 0, 1)
    levels = np.minimum((shares * LEVELS).astype(int), LEVELS - 1)  # [r, c]
    paths: dict[int, str] = {}
    for r, row in enumerate(levels):
        begins = np.flatnonzero(np.diff(row, prepend=-1)).tolist()  # of runs of one color
        for begin, end in pairwise([*begins, len(row)]):
            wide = (end - begin) * across
            box = f"M{left + begin * across:.1f} {top + r * down:.1f}h{wide:.1f}v{down:.1f}h-{wide:.1f}z"
            paths[row[begin]] = paths.get(row[begin], "") + box
    for level, path in sorted(paths.items()):
        yield f'<path fill="{shade(level / (LEVELS - 1))}" d="{path}"/>'
    if not heat.texts or across < SQUARE or down < SIZE + 2:
        return
    for r, row in enumerate(heat.texts):
        for c, text in enumerate(row):
            color = ink(shade(levels[r, c] / (LEVELS - 1)))
            x, y = left + (c + 0.5) * across, top + (r + 0.5) * down + 4
            yield _text(x, y, text, "middle", f' style="fill:{color}"')


def _scale(heat: Heat, left: float, y: float) -> Iterator[str]:
    """What the colors mean."""
    first, last = heat.form(0), heat.form(heat.top)
    x = left + _wide(first) + 6
    for number in range(LEVELS):
        yield f'<rect x="{x + 6 * number:.1f}" y="{y}" width="6.2" height="10" fill="{shade(number / (LEVELS - 1))}"/>'
    yield _text(left, y + 9, first, "start")
    yield _text(x + 6 * LEVELS + 5, y + 9, last, "start")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _dash(dash: str) -> str:
    return f'stroke-dasharray="{dash}"' if dash else ""


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>"
