"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md.

And members that hold nodes of their own, each in a sub-folder of that layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset, bare, separated
from fedweave.datasets.check import first, refuse
from fedweave.datasets.features import one_hot
from fedweave.datasets.links import TASK
from fedweave.datasets.lookup import TABLES, named_folder, unread
from fedweave.datasets.molecules import BONDS, ELEMENTS, holds_molecules, tables_of
from fedweave.datasets.schema import (
    ABSENT_END,
    COLUMNS,
    EDGES,
    NODES,
    OF_EXAMPLES,
    check_columns,
    elsewhere,
    ids_of,
    labels_in,
    owners_of,
    refuse_numerals,
    refuse_several,
    split_of,
)
from fedweave.datasets.settings import GraphSettings, NodeSettings
from fedweave.datasets.table import WHOLE, NameIndex, Table, Tables, find, places, read, stacked
from fedweave.datasets.tables import ALL, Parts, Tabular, times_of
from fedweave.datasets.triples import holds_triples
from fedweave.errors import ConfigError, DataError, Faults

KIND = "kind"  # column of nodes where links are predicted, such as users and items
OF_LINKS = ("id", "label", "split")  # columns of edges where links are predicted


@dataclass(frozen=True)
class Folder(NodeSettings, Tabular):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    owner:      the column of nodes with their owners, for the partition "column"; it is no feature. Sites
                that train together must all give the same categories and groups.
    """

    absent_end: ClassVar[str] = (
        f'{ABSENT_END} If another member has this node, [data] external = "features" makes columns of such edges; see '
        "docs/edges-between-members.md."
    )

    @property
    def of_edges(self) -> bool:
        return self.task == "edges"

    @property
    def of_links(self) -> bool:
        return self.task == TASK

    @property
    def _kind_is_feature(self) -> bool:
        """Whether a setting of features names the column with the kinds of nodes, which it is then, too."""
        return KIND in (self.categories or {}) or KIND in (self.missing or ())

    @property
    def reserved(self) -> tuple[str, ...]:
        of_links = OF_LINKS if self.of_links else ()
        return ("id", *OF_EXAMPLES, *(self.targets or ())) if self.of_edges else of_links

    def dataset(self, tables: Tables, root: Path, labelled: bool) -> Dataset:
        """`made`; where links are the examples, with the kinds of nodes, and with the label of an edge, which is its
        relation, as its class."""
        if not self.of_links:
            return self.made(tables, root, labelled)
        kinds, nodes = dict[str, Any](), tables.nodes
        if KIND in nodes.columns:
            names = owners_of(nodes, KIND)
            kinds = {"node_labels": nodes.kinds(KIND, names), "node_kinds": names}
            if not self._kind_is_feature:
                tables = tables._replace(nodes=replace(nodes, data=nodes.data.drop_columns([KIND])))
        of_relations = "label" in tables.edges.columns
        kind = replace(self, task="edges") if of_relations else self
        return replace(kind.made(tables, root, labelled and of_relations), **kinds)

    @property
    def known(self) -> tuple[str, ...]:
        more = (self.owner, self.node_time, KIND if self.of_links and not self._kind_is_feature else None)
        return (*super().known, *(name for name in more if name is not None))

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graph in `root`, nodes numbered by their row, features in the order of their columns; `seed` is not used.

        labelled: False for nodes to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused (see `Tabular.made`).
        """
        layout = "Name the folder that holds nodes.csv|parquet and edges.csv|parquet."
        root = named_folder(root, "folder", "the folder with nodes and edges", layout)
        if texts := sorted(path.name for path in root.glob("*_A.txt*")):
            refuse(root, f"{texts[0]} belongs to the TU layout", 'Set [data] name = "tu".', "other-layout")
        if holds_triples(root) and not any(root.glob("nodes.*")):
            refuse(root, "it holds triples", 'Set [data] name = "triples".', "other-layout")
        tables = self.tables(root, lacking=not labelled)
        if "graph" in tables.nodes.columns and any(root.glob("graphs.*")):
            what = "there is a table graphs, and the column graph of nodes refers to it"
            refuse(root, what, 'Set [data] name = "graphs".', "other-layout")
        dataset = self.dataset(tables, root, labelled)
        return replace(dataset, notes=(*dataset.notes, *unread(root, [tables.nodes.path, tables.edges.path])))

    def check_form(self, tables: Tables, labelled: bool) -> None:
        # a node to be predicted needs neither owner nor time
        owned = [name for name in self.known[len(super().known) :] if name != KIND] if labelled else ()
        named = ("id", *(self.answers if labelled and not self.of_edges else ()))
        check_columns(tables.nodes, required=(*named, *owned), known=self.known)
        super().check_form(tables, labelled)

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        parts, nodes, when = super().parts(tables, labelled), tables.nodes, self.node_time or ""
        if when in nodes.columns:
            parts["node_time"] = lambda record: times_of(nodes, when)
        if self.external != "refuse":
            parts["elsewhere"] = lambda record: (
                elsewhere(tables.edges, record["ids"]) if "ids" in record else pa.array([], "str")
            )
        return parts

    def finished(self, tables: Tables, record: Record) -> Record:
        """See `Tabular.finished`; separates edges to nodes elsewhere, and describes the other edges as examples."""
        nodes, (ends, rows) = tables.nodes.rows, record["ends"]
        if self.external != "refuse":
            every = bare(ends) if record["edge_attrs"] is None else record["edge_attrs"]
            inside, record["outside"] = separated(every, nodes, tuple(record["elsewhere"].to_pylist()))
            rows = rows[np.maximum(*ends) < nodes]
            record |= {"ends": (inside.ends, rows), "edge_attrs": None if record["edge_attrs"] is None else inside}
        fields = super().finished(tables, record)
        if self.of_links and "split" in tables.edges.columns:
            split = split_of(tables.edges, np.zeros(tables.edges.rows, np.int64), "edge")[:, rows]
            codes = np.where(split.any(0), split.argmax(0), -1)
            attributes = fields["edge_attrs"] or EdgeAttributes(record["ends"][0], False)
            fields |= {"edge_attrs": attributes._replace(split=codes)}
        if not self.of_edges:
            return fields
        unused = [name for name in NODES[1:] if name in tables.nodes.columns]
        return fields | _of_edges(tables.edges, rows, fields, unused)


