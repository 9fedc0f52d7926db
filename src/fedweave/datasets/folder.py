"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedweave.core.records import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import ALL, Carrying, carried_of, of_nodes, skeleton
from fedweave.datasets.check import Faults, check, refuse
from fedweave.datasets.columns import (
    EDGES,
    NODES,
    check_columns,
    elsewhere,
    ends_of,
    feature_names,
    features_of,
    group_names,
    ids_of,
    owners_of,
    sens_of,
    split_of,
)
from fedweave.datasets.features import compact, normalise
from fedweave.datasets.gaps import gaps_filled, gaps_of
from fedweave.datasets.outside import check_external, once, separated
from fedweave.datasets.recognise import require_folder
from fedweave.datasets.sensitive import refuse_repeated
from fedweave.datasets.table import Table
from fedweave.datasets.unread import unread
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Folder(Carrying):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
                "edges.currency" is the column of edges.
    owner:      the column of nodes that says whose each node is, for the partition "column"; it is no feature. Sites
                that train together must all give the same categories and groups.
    external:   edges of which one end is not among the nodes: "refuse"; "features" of their number and what they carry
                at the other; and "exchange" of features with the members that hold such nodes.
    """

    categories: dict[str, tuple[str, ...]] | None = None
    owner: str | None = None
    external: str = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_external(self.external)
        named = {f"categories.{column}": names for column, names in (self.categories or {}).items()}
        for key, names in named.items():
            if not 0 < len(names) == len(set(names)):
                raise ConfigError(f"folder: {key} = {list(names)} is empty or names a value twice.")
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
        if root is None:
            raise ConfigError(
                'The dataset "folder" needs the folder with nodes and edges: set [data] path.', code="config.missing"
            )
        require_folder(root, "Name the folder that holds nodes.csv|parquet and edges.csv|parquet.")
        if texts := sorted(path.name for path in root.glob("*_A.txt*")):
            refuse(root, f"{texts[0]} is there, so it is in the TU layout", 'Set [data] name = "tu".')
        nodes, edges = self.tables(root, "nodes", "edges", lacking=not labelled)
        if "graph" in nodes.columns and any(root.glob("graphs.*")):
            refuse(root, "there is a table graphs, and nodes say which they belong to", 'Set [data] name = "graphs".')
        made = self.made(nodes, edges, root, labelled)
        return replace(made, notes=unread(root, [nodes.path, edges.path]))

    def made(self, nodes: Table, edges: Table, root: Path, labelled: bool = True) -> Dataset:
        """The graph of two tables; `root` is what complaints about both name, its last part the data's name.

        Raises:
            DataError: see `load`.
        """
        known = NODES if self.owner is None else (*NODES, self.owner)
        owned = known[len(NODES) :] if labelled else ()  # whose a node to be predicted is does not matter
        check_columns(nodes, required=(*NODES[: 1 + labelled], *owned), known=known)
        of_edges, hint = (*EDGES, *self.chosen), "data.edge_features takes them, and data.edge_weight and edge_time one"
        check_columns(edges, required=of_edges, known=of_edges, closed=self.edge_features != ALL, hint=hint)
        nodes = gaps_filled(nodes, gaps_of(self.missing, of_edges=False))
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        faults, found = Faults(), Record()
        for name, part in self._parts(nodes, edges, known, labelled).items():
            with faults:
                found[name] = part(found)
        faults.refuse()
        if not self.sens_feature:
            refuse_repeated(found["x"], found["sens"], found["columns"], nodes.path)
        y, classes = found.pop("labelled")
        ends, names = found.pop("ends")[0], tuple(found.pop("elsewhere").to_pylist())
        if self.external != "refuse":
            every = once(ends) if found["carried"] is None else found["carried"]
            inside, found["outside"] = separated(every, nodes.rows, names)
            ends, found["carried"] = inside.ends, None if found["carried"] is None else inside
        found["edges"] = skeleton(ends, nodes.rows)
        found |= {
            "x": normalise(compact(found["x"]), self.normalise, root.name),
            "ids": tuple(found["ids"].to_pylist()),
        }
        return check(
            Dataset(name=root.resolve().name, y=y, classes=classes, labels=self.names_of(nodes), **found),
            root,
            labelled,
        )

    def _parts(
        self, nodes: Table, edges: Table, known: tuple[str, ...], labelled: bool
    ) -> "dict[str, Callable[[Record], Any]]":
        """What is read of the tables, in order, each from what was read before it."""
        split = labelled and "split" in nodes.columns
        owned = self.owner in nodes.columns
        parts: dict[str, Callable[[Record], Any]] = {
            "ids": lambda found: ids_of(nodes),
            "labelled": lambda found: self.labels_of(nodes, labelled),
            "x": lambda found: features_of(nodes, known, of_nodes(self.categories), apart=labelled),
            "columns": lambda found: feature_names(nodes, known, of_nodes(self.categories)),
            "sens": lambda found: sens_of(nodes, self.groups),
            # where sens was refused, its names would be refused for the same
            "groups": lambda found: group_names(nodes, self.groups) if "sens" in found else (),
            "public": lambda found: split_of(nodes, found["labelled"][0]) if split and "labelled" in found else None,
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
