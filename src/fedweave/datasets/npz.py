"""A graph, or a collection of small graphs, in one `.npz` file without pickled objects.

Arrays: `x_data` float32, `x_indices`, `x_indptr` int32 or int64 and `x_shape` int64 (nodes, features): the CSR parts of
the features, or `x` float32 (nodes, features) instead; `edge_index` int64 [2, E], both directions, sorted, no
duplicates, no self loops; `y` int64, -1 is unlabeled. Optional: `train_idx`, `val_idx`, `test_idx` int64 (all three or
none), `sens`, `graph_of`, `node_labels` and `edge_labels` int64 as in `Dataset`, -1 is unknown; `ids`, text. With
`graph_of`, y, the split, `sens` and `ids` are of small graphs. `feature_names`, `label_names` and `group_names`, text:
names of the columns of features, the classes from 0 and the groups of `sens` from 0, all different. `owner` int64, the
owner of each example, and `owner_names`; `node_kind_names` and `edge_kind_names` of what `node_labels` and
`edge_labels` number.

Numbers, or several yes-or-no labels, to predict ([data] target): `y` float64 [e] or [e, t], NaN at gaps, or labels also
int64, -1 at gaps; `target_names`, text, names of its columns.

Edges as examples: `edge_y` int64 [E] instead of `y`, and optionally `edge_split` int64 [E], 0 train, 1 val, 2 test and
-1 none. Then `sens` and `ids` are of edges, `owner` and `node_ids` of nodes, and each edge is in `edge_index` once.

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
from fedweave.core.graph_arrays import Matrix
from fedweave.core.target import CLASS
from fedweave.core.types import Record
from fedweave.datasets.base import (
    CSR,
    DENSE,
    EDGE_ARRAYS,
    NAMES,
    NO_LOOPS,
    NUMBERED,
    OPTIONAL,
    OUTSIDE,
    REQUIRED,
    SPLIT,
    ColumnRange,
    Dataset,
    note_loops,
    to_undirected,
)
from fedweave.datasets.base import write as write
from fedweave.datasets.check import check, check_array, refuse, refuse_first
from fedweave.datasets.edges import as_edges, one_direction, scale_features
from fedweave.datasets.external import Outside
from fedweave.datasets.features import compact, refuse_merged, scale_by_holders, with_constant
from fedweave.datasets.labels import refuse_stray
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.settings import ArraySettings, InputSettings
from fedweave.datasets.structure import with_places
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError


def read(
    path: Path, name: str, labelled: bool = True, loops: str = "refuse", target: Targeted | None = None
) -> Dataset:
    """The checked dataset in `path`; features as the file has them, classes counted from their names or the labels.

    labelled: see `check.check`. loops: edges of a node with itself, "refuse" or "drop", which logs how many. target:
    what is predicted, by default a class.

    Raises:
        DataError: the file cannot be read, or breaks the layout above; the message names array, row and remedy.
    """
    # 1. The arrays, without edges of a node with itself.
    arrays = _arrays(path)
    pairs = arrays["edge_index"]
    if loops == "drop" and pairs.ndim == 2 and len(pairs) == 2:  # another shape is refused later
        mask = pairs[0] != pairs[1]
        note_loops(int((~mask).sum()), len(mask), path)
        arrays["edge_index"] = pairs[:, mask]
        for key in ("edge_labels", *EDGE_ARRAYS):
            if key in arrays and len(arrays[key]) == len(mask):
                arrays[key] = arrays[key][mask]
    # 2. The target of the examples: nodes, small graphs or, without y, edges.
    target, of_edges = target or Targeted(), "y" not in arrays
    key = "edge_y" if of_edges else "y"
    y = arrays[key]
    which = f"one for each column of {key}"
    target_names = _text(arrays, "target_names", y.shape[1] if y.ndim == 2 else 1, which, path)
    target.refuse_other(y, key, path)
    if target.by_class:
        check_array(y, key, np.int64, (None,), path)
    else:
        y = target.of_array(y, key, path, target_names)
    # 3. Nodes and edges, and their names.
    x = _features(arrays, path)
    nodes = x.shape[0] if of_edges else len(arrays.get("graph_of", y))
    attributes = _edge_attributes(arrays, nodes, loops, path)
    names = _names(arrays, x.shape[1], path, target.by_class)
    dataset = Dataset(
        name=name,
        x=x,
        edges=arrays["edge_index"] if attributes is None else to_undirected(attributes.ends, nodes),
        edge_attrs=attributes,
        y=y,
        classes=len(names.get("labels", ())) or (int(y.max(initial=-1)) + 1 if target.by_class else 0),
        public=_masks(arrays, len(y), of_edges, path),
        sensitive=arrays.get("sens"),
        graph_of=arrays.get("graph_of"),
        graph_columns=_graph_columns(arrays, x.shape[1], path),
        node_labels=arrays.get("node_labels"),
        edge_labels=arrays.get("edge_labels"),
        owner=arrays.get("owner"),
        ids=_text(arrays, "ids", len(y), "one for each label in y", path),
        scaffold=arrays.get("scaffold"),
        outside=_outside(arrays, nodes, attributes, path),
        node_ids=_text(arrays, "node_ids", nodes, "one for each node", path) if of_edges else (),
        **names,  # type: ignore[arg-type]
    )
    dataset = replace(dataset, **target.fields(y, target.names_of_array(target_names)))
    return check(with_constant(dataset), path, labelled)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file, if their names are those of the layout."""
    retry = "Get the file again, or write it again with numpy.savez_compressed."
    if not path.is_file():
        refuse(path, "this is not a file", "Name the .npz file itself.")
    try:
        check_archive(path, path.stat().st_size)
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            refuse(path, "this is a single array, not an .npz archive", retry)
        with archive as file:
            _check_names(file.files, path)
            return {key: file[key] for key in file.files}
    except DecompressionBomb as error:
        refuse(path, str(error), "Write it with numpy.savez, without compression, if that is meant.")
    except ValueError as error:
        if "pickle" not in str(error).lower():
            refuse(path, f"the file is truncated or damaged ({error})", retry)
        refuse(
            path, f"the file holds pickled objects or is not an archive ({error})", "fedweave never unpickles. " + retry
        )
    except ARCHIVE_FAULTS as error:
        refuse(path, f"the file is truncated or damaged ({type(error).__name__}: {error})", retry)


