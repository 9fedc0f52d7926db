"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md.

And members that hold nodes of their own, each in a sub-folder of that layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.records import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import times_of
from fedweave.datasets.check import refuse
from fedweave.datasets.columns import EDGES, NODES, check_columns, elsewhere, ids_of
from fedweave.datasets.edges import bare, check_external, separated
from fedweave.datasets.lookup import named_folder, unread
from fedweave.datasets.table import Table, Tables
from fedweave.datasets.tables import Parts, Tabular
from fedweave.errors import ConfigError, DataError, Faults

TASKS = ("nodes", "edges")
OF_EXAMPLES = ("id", "label", "sens", "split")  # columns of edges where these are the examples


@dataclass(frozen=True)
class Folder(Tabular):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
                "auto" takes the values of the training rows, sorted. "edges.currency" is the column of edges.
    task:       what is classified: "nodes", or "edges", which then have the columns label, split, sens and id.
    node_time:  the column of nodes with their time, by which they may be split; numbers or dates, as `edge_time`.
    owner:      the column of nodes that says whose each node is, for the partition "column"; it is no feature. Sites
                that train together must all give the same categories and groups.
    external:   edges of which one end is not among the nodes: "refuse"; "features" of their number and what they carry
                at the other; and "exchange" of features with the members that hold such nodes.
    """

    task: Literal["nodes", "edges"] = "nodes"
    node_time: str | None = None
    external: str = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in TASKS:
            raise ConfigError(f"task = {self.task!r} is not known; choose one of {', '.join(TASKS)}.")
        check_external(self.external)

    @property
    def of_edges(self) -> bool:
        """See `Classified.of_edges`."""
        return self.task == "edges"

    @property
    def said(self) -> tuple[str, ...]:
        """See `Carrying.said`."""
        return OF_EXAMPLES if self.of_edges else ()

    @property
    def known(self) -> tuple[str, ...]:
        """See `Tabular.known`."""
        return (*NODES, *(name for name in (self.owner, self.node_time) if name is not None))

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
            refuse(root, f"{texts[0]} is there, so it is in the TU layout", 'Set [data] name = "tu".', "other-layout")
        tables = self.tables(root, lacking=not labelled)
        if "graph" in tables.nodes.columns and any(root.glob("graphs.*")):
            what = "there is a table graphs, and nodes say which they belong to"
            refuse(root, what, 'Set [data] name = "graphs".', "other-layout")
        made = self.made(tables, root, labelled)
        return replace(made, notes=(*made.notes, *unread(root, [tables.nodes.path, tables.edges.path])))

    def check_form(self, tables: Tables, labelled: bool) -> None:
        """See `Tabular.check_form`."""
        owned = self.known[len(NODES) :] if labelled else ()  # whose or when a node to be predicted is does not matter
        named = NODES[: 1 + (labelled and not self.of_edges)]
        check_columns(tables.nodes, required=(*named, *owned), known=self.known)
        super().check_form(tables, labelled)

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        """See `Tabular.parts`."""
        parts, nodes, when = super().parts(tables, labelled), tables.nodes, self.node_time or ""
        if when in nodes.columns:
            parts["node_time"] = lambda found: times_of(nodes, when)
        if self.external != "refuse":
            parts["elsewhere"] = lambda found: (
                elsewhere(tables.edges, found["ids"]) if "ids" in found else pa.array([], "str")
            )
        return parts

    def finished(self, tables: Tables, found: Record) -> Record:
        """See `Tabular.finished`; edges to nodes elsewhere apart, and what is said of edges for those that are left."""
        nodes, (ends, rows) = tables.nodes.rows, found["ends"]
        if self.external != "refuse":
            every = bare(ends) if found["carried"] is None else found["carried"]
            inside, found["outside"] = separated(every, nodes, tuple(found["elsewhere"].to_pylist()))
            rows = rows[np.maximum(*ends) < nodes]
            found |= {"ends": (inside.ends, rows), "carried": None if found["carried"] is None else inside}
        fields = super().finished(tables, found)
        if not self.of_edges:
            return fields
        unused = [name for name in NODES[1:] if name in tables.nodes.columns]
        return fields | _of_edges(tables.edges, rows, fields, unused)


def _of_edges(edges: Table, rows: np.ndarray, fields: Record, unused: list[str]) -> Record:
    """What a dataset says of edges as examples, of which `rows` int64 [e] of the table are left; unused: columns of
    nodes that say of nodes what is asked of edges."""
    named = () if "id" not in edges.columns else tuple(ids_of(edges).take(pa.array(rows)).to_pylist())
    if not named and len(rows) < edges.rows:
        named = tuple(map(str, rows.tolist()))
    of_rows = {name: fields[name] if fields[name] is None else fields[name][..., rows] for name in _OF_ROWS}
    held: Record = {"ids": named, "node_ids": fields["ids"]} | of_rows
    if unused:
        held["notes"] = (
            f"the examples are edges: of nodes, {', '.join(unused)} {'is' if len(unused) == 1 else 'are'} not used",
        )
    return held


_OF_ROWS = ("y", "sens", "public")


_LAYOUT = "Name the folder whose sub-folders are the members, each with nodes and edges; see docs/data-format.md."

_OF_GRAPHS = (
    "Put all graphs into one folder, with a column of graphs that says whose each is: "
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
            raise ConfigError("members: the sub-folders say whose nodes are; leave owner out.")
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
                nodes.append(_named(of_nodes, folder.name, NODES[:1]))
                edges.append(_named(self._with_ids(of_edges), folder.name, self._ends))
        faults.refuse()
        _check_alike(root, nodes)
        made = self.made(Tables(_stacked(root, nodes), _stacked(root, edges)), root, labelled)
        owner = np.repeat(np.arange(len(folders)), [table.rows for table in nodes])
        if made.outside is not None:  # which members that train together call alike
            names = tuple(name.partition("/")[2] for name in made.outside.names)
            made = replace(made, outside=made.outside._replace(names=names))
        return replace(
            made,
            owner=owner,
            owners=tuple(folder.name for folder in folders),
            notes=(*made.notes, *unread(root, [table.path for table in (*nodes, *edges)], *folders)),
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


@dataclass(frozen=True)
class _Stacked(Table):
    """Several tables one below the other; complaints name the file and row that a value comes from."""

    sources: tuple[Table, ...] = ()
    counted: ClassVar[str] = "rows of all members"

    @property
    def origins(self) -> np.ndarray:
        """See `Table.origins`."""
        return np.repeat(np.arange(len(self.sources)), [table.rows for table in self.sources])

    def place(self, row: int) -> tuple[Path, int]:
        """See `Table.place`."""
        for table in self.sources:
            if row < table.rows:
                return table.place(row)
            row -= table.rows
        raise IndexError(row)


def _named(table: Table, member: str, columns: Sequence[str]) -> Table:
    """The table with the member's name before the ids in `columns`."""
    check_columns(table, required=tuple(columns), known=tuple(columns))
    data = table.data
    for column in columns:
        cells = table.filled(column)
        full = pc.binary_join_element_wise(pa.scalar(member), cells, pa.scalar("/"))
        data = data.set_column(data.column_names.index(column), column, full)
    return replace(table, data=data)


def _check_alike(root: Path, nodes: Sequence[Table]) -> None:
    """Refuse members with other feature columns."""
    features = [[name for name in table.columns if name not in NODES] for table in nodes]
    for table, own in zip(nodes, features, strict=True):
        if differ := sorted(set(own) ^ set(features[0])):
            what = f"{nodes[0].path.parent.name} and {table.path.parent.name} differ in the columns {', '.join(differ)}"
            refuse(root, what, "Give all members the same feature columns.")


def _stacked(root: Path, tables: Sequence[Table]) -> Table:
    try:
        data = pa.concat_tables([table.data for table in tables], promote_options="permissive")
    except pa.ArrowException as error:
        kind = tables[0].path.stem
        refuse(root, f"the members' {kind} hold values of different types ({error})", "Write all as CSV, or all alike.")
    return _Stacked(root / tables[0].path.stem, data, 0, tuple(tables))
