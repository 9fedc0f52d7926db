"""A user's own graph: a folder with `nodes` and `edges`, each as Parquet or CSV; columns in docs/data-format.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.graph import SPLITS
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import Faults, check, first, refuse, refuse_rows
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import check_normalise, compact, normalise, one_hot
from fedweave.datasets.naming import check_naming, named
from fedweave.datasets.sensitive import refuse_repeated
from fedweave.datasets.table import NUMERIC, WHOLE, Table, find, read
from fedweave.errors import ConfigError

NODES = ("id", "label", "sens", "split")
EDGES = ("source", "target")


@dataclass(frozen=True)
class Classified:
    """What all data sets of a user's tables have in common.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    classes:   number of classes when labels are numbers; None is the largest label + 1.
    labels:    class names in order when labels are names; None is those present, sorted. Sites that train together must
               all give the same `classes` or `labels`, since one site may lack a class.
    sens_feature: allow a feature column that says the same as the column sens.
    columns:   what columns with names of their own mean, such as {label = "diagnosis", sens = "sex"}.
    ignore:    columns that do not count.
    """

    normalise: str = "none"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    sens_feature: bool = False
    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        check_naming(self.columns or {}, self.ignore or ())
        if self.classes is not None and self.labels is not None:
            raise ConfigError("folder: give classes (labels are numbers) or labels (labels are names), not both.")
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"folder: classes = {self.classes} is not allowed; it must be at least 1.")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"folder: labels = {list(self.labels)} is empty or names a class twice.")

    def tables(self, folder: Path, *stems: str, lacking: bool = False) -> list[Table]:
        """The tables `stems` in a folder, columns called by what they mean.

        lacking: whether columns that are named may be in none of the tables.

        Raises:
            DataError: a file is missing or refused, or a column that is named is in none.
        """
        return self.named(folder, *(read(find(folder, stem)) for stem in stems), lacking=lacking)

    def named(self, root: Path, *tables: Table, lacking: bool = False) -> list[Table]:
        """The tables with columns called by what they mean (`naming.named`)."""
        columns, ignore = self.columns or {}, self.ignore or ()
        if lacking:
            here = {name for table in tables for name in table.columns}
            columns = {meaning: own for meaning, own in columns.items() if own in here}
            ignore = tuple(name for name in ignore if name in here)
        return named(tables, root, columns, ignore)

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
        if self.labels is None:
            if pc.all(whole).as_py():
                return self._numbered(table)
            table.refuse_gaps("label", "labels")
        if self.classes is not None:
            table.whole("label", empty="unlabelled")  # says which label is no number
        if self.labels is None and pc.any(whole).as_py():
            names = present.filter(pc.invert(whole))
            refuse(
                table.path, f"some labels are numbers, others are names ({names[0]})", "Use one kind in column label."
            )
        classes = pa.array(self.labels or sorted(present.unique().to_pylist()), pa.string())
        y = pc.index_in(cells, classes, skip_nulls=True)
        unknown, allowed = (
            y.is_null().to_numpy(False) & cells.is_valid().to_numpy(False),
            ", ".join(classes.to_pylist()),
        )
        remedy = "Correct it or add it to labels."
        refuse_rows(table, unknown, lambda row: f"label {cells[row].as_py()!r} is none of {allowed}", remedy)
        return y.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), len(classes)

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabelled")
        classes = self.classes or int(y.max()) + 1
        row = first(y >= (classes if self.classes else table.rows))
        if row is not None and self.classes:
            table.refuse_at(row, f"label {y[row]} is not in 0..{classes - 1}", "Correct it or raise classes.")
        table.refuse_at(row, f"label {y[row or 0]} would make more classes than rows", "Number the classes from 0.")
        return y, classes


@dataclass(frozen=True)
class Folder(Classified):
    """Your own folder with nodes.csv|parquet and edges.csv|parquet.

    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
    groups:     names of the sensitive groups in order when sens is text; None is those present, sorted.
    owner:      the column of nodes that says whose each node is, for the partition "column"; it is no feature. Sites
                that train together must all give the same categories and groups.
    """

    categories: dict[str, tuple[str, ...]] | None = None
    groups: tuple[str, ...] | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        named = {f"categories.{column}": names for column, names in (self.categories or {}).items()}
        named |= {"groups": self.groups} if self.groups is not None else {}
        for key, names in named.items():
            if not 0 < len(names) == len(set(names)):
                raise ConfigError(f"folder: {key} = {list(names)} is empty or names a value twice.")
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
            raise ConfigError('The dataset "folder" needs the folder with nodes and edges: set [data] path.')
        if not root.is_dir():
            refuse(root, "this is not a folder", "Name the folder that holds nodes.csv|parquet and edges.csv|parquet.")
        if texts := sorted(path.name for path in root.glob("*_A.txt*")):
            refuse(root, f"{texts[0]} is there, so it is in the TU layout", 'Set [data] name = "tu".')
        nodes, edges = self.tables(root, "nodes", "edges", lacking=not labelled)
        if "graph" in nodes.columns and any(root.glob("graphs.*")):
            refuse(root, "there is a table graphs, and nodes say which they belong to", 'Set [data] name = "graphs".')
        return self.made(nodes, edges, root, labelled)

    def made(self, nodes: Table, edges: Table, root: Path, labelled: bool = True) -> Dataset:
        """The graph of two tables; `root` is what complaints about both name, its last part the data's name.

        Raises:
            DataError: see `load`.
        """
        known = NODES if self.owner is None else (*NODES, self.owner)
        owned = known[len(NODES) :] if labelled else ()  # whose a node to be predicted is does not matter
        check_columns(nodes, required=(*NODES[: 1 + labelled], *owned), known=known)
        check_columns(edges, required=EDGES, known=EDGES, closed=True)
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        faults, found = Faults(), dict[str, Any]()
        for name, part in self._parts(nodes, edges, known, labelled).items():
            with faults:
                found[name] = part(found)
        faults.refuse()
        if not self.sens_feature:
            refuse_repeated(found["x"], found["sens"], found["columns"], nodes.path)
        y, classes = found.pop("labelled")
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
    ) -> "dict[str, Callable[[dict[str, Any]], Any]]":
        """What is read of the tables, in order, each from what was read before it."""
        split = labelled and "split" in nodes.columns
        owned = self.owner in nodes.columns
        parts: dict[str, Callable[[dict[str, Any]], Any]] = {
            "ids": lambda found: ids_of(nodes),
            "labelled": lambda found: self.labels_of(nodes, labelled),
            "x": lambda found: features_of(nodes, known, self.categories),
            "columns": lambda found: feature_names(nodes, known, self.categories),
            "sens": lambda found: sens_of(nodes, self.groups),
            "groups": lambda found: group_names(nodes, self.groups),
            "public": lambda found: split_of(nodes, found["labelled"][0]) if split and "labelled" in found else None,
            "owners": lambda found: tuple(sorted(set(nodes.filled(self.owner or "").to_pylist()))) if owned else (),
            "owner": lambda found: nodes.kinds(self.owner or "", found["owners"]) if found.get("owners") else None,
            "edges": lambda found: edges_of(edges, found["ids"]) if "ids" in found else None,
        }
        return parts


def check_columns(
    table: Table, required: tuple[str, ...], known: tuple[str, ...], closed: bool = False, hint: str = ""
) -> None:
    """Refuse a table without `required` columns, with a misspelt one of the `known` or, where it is `closed`, with any
    other; `hint` says what else would allow it.

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
        remedy = f"Allowed are {', '.join(known)}{f'; {hint}' if hint else ''}."
        refuse(table.path, f"unknown columns: {', '.join(extra)}", remedy)


