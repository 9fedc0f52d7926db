"""The sensitive attribute is not a feature unless the user asks for it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedweave.datasets.check import refuse


def repeated(x: np.ndarray, sens: np.ndarray) -> np.ndarray:
    """int64, the columns of x [n, d] that number the groups sens int64 [n], over the nodes where sens is known: one
    value within each group, another in every other. None if there is only one group, or a group of one node."""
    groups = [x[sens == s] for s in np.unique(sens[sens >= 0])]
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return np.zeros(0, np.int64)
    low, high = (np.stack([bound(group, 0) for group in groups]) for bound in (np.min, np.max))
    apart = (np.diff(np.sort(low, 0), axis=0) > 0).all(0)
    return np.flatnonzero((low == high).all(0) & apart)


def refuse_repeated(x: np.ndarray, sens: np.ndarray | None, names: Sequence[str], where: str | Path) -> None:
    """Refuse features x [n, d] of which a column, of those called `names`, is the sensitive attribute.

    Raises:
        DataError: names the file, the column and the remedy.
    """
    columns = np.zeros(0, np.int64) if sens is None else repeated(x, sens)
    if len(columns):
        refuse(
            where,
            f"the feature column {names[columns[0]]!r} says the same as sens",
            "Remove it: the sensitive attribute is no input of a model. To train on it all the same, set [data] "
            "sens_feature = true.",
        )