def _check_names(names: list[str], path: Path) -> None:
    of_edges = "edge_y" in names and "y" not in names
    dense = DENSE in names
    missing = [key for key in REQUIRED if key not in names and not (dense and key in CSR)]
    if of_edges:
        missing.remove("y")
    if missing:
        refuse(path, f"missing arrays: {', '.join(missing)}", f"Required are {', '.join(REQUIRED)}.")
    for key in (*SPLIT, "graph_of"):
        if of_edges and key in names:
            remedy = "The examples are edges: leave it out; edge_split says splits."
            refuse(path, f"{key} is there, and no y", remedy)
    twice = [key for key in CSR if dense and key in names]
    if twice:
        refuse(path, f"x and {', '.join(twice)} are there", "Store the features once: x, or their CSR parts.")
    unknown = [key for key in names if key not in (*REQUIRED, DENSE, *OPTIONAL)]
    if unknown:
        masks = any("mask" in key for key in unknown)
        split = " A mask becomes a split by train_idx = numpy.flatnonzero(train_mask)." if masks else ""
        remedy = f"Remove them; allowed too are {', '.join(OPTIONAL)}.{split}"
        refuse(path, f"unknown arrays: {', '.join(unknown)}", remedy, "arrays-unknown")
    if 0 < sum(key in names for key in SPLIT) < len(SPLIT):
        refuse(path, "the split is incomplete", f"Give all of {', '.join(SPLIT)}, or none.")