def _of_edges(edges: Table, rows: np.ndarray, fields: Record, unused: list[str]) -> Record:
    """The fields of a dataset whose examples are edges; `rows` int64 [e] are their rows in the table. unused: columns
    of nodes that are not used, since the examples are edges."""
    ids = () if "id" not in edges.columns else tuple(ids_of(edges).take(pa.array(rows)).to_pylist())
    if not ids and len(rows) < edges.rows:
        ids = tuple(map(str, rows.tolist()))
    record: Record = {"ids": ids, "node_ids": fields["ids"], "y": fields["y"][rows]}
    whole = {name: fields[name] for name in ("sensitive", "public")}
    record |= {name: values if values is None else values[..., rows] for name, values in whole.items()}
    if unused:
        record["notes"] = (
            f"the examples are edges: of nodes, {', '.join(unused)} {'is' if len(unused) == 1 else 'are'} not used",
        )
    return record


_LAYOUT = "Name the folder whose sub-folders are the members, each with nodes and edges; see docs/data-format.md."

_OF_GRAPHS = (
    "Put all graphs into one folder, with a column of graphs for their owners: "
    '[data] name = "graphs", owner = "lab", and [partition] name = "column".'
)


@dataclass(frozen=True)
class Members(Folder):
    """Your own folder of members, each a sub-folder of tables of nodes and of edges, for the partition "folders".

    Members need the same feature columns; one id at two members is two nodes, called member/id.
    """

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """All members' nodes, one member after the other in order of name; `seed` is not used.

        Raises:
            ConfigError: no folder is given, or [data] owner, which the sub-folders say.
            DataError: there is no member, their columns differ, or a file is missing or refused (see `Folder.load`).
        """
        if self.owner is not None:
            raise ConfigError("members: the sub-folders decide the owners of nodes; leave owner out.")
        root = named_folder(root, "members", "the folder of all members' folders", _LAYOUT)
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not folders:
            refuse(root, "there is no sub-folder", _LAYOUT)
        if odd := [folder.name for folder in folders if any(folder.glob("graphs.*"))]:
            refuse(
                root,
                f"{', '.join(odd)} hold small graphs, and members hold nodes of one graph each",
                _OF_GRAPHS,
                "members-graphs",
            )
        faults, nodes, edges = Faults(DataError), list[Table](), list[Table]()
        for folder in folders:
            with faults:
                of_nodes, of_edges, _ = self.tables(folder, lacking=not labelled)
                nodes.append(_with_member(of_nodes, folder.name, NODES[:1]))
                edges.append(_with_member(self._with_ids(of_edges), folder.name, self._ends))
        faults.refuse()
        _check_alike(root, nodes)
        nodes_of_all, edges_of_all = (stacked(root / each[0].path.stem, each) for each in (nodes, edges))
        dataset = self.dataset(Tables(nodes_of_all, edges_of_all), root, labelled)
        owner = np.repeat(np.arange(len(folders)), [table.rows for table in nodes])
        if dataset.outside is not None:  # which members that train together call alike
            names = tuple(name.partition("/")[2] for name in dataset.outside.names)
            dataset = replace(dataset, outside=dataset.outside._replace(names=names))
        return replace(
            dataset,
            owner=owner,
            owners=tuple(folder.name for folder in folders),
            notes=(*dataset.notes, *unread(root, [table.path for table in (*nodes, *edges)], *folders)),
        )

    @property
    def _ends(self) -> tuple[str, ...]:
        """Columns of edges with names of nodes or, where they are the examples, of edges."""
        return (*EDGES, "id") if self.of_edges else EDGES

    def _with_ids(self, edges: Table) -> Table:
        """With ids where edges are the examples: their rows from 0 in the member's table, where it says none."""
        if not self.of_edges or "id" in edges.columns:
            return edges
        rows = np.arange(edges.rows) if edges.there is None else edges.there
        return replace(edges, data=edges.data.append_column("id", pa.array(rows.astype(str))))


