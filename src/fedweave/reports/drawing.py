"""The page's colors and dashes: each color has one tone for light and one for dark paper, legible on both."""

import colorsys
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

PAPER = ("#ffffff", "#16191d")  # light and dark
DRAWN, WRITTEN = 3.0, 4.5  # least contrast of what is drawn and of text (WCAG 2.2, 1.4.11 and 1.4.3)
# Okabe and Ito 2008, "Color universal design", without the yellow that paper does not show.
# Three more, darker, for a seventh line and those after it.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255", "#6A3D9A", "#7F6000")
# SVG dashes for lines two pixels wide: a reader can distinguish the same number of lines in gray.
DASHES = ("", "7 4", "2 3", "8 3 2 3", "14 4", "8 3 2 3 2 3", "4 8", "14 3 4 3", "2 8", "4 3 4 10")
# Tol 2021, "Color schemes", muted: for classes, which are more than the runs. Orange stands for its olive, which sand
# looks like where it is dark enough for paper.
CLASSES = ("#332288", "#88CCEE", "#44AA99", "#117733", "#EE7733", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB")
# Cividis (Nuñez, Anderton and Renslow 2018), at equal distances.
SCALE = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")


def contrast(one: str, other: str) -> float:
    """The contrast of two colors "#rrggbb", 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def ink(paper: str) -> str:
    """Black or white, the one that has the higher contrast to the paper."""
    return max(("#000000", "#ffffff"), key=lambda color: contrast(color, paper))


def legible(color: str, paper: str, least: float = DRAWN) -> str:
    """The color, made lighter or darker until it has this contrast to the paper; its hue stays."""
    dark = _luminance(paper) < 0.5
    hue, light, saturation = colorsys.rgb_to_hls(*_rgb(color))
    while contrast(color, paper) < least and 0 < light < 1:
        light = min(1.0, light + 0.02) if dark else max(0.0, light - 0.02)
        color = _hex(colorsys.hls_to_rgb(hue, light, saturation))
    return color if contrast(color, paper) >= least else ("#ffffff" if dark else "#000000")


def tone(color: str) -> str:
    """The color as CSS, as it is drawn on light and on dark paper."""
    light, dark = (legible(color, paper) for paper in PAPER)
    return light if light == dark else f"light-dark({light}, {dark})"


def of_run(at: int) -> str:
    """The tone of one run among several."""
    return tone(COLORS[at % len(COLORS)])


def of_classes(count: int) -> list[str]:
    """A tone for each class."""
    if count <= len(CLASSES):
        return [tone(color) for color in CLASSES[:count]]
    return [tone(shade(at / (count - 1))) for at in range(count)]


def shade(share: float) -> str:
    """The color of a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    at = min(int(place), len(SCALE) - 2)
    pairs = zip(_rgb(SCALE[at]), _rgb(SCALE[at + 1]), strict=True)
    return _hex([a + (b - a) * (place - at) for a, b in pairs])


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * one):02x}" for one in rgb)


def _luminance(color: str) -> float:
    parts = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in _rgb(color)]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


# ----------------------------------------------------------------------------------------------------
# What the page's figures show, apart from how they are drawn (`svg`).


def plainly(value: float) -> str:
    """A number on an axis."""
    return f"{value:.6g}"


def percent(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.4g}%"


