"""A graph with several types of nodes and edges, PyTorch Geometric's `HeteroData`, as one whose features say which."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from fedweave.core.records import Record, Values
from fedweave.datasets.check import refuse

Columns = tuple[str, ...]
Kind: TypeAlias = Any  # the name of a type of nodes, or the three of a type of edges
Stores: TypeAlias = Mapping[Kind, Values]
Counts: TypeAlias = Mapping[Kind, int]
Names: TypeAlias = Mapping[Kind, str]
CLASSES = {"nodes": "y", "edges": "edge_label"}  # what says the examples' classes, by the task
OF_EXAMPLES = ("train_mask", "val_mask", "test_mask", "sens")
READ = {"x", "edge_index", "edge_attr", "edge_weight", "edge_time", *CLASSES.values(), *OF_EXAMPLES}
_ABSENT = {"y": -1, "edge_label": -1, "sens": -1, "edge_weight": 1}  # of types without; False in masks


def is_hetero(data: object) -> bool:
    """Whether it is such a graph."""
    return hasattr(data, "node_types") and hasattr(data, "edge_types")


def flattened(data: Any, name: str, flatten: bool, task: str) -> tuple[SimpleNamespace, Columns, Columns]:
    """The nodes of all types, one type after the other, with a feature for each type, 1 at its own, and then each
    type's own features, 0 at others; edges likewise; as an object with a `Data`'s attributes. What their features, and
    those of edges, are called. One type alone may have classes, which the masks and sens then go by.

    Raises:
        DataError: nobody asked for it (`flatten`); several types have classes, or not all types of edges a time; or an
            edge's end is no node of its type, or the number of nodes or rows is wrong or unknown.
    """
    nodes = {kind: data[kind] for kind in data.node_types}
    edges = {kind: data[kind] for kind in data.edge_types}
    relations = {kind: "-".join(kind) for kind in edges}
    if bare := [relations[kind] for kind, store in edges.items() if "edge_index" not in store]:
        refuse(name, f"edges of type {bare[0]!r} have no edge_index", "Give it, or leave the type out.")
    if not flatten:
        kinds = f"types of nodes ({', '.join(nodes)}) and of edges ({', '.join(relations.values())})"
        refuse(name, f"the graph has {kinds}", "Say flatten = True, which makes types features, or give one of a type.")
    if uncounted := [kind for kind, store in nodes.items() if store.num_nodes is None]:
        refuse(name, f"nobody says how many nodes of type {uncounted[0]!r} there are", "Give its x or num_nodes.")
    sizes = {kind: int(store.num_nodes) for kind, store in nodes.items()}
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    ends = [_ends(kind, store, sizes, first, name) for kind, store in edges.items()]
    counts = {kind: own.shape[1] for kind, own in zip(edges, ends, strict=True)}
    x, columns = _joined(nodes, "x", sizes, {kind: kind for kind in nodes}, name)
    features, of_edges = _joined(edges, "edge_attr", counts, relations, name)
    held = {"x": x, "edge_index": np.concatenate([np.zeros((2, 0), np.int64), *ends], 1), "edge_attr": features}
    of, each = (edges, counts) if task == "edges" else (nodes, sizes)
    held |= _rows(of, each, (CLASSES[task], *OF_EXAMPLES), name)
    held |= _rows(edges, counts, ("edge_weight", "edge_time"), name)
    held |= _others({**nodes, **edges}, {kind: kind for kind in nodes} | relations)
    return SimpleNamespace(**held, keys=[*held]), columns, of_edges


def _ends(kind: Columns, store: Values, sizes: dict[str, int], first: dict[str, int], name: str) -> np.ndarray:
    """int64 [2, m]: where the edges of a type start and end, in the graph of all types."""
    ends, own = _array(store["edge_index"]), (kind[0], kind[-1])
    for pairs, of in zip(ends, own, strict=True):
        if ((pairs < 0) | (pairs >= sizes[of])).any():
            where = f"{name}, edges of type {'-'.join(kind)}"
            refuse(where, f"one names no {of!r} in 0..{sizes[of] - 1}", "Remove the edge or add the node.")
    return np.asarray(ends + np.array([[first[of]] for of in own]))


def _joined(stores: Stores, key: str, counts: Counts, names: Names, name: str) -> tuple[np.ndarray, Columns]:
    """The features [n, types + d] of all types, and what they are called."""
    own = {kind: _array(store[key]) for kind, store in stores.items() if key in store and store[key] is not None}
    for kind, array in own.items():
        if len(array) != counts[kind]:
            refuse(
                name, f"{key} of type {names[kind]!r} has {len(array)} rows, for {counts[kind]}", "Give one for each."
            )
        own[kind] = array.reshape(counts[kind], math.prod(array.shape[1:]))
    widths = {kind: own[kind].shape[1] if kind in own else 0 for kind in stores}
    whole = np.zeros((sum(counts.values()), len(stores) + sum(widths.values())), np.float32)
    row, column = 0, len(stores)
    for at, kind in enumerate(stores):
        whole[row : row + counts[kind], at] = 1
        if kind in own:
            whole[row : row + counts[kind], column : column + widths[kind]] = own[kind]
        row, column = row + counts[kind], column + widths[kind]
    named = [f"{names[kind]}.{at}" for kind in stores for at in range(widths[kind])]
    return whole, (*(f"type = {names[kind]}" for kind in stores), *named)


def _rows(stores: Stores, counts: Counts, keys: Sequence[str], name: str) -> dict[str, np.ndarray]:
    """One value for each node or edge, of those of `keys` that a type has."""
    found = {}
    for key in keys:
        having = [kind for kind, store in stores.items() if key in store]
        if key in CLASSES.values() and len(having) > 1:
            refuse(name, f"{len(having)} types have {key}, {having[0]!r} and {having[1]!r}", "Leave it to one of them.")
        if key == "edge_time" and having and len(having) < len(stores):
            lacking = next(kind for kind in stores if kind not in having)
            refuse(name, f"edges of type {lacking!r} have no edge_time, and others have", "Give it to all types.")
        if having:
            absent = _ABSENT.get(key, 0)
            own = [
                _array(stores[kind][key]).reshape(-1) if kind in having else np.full(counts[kind], absent)
                for kind in stores
            ]
            found[key] = np.concatenate(own).astype(bool) if key.endswith("_mask") else np.concatenate(own)
    return found


def _others(stores: Stores, names: Names) -> Record:
    """Further arrays, by the names of their types and theirs."""
    return {f"{names[kind]}.{key}": store[key] for kind, store in stores.items() for key in store if key not in READ}


def _array(tensor: object) -> np.ndarray:
    dense = tensor.to_dense() if hasattr(tensor, "to_dense") else tensor
    return np.asarray(dense.detach().cpu() if hasattr(dense, "detach") else dense)
