"""A user's own small graphs: a folder with `graphs`, `nodes` and `edges`, each as Parquet or CSV."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.types import Record
from fedweave.datasets.base import ColumnRange, Dataset
from fedweave.datasets.check import first, refuse
from fedweave.datasets.column_names import COLUMNS, EDGES, OF_EDGES, check_columns
from fedweave.datasets.columns import Categories, ids_of
from fedweave.datasets.edge_tables import ALL
from fedweave.datasets.edges import NO_FEATURES, numbered
from fedweave.datasets.features import beside_nodes, one_hot
from fedweave.datasets.fingerprints import NONE, fingerprint
from fedweave.datasets.fingerprints import names as fingerprint_names
from fedweave.datasets.labels import labels_in, refuse_numerals, refuse_several
from fedweave.datasets.lookup import TABLES, require_folder, unread
from fedweave.datasets.molecules import BOND, BONDS, ELEMENTS, holds_molecules, tables_of
from fedweave.datasets.name_matching import NameIndex, places
from fedweave.datasets.settings import GraphSettings
from fedweave.datasets.table import WHOLE, Table, Tables
from fedweave.datasets.table_files import find, read
from fedweave.datasets.tables import Parts, Tabular
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class GraphFolder(GraphSettings, Tabular):
    """Your own folder of small graphs: the tables graphs, nodes and edges, or graphs alone with a column of SMILES.

    owner:       the column of graphs with their owners, for the partition "column".
    unreadable:  molecules whose SMILES cannot be read: "refuse" the table, or "drop" them, with a note.
    """

    stems: ClassVar[tuple[str, ...]] = ("nodes", "edges", "graphs")
    example: ClassVar[str] = "graph"

    unreadable: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, names in (("node_labels", self.node_labels), ("edge_labels", self.edge_labels)):
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"data: {name} = {list(names)} is empty or names a value twice.")

    @property
    def known_edge_columns(self) -> tuple[str, ...]:
        return ("label",)

    @property
    def kind_columns(self) -> tuple[str, ...]:
        return ("label",)

    @property
    def special_columns(self) -> tuple[str, ...]:
        return COLUMNS["graph"]["nodes"]

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graphs in `root`, numbered by their row; nodes graph by graph, else in their order (`build`)."""
        layout = "Name the folder that holds graphs, nodes and edges, each as .csv or .parquet."
        root = require_folder(root, "graphs", "the folder with graphs, nodes and edges", layout)
        if holds_molecules(root):
            graphs = read(find(root, "graphs"))
            return replace(self.build_molecules(graphs, root, labelled), notes=unread(root, [graphs.path]))
        tables = self.tables(root, lacking=not labelled)
        dataset = self.build(tables, root, labelled)
        notes = unread(root, [table.path for table in tables if table is not None])
        if self.edge_features == ALL and (dataset.edge_attrs is None or not dataset.edge_attrs.width):
            notes = (*notes, f"{tables.edges.path}: {NO_FEATURES}")
        return replace(dataset, notes=notes)

    def build_molecules(self, graphs: Table, root: Path, labelled: bool = True) -> Dataset:
        """The data set of a table of molecules; see `Tabular.build` and `molecules.tables_of`."""
        elements, bonds = self.node_labels or ELEMENTS, self.edge_labels or BONDS
        nodes, edges, molecules = tables_of(graphs, self.columns or {}, elements, self.unreadable)
        features = self.edge_features
        if features == ALL:  # the kinds of bonds are among the properties
            features = BOND
        else:  # leave out properties of bonds that are not listed
            columns = [name for name in edges.columns if name in (*EDGES, "label", *self.attribute_columns)]
            edges = replace(edges, data=edges.data.select(columns))
        kind = replace(self, node_labels=elements, edge_labels=bonds, edge_features=features)
        return kind.build(
            kind.rename_columns(root, Tables(nodes, edges, molecules), lacking=not labelled), root, labelled
        )

    def check_form(self, tables: Tables, labelled: bool) -> None:
        owner_columns = () if self.owner is None else (self.owner,)
        required: tuple[str, ...] = ("id",)  # a graph to be predicted needs no more
        if labelled:
            required = ("id", *self.target_columns, *owner_columns)
        hint = "data.graph_features lists columns that are features of graphs"
        hint += "" if owner_columns else ", and data.owner names the one with each graph's owner"
        required += self.graph_features
        columns = (*COLUMNS["graph"]["graphs"], *(self.targets or ()), *owner_columns, *self.graph_features)
        check_columns(self.examples(tables), required, columns, closed=True, hint=hint)
        check_columns(tables.nodes, required=("id", "graph"), known=self.special_columns)
        super().check_form(tables, labelled)

    def arrange(self, tables: Tables) -> Tables:
        """See `Tabular.arrange`: graph by graph."""
        order = np.argsort(_graphs(self.examples(tables), tables.nodes), kind="stable")
        return tables._replace(nodes=tables.nodes.take(order))

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        graphs, (nodes, edges, _) = self.examples(tables), tables
        parts = super().parts(tables, labelled)
        parts["graph_of"] = lambda record: _graphs(graphs, nodes)
        if "smiles" in graphs.columns:
            parts["smiles"] = lambda record: tuple(graphs.texts("smiles").fill_null("").to_pylist())
        if "scaffold" in graphs.columns:  # "" of molecules without a ring
            parts["scaffold"] = lambda record: _numbers(graphs.texts("scaffold").fill_null(""))
        for what, table, names in (("node", nodes, self.node_labels), ("edge", edges, self.edge_labels)):
            if "label" in table.columns:
                key = f"{what}_labels"
                parts[key], parts[f"{what}_kinds"] = _part(_kinds, table, names, key), _part(_names, table, names)
        edge_attributes, labels = parts.pop("edge_attrs"), "edge_labels" in parts
        # where the labels raised an error, they would raise it again as features
        parts["edge_attrs"] = lambda record: None if labels and "edge_labels" not in record else edge_attributes(record)
        return parts

    def edge_categories(self, record: Record) -> Categories | None:
        """See `Tabular.edge_categories`: the kinds of edges are those of the column label, where it is a feature."""
        if "edge_labels" not in record or not {ALL, "label"} & {*self.feature_columns}:
            return self.categories
        kinds = record["edge_kinds"] or numbered(record["edge_labels"])
        return {f"{OF_EDGES}label": kinds} | dict(self.categories or {})

    def dataset_fields(self, tables: Tables, record: Record) -> Record:
        """See `Tabular.dataset_fields`; with features of nodes' labels or degrees."""
        (ends, rows), graph_of = record["ends"], record["graph_of"]
        crossing = first(graph_of[ends[0]] != graph_of[ends[1]])
        if crossing is not None:
            one, other = (record["ids"][int(node)].as_py() for node in ends[:, crossing])
            what = f"the edge joins {one!r} and {other!r} of two graphs"
            tables.edges.refuse_at(int(rows[crossing]), what, "Remove the row, or make the two graphs one.")
        if "edge_labels" in record:
            record["edge_labels"] = _edge_labels(tables.edges, record)
        fields = super().dataset_fields(tables, record) | {"ids": tuple(ids_of(self.examples(tables)).to_pylist())}
        fields |= self._features(tables.nodes, fields)
        return fields | self._of_graphs(self.examples(tables), fields)

    def _of_graphs(self, graphs: Table, fields: Record) -> Record:
        """The columns of whole graphs, on the right of those of nodes: x, what they are called, and where they are."""
        blocks, names = list[sp.csr_matrix](), list[str]()
        if self.graph_features:
            gaps = "Give every graph a number, or remove the row."
            columns = [graphs.numbers(name, gaps=gaps) for name in self.graph_features]
            blocks.append(sp.csr_matrix(np.stack(columns, 1)))
            names += [f"graph {name}" for name in self.graph_features]
        if self.fingerprint != NONE:
            if "smiles" not in graphs.columns:
                what = (
                    f"data.fingerprint = {self.fingerprint!r} needs a column smiles; it has {', '.join(graphs.columns)}"
                )
                remedy = 'Name it: [data] columns = {smiles = "…"}; or, for other graphs, leave fingerprint out.'
                refuse(graphs.path, what, remedy, "column-missing")
            texts = graphs.texts("smiles").fill_null("").to_pylist()
            blocks.append(fingerprint(texts, self.fingerprint))
            names += fingerprint_names(self.fingerprint)
        if not blocks:
            return {}
        values = sp.csr_matrix(sp.hstack(blocks, "csr", np.float32))  # [e, g]
        first_nodes = np.flatnonzero(np.diff(fields["graph_of"], prepend=-1) > 0)
        titles = (*fields["columns"], *names) if fields["columns"] else ()
        return {
            "x": beside_nodes(fields["x"], values, first_nodes),
            "columns": titles,
            "graph_columns": ColumnRange(fields["x"].shape[1], values.shape[1]),
        }

    def _features(self, nodes: Table, fields: Record) -> Record:
        """One-hot node labels, then the feature columns; without either, one-hot degrees: x and what they are called,
        "label = C", the columns' own names, or "degree = 3"."""
        x, columns, kinds = fields["x"], fields["columns"], fields.get("node_labels")
        if kinds is None and columns:
            return {}
        if kinds is None:
            numbers, width, kind = np.bincount(fields["edges"][0], minlength=nodes.rows), self.degrees, "degree"
            over = first(numbers >= (width or nodes.rows))
            nodes.refuse_at(over, f"the node has more than {(width or 0) - 1} neighbors", "Raise [data] degrees.")
        else:
            numbers, width, kind = kinds, None if self.node_labels is None else len(self.node_labels), "label"
        encoded = one_hot(numbers, width)
        names = fields.get("node_kinds") or range(encoded.shape[1])
        blocks = [encoded, x] if columns else [encoded]
        whole = sp.hstack(blocks, "csr", np.float32)
        return {"x": whole, "columns": (*(f"{kind} = {name}" for name in names), *columns)}


