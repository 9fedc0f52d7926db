"""The edges among the nodes of each client and those that leave it, and the labels of edges."""

from collections.abc import Iterator

import numpy as np

from fedweave.core.carried import Carried
from fedweave.datasets.base import Dataset


def induced_edges(data: Dataset, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges among them: int64 [2, E_i], positions within the group."""
    for source, _, place in _touching(data, groups):
        yield np.stack([source, place])[:, place >= 0]


def induced_carried(data: Dataset, groups: list[np.ndarray]) -> Iterator[Carried | None]:
    """For each group of sorted node numbers, the edges among them with what they carry, in the order given, between
    positions within the group; None where edges carry nothing."""
    carried = data.carried
    if carried is None:
        yield from (None for _ in groups)
        return
    order = np.argsort(carried.ends[0], kind="stable")
    starts = np.searchsorted(carried.ends[0, order], np.arange(data.nodes + 1))
    place = np.full(data.nodes, -1)
    for nodes in groups:
        place[nodes] = np.arange(len(nodes))
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        before = np.cumsum(degree) - degree
        own = np.sort(order[np.arange(int(degree.sum())) + np.repeat(first - before, degree)])
        index = place[carried.ends[:, own]]
        inside = index[1] >= 0
        place[nodes] = -1
        yield carried.taken(own[inside], index[:, inside])


def crossing_edges(data: Dataset, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges to nodes of other groups that are not its own: int64 [2, C_i], a
    position within the group and a node number."""
    held = np.zeros(data.nodes, bool)
    for nodes in groups:
        held[nodes] = True
    for source, target, place in _touching(data, groups):
        yield np.stack([source, target])[:, (place < 0) & held[target]]


def _touching(data: Dataset, groups: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each group the edges from its nodes: position of the source, number of the target and its position, -1 in no
    place of the group.

    Takes time in the edges that touch a group's nodes, not in all edges, so that many clients are cheap.
    """
    starts = np.searchsorted(data.edges[0], np.arange(data.nodes + 1))
    place = np.full(data.nodes, -1)
    for nodes in groups:
        place[nodes] = np.arange(len(nodes))
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        source = np.repeat(np.arange(len(nodes)), degree)
        before = np.cumsum(degree) - degree
        target = data.edges[1, np.arange(len(source)) + np.repeat(first - before, degree)]
        found = place[target]
        place[nodes] = -1
        yield source, target, found


def labels_of(data: Dataset, edges: np.ndarray) -> np.ndarray | None:
    """int64 [E_i]: the labels of edges int64 [2, E_i], global node numbers, -1 where the dataset has no such edge; None
    if its edges have no labels."""
    if data.edge_labels is None:
        return None
    known, wanted = (pairs[0] * data.nodes + pairs[1] for pairs in (data.edges, edges))
    at = np.searchsorted(known, wanted).clip(max=max(len(known) - 1, 0))
    return np.where(known[at] == wanted, data.edge_labels[at], -1) if len(known) else np.full(len(wanted), -1)
