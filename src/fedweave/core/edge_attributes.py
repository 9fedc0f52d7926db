"""Edge attributes: a direction, a weight, features, a time, also of parallel edges and loops."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike

from fedweave.core.operators import add_self_loops, mean, normalize_symmetric
from fedweave.core.sizes import padded_rows
from fedweave.core.types import Record

WAYS = ("undirected", "forward", "reverse")
ROWS = ("weight", "features", "time", "y", "split", "owner")  # fields with a row for each edge
WIDE = 32  # number of features from which on they may be stored as the difference from each column's common number
SPARSE_BELOW = 0.2  # the share of numbers up to which a sparse product is faster
_SAMPLED_ROWS = 1001  # rows among which a column's common number is looked for
# matrices of the edges that are the examples
EXAMPLE_SOURCE, EXAMPLE_TARGET, EXAMPLE_FEATURES = "example_source", "example_target", "example_features"
OF_EXAMPLES = frozenset({EXAMPLE_SOURCE, EXAMPLE_TARGET, EXAMPLE_FEATURES})


class EdgeAttributes(NamedTuple):
    """M edges as the data has them, such as transfers, among the nodes of a graph.

    ends:     int64 [2, M], source and target; edges may be parallel, and of a node with itself.
    directed: whether an edge leads only from its source to its target; an undirected edge is listed once.
    weight:   float32 [M], from 0; None where all count 1.
    features: float32 [M, k]; None where k = 0.
    time:     float64 [M], in the data's unit (days since 1970 of dates); None if unknown.
    columns:  the names of the k features, in order; () if unknown.
    scaling:  ((shift, divisor, asinh), …) of the k features, where they were scaled over edges; divisor 0 made it 0,
              and asinh is 1 where it was taken before (`datasets.features.Numbers`).
    y:        int64 [M], the edges' own classes, -1 unlabeled; None where they have none. No input of a model.
    split:    int64 [M], 0 train, 1 val, 2 test, -1 none; None if the data has no split.
    examples: whether the edges are the examples, in this order.
    split_times:
              the last times of training and of validation, where messages for the examples of a split go along edges
              no later than its end; None where all messages go everywhere.
    ports:    whether models read two more features, log(1 + p) of the ports at target and source (`port_numbers`).
    owner:    int64 [M], the owner of each edge as a place in `owners`, for a partition of the edges; None if unknown.
    owners:   the owners' names, in order.
    dates:    the column of dates that the times are of, which may also be a feature; "" of numbers.
    auto:     whether each client is to scale the features by its own edges (`datasets.edges.by_holder`).
    """

    ends: np.ndarray
    directed: bool
    weight: np.ndarray | None = None
    features: np.ndarray | None = None
    time: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    scaling: tuple[tuple[float, float, float], ...] = ()
    y: np.ndarray | None = None
    split: np.ndarray | None = None
    examples: bool = False
    split_times: tuple[float, float] | None = None
    ports: bool = False
    owner: np.ndarray | None = None
    owners: tuple[str, ...] = ()
    dates: str = ""
    auto: bool = False

    def __str__(self) -> str:
        """The edges in words, such as "1,200 directed, with a weight, 2 features (amount, fee), times 1 to 149"."""
        attributes = [] if self.weight is None else ["a weight"]
        if self.width:
            names = f" ({', '.join(self.columns)})" if self.columns else ""
            attributes.append(f"{self.width} feature{'s' if self.width > 1 else ''}{names}")
        if self.time is not None and self.total:
            first, last = self.time.min(), self.time.max()
            attributes.append(f"times {self.format_time(first)} to {self.format_time(last)}")
        kind = "directed" if self.directed else "undirected"
        return ", ".join([f"{self.total:,} {kind}", *attributes])

    def format_time(self, time: float) -> str:
        """A time as the data has it: a date, or a number."""
        return format_date(time) if self.dates else f"{time:.10g}"

    @property
    def total(self) -> int:
        """M."""
        return int(self.ends.shape[1])

    @property
    def width(self) -> int:
        """k."""
        return 0 if self.features is None else int(self.features.shape[1])

    @property
    def read(self) -> np.ndarray:
        """float32 [M, k], or [M, k + 2] with `ports`: what models read of each edge."""
        features = np.empty((self.total, 0), np.float32) if self.features is None else self.features
        return np.concatenate([features, np.log1p(port_numbers(self))], 1) if self.ports else features

    def select(self, edges: np.ndarray, index: np.ndarray | None = None) -> "EdgeAttributes":
        """The edges at int64 places (or bool) `edges`; with `index` [2, …], between these numbers of nodes instead."""
        rows = {name: getattr(self, name) for name in ROWS}
        selected: Record = {name: None if values is None else values[edges] for name, values in rows.items()}
        return self._replace(ends=self.ends[:, edges] if index is None else index, **selected)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, without those that are None."""
        arrays = {"ends": self.ends, "directed": np.array(self.directed), "scaling": np.array(self.scaling)}
        arrays |= {name: np.array(True) for name in ("examples", "ports", "auto") if getattr(self, name)}
        if self.split_times is not None:
            arrays["until"] = np.array(self.split_times)
        rows = {name: getattr(self, name) for name in ROWS}
        return arrays | {name: values for name, values in rows.items() if values is not None}

    @classmethod
    def of_form(cls, form: Mapping[str, int | bool], ports: bool) -> "EdgeAttributes":
        """No edges, of a form that models were trained on (`Dataset.edge_form`)."""
        weight = np.empty(0, np.float32) if form["weighted"] else None
        ends, features = np.empty((2, 0), np.int64), np.empty((0, form["features"]), np.float32)
        return cls(ends, True, weight, features, examples=bool(form["examples"]), ports=ports)

    @classmethod
    def from_arrays(cls, arrays: "dict[str, np.ndarray]", columns: tuple[str, ...] = ()) -> "EdgeAttributes":
        """The inverse of `arrays`."""
        rows: Record = {name: arrays.get(name) for name in ROWS}
        scaling = tuple((float(a), float(b), float(c)) for a, b, c in arrays["scaling"].reshape(-1, 3))
        split_times = None
        if "until" in arrays:
            first, second = arrays["until"]
            split_times = float(first), float(second)
        return cls(
            arrays["ends"],
            bool(arrays["directed"]),
            **rows,
            columns=columns,
            scaling=scaling,
            examples="examples" in arrays,
            ports="ports" in arrays,
            auto="auto" in arrays,
            split_times=split_times,
        )