@dataclass(frozen=True)
class LineSeries:
    """y over x, with a band from `low` to `high` where these are given; tone: a color in CSS."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    tone: str
    dash: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    symbol: ClassVar[str] = "line"


@dataclass(frozen=True)
class Bars:
    """A bar for each name of the panel, with errors up and down where given; pale: drawn with half the color."""

    name: str
    y: Sequence[float]
    tone: str
    errors: Sequence[float] = ()
    pale: bool = False

    @property
    def symbol(self) -> str:
        """The name of its symbol in a legend."""
        return "pale" if self.pale else "bar"


@dataclass(frozen=True)
class Dots:
    """A mark for each name of the panel, or at the places `x` among the names.

    shift: to the right, in widths of a name. wide: horizontal errors. labels: text next to each mark, "" for none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    tone: str
    symbol: str = "circle"
    errors: Sequence[float] = ()
    shift: float = 0.0
    wide: Sequence[float] = ()
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Cloud:
    """Many small marks at (x, y), which share one description."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    tone: str
    symbol: str = "circle"
    errors: ClassVar[Sequence[float]] = ()


Mark = LineSeries | Bars | Dots | Cloud


@dataclass(frozen=True)
class Panel:
    """Marks over names or over numbers.

    title, below, beside: text above, below and next to the panel. names: names across, () for numbers. ticks: {place:
    word} below the axis instead of the names; places between names are allowed. low, high: ends of the vertical axis;
    None follows the marks. levels: heights of dotted horizontal lines. stacked: bars stand on one another, else side by
    side. form, across: formats of numbers on the vertical and the horizontal axis.
    """

    title: str
    marks: tuple[Mark, ...]
    names: tuple[str, ...] = ()
    below: str = ""
    beside: str = ""
    low: float | None = None
    high: float | None = None
    levels: tuple[float, ...] = ()
    stacked: bool = False
    form: Callable[[float], str] = plainly
    across: Callable[[float], str] = plainly
    ticks: Mapping[float, str] = field(default_factory=dict)

    @property
    def below_names(self) -> tuple[str, ...]:
        """The names, if they are written below the axis."""
        return () if self.ticks else self.names


@dataclass(frozen=True)
class Heat:
    """A matrix [r, c] as squares; `rows` and `columns` name them where there are few.

    most: the number with the lightest color. written: of each square, or ().
    """

    title: str
    values: np.ndarray
    most: float
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    below: str = ""
    beside: str = ""
    written: tuple[tuple[str, ...], ...] = ()
    form: Callable[[float], str] = percent


class Key(NamedTuple):
    """An entry of a legend: symbol "line", "bar", "pale" (a bar with half the color) or one of the dots'."""

    name: str
    tone: str
    symbol: str = "bar"
    dash: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels, side by side as far as there is room, under one legend."""

    panels: tuple[Panel | Heat, ...]
    legend: tuple[Key, ...] = ()


def legend_of(marks: Sequence[Mark]) -> tuple[Key, ...]:
    """An entry for every mark, in order, each name once."""
    keys: dict[str, Key] = {}
    for mark in marks:
        keys.setdefault(
            mark.name, Key(mark.name, mark.tone, mark.symbol, mark.dash if isinstance(mark, LineSeries) else "")
        )
    return tuple(keys.values())


# ----------------------------------------------------------------------------------------------------
# Draws a panel as SVG whose colors follow the page, light or dark, and which is no wider than a telephone.


WIDTH, HEIGHT = 364, 250  # a telephone's 400 pixels less the page's margins
SIZE, LETTER = 11, 0.6  # of text; a letter's width to it, on the safe side
NAMED, LONGEST = 20, 16  # names that fit below an axis, and letters of each
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


def panel(shown: Panel | Heat) -> str:
    """The SVG."""
    parts = _heat(shown) if isinstance(shown, Heat) else _panel(shown)
    height, body = next(parts), "".join(parts)
    box = f'viewBox="0 0 {WIDTH} {height}"'
    return f'<svg class="plot" {box} role="img" aria-label="{escape(shown.title or shown.beside)}">{body}</svg>'


def symbol(key: Key) -> str:
    """The small picture of a legend's entry."""
    if key.symbol == "line":
        drawn = f'<path class="line" d="M1 6H23" {_dash(key.dash)}/>'
    elif key.symbol in ("bar", "pale"):
        drawn = f'<rect class="{"bar pale" if key.symbol == "pale" else "bar"}" x="6" y="1" width="11" height="10"/>'
    else:
        drawn = _mark(key.symbol, 12, 6)
    return f'<svg class="key" style="--c:{key.tone}" viewBox="0 0 24 12" aria-hidden="true">{drawn}</svg>'


