"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md.

And members that hold nodes of their own, each in a sub-folder of that layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.records import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import ALL, OF_EXAMPLES, Carrying, carried_of, of_nodes, skeleton, times_of
from fedweave.datasets.check import check, refuse
from fedweave.datasets.columns import (
    EDGES,
    NODES,
    check_columns,
    elsewhere,
    ends_of,
    feature_names,
    features_of,
    gaps_filled,
    gaps_of,
    group_names,
    ids_of,
    owners_of,
    sens_of,
    split_of,
)
from fedweave.datasets.features import compact, normalise
from fedweave.datasets.outside import bare, check_external, separated
from fedweave.datasets.recognise import named_folder, unread
from fedweave.datasets.sensitive import refuse_repeated, without_sens
from fedweave.datasets.table import Table
from fedweave.errors import ConfigError, DataError, Faults


@dataclass(frozen=True)
class Folder(Carrying):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
                "edges.currency" is the column of edges.
    node_time:  the column of nodes with their time, by which they may be split; numbers or dates, as `edge_time`.
    owner:      the column of nodes that says whose each node is, for the partition "column"; it is no feature. Sites
                that train together must all give the same categories and groups.
    external:   edges of which one end is not among the nodes: "refuse"; "features" of their number and what they carry
                at the other; and "exchange" of features with the members that hold such nodes.
    """

    node_time: str | None = None
    owner: str | None = None
    external: str = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_external(self.external)
        if both := [name for name in self.missing or () if name in (self.categories or {})]:
            raise ConfigError(f"folder: missing names {both[0]!r}, whose empty cells are in none of its categories.")
        if self.owner in NODES:
            raise ConfigError(f"folder: owner = {self.owner!r} already means something else; name another column.")

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graph in `root`, nodes numbered by their row, features in the order of their columns; `seed` is not used.

        labelled: False for nodes to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused; the message names file, row (see `table.Table`) and remedy, of
                each of the first 20 faults.
        """
        layout = "Name the folder that holds nodes.csv|parquet and edges.csv|parquet."
        root = named_folder(root, "folder", "the folder with nodes and edges", layout)
        if texts := sorted(path.name for path in root.glob("*_A.txt*")):
            refuse(root, f"{texts[0]} is there, so it is in the TU layout", 'Set [data] name = "tu".')
        nodes, edges = self.tables(root, "nodes", "edges", lacking=not labelled)
        if "graph" in nodes.columns and any(root.glob("graphs.*")):
            refuse(root, "there is a table graphs, and nodes say which they belong to", 'Set [data] name = "graphs".')
        made = self.made(nodes, edges, root, labelled)
        return replace(made, notes=(*made.notes, *unread(root, [nodes.path, edges.path])))

    def made(self, nodes: Table, edges: Table, root: Path, labelled: bool = True) -> Dataset:
        """The graph of two tables; `root` is what complaints about both name, its last part the data's name.

        Raises:
            DataError: see `load`.
        """
        known = (*NODES, *(name for name in (self.owner, self.node_time) if name is not None))
        owned = known[len(NODES) :] if labelled else ()  # whose or when a node to be predicted is does not matter
        own = self.task == "nodes"
        check_columns(nodes, required=(*NODES[: 1 + (labelled and own)], *owned), known=known)
        self._check_edges(edges, labelled)
        nodes = gaps_filled(nodes, gaps_of(self.missing, of_edges=False))
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        faults, found = Faults(DataError), Record()
        for name, part in self._parts(nodes, edges, known, labelled).items():
            with faults:
                found[name] = part(found)
        faults.refuse()
        if own and not self.sens_feature:
            refuse_repeated(found["x"], found["sens"], found["columns"], nodes.path)
        y, classes = found.pop("labelled")
        (ends, rows), names = found.pop("ends"), tuple(found.pop("elsewhere").to_pylist())
        if self.external != "refuse":
            every = bare(ends) if found["carried"] is None else found["carried"]
            inside, found["outside"] = separated(every, nodes.rows, names)
            rows = rows[np.maximum(*ends) < nodes.rows]
            ends, found["carried"] = inside.ends, None if found["carried"] is None else inside
        found |= {
            "x": normalise(compact(found["x"]), self.normalise, root.name),
            "ids": tuple(found["ids"].to_pylist()),
            "edges": skeleton(ends, nodes.rows),
        }
        if not own:
            y = y[rows]
            found |= _of_edges(edges, rows, found, [name for name in NODES[1:] if name in nodes.columns])
        names = self.names_of(nodes if own else edges)
        made = Dataset(name=root.resolve().name, y=y, classes=classes, labels=names, **found)
        return check(made if own else without_sens(made, edges.path, self.sens_feature), root, labelled)

    def _check_edges(self, edges: Table, labelled: bool) -> None:
        """Refuse a table of edges without the columns that it must have, or with others."""
        known = (*EDGES, *self.chosen)
        required, hint = known, "data.edge_features takes them, and data.edge_weight and edge_time one"
        if self.task == "edges":
            known, required = (*known, *OF_EXAMPLES), (*known, *OF_EXAMPLES[1:2]) if labelled else known
        elif "label" in edges.columns:
            hint += ", and data.task = 'edges' makes each an example"
        check_columns(edges, required=required, known=known, closed=self.edge_features != ALL, hint=hint)

    def _parts(
        self, nodes: Table, edges: Table, known: tuple[str, ...], labelled: bool
    ) -> "dict[str, Callable[[Record], Any]]":
        """What is read of the tables, in order, each from what was read before it."""
        examples = nodes if self.task == "nodes" else edges
        split = labelled and "split" in examples.columns
        owned, timed = self.owner in nodes.columns, self.node_time in nodes.columns
        parts: dict[str, Callable[[Record], Any]] = {
            "ids": lambda found: ids_of(nodes),
            "labelled": lambda found: self.labels_of(examples, labelled),
            "x": lambda found: features_of(nodes, known, of_nodes(self.categories), apart=labelled),
            "columns": lambda found: feature_names(nodes, known, of_nodes(self.categories)),
            "sens": lambda found: sens_of(examples, self.groups),
            # where sens was refused, its names would be refused for the same
            "groups": lambda found: group_names(examples, self.groups) if "sens" in found else (),
            "public": lambda found: (
                split_of(examples, found["labelled"][0], self.task[:-1]) if split and "labelled" in found else None
            ),
            "node_time": lambda found: times_of(nodes, self.node_time or "") if timed else None,
            "owners": lambda found: owners_of(nodes, self.owner or "") if owned else (),
            "owner": lambda found: nodes.kinds(self.owner or "", found["owners"]) if found.get("owners") else None,
            "elsewhere": lambda found: (
                elsewhere(edges, found["ids"]) if self.external != "refuse" and "ids" in found else pa.array([], "str")
            ),
            "ends": lambda found: (
                ends_of(edges, pa.concat_arrays([found["ids"], found["elsewhere"]]), self.loops)
                if {"ids", "elsewhere"} <= found.keys()
                else None
            ),
            "carried": lambda found: (
                carried_of(edges, found["ends"], self, self.categories) if found.get("ends") else None
            ),
        }
        return parts


def _of_edges(edges: Table, rows: np.ndarray, found: Record, unused: list[str]) -> Record:
    """What a dataset says of edges as examples, of which `rows` int64 [e] of the table are left; unused: columns of
    nodes that say of nodes what is asked of edges."""
    taken = pa.array(rows)
    named = () if "id" not in edges.columns else tuple(ids_of(edges).take(taken).to_pylist())
    if not named and len(rows) < edges.rows:
        named = tuple(map(str, rows.tolist()))
    held: Record = {"ids": named, "node_ids": found["ids"]}
    held |= {name: found[name] if found[name] is None else found[name][..., rows] for name in ("sens", "public")}
    if unused:
        held["notes"] = (
            f"the examples are edges: of nodes, {', '.join(unused)} {'is' if len(unused) == 1 else 'are'} not used",
        )
    return held


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
