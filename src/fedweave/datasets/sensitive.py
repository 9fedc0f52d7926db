"""The sensitive attribute is not a feature unless the user asks for it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse


def repeated(x: "np.ndarray | sp.csr_matrix", sens: np.ndarray) -> np.ndarray:
    """int64, the columns of x [n, d] that number the groups sens int64 [n], over the nodes where sens is known: one
    value within each group, another in every other. None if there is only one group, or a group of one node."""
    groups = [np.flatnonzero(sens == s) for s in np.unique(sens[sens >= 0])]
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return np.zeros(0, np.int64)
    low, high = (np.stack([_bound(x[group], bound) for group in groups]) for bound in (np.min, np.max))
    apart = (np.diff(np.sort(low, 0), axis=0) > 0).all(0)
    return np.flatnonzero((low == high).all(0) & apart)


def _bound(rows: "np.ndarray | sp.csr_matrix", bound: Callable[..., Any]) -> np.ndarray:
    """The least or largest number [d] of each column."""
    found = bound(rows, axis=0)
    result: np.ndarray = found.toarray()[0] if sp.issparse(found) else found
    return result


def refuse_repeated(
    x: "np.ndarray | sp.csr_matrix", sens: np.ndarray | None, names: Sequence[str], where: str | Path
) -> None:
    """Refuse features x [n, d] of which a column, of those called `names`, or by their numbers from 0 if there are
    none, is the sensitive attribute.

    Raises:
        DataError: names the file, the column and the remedy.
    """
    columns = np.zeros(0, np.int64) if sens is None else repeated(x, sens)
    if len(columns):
        called = repr(names[columns[0]]) if names else str(columns[0])
        refuse(
            where,
            f"the feature column {called} says the same as sens",
            "Remove it: the sensitive attribute is no input of a model. To train on it all the same, set [data] "
            "sens_feature = true.",
            "sens-repeated",
        )


def without_sens(data: Dataset, where: str | Path, sens_feature: bool) -> Dataset:
    """`data`, whose features are as they were given, if none of them is the sensitive attribute, or `sens_feature`
    allows that; the groups of small graphs are those of their nodes.

    Raises:
        DataError: see `refuse_repeated`.
    """
    if not sens_feature:
        refuse_repeated(*_seen(data), where)
    return data


def has_sens(data: Dataset) -> bool:
    """Whether one of the features is the sensitive attribute."""
    x, sens, _ = _seen(data)
    return sens is not None and len(repeated(x, sens)) > 0


def _seen(data: Dataset) -> tuple["np.ndarray | sp.csr_matrix", np.ndarray | None, Sequence[str]]:
    """The features of nodes, the group of each or of its small graph, and what the features are called; of edges, where
    these are the examples."""
    if data.carried is not None and data.carried.examples:
        held = data.carried.features
        return np.zeros((data.examples, 0), np.float32) if held is None else held, data.sens, data.carried.columns
    sens = data.sens if data.sens is None or data.graph_of is None else data.sens[data.graph_of]
    return data.x, sens, data.columns