def _panel(shown: Panel) -> Iterator[str]:
    low, high = _range(shown)
    labels, bottom = _shortened(shown.below_names), _below(shown.below_names, shown.below)
    end = HEIGHT - bottom
    up = Axis(low, high, end, TOP + 14 * bool(shown.beside), parts=5)
    left = max(10 + _wide(max((shown.form(tick) for tick in up.ticks), key=len)), _lean(shown.below_names))
    across = _across(shown, left)
    yield str(HEIGHT)
    yield from _grid(up, left, shown, end)
    if labels:
        yield from _names(labels, [across.place(at) for at in range(len(labels))], end)
    else:
        ticks = shown.ticks or {tick: shown.across(tick) for tick in across.ticks}
        yield from (_text(across.place(at), end + 15, word, "middle") for at, word in ticks.items())
    if shown.below:
        yield _text((left + WIDTH - RIGHT) / 2, HEIGHT - 5, shown.below, "middle")
    yield from (f'<path class="level" d="M{left:.1f} {up.place(at):.1f}H{WIDTH - RIGHT}"/>' for at in shown.levels)
    yield from _bars(shown, across, up)
    for mark in shown.marks:
        if isinstance(mark, LineSeries):
            yield from _line(mark, shown, across, up)
        elif isinstance(mark, Cloud):
            yield _cloud(mark, across, up)
        elif isinstance(mark, Dots):
            yield from (*_dots(mark, shown, across, up), *_labels(mark, across, up))


def _range(shown: Panel) -> tuple[float, float]:
    """The range of the vertical axis: all that is drawn, from 0 where there are bars."""
    heights = [*shown.levels]
    bars = [mark for mark in shown.marks if isinstance(mark, Bars)]
    if bars:
        tops = np.sum([bar.y for bar in bars], 0) if shown.stacked else np.concatenate([_reach(bar, 1) for bar in bars])
        heights += [0.0, *tops]
    for mark in shown.marks:
        if not isinstance(mark, Bars):
            heights += [*_reach(mark, -1), *_reach(mark, 1)]
    finite = [float(height) for height in heights if math.isfinite(height)] or [0.0, 1.0]
    return min(finite) if shown.low is None else shown.low, max(finite) if shown.high is None else shown.high


def _reach(mark: Mark, sign: int) -> np.ndarray:
    if isinstance(mark, LineSeries):
        return np.asarray((mark.low if sign < 0 else mark.high) or mark.y, float)
    result: np.ndarray = np.asarray(mark.y, float) + sign * np.asarray(mark.errors or 0.0, float)
    return result


def _across(shown: Panel, left: float) -> Axis:
    if shown.names:
        return _Places(len(shown.names), left, WIDTH - RIGHT)
    x = [at for mark in shown.marks if isinstance(mark, LineSeries | Dots | Cloud) for at in mark.x] or [0, 1]
    x += [
        at + more for mark in shown.marks if isinstance(mark, Dots) for at, more in zip(mark.x, mark.wide, strict=False)
    ]
    last = Axis(min(0, *x), max(x), left, WIDTH - RIGHT, parts=5)
    room = _wide(shown.across(last.ticks[-1])) / 2  # the last number stands in the middle below its tick
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
    elif len(names) > NAMED:
        tall = 4.0
    else:
        longest = max(map(_wide, _shortened(names)))
        tall = longest * math.sin(math.radians(TURN)) + SIZE if _turned(names) else 16.0
    return tall + (18 if words else 4)


def _turned(names: Sequence[str]) -> bool:
    return max(map(_wide, _shortened(names))) + 6 > (WIDTH - 60) / len(names)


def _lean(names: Sequence[str]) -> float:
    """How far turned names reach to the left of the first."""
    if not 0 < len(names) <= NAMED or not _turned(names):
        return 0.0
    return max(map(_wide, _shortened(names))) * math.cos(math.radians(TURN))


def _shortened(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]


def _wide(text: str) -> float:
    """The width of a text in pixels, on the safe side."""
    return SIZE * LETTER * len(text)


def _names(labels: Sequence[str], places: Sequence[float], end: float) -> Iterator[str]:
    if len(labels) > NAMED:
        return
    for name, x in zip(labels, places, strict=True):
        if _turned(labels):
            yield _text(x + 4, end + 12, name, "end", f' transform="rotate(-{TURN} {x + 4:.1f} {end + 12:.1f})"')
        else:
            yield _text(x, end + 15, name, "middle")


