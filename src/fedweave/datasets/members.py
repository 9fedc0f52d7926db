"""Members that hold nodes of their own, each in a sub-folder with the layout of `folder`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.column_names import EDGES, NODES, check_columns
from fedweave.datasets.folder import Folder
from fedweave.datasets.lookup import require_folder, unread
from fedweave.datasets.table import Table, Tables, stack
from fedweave.errors import ConfigError, DataError, Faults

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
        root = require_folder(root, "members", "the folder of all members' folders", _LAYOUT)
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
        nodes_of_all, edges_of_all = (stack(root / each[0].path.stem, each) for each in (nodes, edges))
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
        rows = np.arange(edges.rows) if edges.file_rows is None else edges.file_rows
        return replace(edges, data=edges.data.append_column("id", pa.array(rows.astype(str))))


def _with_member(table: Table, member: str, columns: Sequence[str]) -> Table:
    """The table with the member's name in front of the ids in `columns`."""
    check_columns(table, required=tuple(columns), known=tuple(columns))
    data = table.data
    for column in columns:
        cells = table.required_texts(column)
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
