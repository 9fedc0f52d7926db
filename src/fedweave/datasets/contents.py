"""What data holds, as digests: whether it is still the same, and what of it has changed; and what each column of
features is, whatever the data came as: its name, and of one-hot columns the value it stands for.

Names say it: "label = C" and "degree = 3" of small graphs' nodes ("label 2 = C" where nodes have several labels), "job
= clerk" of a column of text, anything else is a number; "column 3" is one that nobody named.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.features import one_hot
from fedweave.errors import UserError

_ENCODED = re.compile(r"(label(?: \d+)?|degree) = (.*)", re.DOTALL)


class Column(NamedTuple):
    """One column. kind: "number", "label", "degree" or "category", of which the last three are 1 for `value` of `of`,
    else 0."""

    name: str
    kind: str
    of: str = ""
    value: str = ""


def column(name: str) -> Column:
    """The column that is called so."""
    if found := _ENCODED.fullmatch(name):
        return Column(name, found[1].split()[0], found[1], found[2])
    of, equals, value = name.partition(" = ")
    return Column(name, "category", of, value) if equals and of else Column(name, "number")


def names(data: Dataset) -> tuple[str, ...]:
    """What the columns are called; where nobody said, those of small graphs that encode nodes' labels or degrees are
    found by their values, and others go by their places from 0."""
    if data.columns or data.graph_of is None:
        return data.columns or unnamed(0, data.features)
    if data.node_labels is not None and (data.node_labels >= 0).any():
        count = int(data.node_labels.max()) + 1
        called: Sequence[object] = data.node_kinds or range(count)
        if len(called) <= data.features and _is_one_hot(data.x, data.node_labels, len(called)):
            return (*(f"label = {name}" for name in called), *unnamed(len(called), data.features))
    degrees = np.bincount(data.edges[0], minlength=data.nodes)
    if degrees.max() < data.features and _is_one_hot(data.x, degrees, data.features):
        return tuple(f"degree = {degree}" for degree in range(data.features))
    return unnamed(0, data.features)


def unnamed(first: int, end: int) -> tuple[str, ...]:
    """What the columns from place `first` to before `end` go by, where nobody named them."""
    return tuple(f"column {place}" for place in range(first, end))


def is_unnamed(name: str) -> bool:
    """Whether nobody named the column."""
    return re.fullmatch(r"column \d+", name) is not None


def _is_one_hot(x: "np.ndarray | sp.csr_matrix", numbers: np.ndarray, columns: int) -> bool:
    """Whether the first `columns` of x [n, d] are not 0 exactly where those of `one_hot` are not, however scaled."""
    held = sp.csr_matrix(x[:, :columns] != 0)
    return bool((held != (one_hot(numbers, columns) != 0)).nnz == 0)


NAMES = "names of columns and classes"  # "names" in older runs, for which TU folders and public tables said none


def digests(data: Dataset) -> dict[str, str]:
    """{what: SHA-256} of everything that a run depends on."""
    x, parties = data.x, data.parties or ()
    features = (x,) if isinstance(x, np.ndarray) else (x.data, x.indices, x.indptr)
    held = {
        "features": (np.array(x.shape), *features),
        "edges": (data.edges, data.edge_labels),
        "labels": (np.array(data.classes), data.y),
        "published split": (data.public,),
        "sensitive attribute": (data.sens,),
        "small graphs": (data.graph_of, data.node_labels),
        "owners": (data.owner, *(part for party in parties for part in (party.columns, party.edges))),
    }
    if data.carried is not None:
        held["what edges carry"] = tuple(data.carried.arrays().values())
    if data.outside is not None:
        named = np.array(data.outside.names, str)
        held["edges to nodes elsewhere"] = (*data.outside.carried.arrays().values(), named)
    names = json.dumps([data.columns, data.labels, data.owners]).encode()
    return {what: _digest(arrays) for what, arrays in held.items()} | {NAMES: hashlib.sha256(names).hexdigest()}


def content(data: Dataset) -> str:
    """SHA-256 of all of it."""
    return hashlib.sha256(json.dumps(digests(data), sort_keys=True).encode()).hexdigest()


def check_same(before: Mapping[str, str], now: Mapping[str, str], run: Path, remedy: str) -> None:
    """Refuse data, or files of plug-ins, that are not those of a run any more; what a run did not note may be any.

    Raises:
        UserError: names what has changed.
    """
    if changed := changes(before, now):
        what = "code" if any(Path(one).suffix == ".py" for one in changed) else "data"
        raise UserError(
            f"the {what} of {run} has changed since it was begun: {', '.join(changed)}. {remedy}", code="user.changed"
        )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as a run noted it `before`."""
    return [what for what in now if what in before and before[what] != now[what]]


def _digest(arrays: tuple[np.ndarray | None, ...]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
