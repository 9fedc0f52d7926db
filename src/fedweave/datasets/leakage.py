"""Feature columns that give away the sensitive attribute or the class of an example."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse


def group_columns(x: Matrix, sensitive: np.ndarray) -> np.ndarray:
    """int64, the columns of x [n, d] that number the groups `sensitive` int64 [n], over nodes of known group: one
    value within each group, another in every other. None if there is only one group, or a group of one node."""
    groups = [np.flatnonzero(sensitive == s) for s in np.unique(sensitive[sensitive >= 0])]
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return np.zeros(0, np.int64)
    low, high = _bounds(x, groups)
    different = (np.diff(np.sort(low, 0), axis=0) > 0).all(0)
    return np.flatnonzero((low == high).all(0) & different)


def separating_columns(x: Matrix, y: np.ndarray, min_examples: int) -> np.ndarray:
    """int64, the columns of x [n, d] that separate the classes of y int64 [n] by disjoint ranges of numbers. None if
    there is only one class, or one of fewer than `min_examples` examples, where this may be chance."""
    classes = [np.flatnonzero(y == c) for c in np.unique(y[y >= 0])]
    if len(classes) < 2 or min(map(len, classes)) < min_examples:
        return np.zeros(0, np.int64)
    low, high = _bounds(x, classes)
    order = np.argsort(low, 0)
    low, high = np.take_along_axis(low, order, 0), np.take_along_axis(high, order, 0)
    return np.flatnonzero((low[1:] > high[:-1]).all(0))


def _bounds(x: Matrix, groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest numbers [groups, d] of each column in each group of rows."""
    low, high = list[np.ndarray](), list[np.ndarray]()
    for rows in groups:
        for bounds, of_columns in ((low, x[rows].min(0)), (high, x[rows].max(0))):
            bounds.append(of_columns.toarray()[0] if sp.issparse(of_columns) else of_columns)
    return np.stack(low), np.stack(high)


def refuse_group_columns(x: Matrix, sensitive: np.ndarray | None, names: Sequence[str], where: str | Path) -> None:
    """Reject features x [n, d] if a column is the sensitive attribute; `names` are the columns' names, or () to number
    them from 0."""
    columns = np.zeros(0, np.int64) if sensitive is None else group_columns(x, sensitive)
    if len(columns):
        name = repr(names[columns[0]]) if names else str(columns[0])
        what = f"the feature column {name} equals the sensitive attribute (sens)"
        remedy = "Remove it: the sensitive attribute is no input of a model. To train on it all the same, set [data] "
        refuse(where, what, f"{remedy}sens_feature = true.", "sens-repeated")


def check_sensitive(data: Dataset, where: str | Path, sens_feature: bool) -> Dataset:
    """`data`, if none of its features is the sensitive attribute, or `sens_feature` allows that. A small graph has the
    groups of its nodes."""
    if not sens_feature:
        refuse_group_columns(*_features_and_groups(data), where)
    return data


def has_sens(data: Dataset) -> bool:
    """Whether one of the features is the sensitive attribute."""
    x, sensitive, _ = _features_and_groups(data)
    return sensitive is not None and len(group_columns(x, sensitive)) > 0


def _features_and_groups(data: Dataset) -> tuple[Matrix, np.ndarray | None, Sequence[str]]:
    """The features of nodes, the group of each or of its small graph, and the names of features; of edges, where
    these are the examples."""
    if data.edge_attrs is not None and data.edge_attrs.examples:
        features = data.edge_attrs.features
        x = np.zeros((data.examples, 0), np.float32) if features is None else features
        return x, data.sensitive, data.edge_attrs.columns
    sensitive = data.sensitive if data.sensitive is None or data.graph_of is None else data.sensitive[data.graph_of]
    return data.x, sensitive, data.columns
