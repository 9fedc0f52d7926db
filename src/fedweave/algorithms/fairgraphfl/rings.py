"""Bridges of a graph, and the short cycles of a minimum cycle basis, by a bounded version of Horton's search.

Vismara (1997, "Union of all the minimum cycle bases of a graph") shows which cycles suffice: for each vertex r, take
shortest paths from r through vertices of lower number. A cycle is two such paths that share only r and end at the two
ends of an edge (odd length) or at two neighbors of one vertex (even length). A greedy choice of independent cycles
among them, shortest first, gives the cycles of a minimum cycle basis up to a given length.
"""

from collections.abc import Iterator
from functools import reduce
from operator import xor
from typing import NamedTuple

import numpy as np

BLOCK = 1 << 22  # the most steps from one vertex to the next that are looked at together, which bounds memory


class Adjacency(NamedTuple):
    """An undirected graph of n vertices and m edges as compressed rows: the neighbors of vertex v are
    neighbor[start[v]:start[v + 1]], and `edge` there is the number, 0 to m - 1, of the edge that leads to each."""

    start: np.ndarray
    neighbor: np.ndarray
    edge: np.ndarray

    @property
    def vertices(self) -> int:
        """n, the number of vertices."""
        return len(self.start) - 1

    @property
    def edges(self) -> int:
        """m, the number of edges."""
        return len(self.edge) // 2


class Forest(NamedTuple):
    """Numbers of edges, sorted: `outside`, those in no tree of the forest; `bridges`, those on no cycle."""

    outside: list[int]
    bridges: list[int]


class Cycles(NamedTuple):
    """Cycles of one length l: int64 [c, l] vertices in cyclic order, and int64 [c, l] the edges that join them."""

    vertices: np.ndarray
    edges: np.ndarray


class Level(NamedTuple):
    """The vertices that the search reached at one depth, an entry per root and vertex.

    root, vertex, edge (the last on the path), parent (the place in the level before of the vertex before), first (the
    path's first vertex after the root; two paths from one root meet only there if these differ): int64 [s].
    """

    root: np.ndarray
    vertex: np.ndarray
    edge: np.ndarray
    parent: np.ndarray
    first: np.ndarray


def adjacency(pairs: np.ndarray, vertices: int) -> Adjacency:
    """The graph with an edge for each of the distinct `pairs` int64 [2, m]; neighbors in ascending order."""
    ends = np.concatenate([pairs, pairs[::-1]], 1)  # [2, 2 m]
    order = np.lexsort(ends[::-1])
    start = np.searchsorted(ends[0, order], np.arange(vertices + 1))
    return Adjacency(start, ends[1, order], order % max(1, pairs.shape[1]))


def spanning_forest(graph: Adjacency) -> Forest:
    """The forest of a depth-first search from the lowest vertices, neighbors in their order."""
    # 1. The search. `number` is a vertex' place in the order of discovery; at a root, `parent` and `upward`, the edge
    #    to it, are -1.
    start, neighbor, edge = graph.start.tolist(), graph.neighbor.tolist(), graph.edge.tolist()
    parent, upward, number = [-1] * graph.vertices, [-1] * graph.vertices, [-1] * graph.vertices
    order: list[int] = []
    outside = []  # (edge, its lower end in the tree, its upper end)
    position = start[:-1]  # up to where each vertex' neighbors have been followed
    for root in range(graph.vertices):
        if number[root] >= 0:
            continue
        number[root] = len(order)
        order.append(root)
        v = root
        while v >= 0:
            if position[v] == start[v + 1]:
                v = parent[v]
                continue
            w, e = neighbor[position[v]], edge[position[v]]
            position[v] += 1
            if number[w] < 0:
                parent[w], upward[w], number[w] = v, e, len(order)
                order.append(w)
                v = w
            elif number[w] < number[v] and e != upward[v]:
                outside.append((e, v, w))

    # 2. Bridges. An edge outside of the forest joins a vertex to one of its ancestors. So +1 at its lower and -1 at its
    #    upper end, summed over a vertex's subtree, counts such edges past the edge to its parent: a bridge where none.
    passing = [0] * graph.vertices
    for _, lower, upper in outside:
        passing[lower] += 1
        passing[upper] -= 1
    bridges = []
    for v in reversed(order):
        if parent[v] >= 0:
            passing[parent[v]] += passing[v]
            if passing[v] == 0:
                bridges.append(upward[v])
    return Forest(sorted(e for e, _, _ in outside), sorted(bridges))