def _edge_attributes(arrays: dict[str, np.ndarray], nodes: int, loops: str, path: Path) -> EdgeAttributes | None:
    """The edge attributes; None if the file has none."""
    if not {"directed", *EDGE_ARRAYS} & arrays.keys():
        return None
    index, directed = arrays["edge_index"], arrays.get("directed", np.array(False))
    check_array(index, "edge_index", np.int64, (2, None), path)
    check_array(directed, "directed", np.bool_, (), path)
    what = f"an end is not in 0..{nodes - 1}"
    absent = (index.min(0) < 0) | (index.max(0) >= nodes)
    remedy = "Remove the edge or add the node."
    refuse_first(path, absent, lambda column: f"edge_index, column {column}: {what}", remedy)
    is_loop = (index[0] == index[1]) & (loops != "keep")
    loop = "edge_index, column {}: edge {} is a self loop".format
    refuse_first(path, is_loop, lambda column: loop(column, index[0, column]), NO_LOOPS, "loop")
    rows = {field: arrays[key] for key, field in EDGE_ARRAYS.items() if key in arrays}
    for key in EDGE_ARRAYS:
        if key in arrays and len(arrays[key]) != index.shape[1]:
            refuse(path, f"{key} has {len(arrays[key])} rows for {index.shape[1]} edges", "Give one row for each edge.")
    width = rows["features"].shape[-1] if "features" in rows else 0
    owners = arrays["edge_owner_names"].size if "edge_owner_names" in arrays else 0
    attributes = EdgeAttributes(
        index,
        bool(directed),
        **rows,  # type: ignore[arg-type]
        columns=_text(arrays, "edge_feature_names", width, "one for each column of edge_attr", path),
        scaling=_scaling_of(arrays),
        owners=_text(arrays, "edge_owner_names", owners, "one for each owner", path),
    )
    if "split_until" in arrays:
        times = arrays["split_until"]
        check_array(times, "split_until", np.float64, (2,), path)
        if "time" not in rows:
            refuse(path, "split_until needs edge_time", "Add edge_time, or leave split_until out.")
        attributes = attributes._replace(split_times=(float(times[0]), float(times[1])))
    if "y" in arrays:
        return one_direction(attributes, path)
    return attributes._replace(examples=True, y=None, split=None)


def _graph_columns(arrays: dict[str, np.ndarray], features: int, path: Path) -> ColumnRange | None:
    """The columns of whole graphs of a file, which come last; None without."""
    if "graph_columns" not in arrays:
        return None
    check_array(arrays["graph_columns"], "graph_columns", np.int64, (2,), path)
    first, count = arrays["graph_columns"].tolist()
    if first < 1 or count < 1 or first + count != features:
        what = f"graph_columns are {count} from {first} on, of {features} columns"
        refuse(path, what, "Give the place of the first, and how many; they come last.")
    return ColumnRange(first, count)


def _scaling_of(arrays: dict[str, np.ndarray]) -> tuple[tuple[float, float, float], ...]:
    """`EdgeAttributes.scaling` of a file, whose rows may lack the third number."""
    rows = list[tuple[float, float, float]]()
    for shift, divisor, *asinh in arrays.get("edge_scaling", np.empty((0, 2))).tolist():
        rows.append((shift, divisor, asinh[0] if asinh else 0.0))
    return tuple(rows)


