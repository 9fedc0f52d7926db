"""A user's own small graphs: a folder with `graphs`, `nodes` and `edges`, each as Parquet or CSV; columns in
docs/data-format.md."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.datasets.alike import Known, places
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, first
from fedweave.datasets.classified import Classified, labels_in, refuse_numerals
from fedweave.datasets.columns import (
    EDGES,
    check_columns,
    ends_of,
    feature_names,
    features_of,
    group_names,
    ids_of,
    owners_of,
    sens_of,
    split_of,
)
from fedweave.datasets.features import compact, normalise, one_hot
from fedweave.datasets.recognise import TABLES, named_folder, unread
from fedweave.datasets.sensitive import without_sens
from fedweave.datasets.table import WHOLE, Table
from fedweave.errors import ConfigError

GRAPHS = ("id", "label", "sens", "split")
NODES = ("id", "graph", "label")


@dataclass(frozen=True)
class GraphFolder(Classified):
    """Your own folder of small graphs with graphs.csv|parquet, nodes.csv|parquet and edges.csv|parquet.

    normalise:   how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    classes:     number of classes when the graphs' labels are numbers; None is the largest label + 1.
    labels:      names of the graphs' classes in order; None is those present, sorted.
    node_labels: the nodes' labels in order of their one-hot columns; None is those present, sorted (or 0 to the
                 largest, if all are whole numbers).
    edge_labels: the edges' labels in order, as `node_labels`.
    degrees:     columns of the one-hot degrees that stand in where nodes have neither labels nor features; None is the
                 largest degree + 1.
    categories:  columns of nodes that are text, as in `folder.Folder`. Sites that train together must all give the same
                 of these six.
    owner:       the column of graphs that says whose each graph is, for the partition "column".
    """

    node_labels: tuple[str, ...] | None = None
    edge_labels: tuple[str, ...] | None = None
    degrees: int | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, names in (("node_labels", self.node_labels), ("edge_labels", self.edge_labels)):
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"graphs: {name} = {list(names)} is empty or names a value twice.")
        if self.owner in GRAPHS:
            raise ConfigError(f"graphs: owner = {self.owner!r} already means something else; name another column.")
        if self.degrees is not None and self.degrees < 1:
            raise ConfigError(f"graphs: degrees = {self.degrees} is not allowed; it must be at least 1.")

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graphs in `root`, numbered by their row; nodes graph by graph, else in their order; `seed` is not used.

        labelled: False for graphs to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused; the message names file, row (see `table.Table`) and remedy.
        """
        layout = "Name the folder that holds graphs, nodes and edges, each as .csv or .parquet."
        root = named_folder(root, "graphs", "the folder with graphs, nodes and edges", layout)
        graphs, nodes, edges = self.tables(root, "graphs", "nodes", "edges", lacking=not labelled)
        made = self.made(graphs, nodes, edges, root, labelled)
        return replace(made, notes=unread(root, [graphs.path, nodes.path, edges.path]))

    def made(self, graphs: Table, nodes: Table, edges: Table, root: Path, labelled: bool = True) -> Dataset:
        """The graphs of three tables; `root` is what complaints about all of them name, its last part the data's name.

        Raises:
            DataError: see `load`.
        """
        own = () if self.owner is None else (self.owner,)
        known, hint = (*GRAPHS, *own), "" if own else "data.owner names one that says whose each graph is"
        required = (*GRAPHS[:2], *own) if labelled else GRAPHS[:1]  # whose a graph to be predicted is does not matter
        check_columns(graphs, required=required, known=known, closed=True, hint=hint)
        check_columns(nodes, required=NODES[:2], known=NODES)
        check_columns(edges, required=EDGES, known=(*EDGES, "label"), closed=True)
        y, classes = self.labels_of(graphs, labelled)
        graph_of = _graphs(graphs, nodes)
        order = np.argsort(graph_of, kind="stable")
        graph_of, ids = graph_of[order], ids_of(nodes).take(pa.array(order))
        pairs, edge_labels = _edges(edges, ids, graph_of, self.edge_labels, self.loops)
        kinds = None
        if "label" in nodes.columns:
            kinds = _kinds(nodes, self.node_labels, "node_labels")[order]
        x = self._features(nodes, order, kinds, pairs, labelled)
        owned = self.owner if self.owner in graphs.columns else None
        owners = owners_of(graphs, owned) if owned else ()
        dataset = Dataset(
            name=root.resolve().name,
            x=x,
            edges=pairs,
            y=y,
            classes=classes,
            sens=sens_of(graphs, self.groups),
            groups=group_names(graphs, self.groups),
            public=split_of(graphs, y, "graph") if labelled and "split" in graphs.columns else None,
            ids=tuple(ids_of(graphs).to_pylist()),
            columns=self._columns(nodes, x.shape[1]),
            labels=self.names_of(graphs),
            graph_of=graph_of,
            node_labels=kinds,
            edge_labels=edge_labels,
            owner=graphs.kinds(owned, owners) if owned else None,
            owners=owners,
            node_kinds=_names(nodes, self.node_labels) if "label" in nodes.columns else (),
            edge_kinds=_names(edges, self.edge_labels) if "label" in edges.columns else (),
        )
        without_sens(check(dataset, root, labelled), root, self.sens_feature)
        return replace(dataset, x=normalise(compact(x), self.normalise, root.name))

    def _columns(self, nodes: Table, count: int) -> tuple[str, ...]:
        """What the `count` features are called: "label = C", the feature columns' own names, or "degree = 3"."""
        own = feature_names(nodes, NODES, self.categories)
        kind = "label" if "label" in nodes.columns else "degree"
        known = _names(nodes, self.node_labels) if kind == "label" else ()
        named = known or tuple(map(str, range(count - len(own))))
        return (*(f"{kind} = {name}" for name in named), *own)

    def _features(
        self, nodes: Table, order: np.ndarray, kinds: np.ndarray | None, edges: np.ndarray, apart: bool
    ) -> "np.ndarray | sp.csr_matrix":
        """[n, d]: one-hot node labels, then the feature columns; without either, one-hot degrees."""
        named = bool(feature_names(nodes, NODES))
        held = [features_of(nodes, NODES, self.categories, apart)[order]] if named else []
        if kinds is not None:
            columns = one_hot(kinds, None if self.node_labels is None else len(self.node_labels))
            return sp.hstack([columns, *held], "csr", np.float32)
        if held:
            return held[0]
        degree = np.bincount(edges[0], minlength=nodes.rows)
        if self.degrees is not None:
            nodes.refuse_at(
                first(degree[np.argsort(order)] >= self.degrees),
                f"the node has more than {self.degrees - 1} neighbours",
                "Raise [data] degrees.",
            )
        return one_hot(degree, self.degrees)


