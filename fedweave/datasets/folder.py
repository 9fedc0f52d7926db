"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.graph import SPLITS
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, first, refuse
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import check_normalise, compact, normalise
from fedweave.datasets.sensitive import refuse_repeated
from fedweave.datasets.table import WHOLE, Table, find, read
from fedweave.errors import ConfigError

NODES = ("id", "label", "sens", "split")
EDGES = ("source", "target")


@dataclass(frozen=True)
class Folder:
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    normalise: see `features.normalise`.
    classes:   number of classes when labels are numbers; None is the largest label + 1.
    labels:    class names in order when labels are names; None is those present, sorted. Sites that train together must
               all give the same `classes` or `labels`, since one site may lack a class.
    sens_feature: allow a feature column that says the same as the column sens.
    """

    normalise: str = "none"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    sens_feature: bool = False

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        if self.classes is not None and self.labels is not None:
            raise ConfigError("folder: give classes (labels are numbers) or labels (labels are names), not both.")
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"folder: classes = {self.classes} is not allowed; it must be at least 1.")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"folder: labels = {list(self.labels)} is empty or names a class twice.")

    def load(self, root: Path | None, seed: int, labelled: bool = True) -> Dataset:
        """The graph in `root`, nodes numbered by their row, features in the order of their columns; `seed` is not used.

        labelled: False for nodes to be predicted, which need no labels and whose split does not matter.

        Raises:
            ConfigError: no folder is given.
            DataError: the files are missing or refused; the message names file, row (see `table.Table`) and remedy.
        """
        if root is None:
            raise ConfigError('The dataset "folder" needs the folder with nodes and edges: set [data] path.')
        if not root.is_dir():
            refuse(root, "this is not a folder", "Name the folder that holds nodes.csv|parquet and edges.csv|parquet.")
        if texts := sorted(path.name for path in root.glob("*_A.txt*")):
            refuse(root, f"{texts[0]} is there, so it is in the TU layout", 'Set [data] name = "tu".')
        nodes, edges = read(find(root, "nodes")), read(find(root, "edges"))
        if "graph" in nodes.columns and any(root.glob("graphs.*")):
            refuse(root, "there is a table graphs, and nodes say which they belong to", 'Set [data] name = "graphs".')
        check_columns(nodes, required=NODES[: 1 + labelled], known=NODES)
        check_columns(edges, required=EDGES, known=EDGES, closed=True)
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        y, classes = self.labels_of(nodes, labelled)
        ids = ids_of(nodes)
        x, sens = features_of(nodes), sens_of(nodes)
        if not self.sens_feature:
            refuse_repeated(x, sens, feature_names(nodes), nodes.path)
        dataset = Dataset(
            name=root.resolve().name,
            x=normalise(compact(x), self.normalise, root.name),
            edges=edges_of(edges, ids),
            y=y,
            classes=classes,
            sens=sens,
            public=split_of(nodes, y) if labelled and "split" in nodes.columns else None,
            ids=tuple(ids.to_pylist()),
            columns=feature_names(nodes),
            labels=self.names_of(nodes),
        )
        return check(dataset, root, labelled)

    def names_of(self, table: Table) -> tuple[str, ...]:
        """What the classes are called; () where labels are numbers."""
        if self.labels or "label" not in table.columns:
            return self.labels or ()
        present = table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(present, WHOLE)).as_py()
        return () if whole is not False else tuple(sorted(present.to_pylist()))

    def labels_of(self, table: Table, labelled: bool = True) -> tuple[np.ndarray, int]:
        """Classes int64 [rows], -1 where a label is missing, and how many classes there are; without `labelled`, all
        may be missing.

        Raises:
            DataError: a label is not one of the configured ones; names file and row.
        """
        cells = table.texts("label") if labelled or "label" in table.columns else pa.nulls(table.rows, pa.string())
        present = cells.drop_null()
        if len(present) == 0 and not labelled:
            return np.full(table.rows, -1), self.classes or len(self.labels or ())
        if len(present) == 0:
            refuse(table.path, "column label is empty in every row", "Label at least one row.")
        whole = pc.match_substring_regex(present, WHOLE)
        if self.labels is None and pc.all(whole).as_py():
            return self._numbered(table)
        if self.classes is not None:
            table.whole("label", empty="unlabelled")  # says which label is no number
        if self.labels is None and pc.any(whole).as_py():
            names = present.filter(pc.invert(whole))
            refuse(
                table.path, f"some labels are numbers, others are names ({names[0]})", "Use one kind in column label."
            )
        classes = pa.array(self.labels or sorted(present.unique().to_pylist()), pa.string())
        y = pc.index_in(cells, classes, skip_nulls=True)
        unknown = first(y.is_null().to_numpy(False) & cells.is_valid().to_numpy(False))
        if unknown is not None:
            allowed = ", ".join(classes.to_pylist())
            table.refuse_at(
                unknown, f"label {cells[unknown].as_py()!r} is none of {allowed}", "Correct it or add it to labels."
            )
        return y.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), len(classes)

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabelled")
        classes = self.classes or int(y.max()) + 1
        row = first(y >= (classes if self.classes else table.rows))
        if row is not None and self.classes:
            table.refuse_at(row, f"label {y[row]} is not in 0..{classes - 1}", "Correct it or raise classes.")
        table.refuse_at(row, f"label {y[row or 0]} would make more classes than rows", "Number the classes from 0.")
        return y, classes


def check_columns(table: Table, required: tuple[str, ...], known: tuple[str, ...], closed: bool = False) -> None:
    """Refuse a table without `required` columns, with a misspelt one of the `known` or, where it is `closed`, with any
    other.

    Raises:
        DataError: names the file, the column and what it has.
    """
    found = f"it has {', '.join(table.columns)}"
    for name in table.columns:
        if name not in known and name.strip().casefold() in known:
            refuse(
                table.path, f"the column name {name!r} is almost {name.strip().casefold()!r}", "Spell it exactly so."
            )
    for name in required:
        if name not in table.columns:
            refuse(
                table.path,
                f"there is no column {name!r}; {found}",
                "See docs/data-format.md; cells are split by commas.",
            )
    extra = [name for name in table.columns if name not in known] if closed else []
    if "weight" in extra:
        refuse(table.path, "edge weights are not supported", "Remove the column weight; every edge counts 1.")
    if extra:
        refuse(table.path, f"unknown columns: {', '.join(extra)}", f"Allowed are {', '.join(known)}.")


def ids_of(nodes: Table) -> pa.Array:
    """The nodes' ids as text, each once.

    Raises:
        DataError: an id is empty or repeated; names file and row.
    """
    ids = nodes.filled("id")
    seen = pc.index_in(ids, ids).to_numpy(zero_copy_only=False)
    row = first(seen != np.arange(nodes.rows))
    if row is not None:
        above = seen[row] + nodes.top
        nodes.refuse_at(row, f"id {ids[row].as_py()!r} is already in row {above}", "Give every node an id of its own.")
    return ids


def feature_names(nodes: Table, known: tuple[str, ...] = NODES) -> tuple[str, ...]:
    """All columns that mean nothing else, which the `known` do."""
    return tuple(name for name in nodes.columns if name not in known)


def features_of(nodes: Table, known: tuple[str, ...] = NODES) -> np.ndarray:
    """float32 [n, d]: the columns of `feature_names`.

    Raises:
        DataError: a value is not a number; names file, row and column.
    """
    names = feature_names(nodes, known)
    x = np.empty((nodes.rows, len(names)), np.float32)
    for column, name in enumerate(names):
        x[:, column] = nodes.numbers(name)
    return x


def sens_of(nodes: Table) -> np.ndarray | None:
    """int64 [n] sensitive attribute, -1 where the cell is empty; None without the column.

    Raises:
        DataError: a value is no whole number from 0; names file and row.
    """
    return nodes.whole("sens", empty="unknown") if "sens" in nodes.columns else None


def edges_of(edges: Table, ids: pa.Array) -> np.ndarray:
    """int64 [2, 2 E]: both directions of every edge between the nodes `ids`, each once.

    Raises:
        DataError: see `ends_of`.
    """
    source, target = ends_of(edges, ids)
    return undirected(source, target, len(ids))


def ends_of(edges: Table, ids: pa.Array) -> np.ndarray:
    """int64 [2, rows]: the ends of every edge as places in `ids`.

    Raises:
        DataError: an end is not among the nodes, or both are the same; names file and row.
    """
    ends = []
    for name in EDGES:
        cells = edges.filled(name)
        numbers = pc.index_in(cells, ids)
        row = first(numbers.is_null().to_numpy(False))
        if row is not None:
            what = f"{name} {cells[row].as_py()!r} is no node"
            edges.refuse_at(row, what, "Add a row with this id to nodes, or remove the edge.")
        ends.append(numbers.to_numpy(zero_copy_only=False))
    row = first(ends[0] == ends[1])
    if row is not None:
        what = f"the edge joins {ids[int(ends[0][row])].as_py()!r} with itself"
        edges.refuse_at(row, what, "Remove the row; models add their own self loops.")
    return np.stack(ends).astype(np.int64)


def split_of(examples: Table, y: np.ndarray, example: str = "node") -> np.ndarray:
    """bool [3, rows]: the train, val and test ones of the column "split"; messages call a row `example`.

    Raises:
        DataError: a value is no split, or an unlabelled row has one; names file and row.
    """
    cells = examples.texts("split")
    which = pc.index_in(cells, pa.array(SPLITS), skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
    row = first((which < 0) & cells.is_valid().to_numpy(False))
    if row is not None:
        what = f"split is {cells[row].as_py()!r}"
        examples.refuse_at(row, what, f"Use {', '.join(SPLITS)}, or leave the cell empty.")
    row = first((which >= 0) & (y < 0))
    examples.refuse_at(row, f"the {example} is in a split but has no label", "Label it, or leave its split empty.")
    return which == np.arange(len(SPLITS))[:, None]
