"""Edges between members: columns of features derived from them, before any algorithm runs.

`"features"` are what a member can compute from its own edges (`datasets.external.summary`). `"exchange"` adds the
exchange of FedGCN (Yao et al. 2023): for a node, the features of the nodes of other members that these members' own
records join to it, as their number and mean for each direction. A member adds up the features of its own nodes at every
end that it does not hold. Secure aggregation adds up the members' sums, and each total goes to the member that holds
the end. So the member whose records name an edge decides what it sends about its nodes, and the holder of the other end
gets it.

Here the partition knows all edges. Between organizations a private set intersection (`sites.flare.parties.exchange`)
matches the ends, with the same sums and the same rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.federation import Declaration, Sends, StepInfo
from fedweave.core.graph_arrays import Matrix
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import SecureSum
from fedweave.core.types import SETUP, Record
from fedweave.datasets.base import Dataset, distinct
from fedweave.datasets.contents import names as columns_of
from fedweave.datasets.external import (
    EXCHANGE,
    Ends,
    Outside,
    append_columns,
    before,
    ends_at,
    plain_edges,
    summary,
    ways,
)
from fedweave.errors import ConfigError, DataError
from fedweave.partition.base import Part, Partition
from fedweave.privacy.secure_sum import FixedPoint

EXCHANGED = "exchanged "  # at the start of a column's name
ADD = "exchange"  # the name of the step by which members add up
SUMS, TOTALS, TELLERS = "sums", "totals", 1  # how many masked integers of a row count the senders
SUM = SecureSum(everyone=True, bits=64, fraction=24)
ADDING: Declaration = {
    SUMS: Sends(
        "for each node that some member holds and others have edges to: how many of its nodes these edges join to it, "
        "and the sum of their features; the member that holds the node receives only the total over all members",
        SUM,
    )
}
HEARS = {
    "slots": "how many nodes there are that some member holds and others have edges to",
    TOTALS: "how many nodes of other members their records join to each of its nodes, and the sum of their features",
}
WORDS = FixedPoint.of(SUM)


class Appended(NamedTuple):
    """Data with its further columns. shared: the nodes that others sent sums for; words: the integers in a sum."""

    data: Dataset
    shared: int = 0
    words: int = 0


def with_external_columns(data: Dataset, partition: Partition, how: str, min_nodes: int = 1) -> Appended:
    """The data with columns derived from edges between the parts of a partition, and to nodes that the data lacks.

    how: "features" or "exchange". min_nodes: the fewest nodes of a member whose sum it sends.
    """
    # 1. What members can compute from their own edges.
    holder = holders_of(data, partition)
    edges = _all_edges(data, [part.split_times for part in partition.parts])
    outside_nodes = 0 if data.outside is None else len(data.outside.names)
    known = np.append(holder, np.full(outside_nodes, -1))
    ends = ends_at(edges, known)
    columns, column_names = summary(data.nodes, edges, known, ends)
    x = append_columns(data.x, columns)
    names = (*columns_of(data), *column_names)
    if how != EXCHANGE:
        return Appended(replace(data, x=x, columns=names))

    # 2. The sums that members send about their nodes to the holders of the other ends.
    parts = len(partition.parts)
    ends = ends._replace(far=ends_in_data(data)[ends.far])
    is_member = (holder >= 0) & (holder < parts)
    shared_ends = ends.only((ends.far >= 0) & is_member[ends.near] & is_member[ends.far])
    shared, slot = np.unique(shared_ends.far, return_inverse=True)
    slots = len(shared)
    directions = len(ways(edges.directed))
    total = np.zeros((slots, directions * (1 + data.features)), np.int64)
    for part in range(parts):
        part_ends = shared_ends._replace(far=slot).only(holder[shared_ends.near] == part)
        total += words(terms(data.x, part_ends, (slots, directions), min_nodes), parts)
    exchanged = np.zeros((data.nodes, total.shape[1]), np.float32)
    exchanged[shared] = means(total, directions)
    names = (*names, *exchange_names(columns_of(data), edges.directed))
    return Appended(replace(data, x=append_columns(x, exchanged), columns=names), *total.shape)


def check_inside(data: Dataset) -> None:
    """Reject edges to nodes that the data does not have, for settings that do not use them."""
    if data.outside is not None and data.outside.edge_attrs.total:
        raise DataError(
            f"{data.name}: {data.outside.edge_attrs.total:,} edges lead to nodes that it does not have. Remove them, "
            'or make features of them: [data] external = "features".'
        )


def member_data(data: Dataset, how: str) -> Dataset:
    """A member's own data, with columns derived from its edges to nodes that it does not have; columns from an exchange
    are 0."""
    split_times = [None if data.edge_attrs is None else data.edge_attrs.split_times]
    empty = Outside(_with_outside(data).select(np.empty(0, np.int64), np.empty((2, 0), np.int64)), ())
    outside = before(data.outside or empty, data.nodes, _training_end(split_times))
    edges = _all_edges(replace(data, outside=outside), split_times)
    holder = member_holder(data.nodes, outside)
    columns, column_names = summary(data.nodes, edges, holder, ends_at(edges, holder))
    names = (*columns_of(data), *column_names)
    if how == EXCHANGE:
        sum_names = exchange_names(columns_of(data), edges.directed)
        columns = np.pad(columns, ((0, 0), (0, len(sum_names))))
        names = (*names, *sum_names)
    return replace(data, x=append_columns(data.x, columns), columns=names, outside=outside)


def columns_to_send(data: Dataset) -> int:
    """For data that `member_data` made for an exchange: how many of its first columns enter the sums for others."""
    empty = np.empty(0, np.int64)
    edges = _all_edges(data).select(empty, np.empty((2, 0), np.int64))
    directions = len(ways(edges.directed))
    summary_names = summary(0, edges, empty, Ends(empty, empty, empty, empty))[1]
    return (data.features - len(summary_names) - directions) // (1 + directions)


def member_holder(nodes: int, outside: Outside) -> np.ndarray:
    """int64 [n + F]: 0 for a member's own nodes, -1 for nodes elsewhere."""
    return np.append(np.zeros(nodes, np.int64), np.full(len(outside.names), -1))


