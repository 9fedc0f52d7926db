"""Refuse bad data before anything is computed from it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph_arrays import Matrix
from fedweave.core.target import CLASS, NUMBER
from fedweave.datasets.base import NO_LOOPS, Dataset, to_undirected
from fedweave.errors import ConfigError, DataError, Fault

MIN_KINDS = 1000  # kinds, which may be more than rows
MAX_COMPARED = 10_000  # rows at fault whose words are compared
_BOTH = (
    "Store both directions of every edge once, sorted: edge_index = "
    "numpy.unique(numpy.concatenate([edge_index, edge_index[::-1]], axis=1), axis=1)."
)
HEAVIEST = 1e30  # weight of an edge: a node adds up hundreds of millions of such in float32
_AT_ONCE = 1 << 20  # edges or features that are checked at once; larger arrays would take new memory each time


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


def refuse_rows(table: Rows, bad: np.ndarray, what: Callable[[int], str], remedy: str, code: str = "row") -> None:
    """Refuse every row of a table that is True in bool [rows]; `what` describes the fault. The error's code is
    data.`code`.

    Raises:
        DataError: names the first row of a file for each kind of fault; with more than three kinds, the first three
            and the number of other rows.
    """
    rows = np.flatnonzero(bad)
    if len(rows) == 0:
        return
    # 1. Rows of one file with the same fault are one kind.
    kinds = dict[tuple[Path, str], list[int]]()
    for row in rows[:MAX_COMPARED].tolist():
        kinds.setdefault((table.place(row)[0], what(row)), []).append(row)
    # 2. Each kind is described by its first row and the number of others.
    beyond = f" or more; only {MAX_COMPARED:,} were looked at" if len(rows) > MAX_COMPARED else ""
    examples = list[tuple[str, str, int]]()
    for (path, text), same in list(kinds.items())[: Fault.SHOWN]:
        more = ""
        if len(same) > 1:
            rows_more = "1 more row" if len(same) == 2 else f"{len(same) - 1:,} more rows"
            more = f" (and so in {rows_more}{beyond})"
        examples.append((str(path), f"row {table.place(same[0])[1]}: {text}{more}", len(same)))
    # 3. Many kinds are one fault, few are a fault each.
    faults = [Fault.of([example], remedy) for example in examples]
    if len(kinds) > Fault.SHOWN:
        faults = [Fault.of(examples, remedy, len(rows) - sum(count for _, _, count in examples))]
    raise DataError(*faults, code=f"{DataError.code}.{code}")


def first(bad: np.ndarray) -> int | None:
    """Position of the first True in bool [m], or None."""
    at = int(bad.argmax()) if bad.size else 0
    return at if bad.size and bad[at] else None


def refuse_first(where: str | Path, bad: np.ndarray, what: Callable[[int], str], remedy: str, code: str = "") -> None:
    """Refuse the first place that is True in bool [m], which `what` describes; nothing where there is none."""
    at = first(bad)
    if at is not None:
        refuse(where, what(at), remedy, code)


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
    y, example, attributes = dataset.y, dataset.example, dataset.edge_attrs
    # 1. Nodes: their number n, that of examples e, and the features.
    n = e = len(y)
    if attributes is not None and example == "edge":
        e, n = attributes.total, dataset.x.shape[0]
    elif dataset.graph_of is not None:
        n = len(dataset.graph_of)
    if n == 0:
        refuse(where, "the data has no nodes", "Give at least one node.")
    _check_features(dataset.x, n, where)
    # 2. Edges: who is joined to whom.
    check_array(dataset.edges, "edge_index", np.int64, (2, None), where)
    _check_edges(dataset.edges, n, where)
    # 3. The target, in one of the forms of `core.target`.
    if dataset.target == CLASS:
        check_array(y, "y", np.int64, (e,), where)
        unknown, highest = (y < -1) | (y >= dataset.classes), dataset.classes - 1
        remedy = "Correct it, or -1 for unlabeled."
        refuse_first(where, unknown, lambda row: f"y, row {row}: label {y[row]} is not in 0..{highest}", remedy)
    else:
        is_number = dataset.target == NUMBER
        check_array(y, "y", np.float64 if is_number else np.int64, (e, None), where)
        bad: np.ndarray = np.isinf(y) if is_number else (y < -1) | (y > 1)  # [e, t]
        allowed = "a finite number, or NaN where it is missing" if is_number else "0 or 1, or -1 where it is missing"
        bad_rows = np.asarray(bad.any(1))
        refuse_first(where, bad_rows, lambda row: f"y, row {row}: {y[row].tolist()} is not {allowed}", "Correct it.")
    labelled = labelled or bool(dataset.has_label.any())
    if labelled and not dataset.has_label.any():
        refuse(where, f"y: no {example} has a label", f"Label at least one {example}.")
    # 4. What examples have beside their target.
    if dataset.graph_of is not None:
        check_array(dataset.graph_of, "graph_of", np.int64, (n,), where)
        _check_graphs(dataset.graph_of, dataset.edges, e, where)
    if dataset.owner is not None:
        check_array(dataset.owner, "owner", np.int64, (n if example == "edge" else e,), where)
        _check_kinds(dataset.owner, "owner", "owners", where)
    if dataset.scaffold is not None:
        check_array(dataset.scaffold, "scaffold", np.int64, (e,), where)
    if dataset.sensitive is not None:
        check_array(dataset.sensitive, "sens", np.int64, (e,), where)
        _check_kinds(dataset.sensitive, "sens", "groups", where)
    if dataset.public is not None:
        split = dataset.public
        check_array(split, "the split", np.bool_, (3, e), where)
        what = f"the {example} is in two of train, val and test"
        refuse_first(where, split.sum(0) > 1, lambda row: f"the split, row {row}: {what}", "Keep one of them.")
        without_label = split.any(0) & ~dataset.has_label & np.bool_(labelled)
        remedy = "Label it or take it out of the split."
        refuse_first(where, without_label, lambda row: f"the split, row {row}: the {example} has no label", remedy)
    # 5. Names, one for each thing that they name.
    for key, count, thing in (
        ("columns", dataset.features, "column of x"),
        ("labels", dataset.classes, "class"),
        ("targets", 0 if dataset.target == CLASS else dataset.outputs, "column of y"),
        ("ids", dataset.examples, example),
        ("node_ids", dataset.nodes, "node"),
    ):
        names = getattr(dataset, key)
        if names and len(names) != count:
            refuse(where, f"{key} has {len(names)} names for {count}", f"Give one name for each {thing}, or ().")
    # 6. What edges and nodes have.
    if attributes is not None:
        _check_edge_attributes(attributes, dataset.edges, n, where)
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
    """Refuse other data than the `published` one (`lookup.Facts`) by its counts; edges are distinct undirected ones."""
    counts = {
        "graphs": dataset.examples,
        "nodes": dataset.nodes,
        "edges": dataset.edges.shape[1] // 2,
        "features": dataset.features,
        "classes": dataset.classes,
    }
    actual, expected = tuple(counts[name] for name in names), tuple(getattr(published, name) for name in names)
    if actual != expected:
        what = f"({', '.join(names)}) are {actual}, published are {expected}"
        raise OtherCounts(f"{where}: {what}. {remedy}", counts["nodes"], counts["edges"])


def check_array(array: object, name: str, dtype: type, shape: tuple[int | None, ...], where: str | Path) -> None:
    """Raise DataError unless `array` is a NumPy array of `dtype` and `shape` (None: any length)."""
    kind = np.dtype(dtype).name
    actual = getattr(array, "dtype", type(array).__name__)
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
        refuse(where, f"{name} is {actual}, not {kind}", f"Store it as a NumPy array: {name}.astype('{kind}').")
    fits = array.ndim == len(shape)
    for size, expected in zip(array.shape, shape, strict=False):
        fits = fits and expected in (None, size)
    if not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        refuse(where, f"{name} has shape {array.shape}, not ({sizes})", "Store one entry per node, edge or graph.")


def _check_features(x: Matrix, n: int, where: str | Path) -> None:
    def place(position: int) -> tuple[int, int]:
        """The row and column of the value at a place among `values`."""
        if isinstance(x, np.ndarray):
            return position // x.shape[1], position % x.shape[1]
        return int(np.searchsorted(x.indptr, position, "right")) - 1, int(x.indices[position])

    if not sp.issparse(x):
        check_array(x, "x", np.float32, (n, None), where)
    elif not isinstance(x, sp.csr_matrix) or x.dtype != np.float32 or x.shape[0] != n:
        kind = f"{type(x).__name__} {x.dtype} {x.shape}"
        refuse(where, f"x is {kind}, not csr_matrix float32 with {n} rows", "Store one row of features per node.")
    else:
        remedy = (
            "Write x_data, x_indices, x_indptr and x_shape from one scipy.sparse.csr_matrix after sum_duplicates()."
        )
        indptr, indices = x.indptr, x.indices
        ends = (0, len(x.data), len(x.data))
        if len(indptr) != x.shape[0] + 1 or (indptr[0], indptr[-1], len(indices)) != ends:
            refuse(where, "x: the lengths of its CSR parts do not fit together", remedy)
        falls = "x, row {}: indptr falls from {} to {}".format
        refuse_first(where, np.diff(indptr) < 0, lambda row: falls(row, indptr[row], indptr[row + 1]), remedy)
        beyond = f"is not in 0..{x.shape[1] - 1}"
        outside = (indices < 0) | (indices >= x.shape[1])
        refuse_first(where, outside, lambda at: f"x, row {place(at)[0]}: column {indices[at]} {beyond}", remedy)
        unsorted = indices[1:] <= indices[:-1]
        begins = indptr[(indptr > 0) & (indptr < len(indices))]  # where a row begins after another one's entries
        unsorted[begins - 1] = False
        what = "column indices are repeated or not ascending"
        refuse_first(where, unsorted, lambda at: f"x, row {place(at)[0]}: {what}", remedy)
    if x.shape[1] == 0:
        refuse(where, "there are no features", "Give at least one feature column (for example each node's degree).")
    values = np.asarray(x.data) if sp.issparse(x) else x.ravel()
    not_finite = "x, row {}, column {}: {} is not finite".format
    remedy = "Fill in or remove the value."
    for begin in range(0, values.size, _AT_ONCE):
        bad = first(~np.isfinite(values[begin : begin + _AT_ONCE]))
        if bad is not None:
            refuse(where, not_finite(*place(begin + bad), values[begin + bad]), remedy)


def _check_edges(edges: np.ndarray, n: int, where: str | Path) -> None:
    source, target = edges
    text = "edge_index, column {0}: edge {1} -> {2} {3}".format

    def refuse_edges(is_bad: Callable[[slice], np.ndarray], what: str, remedy: str) -> None:
        for begin in range(0, edges.shape[1], _AT_ONCE):  # arrays of all edges would be the peak of memory
            bad = first(is_bad(slice(begin, begin + _AT_ONCE)))
            if bad is not None:
                column = begin + bad
                refuse(where, text(column, *edges[:, column], what), remedy, "edge")

    def is_absent(rows: slice) -> np.ndarray:
        absent: np.ndarray = (edges[:, rows].min(0) < 0) | (edges[:, rows].max(0) >= n)
        return absent

    def steps(rows: slice) -> np.ndarray:
        """How far each edge's number, source n + target, is from that of the edge before it."""
        before = slice(max(rows.start - 1, 0), rows.stop)
        codes = source[before] * n + target[before]
        differences: np.ndarray = np.diff(codes, prepend=-1) if rows.start == 0 else np.diff(codes)
        return differences

    refuse_edges(is_absent, f"names a node that is not in 0..{n - 1}", "Remove the edge or add the node.")
    refuse_edges(lambda rows: source[rows] == target[rows], "is a self loop", NO_LOOPS)
    refuse_edges(lambda rows: steps(rows) == 0, "is listed twice", _BOTH)
    refuse_edges(lambda rows: steps(rows) < 0, "is out of order", _BOTH)
    # Sorted and distinct by now, so the graph is undirected exactly if the transpose of the edges to larger numbers is
    # the edges to smaller ones.
    upper, lower = _triangle(edges, n, np.less), _triangle(edges, n, np.greater)
    transpose = upper.T.tocsr()
    if np.array_equal(lower.indptr, transpose.indptr) and np.array_equal(lower.indices, transpose.indices):
        return
    matrix = sp.csr_matrix(upper + lower)
    transpose = matrix.T.tocsr()
    without_reverse = (matrix > transpose).tocoo()
    bad = (source == without_reverse.row[0]) & (target == without_reverse.col[0])
    refuse_edges(lambda rows: bad[rows], "lacks its reverse", _BOTH)


