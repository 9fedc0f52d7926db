"""Feature columns that give away the sensitive attribute or the class of an example."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse


def group_columns(x: Matrix, groups: np.ndarray) -> np.ndarray:
    """int64 [k]: the columns of x [n, d] that equal the groups int64 [n] up to their numbers: one value for each group,
    over the rows of known group (not below 0). Empty if there is only one group, or a group of one row.

    groups: sensitive groups, or classes.
    """
    rows = [np.flatnonzero(groups == group) for group in np.unique(groups[groups >= 0])]
    if len(rows) < 2 or min(map(len, rows)) < 2:
        return np.zeros(0, np.int64)
    low, high = _bounds(x, rows)
    is_constant = (low == high).all(0)  # [d], within each group
    is_distinct = (np.diff(np.sort(low, 0), axis=0) > 0).all(0)  # [d], between groups
    return np.flatnonzero(is_constant & is_distinct)


def separating_columns(x: Matrix, y: np.ndarray, min_examples: int) -> np.ndarray:
    """int64 [k]: the columns of x [n, d] that separate the classes of y int64 [n] by disjoint ranges of numbers. Empty
    if there is only one class, or one of fewer than `min_examples` examples, where this may be chance."""
    rows = [np.flatnonzero(y == c) for c in np.unique(y[y >= 0])]
    if len(rows) < 2 or min(map(len, rows)) < min_examples:
        return np.zeros(0, np.int64)
    low, high = _bounds(x, rows)
    order = np.argsort(low, 0)  # [classes, d]: in each column, classes from the lowest range to the highest
    low, high = np.take_along_axis(low, order, 0), np.take_along_axis(high, order, 0)
    return np.flatnonzero((low[1:] > high[:-1]).all(0))


def _bounds(x: Matrix, groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest numbers [groups, d] of each column in each group of rows."""
    low, high = list[np.ndarray](), list[np.ndarray]()
    for rows in groups:
        part = x[rows]
        low.append(_row(part.min(0)))
        high.append(_row(part.max(0)))
    return np.stack(low), np.stack(high)


def _row(values: Matrix) -> np.ndarray:
    """A row [1, d] or [d] of either type of matrix as an array [d]."""
    return values if isinstance(values, np.ndarray) else values.toarray()[0]


def refuse_group_columns(x: Matrix, sensitive: np.ndarray | None, names: Sequence[str], where: str | Path) -> None:
    """Reject features x [n, d] if a column is the sensitive attribute; `names` are the columns' names, or () to number
    them from 0.

    Raises:
        DataError: names the first such column.
    """
    columns = np.zeros(0, np.int64) if sensitive is None else group_columns(x, sensitive)
    if len(columns):
        name = repr(names[columns[0]]) if names else str(columns[0])
        what = f"the feature column {name} equals the sensitive attribute (sens)"
        remedy = (
            "Remove it: the sensitive attribute is not an input of a model. To train on it all the same, set [data] "
            "sens_feature = true."
        )
        refuse(where, what, remedy, "sens-repeated")


def check_sensitive(data: Dataset, where: str | Path, sens_feature: bool) -> Dataset:
    """`data`, if none of its features is the sensitive attribute, or `sens_feature` allows that. Nodes of small graphs
    have their graph's group.

    Raises:
        DataError: a feature is the sensitive attribute.
    """
    if not sens_feature:
        x, sensitive, names = _features_and_groups(data)
        refuse_group_columns(x, sensitive, names, where)
    return data


def has_sensitive_feature(data: Dataset) -> bool:
    """Whether one of the features is the sensitive attribute."""
    x, sensitive, _ = _features_and_groups(data)
    return sensitive is not None and len(group_columns(x, sensitive)) > 0


def _features_and_groups(data: Dataset) -> tuple[Matrix, np.ndarray | None, Sequence[str]]:
    """Features [n, d], the sensitive group [n] of each row, if there are groups, and the names of the features. Rows
    are edges where these are the examples, otherwise nodes; nodes of small graphs have their graph's group."""
    if data.edge_attrs is not None and data.edge_attrs.examples:
        features = data.edge_attrs.features
        x = np.zeros((data.examples, 0), np.float32) if features is None else features
        return x, data.sensitive, data.edge_attrs.columns
    sensitive = data.sensitive
    if sensitive is not None and data.graph_of is not None:
        sensitive = sensitive[data.graph_of]
    return data.x, sensitive, data.columns
