"""Data that is in memory already: tables, a networkx graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedweave.core.arrow_types import plain
from fedweave.core.links import Links
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.column_names import NODES
from fedweave.datasets.edges import direction_note
from fedweave.datasets.folder import KIND, Folder
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.links import TASK, as_links, links_of
from fedweave.datasets.table import Table, Tables
from fedweave.errors import DataError

_RENAME = "Give it another name, or list in `features` those that are."
MAX_SHOWN = 10  # attributes of nodes that a refusal lists
_FRAMES = "Give a pandas or polars frame, or an Arrow table."


def from_frames(nodes: object, edges: object, name: str = "frames", **options: Any) -> Dataset:
    """The graph of two tables with the columns of docs/data-format.md: pandas or polars frames, or Arrow tables.

    options: of `folder.Folder`, such as labels, categories or owner; with task = "links" also of `core.links.Links`.
    Complaints count rows from 0, as frames do.

    Raises:
        ConfigError, DataError: see `folder.Folder`.
    """
    return _of_tables(*_kind_of(options), nodes, edges, name)


def _kind_of(options: Values) -> tuple[Folder, Links | None]:
    """How tables are read, and how links are their examples; None where the task is another."""
    settings, links = links_of(options)
    return Folder(**settings) if links is None else Folder(**{**settings, "task": TASK}), links


def _of_tables(kind: Folder, links: Links | None, nodes: object, edges: object, name: str) -> Dataset:
    root = Path(name)
    data = kind.dataset(kind.rename_columns(root, _tables(root, nodes=nodes, edges=edges)), root, labelled=True)
    return data if links is None else as_links(data, links)


def from_graph_frames(
    graphs: object, nodes: object = None, edges: object = None, name: str = "frames", **options: Any
) -> Dataset:
    """The small graphs of three such tables, or the molecules of one with a column smiles (`molecules.tables_of`).

    options: of `folder.GraphFolder`, such as labels or node_labels.

    Raises:
        ConfigError, DataError: see `folder.GraphFolder`.
    """
    root = Path(name)
    kind = GraphFolder(**options)
    if nodes is None and edges is None:
        return kind.build_molecules(Table(root / "graphs", _table("graphs", graphs), 0), root)
    return kind.build(kind.rename_columns(root, _tables(root, nodes=nodes, edges=edges, graphs=graphs)), root)


def from_networkx(
    graph: Any, label: str = "label", features: Sequence[str] | None = None, name: str = "networkx", **options: Any
) -> Dataset:
    """The graph of a `networkx.Graph`, undirected unless `directed` is True; attributes of nodes are features, except
    for `label`, "sens" and "split".

    label: the attribute with the class, or number, which every node, or with `task` "edges" every edge, has; None where
    it is unlabeled. With `targets`, in the options, these attributes are predicted, which none need have.
    features: the nodes' attributes to take, in order; by default all. options: see `from_frames`; what
    edges have is refused unless `edge_features`, `edge_weight` or `edge_time` takes it, `ignore` names it, such as
    "edges.date", or it is a "weight" that is 1 everywhere; as examples they may have "sens", "split" and "id", too.
    Loops are dropped unless `loops` is "keep".

    Raises:
        ConfigError, DataError: see `from_frames`; or a node, or edge, has no `label`, or no node one of `features`.
    """
    kind, links = _kind_of(options)
    label, targets = str(label), tuple(map(str, kind.targets or ()))
    # 1. The attributes of nodes and of edges.
    nodes = {node: _by_text(attributes) for node, attributes in graph.nodes(data=True)}
    edges = [((source, target), _by_text(attributes)) for source, target, attributes in graph.edges(data=True)]
    node_attributes = set[str]().union(*nodes.values())
    edge_attributes = set[str]().union(*(attributes for _, attributes in edges))
    for key in map(str, features or ()):
        if nodes and key not in node_attributes:
            message = f"no node has the attribute {key!r}, which `features` names"
            refuse(name, message, _list_attributes(key, node_attributes))
    # 2. What is predicted: of nodes, or of edges. The label of a link is its relation.
    labelled_edges = kind.of_edges or (kind.of_links and label in edge_attributes)
    if kind.of_links and not labelled_edges:
        label = "label"
    elif targets:
        what, attributes = ("edge", edge_attributes) if kind.of_edges else ("node", node_attributes)
        for target in targets:
            if target not in attributes:
                message = f"no {what} has the attribute {target!r}, which `targets` names"
                refuse(name, message, _list_attributes(target, attributes, what), "column-named")
    else:
        _check_labels(edges if labelled_edges else [*nodes.items()], label, "edge" if labelled_edges else "node", name)
    node_label = "label" if labelled_edges else label  # which no model reads, if there is one
    # 3. The features of nodes; a kind, an owner, a time and targets are columns that `Folder` knows by their names.
    kinds = [KIND] if kind.of_links and KIND in node_attributes else []
    if features is None:
        feature_names = sorted(node_attributes - {node_label, "sens", "split", *kinds, *targets})
    else:
        feature_names = [*map(str, features)]
    if not kind.of_edges:
        feature_names += targets
    for column in (kind.owner, kind.node_time):
        if column is not None and column in node_attributes and column not in feature_names:
            feature_names.append(column)
    for key in sorted(set(feature_names) & set(NODES)):
        refuse(name, f"the attribute {key!r} would be a feature, but is a column with a meaning", _RENAME)
    # 4. The tables of nodes and edges.
    columns: dict[str, list[object]] = {"id": [str(node) for node in nodes]}
    needs_label = not (kind.of_edges or kind.of_links or targets)
    for column in ("label", "sens", "split", *kinds, *feature_names):
        attribute = node_label if column == "label" else column
        is_needed = column in feature_names or (column == "label" and needs_label)
        if is_needed or any(attribute in attributes for attributes in nodes.values()):
            columns[column] = [attributes.get(attribute) for attributes in nodes.values()]
    edge_table = _edge_table(graph, edges, kind, label if labelled_edges and not targets else None, name)
    dataset = _of_tables(kind, links, _columns(columns), edge_table, name)
    notes = direction_note(dataset.edge_attrs, not graph.is_directed(), options.get("directed"))
    return replace(dataset, notes=(*dataset.notes, *notes))


def _check_labels(known: Sequence[tuple[object, Mapping[str, object]]], label: str, what: str, name: str) -> None:
    """Reject a `label` that some nodes or edges lack."""
    lacking = [one for one, attributes in known if label not in attributes]
    names = chain.from_iterable(attributes for _, attributes in known)
    remedy = _list_attributes(label, set(names), what)
    if lacking and len(lacking) == len(known):
        message = f"none of {len(known):,} {what}s has the attribute {label!r}"
        refuse(name, message, f"{remedy} Set `label` to the attribute with each {what}'s class.")
    if lacking:
        lack = "lacks" if len(lacking) == 1 else "lack"
        message = f"{len(lacking):,} of {len(known):,} {what}s {lack} the attribute {label!r}, such as {lacking[0]!r}"
        refuse(name, message, f"Set it, to None where a {what} is unlabeled, or name another in `label`. {remedy}")


def _list_attributes(name: str, attributes: set[str], what: str = "node") -> str:
    """A sentence on the existing attributes, the nearest to a name first."""
    ratios = {key: SequenceMatcher(None, name.lower(), key.lower()).ratio() for key in attributes}
    names = [repr(key) for key in sorted(attributes, key=lambda key: (-ratios[key], key))]
    more = f" and {len(names) - MAX_SHOWN:,} more" if names[MAX_SHOWN:] else ""
    return f"There are {', '.join(names[:MAX_SHOWN])}{more}." if names else f"The {what}s have no attributes."


def _edge_table(
    graph: Any, edges: Sequence[tuple[tuple[Any, Any], Record]], kind: Folder, label: str | None, name: str
) -> pa.Table:
    """The ends of all edges, as text, and what else edges have, their class as "label", except weights of 1 that no
    option names; loops where these are kept."""
    if kind.loops != "keep":
        place = {node: at for at, node in enumerate(graph)}  # nodes such as NumPy's numbers and tuples do not compare
        edges = [edge for edge in edges if place[edge[0][0]] != place[edge[0][1]]]
    ends = {"source": [str(source) for (source, _), _ in edges], "target": [str(target) for (_, target), _ in edges]}
    columns = dict[str, list[object]]()
    for key in dict.fromkeys(chain.from_iterable(attributes for _, attributes in edges)):
        if key in ends:
            refuse(name, f"edges have an attribute {key!r}, which is the name of one of their ends", "Rename it.")
        if key == "label" and label not in (None, "label"):
            what = "edges have an attribute 'label', which `label` does not name"
            refuse(name, what, "Rename it, or name it in `label`.")
        columns["label" if key == label else key] = [attributes.get(key) for _, attributes in edges]
    options = {*(kind.ignore or ()), kind.edge_weight, *kind.feature_columns}
    weights = [attributes.get("weight", 1) for _, attributes in edges]
    if not {"weight", "edges.weight"} & options and all(np.all(weight == 1) for weight in weights):
        columns.pop("weight", None)
    table = pa.table(ends, pa.schema([(end, pa.string()) for end in ends]))
    attributes = _columns(columns)
    for column in attributes.column_names:
        table = table.append_column(column, attributes[column])
    return table


def _by_text(attributes: Mapping[object, object]) -> Record:
    """Attributes with their names as text, as columns need."""
    return {str(key): value for key, value in attributes.items()}


def _columns(columns: dict[str, list[object]]) -> pa.Table:
    """Arrow columns; what has values of several types, or of more than 64 bits, becomes text."""
    arrays = {}
    for name, values in columns.items():
        values = _separate_times(values)
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            arrays[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(arrays)


def _separate_times(values: list[object]) -> list[object]:
    """Values as text where some are times with a zone and others times without, for which Arrow would take UTC."""
    is_time = [isinstance(value, datetime) for value in values]
    times = [value for value in values if isinstance(value, datetime) and value == value]  # NaT is not itself
    if len({time.tzinfo is None for time in times}) < 2:
        return values
    texts = [str(value) if value == value else None for value in values]
    return [text if time else value for text, time, value in zip(texts, is_time, values, strict=True)]


def _tables(root: Path, **frames: object) -> Tables:
    return Tables(**{kind: Table(root / kind, _table(kind, frame), 0) for kind, frame in frames.items()})


def _table(kind: str, frame: Any) -> pa.Table:
    try:
        if isinstance(frame, pa.Table):
            return plain(frame)
        if hasattr(frame, "isetitem"):  # a frame of pandas, whose columns of objects may mix times
            for at, dtype in enumerate(frame.dtypes):
                values = frame.iloc[:, at].tolist() if dtype.kind == "O" else []
                separate = _separate_times(values)
                if separate is not values:
                    frame = frame.copy(deep=False)
                    frame.isetitem(at, separate)
        if hasattr(frame, "__arrow_c_stream__"):
            return plain(pa.table(frame))
        return plain(pa.Table.from_pandas(frame, preserve_index=False))
    except OverflowError as error:
        remedy = "Give such a column as text: .astype(str)."
        raise DataError(f"{kind}: a column has whole numbers of more than 64 bits ({error}). {remedy}") from error
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{kind}: {type(frame).__name__} cannot be read as a table ({error}). {_FRAMES}") from error