def _with_member(table: Table, member: str, columns: Sequence[str]) -> Table:
    """The table with the member's name in front of the ids in `columns`."""
    check_columns(table, required=tuple(columns), known=tuple(columns))
    data = table.data
    for column in columns:
        cells = table.filled(column)
        full = pc.binary_join_element_wise(pa.scalar(member), cells, pa.scalar("/"))
        data = data.set_column(data.column_names.index(column), column, full)
    return replace(table, data=data)


def _check_alike(root: Path, nodes: Sequence[Table]) -> None:
    """Reject members whose feature columns differ."""
    features = [[name for name in table.columns if name not in NODES] for table in nodes]
    for table, names in zip(nodes, features, strict=True):
        if differ := sorted(set(names) ^ set(features[0])):
            what = f"{nodes[0].path.parent.name} and {table.path.parent.name} differ in the columns {', '.join(differ)}"
            refuse(root, what, "Give all members the same feature columns.")


# ----------------------------------------------------------------------------------------------------
# A user's own small graphs: a folder with `graphs`, `nodes` and `edges`, each as Parquet or CSV; columns in
# docs/data-format.md.


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
    def reserved(self) -> tuple[str, ...]:
        return ("label",)

    @property
    def known(self) -> tuple[str, ...]:
        return COLUMNS["graph"]["nodes"]

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graphs in `root`, numbered by their row; nodes graph by graph, else in their order; `seed` is not used.

        labelled: False for graphs to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused (see `Tabular.made`).
        """
        layout = "Name the folder that holds graphs, nodes and edges, each as .csv or .parquet."
        root = named_folder(root, "graphs", "the folder with graphs, nodes and edges", layout)
        if holds_molecules(root):
            graphs = read(find(root, "graphs"))
            return replace(self.made_of_smiles(graphs, root, labelled), notes=unread(root, [graphs.path]))
        tables = self.tables(root, lacking=not labelled)
        dataset = self.made(tables, root, labelled)
        return replace(dataset, notes=unread(root, [table.path for table in tables if table is not None]))

    def made_of_smiles(self, graphs: Table, root: Path, labelled: bool = True) -> Dataset:
        """The data set of a table of molecules; see `Tabular.made` and `molecules.tables_of`."""
        elements, bonds = self.node_labels or ELEMENTS, self.edge_labels or BONDS
        nodes, edges, molecules = tables_of(graphs, self.columns or {}, elements, self.unreadable)
        if self.edge_features != ALL:  # leave out properties of bonds that are not listed
            columns = [name for name in edges.columns if name in (*EDGES, "label", *self.chosen)]
            edges = replace(edges, data=edges.data.select(columns))
        kind = replace(self, node_labels=elements, edge_labels=bonds)
        return kind.made(kind.named(root, Tables(nodes, edges, molecules), lacking=not labelled), root, labelled)

    def check_form(self, tables: Tables, labelled: bool) -> None:
        owner_columns = () if self.owner is None else (self.owner,)
        required = (
            ("id", *self.answers, *owner_columns) if labelled else ("id",)
        )  # a graph to be predicted needs no owner
        hint = "" if owner_columns else "data.owner names the column with each graph's owner"
        columns = (*COLUMNS["graph"]["graphs"], *(self.targets or ()), *owner_columns)
        check_columns(self.examples(tables), required, columns, closed=True, hint=hint)
        check_columns(tables.nodes, required=("id", "graph"), known=self.known)
        super().check_form(tables, labelled)

    def arranged(self, tables: Tables) -> Tables:
        """See `Tabular.arranged`: graph by graph."""
        order = np.argsort(_graphs(self.examples(tables), tables.nodes), kind="stable")
        return tables._replace(nodes=tables.nodes.taken(order))

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
                key, called = f"{what}_labels", f"{what}_kinds"
                parts[key], parts[called] = _part(_kinds, table, names, key), _part(_names, table, names)
        return parts

    def finished(self, tables: Tables, record: Record) -> Record:
        """See `Tabular.finished`; with features of nodes' labels or degrees."""
        _refuse_crossing(tables.edges, record)
        if "edge_labels" in record:
            record["edge_labels"] = _edge_labels(tables.edges, record)
        fields = super().finished(tables, record) | {"ids": tuple(ids_of(self.examples(tables)).to_pylist())}
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