def _numbers(names: pa.Array) -> np.ndarray:
    """int64: the place of each name among all, sorted."""
    return np.unique(names.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)[1].astype(np.int64)


def _part(read: Callable[..., object], *arguments: object) -> Callable[[Record], object]:
    return lambda record: read(*arguments)


def is_of_graphs(root: Path) -> bool:
    """Whether the folder's tables are of small graphs."""
    return any((root / f"graphs{kind}").exists() for kind in TABLES)


def check_name_settings(root: Path, kind: GraphFolder) -> None:
    """Reject labels of nodes or edges that are names, unless [data] gives their order: a holder of other tables, where
    a name is missing, would number the others differently."""
    if holds_molecules(root):  # kinds of atoms and bonds are the same everywhere
        return
    nodes, edges, _ = kind.tables(root)
    for stem, labels, table in (("node", kind.node_labels, nodes), ("edge", kind.edge_labels, edges)):
        if labels is not None or "label" not in table.columns:
            continue
        refuse_numerals(table, f"{stem}_labels")
        names = _names(table, None)
        if names:
            raise ConfigError(
                f"{table.path}: the labels are names ({', '.join(names[:5])}), which sites without some of them would "
                f"number in another way; give {stem}_labels = [...] in [data], the same at every site."
            )


def _graphs(graphs: Table, nodes: Table) -> np.ndarray:
    """int64 [n]: the row in `graphs` of each node's graph."""
    ids = ids_of(graphs)
    cells = nodes.nonempty_texts("graph")
    rows = places(cells, ids)
    row = first(rows.is_null().to_numpy(False))
    if row is not None:
        hint = NameIndex(ids).hint(cells[row].as_py())
        what = f"graph {cells[row].as_py()!r} is not in graphs{hint}"
        nodes.refuse_at(row, what, "Add a row with this id to graphs.")
    graph_of: np.ndarray = rows.to_numpy(zero_copy_only=False).astype(np.int64)
    empty = first(np.bincount(graph_of, minlength=graphs.rows) == 0)
    if empty is not None:
        graphs.refuse_at(empty, f"graph {ids[empty].as_py()!r} has no node", "Add its nodes, or remove the row.")
    return graph_of