def rings(graph: Adjacency, forest: Forest, max_length: int) -> list[np.ndarray]:
    """The cycles of at most `max_length` vertices in a minimum cycle basis of `graph`, by length from 3 on.

    Each int64 [c, length], vertices in cyclic order. Which of several minimum bases results depends on the order of the
    vertices and on nothing else.
    """
    lengths = range(3, max_length + 1)
    if not forest.outside:
        return [np.empty((0, length), np.int64) for length in lengths]

    # 1. Candidates of each length, from a block of roots at a time.
    block = max(1, BLOCK // max(1, graph.vertices, 2 * graph.edges))
    candidates: dict[int, list[Cycles]] = {length: [] for length in lengths}
    for low in range(0, graph.vertices, block):
        roots = np.arange(low, min(low + block, graph.vertices))
        for cycles in cycles_from(graph, roots, max_length):
            candidates[cycles.edges.shape[1]].append(cycles)

    # 2. Independent ones among them, shortest first.
    rank = len(forest.outside)  # the dimension of the cycle space
    coordinates = [0] * graph.edges  # its edges outside the forest determine a cycle: a bit for each of these
    for bit, edge in enumerate(forest.outside):
        coordinates[edge] = 1 << bit
    out = []
    for of_length in candidates.values():
        edges = np.concatenate([cycles.edges for cycles in of_length])
        vertices = np.concatenate([cycles.vertices for cycles in of_length])
        chosen = independent_rows(edges, coordinates, rank)
        rank -= len(chosen)
        out.append(vertices[chosen])
    return out


def cycles_from(graph: Adjacency, roots: np.ndarray, max_length: int) -> Iterator[Cycles]:
    """The candidates whose vertex of highest number is one of the adjacent `roots`, by rising length."""
    depth = np.full((len(roots), graph.vertices), -1, np.int8)
    place = np.empty((len(roots), graph.vertices), np.int32)  # of a vertex in its level
    levels = [Level(roots, roots, roots, roots, roots)]
    for k in range((max_length + 1) // 2):
        level = levels[-1]
        depth[level.root - roots[0], level.vertex] = k
        place[level.root - roots[0], level.vertex] = np.arange(len(level.root))
        source, vertex, edge = lower_neighbors(graph, level)
        row = level.root[source] - roots[0]
        reached = depth[row, vertex]

        # Odd cycles: an edge between two vertices of this level, taken once.
        if k:
            within = np.flatnonzero((reached == k) & (vertex < level.vertex[source]))
            other = place[row[within], vertex[within]]
            yield join_paths(levels, source[within], other, edge[within][:, None], None)
        if 2 * k + 2 > max_length:
            return

        # Even cycles: a new vertex that two vertices of this level lead to.
        new = np.flatnonzero(reached < 0)
        new = new[np.argsort(row[new] * graph.vertices + vertex[new], kind="stable")]
        source, vertex, edge = source[new], vertex[new], edge[new]
        root = level.root[source]
        repeated = np.zeros(len(new), bool)
        repeated[1:] = (root[1:] == root[:-1]) & (vertex[1:] == vertex[:-1])
        earlier = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(new))))
        if k:
            last = np.stack([edge[earlier[repeated]], edge[repeated]], 1)
            yield join_paths(levels, source[earlier[repeated]], source[repeated], last, vertex[repeated])

        # The next level: each new vertex with the first path that leads to it.
        distinct = ~repeated
        first = level.first[source[distinct]] if k else vertex[distinct]
        levels.append(Level(root[distinct], vertex[distinct], edge[distinct], source[distinct], first))


def lower_neighbors(graph: Adjacency, level: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(entry of `level`, vertex, edge) for each neighbor of the level's vertices that is lower than the root."""
    start = graph.start[level.vertex]
    degree = graph.start[level.vertex + 1] - start
    source = np.repeat(np.arange(len(degree)), degree)
    at = np.arange(len(source)) + np.repeat(start - (np.cumsum(degree) - degree), degree)
    below = np.flatnonzero(graph.neighbor[at] < level.root[source])
    return source[below], graph.neighbor[at[below]], graph.edge[at[below]]


def join_paths(
    levels: list[Level], one: np.ndarray, other: np.ndarray, last: np.ndarray, tip: np.ndarray | None
) -> Cycles:
    """The cycles of the paths to entries `one` and `other` of the last level, the edges `last` [c, 1 or 2] between
    their ends and the vertex `tip` [c] between those; only of paths that share no vertex but the root."""
    separate = np.flatnonzero(levels[-1].first[one] != levels[-1].first[other])
    one, other = one[separate], other[separate]
    root = levels[-1].root[one]
    vertices, edges = path_to(levels, one)
    back_vertices, back_edges = path_to(levels, other)
    middle = [] if tip is None else [tip[separate]]
    vertices = [root, *vertices, *middle, *back_vertices[::-1]]
    edges = [*edges, *last[separate].T, *back_edges[::-1]]
    return Cycles(np.stack(vertices, 1), np.stack(edges, 1))


def path_to(levels: list[Level], entry: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The vertices and edges, [c] of each depth, of the paths to entries [c] of the last level, without the root."""
    vertices, edges = [], []
    for level in levels[:0:-1]:
        vertices.append(level.vertex[entry])
        edges.append(level.edge[entry])
        entry = level.parent[entry]
    return vertices[::-1], edges[::-1]


def independent_rows(cycles: np.ndarray, coordinates: list[int], rank: int) -> list[int]:
    """The rows of `cycles` [c, l] that are independent over GF(2) of the rows before, at most `rank`.

    `coordinates` holds a bit vector per edge, such that a cycle's sum is zero where the cycle depends on those chosen
    in earlier calls. It is brought up to date: then it spans the space of cycles modulo those chosen.
    """
    chosen: list[int] = []
    if rank == 0:
        return chosen
    pivots: dict[int, int] = {}  # number of the highest bit, from 1: vector
    for number, edges in enumerate(cycles.tolist()):
        vector = reduce(xor, [coordinates[edge] for edge in edges])
        while vector.bit_length() in pivots:
            vector ^= pivots[vector.bit_length()]
        if vector:
            pivots[vector.bit_length()] = vector
            chosen.append(number)
            if len(chosen) == rank:
                break
    mask = sum(1 << (bit - 1) for bit in pivots)
    for bit in sorted(pivots):  # a higher one needs the lower ones in their final form
        pivots[bit] = eliminate(pivots[bit] ^ 1 << (bit - 1), mask, pivots)
    for edge, vector in enumerate(coordinates):
        coordinates[edge] = eliminate(vector, mask, pivots)
    return chosen


def eliminate(vector: int, mask: int, pivots: dict[int, int]) -> int:
    """`vector` with each bit of `mask` replaced by its equal in `pivots`."""
    while vector & mask:
        bit = (vector & mask).bit_length()
        vector ^= pivots[bit] ^ 1 << (bit - 1)
    return vector