def exchange_names(names: Sequence[str], directed: bool) -> tuple[str, ...]:
    """The names of the columns that an exchange derives from the columns `names`."""
    columns = ("log neighbors", *(f"mean of {name}" for name in names))
    result = list[str]()
    for way in ways(directed):
        result += [f"{EXCHANGED}{way} {name}".replace("  ", " ") for name in columns]
    return tuple(result)


def is_exchanged(name: str) -> bool:
    """Whether a column is one of `exchange_names`."""
    return name.startswith(EXCHANGED)


def terms(x: Matrix, ends: Ends, form: tuple[int, int], min_nodes: int) -> np.ndarray:
    """float64 [S, w (1 + d)]: for S nodes elsewhere and each of the w directions of an edge from their side, how many
    nodes are joined to them, and the sum of these nodes' features; 0 where they are fewer than `min_nodes`.

    x: [n, d]. ends: of edges at a member's nodes, `far` the places of the other ends. form: S and w.
    """
    slots, directions = form
    way = ends.way if directions == 1 else 1 - ends.way  # an edge that leaves here arrives there
    codes = np.unique((ends.far * directions + way) * x.shape[0] + ends.near)  # a node counts once, with any edges
    row, near = np.divmod(codes, x.shape[0])
    count = np.bincount(row, minlength=slots * directions)
    enough = count[row] >= min_nodes
    entries = np.ones(enough.sum()), (row[enough], near[enough])
    sums = sp.csr_matrix(entries, shape=(slots * directions, x.shape[0])) @ x.astype(np.float64)
    sums = sums.toarray() if sp.issparse(sums) else sums
    counts = np.where(count >= min_nodes, count, 0)[:, None]
    return np.concatenate([counts, sums], 1).reshape(slots, directions * (1 + x.shape[1]))


def member_words(x: Matrix, outside: Outside, slot: np.ndarray, slots: int, min_nodes: int, members: int) -> np.ndarray:
    """int64 [S, w (1 + d)]: a member's addend of an exchange, as integers.

    x: [n, d], features of the member's own nodes. outside: its edges to others' nodes. slot: int64 [F], the place among
    `slots` of each of these; -1 is none. min_nodes: see `terms`. members: their number.

    Raises:
        DataError: a value is too large.
    """
    n = x.shape[0]
    edges = outside.edge_attrs
    ends = ends_at(edges, member_holder(n, outside))
    ends = ends._replace(far=slot[ends.far - n])
    form = slots, len(ways(edges.directed))
    return words(terms(x, ends.only(ends.far >= 0), form, min_nodes), members)


def words(values: np.ndarray, members: int) -> np.ndarray:
    """int64: float64 values as integers, for a sum over this number of members."""
    limit = ((1 << 62) - 1) // members
    tensor = torch.from_numpy(values)
    if WORDS.beyond(tensor, limit):
        bound = limit * 2.0**-WORDS.fraction
        raise DataError(
            f"data.external: sums of features beyond {bound:.3g} cannot be exchanged. Scale them by data.normalize."
        )
    return WORDS.encode(tensor, float(limit)).numpy()