_MINUTES = 24 * 60
_ROUNDING = 3  # minutes: days since 1970 in float32 are multiples of 2.8 minutes


def format_date(days: float) -> str:
    """Days since 1970 as a date, with the time of day unless it is midnight up to the rounding of float32."""
    minutes = round(days * _MINUTES)
    midnight = round(days) * _MINUTES
    if abs(minutes - midnight) <= _ROUNDING:
        minutes = midnight
    moment = np.datetime64(minutes, "m").item()
    return f"{moment:%Y-%m-%d}" if minutes == midnight else f"{moment:%Y-%m-%d %H:%M}"


def port_numbers(attributes: EdgeAttributes) -> np.ndarray:
    """float32 [M, 2], the ports (Sato et al. 2019; Egressy et al. 2024) of each edge at its target and at its source.

    A port numbers the neighbors that a node is reached from, or reaches, from 0, in order of their first edge: by time,
    and by row at the same time. Later edges do not change the ports of earlier ones."""
    order = np.arange(attributes.total) if attributes.time is None else np.argsort(attributes.time, kind="stable")
    ports = np.empty((attributes.total, 2), np.float32)
    for column, (node, neighbor) in enumerate((attributes.ends[::-1], attributes.ends)):
        codes = node[order] << 32 | neighbor[order]
        pairs, first, pair = np.unique(codes, return_index=True, return_inverse=True)
        by_node = np.lexsort((first, pairs >> 32))
        node_of_pair = (pairs >> 32)[by_node]
        rank = np.empty(len(pairs), np.int64)
        rank[by_node] = np.arange(len(pairs)) - np.searchsorted(node_of_pair, node_of_pair)
        ports[order, column] = rank[pair]
    return ports


def is_visible(attributes: EdgeAttributes, split: int) -> np.ndarray:
    """bool [M]: the edges that messages for the examples of a split (`core.graph.SPLITS`) go along."""
    if attributes.split_times is None or attributes.time is None or split >= len(attributes.split_times):
        return np.ones(attributes.total, bool)
    return np.asarray(attributes.time <= attributes.split_times[split])