def _outside(arrays: dict[str, np.ndarray], nodes: int, inside: EdgeAttributes | None, path: Path) -> Outside | None:
    """Edges to nodes elsewhere; None if the file has no arrays for them."""
    if "outside_index" not in arrays:
        return None
    index, names_array = arrays["outside_index"], arrays.get("outside_names", np.empty(0, "U1"))
    check_array(index, "outside_index", np.int64, (2, None), path)
    names = _text(arrays, "outside_names", names_array.size, "one for each node elsewhere", path)
    not_crossing = ((index < nodes).sum(0) != 1) | (index.min(0) < 0) | (index.max(0) >= nodes + len(names))
    what = "one end is to be a node, and the other one of outside_names"
    remedy = f"Write the node's number, and {nodes} and the place of the other's name."
    refuse_first(path, not_crossing, lambda column: f"outside_index, column {column}: {what}", remedy)
    rows: Record = {field: arrays[key] for key, field in OUTSIDE.items() if key in arrays}
    fields = {field for field in OUTSIDE.values() if inside is not None and getattr(inside, field) is not None}
    if rows.keys() != fields or any(len(values) != index.shape[1] for values in rows.values()):
        refuse(path, "edges to nodes elsewhere have other attributes than edges between nodes", "Give both the same.")
    if inside is None:
        return Outside(EdgeAttributes(index, False), names)
    return Outside(inside._replace(ends=index, y=None, split=None, **rows), names)


def _features(arrays: dict[str, np.ndarray], path: Path) -> Matrix:
    # Values of another type would be refused with the remedy to store them as float32, which may blur a column. What is
    # not a matrix is refused by its shapes, below.
    def refuse_blurred(key: str, column: np.ndarray, place: int) -> None:
        if len(column) and np.isfinite(column).all():
            refuse_merged(
                column, f"a number in column {place}", lambda row, what, remedy: refuse(path, f"{key}: {what}", remedy)
            )

    def may_blur(values: np.ndarray) -> bool:
        return values.dtype.kind in "iuf" and not np.can_cast(values.dtype, np.float32)

    if DENSE in arrays:
        x = arrays[DENSE]
        if may_blur(x) and x.ndim == 2:
            for place, column in enumerate(x.T):
                refuse_blurred(DENSE, column, place)
        check_array(x, DENSE, np.float32, (None, None), path)
        return x
    values, indices, indptr = arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]
    check_array(arrays["x_shape"], "x_shape", np.int64, (2,), path)
    shape = tuple(arrays["x_shape"].tolist())
    if may_blur(values) and values.shape == indices.shape:
        order = np.argsort(indices, kind="stable")
        for entries in np.split(order, np.flatnonzero(np.diff(indices[order])) + 1) if values.ndim == 1 else ():
            column = values[entries]
            if len(entries) < shape[0]:  # one zero stands for the cells that are not stored
                column = np.append(column, np.zeros(1, values.dtype))
            if len(entries):
                refuse_blurred("x_data", column, indices[entries[0]])
    check_array(values, "x_data", np.float32, (None,), path)
    for key in ("x_indices", "x_indptr"):
        check_array(arrays[key], key, np.int32 if arrays[key].dtype == np.int32 else np.int64, (None,), path)
    try:
        return sp.csr_matrix((values, indices, indptr), shape=shape)
    except (ValueError, OverflowError) as error:
        what = f"x_data, x_indices, x_indptr and x_shape {shape} are not a CSR matrix ({error})"
        refuse(path, what, "Write all four from one scipy.sparse.csr_matrix.")


def _names(arrays: dict[str, np.ndarray], features: int, path: Path, classes: bool) -> dict[str, tuple[str, ...]]:
    """{what a dataset calls them: names}, () where the file has none. classes: whether y has these, which may have
    names."""
    names = {"columns": _text(arrays, "feature_names", features, "one for each column of x", path)}
    for key, numbers in NUMBERED.items():
        if key == "label_names" and not classes:
            continue
        numbers = "edge_y" if numbers == "y" and "y" not in arrays else numbers
        highest = int(arrays[numbers].max(initial=-1)) if numbers in arrays else -1
        count = max(highest + 1, arrays[key].size if key in arrays else 0)  # some may not occur
        names[NAMES[key]] = _text(arrays, key, count, f"one for each number in {numbers}, from 0", path)
    return names


