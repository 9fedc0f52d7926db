"""Draws a panel as SVG whose colors follow the page, light or dark, and which is no wider than a telephone."""

import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from fedweave.reports.colors import ink, shade
from fedweave.reports.panels import Bars, Cloud, Dots, ForestPlot, Heat, Key, LineSeries, Mark, Panel, plain_number

WIDTH, HEIGHT = 364, 250  # a telephone's 400 pixels less the page's margins
SIZE, LETTER = 11, 0.6  # of text; a letter's width to it, on the safe side
MAX_NAMES, MAX_LETTERS = 20, 16  # names that fit below an axis, and letters of each
TOP, RIGHT = 10, 8
ANGLE = 60  # degrees by which names are rotated where they do not fit next to each other
LEVELS = 16  # colors of a heat map
ROW, MIN_AXIS = 22, 80  # pixels of a row of a forest plot, and of its axis with margins
SQUARE = 26  # pixels that a number in a square needs
# SVG paths from the middle: about ten pixels, and about five in a cloud.
SYMBOLS = {
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "diamond": "m0 -5l5 5l-5 5l-5 -5z",
    "square": "m-4 -4h8v8h-8z",
    "triangle": "m0 -5l5 9h-10z",
    "upright": "m-1.5 -7h3v14h-3z",
    "cross": "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
}
CLOUD_SYMBOLS = {
    "circle": "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
    "diamond": "m0 -2.8l2.8 2.8l-2.8 2.8l-2.8 -2.8z",
    "square": "m-2 -2h4v4h-4z",
    "triangle": "m0 -2.8l2.8 5h-5.6z",
    "cross": "m-.8 -2.8h1.6v2h2v1.6h-2v2h-1.6v-2h-2v-1.6h2z",
}


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


def panel_svg(panel: Panel | Heat | ForestPlot) -> str:
    """The SVG of a panel."""
    height, parts = float(HEIGHT), list[str]()
    if isinstance(panel, ForestPlot):
        height, parts = _forest(panel)
    elif isinstance(panel, Heat):
        height, parts = _heat(panel)
    else:
        parts += _panel(panel)
    box = f'viewBox="0 0 {WIDTH} {height:.0f}"'
    words = panel.title or panel.below
    if isinstance(panel, ForestPlot):
        words = ": ".join(filter(None, (words, "; ".join(f"{row.name} {row.text}" for row in panel.rows[:3]))))
    title = escape(words if isinstance(panel, ForestPlot) else panel.title or panel.beside)
    return f'<svg class="plot" {box} role="img" aria-label="{title}">{"".join(parts)}</svg>'


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
    # 1. The axes. `left` and `end` are the pixels of the left and the lower end of the area of the marks.
    low, high = _range(panel)
    names = _Names(panel.below_names)
    end = HEIGHT - names.height - (18 if panel.below else 4)
    up = Axis(low, high, end, TOP + 14 * bool(panel.beside), parts=5)
    left = max(10 + max(_text_width(panel.form(tick)) for tick in up.ticks), names.overhang)
    across = _horizontal_axis(panel, left)
    step = across.place(1) - across.place(0)  # pixels of a name
    for tick in up.ticks:
        yield f'<path class="grid" d="M{left:.1f} {up.place(tick):.1f}H{WIDTH - RIGHT}"/>'
        yield _text(left - 5, up.place(tick) + 4, panel.form(tick), "end")
    yield f'<path class="axis" d="M{left:.1f} {end:.1f}H{WIDTH - RIGHT}"/>'
    if panel.beside:
        yield _text(2, TOP, panel.beside, "start")
    if panel.below_names:
        yield from names.draw([across.place(index) for index in range(len(panel.below_names))], end)
    else:
        ticks = panel.ticks or {tick: panel.across(tick) for tick in across.ticks}
        for place, word in ticks.items():
            yield _text(across.place(place), end + 15, word, "middle")
    if panel.below:
        yield _text((left + WIDTH - RIGHT) / 2, HEIGHT - 5, panel.below, "middle")
    for level in panel.levels:
        yield f'<path class="level" d="M{left:.1f} {up.place(level):.1f}H{WIDTH - RIGHT}"/>'

    if panel.line_at is not None:
        place, words = across.place(panel.line_at[0]), panel.line_at[1]
        yield f'<path class="level" d="M{place:.1f} {TOP}V{end:.1f}"/>'
        anchor, shift = ("end", -5) if place - left > _text_width(words) + 8 else ("start", 5)
        yield _text(place + shift, end - 8, words, anchor)

    # 2. Bars, which are behind all else.
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    whole = 0.8 * step
    width = whole if panel.stacked else whole / max(len(bars), 1)
    base = np.zeros(len(panel.names))  # where a stacked bar stands
    for number, bar in enumerate(bars):
        kind, label = "bar pale" if bar.pale else "bar", f", {bar.name}" if bar.name else ""
        yield f'<g class="dot" style="--c:{bar.tone}">'
        for index, height in enumerate(bar.y):
            if not math.isfinite(height) or height == 0:
                continue
            foot, top = up.place(base[index]), up.place(base[index] + height)
            x = across.place(index) - whole / 2 + (0 if panel.stacked else number * width)
            title = _title(f"{panel.names[index]}{label}: {panel.form(height)}")
            box = f'x="{x:.1f}" y="{min(foot, top):.1f}" width="{width:.1f}" height="{abs(foot - top):.1f}"'
            yield f'<rect class="{kind}" {box}>{title}</rect>'
            if bar.errors:
                yield _error_line(x + width / 2, height, bar.errors[index], up)
        yield "</g>"
        if panel.stacked:
            base = base + np.nan_to_num(np.asarray(bar.y, float))

    # 3. The other marks.
    for mark in panel.marks:
        if isinstance(mark, LineSeries):
            yield from _line(mark, panel, across, up)
        elif isinstance(mark, Cloud):
            path = ""
            for x, y in zip(mark.x, mark.y, strict=True):
                path += f"M{across.place(x):.1f} {up.place(y):.1f}{CLOUD_SYMBOLS[mark.symbol]}"
            title = _title(f"{mark.name}: {len(mark.x):,}")
            yield f'<path class="bar" style="--c:{mark.tone}" d="{path}">{title}</path>'
        elif isinstance(mark, Dots):
            yield from _dots(mark, panel, across, up)


