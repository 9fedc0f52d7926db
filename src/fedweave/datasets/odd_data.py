"""What is allowed of data and seldom meant: one class, names that look alike, columns that number the rows."""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.alike import alike, difference
from fedweave.datasets.base import Dataset
from fedweave.datasets.row_numbers import row_numbers
from fedweave.datasets.sensitive import repeated

APART = 1000.0  # times the median column's largest number; of the public sets at hand none is beyond 12


def odd_features(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of column that is odd, with the columns' names, or their numbers from 0."""
    if data.example == "node" and len(same := repeated(data.x, data.y)):
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


_SHOWN = 3  # pairs of names


def odd_data(data: Dataset) -> Iterator[str]:
    """A sentence for each kind of names that look alike, and for columns that number the rows."""
    kinds = {"classes": data.labels, "groups": data.groups, "owners": data.owners}
    kinds |= {"kinds of nodes": data.node_kinds, "kinds of edges": data.edge_kinds}
    for what, names in kinds.items():
        pairs = list(alike(names))
        told = ", ".join(f"{one!r} and {two!r} differ in {difference(one, two)}" for one, two in pairs[:_SHOWN])
        more = f", and {len(pairs) - _SHOWN:,} more pairs" if pairs[_SHOWN:] else ""
        if pairs:
            yield f"of the {what}, {told}{more}; are they meant to be different? If not, write them alike in all tables"
    if len(numbered := row_numbers(data.x)):
        few, shown = len(numbered) == 1, column_names(data, numbered)
        yield (
            f"the feature{'' if few else 's'} {shown} {'numbers' if few else 'number'} the rows, so that a model reads "
            f"off where in the table an example stands; leave {'it' if few else 'them'} out (ignore in [data]) unless "
            "the order means something"
        )


def one_class(data: Dataset) -> Iterator[str]:
    """A sentence if all labelled examples are of one class."""
    held = np.unique(data.y[data.y >= 0])
    if len(held) == 1:
        label = data.labels[held[0]] if data.labels else held[0]
        yield (
            f"all labelled {data.example}s are of one class, {label}: any model that says so is right, and no score "
            "says anything"
        )
