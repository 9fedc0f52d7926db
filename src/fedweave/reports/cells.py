"""Cells of tables: how numbers are written, which direction is better, and how a missing number is shown."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.filesize import decimal

from fedweave.experiment.runs.reading import spread
from fedweave.metrics.selection import BEST, CROSSING, OF_POSITIVE, PLAIN, REFERENCE, SHELF, SHELF_JOINT
from fedweave.reports.paired import paired_differences, paired_test
from fedweave.reports.result_names import better, note

NONE = "-"
MAX_ROWS = 25  # at either end of a long table
_ZERO = 1e-9  # below it a number is as good as 0
_PLAIN_NUMBER = re.compile(r"[-\N{MINUS SIGN}+]?[\d,]+(\.\d+)?")

ACCURACIES = ("accuracy", "f1", "worst_accuracy", "best_accuracy", "accuracy_deviation", "tradeoff_accuracy")
ALERT_METRICS = ("recall_at_1", "precision_at_1")  # of a class that is looked for
THRESHOLD_METRICS = ("pooled/threshold", "pooled/recall", "pooled/precision", "pooled/flagged")  # of the same class


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the unrounded value (shown on pointing at it), small print, and whether it is the best."""

    text: str
    exact: str = ""
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table; its first `words` columns hold words, the others numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def row_of(*values: str | Cell) -> tuple[Cell, ...]:
    """A row; plain text becomes a cell."""
    return tuple(value if isinstance(value, Cell) else Cell(value) for value in values)


def shorten(rows: Sequence[tuple[Cell, ...]]) -> tuple[tuple[Cell, ...], ...]:
    """The rows; of a long table the first and the last `MAX_ROWS`, and between them a row with the number of rows left
    out."""
    omitted = len(rows) - 2 * MAX_ROWS
    if omitted <= MAX_ROWS:
        return tuple(rows)
    between = (Cell(f"… {omitted:,} more"), *[Cell("")] * (len(rows[0]) - 1))
    return (*rows[:MAX_ROWS], between, *rows[-MAX_ROWS:])


def number_cell(value: float | None, note: str = "", form: "Callable[[float], str] | None" = None) -> Cell:
    """A number with its unrounded value; `NONE` for None. form: `number`, unless another is given."""
    return Cell(NONE) if value is None else Cell((form or number)(value), repr(value), note)


def mean_cell(values: Sequence[float | None], form: Callable[[float], str]) -> Cell:
    """One value, or mean ± sample standard deviation over the runs where it is defined."""
    mean, deviation, count = spread(values)
    if not count:
        return Cell(NONE)
    text = form(mean)
    if count > 1:
        decimals = len(text.partition(".")[2])
        smallest = 10.0**-decimals
        if not _PLAIN_NUMBER.fullmatch(text):
            error = form(deviation)
        elif deviation and deviation < smallest / 2:
            error = f"<{smallest:.{decimals}f}"
        else:  # as many decimals as the mean has
            error = f"{deviation:,.{decimals}f}" if deviation else "0"
        text += f" ± {error}"
    exact = ", ".join(NONE if value is None else repr(value) for value in values)
    return Cell(text, exact, f"in {count} of {len(values)} runs" if count < len(values) else "")


def number(value: float) -> str:
    """A number with four decimals; a smaller one with as few decimals as show two digits."""
    decimals = 4
    if _ZERO <= abs(value) < 0.001:
        decimals = 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}"


def tenths(value: float) -> str:
    """A number with one decimal, such as a mean of counts over clients."""
    return f"{value:,.1f}"


def count_text(value: float) -> str:
    """A count or, of several runs, a mean of counts."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def bytes_text(value: float) -> str:
    """A number of bytes, or a mean of such numbers."""
    return decimal(round(value))


def with_sign(value: float, form: Callable[[float], str] = number) -> str:
    """A difference with its sign."""
    return ("+" if value >= 0 else "\N{MINUS SIGN}") + form(abs(value))


def interval_text(low: float | None, high: float | None, unknown: str = "") -> str:
    """ "+0.0100 to +0.0200"; `unknown` where there is no interval."""
    return unknown if low is None or high is None else f"{with_sign(low)} to {with_sign(high)}"


def direction(name: str, selection_metric: str) -> int:
    """1 where higher values of a metric are better, -1 where lower ones are, 0 where it does not decide between two
    runs.

    No accuracy decides between runs whose selection metric is another one.
    """
    if selection_metric != PLAIN and name.rpartition("/")[2] in ACCURACIES:
        return 0
    return {"high": 1, "low": -1, "": 0}[better(name)]


def mark_best(
    cells: list[Cell], values: Sequence[Mapping[object, float]], name: str, selection_metric: str = PLAIN
) -> list[Cell]:
    """Mark the cell that a paired test over seeds (`paired_test`) shows better than every other.

    values: {seed: value} for each cell. name: of the metric.
    """
    sign = direction(name, selection_metric)
    if not sign:
        return cells
    result = []
    for index, cell in enumerate(cells):
        best = len(cells) > 1
        for other, scores in enumerate(values):
            if other != index:
                best = best and paired_test(paired_differences(values[index], scores)) == sign
        result.append(replace(cell, best=best))
    return result


def is_main(name: str, selection_metric: str) -> bool:
    """Whether a metric of the summary is among the main ones, which are shown first.

    All metrics are, except where a positive class is looked for: there only the selection metric and metrics of
    alerts.
    """
    if selection_metric not in OF_POSITIVE:
        return True
    return name.rpartition("/")[2] in (selection_metric, *ALERT_METRICS) or name in THRESHOLD_METRICS


def explanation(name: str) -> str:
    """What a metric is, in any round."""
    name_in_round, last = name.removeprefix(f"{BEST}/"), name.rpartition("/")[2]
    if last.startswith("undefined_"):
        return note(last) or "without a positive test example, or a score: in no mean over clients of these metrics"
    if name_in_round.startswith(f"{SHELF}/pooled/"):
        return "member mean of tools that learn from all members' examples together"
    if name_in_round.startswith(f"{SHELF_JOINT}/"):
        return "member mean of tools that may also read the global model's columns"
    if name_in_round.startswith(f"{SHELF}/"):
        return "member mean of tools that each member trains alone"
    if name_in_round.startswith(f"{CROSSING}/"):
        return "of test pairs with one end at another member, at each member that knows the pair"
    if name_in_round.startswith(f"{REFERENCE}/"):
        return "of a score that knows only the training edges, on the same test pairs"
    return note(name_in_round)
