"""The columns of a table as a model reads them: which of the model's columns each became, what is typical of it, and
what it says in the data's units."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedweave.apply.case import Case
from fedweave.core.edge_attributes import format_date
from fedweave.core.graph_arrays import dense
from fedweave.datasets import contents
from fedweave.datasets.edges import scaling_numbers
from fedweave.metrics.selection import HALF

MISSING = " is missing"  # at the end of a column that says where another had no value
_NO_ROWS = np.zeros((1, 0), np.float32)


class Columns:
    """The columns of nodes, or of edges.

    names:   of the model's d columns. groups: {column of a table: the places of what it became}.
    typical: float32 [d]: the median of each column; of categories, the most frequent row of theirs.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: "np.ndarray | sp.csr_matrix",
        shift: np.ndarray | None = None,
        divisor: np.ndarray | None = None,
        asinh: np.ndarray | None = None,
        dates: str = "",
    ) -> None:
        """rows: float32 [m, d], those that are typical. shift, divisor: float64 [d], by which values were scaled, and
        asinh: bool [d] (`datasets.features.ScalingNumbers`), but with a divisor of 0 where all are one number; None
        where they were not. dates: the column of dates, or ""."""
        self.names, self._dates = names, dates
        self._shift = np.zeros(len(names)) if shift is None else shift
        self._divisor = np.ones(len(names)) if divisor is None else divisor
        self._asinh = np.zeros(len(names), bool) if asinh is None else asinh
        self.groups: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            bare = name.removesuffix(MISSING)
            group = contents.column(name).of or (bare if bare in names else name)
            self.groups.setdefault(group, []).append(at)
        self.typical = _medians(rows)
        for columns in self.groups.values():
            if contents.column(names[columns[0]]).of:
                values, count = np.unique(dense(rows[:, columns]), axis=0, return_counts=True)
                self.typical[columns] = values[::-1][
                    count[::-1].argmax()
                ]  # of equally frequent ones the first category

    def text_of(self, columns: list[int], row: np.ndarray) -> str:
        """What the columns of one group say in a row [d], in the data's units."""
        values = row[columns] * self._divisor[columns] + self._shift[columns]
        by_asinh = self._asinh[columns]
        values[by_asinh] = np.sinh(values[by_asinh])
        contents_of = [contents.column(self.names[at]) for at in columns]
        present = [column for column, value in zip(contents_of, values, strict=True) if value > HALF]
        if contents_of[0].of:
            return ", ".join(column.value for column in present) or "none"
        if any(column.name.endswith(MISSING) for column in present):
            return "missing"
        return format_date(values[0]) if contents_of[0].name == self._dates else f"{values[0]:.6g}"


def _medians(rows: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """float32 [d], of the columns of rows [m, d]."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.median(rows, axis=0), np.float32)
    medians = np.zeros(rows.shape[1], np.float32)
    often = np.flatnonzero(2 * rows.getnnz(0) > rows.shape[0])  # the others are 0 in half of the rows or more
    medians[often] = np.median(dense(rows[:, often]), axis=0)
    return medians


def node_columns(case: Case, used: np.ndarray) -> Columns:
    """The columns of a case's nodes. used: bool [e], the examples that are typical."""
    if case.learned:
        return Columns((), _NO_ROWS)
    data, scaling = case.data, case.form.scaling
    names = list(case.form.columns) or list(contents.names(data))
    if data.graph_of is not None:
        rows = np.flatnonzero(used[data.graph_of])
    elif data.example == "edge" and data.edge_attrs is not None:
        rows = np.unique(data.edge_attrs.ends[:, used])
    else:
        rows = np.flatnonzero(used)
    if not len(scaling.get("shift", ())):
        return Columns(names, data.x[rows])
    shift = np.array([value or 0.0 for value in scaling["shift"]])
    divisor = np.array([value or 0.0 for value in scaling["divisor"]])
    asinh = np.array(scaling["asinh"], bool) if "asinh" in scaling else None
    return Columns(names, data.x[rows], shift, divisor, asinh)


def edge_columns(case: Case, used: np.ndarray) -> Columns:
    """The columns of a case's edges. used: bool [e], the examples that are typical."""
    attributes = case.data.edge_attrs
    if attributes is None or attributes.features is None:
        return Columns((), _NO_ROWS)
    names = attributes.columns or tuple(f"edge feature {at}" for at in range(attributes.width))
    shift, divisor, asinh = scaling_numbers(attributes)
    divisor = np.where(np.isinf(divisor), 0, divisor)
    rows = attributes.features[used if attributes.examples else slice(None)]
    return Columns(names, rows, shift, divisor, asinh, attributes.dates)
