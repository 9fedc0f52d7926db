"""Data that is in memory already: tables, a PyTorch Geometric `Data`, a networkx graph."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, refuse
from fedweave.datasets.columns import NODES
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import compact
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.precision import refuse_merged
from fedweave.datasets.table import Table
from fedweave.errors import DataError

_RENAME = "Give it another name, or list in `features` those that are."
_MASKS = ("train_mask", "val_mask", "test_mask")
_READ = ("x", "edge_index", "y", *_MASKS, "sens", "edge_weight", "edge_attr")
_FRAMES = "Give a pandas or polars frame, or an Arrow table."


def from_frames(nodes: Any, edges: Any, name: str = "frames", **options: Any) -> Dataset:
    """The graph of two tables with the columns of docs/data-format.md: pandas or polars frames, or Arrow tables.

    options: of `folder.Folder`, such as labels, categories or owner. Complaints count rows from 0, as frames do.

    Raises:
        ConfigError, DataError: see `folder.Folder`.
    """
    root = Path(name)
    kind = Folder(**options)
    of_nodes, of_edges = kind.named(root, *_tables(root, nodes=nodes, edges=edges))
    return kind.made(of_nodes, of_edges, root)


def from_graph_frames(graphs: Any, nodes: Any, edges: Any, name: str = "frames", **options: Any) -> Dataset:
    """The small graphs of three such tables.

    options: of `graph_folder.GraphFolder`, such as labels or node_labels.

    Raises:
        ConfigError, DataError: see `graph_folder.GraphFolder`.
    """
    root = Path(name)
    kind = GraphFolder(**options)
    of_graphs, of_nodes, of_edges = kind.named(root, *_tables(root, graphs=graphs, nodes=nodes, edges=edges))
    return kind.made(of_graphs, of_nodes, of_edges, root)


def from_networkx(
    graph: Any, label: str = "label", features: Sequence[str] | None = None, name: str = "networkx", **options: Any
) -> Dataset:
    """The graph of a `networkx.Graph`, undirected; what nodes have besides `label`, "sens" and "split" are features.

    features: the attributes to take, in order; by default all. options: see `from_frames`; what edges have is refused
    unless `ignore` names it, such as "edges.date", or it is a "weight" that is 1 everywhere.

    Raises:
        ConfigError, DataError: see `from_frames`.
    """
    known = dict(graph.nodes(data=True))
    held = {key for own in known.values() for key in own}
    chosen = sorted(held - {label, "sens", "split"}) if features is None else list(features)
    if taken := sorted(set(chosen) & set(NODES)):
        refuse(name, f"the attribute {taken[0]!r} would be a feature, but is a column with a meaning", _RENAME)
    columns: dict[str, list[Any]] = {"id": [str(node) for node in known]}
    for attribute, column in ((label, "label"), *((key, key) for key in ("sens", "split", *chosen))):
        if column in ("label", *chosen) or any(attribute in own for own in known.values()):
            columns[column] = [own.get(attribute) for own in known.values()]
    return from_frames(_columns(columns), _edges(graph, options.get("ignore") or (), name), name, **options)


def _edges(graph: Any, ignore: Sequence[str], name: str) -> pa.Table:
    """The ends of all edges but loops, as text, and what else edges have, except weights of 1 that `ignore` does not
    name."""
    ends = [(str(a), str(b), own) for a, b, own in graph.edges(data=True) if a != b]
    edges = {"source": [a for a, _, _ in ends], "target": [b for _, b, _ in ends]}
    attributes = dict.fromkeys(key for _, _, own in ends for key in own)
    if taken := [key for key in edges if key in attributes]:
        refuse(name, f"edges have an attribute {taken[0]!r}, which is what one of their ends is called", "Rename it.")
    held = {key: [own.get(key) for _, _, own in ends] for key in attributes}
    if all(own.get("weight", 1) == 1 for _, _, own in ends) and not {"weight", "edges.weight"} & set(ignore):
        held.pop("weight", None)
    made = pa.table(edges, pa.schema([(k, pa.string()) for k in edges]))
    for column in (of_edges := _columns(held)).column_names:
        made = made.append_column(column, of_edges[column])
    return made


def from_pyg(data: Any, name: str = "pyg", ignore: Sequence[str] = ()) -> Dataset:
    """The graph of a `torch_geometric.data.Data` with x, edge_index and y, and where it has them train_mask, val_mask
    and test_mask, and sens. Edges lose their direction, self loops are dropped; y = -1 is unlabelled; without val_mask,
    no node is in val.

    ignore: attributes that do not count, such as "edge_weight", which is refused otherwise unless it is 1 everywhere.

    Raises:
        DataError: one of the three is missing, `ignore` names what is not there, or the data has edge weights or breaks
            what `Dataset` promises.
    """
    held = _held(data, name, ignore)
    x, y, pairs = (held[key] for key in ("x", "y", "edge_index"))
    if x.ndim != 2 or pairs.ndim != 2 or len(pairs) != 2 or y.shape not in ((len(x),), (len(x), 1)):
        shapes = ", ".join(f"{key} {list(it.shape)}" for key, it in (("x", x), ("edge_index", pairs), ("y", y)))
        refuse(
            name, f"the shapes do not fit: {shapes}", "Give x [n, d], edge_index [2, E] and a class per node, y [n]."
        )
    for key in ("edge_weight", "edge_attr"):
        if key in held and not (held[key] == 1).all():
            remedy = f'Remove {key}, or say ignore = ["{key}"]; every edge counts 1.'
            refuse(name, f"edge weights are not supported, and the data has {key}", remedy)
    source, target = pairs
    apart = source != target
    whole = _whole(y, "y", "Number the classes from 0; -1 is unlabelled.", name).reshape(len(x))
    groups = "Number the groups from 0; -1 is unknown."
    made = Dataset(
        name=name,
        x=compact(_narrowed(x, name)),
        edges=undirected(source[apart], target[apart], len(x)),
        y=whole,
        classes=int(whole.max(initial=-1)) + 1,
        sens=_whole(held["sens"], "sens", groups, name) if "sens" in held else None,
        public=_split(held, len(x), name),
    )
    return check(made, name)


def _held(data: Any, name: str, ignore: Sequence[str]) -> dict[str, np.ndarray]:
    """What is read of the data: its attributes by name, without those of `ignore`."""
    there = [key for key in _READ if getattr(data, key, None) is not None]
    if absent := [key for key in ignore if key not in there]:
        refuse(name, f"the data has no {absent[0]!r}, which ignore names", f"Correct it; there are {', '.join(there)}.")
    if missing := [key for key in _READ[:3] if key not in there or key in ignore]:
        refuse(name, f"the data has no {', '.join(missing)}", "Give x, edge_index and y.")
    return {key: _array(getattr(data, key)) for key in there if key not in ignore}


def _whole(numbers: np.ndarray, key: str, remedy: str, name: str) -> np.ndarray:
    """The numbers as int64, if they are whole."""
    if not (np.isfinite(numbers).all() and (numbers % 1 == 0).all()):
        refuse(name, f"{key} holds numbers that are not whole", remedy)
    return numbers.astype(np.int64)


def _split(held: Mapping[str, np.ndarray], nodes: int, name: str) -> np.ndarray | None:
    """bool [3, n]: the masks, if there are any; as in tables, no node need be in val."""
    masks = {key: held.get(key) for key in _MASKS}
    if all(mask is None for mask in masks.values()):
        return None
    split = np.zeros((len(masks), nodes), bool)
    for own, (key, mask) in zip(split, masks.items(), strict=True):
        if mask is not None:
            _check_mask(mask, key, nodes, name)
            own[:] = mask
        elif key != "val_mask":
            there = [key for key in _MASKS if key in held]
            remedy = f"Add it, or read no split: ignore = {json.dumps(there)}."
            refuse(name, f"there is no {key} beside {' and '.join(there)}", remedy)
    return split


def _check_mask(mask: np.ndarray, key: str, nodes: int, name: str) -> None:
    if mask.dtype == np.bool_ and mask.shape == (nodes,):
        return
    remedy = "Give true or false for each node"
    if mask.ndim == 2 and len(mask) == nodes:
        remedy = f"Choose one of its splits, such as {key}[:, 0]"
    elif mask.shape == (nodes,) and np.isin(mask, (0, 1)).all():
        remedy += f": {key}.bool()"
    elif mask.ndim == 1 and mask.dtype.kind in "iu":
        remedy += f", not places: mask = torch.zeros({nodes}, dtype=torch.bool); mask[{key}] = True"
    refuse(name, f"{key} is {mask.dtype} {list(mask.shape)}, not bool [{nodes}]", f"{remedy}.")


def _narrowed(x: np.ndarray, name: str) -> np.ndarray:
    """Features [n, d] as float32, if it keeps the differences within each column."""

    def refuse_at(row: int, what: str, remedy: str) -> None:
        refuse(name, f"x, row {row}: {what}", remedy)

    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.ascontiguousarray(x, np.float32)
    for number in range(x.shape[1]) if not np.can_cast(x.dtype, np.float32) else ():
        if np.isfinite(narrow[:, number]).all():  # what is not is refused by `check`
            refuse_merged(x[:, number], f"column {number}", refuse_at)
    return narrow


def _array(tensor: Any) -> np.ndarray:
    """A tensor's numbers, of a sparse one with its zeros."""
    dense = tensor.to_dense() if hasattr(tensor, "to_dense") else tensor
    return np.asarray(dense.detach().cpu() if hasattr(dense, "detach") else dense)


