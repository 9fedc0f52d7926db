"""The edges among the nodes of each client."""

from collections.abc import Iterator

import numpy as np

from fedweave.datasets.base import Dataset


def induced_edges(data: Dataset, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges among them: int64 [2, E_i], positions within the group.

    Takes time in the edges that touch a group's nodes, not in all edges, so that many clients are cheap.
    """
    starts = np.searchsorted(data.edges[0], np.arange(data.nodes + 1))
    place = np.full(data.nodes, -1)
    for nodes in groups:
        place[nodes] = np.arange(len(nodes))
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        source = np.repeat(np.arange(len(nodes)), degree)
        before = np.cumsum(degree) - degree
        target = place[data.edges[1, np.arange(len(source)) + np.repeat(first - before, degree)]]
        place[nodes] = -1
        yield np.stack([source, target])[:, target >= 0]