def _grid(up: Axis, left: float, shown: Panel, end: float) -> Iterator[str]:
    for tick in up.ticks:
        yield f'<path class="grid" d="M{left:.1f} {up.place(tick):.1f}H{WIDTH - RIGHT}"/>'
        yield _text(left - 5, up.place(tick) + 4, shown.form(tick), "end")
    yield f'<path class="axis" d="M{left:.1f} {end:.1f}H{WIDTH - RIGHT}"/>'
    if shown.beside:
        yield _text(2, TOP, shown.beside, "start")


def _bars(shown: Panel, across: Axis, up: Axis) -> Iterator[str]:
    bars = [mark for mark in shown.marks if isinstance(mark, Bars)]
    if not bars:
        return
    whole = 0.8 * (across.place(1) - across.place(0))
    width = whole if shown.stacked else whole / len(bars)
    base = np.zeros(len(shown.names))
    for at, bar in enumerate(bars):
        for i, height in enumerate(bar.y):
            if not math.isfinite(height) or height == 0:
                continue
            foot, top = up.place(base[i]), up.place(base[i] + height)
            x = across.place(i) - whole / 2 + (0 if shown.stacked else at * width)
            label = f"{shown.names[i]}{f', {bar.name}' if bar.name else ''}: {shown.form(height)}"
            box = f'x="{x:.1f}" y="{min(foot, top):.1f}" width="{width:.1f}" height="{abs(foot - top):.1f}"'
            kind = "bar pale" if bar.pale else "bar"
            yield f'<rect class="{kind}" style="--c:{bar.tone}" {box}>{_title(label)}</rect>'
            if bar.errors:
                yield _whisker(x + width / 2, height, bar.errors[i], up)
        if shown.stacked:
            base = base + np.nan_to_num(np.asarray(bar.y, float))


def _line(mark: LineSeries, shown: Panel, across: Axis, up: Axis) -> Iterator[str]:
    points = [(across.place(x), up.place(y)) for x, y in zip(mark.x, mark.y, strict=True) if math.isfinite(y)]
    if not points:
        return
    if mark.low:
        edge = [*zip(mark.x, mark.high, strict=True), *[*zip(mark.x, mark.low, strict=True)][::-1]]
        around = _path([(across.place(x), up.place(y)) for x, y in edge])
        yield f'<path class="band" style="--c:{mark.tone}" d="{around}Z"/>'
    last = f"{mark.y[-1]:.4g}" if shown.form is plainly else shown.form(mark.y[-1])
    title = _title(f"{mark.name}: {last} at {shown.across(mark.x[-1])}")
    if len(points) == 1:
        yield f'<g style="--c:{mark.tone}">{_mark("circle", *points[0])}{title}</g>'
    else:
        yield f'<path class="line" style="--c:{mark.tone}" {_dash(mark.dash)} d="{_path(points)}">{title}</path>'


def _dots(mark: Dots, shown: Panel, across: Axis, up: Axis) -> Iterator[str]:
    step = across.place(1) - across.place(0)
    for i, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if not math.isfinite(y):
            continue
        at = across.place(x) + mark.shift * step
        where = shown.names[round(x)] if shown.names else shown.across(x)
        if mark.errors:
            yield _whisker(at, y, mark.errors[i], up)
        if mark.wide:
            ends = (across.place(max(x - mark.wide[i], across.ticks[0])), across.place(x + mark.wide[i]))
            yield f'<path class="axis" d="M{ends[0]:.1f} {up.place(y):.1f}H{ends[1]:.1f}"/>'
        title = _title(f"{where}{f', {mark.name}' if mark.name else ''}: {shown.form(y)}")
        small = " small" if len(mark.x) > 2 * NAMED else ""
        yield f'<g class="dot{small}" style="--c:{mark.tone}">{_mark(mark.symbol, at, up.place(y))}{title}</g>'


SMALL = {
    "circle": "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
    "diamond": "m0 -2.8l2.8 2.8l-2.8 2.8l-2.8 -2.8z",
    "square": "m-2 -2h4v4h-4z",
    "triangle": "m0 -2.8l2.8 5h-5.6z",
    "cross": "m-.8 -2.8h1.6v2h2v1.6h-2v2h-1.6v-2h-2v-1.6h2z",
}


