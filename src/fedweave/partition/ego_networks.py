"""The partition of F²GNN: every client is the neighborhood of one node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.bounds import Clients, Count, Fraction, Share
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.splits import check_ratios, divide

_SMALL_SHARE = 16  # binary search finds the nodes of a group below 1 / 16 of all; for larger groups a table is faster


def edges_within(data: Dataset, groups: list[np.ndarray], starts: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges among them: int64 [2, E_i], positions within the group. starts:
    `edge_starts` of the data, if they are known."""
    for source, _, _, place in _touching(data, groups, starts):
        yield np.stack([source, place])[:, place >= 0]


def numbered_edges_within(data: Dataset, groups: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`edges_within`, and int64 [E_i], the places of these edges among the data's."""
    for source, number, _, place in _touching(data, groups):
        inside = place >= 0
        yield np.stack([source[inside], place[inside]]), number[inside]


def edges_within_all(
    data: Dataset, nodes: np.ndarray, sizes: np.ndarray, starts: np.ndarray, slots: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`edges_within` of P groups in one piece: int64 [2, E], group after group, and int64 [P + 1], where each group's
    edges begin. nodes: of all groups, one after another, each sorted. sizes: int64 [P]. starts: `edge_starts` of the
    data. slots: `slots_of` all groups, if they share no nodes; the P groups are some of them.
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    first = np.cumsum(sizes) - sizes
    at = starts[nodes]
    degree = starts[nodes + 1] - at
    source = np.repeat(np.arange(len(nodes)), degree)
    before = np.cumsum(degree) - degree
    target = data.edges[1, np.arange(len(source)) + np.repeat(at - before, degree)]
    if slots is None:
        codes = group * data.nodes + nodes
        target_codes = group[source] * data.nodes + target
        position = np.searchsorted(codes, target_codes).clip(max=max(len(codes) - 1, 0))
        inside = codes[position] == target_codes
        place = position - first[group[source]]
    else:  # a group's nodes have consecutive slots, so nothing needs a search
        begin = slots[nodes] - (np.arange(len(nodes)) - first[group])
        place = slots[target] - np.repeat(begin, degree)
        inside = (place >= 0) & (place < np.repeat(sizes[group], degree))
    rows = np.flatnonzero(inside)
    edge_group = group[source[rows]]
    ends = np.concatenate([[0], np.cumsum(np.bincount(edge_group, minlength=len(sizes)))])
    return np.stack([source[rows] - first[edge_group], place[rows]]), ends


def slots_of(groups: Sequence[np.ndarray], total: int) -> np.ndarray | None:
    """The place of each of `total` nodes in the groups, one after another: int [n], -1 in none; None where groups
    share nodes."""
    nodes = np.concatenate(groups)
    slots = np.full(total, -1, np.int32 if total < 1 << 31 else np.int64)
    slots[nodes] = np.arange(len(nodes))
    return slots if np.count_nonzero(np.greater_equal(slots, 0)) == len(nodes) else None


def attributes_within(data: Dataset, groups: list[np.ndarray]) -> Iterator[EdgeAttributes | None]:
    """For each group of sorted node numbers, the edges among them with their attributes, in the data's order, between
    positions within the group; None where edges have no attributes."""
    attributes = data.edge_attrs
    if attributes is None:
        yield from (None for _ in groups)
        return
    for numbers, index in _rows_within(data, attributes, groups):
        yield attributes.select(numbers, index)


def edges_among(data: Dataset, groups: list[np.ndarray]) -> list[np.ndarray]:
    """For each group of sorted node numbers, the sorted numbers of the edges of `data.edge_attrs` among them."""
    attributes = data.edge_attrs
    return [] if attributes is None else [numbers for numbers, _ in _rows_within(data, attributes, groups)]


def _rows_within(
    data: Dataset, attributes: EdgeAttributes, groups: list[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each group the numbers of the edges among its nodes, and their ends as positions within the group."""
    order = np.argsort(attributes.ends[0], kind="stable")
    starts = np.searchsorted(attributes.ends[0, order], np.arange(data.nodes + 1))
    place = np.full(data.nodes, -1)
    for nodes in groups:
        place[nodes] = np.arange(len(nodes))
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        before = np.cumsum(degree) - degree
        numbers = np.sort(order[np.arange(int(degree.sum())) + np.repeat(first - before, degree)])
        index = place[attributes.ends[:, numbers]]
        inside = index[1] >= 0
        place[nodes] = -1
        yield numbers[inside], index[:, inside]


def crossing_edges(data: Dataset, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges from it to nodes that only other groups hold: int64 [2, C_i], a
    position within the group and a node number."""
    in_groups = np.zeros(data.nodes, bool)
    for nodes in groups:
        in_groups[nodes] = True
    for source, _, target, place in _touching(data, groups):
        yield np.stack([source, target])[:, (place < 0) & in_groups[target]]


def edge_starts(data: Dataset) -> np.ndarray:
    """int64 [n + 1]: where each node's edges begin among the data's."""
    return np.searchsorted(data.edges[0], np.arange(data.nodes + 1))


def _touching(
    data: Dataset, groups: list[np.ndarray], starts: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """For each group the edges from its nodes: the position of the source, the place of the edge among the data's, and
    the number and position of the target; -1 if the target is not in the group.

    The time depends on the edges that touch a group's nodes, not on all edges, so that many clients are cheap.
    """
    starts = edge_starts(data) if starts is None else starts
    for nodes in groups:
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        source = np.repeat(np.arange(len(nodes)), degree)
        before = np.cumsum(degree) - degree
        number = np.arange(len(source)) + np.repeat(first - before, degree)
        target = data.edges[1, number]
        yield source, number, target, _positions(nodes, target, data.nodes)


def _positions(nodes: np.ndarray, targets: np.ndarray, total: int) -> np.ndarray:
    """The positions of the `targets` among sorted `nodes`, of `total` in all; -1 for nodes that are not there."""
    if len(nodes) * _SMALL_SHARE > total:
        place = np.full(total, -1)
        place[nodes] = np.arange(len(nodes))
        return np.asarray(place[targets])
    at = np.searchsorted(nodes, targets).clip(max=max(len(nodes) - 1, 0))
    return np.asarray(np.where(nodes[at] == targets, at, -1))


def labels_of(data: Dataset, edges: np.ndarray) -> np.ndarray | None:
    """int64 [E_i]: the labels of edges int64 [2, E_i], global node numbers, -1 where the dataset has no such edge; None
    if its edges have no labels."""
    if data.edge_labels is None:
        return None
    known = data.edges[0] * data.nodes + data.edges[1]
    codes = edges[0] * data.nodes + edges[1]
    if not len(known):
        return np.full(len(codes), -1)
    at = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return np.where(known[at] == codes, data.edge_labels[at], -1)


@dataclass(frozen=True)
class EgoNetworks(Settings):
    """Overlapping clients, each a random train node and all nodes within `hops` of it, with the edges among them
    (F²GNN, section VI-A).

    The split is drawn on the whole graph first, so that a node has the same role at every client and the global test
    nodes train nowhere; a global model is evaluated on the whole graph. Centers are distinct and lie in the largest
    connected component. (The released code draws them with replacement and restricts the whole graph to the component.)

    hops:             radius. Three hops are nearly all of a small graph: 1 suits nba and german, 2 bail, 3 credit.
    clients:          number of clients, P.
    train, val, test: ratios of all labeled nodes, stratified by label.
    use_dataset_split:     whether to take the dataset's published masks instead of the ratios.
    incomplete:       "drop" the nodes whose label or sensitive attribute is unknown first, as in the released code, or
                      "keep" them as neighbors without a role.
    """

    hops: Count
    clients: Clients = 30
    train: Share = 0.5
    val: Fraction = 0.25
    test: Fraction = 0.25
    use_dataset_split: bool = False
    incomplete: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        from scipy.sparse.csgraph import connected_components  # slow to import

        nodes = self._nodes(data)
        [whole] = divide(data, [nodes], (self.train, self.val, self.test), self.use_dataset_split, seed)
        graph = _adjacency(data, nodes)
        component = connected_components(graph, directed=False)[1]
        pool = np.flatnonzero(whole.masks[TRAIN] & (component == np.bincount(component).argmax()))
        if len(pool) < self.clients:
            raise ConfigError(
                f"partition.clients = {self.clients}: each ego-network needs a train node as its center, but the "
                f"largest component of {data.name!r} has {len(pool)}. Lower clients or raise train.",
                code="config.too-few",
            )
        centers = generator(seed, "partition/ego_networks").choice(pool, self.clients, replace=False)
        parts = tuple(Part(nodes[near], whole.masks[:, near]) for near in _within(graph, centers, self.hops))
        return Partition(parts, nodes[whole.masks[TEST]], evaluation_part=whole)

    def _nodes(self, data: Dataset) -> np.ndarray:
        """The sorted nodes that take part."""
        if self.incomplete == "keep":
            return np.arange(data.nodes)
        return np.flatnonzero(data.has_label & (True if data.sensitive is None else data.sensitive >= 0))


def _adjacency(data: Dataset, nodes: np.ndarray) -> sp.csr_matrix:
    """bool [m, m] of the subgraph that `nodes` [m] induce."""
    [edges] = edges_within(data, [nodes])
    return sp.csr_matrix((np.ones(edges.shape[1], bool), tuple(edges)), shape=(len(nodes), len(nodes)))


def _within(graph: sp.csr_matrix, centers: np.ndarray, hops: int) -> list[np.ndarray]:
    """For each of the P centers the sorted nodes at most `hops` edges away, the center included."""
    rows = np.arange(len(centers))
    reached = sp.csr_matrix((np.ones(len(centers), bool), (rows, centers)), shape=(len(centers), graph.shape[0]))
    for _ in range(hops):
        reached = reached + reached @ graph
    return [np.sort(reached[row].indices).astype(np.int64) for row in rows]