def ids_of(nodes: Table) -> pa.Array:
    """The nodes' ids as text, each once.

    Raises:
        DataError: an id is empty or repeated; names file and row.
    """
    ids = nodes.filled("id")
    seen = pc.index_in(ids, ids).to_numpy(zero_copy_only=False)
    refuse_rows(
        nodes,
        seen != np.arange(nodes.rows),
        lambda row: f"id {ids[row].as_py()!r} is already in row {nodes.place(seen[row])[1]}",
        "Give every node an id of its own.",
    )
    return ids


Categories = Mapping[str, tuple[str, ...]]


def feature_names(
    nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None
) -> tuple[str, ...]:
    """All columns that mean nothing else, which the `known` do; of a column of `categories` one for each of its
    values, "job = clerk"."""
    given = categories or {}
    return tuple(
        full
        for name in nodes.columns
        if name not in known
        for full in ([f"{name} = {value}" for value in given[name]] if name in given else [name])
    )


def features_of(nodes: Table, known: tuple[str, ...] = NODES, categories: Categories | None = None) -> np.ndarray:
    """float32 [n, d]: the columns of `feature_names`.

    Raises:
        DataError: a value is not a number, or none of its column's `categories`; names file, row and column.
    """
    given, faults, columns = categories or {}, Faults(), []
    for name in given.keys() - set(nodes.columns):
        refuse(
            nodes.path, f"there is no column {name!r}, which [data] categories names", "Add it, or correct its name."
        )
    for name in (name for name in nodes.columns if name not in known):
        with faults:
            if name in given:
                columns += list(
                    one_hot(nodes.kinds(name, given[name], f"categories.{name}"), len(given[name])).toarray().T
                )
            else:
                columns.append(nodes.numbers(name))
    faults.refuse()
    return np.stack(columns, 1) if columns else np.empty((nodes.rows, 0), np.float32)


