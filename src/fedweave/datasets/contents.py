"""What data holds, as digests: whether it is still the same, and what of it has changed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedweave.datasets.base import Dataset
from fedweave.errors import UserError

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
        raise UserError(f"the {what} of {run} has changed since it was begun: {', '.join(changed)}. {remedy}")


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as a run noted it `before`."""
    return [what for what in now if what in before and before[what] != now[what]]


def _digest(arrays: tuple[np.ndarray | None, ...]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
