"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV, or a folder of several members with
such a sub-folder each; columns in docs/data-format.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset, split_numbers
from fedweave.datasets.check import refuse
from fedweave.datasets.column_names import EDGES, NODES, OF_EXAMPLES, check_columns
from fedweave.datasets.columns import ABSENT_END, external_names, ids_of, masks_of, owners_of
from fedweave.datasets.edge_tables import times_of
from fedweave.datasets.external import plain_edges, separate
from fedweave.datasets.links import TASK
from fedweave.datasets.lookup import require_folder, unread
from fedweave.datasets.settings import NodeSettings
from fedweave.datasets.table import Table, Tables, stack
from fedweave.datasets.tables import Parts, Tabular
from fedweave.datasets.triples import holds_triples
from fedweave.errors import ConfigError, DataError, Faults

KIND = "kind"  # column of nodes where links are predicted, such as users and items
OF_LINKS = ("id", "label", "split")  # columns of edges where links are predicted


@dataclass(frozen=True)
class Folder(NodeSettings, Tabular):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    owner:      the column of nodes with their owners, for the partition "column"; it is not a feature. Sites
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
    def known_edge_columns(self) -> tuple[str, ...]:
        of_links = OF_LINKS if self.of_links else ()
        return ("id", *OF_EXAMPLES, *(self.targets or ())) if self.of_edges else of_links

    def dataset(self, tables: Tables, root: Path, labelled: bool) -> Dataset:
        """`build`; where links are the examples, with the kinds of nodes, and with the label of an edge, which is its
        relation, as its class."""
        if not self.of_links:
            return self.build(tables, root, labelled)
        kinds, nodes = dict[str, Any](), tables.nodes
        if KIND in nodes.columns:
            names = owners_of(nodes, KIND)
            kinds = {"node_labels": nodes.kinds(KIND, names), "node_kinds": names}
            if not self._kind_is_feature:
                tables = tables._replace(nodes=replace(nodes, data=nodes.data.drop_columns([KIND])))
        of_relations = "label" in tables.edges.columns
        kind = replace(self, task="edges") if of_relations else self
        return replace(kind.build(tables, root, labelled and of_relations), **kinds)

    @property
    def special_columns(self) -> tuple[str, ...]:
        kind = KIND if self.of_links and not self._kind_is_feature else None
        names = (*super().special_columns, self.owner, self.node_time, kind)
        return tuple(name for name in names if name is not None)

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graph in `root`, nodes numbered by their row, features in the order of their columns (`build`)."""
        layout = "Name the folder that holds nodes.csv|parquet and edges.csv|parquet."
        root = require_folder(root, "folder", "the folder with nodes and edges", layout)
        for path in sorted(root.glob("*_A.txt*")):
            refuse(root, f"{path.name} belongs to the TU layout", 'Set [data] name = "tu".', "other-layout")
        if holds_triples(root) and not any(root.glob("nodes.*")):
            refuse(root, "it holds triples", 'Set [data] name = "triples".', "other-layout")
        tables = self.tables(root, lacking=not labelled)
        if "graph" in tables.nodes.columns and any(root.glob("graphs.*")):
            what = "there is a table graphs, and the column graph of nodes refers to it"
            refuse(root, what, 'Set [data] name = "graphs".', "other-layout")
        dataset = self.dataset(tables, root, labelled)
        return replace(dataset, notes=(*dataset.notes, *unread(root, [tables.nodes.path, tables.edges.path])))

    def check_form(self, tables: Tables, labelled: bool) -> None:
        required = ["id"]  # a node to be predicted needs neither target nor owner nor time
        if labelled:
            required += [] if self.of_edges else self.target_columns
            required += [name for name in (self.owner, self.node_time) if name is not None]
        check_columns(tables.nodes, tuple(required), known=self.special_columns)
        super().check_form(tables, labelled)

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        parts, nodes, when = super().parts(tables, labelled), tables.nodes, self.node_time or ""
        if when in nodes.columns:
            parts["node_time"] = lambda record: times_of(nodes, when)
        if self.external != "refuse":
            parts["elsewhere"] = lambda record: (
                external_names(tables.edges, record["ids"]) if "ids" in record else pa.array([], "str")
            )
        return parts

    def dataset_fields(self, tables: Tables, record: Record) -> Record:
        """Separates edges to nodes elsewhere from the others, and describes edges that are the examples."""
        nodes, (ends, rows) = tables.nodes.rows, record["ends"]
        outside_rows = np.empty(0, np.int64)
        with_split = self.of_links and "split" in tables.edges.columns
        if self.external != "refuse":
            names = tuple(record["elsewhere"].to_pylist())
            plain = record["edge_attrs"] is None
            every = plain_edges(ends) if plain else record["edge_attrs"]
            inside, record["outside"] = separate(every, nodes, names)
            if plain and with_split:  # in the table's order, as the splits are
                inside, outside = separate(EdgeAttributes(np.sort(ends, 0), False), nodes, names)
                if self.external == "predict":
                    record["outside"] = outside
            is_inside = np.maximum(*ends) < nodes
            rows, outside_rows = rows[is_inside], rows[~is_inside]
            record |= {"ends": (inside.ends, rows), "edge_attrs": None if record["edge_attrs"] is None else inside}
        fields = super().dataset_fields(tables, record)
        if with_split:
            split = masks_of(tables.edges, np.zeros(tables.edges.rows, np.int64), "edge")  # [3, rows]
            codes = split_numbers(split)
            attributes = fields["edge_attrs"] or EdgeAttributes(record["ends"][0], False)
            fields |= {"edge_attrs": attributes._replace(split=codes[rows])}
            if self.external == "predict":
                _describe_outside(fields, split=codes[outside_rows])
        if self.of_edges:
            if self.external == "predict":
                public = fields["public"]
                given = None if public is None else split_numbers(public)[outside_rows]
                _describe_outside(fields, y=fields["y"][outside_rows], split=given)
            self._describe_edges(tables, rows, fields)
        return fields

    def _describe_edges(self, tables: Tables, rows: np.ndarray, fields: Record) -> None:
        """Make the edges the examples; `rows` int64 [e] are their rows in the table."""
        edges = tables.edges
        fields |= {"node_ids": fields["ids"], "ids": (), "y": fields["y"][rows]}
        if "id" in edges.columns:
            fields["ids"] = tuple(ids_of(edges).take(pa.array(rows)).to_pylist())
        elif len(rows) < edges.rows:
            fields["ids"] = tuple(map(str, rows.tolist()))
        for name in ("sensitive", "public"):
            if fields[name] is not None:
                fields[name] = fields[name][..., rows]
        unused = [name for name in NODES[1:] if name in tables.nodes.columns]
        if unused:
            verb = "is" if len(unused) == 1 else "are"
            fields["notes"] = (f"the examples are edges: of nodes, {', '.join(unused)} {verb} not used",)


def _describe_outside(fields: Record, **columns: np.ndarray | None) -> None:
    """Give links to nodes elsewhere their relation and split."""
    edge_attrs = fields["outside"].edge_attrs._replace(**columns)
    fields["outside"] = fields["outside"]._replace(edge_attrs=edge_attrs)


_MEMBERS = "Name the folder whose sub-folders are the members, each with nodes and edges; see docs/data-format.md."
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
        """All members' nodes, one member after the other in order of name (`build`)."""
        if self.owner is not None:
            raise ConfigError("members: the sub-folders decide the owners of nodes; leave owner out.")
        root = require_folder(root, "members", "the folder of all members' folders", _MEMBERS)
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not folders:
            refuse(root, "there is no sub-folder", _MEMBERS)
        with_graphs = [folder.name for folder in folders if any(folder.glob("graphs.*"))]
        if with_graphs:
            what = f"{', '.join(with_graphs)} hold small graphs, and members hold nodes of one graph each"
            refuse(root, what, _OF_GRAPHS, "members-graphs")
        faults, nodes, edges = Faults(DataError), list[Table](), list[Table]()
        for folder in folders:
            with faults:
                node_table, edge_table, _ = self.tables(folder, lacking=not labelled)
                nodes.append(_with_member(node_table, folder.name, ("id",)))
                if self.of_edges and "id" not in edge_table.columns:  # then rows from 0 are the ids of the examples
                    rows = np.arange(edge_table.rows) if edge_table.file_rows is None else edge_table.file_rows
                    data = edge_table.data.append_column("id", pa.array(rows.astype(str)))
                    edge_table = replace(edge_table, data=data)
                edges.append(_with_member(edge_table, folder.name, (*EDGES, "id") if self.of_edges else EDGES))
        faults.refuse()
        features = [{name for name in table.columns if name not in NODES} for table in nodes]
        for folder, columns in zip(folders, features, strict=True):
            differ = sorted(columns ^ features[0])
            if differ:
                what = f"{folders[0].name} and {folder.name} differ in the columns {', '.join(differ)}"
                refuse(root, what, "Give all members the same feature columns.")
        all_nodes, all_edges = stack(root / nodes[0].path.stem, nodes), stack(root / edges[0].path.stem, edges)
        dataset = self.dataset(Tables(all_nodes, all_edges), root, labelled)
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


def _with_member(table: Table, member: str, columns: Sequence[str]) -> Table:
    """The table with the member's name in front of the ids in `columns`."""
    check_columns(table, required=tuple(columns), known=tuple(columns))
    data = table.data
    for column in columns:
        cells = table.nonempty_texts(column)
        full = pc.binary_join_element_wise(pa.scalar(member), cells, pa.scalar("/"))
        data = data.set_column(data.column_names.index(column), column, full)
    return replace(table, data=data)