def check_named(root: Path, kind: GraphFolder) -> None:
    """Reject labels of nodes or edges that are names, unless [data] gives their order: a holder of other tables, where
    a name is missing, would number the others differently.

    Raises:
        ConfigError: names the table and what to give. DataError: a label is a number, but not a whole one.
    """
    if holds_molecules(root):  # kinds of atoms and bonds are the same everywhere
        return
    nodes, edges, _ = kind.tables(root)
    for stem, labels, table in (("node", kind.node_labels, nodes), ("edge", kind.edge_labels, edges)):
        if labels is not None or "label" not in table.columns:
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
        hint = NameIndex(ids).hint(cells[row].as_py())
        what = f"graph {cells[row].as_py()!r} is not in graphs{hint}"
        nodes.refuse_at(row, what, "Add a row with this id to graphs.")
    graph_of: np.ndarray = rows.to_numpy(zero_copy_only=False).astype(np.int64)
    empty = first(np.bincount(graph_of, minlength=graphs.rows) == 0)
    if empty is not None:
        graphs.refuse_at(empty, f"graph {ids[empty].as_py()!r} has no node", "Add its nodes, or remove the row.")
    return graph_of


def _refuse_crossing(edges: Table, record: Record) -> None:
    """Refuse an edge that joins two graphs; names file and row."""
    (ends, rows), of = record["ends"], record["graph_of"]
    if (at := first(of[ends[0]] != of[ends[1]])) is not None:
        one, other = (record["ids"][int(end[at])].as_py() for end in ends)
        what = f"the edge joins {one!r} and {other!r} of two graphs"
        edges.refuse_at(int(rows[at]), what, "Remove the row, or make the two graphs one.")


def _edge_labels(edges: Table, record: Record) -> np.ndarray:
    """int64 [E]: the labels, of the table's rows, of edges in the form of `Dataset`.

    Raises:
        DataError: an edge has two labels; names file and row.
    """
    ends, rows = record["ends"]
    ends, rows = ends[:, ends[0] != ends[1]], rows[ends[0] != ends[1]]
    both = np.concatenate([ends, ends[::-1]], 1)
    codes = both[0] * len(record["ids"]) + both[1]
    order = np.argsort(codes, kind="stable")
    new = np.diff(codes[order], prepend=-1) != 0
    labels = np.tile(record["edge_labels"][rows], 2)[order]
    if (fault := first(labels != labels[new][np.cumsum(new) - 1])) is not None:
        row = int(rows[order[fault] % len(rows)])
        edges.refuse_at(row, "the edge has another label above", "Keep one of the two rows.")
    result: np.ndarray = labels[new]
    return result


def _names(table: Table, labels: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the labels, in order; () where they are numbers."""
    present = table.texts("label").drop_null()
    if labels is None and pc.all(pc.match_substring_regex(present, WHOLE)).as_py() is not False:
        return ()
    return labels or tuple(sorted(present.unique().to_pylist()))


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