def _horizontal_axis(panel: Panel, left: float) -> "Axis":
    if panel.names:
        return _NameAxis(len(panel.names), left, WIDTH - RIGHT)
    x = list[float]()
    for mark in panel.marks:
        if not isinstance(mark, Bars):
            x += mark.x
        if isinstance(mark, Dots):
            x += [value + error for value, error in zip(mark.x, mark.wide, strict=False)]
    x = x or [0, 1]
    axis = Axis(min(0, *x), max(x), left, WIDTH - RIGHT, parts=5)
    half = _text_width(panel.across(axis.ticks[-1])) / 2  # the last number is centered below its tick
    return Axis(min(0, *x), max(x), left, WIDTH - max(RIGHT, half), parts=5)


class _NameAxis(Axis):
    """Names at equal distances."""

    def __init__(self, count: int, begin: float, end: float) -> None:
        self.ticks = [float(index) for index in range(count)]
        self._scale = (end - begin) / count
        self._begin = begin + self._scale / 2


class _Names:
    """Names below an axis, shortened, and rotated where they do not fit next to each other; none of too many names.

    texts: as they are drawn. width: of the longest. height: of all below an axis. overhang: how far rotated names reach
    to the left of the first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.texts, self.width, self.height, self.overhang = list[str](), 0.0, 16.0, 0.0
        if len(names) > MAX_NAMES:
            self.height = 4.0
            return
        self.texts = [*map(_shortened, names)]
        self.width = max(map(_text_width, self.texts), default=0.0)
        self._rotated = len(names) > 0 and self.width + 6 > (WIDTH - 60) / len(names)
        if self._rotated:
            self.height = self.width * math.sin(math.radians(ANGLE)) + SIZE
            self.overhang = self.width * math.cos(math.radians(ANGLE))

    def draw(self, places: Sequence[float], end: float) -> Iterator[str]:
        """The texts at these places below the axis at the height `end`."""
        for name, x in zip(self.texts, places, strict=False):
            if self._rotated:
                rotation = f' transform="rotate(-{ANGLE} {x + 4:.1f} {end + 12:.1f})"'
                yield _text(x + 4, end + 12, name, "end", rotation)
            else:
                yield _text(x, end + 15, name, "middle")


def _range(panel: Panel) -> tuple[float, float]:
    """The range of the vertical axis: all that is drawn, from 0 where there are bars."""
    heights = [*panel.levels]
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    if bars and panel.stacked:
        heights += [0.0, *np.sum([bar.y for bar in bars], 0)]
    elif bars:
        heights += [0.0, *np.concatenate([_ends(bar, 1) for bar in bars])]
    for mark in panel.marks:
        if not isinstance(mark, Bars):
            heights += [*_ends(mark, -1), *_ends(mark, 1)]
    finite = [float(height) for height in heights if math.isfinite(height)] or [0.0, 1.0]
    return min(finite) if panel.low is None else panel.low, max(finite) if panel.high is None else panel.high


def _ends(mark: Mark, sign: int) -> np.ndarray:
    """The upper ends of a mark's errors or band for `sign` 1, the lower ones for -1."""
    if isinstance(mark, LineSeries):
        return np.asarray((mark.low if sign < 0 else mark.high) or mark.y, float)
    result: np.ndarray = np.asarray(mark.y, float) + sign * np.asarray(mark.errors or 0.0, float)
    return result


