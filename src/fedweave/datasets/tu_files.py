"""The text layout of the TU collection (Morris et al. 2020, "TUDataset: a collection of benchmark datasets for learning
with graphs"): one folder of files DS_….txt, each plain or compressed as .txt.xz, one line per node, edge or graph.

DS_A holds "i, j" for every edge in both directions, DS_graph_indicator the graph of each node, DS_graph_labels the
class of each graph; nodes and graphs count from 1, and graphs without nodes are left out. Optional: DS_node_labels and
DS_edge_labels (whole numbers), DS_node_attributes (numbers). Other files are not read, which is noted.
"""

import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv
import scipy.sparse as sp

from fedweave.core.decompression import max_unpacked
from fedweave.core.text import counted
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, first, refuse
from fedweave.datasets.edges import NO_FEATURES, kinds_as_features
from fedweave.datasets.features import EXACT, compact, exact, one_hot, refuse_merged
from fedweave.datasets.lookup import TU_SUFFIXES, refuse_absent, unread
from fedweave.datasets.targets import Targeted

READ = ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")
SHOWN = 5  # numbers of graphs in a note
RELOAD = "Get the file again; docs/data-layouts.md describes the layout."
NUMBERS = "Give numbers with commas between them."
REGRESSION = (
    'A class is a whole number per graph. To predict numbers (regression), set [data] target = "number", which reads '
    "{}_graph_attributes.txt."
)
TEMPORAL = (
    "Lines of different lengths, times and labels in turn, are the temporal form of the layout, which is not read: "
    "give one label per node, such as its last, to leave time out."
)


@dataclass(frozen=True)
class Lines:
    """The numbers of one file, [lines, columns]; complaints name the file and count lines from 1."""

    path: Path
    values: np.ndarray

    def refuse_at(self, line: int | None, what: str, remedy: str) -> None:
        """Raise DataError that names the file and `line` (from 0); nothing for None."""
        if line is not None:
            refuse(self.path, f"line {line + 1}: {what}", remedy, "line")

    def one_column(self) -> np.ndarray:
        """[lines]; refuses more than one number a line."""
        if self.values.shape[1] != 1:
            self.refuse_at(0, f"{self.values.shape[1]} numbers instead of one", RELOAD)
        return self.values[:, 0]

    def check_count(self, count: int, of: str) -> None:
        """Raise DataError unless there are `count` lines; `of` names the things that they count."""
        if len(self.values) != count:
            refuse(self.path, f"it has {counted(len(self.values), 'line')}, but there are {count} {of}", RELOAD)


def read(
    folder: Path,
    name: str,
    attributes: bool = False,
    labelled: bool = True,
    pattern: str = "*",
    target: Targeted | None = None,
    edge_features: bool = False,
) -> Dataset:
    """The checked data set DS = `name` in `folder`. Classes are the different graph labels in rising order, and called
    like them; so are kinds of nodes and edges ("1, 3" where each has two labels), unless they are the numbers from 0.
    Graphs are in the order of their numbers; where these have gaps, `ids` are the numbers, and a note says so.

    Features are one-hot node labels, a column for each number from the lowest to the highest label (so DD has 89
    columns, and 82 occur), or, where these would be more than nodes, for each label that occurs. `attributes` adds
    the node attributes after them; without either, one-hot degrees from 0 to the highest. Names: "label = 3" ("label 2
    = 3" of the second label), "attribute 1" and "degree = 3".
    Edges of a node with itself are dropped, repeated edges kept once (as in PyTorch Geometric).

    labelled: False for graphs to be predicted, which may have no graph labels.

    pattern: of the names of files that are noted if they are not read. target: what is predicted, by default a class;
    numbers or labels are the columns of the graphs' attributes, in order.

    Raises:
        DataError: a file is missing, damaged or refused; names file and line.
    """
    target = target or Targeted()
    indicator = _read_required(folder, f"{name}_graph_indicator")
    numbers, graph_of = np.unique(_graphs(indicator), return_inverse=True)
    if target.by_class:
        classes, y, gaps = _classes(folder, name, numbers, indicator, labelled)
    else:
        classes, (y, gaps) = np.zeros(0, np.int64), _targets(folder, name, numbers, target, labelled)
    edges, edge_labels, edge_kinds = _edges(folder, name, numbers[graph_of])
    edge_attrs = None if edge_labels is None or not edge_features else kinds_as_features(edges, edge_labels, edge_kinds)
    notes = gaps
    if edge_features and edge_attrs is None:
        notes = (*notes, f"{folder}: {NO_FEATURES}")
    # Features: labels of nodes, then attributes; without either, degrees.
    blocks, columns, node_labels, node_kinds = list[sp.csr_matrix](), list[str](), None, tuple[str, ...]()
    lines = _optional(folder, f"{name}_node_labels", uneven=TEMPORAL)
    if lines is not None:
        lines.check_count(len(graph_of), "nodes")
        labels = lines.values  # [n, labels of a node]
        node_labels, node_kinds = _class_places(labels)
        for number, column in enumerate(labels.T, 1):
            values = _values(column)
            blocks.append(one_hot(np.searchsorted(values, column), len(values)))
            which = "label" if labels.shape[1] == 1 else f"label {number}"
            columns += [f"{which} = {value}" for value in values.tolist()]
    if attributes:
        blocks.append(sp.csr_matrix(_attributes(folder, name, len(graph_of))))
        columns += [f"attribute {number}" for number in range(1, blocks[-1].shape[1] + 1)]
    if not blocks:
        blocks.append(one_hot(np.bincount(edges[0], minlength=len(graph_of))))
        columns += [f"degree = {degree}" for degree in range(blocks[-1].shape[1])]
    dataset = Dataset(
        name=name,
        x=compact(sp.hstack(blocks, "csr", np.float32)),
        edges=edges,
        y=y,
        classes=len(classes),
        columns=tuple(columns),
        labels=_names(classes),
        ids=tuple(map(str, numbers.tolist())) if gaps else (),
        graph_of=graph_of.astype(np.int64),
        node_labels=node_labels,
        edge_labels=edge_labels,
        edge_attrs=edge_attrs,
        node_kinds=node_kinds,
        edge_kinds=edge_kinds,
        notes=(*notes, *_unread(folder, name, attributes, pattern, target)),
    )
    return check(replace(dataset, **target.fields(y, target.names_of_array(()))), folder, labelled)


