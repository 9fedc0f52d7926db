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
    gaps."""
    nodes = {kind: data[kind] for kind in data.node_types}
    edges = {kind: data[kind] for kind in data.edge_types}
    relations = {kind: "-".join(kind) for kind in edges}
    for kind, store in edges.items():
        if "edge_index" not in store:
            refuse(name, f"edges of type {relations[kind]!r} have no edge_index", "Give it, or leave the type out.")
    if not flatten:
        kinds = f"types of nodes ({', '.join(nodes)}) and of edges ({', '.join(relations.values())})"
        refuse(name, f"the graph has {kinds}", "Set flatten = True, which makes types features, or give one of a type.")
    # 1. How many nodes each type has, and the number of its first node.
    sizes, first = dict[str, int](), dict[str, int]()
    for kind, store in nodes.items():
        if store.num_nodes is None:
            refuse(name, f"the number of nodes of type {kind!r} is not known", "Give its x or num_nodes.")
        first[kind] = sum(sizes.values())
        sizes[kind] = int(store.num_nodes)
    # 2. Where the edges of each type start and end.
    ends, counts = [np.zeros((2, 0), np.int64)], dict[Kind, int]()
    for kind, store in edges.items():
        pairs = _dense(store["edge_index"])
        for side, node_kind in zip(pairs, (kind[0], kind[-1]), strict=True):
            if ((side < 0) | (side >= sizes[node_kind])).any():
                what = f"one names no {node_kind!r} in 0..{sizes[node_kind] - 1}"
                refuse(f"{name}, edges of type {relations[kind]}", what, "Remove the edge or add the node.")
        ends.append(np.asarray(pairs + np.array([[first[kind[0]]], [first[kind[-1]]]])))
        counts[kind] = pairs.shape[1]
    # 3. Features, classes and what else nodes and edges have.
    x, columns = _join_features(nodes, "x", sizes, {kind: kind for kind in nodes}, name)
    features, of_edges = _join_features(edges, "edge_attr", counts, relations, name)
    arrays = {"x": x, "edge_index": np.concatenate(ends, 1), "edge_attr": features}
    examples, number = (edges, counts) if task == "edges" else (nodes, sizes)
    absent = _ABSENT | {CLASSES[task]: float("nan")} if numbers else _ABSENT
    arrays |= _rows(examples, number, (CLASSES[task], *OF_EXAMPLES), name, absent)
    arrays |= _rows(edges, counts, ("edge_weight", "edge_time"), name)
    types = {kind: kind for kind in nodes} | relations
    for kind, store in {**nodes, **edges}.items():  # further arrays, by the name of their type and their own
        arrays |= {f"{types[kind]}.{key}": store[key] for key in store if key not in READ}
    return SimpleNamespace(**arrays, keys=[*arrays]), columns, of_edges


def _join_features(stores: Stores, key: str, counts: Counts, names: Names, name: str) -> tuple[np.ndarray, Columns]:
    """The features [n, types + d] of all types, and their names."""
    arrays = {kind: _dense(store[key]) for kind, store in stores.items() if key in store and store[key] is not None}
    for kind, array in arrays.items():
        if len(array) != counts[kind]:
            what = f"{key} of type {names[kind]!r} has {len(array)} rows, for {counts[kind]}"
            refuse(name, what, "Give one for each.")
        arrays[kind] = array.reshape(counts[kind], math.prod(array.shape[1:]))
    widths = {kind: arrays[kind].shape[1] if kind in arrays else 0 for kind in stores}
    columns = [f"type = {names[kind]}" for kind in stores]
    whole = np.zeros((sum(counts.values()), len(stores) + sum(widths.values())), np.float32)
    row = 0
    for at, kind in enumerate(stores):
        rows, column = slice(row, row + counts[kind]), len(columns)
        whole[rows, at] = 1
        if kind in arrays:
            whole[rows, column : column + widths[kind]] = arrays[kind]
        columns += [f"{names[kind]}.{place}" for place in range(widths[kind])]
        row += counts[kind]
    return whole, tuple(columns)


def _rows(
    stores: Stores, counts: Counts, keys: Sequence[str], name: str, absent: Mapping[str, float] = _ABSENT
) -> dict[str, np.ndarray]:
    """{key: one value for each node or edge, or several targets}, for `keys` that a type has; absent: the value of the
    other types."""
    rows = {}
    for key in keys:
        arrays = {kind: _dense(store[key]) for kind, store in stores.items() if key in store}
        if not arrays:
            continue
        kinds = list(arrays)
        if key in CLASSES.values() and len(kinds) > 1:
            refuse(name, f"{len(kinds)} types have {key}, {kinds[0]!r} and {kinds[1]!r}", "Leave it to one of them.")
        for kind in stores:
            if key == "edge_time" and kind not in arrays:
                refuse(name, f"edges of type {kind!r} have no edge_time, and others have", "Give it to all types.")
        several = key in CLASSES.values() and arrays[kinds[0]].ndim == 2
        shape = arrays[kinds[0]].shape[1:] if several else ()
        values = list[np.ndarray]()
        for kind in stores:
            missing = np.full((counts[kind], *shape), absent.get(key, 0))
            values.append(arrays[kind].reshape(-1, *shape) if kind in arrays else missing)
        rows[key] = np.concatenate(values).astype(bool) if key.endswith("_mask") else np.concatenate(values)
    return rows


def _dense(tensor: object) -> np.ndarray:
    dense = tensor.to_dense() if hasattr(tensor, "to_dense") else tensor
    return np.asarray(dense.detach().cpu() if hasattr(dense, "detach") else dense)
