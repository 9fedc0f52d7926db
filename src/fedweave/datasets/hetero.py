"""A graph with several types of nodes and edges, PyTorch Geometric's `HeteroData`, as one with types as features."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from fedweave.core.types import Values
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


def merge_types(
    data: Any, name: str, flatten: bool, task: str, numbers: bool = False
) -> tuple[SimpleNamespace, Columns, Columns]:
    """The nodes of all types, one type after the other, as an object with a `Data`'s attributes; and the names of node
    and edge features. Features are one per type, 1 at its own nodes, and then each type's own features, 0 at others;
    edges likewise. Only one type may have classes, or `numbers` instead, with its masks and sens; the other types have
    gaps.

    Raises:
        DataError: `flatten` is False; several types have classes, or not all types of edges a time; or an edge's end is
            no node of its type, or the number of nodes or rows is wrong or unknown.
    """
    nodes = {kind: data[kind] for kind in data.node_types}
    edges = {kind: data[kind] for kind in data.edge_types}
    relations = {kind: "-".join(kind) for kind in edges}
    if bare := [relations[kind] for kind, store in edges.items() if "edge_index" not in store]:
        refuse(name, f"edges of type {bare[0]!r} have no edge_index", "Give it, or leave the type out.")
    if not flatten:
        kinds = f"types of nodes ({', '.join(nodes)}) and of edges ({', '.join(relations.values())})"
        refuse(name, f"the graph has {kinds}", "Set flatten = True, which makes types features, or give one of a type.")
    if uncounted := [kind for kind, store in nodes.items() if store.num_nodes is None]:
        refuse(name, f"the number of nodes of type {uncounted[0]!r} is not known", "Give its x or num_nodes.")
    sizes = {kind: int(store.num_nodes) for kind, store in nodes.items()}
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    ends = [_ends_of_type(kind, store, sizes, first, name) for kind, store in edges.items()]
    counts = {kind: pairs.shape[1] for kind, pairs in zip(edges, ends, strict=True)}
    x, columns = _join_features(nodes, "x", sizes, {kind: kind for kind in nodes}, name)
    features, of_edges = _join_features(edges, "edge_attr", counts, relations, name)
    arrays = {"x": x, "edge_index": np.concatenate([np.zeros((2, 0), np.int64), *ends], 1), "edge_attr": features}
    of, each = (edges, counts) if task == "edges" else (nodes, sizes)
    absent = _ABSENT | ({CLASSES[task]: float("nan")} if numbers else {})
    arrays |= _rows(of, each, (CLASSES[task], *OF_EXAMPLES), name, absent)
    arrays |= _rows(edges, counts, ("edge_weight", "edge_time"), name)
    types = {kind: kind for kind in nodes} | relations
    for kind, store in {**nodes, **edges}.items():  # further arrays, by the name of their type and their own
        arrays |= {f"{types[kind]}.{key}": store[key] for key in store if key not in READ}
    return SimpleNamespace(**arrays, keys=[*arrays]), columns, of_edges


def _ends_of_type(kind: Columns, store: Values, sizes: dict[str, int], first: dict[str, int], name: str) -> np.ndarray:
    """int64 [2, m]: where the edges of a type start and end, in the graph of all types."""
    ends, node_types = _dense(store["edge_index"]), (kind[0], kind[-1])
    for pairs, of in zip(ends, node_types, strict=True):
        if ((pairs < 0) | (pairs >= sizes[of])).any():
            where = f"{name}, edges of type {'-'.join(kind)}"
            refuse(where, f"one names no {of!r} in 0..{sizes[of] - 1}", "Remove the edge or add the node.")
    return np.asarray(ends + np.array([[first[of]] for of in node_types]))


def _join_features(stores: Stores, key: str, counts: Counts, names: Names, name: str) -> tuple[np.ndarray, Columns]:
    """The features [n, types + d] of all types, and their names."""
    arrays = {kind: _dense(store[key]) for kind, store in stores.items() if key in store and store[key] is not None}
    for kind, array in arrays.items():
        if len(array) != counts[kind]:
            refuse(
                name, f"{key} of type {names[kind]!r} has {len(array)} rows, for {counts[kind]}", "Give one for each."
            )
        arrays[kind] = array.reshape(counts[kind], math.prod(array.shape[1:]))
    widths = {kind: arrays[kind].shape[1] if kind in arrays else 0 for kind in stores}
    whole = np.zeros((sum(counts.values()), len(stores) + sum(widths.values())), np.float32)
    row, column = 0, len(stores)
    for at, kind in enumerate(stores):
        whole[row : row + counts[kind], at] = 1
        if kind in arrays:
            whole[row : row + counts[kind], column : column + widths[kind]] = arrays[kind]
        row, column = row + counts[kind], column + widths[kind]
    names_of_features = [f"{names[kind]}.{at}" for kind in stores for at in range(widths[kind])]
    return whole, (*(f"type = {names[kind]}" for kind in stores), *names_of_features)


def _rows(
    stores: Stores, counts: Counts, keys: Sequence[str], name: str, absent: Mapping[str, float] = _ABSENT
) -> dict[str, np.ndarray]:
    """{key: one value for each node or edge, or several targets}, for `keys` that a type has; absent: the value of the
    other types."""
    rows = {}
    for key in keys:
        having = [kind for kind, store in stores.items() if key in store]
        if key in CLASSES.values() and len(having) > 1:
            refuse(name, f"{len(having)} types have {key}, {having[0]!r} and {having[1]!r}", "Leave it to one of them.")
        if key == "edge_time" and having and len(having) < len(stores):
            lacking = next(kind for kind in stores if kind not in having)
            refuse(name, f"edges of type {lacking!r} have no edge_time, and others have", "Give it to all types.")
        if having:
            arrays = {kind: _dense(stores[kind][key]) for kind in having}
            several = key in CLASSES.values() and arrays[having[0]].ndim == 2
            shape = arrays[having[0]].shape[1:] if several else ()
            values = [
                arrays[kind].reshape(-1, *shape)
                if kind in having
                else np.full((counts[kind], *shape), absent.get(key, 0))
                for kind in stores
            ]
            rows[key] = np.concatenate(values).astype(bool) if key.endswith("_mask") else np.concatenate(values)
    return rows


def _dense(tensor: object) -> np.ndarray:
    dense = tensor.to_dense() if hasattr(tensor, "to_dense") else tensor
    return np.asarray(dense.detach().cpu() if hasattr(dense, "detach") else dense)