def _cloud(mark: Cloud, across: Axis, up: Axis) -> str:
    points = zip(mark.x, mark.y, strict=True)
    path = "".join(f"M{across.place(x):.1f} {up.place(y):.1f}{SMALL[mark.symbol]}" for x, y in points)
    return f'<path class="bar" style="--c:{mark.tone}" d="{path}">{_title(f"{mark.name}: {len(mark.x):,}")}</path>'


def _labels(mark: Dots, across: Axis, up: Axis) -> Iterator[str]:
    """The labels next to marks; labels that would cover each other share one place."""
    together: dict[tuple[float, float], list[str]] = {}
    for x, y, label in zip(mark.x, mark.y, mark.labels, strict=False):
        at = (across.place(x), up.place(y))
        near = next((place for place in together if max(abs(place[0] - at[0]), abs(place[1] - at[1])) < SIZE), at)
        together.setdefault(near, []).extend([label] if label else [])
    yield from (_text(x + 6, y - 6, ", ".join(labels), "start") for (x, y), labels in together.items() if labels)


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


def _heat(shown: Heat) -> Iterator[str]:
    rows, columns = shown.values.shape
    left = 8 + max(map(_wide, _shortened(shown.rows)), default=0) * (rows <= NAMED) + (14 if shown.beside else 0)
    left = max(left, _lean(shown.columns))
    wide = WIDTH - RIGHT - left
    across = wide / columns
    named = bool(shown.rows) and rows <= NAMED
    down = max(min(across, 230 / rows), SIZE + 3 if named else 0, _wide(shown.beside) / rows)
    top, end = TOP, TOP + rows * down
    height = end + _below(shown.columns, shown.below) + 26
    yield f"{height:.0f}"
    yield from _squares(shown, left, top, across, down)
    if rows <= NAMED:
        at = [top + (row + 0.5) * down + 4 for row in range(len(shown.rows))]
        yield from (_text(left - 5, y, name, "end") for y, name in zip(at, _shortened(shown.rows), strict=True))
    if shown.columns:
        yield from _names(_shortened(shown.columns), [left + (i + 0.5) * across for i in range(columns)], end)
    if shown.below:
        yield _text(left + wide / 2, height - 31, shown.below, "middle")
    if shown.beside:
        yield _text(10, (top + end) / 2, shown.beside, "middle", f' transform="rotate(-90 10 {(top + end) / 2:.1f})"')
    yield from _scale(shown, left, height - 20)


def _squares(shown: Heat, left: float, top: float, across: float, down: float) -> Iterator[str]:
    """A path for each of a few colors, and the numbers in the squares where there is room."""
    share = np.clip(np.nan_to_num(shown.values / (shown.most or 1.0)), 0, 1)
    level = np.minimum((share * LEVELS).astype(int), LEVELS - 1)
    paths: dict[int, str] = {}
    for r, row in enumerate(level):
        begins = np.flatnonzero(np.diff(row, prepend=-1)).tolist()  # of runs of one color
        for begin, end in pairwise([*begins, len(row)]):
            wide = (end - begin) * across
            box = f"M{left + begin * across:.1f} {top + r * down:.1f}h{wide:.1f}v{down:.1f}h-{wide:.1f}z"
            paths[row[begin]] = paths.get(row[begin], "") + box
    yield from (f'<path fill="{shade(at / (LEVELS - 1))}" d="{path}"/>' for at, path in sorted(paths.items()))
    if not shown.written or across < SQUARE or down < SIZE + 2:
        return
    for r, row in enumerate(shown.written):
        for c, text in enumerate(row):
            written = ink(shade(level[r, c] / (LEVELS - 1)))
            x, y = left + (c + 0.5) * across, top + (r + 0.5) * down + 4
            yield _text(x, y, text, "middle", f' style="fill:{written}"')


def _scale(shown: Heat, left: float, y: float) -> Iterator[str]:
    """What the colors mean."""
    first, last = shown.form(0), shown.form(shown.most)
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