def _text_width(text: str) -> float:
    """The width of a text in pixels, on the safe side."""
    return SIZE * LETTER * len(text)


def _line(mark: LineSeries, panel: Panel, across: Axis, up: Axis) -> Iterator[str]:
    x = [across.place(value) for value in mark.x]
    points = [(at, up.place(y)) for at, y in zip(x, mark.y, strict=True) if math.isfinite(y)]
    if not points:
        return
    if mark.low:
        top = [*zip(x, map(up.place, mark.high), strict=True)]
        bottom = [*zip(x, map(up.place, mark.low), strict=True)]
        yield f'<path class="band" style="--c:{mark.tone}" d="{_path([*top, *reversed(bottom)])}Z"/>'
    last = f"{mark.y[-1]:.4g}" if panel.form is plain_number else panel.form(mark.y[-1])
    title = _title(f"{mark.name}: {last} at {panel.across(mark.x[-1])}")
    if len(points) == 1:
        yield f'<g style="--c:{mark.tone}">{_mark("circle", *points[0])}{title}</g>'
    else:
        yield f'<path class="line" style="--c:{mark.tone}" {_dash(mark.dash)} d="{_path(points)}">{title}</path>'


def _dots(mark: Dots, panel: Panel, across: Axis, up: Axis) -> Iterator[str]:
    """Marks with their errors; then the labels, where those that would cover each other share one place."""
    small = " small" if len(mark.x) > 2 * MAX_NAMES else ""
    name = f", {mark.name}" if mark.name else ""
    for index, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if not math.isfinite(y):
            continue
        at = across.place(x)
        where = panel.names[round(x)] if panel.names else panel.across(x)
        if mark.errors:
            yield _error_line(at, y, mark.errors[index], up)
        if mark.wide:
            begin, end = across.place(max(x - mark.wide[index], across.ticks[0])), across.place(x + mark.wide[index])
            yield f'<path class="axis" d="M{begin:.1f} {up.place(y):.1f}H{end:.1f}"/>'
        title = _title(f"{where}{name}: {panel.form(y)}")
        yield f'<g class="dot{small}" style="--c:{mark.tone}">{_mark(mark.symbol, at, up.place(y))}{title}</g>'
    labels_at: dict[tuple[float, float], list[str]] = {}
    for x, y, label in zip(mark.x, mark.y, mark.labels, strict=False):
        place = (across.place(x), up.place(y))
        for other in labels_at:
            if max(abs(other[0] - place[0]), abs(other[1] - place[1])) < SIZE:
                place = other
                break
        labels_at.setdefault(place, []).append(label)
    for (x, y), labels in labels_at.items():
        words = ", ".join(filter(None, labels))
        if words and x + 6 + _text_width(words) > WIDTH:
            yield _text(x - 6, y - 6, words, "end")
        elif words:
            yield _text(x + 6, y - 6, words, "start")


def _error_line(x: float, middle: float, error: float, up: Axis) -> str:
    return f'<path class="axis" d="M{x:.1f} {up.place(middle - error):.1f}V{up.place(middle + error):.1f}"/>'


def _mark(symbol: str, x: float, y: float) -> str:
    return f'<path class="bar" d="M{x:.1f} {y:.1f}{SYMBOLS[symbol]}"/>'