def _classes(
    folder: Path, name: str, numbers: np.ndarray, indicator: Lines, labelled: bool
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The different labels of graphs, rising, int64 [e] each graph's place among them, -1 where there are none, and
    what to say of `numbers` [e] of graphs that are left out."""
    stem, remedy = f"{name}_graph_labels", REGRESSION.format(name)
    if _file(folder, stem) is None:
        if not labelled:
            return np.zeros(0, np.int64), np.full(len(numbers), -1), ()
        targets = _file(folder, f"{name}_graph_attributes")
        if targets is not None:
            refuse(targets, f"there are numbers for each graph, but no {stem}.txt", remedy, "targets")
    lines = _read_required(folder, stem, remedy=remedy)
    labels = lines.one_column()
    rows, gaps = _rows_of(numbers, lines, indicator.path.name)
    classes, y = np.unique(labels[rows], return_inverse=True)
    return classes, y.astype(np.int64), gaps


def _targets(
    folder: Path, name: str, numbers: np.ndarray, target: Targeted, labelled: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The graphs' attributes as numbers or labels [e, t], all gaps where there are none and they need not be, and what
    to say of graphs that are left out."""
    stem = f"{name}_graph_attributes"
    if not labelled and _file(folder, stem) is None:
        return target.join([np.full(len(numbers), np.nan)] * len(target.targets or "1")), ()
    lines = _optional(folder, stem, pa.float64())
    if lines is None:
        what = f"there is no {stem}.txt, and numbers or labels of graphs are predicted"
        refuse(folder, what, "Add it, with a line for each graph and a column for each target.", "file-missing")
    rows, gaps = _rows_of(numbers, lines, f"{name}_graph_indicator.txt")
    return target.of_array(lines.values[rows], "graph attribute", lines.path), gaps


def _names(numbers: np.ndarray) -> tuple[str, ...]:
    """The names that rising `numbers` [m] give; () where they are the numbers from 0."""
    return () if np.array_equal(numbers, np.arange(len(numbers))) else tuple(map(str, numbers.tolist()))


def _unread(folder: Path, name: str, attributes: bool, pattern: str, target: Targeted) -> Iterator[str]:
    """Notes on files that are not read."""
    stems = (*READ, "node_attributes") if target.by_class else (*READ, "node_attributes", "graph_attributes")
    files = {stem: _file(folder, f"{name}_{stem}") for stem in stems}
    if not attributes and files["node_attributes"] is not None:
        yield f"{files['node_attributes']} is not used; data.attributes = true takes the node attributes as features"
    yield from unread(folder, [path for path in files.values() if path is not None], pattern=pattern)


def _rows_of(numbers: np.ndarray, lines: Lines, indicator: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """int64 [e]: the line of each of the graphs `numbers` [e], sorted; and what to say of numbers left out."""
    count = len(lines.values)
    if count == len(numbers) == numbers[-1]:
        return np.arange(count), ()
    if count == len(numbers):
        note = f"{indicator} leaves out numbers up to {numbers[-1]}; the labels are taken in order"
        return np.arange(count), (note,)
    if count < numbers[-1]:
        lines.check_count(len(numbers), f"graphs in {indicator}, numbered up to {numbers[-1]}")
    absent = np.setdiff1d(np.arange(1, count + 1), numbers).tolist()
    shown = ", ".join(map(str, absent[:SHOWN])) + (", …" if absent[SHOWN:] else "")
    note = f"{counted(len(absent), 'graph')} of {count:,} left out, without a node: {shown}"
    return numbers - 1, (note,)


def _graphs(indicator: Lines) -> np.ndarray:
    """int64 [n]: the number of each node's graph, from 1 and never falling."""
    graph = indicator.one_column()
    if len(graph) == 0:
        refuse(indicator.path, "the file is empty", "Give one line per node.")
    steps, remedy = np.diff(graph, prepend=0), "Nodes stand graph by graph, graphs count from 1."
    line = first((steps < 0) | (graph < 1))
    if line is not None:
        before = f"after graph {graph[line - 1]}" if line else "at the start"
        indicator.refuse_at(line, f"graph {graph[line]} {before}", remedy)
    return graph


def _edges(folder: Path, name: str, graph_of: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """int64 [2, E] in the form of `Dataset`, int64 [E] their labels or None, and names of labels; `graph_of` [n]
    are graphs' numbers."""
    lines, n = _read_required(folder, f"{name}_A", columns=2), len(graph_of)
    ends = lines.values.T - 1
    line = first(np.any((ends < 0) | (ends >= n), 0))
    if line is not None:
        lines.refuse_at(line, f"edge {_pair(ends, line)} names a node that is not in 1..{n}", "Nodes count from 1.")
    line = first(graph_of[ends[0]] != graph_of[ends[1]])
    if line is not None:
        graphs = " and ".join(str(graph_of[end[line]]) for end in ends)
        lines.refuse_at(line, f"edge {_pair(ends, line)} joins graphs {graphs}", "Edges stay within one graph.")
    codes = ends[0] * n + ends[1]
    order = np.argsort(codes, kind="stable")
    order = order[(ends[0] != ends[1])[order]]
    rows = order[np.diff(codes[order], prepend=-1) != 0]  # the line of each different edge, sorted by edge
    source, target = ends[:, rows]
    reverse = np.searchsorted(codes[rows], target * n + source).clip(max=len(rows) - 1)
    lonely = first(codes[rows][reverse] != target * n + source)
    if lonely is not None:
        line = int(rows[lonely])
        lines.refuse_at(line, f"edge {_pair(ends, line)} lacks its reverse", "Give every edge in both directions.")
    return ends[:, rows], *_edge_labels(folder, name, ends, rows, rows[reverse])


def _edge_labels(
    folder: Path, name: str, ends: np.ndarray, rows: np.ndarray, reverse: np.ndarray
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """int64 [E], the labels of edges in the lines `rows`, whose reverse edges are in the lines `reverse`; and the names
    of labels."""
    lines = _optional(folder, f"{name}_edge_labels")
    if lines is None:
        return None, ()
    lines.check_count(ends.shape[1], f"lines in {name}_A")
    labels, kinds = _class_places(lines.values)
    at = first(labels[rows] != labels[reverse])
    if at is not None:
        other = f"the label of its reverse in line {reverse[at] + 1}"
        lines.refuse_at(int(rows[at]), f"the label of edge {_pair(ends, int(rows[at]))} is not {other}", RELOAD)
    return labels[rows], kinds


def _values(labels: np.ndarray) -> np.ndarray:
    """The rising numbers that stand for kinds, of labels int64 [m]: all from the lowest to the highest, or those that
    occur where these are more than labels."""
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, -1)
    return np.arange(low, high + 1) if high - low <= len(labels) else np.unique(labels)


def _attributes(folder: Path, name: str, nodes: int) -> np.ndarray:
    """float32 [n, columns]."""
    lines = _optional(folder, f"{name}_node_attributes", pa.float64())
    if lines is None:
        what = f"attributes = true, but there is no {name}_node_attributes.txt"
        refuse(folder, what, "Set it to false.", "attributes")
    lines.check_count(nodes, "nodes")
    with np.errstate(over="ignore"):
        values = lines.values.astype(np.float32)
    lines.refuse_at(first(np.any(~np.isfinite(values), 1)), "an attribute is not finite in float32", "Correct it.")
    cells = lines.values  # or their text, where float64 may have taken digits
    if np.abs(cells).max(initial=0) >= EXACT:
        texts = _optional(folder, f"{name}_node_attributes", pa.string())
        cells = cells if texts is None else texts.values
    for number, (column, raw) in enumerate(zip(lines.values.T, cells.T, strict=True), 1):
        refuse_merged(exact(pa.array(raw), column), f"attribute {number}", lines.refuse_at)
    return values


def _class_places(labels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """int64 [m], one number from 0 for each row of labels [m, columns], and what the numbers stand for (`_names`)."""
    if labels.shape[1] == 1:
        values = _values(labels[:, 0])
        return np.searchsorted(values, labels[:, 0]), _names(values)
    rows, kinds = np.unique(labels, axis=0, return_inverse=True)
    return kinds.reshape(-1), tuple(", ".join(map(str, row)) for row in rows.tolist())


def _pair(ends: np.ndarray, line: int) -> str:
    return f"{ends[0, line] + 1}, {ends[1, line] + 1}"


def _read_required(folder: Path, stem: str, columns: int | None = None, remedy: str = NUMBERS) -> Lines:
    lines = _optional(folder, stem, columns=columns, remedy=remedy)
    if lines is None:
        absent = f"neither {stem}.txt nor {stem}.txt.xz is there"
        refuse_absent(folder, absent, stem, TU_SUFFIXES, RELOAD, "file-missing")
    return lines


def _file(folder: Path, stem: str) -> Path | None:
    """The file of that stem; None if there is none."""
    paths = [folder / f"{stem}{suffix}" for suffix in TU_SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    if paths[1:]:
        refuse(folder, f"both {paths[0].name} and {paths[1].name} are there", "Keep the one that counts.", "file-twice")
    return paths[0] if paths else None


def _optional(
    folder: Path,
    stem: str,
    kind: pa.DataType | None = None,
    columns: int | None = None,
    remedy: str = NUMBERS,
    uneven: str = NUMBERS,
) -> Lines | None:
    """The numbers (int64 unless `kind` says otherwise) of a file; None if there is none. What to do is `remedy` where a
    cell is none, and `uneven` where lines differ in length."""
    path = _file(folder, stem)
    if path is None:
        return None
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            limit = max_unpacked(path.stat().st_size)
            text = file.read(limit + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        refuse(path, f"the file is truncated or damaged ({type(error).__name__}: {error})", RELOAD, "damaged")
    if len(text) > limit:
        refuse(path, f"its {path.stat().st_size:,} bytes unpack to more than {limit:,}", "Unpack it, if that is meant.")
    return Lines(path, _parse(path, text.rstrip(), kind or pa.int64(), columns, (remedy, uneven)))


def _parse(path: Path, text: bytes, kind: pa.DataType, columns: int | None, remedies: tuple[str, str]) -> np.ndarray:
    if b"," not in text and re.search(rb"\S[ \t]+\S", text.partition(b"\n")[0]):  # as numpy.savetxt and DGL write
        text = b"\n".join(b",".join(line.split()) for line in text.splitlines())
    width = text.partition(b"\n")[0].count(b",") + 1 if text else columns or 1
    if columns not in (None, width):
        refuse(path, f"line 1: {counted(width, 'number')} instead of {columns}", remedies[1])
    if not text:
        return np.zeros((0, width), kind.to_pandas_dtype())
    try:
        return _cells(text, width, kind)
    except pa.ArrowInvalid as error:
        if kind != pa.int64():
            _refuse_line(path, error, remedies)
    try:  # NumPy and MATLAB write whole numbers as 1.0000000e+00
        numbers = _cells(text, width, pa.float64())
    except pa.ArrowInvalid as error:
        _refuse_line(path, error, remedies)
    whole = np.isfinite(numbers) & (np.abs(numbers) < EXACT) & (np.floor(numbers) == numbers)
    at = first(~whole.all(1))
    if at is not None:
        cell = numbers[at][~whole[at]][0]
        refuse(path, f"line {at + 1}: {cell:.10g} is not a whole number below 2^53", remedies[0], "line")
    return numbers.astype(np.int64)


def _refuse_line(path: Path, error: pa.ArrowInvalid, remedies: tuple[str, str]) -> NoReturn:
    line = re.search(r"Row #(\d+): (.*)", " ".join(str(error).split()))
    what = f"line {line[1]}: {line[2]}" if line else str(error)
    refuse(path, what, remedies["Expected" in what])


def _cells(text: bytes, width: int, kind: pa.DataType) -> np.ndarray:
    """[lines, width]."""
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text + b"\n"),
        # without threads the parser knows the number of a line that it complains about
        pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=True),
        pyarrow.csv.ParseOptions(ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys((f"f{i}" for i in range(width)), kind), null_values=[]),
    )
    return np.stack([column.to_numpy() for column in table.columns], 1)
