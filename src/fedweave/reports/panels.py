"""What the page's figures show: panels of marks. `reports.drawing` draws them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np


def plain_number(value: float) -> str:
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

    wide: horizontal errors. labels: text next to each mark, "" for none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    tone: str
    symbol: str = "circle"
    errors: Sequence[float] = ()
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
    None follows the marks. levels: heights of dotted horizontal lines. line_at: place and name of a vertical line.
    stacked: bars stand on one another, else side by side. form, across: formats of numbers on the vertical and the
    horizontal axis.
    """

    title: str
    marks: tuple[Mark, ...]
    names: tuple[str, ...] = ()
    below: str = ""
    beside: str = ""
    low: float | None = None
    high: float | None = None
    levels: tuple[float, ...] = ()
    line_at: tuple[float, str] | None = None
    stacked: bool = False
    form: Callable[[float], str] = plain_number
    across: Callable[[float], str] = plain_number
    ticks: Mapping[float, str] = field(default_factory=dict)

    @property
    def below_names(self) -> tuple[str, ...]:
        """The names, if they are written below the axis."""
        return () if self.ticks else self.names


@dataclass(frozen=True)
class Heat:
    """A matrix [r, c] as squares; `rows` and `columns` name them where there are few.

    top: the number with the lightest color. texts: of each square, or ().
    """

    title: str
    values: np.ndarray
    top: float
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    below: str = ""
    beside: str = ""
    texts: tuple[tuple[str, ...], ...] = ()
    form: Callable[[float], str] = percent


class ForestRow(NamedTuple):
    """A row of a forest plot: a value and the ends of its interval, if known; `text` is written beside it.

    other: a further value, such as that of the same member alone; None for none.
    """

    name: str
    value: float
    text: str
    tone: str
    low: float | None = None
    high: float | None = None
    other: float | None = None


@dataclass(frozen=True)
class ForestPlot:
    """Values with intervals, a row for each, one below the other.

    level: the place of a vertical line; None for none. sides: words to the left and to the right of that line. below:
    text below the axis. other_tone: of the further values.
    """

    title: str
    rows: tuple[ForestRow, ...]
    level: float | None = None
    sides: tuple[str, str] = ("", "")
    below: str = ""
    other_tone: str = ""


class Key(NamedTuple):
    """An entry of a legend: symbol "line", "bar", "pale" (a bar with half the color) or one of the dots'."""

    name: str
    tone: str
    symbol: str = "bar"
    dash: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels, side by side as far as there is room, under one legend."""

    panels: tuple[Panel | Heat | ForestPlot, ...]
    legend: tuple[Key, ...] = ()


def legend_of(marks: Sequence[Mark]) -> tuple[Key, ...]:
    """An entry for every mark, in order, each name once."""
    keys: dict[str, Key] = {}
    for mark in marks:
        dash = mark.dash if isinstance(mark, LineSeries) else ""
        keys.setdefault(mark.name, Key(mark.name, mark.tone, mark.symbol, dash))
    return tuple(keys.values())