def _triangle(edges: np.ndarray, n: int, is_in: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> sp.csr_matrix:
    """bool [n, n]: the sorted edges int64 [2, E] whose source and target are in this relation."""
    counts = np.zeros(n, np.int64)
    pieces = list[np.ndarray]()
    for begin in range(0, edges.shape[1], _AT_ONCE):
        source, target = edges[:, begin : begin + _AT_ONCE]
        inside = is_in(source, target)
        pieces.append(target[inside].astype(np.int32 if n < 1 << 31 else np.int64))
        low = source[0]
        count = np.bincount(source[inside] - low)
        counts[low : low + len(count)] += count
    indptr = np.append(0, np.cumsum(counts))
    ends = np.concatenate([*pieces, np.zeros(0, np.int32)])
    return sp.csr_matrix((np.ones(len(ends), np.bool_), ends, indptr), shape=(n, n))


def _check_edge_attributes(attributes: EdgeAttributes, edges: np.ndarray, n: int, where: str | Path) -> None:
    """Refuse attributes of edges that are not numbers, or edges that do not join the nodes that `edges` do."""
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
        row = first(~np.isfinite(values.reshape(m, -1)).all(1)) if m else None
        if row is not None:
            refuse(where, f"the edges' {name}, row {row}: {values[row]} is not finite", "Fill in or remove the value.")
    owner, weight = attributes.owner, attributes.weight
    if owner is not None:
        remedy = f"Give the place of one of {len(attributes.owners)} names, from 0."
        unknown = (owner < 0) | (owner >= len(attributes.owners))
        refuse_first(where, unknown, lambda row: f"the edges' owner, row {row}: {owner[row]}", remedy)
    if weight is not None:
        remedy = "Give weights from 0; a number of either sign may be a feature of the edge."
        refuse_first(where, weight < 0, lambda row: f"the edges' weight, row {row}: {weight[row]} is below 0", remedy)
        heavy = "the edges' weight, row {}: {:g} is above {:g}, so that sums overflow".format
        remedy = "Give weights in a larger unit."
        refuse_first(where, weight > HEAVIEST, lambda row: heavy(row, weight[row], HEAVIEST), remedy)
    in_range = not index.size or 0 <= index.min() <= index.max() < n
    if not in_range or not np.array_equal(to_undirected(index, n), edges):
        refuse(where, "the edges and their attributes join different nodes", "Make both of one list of edges.")


def _check_graphs(graph_of: np.ndarray, edges: np.ndarray, graphs: int, where: str | Path) -> None:
    remedy = "Number the graphs from 0 and store the nodes of each one after the other."
    steps = np.diff(graph_of, prepend=-1)
    gap = "graph_of, row {}: graph {} comes out of order or leaves out another".format
    refuse_first(where, (steps < 0) | (steps > 1), lambda row: gap(row, graph_of[row]), remedy)
    if graph_of[-1] != graphs - 1:
        refuse(where, f"graph_of ends with graph {graph_of[-1]}, but there are {graphs} graphs", remedy)
    crossing = graph_of[edges[0]] != graph_of[edges[1]]
    what = "edge_index, column {}: edge {} -> {} joins two graphs".format
    remedy = "Remove the edge, or make the two graphs one."
    refuse_first(where, crossing, lambda column: what(column, *edges[:, column]), remedy)


def _check_kinds(numbers: np.ndarray, name: str, things: str, where: str | Path) -> None:
    remedy = f"Number the {things} from 0; -1 is unknown."
    refuse_first(where, numbers < -1, lambda row: f"{name}, row {row}: {numbers[row]} is below 0", remedy)
    # memory is taken for all numbers below the largest
    stray = f"{name}, row {{}}: {{}} is above the number of rows, {len(numbers):,}".format
    remedy = f"Number the {things} from 0, without gaps; -1 is unknown."
    far = numbers > max(len(numbers), MIN_KINDS)
    refuse_first(where, far, lambda row: stray(row, numbers[row]), remedy, "stray")
