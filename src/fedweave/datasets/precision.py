"""Features are kept as float32, which makes one value of several that are large and close to each other."""

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa

BLUR = 0.01  # of a column's standard deviation: rounding up to here loses nothing that a model could learn
NOISE = 1e-12  # of a column's largest number: differences up to here are float64's own rounding
EXACT = 2.0**53  # whole numbers from here on are one in float64 already
INTEGER = r"^\s*[+-]?\d+(\.0*)?\s*$"


def exact(cells: pa.Array, values: np.ndarray) -> np.ndarray:
    """What `merged` is to look at of a column's `cells`, of which `values` float64 [n] were made: themselves, or all
    digits where cells are whole numbers beyond those that float64 tells apart."""
    if pa.types.is_floating(cells.type) or np.abs(values).max(initial=0) < EXACT:
        return values
    digits = [_digits(cell) for cell in cells.to_pylist()]
    return values if None in digits else np.array(digits, object)


def _digits(cell: str | int | Decimal) -> int | None:
    """The whole number in a cell; None where it is not whole, or written otherwise."""
    if isinstance(cell, str):
        return int(cell.partition(".")[0]) if re.match(INTEGER, cell) else None
    return int(cell) if cell == int(cell) else None


def merged(values: np.ndarray) -> tuple[int, int] | None:
    """Two rows of numbers [n], which may be Python's of any length, whose different values are one in float32, where
    rounding to it blurs the column, the later row first; None where it does not, as in a constant column."""
    if len(values) == 0 or np.can_cast(values.dtype, np.float32):
        return None
    if values.dtype.kind in "iu" and np.abs(values.astype(np.float64)).max() >= EXACT:
        values = values.astype(object)
    long = values.dtype == object
    values = values if long else values.astype(np.float64)
    narrow = values.astype(np.float32)
    lost = values - (np.array([int(number) for number in narrow], object) if long else narrow)
    if float(np.abs(lost).max()) <= BLUR * (values - values.min()).astype(np.float64).std():
        return None
    if not long and np.ptp(values) <= NOISE * np.abs(values).max() and (values % 1 != 0).any():
        return None
    order = np.argsort(values, kind="stable")
    one = (np.diff(values[order]) > 0) & (np.diff(narrow[order]) == 0)
    at = int(one.argmax()) if one.any() else None
    return None if at is None else (int(order[at : at + 2].max()), int(order[at : at + 2].min()))


def refuse_merged(values: np.ndarray, name: str, refuse_at: Callable[[int, str, str], None]) -> None:
    """Refuse finite numbers [n] that `merged` finds, by `refuse_at` with the row, what is wrong and what to do.

    Raises:
        DataError: by `refuse_at`.
    """
    if (rows := merged(values)) is None:
        return
    value, other = values[rows[0]], values[rows[1]]
    least = values.min()
    move = "Multiply it by a number" if float(np.abs(values).max()) < np.finfo(np.float32).tiny else f"Subtract {least}"
    refuse_at(
        rows[0],
        f"{name} is {value}, which float32 cannot tell from {other}, so that the column loses its differences",
        f"{move} in every row, the same wherever this column is.",
    )
