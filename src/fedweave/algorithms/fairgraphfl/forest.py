"""A spanning forest of a graph by depth-first search, and its bridges."""

from typing import NamedTuple

import numpy as np


class Adjacency(NamedTuple):
    """An undirected graph of n vertices and m edges as compressed rows: the neighbours of vertex v are
    neighbour[start[v]:start[v + 1]], and `edge` there is the number, 0 to m - 1, of the edge that leads to each."""

    start: np.ndarray
    neighbour: np.ndarray
    edge: np.ndarray

    @property
    def vertices(self) -> int:
        """How many vertices there are, n."""
        return len(self.start) - 1

    @property
    def edges(self) -> int:
        """How many edges there are, m."""
        return len(self.edge) // 2


class Forest(NamedTuple):
    """Numbers of edges, sorted: `outside`, those in no tree of the forest; `bridges`, those on no cycle."""

    outside: list[int]
    bridges: list[int]


def adjacency(pairs: np.ndarray, vertices: int) -> Adjacency:
    """The graph with an edge for each of the distinct `pairs` int64 [2, m]; neighbours in ascending order."""
    ends = np.concatenate([pairs, pairs[::-1]], 1)
    order = np.lexsort(ends[::-1])
    start = np.searchsorted(ends[0, order], np.arange(vertices + 1))
    return Adjacency(start, ends[1, order], order % max(1, pairs.shape[1]))


def spanning_forest(graph: Adjacency) -> Forest:
    """The forest of a depth-first search from the lowest vertices, neighbours in their order.

    An edge outside of it joins a vertex to one of its ancestors. So a count of +1 at the lower and -1 at the upper end,
    summed over a vertex's subtree, says how many such edges pass by the edge to its parent: a bridge where none does.
    """
    order, parent, upward, outside = _search(graph)
    passing = [0] * graph.vertices
    for _, lower, upper in outside:
        passing[lower] += 1
        passing[upper] -= 1
    bridges = []
    for v in reversed(order):
        if parent[v] >= 0:
            passing[parent[v]] += passing[v]
            if not passing[v]:
                bridges.append(upward[v])
    return Forest(sorted(edge for edge, _, _ in outside), sorted(bridges))


def _search(graph: Adjacency) -> tuple[list[int], list[int], list[int], list[tuple[int, int, int]]]:
    """Vertices in the order found, each vertex' parent and the edge to it (-1 at a root), and (edge, lower, upper
    end) of each edge outside."""
    start, neighbour, edge = (array.tolist() for array in graph)
    parent, upward, number = ([-1] * graph.vertices for _ in range(3))
    order: list[int] = []
    outside = []
    at = start[:-1]  # where each vertex' neighbours have been followed up to
    for root in range(graph.vertices):
        if number[root] >= 0:
            continue
        number[root] = len(order)
        order.append(root)
        v = root
        while v >= 0:
            if at[v] == start[v + 1]:
                v = parent[v]
                continue
            w, e = neighbour[at[v]], edge[at[v]]
            at[v] += 1
            if number[w] < 0:
                parent[w], upward[w], number[w] = v, e, len(order)
                order.append(w)
                v = w
            elif number[w] < number[v] and e != upward[v]:
                outside.append((e, v, w))
    return order, parent, upward, outside
