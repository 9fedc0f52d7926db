"""A user's own small graphs: a folder with `graphs`, `nodes` and `edges`, each as Parquet or CSV; columns in
docs/data-format.md."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.records import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import first
from fedweave.datasets.classified import labels_in, refuse_numerals, refuse_several
from fedweave.datasets.columns import check_columns, ids_of
from fedweave.datasets.features import one_hot
from fedweave.datasets.lookup import TABLES, named_folder, unread
from fedweave.datasets.table import WHOLE, Known, Table, Tables, places
from fedweave.datasets.tables import Parts, Tabular
from fedweave.errors import ConfigError

GRAPHS = ("id", "label", "sens", "split")
NODES = ("id", "graph", "label")


@dataclass(frozen=True)
class GraphFolder(Tabular):
    """Your own folder of small graphs with graphs.csv|parquet, nodes.csv|parquet and edges.csv|parquet.

    node_labels: the nodes' labels in order of their one-hot columns; None is those present, sorted (or 0 to the
                 largest, if all are whole numbers).
    edge_labels: the edges' labels in order, as `node_labels`.
    degrees:     columns of the one-hot degrees that stand in where nodes have neither labels nor features; None is the
                 largest degree + 1. Sites that train together must all give the same of these, of labels and of
                 categories.
    owner:       the column of graphs that says whose each graph is, for the partition "column".
    """

    stems: ClassVar[tuple[str, ...]] = ("nodes", "edges", "graphs")
    example: ClassVar[str] = "graph"

    node_labels: tuple[str, ...] | None = None
    edge_labels: tuple[str, ...] | None = None
    degrees: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, names in (("node_labels", self.node_labels), ("edge_labels", self.edge_labels)):
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"data: {name} = {list(names)} is empty or names a value twice.")
        if self.degrees is not None and self.degrees < 1:
            raise ConfigError(f"data: degrees = {self.degrees} is not allowed; it must be at least 1.")

    @property
    def said(self) -> tuple[str, ...]:
        """See `Carrying.said`."""
        return ("label",)

    @property
    def known(self) -> tuple[str, ...]:
        """See `Tabular.known`."""
        return NODES

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graphs in `root`, numbered by their row; nodes graph by graph, else in their order; `seed` is not used.

        labelled: False for graphs to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused (see `Tabular.made`).
        """
        layout = "Name the folder that holds graphs, nodes and edges, each as .csv or .parquet."
        root = named_folder(root, "graphs", "the folder with graphs, nodes and edges", layout)
        tables = self.tables(root, lacking=not labelled)
        made = self.made(tables, root, labelled)
        return replace(made, notes=unread(root, [table.path for table in tables if table is not None]))

    def check_form(self, tables: Tables, labelled: bool) -> None:
        """See `Tabular.check_form`."""
        own = () if self.owner is None else (self.owner,)
        required = (*GRAPHS[:2], *own) if labelled else GRAPHS[:1]  # whose a graph to be predicted is does not matter
        hint = "" if own else "data.owner names one that says whose each graph is"
        check_columns(self.examples(tables), required, (*GRAPHS, *own), closed=True, hint=hint)
        check_columns(tables.nodes, required=NODES[:2], known=NODES)
        super().check_form(tables, labelled)

    def arranged(self, tables: Tables) -> Tables:
        """See `Tabular.arranged`: graph by graph."""
        order = np.argsort(_graphs(self.examples(tables), tables.nodes), kind="stable")
        return tables._replace(nodes=tables.nodes.taken(order))

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        """See `Tabular.parts`."""
        graphs, (nodes, edges, _) = self.examples(tables), tables
        parts = super().parts(tables, labelled)
        parts["graph_of"] = lambda found: _graphs(graphs, nodes)
        for what, table, names in (("node", nodes, self.node_labels), ("edge", edges, self.edge_labels)):
            if "label" in table.columns:
                key, called = f"{what}_labels", f"{what}_kinds"
                parts[key], parts[called] = _part(_kinds, table, names, key), _part(_names, table, names)
        return parts

    def finished(self, tables: Tables, found: Record) -> Record:
        """See `Tabular.finished`; with features of nodes' labels or degrees."""
        _refuse_crossing(tables.edges, found)
        if "edge_labels" in found:
            found["edge_labels"] = _edge_labels(tables.edges, found)
        fields = super().finished(tables, found) | {"ids": tuple(ids_of(self.examples(tables)).to_pylist())}
        return fields | self._features(tables.nodes, fields)

    def _features(self, nodes: Table, fields: Record) -> Record:
        """One-hot node labels, then the feature columns; without either, one-hot degrees: x and what they are called,
        "label = C", the columns' own names, or "degree = 3"."""
        x, columns, kinds = fields["x"], fields["columns"], fields.get("node_labels")
        if kinds is None and columns:
            return {}
        if kinds is None:
            numbers, width, kind = np.bincount(fields["edges"][0], minlength=nodes.rows), self.degrees, "degree"
            over = first(numbers >= (width or nodes.rows))
            nodes.refuse_at(over, f"the node has more than {(width or 0) - 1} neighbours", "Raise [data] degrees.")
        else:
            numbers, width, kind = kinds, None if self.node_labels is None else len(self.node_labels), "label"
        encoded = one_hot(numbers, width)
        names = fields.get("node_kinds") or range(encoded.shape[1])
        held = [encoded, x] if columns else [encoded]
        whole = sp.hstack(held, "csr", np.float32)
        return {"x": whole, "columns": (*(f"{kind} = {name}" for name in names), *columns)}


