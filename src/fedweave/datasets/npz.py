"""A graph, or a collection of small graphs, in one `.npz` file without pickled objects.

Arrays: `x_data` float32, `x_indices`, `x_indptr` int32 or int64 and `x_shape` int64 (nodes, features): the CSR parts of
the features; `edge_index` int64 [2, E], both directions, sorted, no duplicates, no self loops; `y` int64, -1 is
unlabeled. Optional: `train_idx`, `val_idx`, `test_idx` int64 (all three or none), `sens`, `graph_of`, `node_labels`
and `edge_labels` int64 as in `Dataset`, -1 is unknown; `ids`, text. With `graph_of`, y, the split, `sens` and `ids` are
of small graphs. `feature_names`, `label_names` and `group_names`, text: names of the columns of features, the classes
from 0 and the groups of `sens` from 0, all different. `owner` int64, the owner of each example, and
`owner_names`; `node_kind_names` and `edge_kind_names` of what `node_labels` and `edge_labels` number.

Numbers, or several yes-or-no labels, to predict ([data] target): `y` float64 [e] or [e, t], NaN at gaps, or labels also
int64, -1 at gaps; `target_names`, text, names of its columns.

Edges as examples: `edge_y` int64 [E] instead of `y`, and optionally `edge_split` int64 [E], 0 train, 1 val, 2 test and
-1 none. Then `sens` and `ids` are of edges, `owner` and `node_ids` of nodes, and each edge stands in `edge_index` once.

Edges with attributes: `directed`, true or false, `edge_weight` float32 [E], `edge_attr` float32 [E, k],
`edge_time` float64 [E], `edge_feature_names` and, of a split by time, `split_until` float64 [2], the last times of
training and of validation, later than which no message for their examples is. With any of them `edge_index` may be in
any order, parallel edges are kept, and loops, too, with `loops = "keep"`; undirected edges are listed in both
directions.

Edges to nodes elsewhere: `outside_index` int64 [2, C]. One end is a node; the other is n plus the place of its name in
`outside_names`, text [F]. Each name occurs once. `outside_weight`, `outside_attr` and `outside_time` belong to these
edges where the edges between nodes have such attributes.
"""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.decompression import ARCHIVE_FAULTS, DecompressionBomb, check_archive
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import CLASS
from fedweave.core.types import Record
from fedweave.datasets.base import (
    DIRECTED,
    EDGE_ARRAYS,
    EDGE_NAMES,
    EDGE_OWNERS,
    EDGE_SCALING,
    EDGE_SPLIT,
    EDGE_Y,
    IDS,
    NAMES,
    NO_LOOPS,
    NODE_IDS,
    NUMBERED,
    OPTIONAL,
    OUTSIDE,
    OUTSIDE_INDEX,
    OUTSIDE_NAMES,
    REQUIRED,
    SPLIT,
    SPLIT_TIMES,
    TARGETS,
    Dataset,
    note_loops,
)
from fedweave.datasets.base import write as write
from fedweave.datasets.check import check, check_array, first, refuse
from fedweave.datasets.edges import as_edges, one_direction, scale_features, skeleton
from fedweave.datasets.external import Outside
from fedweave.datasets.features import compact, refuse_merged, scale_by_holders, with_constant
from fedweave.datasets.labels import refuse_stray
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.settings import ArraySettings, EdgeScaling
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError


