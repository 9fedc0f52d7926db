"""External edges, from a member's nodes to nodes that it does not hold, and what the member knows of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph_arrays import Matrix
from fedweave.core.types import PREDICT
from fedweave.errors import ConfigError

REFUSE, FEATURES, EXCHANGE = "refuse", "features", "exchange"
EXTERNAL = (REFUSE, FEATURES, EXCHANGE, PREDICT)
WIDENING = (FEATURES, EXCHANGE)  # those by which nodes get columns
BARE = EdgeAttributes(np.empty((2, 0), np.int64), False)  # no edges, without attributes


class Outside(NamedTuple):
    """C edges of a dataset's n nodes to nodes that are not among them.

    edge_attrs: the edges with their attributes; one end is a node, below n, and the other is n plus its place in
             `names`.
    names:   names of the nodes elsewhere in the files.
    """

    edge_attrs: EdgeAttributes
    names: tuple[str, ...]


class Ends(NamedTuple):
    """H ends of edges whose other end is elsewhere: int64 [H] each.

    near: the node at this end of the edge. far: the number of the other node. way: the place in `ways` of the
    direction that the edge has for `near`. edge: which edge it is.
    """

    near: np.ndarray
    far: np.ndarray
    way: np.ndarray
    edge: np.ndarray

    def only(self, which: np.ndarray) -> "Ends":
        """The ends at bool [H], or at int64 places."""
        return Ends(*(values[which] for values in self))


def check_external(how: str, among: Sequence[str] = EXTERNAL) -> None:
    """Raise ConfigError unless `how` is one of the values of `external`."""
    if how not in among:
        raise ConfigError(f"external = {how!r} is not known; choose one of {', '.join(among)}.", code="config.value")


def ways(directed: bool) -> tuple[str, ...]:
    """The names of the directions of an edge, seen from one of its ends."""
    return ("out", "in") if directed else ("",)


def ends_at(attributes: EdgeAttributes, holder: np.ndarray) -> Ends:
    """The ends at held nodes of edges whose other end belongs to another holder, or to none.

    holder: int64, the holder of every node by its number; -1 is none.
    """
    source, target = attributes.ends
    crossing, ends = holder[source] != holder[target], list[Ends]()
    for way, (near, far) in enumerate(((source, target), (target, source))):
        edge = np.flatnonzero(crossing & (holder[near] >= 0))
        ends.append(Ends(near[edge], far[edge], np.full(len(edge), way * attributes.directed), edge))
    return Ends(*map(np.concatenate, zip(*ends, strict=True)))


def summary(
    nodes: int, edge_attrs: EdgeAttributes, holder: np.ndarray, ends: Ends
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Summaries of each node's external edges, those whose other end is elsewhere: float32 [n, k], and column names.

    For every direction: log(1 + their number); sum and mean of weight and of each feature, as inverse hyperbolic
    sines, which are logarithms of large numbers of either sign; the last time, from 0 to 1 between the first and the
    last time of the holder's edges. Nodes without such edges have 0.

    holder: see `ends_at`.
    """
    columns, moment = dict[str, np.ndarray](), _moments(edge_attrs, holder, ends)
    for way, direction in enumerate(ways(edge_attrs.directed)):
        prefix = f"external {direction} " if direction else "external "
        near, _, _, edge = ends.only(ends.way == way)
        count = np.bincount(near, minlength=nodes).astype(np.float64)  # [n]
        columns[f"{prefix}log count"] = np.log1p(count)
        for name, values in _values(edge_attrs):
            total = np.bincount(near, values[edge], nodes)
            columns[f"{prefix}log sum of {name}"] = np.arcsinh(total)
            columns[f"{prefix}log mean of {name}"] = np.arcsinh(total / count.clip(1))
        if moment is not None:
            last = np.zeros(nodes)
            np.maximum.at(last, near, moment[ends.way == way])
            columns[f"{prefix}last time"] = last
    return np.stack(list(columns.values()), 1).astype(np.float32), tuple(columns)


def _moments(attributes: EdgeAttributes, holder: np.ndarray, ends: Ends) -> np.ndarray | None:
    """float64 [H]: the time of each edge, from 0 to 1 between the first and the last edge at its holder's nodes."""
    if attributes.time is None:
        return None
    first = np.full(int(holder.max(initial=-1)) + 2, np.inf)
    last = -first
    for end in attributes.ends:
        np.minimum.at(first, holder[end], attributes.time)
        np.maximum.at(last, holder[end], attributes.time)
    of, span = holder[ends.near], np.where(last > first, last - first, 1)
    return np.asarray((attributes.time[ends.edge] - first[of]) / span[of])


def _values(attributes: EdgeAttributes) -> list[tuple[str, np.ndarray]]:
    """(name, float64 [M]) of the edge attributes that are summed."""
    names = attributes.columns or tuple(f"edge feature {at}" for at in range(attributes.width))
    values = list[tuple[str, np.ndarray]]()
    if attributes.weight is not None and "weight" not in names:
        values.append(("weight", attributes.weight.astype(np.float64)))
    if attributes.features is not None:
        values += zip(names, attributes.features.T.astype(np.float64), strict=True)
    return values


def append_columns(x: Matrix, more: np.ndarray) -> Matrix:
    """Features [n, d] with further columns [n, k] on their right, stored as they were."""
    if isinstance(x, sp.csr_matrix):
        return sp.csr_matrix(sp.hstack([x, sp.csr_matrix(more)], "csr"))
    return np.concatenate([x, more], 1)


def plain_edges(ends: np.ndarray) -> EdgeAttributes:
    """Undirected edges int64 [2, M] without attributes, each once; the order of the ends does not matter."""
    return EdgeAttributes(np.unique(np.sort(ends, 0), axis=1), False)


def before(outside: Outside, nodes: int, limit: float) -> Outside:
    """The edges of `outside` up to a time, and the names that they lead to."""
    if outside.edge_attrs.time is None or limit == np.inf:
        return outside
    attributes = outside.edge_attrs.select(outside.edge_attrs.time <= limit)
    far = attributes.ends >= nodes
    used, place = np.unique(attributes.ends[far], return_inverse=True)
    ends = attributes.ends.copy()
    ends[far] = nodes + place
    return Outside(attributes._replace(ends=ends), tuple(outside.names[at - nodes] for at in used))


def separate(attributes: EdgeAttributes, nodes: int, names: tuple[str, ...]) -> tuple[EdgeAttributes, Outside]:
    """Split edges into edges among the first `nodes` nodes and edges to later nodes, whose names are `names`."""
    inside = np.maximum(*attributes.ends) < nodes
    outside = attributes._replace(y=None, split=None, examples=False).select(~inside, attributes.ends[:, ~inside])
    return attributes.select(inside, attributes.ends[:, inside]), Outside(outside, names)
