"""Data that is in memory already: tables, a networkx graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import SequenceMatcher
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
_SHOWN = 10  # attributes of nodes that a refusal lists
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
    others, links = links_of(options)
    task: Record = {} if links is None else {"task": TASK}
    return Folder(**{**others, **task}), links


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
        return kind.made_of_smiles(Table(root / "graphs", _table("graphs", graphs), 0), root)
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
    nodes_by_name = {node: _by_text(attributes) for node, attributes in graph.nodes(data=True)}
    attribute_names = {key for attributes in nodes_by_name.values() for key in attributes}
    label, features = str(label), None if features is None else [*map(str, features)]
    for key in features or ():
        if nodes_by_name and key not in attribute_names:
            refuse(
                name, f"no node has the attribute {key!r}, which `features` names", _attributes(key, attribute_names)
            )
    targets = tuple(map(str, kind.targets or ()))
    edge_names = {key for _, _, attributes in graph.edges(data=True) for key in _by_text(attributes)}
    labelled_edges = kind.of_edges or (kind.of_links and label in edge_names)  # the label of a link is its relation
    if kind.of_links and not labelled_edges:
        label = "label"
    elif targets:
        _check_targets(graph, targets, kind.of_edges, attribute_names, name)
    elif labelled_edges:
        _check_labels(
            [((a, b), _by_text(attributes)) for a, b, attributes in graph.edges(data=True)], label, "edge", name
        )
    else:
        _check_labels([*nodes_by_name.items()], label, "node", name)
    of_nodes = "label" if labelled_edges else label  # which no model reads, if there is one
    kinds = [KIND] if kind.of_links and KIND in attribute_names else []
    feature_names = (
        sorted(attribute_names - {of_nodes, "sens", "split", *kinds, *targets}) if features is None else list(features)
    )
    feature_names += [] if kind.of_edges else targets  # which `Folder` knows by their names
    metadata = [key for key in (kind.owner, kind.node_time) if key in attribute_names]  # which are no features
    feature_names += [key for key in metadata if key is not None and key not in feature_names]
    if conflicts := sorted(set(feature_names) & set(NODES)):
        refuse(name, f"the attribute {conflicts[0]!r} would be a feature, but is a column with a meaning", _RENAME)
    columns: dict[str, list[object]] = {"id": [str(node) for node in nodes_by_name]}
    for attribute, column in ((of_nodes, "label"), *((key, key) for key in ("sens", "split", *kinds, *feature_names))):
        if (
            column in feature_names
            or any(attribute in attributes for attributes in nodes_by_name.values())
            or (column == "label" and not (kind.of_edges or kind.of_links) and not targets)
        ):
            columns[column] = [attributes.get(attribute) for attributes in nodes_by_name.values()]
    edges = _edges(graph, kind, label if labelled_edges and not targets else None, name)
    dataset = _of_tables(kind, links, _columns(columns), edges, name)
    direction_notes = direction_note(dataset.edge_attrs, not graph.is_directed(), options.get("directed"))
    return replace(dataset, notes=(*dataset.notes, *direction_notes))


def _check_targets(graph: Any, targets: Sequence[str], edges: bool, attribute_names: set[str], name: str) -> None:
    """Reject targets that no node, or no edge, has."""
    if edges:
        attribute_names = {str(key) for _, _, attributes in graph.edges(data=True) for key in attributes}
    if absent := [target for target in targets if target not in attribute_names]:
        what = "edge" if edges else "node"
        message = f"no {what} has the attribute {absent[0]!r}, which `targets` names"
        refuse(name, message, _attributes(absent[0], attribute_names, what), "column-named")


def _check_labels(known: Sequence[tuple[object, Mapping[str, object]]], label: str, what: str, name: str) -> None:
    """Reject a `label` that some nodes or edges lack."""
    lacking = [one for one, attributes in known if label not in attributes]
    remedy = _attributes(label, {key for _, attributes in known for key in attributes}, what)
    if lacking and len(lacking) == len(known):
        message = f"none of {len(known):,} {what}s has the attribute {label!r}"
        refuse(name, message, f"{remedy} Set `label` to the attribute with each {what}'s class.")
    if lacking:
        lack = "lacks" if len(lacking) == 1 else "lack"
        message = f"{len(lacking):,} of {len(known):,} {what}s {lack} the attribute {label!r}, such as {lacking[0]!r}"
        refuse(name, message, f"Set it, to None where a {what} is unlabeled, or name another in `label`. {remedy}")


def _attributes(like: str, held: set[str], what: str = "node") -> str:
    """A sentence on the existing attributes, the nearest to a name first."""
    ratios = {key: SequenceMatcher(None, str(like).lower(), str(key).lower()).ratio() for key in held}
    names = [repr(key) for key in sorted(held, key=lambda key: (-ratios[key], str(key)))]
    more = f" and {len(names) - _SHOWN:,} more" if names[_SHOWN:] else ""
    return f"There are {', '.join(names[:_SHOWN])}{more}." if names else f"The {what}s have no attributes."


def _edges(graph: Any, kind: Folder, label: str | None, name: str) -> pa.Table:
    """The ends of all edges, as text, and what else edges have, their class as "label", except weights of 1 that no
    option names; loops where these are kept."""
    loops, named = kind.loops == "keep", {*(kind.ignore or ()), kind.edge_weight, *kind.feature_columns}
    place = {node: at for at, node in enumerate(graph)}  # nodes such as NumPy's numbers and tuples do not compare
    ends = [
        (str(a), str(b), _by_text(values)) for a, b, values in graph.edges(data=True) if loops or place[a] != place[b]
    ]
    edges = {"source": [a for a, _, _ in ends], "target": [b for _, b, _ in ends]}
    attributes = dict.fromkeys(key for _, _, values in ends for key in values)
    if conflicts := [key for key in edges if key in attributes]:
        refuse(name, f"edges have an attribute {conflicts[0]!r}, which is the name of one of their ends", "Rename it.")
    if label not in (None, "label") and "label" in attributes:
        refuse(
            name, "edges have an attribute 'label', which `label` does not name", "Rename it, or name it in `label`."
        )
    renamed = {key: "label" if key == label else key for key in attributes}
    held = {renamed[key]: [values.get(key) for _, _, values in ends] for key in attributes}
    if all(np.all(values.get("weight", 1) == 1) for _, _, values in ends) and not {"weight", "edges.weight"} & named:
        held.pop("weight", None)
    table = pa.table(edges, pa.schema([(k, pa.string()) for k in edges]))
    for column in (of_edges := _columns(held)).column_names:
        table = table.append_column(column, of_edges[column])
    return table


def _by_text(attributes: Mapping[object, object]) -> Record:
    """Attributes with their names as text, as columns need."""
    return {str(key): value for key, value in attributes.items()}


def _columns(columns: dict[str, list[object]]) -> pa.Table:
    """Arrow columns; what has values of several types, or of more than 64 bits, becomes text."""
    arrays = {}
    for name, values in columns.items():
        values = _times_apart(values)
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            arrays[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(arrays)


def _times_apart(values: list[object]) -> list[object]:
    """Values as text where some are times with a zone and others times without, for which Arrow would take UTC."""
    zones = {value.tzinfo is None for value in values if isinstance(value, datetime) and value == value}  # NaT is not
    if len(zones) < 2:
        return values
    return [(str(value) if value == value else None) if isinstance(value, datetime) else value for value in values]


def _with_times_apart(frame: Any) -> Any:
    """A pandas frame with `_times_apart` in its columns of objects; anything else as it is."""
    if not hasattr(frame, "isetitem"):
        return frame
    for at, kind in enumerate(frame.dtypes):
        values = frame.iloc[:, at].tolist() if kind.kind == "O" else []
        if (apart := _times_apart(values)) is not values:
            frame = frame.copy(deep=False)
            frame.isetitem(at, apart)
    return frame


def _tables(root: Path, **frames: object) -> Tables:
    return Tables(**{kind: Table(root / kind, _table(kind, frame), 0) for kind, frame in frames.items()})


def _table(kind: str, frame: object) -> pa.Table:
    try:
        if isinstance(frame, pa.Table):
            return plain(frame)
        frame = _with_times_apart(frame)
        if hasattr(frame, "__arrow_c_stream__"):
            return plain(pa.table(frame))
        return plain(pa.Table.from_pandas(frame, preserve_index=False))
    except OverflowError as error:
        remedy = "Give such a column as text: .astype(str)."
        raise DataError(f"{kind}: a column has whole numbers of more than 64 bits ({error}). {remedy}") from error
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{kind}: {type(frame).__name__} cannot be read as a table ({error}). {_FRAMES}") from error