def _forest(forest: ForestPlot) -> tuple[float, list[str]]:
    """The height, and the parts: a name, a line with the marks, and a text in each row."""
    text_width = max(_text_width(row.text) for row in forest.rows)
    letters = min(MAX_LETTERS, int((WIDTH - text_width - MIN_AXIS) / (SIZE * LETTER)))
    names = [_shortened(row.name, letters) for row in forest.rows]
    values = [value for row in forest.rows for value in (row.value, row.low, row.high, row.other) if value is not None]
    values += [] if forest.level is None else [forest.level]
    left = max(map(_text_width, names)) + 10
    right = WIDTH - text_width - 10
    across = Axis(min(values), max(values), left, right, parts=3)
    first = TOP + (18 if any(forest.sides) else 0)  # of the rows' area
    end = first + ROW * len(forest.rows) + 4
    parts = []
    for tick in across.ticks:
        parts.append(f'<path class="grid" d="M{across.place(tick):.1f} {first:.1f}V{end:.1f}"/>')
    shown, reach = list[str](), -math.inf  # the ticks' texts that do not touch each other
    for tick in across.ticks:
        word, place = plain_number(round(tick, 9)), across.place(tick)
        half = _text_width(word) / 2
        if place - half > reach and half < place < WIDTH - half:
            shown.append(_text(place, end + 15, word, "middle"))
            reach = place + half + 4
    parts += shown
    if forest.level is not None:
        middle = across.place(forest.level)
        parts.append(f'<path class="axis" d="M{middle:.1f} {first:.1f}V{end:.1f}"/>')
        for words, room, anchor in zip(forest.sides, (middle, WIDTH - middle), ("end", "start"), strict=True):
            word = words if _text_width(words) < room - 6 else words.partition(" ")[0]
            if word and _text_width(word) < room - 6:
                parts.append(_text(middle + (6 if anchor == "start" else -6), TOP + 2, word, anchor))
    others = ""
    for place, (row, name) in enumerate(zip(forest.rows, names, strict=True)):
        y = first + ROW * (place + 0.5)
        marks = _mark("circle", across.place(row.value), y)
        if row.low is not None and row.high is not None:
            marks = f'<path class="line" d="M{across.place(row.low):.1f} {y:.1f}H{across.place(row.high):.1f}"/>{marks}'
        if row.other is not None:
            others += f"M{across.place(row.other):.1f} {y:.1f}{SYMBOLS['upright']}"
        parts += [_text(left - 8, y + 4, name, "end"), f'<g style="--c:{row.tone}">{marks}</g>']
        parts.append(_text(WIDTH - 2, y + 4, row.text, "end"))
    if others:
        parts.append(f'<path class="bar" style="--c:{forest.other_tone}" d="{others}"/>')
    total = end + 20
    if forest.below:
        total += 16
        parts.append(_text(WIDTH / 2, total - 6, forest.below, "middle"))
    return total, parts


def _shortened(name: str, letters: int = MAX_LETTERS) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _heat(heat: Heat) -> tuple[float, list[str]]:
    """The height, and the parts."""
    # 1. Where the squares are: `width` by `height` pixels each.
    rows, columns = heat.values.shape
    row_names, column_names = _Names(heat.rows), _Names(heat.columns)
    left = 8 + row_names.width + (14 if heat.beside else 0)
    left = max(left, column_names.overhang)
    width = (WIDTH - RIGHT - left) / columns
    height = max(min(width, 230 / rows), SIZE + 3 if row_names.texts else 0, _text_width(heat.beside) / rows)
    end = TOP + rows * height
    total = end + column_names.height + (18 if heat.below else 4) + 26

    # 2. A path for each of a few colors, and the numbers in the squares where there is room.
    shares = np.clip(np.nan_to_num(heat.values / (heat.top or 1.0)), 0, 1)
    levels = np.minimum((shares * LEVELS).astype(int), LEVELS - 1)  # [r, c]
    paths: dict[int, str] = {}
    for r, row in enumerate(levels):
        begins = np.flatnonzero(np.diff(row, prepend=-1)).tolist()  # of runs of one color
        for begin, stop in pairwise([*begins, len(row)]):
            run = (stop - begin) * width
            box = f"M{left + begin * width:.1f} {TOP + r * height:.1f}h{run:.1f}v{height:.1f}h-{run:.1f}z"
            paths[row[begin]] = paths.get(row[begin], "") + box
    parts = [f'<path fill="{_level_color(level)}" d="{path}"/>' for level, path in sorted(paths.items())]
    if width >= SQUARE and height >= SIZE + 2:
        for r, texts in enumerate(heat.texts):
            for c, text in enumerate(texts):
                style = f' style="fill:{ink(_level_color(levels[r, c]))}"'
                x, y = left + (c + 0.5) * width, TOP + (r + 0.5) * height + 4
                parts.append(_text(x, y, text, "middle", style))

    # 3. Names and titles, and what the colors mean.
    for r, name in enumerate(row_names.texts):
        parts.append(_text(left - 5, TOP + (r + 0.5) * height + 4, name, "end"))
    parts += column_names.draw([left + (c + 0.5) * width for c in range(columns)], end)
    if heat.below:
        parts.append(_text((left + WIDTH - RIGHT) / 2, total - 31, heat.below, "middle"))
    if heat.beside:
        middle = (TOP + end) / 2
        parts.append(_text(10, middle, heat.beside, "middle", f' transform="rotate(-90 10 {middle:.1f})"'))
    first, last = heat.form(0), heat.form(heat.top)
    x, y = left + _text_width(first) + 6, total - 20
    for level in range(LEVELS):
        box = f'x="{x + 6 * level:.1f}" y="{y}" width="6.2" height="10"'
        parts.append(f'<rect {box} fill="{_level_color(level)}"/>')
    parts.append(_text(left, y + 9, first, "start"))
    parts.append(_text(x + 6 * LEVELS + 5, y + 9, last, "start"))
    return total, parts


def _level_color(level: int) -> str:
    return shade(level / (LEVELS - 1))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _dash(dash: str) -> str:
    return f'stroke-dasharray="{dash}"' if dash else ""


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>"