def _text(arrays: dict[str, np.ndarray], key: str, count: int, which: str, path: Path) -> tuple[str, ...]:
    """The `count` different words of an array, () where it is not there."""
    if key not in arrays:
        return ()
    words = arrays[key]
    if words.dtype.kind != "U" or words.shape != (count,):
        what = f"{key} has dtype {words.dtype} and shape {words.shape}, not text and ({count},)"
        refuse(path, what, f"Write numpy.array(list of str), {which}.")
    unique, times = np.unique(words, return_counts=True)
    refuse_first(path, words == "", lambda row: f"{key}, row {row} is empty", "Write text for every one.")
    twice = f"{key}: {{!r}} stands there {{}} times".format
    refuse_first(path, times > 1, lambda row: twice(str(unique[row]), times[row]), "Call every one otherwise.")
    return tuple(words.tolist())


def _masks(arrays: dict[str, np.ndarray], examples: int, of_edges: bool, path: Path) -> np.ndarray | None:
    """bool [3, e], the split that the file has; of edges it has numbers, of others lists of rows."""
    if "edge_split" in arrays and of_edges:
        which = arrays["edge_split"]
        check_array(which, "edge_split", np.int64, (examples,), path)
        unknown, remedy = (which < -1) | (which >= len(SPLIT)), "Use 0 train, 1 val, 2 test, or -1 for none."
        refuse_first(path, unknown, lambda row: f"edge_split, row {row}: {which[row]}", remedy)
        return np.asarray(which == np.arange(len(SPLIT))[:, None])
    if SPLIT[0] not in arrays or of_edges:
        return None
    example, masks = "graph" if "graph_of" in arrays else "node", np.zeros((len(SPLIT), examples), np.bool_)
    for mask, key in zip(masks, SPLIT, strict=True):
        rows = arrays[key]
        check_array(rows, key, np.int64, (None,), path)
        what = f"{key}, row {{}}: {example} {{}} is not in 0..{examples - 1}".format
        absent = (rows < 0) | (rows >= examples)
        refuse_first(path, absent, lambda row: what(row, rows[row]), "Remove it.")  # noqa: B023
        mask[rows] = True
    return masks


def holds_graphs(path: Path) -> bool:
    """Whether it is a file whose examples are small graphs; nothing but its list of arrays is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "graph_of.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def without_gaps(path: Path, data: Dataset) -> Dataset:
    """The data of `path`, whose classes are numbered without gaps."""
    remedy = "Number the classes from 0, without gaps."
    refuse_stray(data.y, lambda row, what: refuse(path, f"y, row {row}: {what}", remedy))
    return data


@dataclass(frozen=True)
class Archive(InputSettings, ArraySettings, Targeted):
    """Your own graph in one .npz file ([data] path), in the layout of `npz`.

    task: what is classified where the file says classes of nodes and of edges: "nodes" or "edges".
    """

    task: Literal["nodes", "edges"] = "nodes"

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graph in the file `root`, called like it (`npz.read`)."""
        if root is None:
            raise ConfigError('The dataset "npz" needs a file: set [data] path to it.', code="config.missing")
        if not root.is_file():
            refuse(root, "this is not a file", "Name the .npz file itself.")
        return self.from_file(root, partial(without_gaps, root))

    def from_file(self, path: Path, check_classes: Callable[[Dataset], Dataset]) -> Dataset:
        """The graph in the file `path`; check_classes: what makes its classes those that are expected, or refuses them.

        Raises:
            DataError: it is refused (see `npz.read`).
        """
        data = check_sensitive(read(path, path.stem, loops=self.loops, target=self), path, self.sens_feature)
        data = as_edges(data) if self.task == "edges" and data.example != "edge" else data
        data = check_classes(data) if data.target == CLASS else data
        attributes = None if data.edge_attrs is None else scale_features(data.edge_attrs, self.edge_normalize, path)
        data = scale_by_holders(replace(data, x=compact(data.x), edge_attrs=attributes), self.normalize, data.name)
        return with_places(data, self.structure)
