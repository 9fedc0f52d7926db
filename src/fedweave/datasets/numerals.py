"""Labels are whole numbers that count classes, or names: other numbers, such as measurements, are neither unless their
owner says so."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.check import first
from fedweave.datasets.table import DECIMAL_COMMA, WHOLE, Table

NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"

FEW = 1000  # classes, which may be empty as far as there are rows for them
FILLED = 0.01  # the least share of more classes that has a row


def refuse_stray(y: np.ndarray, refuse_at: Callable[[int, str], None]) -> None:
    """Refuse classes int64 [m], -1 is unlabelled, of which the highest would leave nearly all below it empty; by
    `refuse_at` with the row and what is wrong.

    Raises:
        DataError: by `refuse_at`.
    """
    classes = int(y.max(initial=-1)) + 1
    if classes <= len(y) and classes <= FEW:
        return
    held = len(np.unique(y[y >= 0]))
    if classes > len(y) or held < FILLED * classes:
        row = int(y.argmax())
        refuse_at(row, f"label {y[row]} would make {classes:,} classes, of which {held:,} occur among {len(y):,} rows")


def labels_in(table: Table, key: str) -> pa.Array:
    """The cells of the column "label" as strings, null where empty; `key` in [data] can list what they are.

    Raises:
        DataError: the column holds fractions, in a type of numbers; names file and row.
    """
    return table.texts("label", _remedy(key))


def refuse_numerals(table: Table, key: str) -> None:
    """Refuse numbers in the column "label" that are not written as whole ones, where `key` in [data] lists no names:
    each would be a name of its own, next to which 1 and 1.0 are two.

    Raises:
        DataError: names file, row and how many there are.
    """
    cells = labels_in(table, key)
    forms = "|".join((NUMBER, DECIMAL_COMMA))
    number, whole = (np.asarray(pc.match_substring_regex(cells, form).fill_null(False)) for form in (forms, WHOLE))
    bad = number & ~whole
    if (row := first(bad)) is not None:
        more = int(bad.sum()) - 1
        rest = (
            f" (and so {'are' if more > 1 else 'is'} {more:,} more of {table.rows:,} {table.counted})" if more else ""
        )
        what = f"label is {cells[row].as_py()!r}, a number, but not one like 0, 1 or 2{rest}"
        table.refuse_at(row, what, _remedy(key))


def _remedy(key: str) -> str:
    return (
        "Round or bin such numbers into whole ones from 0; if they are names, give them as text and list all of them "
        f"in data.{key}."
    )
