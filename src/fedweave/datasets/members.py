"""Members that hold nodes of their own: a folder with one sub-folder for each, in the layout of `folder.Folder`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.columns import EDGES, NODES, check_columns
from fedweave.datasets.folder import Folder
from fedweave.datasets.recognise import require_folder
from fedweave.datasets.table import Table
from fedweave.datasets.unread import unread
from fedweave.errors import ConfigError, DataError, Faults

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
        if root is None:
            raise ConfigError(
                'The dataset "members" needs the folder of all members\' folders: set [data] path.',
                code="config.missing",
            )
        if self.owner is not None:
            raise ConfigError("members: the sub-folders say whose nodes are; leave owner out.")
        require_folder(root, _LAYOUT)
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not folders:
            refuse(root, "there is no sub-folder", _LAYOUT)
        if odd := [folder.name for folder in folders if any(folder.glob("graphs.*"))]:
            refuse(root, f"{', '.join(odd)} hold small graphs, and members hold nodes of one graph each", _OF_GRAPHS)
        faults, nodes, edges = Faults(DataError), list[Table](), list[Table]()
        for folder in folders:
            with faults:
                of_nodes, of_edges = self.tables(folder, "nodes", "edges", lacking=not labelled)
                nodes.append(_named(of_nodes, folder.name, NODES[:1]))
                edges.append(_named(self._with_ids(of_edges), folder.name, self._ends))
        faults.refuse()
        _check_alike(root, nodes)
        made = self.made(_stacked(root, nodes), _stacked(root, edges), root, labelled)
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
        return EDGES if self.task == "nodes" else (*EDGES, "id")

    def _with_ids(self, edges: Table) -> Table:
        """With ids where edges are the examples: their rows from 0 in the member's table, where it says none."""
        if self.task == "nodes" or "id" in edges.columns:
            return edges
        rows = np.arange(edges.rows) if edges.there is None else edges.there
        return replace(edges, data=edges.data.append_column("id", pa.array(rows.astype(str))))


@dataclass(frozen=True)
class _Stacked(Table):
    """Several tables one below the other; complaints name the file and row that a value comes from."""

    sources: tuple[Table, ...] = ()
    counted: ClassVar[str] = "rows of all members"

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
