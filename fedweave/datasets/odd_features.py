"""What is allowed of features and seldom meant: one that is the answer, or one so large that it drowns the others."""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.sensitive import repeated

APART = 1000.0  # times the median column's largest number; of the public sets at hand none is beyond 12


def odd_features(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of column that is odd, with the columns' names, or their numbers from 0."""
    if data.graph_of is None and len(same := repeated(data.x, data.y)):
        yield (
            f"{_columns(data, same)} one value for each class, so that a model reads the label off; leave out what is "
            "not known before the label is"
        )
    largest = _largest(data.x)
    usual = float(np.median(largest[largest > 0])) if (largest > 0).any() else 0.0
    if usual and len(far := np.flatnonzero(largest > APART * usual)):
        yield (
            f"{_columns(data, far)} numbers up to {largest[far].max() / usual:,.0f} times those of the median column, "
            "which hides the others from a model; scale features, by data.normalise or before"
        )


def _largest(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """The largest absolute number [d] of each column."""
    found = abs(x).max(axis=0)
    return found.toarray()[0] if sp.issparse(found) else np.asarray(found)


def column_names(data: Dataset, columns: np.ndarray) -> str:
    """What the features int64 [m] are called, a party's with it before, or their numbers from 0; of many, the first."""
    own = {
        at: f"{p.name}/{name}"
        for p in data.parties or ()
        for at, name in zip(p.columns.tolist(), p.names, strict=False)
    }
    named = [data.columns[at] if data.columns else own.get(at, str(at)) for at in columns.tolist()]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")


def _columns(data: Dataset, columns: np.ndarray) -> str:
    """Who they are, and the verb that fits: "the feature age has", for what follows."""
    shown = column_names(data, columns)
    return f"the feature {shown} has" if len(columns) == 1 else f"the features {shown} have"