def of_examples(attributes: EdgeAttributes, what: str, rows: int, nodes: int, dtype: DTypeLike) -> sp.csr_matrix:
    """[rows, n]: 1 at the node where an example starts (`EXAMPLE_SOURCE`) or ends (`EXAMPLE_TARGET`)."""
    m = attributes.total
    end = attributes.ends[(EXAMPLE_SOURCE, EXAMPLE_TARGET).index(what)]
    return sp.csr_matrix((np.ones(m, dtype), end, np.minimum(np.arange(rows + 1), m)), shape=(rows, nodes))


def both_ways(attributes: EdgeAttributes) -> EdgeAttributes:
    """The attributes with each undirected edge listed in both directions."""
    if attributes.directed:
        return attributes
    back = np.flatnonzero(attributes.ends[0] != attributes.ends[1])
    at = np.concatenate([np.arange(attributes.total), back])
    return attributes.select(at, np.concatenate([attributes.ends, attributes.ends[::-1, back]], 1))


class EdgeMessages:
    """The matrices by which messages go along edges: "undirected" (both ways), "forward" from sources to targets, or
    "reverse".

    For undirected edges all three are equal. Messages are sorted by the node that they reach; their number is padded
    as nodes are (`core.sizes.padded_rows`), and none reaches a node from the padding.

    nodes: rows of the graph, padding included. dtype: float32 or float64.
    """

    def __init__(self, attributes: EdgeAttributes, nodes: int, dtype: DTypeLike) -> None:
        self.edge_attrs, self.nodes, self.dtype = attributes, nodes, dtype
        self._lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def messages_of(self, way: str) -> tuple[np.ndarray, np.ndarray]:
        """int64 [2, m], where each message starts and what it reaches, and int64 [m], the edge that it goes along."""
        if way not in self._lists:
            index, edge = self.edge_attrs.ends, np.arange(self.edge_attrs.total)
            if way == "reverse" and self.edge_attrs.directed:
                index = index[::-1]
            elif way == "undirected" or not self.edge_attrs.directed:
                back = index[0] != index[1]  # a loop is one message
                index, edge = np.concatenate([index, index[::-1, back]], 1), np.concatenate([edge, edge[back]])
            order = np.lexsort((index[0], index[1]))
            self._lists[way] = index[:, order], edge[order]
        return self._lists[way]

    def incoming(self, way: str) -> tuple[np.ndarray, ...]:
        """The tables of `core.edges.Incoming`."""
        (source, target), edge = self.messages_of(way)
        degree = np.bincount(target, minlength=self.nodes)
        weight = self.edge_attrs.weight
        strength = degree if weight is None else np.bincount(target, weight[edge], self.nodes)
        source, edge = source.astype(np.int32), edge.astype(np.int32)  # tens of millions: half the memory
        return degree.cumsum() - degree, degree, source, edge, strength.astype(np.float64)

    @cached_property
    def offset_and_rest(self) -> "tuple[np.ndarray, np.ndarray | sp.csr_matrix]":
        """(c float32 [k], S [M, k]): models read S + 1 c^T of edges. c is 0 unless it makes S sparse, as for one-hot
        columns that were standardized: nearly all rows have one number, and a product with these would be dense."""
        read = self.edge_attrs.read
        unchanged = np.zeros(read.shape[1], np.float32), read
        if read.shape[1] < WIDE or np.count_nonzero(read) < SPARSE_BELOW * read.size or not read.size:
            return unchanged
        sample = read[:: max(1, len(read) // _SAMPLED_ROWS)]
        median = np.partition(sample, len(sample) // 2, axis=0)[len(sample) // 2]  # what most rows have, if most agree
        median[(read != median).sum(0) >= (read != 0).sum(0)] = 0
        rest = sp.csr_matrix(read - median)
        return (median, rest) if rest.nnz < SPARSE_BELOW * read.size else unchanged

    def of_examples(self, rows: int) -> sp.csr_matrix:
        """[rows, k]: the part S of the edges' features (`offset_and_rest`)."""
        matrix = sp.csr_matrix(self.offset_and_rest[1], dtype=self.dtype, copy=True)
        matrix.resize(rows, matrix.shape[1])
        return matrix

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """The tables of `core.edges.OfEdges`."""
        attributes = self.edge_attrs
        weight = np.ones(attributes.total, np.float32) if attributes.weight is None else attributes.weight
        return attributes.read, weight, attributes.ends.T

    def matrix(self, what: str, way: str) -> sp.csr_matrix:
        """One of the matrices of `kinds`."""
        return _BUILDERS[what](self, way)

    def _ends(self, way: str, end: int) -> sp.csr_matrix:
        """[m, n]: 1 at the node where a message starts (0), or that it reaches (1)."""
        index, _ = self.messages_of(way)
        m, rows = index.shape[1], padded_rows(index.shape[1])
        starts = np.minimum(np.arange(rows + 1), m)
        return sp.csr_matrix((np.ones(m, self.dtype), index[end], starts), shape=(rows, self.nodes))

    def _features(self, way: str) -> sp.csr_matrix:
        """[m, k], the part S of the features (`offset_and_rest`) of each message's edge."""
        _, edge = self.messages_of(way)
        matrix = sp.csr_matrix(self.offset_and_rest[1][edge], dtype=self.dtype)
        matrix.resize(padded_rows(len(edge)), matrix.shape[1])
        return matrix

    def _adjacency(self, way: str, weighted: bool = True) -> sp.csr_matrix:
        """[n, n]; entry (i, j) is the sum of the weights of the messages from j that reach i, or how many these are."""
        index, edge = self.messages_of(way)
        weight = self.edge_attrs.weight if weighted else None
        values = np.ones(len(edge), self.dtype) if weight is None else weight[edge].astype(self.dtype)
        return sp.csr_matrix((values, (index[1], index[0])), shape=(self.nodes, self.nodes))

    def _into(self, way: str) -> sp.csr_matrix:
        return sp.csr_matrix(self._ends(way, 1).T)

    def _relations(self, way: str) -> np.ndarray:
        """int64 [m]: the relation of each message's edge; 0 where edges have none, or classes to be predicted."""
        index, edge = self.messages_of(way)
        if self.edge_attrs.y is None or self.edge_attrs.examples:
            return np.zeros(index.shape[1], np.int64)
        return np.asarray(self.edge_attrs.y[edge])

    def _relation(self, way: str) -> sp.csr_matrix:
        """[m, 1]: the number of each message's relation."""
        relation = self._relations(way)
        matrix = sp.csr_matrix(relation[:, None].astype(self.dtype))
        matrix.resize(padded_rows(len(relation)), 1)
        return matrix

    def _relation_mean(self, way: str) -> sp.csr_matrix:
        """[n, m]: for each message that reaches a node, 1 / the number of messages of its relation that do."""
        (_, target), relation = self.messages_of(way)[0], self._relations(way)
        codes = target * (relation.max(initial=0) + 1) + relation
        _, group, count = np.unique(codes, return_inverse=True, return_counts=True)
        rows, m = padded_rows(len(target)), len(target)
        return sp.csr_matrix(((1 / count[group]).astype(self.dtype), (target, np.arange(m))), shape=(self.nodes, rows))

    def _scalers(self, way: str) -> sp.csr_matrix:
        """[n, 2]: log(d + 1) and 1 / log(d + 1) of d messages that reach a node, at least 1 of the second."""
        degree = np.bincount(self.messages_of(way)[0][1], minlength=self.nodes).astype(np.float64)
        return sp.csr_matrix(np.stack([np.log(degree + 1), 1 / np.log(degree.clip(1) + 1)], 1).astype(self.dtype))


_BUILDERS: dict[str, Callable[[EdgeMessages, str], sp.csr_matrix]] = {
    "from": lambda messages, way: messages._ends(way, 0),
    "to": lambda messages, way: messages._ends(way, 1),
    "sum": EdgeMessages._into,
    "mean": lambda messages, way: mean(messages._into(way)),
    "features": EdgeMessages._features,
    "feature_means": lambda messages, way: mean(messages._into(way)) @ messages._features(way),
    "scalers": EdgeMessages._scalers,
    "relation": EdgeMessages._relation,
    "relation_mean": EdgeMessages._relation_mean,
    "gcn": lambda messages, way: normalize_symmetric(add_self_loops(messages._adjacency(way))),
    "gcn_counted": lambda messages, way: normalize_symmetric(add_self_loops(messages._adjacency(way, False))),
    "gcn_bare": lambda messages, way: normalize_symmetric(messages._adjacency(way)),
    "gcn_bare_counted": lambda messages, way: normalize_symmetric(messages._adjacency(way, False)),
}


@cache
def kinds() -> dict[str, tuple[str, str]]:
    """{name of a matrix: what, way}."""
    return {operator_name(what, way): (what, way) for what, way in product(_BUILDERS, WAYS)}


def operator_name(what: str, way: str) -> str:
    """The operator's name, such as "edge_sum_forward"."""
    return f"edge_{what}_{way}"
