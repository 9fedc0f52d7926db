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
        """All members' nodes, one member after the other in order of name (`build`)."""
        if self.owner is not None:
            raise ConfigError("members: the sub-folders decide the owners of nodes; leave owner out.")
        root = require_folder(root, "members", "the folder of all members' folders", _LAYOUT)
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not folders:
            refuse(root, "there is no sub-folder", _LAYOUT)
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
