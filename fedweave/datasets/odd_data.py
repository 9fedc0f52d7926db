"""What is allowed of data and seldom meant: one class, names that look alike, columns that number the rows."""

from collections.abc import Iterator

import numpy as np

from fedweave.datasets.alike import alike, difference
from fedweave.datasets.base import Dataset
from fedweave.datasets.odd_features import column_names
from fedweave.datasets.row_numbers import row_numbers

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
