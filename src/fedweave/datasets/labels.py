"""The column of labels: whole numbers that count classes, or names. Other numbers are refused."""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.cells import DECIMAL_COMMA, NUMBER
from fedweave.datasets.check import first
from fedweave.datasets.table import WHOLE, Table

MAX_GAPS = 1000  # classes, which may be empty as far as there are rows for them
MIN_FILLED = 0.01  # the least share of more classes that has a row


def refuse_stray(y: np.ndarray, refuse_at: Callable[[int, str], None]) -> None:
    """Reject classes int64 [m], -1 is unlabeled, if the highest would leave nearly all below it empty; calls
    `refuse_at` with the row and the problem."""
    classes = int(y.max(initial=-1)) + 1
    if classes <= len(y) and classes <= MAX_GAPS:
        return
    occurring = len(np.unique(y[y >= 0]))
    if classes > len(y) or occurring < MIN_FILLED * classes:
        row = int(y.argmax())
        refuse_at(row, f"label {y[row]} would make {classes:,} classes; only {occurring:,} occur among {len(y):,} rows")


def labels_in(table: Table, key: str) -> pa.Array:
    """The cells of the column "label" as strings, null where empty; `key` in [data] can list what they are."""
    return table.texts("label", _remedy(key))


# "[0, 1, 0]", "[0 1 0]", "0;1;0", "3|7", "0,1,0", "0 1 0": one decimal comma is none of them
SEVERAL = (
    r"^\s*([\[({]\s*(.*[,;|].*|\d+(\s+\d+)+)\s*[\])}]|\d+(\s*[;|]\s*\d+)+|\d+(\s*,\s*\d+){2,}|\d+(\s+\d+){2,})\s*$"
)


def refuse_several(table: Table, key: str) -> None:
    """Refuse several targets in one cell of the column "label", where `key` in [data] lists no names: each combination
    would be a class of its own. Targets are numbers, a list in brackets, or names that other cells hold by themselves.
    """
    cells = labels_in(table, key)
    names = set(cells.drop_null().unique().to_pylist())
    several = list[str]()
    for name in names:
        parts = re.split(r"\s*[,;|]\s*", name)
        if re.match(SEVERAL, name) or (len(parts) > 1 and names.issuperset(parts)):
            several.append(name)
    remedy = f"If such cells are names, list all of them in data.{key}."
    if key == "labels":  # of the examples; labels of nodes and edges of small graphs are not targets
        columns = "a column of its own, 1 or 0, and set data.target = 'labels' and data.targets to these columns"
        remedy = f"Give each label {columns}. {remedy}"
    bad = np.asarray(pc.is_in(cells, pa.array(several, pa.string())))
    _refuse_labels(table, cells, bad, "several targets in one cell", remedy)


def refuse_numerals(table: Table, key: str) -> None:
    """Refuse numbers in the column "label" that are not written as whole ones, where `key` in [data] lists no names:
    each would be a name of its own, next to which 1 and 1.0 are two."""
    cells = labels_in(table, key)
    forms = "|".join((NUMBER, DECIMAL_COMMA))
    number, whole = (np.asarray(pc.match_substring_regex(cells, form).fill_null(False)) for form in (forms, WHOLE))
    _refuse_labels(table, cells, number & ~whole, "a number, but not one like 0, 1 or 2", _remedy(key))


def _refuse_labels(table: Table, cells: pa.Array, bad: np.ndarray, what: str, remedy: str) -> None:
    """Refuse the first label of those that are True in bool [rows], and say how many more there are."""
    row, more = first(bad), int(bad.sum()) - 1
    if row is not None:
        verb = "are" if more > 1 else "is"
        rest = f" (and so {verb} {more:,} more of {table.rows:,} {table.counted})" if more else ""
        table.refuse_at(row, f"label is {cells[row].as_py()!r}, {what}{rest}", remedy)


def _remedy(key: str) -> str:
    predicted = 'To predict numbers: [data] target = "number". To predict classes: ' if key == "labels" else ""
    return (
        f"{predicted}Round or bin such numbers into whole ones from 0; if they are names, give them as text and list "
        f"all of them in data.{key}."
    )
