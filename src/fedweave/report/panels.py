"""What the page's figures show, apart from how they are drawn (`svg`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np


def plainly(value: float) -> str:
    """A number on an axis."""
    return f"{value:.6g}"


def percent(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.4g}%"


@dataclass(frozen=True)
class Line:
    """y over x, with a band from `low` to `high` where these are given; tone: a colour in CSS."""

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
    """A bar for each name of the panel, with errors up and down where given; pale: drawn with half the colour."""

    name: str
    y: Sequence[float]
    tone: str
    errors: Sequence[float] = ()
    pale: bool = False

    @property
    def symbol(self) -> str:
        """In a legend."""
        return "pale" if self.pale else "bar"


@dataclass(frozen=True)
class Dots:
    """A mark for each name of the panel (at `x`, places among them); shift: to the right, in widths of a name. wide: of
    the errors to left and right. labels: what stands beside each mark, "" is nothing."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    tone: str
    symbol: str = "circle"
    errors: Sequence[float] = ()
    shift: float = 0.0
    wide: Sequence[float] = ()
    labels: Sequence[str] = ()


Mark = Line | Bars | Dots


@dataclass(frozen=True)
class Panel:
    """Marks over names or over numbers.

    title, below, beside: words above, under and beside it. names: what stands across, () for numbers. ticks: {place:
    word} below the axis in place of the names, places among which need not be whole.
    low, high: of the upright axis; None follows the marks. levels: heights of dotted lines across.
    stacked: bars stand on one another, else side by side. form: of numbers on the upright axis.
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
    ticks: Mapping[float, str] = field(default_factory=dict)

    @property
    def below_names(self) -> tuple[str, ...]:
        """The names, if they are written below the axis."""
        return () if self.ticks else self.names


@dataclass(frozen=True)
class Heat:
    """A matrix [r, c] as squares; `rows` and `columns` name them where there are few.

    most: the number with the lightest colour. written: of each square, or ().
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
    """An entry of a legend: symbol "line", "bar", "pale" (a bar with half the colour) or one of the dots'."""

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
    found: dict[str, Key] = {}
    for mark in marks:
        found.setdefault(mark.name, Key(mark.name, mark.tone, mark.symbol, mark.dash if isinstance(mark, Line) else ""))
    return tuple(found.values())