def is_of_graphs(root: Path) -> bool:
    """Whether the folder's tables are of small graphs."""
    return any((root / f"graphs{kind}").is_file() for kind in TABLES)


def check_named(root: Path, kind: GraphFolder) -> None:
    """Refuse labels of nodes or edges that are names whose order nobody gave: another holder of such tables, who lacks
    a name, would number the others in another way.

    Raises:
        ConfigError: names the table and what to give. DataError: a label is a number, but not a whole one.
    """
    _, *tables = kind.tables(root, "graphs", "nodes", "edges")
    for stem, given, table in zip(("nodes", "edges"), (kind.node_labels, kind.edge_labels), tables, strict=True):
        if given is not None or "label" not in table.columns:
            continue
        refuse_numerals(table, f"{stem[:-1]}_labels")
        if names := _names(table, None):
            raise ConfigError(
                f"{table.path}: the labels are names ({', '.join(names[:5])}), which sites without some of them would "
                f"number in another way; give {stem[:-1]}_labels = [...] in [data], the same at every site."
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


def _edges(
    edges: Table, ids: pa.Array, graph_of: np.ndarray, names: tuple[str, ...] | None, loops: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """int64 [2, E] in the form of `Dataset`, and int64 [E] the edges' labels or None.

    Raises:
        DataError: an edge joins two graphs, or has two labels; names file and row.
    """
    ends, rows = ends_of(edges, ids, loops)
    at = first(graph_of[ends[0]] != graph_of[ends[1]])
    if at is not None:
        what = f"the edge joins {ids[int(ends[0, at])].as_py()!r} and {ids[int(ends[1, at])].as_py()!r} of two graphs"
        edges.refuse_at(int(rows[at]), what, "Remove the row, or make the two graphs one.")
    both = np.concatenate([ends, ends[::-1]], 1)
    codes = both[0] * len(ids) + both[1]
    order = np.argsort(codes, kind="stable")
    new = np.diff(codes[order], prepend=-1) != 0
    kept = order[new]
    if "label" not in edges.columns:
        return both[:, kept], None
    labels = np.tile(_kinds(edges, names, "edge_labels")[rows], 2)
    fault = first(labels[order] != labels[kept][np.cumsum(new) - 1])
    if fault is not None:
        row = int(rows[order[fault] % len(rows)])
        edges.refuse_at(row, "the edge has another label above", "Keep one of the two rows.")
    return both[:, kept], labels[kept]


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
        refuse_numerals(table, key)
    remedy = f"Correct it; {key} in [data] may name more, before a model is trained."
    return table.among("label", cells, _names(table, names), remedy)