def _columns(columns: dict[str, list[Any]]) -> pa.Table:
    """Arrow columns; what has values of several types, or of more than 64 bits, becomes text."""
    made = {}
    for name, values in columns.items():
        try:
            made[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            made[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(made)


def _tables(root: Path, **frames: Any) -> list[Table]:
    return [Table(root / kind, _table(kind, frame), 0) for kind, frame in frames.items()]


def _table(kind: str, frame: Any) -> pa.Table:
    try:
        if isinstance(frame, pa.Table):
            return _plain(frame)
        if hasattr(frame, "__arrow_c_stream__"):
            return _plain(pa.table(frame))
        return pa.Table.from_pandas(frame, preserve_index=False)
    except OverflowError as error:
        remedy = "Give such a column as text: .astype(str)."
        raise DataError(f"{kind}: a column has whole numbers of more than 64 bits ({error}). {remedy}") from error
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{kind}: {type(frame).__name__} cannot be read as a table ({error}). {_FRAMES}") from error


def _plain(table: pa.Table) -> pa.Table:
    """The table with text as Arrow's usual strings, which polars hands over as views."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            own = table.column(at).unify_dictionaries().combine_chunks()
            table = table.set_column(at, field.name, own.dictionary.cast(pa.string()).take(own.indices))
        elif pa.types.is_string_view(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
    return table