def _edge_labels(edges: Table, record: Record) -> np.ndarray:
    """int64 [E]: the labels, of the table's rows, of edges in the form of `Dataset`."""
    ends, rows = record["ends"]
    ends, rows = ends[:, ends[0] != ends[1]], rows[ends[0] != ends[1]]
    both = np.concatenate([ends, ends[::-1]], 1)
    codes = both[0] * len(record["ids"]) + both[1]
    order = np.argsort(codes, kind="stable")
    new = np.diff(codes[order], prepend=-1) != 0
    labels = np.tile(record["edge_labels"][rows], 2)[order]
    fault = first(labels != labels[new][np.cumsum(new) - 1])
    if fault is not None:
        row = int(rows[order[fault] % len(rows)])
        edges.refuse_at(row, "the edge has another label above", "Keep one of the two rows.")
    return np.asarray(labels[new])


def _names(table: Table, labels: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the labels, in order; () where they are numbers."""
    present = table.texts("label").drop_null()
    if labels is None and pc.all(pc.match_substring_regex(present, WHOLE)).as_py() is not False:
        return ()
    return labels or tuple(sorted(present.unique().to_pylist()))


def _kinds(table: Table, names: tuple[str, ...] | None, key: str) -> np.ndarray:
    """int64 [rows]: the column "label" as numbers, -1 where empty: places in `names`, which `key` in [data] lists, or,
    if these are None, the number itself or the place among the sorted names."""
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
