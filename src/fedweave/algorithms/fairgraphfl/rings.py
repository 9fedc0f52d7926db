"""Short cycles of a minimum cycle basis, by a bounded version of Horton's search.

Vismara (1997, "Union of all the minimum cycle bases of a graph") shows which cycles suffice: for each vertex r, paths
from r are shortest ones through vertices of lower number, and a cycle is two such paths, apart but for r, that end at
the two ends of an edge (odd length) or at two neighbours of one vertex (even length). A greedy choice of independent
ones among them, shortest first, gives the cycles of a minimum cycle basis up to the length wanted.
"""

from collections.abc import Iterator
from functools import reduce
from operator import xor
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


BLOCK = 1 << 22  # the most steps from one vertex to the next that are looked at together, which bounds memory


class Cycles(NamedTuple):
    """Cycles of one length l: int64 [c, l] vertices in cyclic order, and int64 [c, l] the edges that join them."""

    vertices: np.ndarray
    edges: np.ndarray


class Level(NamedTuple):
    """What the search has reached at one depth, an entry per root and vertex.

    root, vertex, edge (the last on the path), parent (the place in the level before of the vertex before), first (the
    path's first vertex after the root; two paths from one root meet only there if these differ): int64 [s].
    """

    root: np.ndarray
    vertex: np.ndarray
    edge: np.ndarray
    parent: np.ndarray
    first: np.ndarray


def rings(graph: Adjacency, forest: Forest, longest: int) -> list[np.ndarray]:
    """The cycles of at most `longest` vertices in a minimum cycle basis of `graph`, by length from 3 on.

    Each int64 [c, length], vertices in cyclic order. Which of several minimum bases is found depends on the order of
    the vertices and on nothing else.
    """
    if not forest.outside:
        return [np.empty((0, length), np.int64) for length in range(3, longest + 1)]
    wanted = len(forest.outside)  # the dimension of the cycle space
    coordinates = [0] * graph.edges  # a cycle is known by its edges outside the forest: a bit for each of these
    for bit, edge in enumerate(forest.outside):
        coordinates[edge] = 1 << bit
    out = []
    for cycles in candidates(graph, longest):
        chosen = _independent(cycles.edges, coordinates, wanted)
        wanted -= len(chosen)
        out.append(cycles.vertices[chosen])
    return out


