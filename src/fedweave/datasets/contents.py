"""What a data set contains: digests by which changes show, and the meaning of each feature column.

The name of a column shows its meaning: "label = C" and "degree = 3" of small graphs' nodes ("label 2 = C" where nodes
have several labels), "job = clerk" of a column of text. Other names are columns of numbers; "column 3" has no name in
the data.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import one_hot
from fedweave.errors import UserError

_ENCODED = re.compile(r"(label(?: \d+)?|degree) = (.*)", re.DOTALL)


class DataColumn(NamedTuple):
    """One column. kind: "number", "label", "degree" or "category"; except for numbers, it is 1 for `value` of `of` and
    else 0."""

    name: str
    kind: str
    of: str = ""
    value: str = ""


def column(name: str) -> DataColumn:
    """The meaning of the column with this name."""
    match = _ENCODED.fullmatch(name)
    if match is not None:
        return DataColumn(name, match[1].split()[0], match[1], match[2])
    of, equals, value = name.partition(" = ")
    return DataColumn(name, "category", of, value) if equals and of else DataColumn(name, "number")


def names(data: Dataset) -> tuple[str, ...]:
    """The names of the columns. Without names, columns of small graphs that encode nodes' labels or degrees are
    recognized by their values, and others have their places from 0."""
    if data.columns or data.graph_of is None or not data.nodes:
        return data.columns or default_names(0, data.features)
    if data.node_labels is not None and (data.node_labels >= 0).any():
        count = int(data.node_labels.max()) + 1
        called: Sequence[object] = data.node_kinds or range(count)
        if len(called) <= data.features and _is_one_hot(data.x, data.node_labels, len(called)):
            return (*(f"label = {name}" for name in called), *default_names(len(called), data.features))
    degrees = np.bincount(data.edges[0], minlength=data.nodes)
    if degrees.max() < data.features and _is_one_hot(data.x, degrees, data.features):
        return tuple(f"degree = {degree}" for degree in range(data.features))
    return default_names(0, data.features)


def default_names(first: int, end: int) -> tuple[str, ...]:
    """The names of columns without names, from place `first` to before `end`."""
    return tuple(f"column {place}" for place in range(first, end))


def is_default_name(name: str) -> bool:
    """Whether the name is one of `default_names`."""
    return re.fullmatch(r"column \d+", name) is not None


def _is_one_hot(x: Matrix, numbers: np.ndarray, columns: int) -> bool:
    """Whether the first `columns` of x [n, d] are nonzero exactly where the one-hot `numbers` are, however scaled."""
    nonzero = sp.csr_matrix(x[:, :columns] != 0)
    return bool((nonzero != (one_hot(numbers, columns) != 0)).nnz == 0)


NAMES = "names of columns and classes"  # "names" in older runs, where TU folders and public tables had none


def digests(data: Dataset) -> dict[str, str]:
    """{what: SHA-256} of everything that a run depends on."""
    x, parties = data.x, data.parties or ()
    features = (x,) if isinstance(x, np.ndarray) else (x.data, x.indices, x.indptr)
    arrays = {
        "features": (np.array(x.shape), *features),
        "edges": (data.edges, data.edge_labels),
        "labels": (np.array(data.classes), data.y),
        "published split": (data.public,),
        "sensitive attribute": (data.sensitive,),
        "small graphs": (data.graph_of, data.node_labels),
        "owners": (data.owner, *chain.from_iterable((party.columns, party.edges) for party in parties)),
    }
    if data.edge_attrs is not None:
        arrays["what edges carry"] = tuple(data.edge_attrs.arrays().values())
    if data.outside is not None:
        named = np.array(data.outside.names, str)
        arrays["edges to nodes elsewhere"] = (*data.outside.edge_attrs.arrays().values(), named)
    names = json.dumps([data.columns, data.labels, data.owners]).encode()
    result = dict[str, str]()
    for what, parts in arrays.items():
        hasher = hashlib.sha256()
        for array in parts:
            # the bytes without a copy of them
            hasher.update(b"-" if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        result[what] = hasher.hexdigest()
    return result | {NAMES: hashlib.sha256(names).hexdigest()}


def content(data: Dataset) -> str:
    """SHA-256 of all of it."""
    return hashlib.sha256(json.dumps(digests(data), sort_keys=True).encode()).hexdigest()


def check_same(before: Mapping[str, str], now: Mapping[str, str], run: Path, remedy: str) -> None:
    """Reject data, or files of plug-ins, that have changed since a run noted them; what it did not note may differ."""
    changed = changes(before, now)
    if changed:
        what = "code" if any(Path(one).suffix == ".py" for one in changed) else "data"
        raise UserError(
            f"the {what} of {run} has changed since it was begun: {', '.join(changed)}. {remedy}", code="user.changed"
        )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts that differ from those that a run noted `before`."""
    return [what for what in now if what in before and before[what] != now[what]]
