"""Cells of tables: how numbers are written, which way is better, and what stands for a missing one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedweave.metrics.judging import OF_POSITIVE, PLAIN
from fedweave.metrics.paired import surely_above
from fedweave.report.reading import spread

NONE = "-"

# Which way is better, by the last part of a metric's name; others are not marked.
HIGHER = (
    *("accuracy", "f1", "macro_f1", "auc", "worst_accuracy", "best_accuracy"),
    *("test_loss_entropy", "tradeoff_accuracy", "tradeoff_auc", "tradeoff_skill", "pearson"),
    *(f"{kind}{name}" for name in (*OF_POSITIVE, "recall_at_5") for kind in ("", "worst_", "best_")),
)
ACCURACIES = (*("accuracy", "f1", "worst_accuracy", "best_accuracy"), *("accuracy_deviation", "tradeoff_accuracy"))
LOWER = ("loss", "brier", "calibration_error", "test_loss_variance", "accuracy_deviation", "sp", "eo", "equalised_odds")


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the unrounded value (shown on pointing at it), small print, and whether it is the best."""

    text: str
    exact: str = ""
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table; its first `words` columns hold words, the others numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def measured(values: Sequence[float | None], form: Callable[[float], str]) -> Cell:
    """One value, or mean ± sample standard deviation over the runs where it is defined."""
    mean, deviation, n = spread(values)
    if not n:
        return Cell(NONE)
    note = f"in {n} of {len(values)} runs" if n < len(values) else ""
    exact = ", ".join(NONE if value is None else repr(value) for value in values)
    if n == 1:
        return Cell(form(mean), exact, note)
    digits = f"{deviation:.4f}" if form is number and abs(mean) >= 0.001 and deviation >= 0.00005 else form(deviation)
    return Cell(f"{form(mean)} ± {digits if deviation else 0}", exact, note)


def number(value: float) -> str:
    """Four decimals, or three digits of what is smaller than that can show."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.2e}"


def signed(value: float) -> str:
    """A difference with its sign."""
    return ("+" if value >= 0 else "\N{MINUS SIGN}") + number(abs(value))


def judging(by: str) -> tuple[str, ...]:
    """The metrics, by the last part of their names, that say which of two runs is better where they are judged `by`
    one: no accuracies where that is another."""
    return tuple(name for name in HIGHER + LOWER if by == PLAIN or name not in ACCURACIES)


def marked(cells: list[Cell], values: Sequence[Mapping[Any, float]], last: str, by: str = PLAIN) -> list[Cell]:
    """Mark what is better than every other by a paired test over seeds (`metrics.paired.surely_above`); nothing of one
    seed. values: {seed: value} of each cell."""
    if last not in judging(by):
        return cells
    sign = 1 if last in HIGHER else -1
    oriented = [{seed: sign * value for seed, value in own.items()} for own in values]
    best = [
        len(oriented) > 1 and all(surely_above(own, other) for j, other in enumerate(oriented) if j != i)
        for i, own in enumerate(oriented)
    ]
    return [replace(cell, best=is_best) for cell, is_best in zip(cells, best, strict=True)]