def read(
    path: Path, name: str, labelled: bool = True, loops: str = "refuse", target: Targeted | None = None
) -> Dataset:
    """The checked dataset in `path`; features as `csr_matrix`, classes counted from their names or the labels.

    labelled: see `check.check`. loops: edges of a node with itself, "refuse" or "drop", which logs how many. target:
    what is predicted, by default a class.

    Raises:
        DataError: the file cannot be read, or breaks the layout above; the message names array, row and remedy.
    """
    arrays = _loopless(_arrays(path), path) if loops == "drop" else _arrays(path)
    of_edges = "y" not in arrays
    key = EDGE_Y if of_edges else "y"
    target, called = target or Targeted(), _target_names(arrays, key, path)
    target.refuse_other(arrays[key], key, path)
    if target.by_class:
        check_array(arrays[key], key, np.int64, (None,), path)
    y = arrays[key] if target.by_class else target.of_array(arrays[key], key, path, called)
    x = _features(arrays, path)
    nodes = x.shape[0] if of_edges else len(arrays["graph_of"]) if "graph_of" in arrays else len(y)
    attributes = _edge_attributes(arrays, nodes, loops, path)
    names = _names(arrays, x.shape[1], path, target.by_class)
    dataset = Dataset(
        name=name,
        x=x,
        edges=arrays["edge_index"] if attributes is None else skeleton(attributes.ends, nodes),
        edge_attrs=attributes,
        y=y,
        classes=len(names.get("labels", ())) or (int(y.max(initial=-1)) + 1 if target.by_class else 0),
        public=_split_of_edges(arrays, len(y), path) if of_edges else _split(arrays, len(y), path),
        sensitive=arrays.get("sens"),
        graph_of=arrays.get("graph_of"),
        node_labels=arrays.get("node_labels"),
        edge_labels=arrays.get("edge_labels"),
        owner=arrays.get("owner"),
        ids=_text(arrays, IDS, len(y), "one for each label in y", path),
        scaffold=arrays.get("scaffold"),
        outside=_outside(arrays, nodes, attributes, path),
        node_ids=_text(arrays, NODE_IDS, nodes, "one for each node", path) if of_edges else (),
        **names,  # type: ignore[arg-type]
    )
    dataset = replace(dataset, **target.fields(y, target.names_of_array(called)))
    return check(with_constant(dataset), path, labelled)


def _target_names(arrays: dict[str, np.ndarray], key: str, path: Path) -> tuple[str, ...]:
    """The names of the columns of `y`; () where the file has none."""
    y = arrays[key]
    return _text(arrays, TARGETS, y.shape[1] if y.ndim == 2 else 1, f"one for each column of {key}", path)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    again = "Get the file again, or write it again with numpy.savez_compressed."
    if not path.is_file():
        refuse(path, "this is not a file", "Name the .npz file itself.")
    try:
        check_archive(path, path.stat().st_size)
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            refuse(path, "this is a single array, not an .npz archive", again)
        with archive as file:
            _check_names(file.files, path)
            return {key: file[key] for key in file.files}
    except DecompressionBomb as error:
        refuse(path, str(error), "Write it with numpy.savez, without compression, if that is meant.")
    except ValueError as error:
        if "pickle" not in str(error).lower():
            refuse(path, f"the file is truncated or damaged ({error})", again)
        refuse(path, f"the file holds pickled objects or is no archive ({error})", "fedweave never unpickles. " + again)
    except ARCHIVE_FAULTS as error:
        refuse(path, f"the file is truncated or damaged ({type(error).__name__}: {error})", again)