def _part(read: Callable[..., object], *given: object) -> Callable[[Record], object]:
    return lambda found: read(*given)


def is_of_graphs(root: Path) -> bool:
    """Whether the folder's tables are of small graphs."""
    return any((root / f"graphs{kind}").is_file() for kind in TABLES)


def check_named(root: Path, kind: GraphFolder) -> None:
    """Refuse labels of nodes or edges that are names whose order nobody gave: another holder of such tables, who lacks
    a name, would number the others in another way.

    Raises:
        ConfigError: names the table and what to give. DataError: a label is a number, but not a whole one.
    """
    nodes, edges, _ = kind.tables(root)
    for stem, given, table in (("node", kind.node_labels, nodes), ("edge", kind.edge_labels, edges)):
        if given is not None or "label" not in table.columns:
            continue
        refuse_numerals(table, f"{stem}_labels")
        if names := _names(table, None):
            raise ConfigError(
                f"{table.path}: the labels are names ({', '.join(names[:5])}), which sites without some of them would "
                f"number in another way; give {stem}_labels = [...] in [data], the same at every site."
            )


def _graphs(graphs: Table, nodes: Table) -> np.ndarray:
    """int64 [n]: the row in `graphs` of each node's graph.

    Raises:
        DataError: a node names no graph, or a graph has no node; names file and row.
    """
    ids = ids_of(graphs)
    cells = nodes.filled("graph")
    rows = places(cells, ids)
    row = first(rows.is_null().to_numpy(False))
    if row is not None:
        hint = Known(ids).hint(cells[row].as_py())
        what = f"graph {cells[row].as_py()!r} is not in graphs{hint}"
        nodes.refuse_at(row, what, "Add a row with this id to graphs.")
    graph_of: np.ndarray = rows.to_numpy(zero_copy_only=False).astype(np.int64)
    empty = first(np.bincount(graph_of, minlength=graphs.rows) == 0)
    if empty is not None:
        graphs.refuse_at(empty, f"graph {ids[empty].as_py()!r} has no node", "Add its nodes, or remove the row.")
    return graph_of


def _refuse_crossing(edges: Table, found: Record) -> None:
    """Refuse an edge that joins two graphs; names file and row."""
    (ends, rows), of = found["ends"], found["graph_of"]
    if (at := first(of[ends[0]] != of[ends[1]])) is not None:
        one, other = (found["ids"][int(end[at])].as_py() for end in ends)
        what = f"the edge joins {one!r} and {other!r} of two graphs"
        edges.refuse_at(int(rows[at]), what, "Remove the row, or make the two graphs one.")


def _edge_labels(edges: Table, found: Record) -> np.ndarray:
    """int64 [E]: the labels, of the table's rows, of edges in the form of `Dataset`.

    Raises:
        DataError: an edge has two labels; names file and row.
    """
    ends, rows = found["ends"]
    ends, rows = ends[:, ends[0] != ends[1]], rows[ends[0] != ends[1]]
    both = np.concatenate([ends, ends[::-1]], 1)
    codes = both[0] * len(found["ids"]) + both[1]
    order = np.argsort(codes, kind="stable")
    new = np.diff(codes[order], prepend=-1) != 0
    labels = np.tile(found["edge_labels"][rows], 2)[order]
    if (fault := first(labels != labels[new][np.cumsum(new) - 1])) is not None:
        row = int(rows[order[fault] % len(rows)])
        edges.refuse_at(row, "the edge has another label above", "Keep one of the two rows.")
    result: np.ndarray = labels[new]
    return result


def _names(table: Table, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """What the labels are called, in order; () where they are numbers."""
    present = table.texts("label").drop_null()
    if given is None and pc.all(pc.match_substring_regex(present, WHOLE)).as_py() is not False:
        return ()
    return given or tuple(sorted(present.unique().to_pylist()))


def _kinds(table: Table, names: tuple[str, ...] | None, key: str) -> np.ndarray:
    """int64 [rows]: the column "label" as numbers, -1 where empty: places in `names`, which `key` in [data] lists, or,
    if these are None, the number itself or the place among the sorted names.

    Raises:
        DataError: a label is none of the names; names file and row.
    """
    cells = labels_in(table, key)
    present = cells.drop_null()
    if names is None and pc.all(pc.match_substring_regex(present, WHOLE)).as_py() is not False:
        kinds = table.whole("label", empty="unknown")
        table.refuse_at(first(kinds > table.rows), "the label's number is above the number of rows", "Number from 0.")
        return kinds
    if names is None:
        refuse_several(table, key)
        refuse_numerals(table, key)
    remedy = f"Correct it; {key} in [data] may name more, before a model is trained."
    return table.among("label", cells, _names(table, names), remedy)
