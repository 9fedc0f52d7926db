"""The arrays of a dataset's `.npz` file (see `npz`), and writing them."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.core.carried import Carried, both_ways

REQUIRED = ("x_data", "x_indices", "x_indptr", "x_shape", "edge_index", "y")
SPLIT = ("train_idx", "val_idx", "test_idx")
KEPT = ("sens", "graph_of", "node_labels", "edge_labels", "owner")  # as they are
IDS = "ids"
CARRIED = {  # array: field of `Carried`
    "edge_weight": "weight",
    "edge_attr": "features",
    "edge_time": "time",
    "edge_y": "y",
    "edge_split": "split",
}
DIRECTED, EDGE_NAMES, EDGE_SCALING = "directed", "edge_feature_names", "edge_scaling"
UNTIL = "split_until"  # the last times of training and of validation
EDGE_Y, EDGE_SPLIT, NODE_IDS = "edge_y", "edge_split", "node_ids"  # where edges are the examples
NUMBERED = {  # names: the array whose numbers they name
    "label_names": "y",
    "group_names": "sens",
    "owner_names": "owner",
    "node_kind_names": "node_labels",
    "edge_kind_names": "edge_labels",
}
NAMES = {  # names: what a dataset calls them
    "feature_names": "columns",
    "label_names": "labels",
    "group_names": "groups",
    "owner_names": "owners",
    "node_kind_names": "node_kinds",
    "edge_kind_names": "edge_kinds",
}
OUTSIDE_INDEX, OUTSIDE_NAMES = "outside_index", "outside_names"
OUTSIDE = {"outside_weight": "weight", "outside_attr": "features", "outside_time": "time"}  # array: field of `Carried`
OPTIONAL = (
    *(*SPLIT, *KEPT, IDS, *NAMES, DIRECTED, *CARRIED, EDGE_NAMES, EDGE_SCALING, UNTIL, NODE_IDS),
    *(OUTSIDE_INDEX, OUTSIDE_NAMES, *OUTSIDE),
)


def write(dataset: Any, path: Path) -> None:
    """Write a `Dataset` in the layout of `npz`; the same dataset gives the same bytes."""
    x = sp.csr_matrix(dataset.x)
    arrays = {
        "x_data": x.data,
        "x_indices": x.indices,
        "x_indptr": x.indptr,
        "x_shape": np.array(x.shape, np.int64),
        "edge_index": dataset.edges,
        "y": dataset.y,
    }
    if dataset.public is not None:
        arrays |= {key: np.flatnonzero(mask) for key, mask in zip(SPLIT, dataset.public, strict=True)}
    arrays |= {name: getattr(dataset, name) for name in KEPT if getattr(dataset, name) is not None}
    text = {IDS: dataset.ids, NODE_IDS: dataset.node_ids} | {key: getattr(dataset, own) for key, own in NAMES.items()}
    arrays |= {key: np.array(names) for key, names in text.items() if names}
    if dataset.carried is not None:
        arrays |= _of_carried(dataset.carried if dataset.carried.examples else both_ways(dataset.carried))
    if dataset.example == "edge":
        arrays = {key: held for key, held in arrays.items() if key not in ("y", *SPLIT)} | {EDGE_Y: dataset.y}
        if dataset.public is not None:
            arrays[EDGE_SPLIT] = np.where(dataset.public.any(0), dataset.public.argmax(0), -1)
    if dataset.outside is not None:
        arrays |= _of_outside(*dataset.outside)
    with path.open("wb") as file:  # given a name without ".npz", NumPy would append it
        np.savez_compressed(file, **arrays)


def _of_outside(carried: Carried, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    held = {key: getattr(carried, own) for key, own in OUTSIDE.items()}
    arrays = {key: values for key, values in held.items() if values is not None}
    return arrays | {OUTSIDE_INDEX: carried.ends, OUTSIDE_NAMES: np.array(names, str)}


def _of_carried(carried: Carried) -> dict[str, np.ndarray]:
    held = {key: getattr(carried, own) for key, own in CARRIED.items()}
    arrays = {key: values for key, values in held.items() if values is not None}
    arrays |= {"edge_index": carried.ends, DIRECTED: np.array(carried.directed)}
    arrays |= {EDGE_NAMES: np.array(carried.columns)} if carried.columns else {}
    arrays |= {UNTIL: np.array(carried.until)} if carried.until is not None else {}
    return arrays | ({EDGE_SCALING: np.array(carried.scaling)} if carried.scaling else {})
