"""Features are kept as float32, which makes one value of several that are large and close to each other."""

from collections.abc import Callable

import numpy as np

BLUR = 0.01  # of a column's standard deviation: rounding up to here loses nothing that a model could learn
NOISE = 1e-12  # of a column's largest number: differences up to here are float64's own rounding


def merged(values: np.ndarray) -> tuple[int, int] | None:
    """Two rows of float64 [n] whose different values are one in float32, where rounding to it blurs the column, the
    later row first; None where it does not, as in a constant column."""
    if len(values) == 0 or np.can_cast(values.dtype, np.float32):
        return None
    values = values.astype(np.float64)
    narrow = values.astype(np.float32)
    if np.abs(values - narrow).max() <= BLUR * values.std():
        return None
    if np.ptp(values) <= NOISE * np.abs(values).max() and (values % 1 != 0).any():
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
    move = "Multiply it by a number" if np.abs(values).max() < np.finfo(np.float32).tiny else f"Subtract {least}"
    refuse_at(
        rows[0],
        f"{name} is {value}, which float32 cannot tell from {other}, so that the column loses its differences",
        f"{move} in every row, the same wherever this column is.",
    )
