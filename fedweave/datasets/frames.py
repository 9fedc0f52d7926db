"""Data that is in memory already: tables, a PyTorch Geometric `Data`, a networkx graph."""

from collections.abc import Sequence
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

    features: the attributes to take, in order; by default all. options: see `from_frames`.

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
    ends = [(str(a), str(b)) for a, b in graph.edges() if a != b]
    edges = {"source": [a for a, _ in ends], "target": [b for _, b in ends]}
    return from_frames(
        _columns(columns), pa.table(edges, pa.schema([(k, pa.string()) for k in edges])), name, **options
    )


def from_pyg(data: Any, name: str = "pyg") -> Dataset:
    """The graph of a `torch_geometric.data.Data` with x, edge_index and y, and where it has them train_mask, val_mask
    and test_mask, and sens. Edges lose their direction, self loops are dropped; y = -1 is unlabelled.

    Raises:
        DataError: one of the three is missing, or breaks what `Dataset` promises.
    """
    if missing := [key for key in ("x", "edge_index", "y") if getattr(data, key, None) is None]:
        refuse(name, f"the data has no {', '.join(missing)}", "Give x, edge_index and y.")
    x, y, pairs = (_array(getattr(data, key)) for key in ("x", "y", "edge_index"))
    if x.ndim != 2 or pairs.ndim != 2 or len(pairs) != 2 or y.shape not in ((len(x),), (len(x), 1)):
        shapes = ", ".join(f"{key} {list(it.shape)}" for key, it in (("x", x), ("edge_index", pairs), ("y", y)))
        refuse(
            name, f"the shapes do not fit: {shapes}", "Give x [n, d], edge_index [2, E] and a class per node, y [n]."
        )
    if not (y == y.astype(np.int64)).all():
        refuse(name, "y holds numbers that are not whole", "Number the classes from 0; -1 is unlabelled.")
    source, target = pairs
    apart = source != target
    masks = [getattr(data, f"{split}_mask", None) for split in ("train", "val", "test")]
    sens = getattr(data, "sens", None)
    whole = y.astype(np.int64).reshape(len(x))
    made = Dataset(
        name=name,
        x=compact(_narrowed(x, name)),
        edges=undirected(source[apart], target[apart], len(x)),
        y=whole,
        classes=int(whole.max(initial=-1)) + 1,
        sens=None if sens is None else _array(sens).astype(np.int64),
        public=None if any(m is None for m in masks) else np.stack([_array(m) for m in masks]),
    )
    return check(made, name)


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
    """Arrow columns; what has values of several types becomes text."""
    made = {}
    for name, values in columns.items():
        try:
            made[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            made[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(made)


def _tables(root: Path, **frames: Any) -> list[Table]:
    return [Table(root / kind, _table(kind, frame), 0) for kind, frame in frames.items()]


def _table(kind: str, frame: Any) -> pa.Table:
    try:
        if isinstance(frame, pa.Table):
            return _plain(frame)
        if hasattr(frame, "__arrow_c_stream__"):
            made = _plain(pa.table(frame))
        else:
            made = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{kind}: {type(frame).__name__} cannot be read as a table ({error}). {_FRAMES}") from error
    return made.drop_columns([name for name in made.column_names if name.startswith("__index_level_")])


def _plain(table: pa.Table) -> pa.Table:
    """The table with text as Arrow's usual strings, which polars hands over as views."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            own = table.column(at).unify_dictionaries().combine_chunks()
            table = table.set_column(at, field.name, own.dictionary.cast(pa.string()).take(own.indices))
        elif pa.types.is_string_view(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
    return table