def sens_of(nodes: Table, groups: tuple[str, ...] | None = None) -> np.ndarray | None:
    """int64 [n] sensitive attribute, -1 where the cell is empty; None without the column. Text is a place among
    `groups`, by default those present, sorted.

    Raises:
        DataError: a value is neither a whole number from 0 nor one of the groups; names file and row.
    """
    if "sens" not in nodes.columns:
        return None
    if groups is None:
        nodes.refuse_gaps("sens", "groups")
    named = group_names(nodes, groups)
    return nodes.kinds("sens", named, "groups") if named else nodes.whole("sens", empty="unknown")


def group_names(nodes: Table, groups: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """What the groups in the column sens are called, in order; () where they are numbers or there is no such column."""
    if "sens" not in nodes.columns:
        return ()
    present = nodes.texts("sens").drop_null()
    if groups is None and (len(present) == 0 or pc.any(pc.match_substring_regex(present, NUMERIC)).as_py()):
        return ()
    return groups or tuple(sorted(present.unique().to_pylist()))


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
    faults, ends = Faults(), list[np.ndarray]()
    for name in EDGES:
        cells = edges.filled(name)
        numbers = pc.index_in(cells, ids)
        missing = numbers.is_null().to_numpy(False)
        remedy = "Add a row with this id to nodes, or remove the edge."
        with faults:
            refuse_rows(edges, missing, partial(_no_node, name, cells), remedy)
        ends.append(numbers.fill_null(-1 - len(ends)).to_numpy(zero_copy_only=False))
    with faults:
        refuse_rows(
            edges,
            ends[0] == ends[1],
            lambda row: f"the edge joins {ids[int(ends[0][row])].as_py()!r} with itself",
            "Remove the row; models add their own self loops.",
        )
    faults.refuse()
    return np.stack(ends).astype(np.int64)


def _no_node(name: str, cells: pa.Array, row: int) -> str:
    return f"{name} {cells[row].as_py()!r} is no node"


def split_of(examples: Table, y: np.ndarray, example: str = "node") -> np.ndarray:
    """bool [3, rows]: the train, val and test ones of the column "split"; messages call a row `example`.

    Raises:
        DataError: a value is no split, or an unlabelled row has one; names file and row.
    """
    cells = examples.texts("split")
    which = pc.index_in(cells, pa.array(SPLITS), skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
    unknown = (which < 0) & cells.is_valid().to_numpy(False)
    remedy = f"Use {', '.join(SPLITS)}, or leave the cell empty."
    refuse_rows(examples, unknown, lambda row: f"split is {cells[row].as_py()!r}", remedy)
    what = f"the {example} is in a split but has no label"
    refuse_rows(examples, (which >= 0) & (y < 0), lambda row: what, "Label it, or leave its split empty.")
    return which == np.arange(len(SPLITS))[:, None]