def means(total: np.ndarray, directions: int) -> np.ndarray:
    """float32 [S, w (1 + d)]: in each of w `directions`, log(1 + number) and means, from sums of integers
    int64 [S, w (1 + d)]."""
    rows, width = total.shape
    result = WORDS.decode(torch.from_numpy(total), torch.float64).numpy()
    result = result.reshape(rows, directions, width // directions)
    result[..., 1:] /= result[..., :1].clip(1)
    result[..., 0] = np.log1p(result[..., 0])
    return result.reshape(total.shape).astype(np.float32)


def outside_edges(data: Dataset, parts: Sequence[Part]) -> Iterator[Outside]:
    """For each part, the edges between its nodes and all others, as its own files would name them."""
    edges = _all_edges(data, [part.split_times for part in parts])
    names = (*with_ids(data).node_names, *(() if data.outside is None else data.outside.names))
    place = np.full(len(names), -1)
    for part in parts:
        place[part.nodes] = np.arange(len(part.nodes))
        inside = place[edges.ends] >= 0  # [2, E]
        crossing = np.flatnonzero(inside[0] != inside[1])
        ends = edges.ends[:, crossing]
        leaves = inside[0, crossing]
        far, at = np.unique(np.where(leaves, *ends[::-1]), return_inverse=True)
        pair = place[np.where(leaves, *ends)], len(part.nodes) + at
        place[part.nodes] = -1
        yield Outside(edges.select(crossing, np.where(leaves, pair, pair[::-1])), tuple(names[i] for i in far))


def with_ids(data: Dataset) -> Dataset:
    """The data with ids, by which its members find their common ends."""
    if data.node_names:
        return data
    names = tuple(map(str, range(data.nodes)))
    return replace(data, node_ids=names) if data.example == "edge" else replace(data, ids=names)


def meter_exchange(ledger: Ledger, clients: Sequence[str], exchange: Appended) -> None:
    """Record in a `ledger` what `clients` would send and receive in an exchange."""
    if exchange.words:
        row = torch.zeros((exchange.shared, TELLERS + exchange.words), dtype=torch.int64, device="cpu")
        ledger.purpose = SETUP
        ledger.record(0, 0, f"({ADD})", clients, "up", {SUMS: row}, 0.0, StepInfo.of(ADDING))
        ledger.record(0, 0, f"({ADD})", clients, "down", {TOTALS: row}, 0.0, StepInfo.of(HEARS))


def holders_of(data: Dataset, partition: Partition) -> np.ndarray:
    """int64 [n]: the part that has each node, then the node set of the server (test or held); -1 is none.

    Raises:
        ConfigError: see `with_external_columns`.
    """
    parts = partition.parts
    if data.example == "graph" or any(part.columns is not None or part.edges is not None for part in parts):
        raise ConfigError(
            "data.external: needs nodes or edges of one graph as examples, and members that hold all columns of their "
            "nodes. Leave it out."
        )
    tests = () if partition.test is None else (data.nodes_of(partition.test),)
    groups = [*(part.nodes for part in parts), *tests, *(part.nodes for part in partition.held.values())]
    if partition.evaluation_part is not None or sum(map(len, groups)) > len(distinct(np.concatenate(groups))):
        message = "data.external: members share nodes here, so no edge leads to another member. Leave it out."
        raise ConfigError(message, code="config.external")
    holder = np.full(data.nodes, -1)
    for number, nodes in enumerate(groups):
        holder[nodes] = number
    return holder


def _all_edges(data: Dataset, split_times: Sequence[tuple[float, float] | None] = ()) -> EdgeAttributes:
    """All edges: edges between the data's nodes, and edges to others, which have the numbers from n on; if
    `split_times` ends a training at a time (`Part.split_times`), only edges up to the first such time."""
    edges = _with_outside(data)
    limit = _training_end(split_times)
    return edges if edges.time is None or limit == np.inf else edges.select(edges.time <= limit)


def _training_end(split_times: Sequence[tuple[float, float] | None]) -> float:
    """The first of the times at which training ends; infinity if none is set."""
    return min((ends[0] for ends in split_times if ends is not None), default=np.inf)


def _with_outside(data: Dataset) -> EdgeAttributes:
    """The edges between the data's nodes, followed by those to others."""
    attributes = data.edge_attrs
    if attributes is None:
        inside = plain_edges(data.edges)
    else:
        inside = attributes._replace(y=None, split=None, split_times=None, examples=False)
    if data.outside is None:
        return inside
    inside_arrays = inside.arrays()
    outside_arrays = data.outside.edge_attrs.arrays()
    columns: Record = {}
    for key in ("weight", "features", "time"):
        if key in inside_arrays:
            columns[key] = np.concatenate([inside_arrays[key], outside_arrays[key]])
    return inside._replace(ends=np.concatenate([inside.ends, data.outside.edge_attrs.ends], 1), **columns)


def ends_in_data(data: Dataset) -> np.ndarray:
    """int64 [n + F]: the node of the data that each end is, for ends whose name the data has; -1 is none."""
    nodes = np.arange(data.nodes)
    if data.outside is None or not data.outside.names:
        return nodes
    ids = list(with_ids(data).node_names)
    if data.owner is not None:
        ids = [name.removeprefix(f"{data.owners[at]}/") for name, at in zip(ids, data.owner, strict=True)]
    place = dict(zip(ids, nodes.tolist(), strict=True))
    if len(place) < len(ids):
        twice = next(name for at, name in enumerate(ids) if place[name] != at)
        raise DataError(
            f"data.external: two members hold the node {twice!r}, but a node belongs to one. Give it to one of them.",
            code="data.held-twice",
        )
    return np.append(nodes, np.array([place.get(name, -1) for name in data.outside.names], np.int64))
