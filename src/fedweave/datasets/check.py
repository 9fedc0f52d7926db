"""Refuse bad data before anything is computed from it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import CLASS, NUMBER
from fedweave.datasets.base import NO_LOOPS, Dataset, undirected
from fedweave.errors import ConfigError, DataError, Fault

Example = tuple[str, str, int]
_FEW = 1000  # kinds, which may be more than rows
_LOOKED = 10_000  # rows at fault whose words are compared
_BOTH = (
    "Store both directions of every edge once, sorted: edge_index = "
    "numpy.unique(numpy.concatenate([edge_index, edge_index[::-1]], axis=1), axis=1)."
)
HEAVIEST = 1e30  # weight of an edge: a node adds up hundreds of millions of such in float32


def refuse(where: str | Path, what: str, remedy: str, code: str = "") -> NoReturn:
    """Raise DataError: the file (or other origin), what is wrong there, what to do; its code is data.`code`."""
    raise DataError(Fault.of([(str(where), what, 1)], remedy), code=code and f"{DataError.code}.{code}")


class OtherCounts(DataError):
    """The data is not the published one; it has other numbers of nodes and edges."""

    def __init__(self, message: str, nodes: int, edges: int) -> None:
        super().__init__(message)
        self.nodes, self.edges = nodes, edges


class Rows(Protocol):
    """The rows of a table or an array, which errors refer to: `table.Table`."""

    def place(self, row: int) -> tuple[Path, int]:
        """The file of a row, and its number there."""

    def refuse_at(self, row: int | None, what: str, remedy: str) -> None:
        """Refuse a row."""


def refuse_rows(table: Rows, bad: np.ndarray, what: Callable[[int], str], remedy: str, code: str = "row") -> None:
    """Refuse every row of a table, one with `refuse_at`, that is True in bool [rows]; `what` describes the fault.
    The error's code is data.`code`.

    Raises:
        DataError: names the first row of a file for each kind of fault; with more than three kinds, the first three
            and the number of other rows.
    """
    alike, rows = dict[tuple[Path, str], list[int]](), np.flatnonzero(bad)
    if len(rows) == 0:
        return
    for row in rows[:_LOOKED].tolist():
        alike.setdefault((table.place(row)[0], what(row)), []).append(row)
    beyond, examples = f" or more; only {_LOOKED:,} were looked at" if len(rows) > _LOOKED else "", list[Example]()
    for (path, text), same in list(alike.items())[: Fault.SHOWN]:
        rows_more = "1 more row" if len(same) == 2 else f"{len(same) - 1:,} more rows"
        more = f" (and so in {rows_more}{beyond})" if len(same) > 1 else ""
        examples.append((str(path), f"row {table.place(same[0])[1]}: {text}{more}", len(same)))
    rest = len(rows) - sum(count for _, _, count in examples)
    faults = (
        [Fault.of(examples, remedy, rest)]
        if len(alike) > Fault.SHOWN
        else [Fault.of([example], remedy) for example in examples]
    )
    raise DataError(*faults, code=f"{DataError.code}.{code}")


def first(bad: np.ndarray) -> int | None:
    """Position of the first True in bool [m], or None."""
    at = int(bad.argmax()) if bad.size else 0
    return at if bad.size and bad[at] else None


def check_settings(values: Mapping[str, object], rules: Iterable[tuple[bool, str, str]]) -> None:
    """Raise ConfigError for the first rule, (whether it is kept, setting, what is allowed), that is not kept."""
    for ok, key, allowed in rules:
        if not ok:
            raise ConfigError(f"{key} = {values[key]}: must be {allowed}.", code="config.value")


def check(dataset: Dataset, where: str | Path, labelled: bool = True) -> Dataset:
    """Return `dataset` if it keeps every promise of `Dataset`; `where` is the file that messages name.

    labelled: False lets a party of a vertical dataset have no labels at all, and still a split.

    Raises:
        DataError: it does not; the message names `where`, the row (numbered from 0) and the remedy.
    """
    e, n = len(dataset.y), len(dataset.y) if dataset.graph_of is None else len(dataset.graph_of)
    if dataset.edge_attrs is not None and dataset.edge_attrs.examples:
        e, n = dataset.edge_attrs.total, dataset.x.shape[0]
    if n == 0:
        refuse(where, "the data has no nodes", "Give at least one node.")
    _check_features(dataset.x, n, where)
    check_array(dataset.edges, "edge_index", np.int64, (2, None), where)
    _check_edges(dataset.edges, n, where)
    _check_target(dataset, e, where)
    labelled = labelled or bool(dataset.labeled.any())
    _check_labels(dataset, where, labelled)
    if dataset.graph_of is not None:
        check_array(dataset.graph_of, "graph_of", np.int64, (n,), where)
        _check_graphs(dataset.graph_of, dataset.edges, e, where)
    if dataset.owner is not None:
        check_array(dataset.owner, "owner", np.int64, (n if dataset.example == "edge" else e,), where)
        _check_kinds(dataset.owner, "owner", "owners", where)
    if dataset.scaffold is not None:
        check_array(dataset.scaffold, "scaffold", np.int64, (e,), where)
    if dataset.sensitive is not None:
        check_array(dataset.sensitive, "sens", np.int64, (e,), where)
        _check_kinds(dataset.sensitive, "sens", "groups", where)
    if dataset.public is not None:
        check_array(dataset.public, "the split", np.bool_, (3, e), where)
        _check_split(dataset, where, labelled)
    _check_names(dataset, where)
    if dataset.edge_attrs is not None:
        _check_edge_attributes(dataset.edge_attrs, dataset.edges, n, where)
    if dataset.node_time is not None:
        check_array(dataset.node_time, "node_time", np.float64, (n,), where)
    for name, count in (("node_labels", n), ("edge_labels", dataset.edges.shape[1])):
        kinds = getattr(dataset, name)
        if kinds is not None:
            check_array(kinds, name, np.int64, (count,), where)
            _check_kinds(kinds, name, "kinds", where)
    return dataset


def check_counts(
    dataset: Dataset,
    published: object,
    where: str | Path,
    names: tuple[str, ...] = ("nodes", "edges", "features", "classes"),
    remedy: str = "Take the published graph, whole.",
) -> None:
    """Refuse other data than the `published` one (`lookup.Facts`) by its counts; edges are distinct undirected ones.

    Raises:
        OtherCounts: names both counts.
    """
    held = {
        "graphs": dataset.examples,
        "nodes": dataset.nodes,
        "edges": dataset.edges.shape[1] // 2,
        "features": dataset.features,
        "classes": dataset.classes,
    }
    counts, wanted = tuple(held[name] for name in names), tuple(getattr(published, name) for name in names)
    if counts != wanted:
        what = f"({', '.join(names)}) are {counts}, published are {wanted}"
        raise OtherCounts(f"{where}: {what}. {remedy}", held["nodes"], held["edges"])


def check_array(array: object, name: str, dtype: type, shape: tuple[int | None, ...], where: str | Path) -> None:
    """Raise DataError unless `array` is a NumPy array of `dtype` and `shape` (None: any length)."""
    kind = np.dtype(dtype).name
    actual = getattr(array, "dtype", type(array).__name__)
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
        refuse(where, f"{name} is {actual}, not {kind}", f"Store it as a NumPy array: {name}.astype('{kind}').")
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=False)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        refuse(where, f"{name} has shape {array.shape}, not ({wanted})", "Store one entry per node, edge or graph.")


def _check_features(x: "np.ndarray | sp.csr_matrix", n: int, where: str | Path) -> None:
    if not sp.issparse(x):
        check_array(x, "x", np.float32, (n, None), where)
    elif not isinstance(x, sp.csr_matrix) or x.dtype != np.float32 or x.shape[0] != n:
        kind = f"{type(x).__name__} {x.dtype} {x.shape}"
        refuse(where, f"x is {kind}, not csr_matrix float32 with {n} rows", "Store one row of features per node.")
    else:
        _check_csr(x, where)
    if x.shape[1] == 0:
        refuse(where, "there are no features", "Give at least one feature column (for example each node's degree).")
    values = x.data if sp.issparse(x) else x.ravel()
    bad = first(~np.isfinite(values))
    if bad is not None:
        row, column = _place(x, bad)
        refuse(where, f"x, row {row}, column {column}: {values[bad]} is not finite", "Fill in or remove the value.")


def _check_csr(x: sp.csr_matrix, where: str | Path) -> None:
    remedy = "Write x_data, x_indices, x_indptr and x_shape from one scipy.sparse.csr_matrix after sum_duplicates()."
    steps = np.diff(x.indptr)
    if (
        len(x.indptr) != x.shape[0] + 1
        or x.indptr[0] != 0
        or x.indptr[-1] != len(x.data)
        or len(x.indices) != len(x.data)
    ):
        refuse(where, "x: the lengths of its CSR parts do not fit together", remedy)
    row = first(steps < 0)
    if row is not None:
        refuse(where, f"x, row {row}: indptr falls from {x.indptr[row]} to {x.indptr[row + 1]}", remedy)
    bad = first((x.indices < 0) | (x.indices >= x.shape[1]))
    if bad is not None:
        refuse(where, f"x, row {_place(x, bad)[0]}: column {x.indices[bad]} is not in 0..{x.shape[1] - 1}", remedy)
    rows = np.repeat(np.arange(x.shape[0]), steps)
    bad = first((np.diff(x.indices) <= 0) & (np.diff(rows) == 0))
    if bad is not None:
        refuse(where, f"x, row {rows[bad]}: column indices are repeated or not ascending", remedy)


def _place(x: "np.ndarray | sp.csr_matrix", position: int) -> tuple[int, int]:
    if not isinstance(x, np.ndarray):
        return int(np.searchsorted(x.indptr, position, "right")) - 1, int(x.indices[position])
    result: tuple[int, int] = divmod(position, x.shape[1])
    return result


def _check_edges(edges: np.ndarray, n: int, where: str | Path) -> None:
    def at(column: int | None, what: str, remedy: str) -> None:
        if column is not None:
            source, target = edges[:, column]
            refuse(where, f"edge_index, column {column}: edge {source} -> {target} {what}", remedy, "edge")

    source, target = edges[0], edges[1]
    missing = (edges.min(0) < 0) | (edges.max(0) >= n)
    at(first(missing), f"names a node that is not in 0..{n - 1}", "Remove the edge or add the node.")
    at(first(source == target), "is a self loop", NO_LOOPS)
    codes = source * n + target
    steps = np.diff(codes, prepend=-1)
    at(first(steps == 0), "is listed twice", _BOTH)
    at(first(steps < 0), "is out of order", _BOTH)
    # Sorted and distinct by now, so the graph is undirected exactly if its reverse is the same list.
    lonely = np.setdiff1d(codes, target * n + source, assume_unique=True)
    at(int(np.searchsorted(codes, lonely[0])) if lonely.size else None, "lacks its reverse", _BOTH)


def _check_edge_attributes(attributes: EdgeAttributes, edges: np.ndarray, n: int, where: str | Path) -> None:
    """Refuse edges that carry what is no number, or that do not join the nodes that `edges` do."""
    m, index = attributes.total, attributes.ends
    check_array(index, "the edges' index", np.int64, (2, None), where)
    for name, kind, shape in (
        ("weight", np.float32, (m,)),
        ("features", np.float32, (m, None)),
        ("time", np.float64, (m,)),
        ("y", np.int64, (m,)),
        ("split", np.int64, (m,)),
        ("owner", np.int64, (m,)),
    ):
        values = getattr(attributes, name)
        if values is None:
            continue
        check_array(values, f"the edges' {name}", kind, shape, where)
        if (row := first(~np.isfinite(values.reshape(m, -1)).all(1) if m else np.zeros(0, bool))) is not None:
            refuse(where, f"the edges' {name}, row {row}: {values[row]} is not finite", "Fill in or remove the value.")
    owner, owners = attributes.owner, len(attributes.owners)
    if owner is not None and (row := first((owner < 0) | (owner >= owners))) is not None:
        refuse(where, f"the edges' owner, row {row}: {owner[row]}", f"Give the place of one of {owners} names, from 0.")
    if attributes.weight is not None and (row := first(attributes.weight < 0)) is not None:
        remedy = "Give weights from 0; a number of either sign may be a feature of the edge."
        refuse(where, f"the edges' weight, row {row}: {attributes.weight[row]} is below 0", remedy)
    if attributes.weight is not None and (row := first(attributes.weight > HEAVIEST)) is not None:
        problem = (
            f"the edges' weight, row {row}: {attributes.weight[row]:g} is above {HEAVIEST:g}, so that sums overflow"
        )
        refuse(where, problem, "Give weights in a larger unit.")
    source, target = index[:, index[0] != index[1]]
    if (index.size and not 0 <= index.min() <= index.max() < n) or not np.array_equal(
        undirected(source, target, n), edges
    ):
        refuse(where, "the edges and their attributes join different nodes", "Make both of one list of edges.")


def _check_target(dataset: Dataset, examples: int, where: str | Path) -> None:
    """Reject `y` if it has none of the forms in `core.target`."""
    y = dataset.y
    if dataset.target == CLASS:
        check_array(y, "y", np.int64, (examples,), where)
        return
    number = dataset.target == NUMBER
    check_array(y, "y", np.float64 if number else np.int64, (examples, None), where)
    bad: np.ndarray = np.asarray((np.isinf(y) if number else (y < -1) | (y > 1)).any(1))
    if (row := first(bad)) is not None:
        due = "a finite number, or NaN where it is missing" if number else "0 or 1, or -1 where it is missing"
        refuse(where, f"y, row {row}: {y[row].tolist()} is not {due}", "Correct it.")


def _check_labels(dataset: Dataset, where: str | Path, labelled: bool) -> None:
    y, classes = dataset.y, dataset.classes
    row = first((y < -1) | (y >= classes)) if dataset.target == CLASS else None
    if row is not None:
        refuse(where, f"y, row {row}: label {y[row]} is not in 0..{classes - 1}", "Correct it, or -1 for unlabeled.")
    if labelled and not dataset.labeled.any():
        refuse(where, f"y: no {dataset.example} has a label", f"Label at least one {dataset.example}.")


def _check_names(dataset: Dataset, where: str | Path) -> None:
    """Reject lists of names whose length differs from the number of things that they name."""
    for key, count, what in (
        ("columns", dataset.features, "column of x"),
        ("labels", dataset.classes, "class"),
        ("targets", 0 if dataset.target == CLASS else dataset.outputs, "column of y"),
        ("ids", dataset.examples, dataset.example),
        ("node_ids", dataset.nodes, "node"),
    ):
        names = getattr(dataset, key)
        if names and len(names) != count:
            refuse(where, f"{key} has {len(names)} names for {count}", f"Give one name for each {what}, or ().")


def _check_graphs(graph_of: np.ndarray, edges: np.ndarray, graphs: int, where: str | Path) -> None:
    remedy = "Number the graphs from 0 and store the nodes of each one after the other."
    row = first((np.diff(graph_of, prepend=-1) < 0) | (np.diff(graph_of, prepend=-1) > 1))
    if row is not None:
        refuse(where, f"graph_of, row {row}: graph {graph_of[row]} comes out of order or leaves out another", remedy)
    if graph_of[-1] != graphs - 1:
        refuse(where, f"graph_of ends with graph {graph_of[-1]}, but there are {graphs} graphs", remedy)
    column = first(graph_of[edges[0]] != graph_of[edges[1]])
    if column is not None:
        source, target = edges[:, column]
        what = f"edge_index, column {column}: edge {source} -> {target} joins two graphs"
        refuse(where, what, "Remove the edge, or make the two graphs one.")


def _check_kinds(numbers: np.ndarray, name: str, things: str, where: str | Path) -> None:
    row = first(numbers < -1)
    if row is not None:
        refuse(where, f"{name}, row {row}: {numbers[row]} is below 0", f"Number the {things} from 0; -1 is unknown.")
    if (row := first(numbers > max(len(numbers), _FEW))) is not None:  # memory is taken for all below it
        what = f"{name}, row {row}: {numbers[row]} is above the number of rows, {len(numbers):,}"
        refuse(where, what, f"Number the {things} from 0, without gaps; -1 is unknown.", "stray")


def _check_split(dataset: Dataset, where: str | Path, labelled: bool) -> None:
    split = np.asarray(dataset.public)
    row = first(split.sum(0) > 1)
    if row is not None:
        what = f"the split, row {row}: the {dataset.example} is in two of train, val and test"
        refuse(where, what, "Keep one of them.")
    row = first(split.any(0) & ~dataset.labeled)
    if labelled and row is not None:
        what = f"the split, row {row}: the {dataset.example} has no label"
        refuse(where, what, "Label it or take it out of the split.")