def _loopless(arrays: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The arrays without edges of a node with itself."""
    pairs = arrays["edge_index"]
    if pairs.ndim != 2 or len(pairs) != 2:
        return arrays  # refused by its shape
    apart = pairs[0] != pairs[1]
    note_loops(int((~apart).sum()), len(apart), path)
    rows = [key for key in ("edge_labels", *EDGE_ARRAYS) if key in arrays and len(arrays[key]) == len(apart)]
    return arrays | {"edge_index": pairs[:, apart]} | {key: arrays[key][apart] for key in rows}


def _edge_attributes(arrays: dict[str, np.ndarray], nodes: int, loops: str, path: Path) -> EdgeAttributes | None:
    """The edge attributes; None if the file has none."""
    if not {DIRECTED, *EDGE_ARRAYS} & arrays.keys():
        return None
    index, directed = arrays["edge_index"], arrays.get(DIRECTED, np.array(False))
    check_array(index, "edge_index", np.int64, (2, None), path)
    check_array(directed, DIRECTED, np.bool_, (), path)
    if (column := first((index.min(0) < 0) | (index.max(0) >= nodes))) is not None:
        what = f"edge_index, column {column}: an end is not in 0..{nodes - 1}"
        refuse(path, what, "Remove the edge or add the node.")
    if loops != "keep" and (column := first(index[0] == index[1])) is not None:
        refuse(path, f"edge_index, column {column}: edge {index[0, column]} is a self loop", NO_LOOPS, "loop")
    rows = {field: arrays[key] for key, field in EDGE_ARRAYS.items() if key in arrays}
    for key in EDGE_ARRAYS:
        if key in arrays and len(arrays[key]) != index.shape[1]:
            refuse(path, f"{key} has {len(arrays[key])} rows for {index.shape[1]} edges", "Give one row for each edge.")
    width = rows["features"].shape[-1] if "features" in rows else 0
    columns = _text(arrays, EDGE_NAMES, width, "one for each column of edge_attr", path)
    scaling = tuple(map(tuple, arrays[EDGE_SCALING].tolist())) if EDGE_SCALING in arrays else ()
    attributes = EdgeAttributes(index, bool(directed), **rows, columns=columns, scaling=scaling)  # type: ignore[arg-type]
    of_owners = (
        _text(arrays, EDGE_OWNERS, arrays[EDGE_OWNERS].size, "one for each owner", path)
        if EDGE_OWNERS in arrays
        else ()
    )
    attributes = attributes._replace(owners=of_owners)
    if SPLIT_TIMES in arrays:
        check_array(arrays[SPLIT_TIMES], SPLIT_TIMES, np.float64, (2,), path)
        if "time" not in rows:
            refuse(path, f"{SPLIT_TIMES} needs edge_time", f"Add edge_time, or leave {SPLIT_TIMES} out.")
        attributes = attributes._replace(split_times=(float(arrays[SPLIT_TIMES][0]), float(arrays[SPLIT_TIMES][1])))
    return one_direction(attributes, path) if "y" in arrays else attributes._replace(examples=True, y=None, split=None)


def _outside(arrays: dict[str, np.ndarray], nodes: int, inside: EdgeAttributes | None, path: Path) -> Outside | None:
    """Edges to nodes elsewhere; None if the file has no arrays for them."""
    if OUTSIDE_INDEX not in arrays:
        return None
    index, names_array = arrays[OUTSIDE_INDEX], arrays.get(OUTSIDE_NAMES, np.empty(0, "U1"))
    check_array(index, OUTSIDE_INDEX, np.int64, (2, None), path)
    names = _text(arrays, OUTSIDE_NAMES, names_array.size, "one for each node elsewhere", path)
    odd = ((index < nodes).sum(0) != 1) | (index.min(0) < 0) | (index.max(0) >= nodes + len(names))
    if (at := first(odd)) is not None:
        what = f"{OUTSIDE_INDEX}, column {at}: one end is to be a node, and the other one of {OUTSIDE_NAMES}"
        refuse(path, what, f"Write the node's number, and {nodes} and the place of the other's name.")
    rows: Record = {field: arrays[key] for key, field in OUTSIDE.items() if key in arrays}
    wanted = {field for field in OUTSIDE.values() if inside is not None and getattr(inside, field) is not None}
    if rows.keys() != wanted or any(len(field) != index.shape[1] for field in rows.values()):
        refuse(path, "edges to nodes elsewhere have other attributes than edges between nodes", "Give both the same.")
    attributes = (
        EdgeAttributes(index, False) if inside is None else inside._replace(ends=index, y=None, split=None, **rows)
    )
    return Outside(attributes, names)


def _check_names(names: list[str], path: Path) -> None:
    of_edges = EDGE_Y in names and "y" not in names
    missing = [key for key in REQUIRED if key not in names and not (of_edges and key == "y")]
    if missing:
        refuse(path, f"missing arrays: {', '.join(missing)}", f"Required are {', '.join(REQUIRED)}.")
    if of_edges and (odd := [key for key in (*SPLIT, "graph_of") if key in names]):
        refuse(
            path,
            f"{odd[0]} is there, and no y",
            f"The examples are edges: leave it out; {EDGE_SPLIT} says splits.",
        )
    unknown = [key for key in names if key not in REQUIRED + OPTIONAL]
    if unknown:
        masks = any("mask" in key for key in unknown)
        split = " A mask becomes a split by train_idx = numpy.flatnonzero(train_mask)." if masks else ""
        remedy = f"Remove them; allowed too are {', '.join(OPTIONAL)}.{split}"
        refuse(path, f"unknown arrays: {', '.join(unknown)}", remedy, "arrays-unknown")
    if 0 < sum(key in names for key in SPLIT) < len(SPLIT):
        refuse(path, "the split is incomplete", f"Give all of {', '.join(SPLIT)}, or none.")


def _features(arrays: dict[str, np.ndarray], path: Path) -> sp.csr_matrix:
    check_array(arrays["x_shape"], "x_shape", np.int64, (2,), path)
    if arrays["x_data"].dtype.kind in "iuf":
        _check_kept(arrays["x_data"], arrays["x_indices"], int(arrays["x_shape"][0]), path)
    check_array(arrays["x_data"], "x_data", np.float32, (None,), path)
    for key in ("x_indices", "x_indptr"):
        wanted = np.int32 if arrays[key].dtype == np.int32 else np.int64
        check_array(arrays[key], key, wanted, (None,), path)
    shape = tuple(int(size) for size in arrays["x_shape"])
    parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
    try:
        return sp.csr_matrix(parts, shape=shape)
    except (ValueError, OverflowError) as error:
        refuse(
            path,
            f"x_data, x_indices, x_indptr and x_shape {shape} are no CSR matrix ({error})",
            "Write all four from one scipy.sparse.csr_matrix.",
        )


def _check_kept(values: np.ndarray, columns: np.ndarray, rows: int, path: Path) -> None:
    """Refuse values [m] which the remedy for their type, storing them as float32, would blur within a column; one zero
    stands for the cells that are not stored."""

    def refuse_at(row: int, what: str, remedy: str) -> None:
        refuse(path, f"x_data: {what}", remedy)

    if np.can_cast(values.dtype, np.float32) or values.shape != columns.shape or values.ndim != 1:
        return  # kept whole, or no CSR matrix, which is refused by its shapes
    order = np.argsort(columns, kind="stable")
    starts = np.flatnonzero(np.diff(columns[order])) + 1
    for entries in np.split(order, starts) if len(order) else ():
        held = values[entries] if len(entries) >= rows else np.append(values[entries], np.zeros(1, values.dtype))
        if np.isfinite(held).all():
            refuse_merged(held, f"a number in column {columns[entries[0]]}", refuse_at)


def _names(arrays: dict[str, np.ndarray], features: int, path: Path, classes: bool) -> dict[str, tuple[str, ...]]:
    """{what a dataset calls them: names}, () where the file has none. classes: whether y has these, which may have
    names."""
    wanted = {"feature_names": (features, "one for each column of x")}
    for key, numbers in NUMBERED.items():
        if key == "label_names" and not classes:
            continue
        numbers = EDGE_Y if numbers == "y" and "y" not in arrays else numbers
        most = int(arrays[numbers].max(initial=-1)) + 1 if numbers in arrays else 0
        count = max(most, arrays[key].size if key in arrays else 0)  # some may not occur
        wanted[key] = (count, f"one for each number in {numbers}, from 0")
    return {field: _text(arrays, key, *wanted[key], path) for key, field in NAMES.items() if key in wanted}


def _text(arrays: dict[str, np.ndarray], key: str, count: int, which: str, path: Path) -> tuple[str, ...]:
    """The `count` different words of an array, () where it is not there."""
    if key not in arrays:
        return ()
    held = arrays[key]
    if held.dtype.kind != "U" or held.shape != (count,):
        what = f"{key} has dtype {held.dtype} and shape {held.shape}, not text and ({count},)"
        refuse(path, what, f"Write numpy.array(list of str), {which}.")
    unique, times = np.unique(held, return_counts=True)
    if (row := first(held == "")) is not None:
        refuse(path, f"{key}, row {row} is empty", "Write text for every one.")
    if (row := first(times > 1)) is not None:
        refuse(path, f"{key}: {str(unique[row])!r} stands there {times[row]} times", "Call every one otherwise.")
    return tuple(held.tolist())


def _split_of_edges(arrays: dict[str, np.ndarray], examples: int, path: Path) -> np.ndarray | None:
    if EDGE_SPLIT not in arrays:
        return None
    which = arrays[EDGE_SPLIT]
    check_array(which, EDGE_SPLIT, np.int64, (examples,), path)
    if (row := first((which < -1) | (which >= len(SPLIT)))) is not None:
        refuse(path, f"{EDGE_SPLIT}, row {row}: {which[row]}", "Use 0 train, 1 val, 2 test, or -1 for none.")
    result: np.ndarray = which == np.arange(len(SPLIT))[:, None]
    return result


def _split(arrays: dict[str, np.ndarray], examples: int, path: Path) -> np.ndarray | None:
    if SPLIT[0] not in arrays:
        return None
    masks = np.zeros((len(SPLIT), examples), np.bool_)
    for mask, key in zip(masks, SPLIT, strict=True):
        check_array(arrays[key], key, np.int64, (None,), path)
        row = first((arrays[key] < 0) | (arrays[key] >= examples))
        if row is not None:
            what = "graph" if "graph_of" in arrays else "node"
            refuse(path, f"{key}, row {row}: {what} {arrays[key][row]} is not in 0..{examples - 1}", "Remove it.")
        mask[arrays[key]] = True
    return masks


def holds_graphs(path: Path) -> bool:
    """Whether it is a file whose examples are small graphs; nothing but its list of arrays is read."""
    try:
        with zipfile.ZipFile(path) as held:
            return "graph_of.npy" in held.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def without_gaps(path: Path, data: Dataset) -> Dataset:
    """The data of `path`, whose classes are numbered without gaps.

    Raises:
        DataError: a label is far beyond the others; names its row.
    """
    remedy = "Number the classes from 0, without gaps."
    refuse_stray(data.y, lambda row, what: refuse(path, f"y, row {row}: {what}", remedy))
    return data


@dataclass(frozen=True)
class Archive(EdgeScaling, ArraySettings, Targeted):
    """Your own graph in one .npz file ([data] path), in the layout of `npz`.

    task: what is classified where the file says classes of nodes and of edges: "nodes" or "edges".
    """

    task: Literal["nodes", "edges"] = "nodes"

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graph in the file `root`, called like it; `seed` is not used.

        Raises:
            ConfigError: no file is given. DataError: it is refused (see `npz.read`).
        """
        if root is None:
            raise ConfigError('The dataset "npz" needs a file: set [data] path to it.', code="config.missing")
        if not root.is_file():
            refuse(root, "this is not a file", "Name the .npz file itself.")
        return self.from_file(root, partial(without_gaps, root))

    def from_file(self, path: Path, classed: Callable[[Dataset], Dataset]) -> Dataset:
        """The graph in the file `path`; classed: what makes its classes those that are wanted, or refuses them.

        Raises:
            DataError: it is refused (see `npz.read`).
        """
        data = check_sensitive(read(path, path.stem, loops=self.loops, target=self), path, self.sens_feature)
        data = as_edges(data) if self.task == "edges" and data.example != "edge" else data
        data = classed(data) if data.target == CLASS else data
        attributes = None if data.edge_attrs is None else scale_features(data.edge_attrs, self.edge_normalize, path)
        return scale_by_holders(replace(data, x=compact(data.x), edge_attrs=attributes), self.normalize, data.name)