def candidates(graph: Adjacency, longest: int) -> list[Cycles]:
    """Cycles among which there are those of a minimum cycle basis, by length from 3 to `longest`; an entry each."""
    block = max(1, BLOCK // max(1, graph.vertices, 2 * graph.edges))
    found: list[list[Cycles]] = [[] for _ in range(3, longest + 1)]
    for low in range(0, graph.vertices, block):
        roots = np.arange(low, min(low + block, graph.vertices))
        for cycles in _from_roots(graph, roots, longest):
            found[cycles.edges.shape[1] - 3].append(cycles)
    return [Cycles(*map(np.concatenate, zip(*of_length, strict=True))) for of_length in found]


def _from_roots(graph: Adjacency, roots: np.ndarray, longest: int) -> Iterator[Cycles]:
    depth = np.full((len(roots), graph.vertices), -1, np.int8)
    place = np.empty((len(roots), graph.vertices), np.int32)
    levels = [Level(roots, roots, roots, roots, roots)]
    for k in range((longest + 1) // 2):
        level = levels[-1]
        depth[level.root - roots[0], level.vertex] = k
        place[level.root - roots[0], level.vertex] = np.arange(len(level.root))
        source, vertex, edge = _step(graph, level)
        row = level.root[source] - roots[0]
        reached = depth[row, vertex]
        if k:
            beside = np.flatnonzero((reached == k) & (vertex < level.vertex[source]))
            other = place[row[beside], vertex[beside]]
            yield _joined(levels, source[beside], other, edge[beside][:, None], None)
        if 2 * k + 2 > longest:
            return
        new = np.flatnonzero(reached < 0)
        new = new[np.argsort(row[new] * graph.vertices + vertex[new], kind="stable")]
        source, vertex, edge = source[new], vertex[new], edge[new]
        root = level.root[source]
        again = np.zeros(len(new), bool)
        again[1:] = (root[1:] == root[:-1]) & (vertex[1:] == vertex[:-1])
        earlier = np.maximum.accumulate(np.where(again, 0, np.arange(len(new))))
        if k:
            last = np.stack([edge[earlier[again]], edge[again]], 1)
            yield _joined(levels, source[earlier[again]], source[again], last, vertex[again])
        once = ~again
        first = level.first[source[once]] if k else vertex[once]
        levels.append(Level(root[once], vertex[once], edge[once], source[once], first))


def _step(graph: Adjacency, level: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(entry of `level`, vertex, edge) for each neighbour of the level's vertices that is lower than the root."""
    start = graph.start[level.vertex]
    degree = graph.start[level.vertex + 1] - start
    source = np.repeat(np.arange(len(degree)), degree)
    at = np.arange(len(source)) + np.repeat(start - (np.cumsum(degree) - degree), degree)
    below = np.flatnonzero(graph.neighbour[at] < level.root[source])
    return source[below], graph.neighbour[at[below]], graph.edge[at[below]]


def _joined(
    levels: list[Level], one: np.ndarray, other: np.ndarray, last: np.ndarray, tip: np.ndarray | None
) -> Cycles:
    """The cycles of the paths to entries `one` and `other` of the last level, the edges `last` [c, 1 or 2] between
    their ends and the vertex `tip` [c] between those, as far as the paths are apart."""
    apart = np.flatnonzero(levels[-1].first[one] != levels[-1].first[other])
    one, other = one[apart], other[apart]
    root = levels[-1].root[one]
    there, back = _path(levels, one), _path(levels, other)
    middle = [] if tip is None else [tip[apart]]
    vertices = [root, *there.vertices.T, *middle, *back.vertices.T[::-1]]
    edges = [*there.edges.T, *last[apart].T, *back.edges.T[::-1]]
    return Cycles(np.stack(vertices, 1), np.stack(edges, 1))


def _path(levels: list[Level], entry: np.ndarray) -> Cycles:
    """Vertices and edges [c, depth] of the paths to entries of the last level, without the root."""
    vertices, edges = [], []
    for level in levels[:0:-1]:
        vertices.append(level.vertex[entry])
        edges.append(level.edge[entry])
        entry = level.parent[entry]
    return Cycles(np.stack(vertices[::-1], 1), np.stack(edges[::-1], 1))


def _independent(cycles: np.ndarray, coordinates: list[int], wanted: int) -> list[int]:
    """Which of `cycles` [c, l] are independent over GF(2) of those before, `wanted` at most.

    `coordinates` holds a bit vector per edge, such that a cycle's sum is zero where the cycle depends on those chosen
    in earlier calls; it is brought up to date.
    """
    chosen: list[int] = []
    if not wanted:
        return chosen
    pivots: dict[int, int] = {}  # highest bit: vector
    for number, edges in enumerate(cycles.tolist()):
        vector = reduce(xor, [coordinates[edge] for edge in edges])
        while vector and (other := pivots.get(vector.bit_length())):
            vector ^= other
        if vector:
            pivots[vector.bit_length()] = vector
            chosen.append(number)
            if len(chosen) == wanted:
                break
    if pivots:
        _project(coordinates, pivots)
    return chosen


def _project(coordinates: list[int], pivots: dict[int, int]) -> None:
    """Add vectors of `pivots` to the coordinates until none of them has a pivot's bit: the space of cycles modulo
    those chosen."""
    mask = sum(1 << (bit - 1) for bit in pivots)
    for bit in sorted(pivots):  # lower ones are done when a higher one asks for them
        pivots[bit] = _reduced(pivots[bit] ^ 1 << (bit - 1), mask, pivots)
    for edge, vector in enumerate(coordinates):
        coordinates[edge] = _reduced(vector, mask, pivots)


def _reduced(vector: int, mask: int, rest: dict[int, int]) -> int:
    """`vector` with each bit of `mask` replaced by what `rest` says that it equals."""
    while hit := vector & mask:
        bit = hit.bit_length()
        vector ^= rest[bit] ^ 1 << (bit - 1)
    return vector
