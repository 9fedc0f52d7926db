"""The motifs of an agent's small graphs (FairGraphFL, appendix A.2); motifs of graphs that were searched before are in
files.
"""

import hashlib
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import Field

from fedweave.core import random
from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.graph import TRAIN
from fedweave.core.operators import Precomputed, lookup_precomputed, mean
from fedweave.datasets.base import Dataset
from fedweave.datasets.lookup import cache
from fedweave.errors import ConfigError, DataError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.client_data import shares

# ----------------------------------------------------------------------------------------------------
# Short cycles of a minimum cycle basis, by a bounded version of Horton's search. Vismara (1997, "Union of all the
# minimum cycle bases of a graph") shows which cycles suffice: for each vertex r, paths from r are shortest ones
# through vertices of lower number, and a cycle is two such paths, apart but for r, that end at the two ends of an
# edge (odd length) or at two neighbors of one vertex (even length). A greedy choice of independent ones among them,
# shortest first, gives the cycles of a minimum cycle basis up to the length wanted.


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


def adjacency(pairs: np.ndarray, vertices: int) -> Adjacency:
    """The graph with an edge for each of the distinct `pairs` int64 [2, m]; neighbors in ascending order."""
    ends = np.concatenate([pairs, pairs[::-1]], 1)
    order = np.lexsort(ends[::-1])
    start = np.searchsorted(ends[0, order], np.arange(vertices + 1))
    return Adjacency(start, ends[1, order], order % max(1, pairs.shape[1]))


def spanning_forest(graph: Adjacency) -> Forest:
    """The forest of a depth-first search from the lowest vertices, neighbors in their order.

    An edge outside of it joins a vertex to one of its ancestors. So a count of +1 at the lower and -1 at the upper end,
    summed over a vertex's subtree, says how many such edges pass by the edge to its parent: a bridge where none does.
    """
    order, parent, upward, outside = _breadth_first(graph)
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


def _breadth_first(graph: Adjacency) -> tuple[list[int], list[int], list[int], list[tuple[int, int, int]]]:
    """Vertices in the order found, each vertex' parent and the edge to it (-1 at a root), and (edge, lower, upper
    end) of each edge outside."""
    start, neighbor, edge = (array.tolist() for array in graph)
    parent, upward, number = ([-1] * graph.vertices for _ in range(3))
    order: list[int] = []
    outside = []
    at = start[:-1]  # where each vertex' neighbors have been followed up to
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
            w, e = neighbor[at[v]], edge[at[v]]
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
    """The vertices that the search reached at one depth, an entry per root and vertex.

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
    """Cycles that include a minimum cycle basis, one entry per length from 3 to `longest`."""
    block = max(1, BLOCK // max(1, graph.vertices, 2 * graph.edges))
    by_length: list[list[Cycles]] = [[] for _ in range(3, longest + 1)]
    for low in range(0, graph.vertices, block):
        roots = np.arange(low, min(low + block, graph.vertices))
        for cycles in _from_roots(graph, roots, longest):
            by_length[cycles.edges.shape[1] - 3].append(cycles)
    return [Cycles(*map(np.concatenate, zip(*of_length, strict=True))) for of_length in by_length]


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
    """(entry of `level`, vertex, edge) for each neighbor of the level's vertices that is lower than the root."""
    start = graph.start[level.vertex]
    degree = graph.start[level.vertex + 1] - start
    source = np.repeat(np.arange(len(degree)), degree)
    at = np.arange(len(source)) + np.repeat(start - (np.cumsum(degree) - degree), degree)
    below = np.flatnonzero(graph.neighbor[at] < level.root[source])
    return source[below], graph.neighbor[at[below]], graph.edge[at[below]]


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
    """The rows of `cycles` [c, l] that are independent over GF(2) of the rows before, `wanted` at most.

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
    """`vector` with each bit of `mask` replaced by its equal in `rest`."""
    while hit := vector & mask:
        bit = hit.bit_length()
        vector ^= rest[bit] ^ 1 << (bit - 1)
    return vector


# ----------------------------------------------------------------------------------------------------
# Motifs of labeled graphs: bonds and rings (FairGraphFL, appendix A.2, definitions 4 and 5; Yu and Gao 2022).


BATCH = 512  # vertices of small graphs searched together, which saves most of the time


class Motif(NamedTuple):
    """The identity of a motif, the same at every agent: tuples of plain integers, equal for equal motifs.

    labels: labels of its vertices. Two make a bond, in ascending order; more make a ring, in the first rotation and
            reflection of their cyclic order.
    edge:   the label of a bond's edge, if edges have labels.
    """

    labels: tuple[int, ...]
    edge: int | None = None

    def __str__(self) -> str:
        kind = "bond" if len(self.labels) == 2 else "ring"
        return " ".join([kind, *map(str, self.labels)]) + ("" if self.edge is None else f" edge {self.edge}")


class Motifs(NamedTuple):
    """The V motifs of G graphs, bonds before rings, and counts int64 CSR [G, V] of how often each graph has each."""

    keys: tuple[Motif, ...]
    counts: sp.csr_array


def extract(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None = None,
    edge_labels: np.ndarray | None = None,
    max_ring: int = 7,
) -> Motifs:
    """All motifs of a set of graphs.

    A bond is a bridge, an edge on no cycle of any basis. A ring is a cycle of at most `max_ring` vertices in a minimum
    cycle basis; if a graph has several, the order of the vertices decides.

    edges:       int64 [2, E] vertices, undirected: a direction may be missing, repetitions and loops are not looked at.
    graph_of:    int64 [n], the graph of each vertex, ascending from 0.
    labels:      int64 [n]; None is the degree (the number of distinct neighbors).
    edge_labels: int64 [E], alike in both directions, or None.

    Raises:
        DataError: arrays do not fit together, an edge joins two graphs or has two labels.
        UserError: max_ring is below 3.
    """
    if not 3 <= max_ring <= 100:
        raise UserError(
            f"max_ring is {max_ring}; a ring has at least 3 vertices, and at most 100 are looked for.", code="user.ring"
        )
    pairs, edge_labels = _undirected(edges, graph_of, edge_labels)
    if labels is None:
        labels = np.bincount(pairs.ravel(), minlength=len(graph_of))
    elif len(labels) != len(graph_of):
        raise DataError(f"{len(labels)} labels for {len(graph_of)} vertices; give one each.")
    bridges, cycles = _search(pairs, graph_of, max_ring)
    owner, keys = [graph_of[pairs[0, bridges]]], [_bonds(pairs, bridges, labels, edge_labels, max_ring)]
    for vertices in cycles:
        owner.append(graph_of[vertices[:, 0]])
        keys.append(_rows(_canonical(labels[vertices]), max_ring))
    return _counted(np.concatenate(owner), np.concatenate(keys), int(graph_of[-1]) + 1 if len(graph_of) else 0)


def _undirected(
    edges: np.ndarray, graph_of: np.ndarray, edge_labels: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Each edge once, int64 [2, m] with the lower vertex first, sorted, and the labels [m]."""
    vertices = len(graph_of)
    if vertices and (graph_of[0] < 0 or (np.diff(graph_of) < 0).any()):
        raise DataError("graph_of must ascend from 0 or above; sort the vertices by graph.")
    if edges.size and not 0 <= edges.min() <= edges.max() < vertices:
        raise DataError(f"edges name vertices {edges.min()} to {edges.max()}; there are {vertices}, counted from 0.")
    if edge_labels is not None and len(edge_labels) != edges.shape[1]:
        raise DataError(f"{len(edge_labels)} edge labels for {edges.shape[1]} edges; give one each.")
    crossing = np.flatnonzero(graph_of[edges[0]] != graph_of[edges[1]])
    if len(crossing):
        u, v = edges[:, crossing[0]]
        raise DataError(f"the edge {u} - {v} joins graphs {graph_of[u]} and {graph_of[v]}; leave it out.")
    low, high = edges.min(0), edges.max(0)
    proper = np.flatnonzero(low < high)
    codes, first, which = np.unique(low[proper] * vertices + high[proper], return_index=True, return_inverse=True)
    pairs = np.stack([codes // max(1, vertices), codes % max(1, vertices)])
    if edge_labels is None:
        return pairs, None
    proper_labels = edge_labels[proper]
    unlike = np.flatnonzero(proper_labels != proper_labels[first][which])
    if len(unlike):
        u, v = edges[:, proper[unlike[0]]]
        raise DataError(f"the edge {u} - {v} has two labels; give both directions the same one.")
    return pairs, proper_labels[first]


def _search(pairs: np.ndarray, graph_of: np.ndarray, max_ring: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Numbers of the edges that are bridges, and the rings' vertices by length, each int64 [c, length]."""
    bridges = [np.empty(0, np.int64)]
    cycles = [[np.empty((0, length), np.int64)] for length in range(3, max_ring + 1)]
    for low, high in _batches(graph_of):
        begin, end = np.searchsorted(pairs[0], [low, high])
        graph = adjacency(pairs[:, begin:end] - low, high - low)
        forest = spanning_forest(graph)
        bridges.append(np.array(forest.bridges, np.int64) + begin)
        for parts, vertices in zip(cycles, rings(graph, forest, max_ring), strict=True):
            parts.append(vertices + low)
    return np.concatenate(bridges), [np.concatenate(vertices) for vertices in cycles]


def _batches(graph_of: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of vertices of whole graphs, each with about `BATCH` vertices."""
    ends = np.flatnonzero(np.diff(graph_of, append=graph_of[-1:] + 1)) + 1
    out, low = [], 0
    for high in ends.tolist():
        if high - low >= BATCH or high == len(graph_of):
            out.append((low, high))
            low = high
    return out


def _bonds(
    pairs: np.ndarray, bridges: np.ndarray, labels: np.ndarray, edge_labels: np.ndarray | None, width: int
) -> np.ndarray:
    ends = np.sort(labels[pairs[:, bridges].T], axis=1)
    return _rows(ends, width, None if edge_labels is None else edge_labels[bridges])


def _canonical(cycles: np.ndarray) -> np.ndarray:
    """Each row [l] of labels as the first, in lexical order, of its l rotations and their reflections."""
    count, length = cycles.shape
    turns = (np.arange(length) + np.arange(length)[:, None]) % length
    views = cycles[:, np.concatenate([turns, turns[:, ::-1]])]
    leading = np.ones(views.shape[:2], bool)
    for place in range(length):
        column = np.where(leading, views[:, :, place], np.iinfo(np.int64).max)
        leading &= column == column.min(1, keepdims=True)
    result: np.ndarray = views[np.arange(count), leading.argmax(1)]
    return result


def _rows(labels: np.ndarray, width: int, edge: np.ndarray | None = None) -> np.ndarray:
    """Motifs as rows of integers: how many labels, the labels, zeros up to `width`, whether the edge has one, it."""
    out = np.zeros((len(labels), width + 3), np.int64)
    out[:, 0] = labels.shape[1]
    out[:, 1 : 1 + labels.shape[1]] = labels
    if edge is not None:
        out[:, -2], out[:, -1] = 1, edge
    return out


def _counted(owner: np.ndarray, rows: np.ndarray, graphs: int) -> Motifs:
    keys, which = np.unique(rows, axis=0, return_inverse=True)
    ones = np.ones(len(owner), np.int64)
    counts = sp.csr_array(sp.coo_array((ones, (owner, which.ravel())), shape=(graphs, len(keys))))
    counts.sum_duplicates()
    return Motifs(from_rows(keys), counts)


def from_rows(rows: np.ndarray) -> tuple[Motif, ...]:
    """The motifs that rows int64 [V, width] stand for (see `to_rows`)."""
    return tuple(Motif(tuple(row[1 : 1 + row[0]]), row[-1] if row[-2] else None) for row in rows.tolist())


def to_rows(keys: tuple[Motif, ...]) -> np.ndarray:
    """Motifs as int64 [V, width + 3]: number of labels, labels, zeros up to the longest, whether the edge has a label,
    and that label."""
    width = max((len(key.labels) for key in keys), default=2)
    rows = [
        (len(key.labels), *key.labels, *[0] * (width - len(key.labels)), key.edge is not None, key.edge or 0)
        for key in keys
    ]
    return np.array(rows, np.int64).reshape(len(keys), width + 3)


VERSION = "fedweave motifs 1"  # to be raised when `extract` finds other motifs, or the file changes


def cached(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None = None,
    edge_labels: np.ndarray | None = None,
    max_ring: int = 7,
    folder: Path | None = None,
) -> Motifs:
    """`motifs.extract` of these arguments, read from `folder` where they have been extracted before, else put there.

    folder: None is `motifs` in the folder of downloads (`datasets.lookup.cache`).

    Raises:
        DataError: the file of these graphs is damaged, or the folder cannot be used; what `extract` raises.
    """
    folder = cache() / "motifs" if folder is None else folder
    path = folder / f"{content_hash(edges, graph_of, labels, edge_labels, max_ring)}.npz"
    try:
        if path.exists():
            return read(path)
        motifs = extract(edges, graph_of, labels, edge_labels, max_ring)
        write(motifs, path)
    except OSError as error:
        raise DataError(
            f"motifs cannot be kept in {folder} ({error.strerror or error}); choose a folder that can be written, for "
            "instance with $FEDWEAVE_CACHE.",
            code="data.unwritable",
        ) from error
    return motifs


def content_hash(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None,
    edge_labels: np.ndarray | None,
    max_ring: int,
) -> str:
    """SHA-256 in hexadecimal of all that the motifs depend on."""
    out = hashlib.sha256(f"{VERSION}, rings up to {max_ring}".encode())
    for array in (edges, graph_of, labels, edge_labels):
        out.update(b"none" if array is None else f"{array.shape}".encode())
        if array is not None:
            out.update(np.asarray(array, "<i8").tobytes())
    return out.hexdigest()


def write(motifs: Motifs, path: Path) -> None:
    """Put motifs into the file `path`, as a whole or not at all."""
    counts = motifs.counts
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        done = Path(scratch, "done.npz")
        np.savez_compressed(
            done,
            keys=to_rows(motifs.keys),
            count=counts.data,
            motif=counts.indices,
            start=counts.indptr,
        )
        os.replace(done, path)


def read(path: Path) -> Motifs:
    """The motifs in a file that `write` wrote.

    Raises:
        DataError: it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = from_rows(file["keys"])
            parts = (file["count"], file["motif"], file["start"])
        counts = sp.csr_array(parts, shape=(len(parts[2]) - 1, len(keys)))
        counts.check_format()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it, and it will be made again.", code="data.damaged"
        ) from error
    return Motifs(keys, counts)


MOTIFS, HAVING = "motifs", "motifs of graphs"  # int64 [K], the same for the same motif at every client; CSR [K, e]
MOTIF_MEAN = "motif_mean"
_SHOWN = 8  # motifs of each agent, for readers
Ring: TypeAlias = Annotated[int, Field(ge=3, le=100)]  # vertices of the longest ring that is looked for


@dataclass(frozen=True)
class Vocabulary:
    """The motifs of a client: the bonds and rings of highest TF-IDF (FairGraphFL, appendix A.2).

    max_ring: number of vertices of the longest ring.
    keep:     share of its motifs that a client keeps, by highest TF-IDF.
    """

    max_ring: int = 7
    keep: float = 0.9

    def everywhere(self, data: Dataset, partition: Partition) -> list[Precomputed]:
        """The motifs of each client's training graphs, looked for in all graphs at once where clients have their edges.

        Raises:
            ConfigError: the examples are no small graphs. DataError: the cache cannot be used.
        """
        if any(part.edges is not None for part in partition.parts):
            return [self.alone(share) for share in shares(data, partition.parts)]
        whole = self.search(data)
        return [
            self.table(whole, part.examples, (part.masks & data.has_label[part.examples])[TRAIN])
            for part in partition.parts
        ]

    def alone(self, data: Dataset, folder: Path | None = None) -> Precomputed:
        """The motifs of a client's training graphs, from only these graphs."""
        return self.table(self.search(data, folder), np.arange(data.examples), np.asarray(data.public)[TRAIN])

    def tables(self, precomputed: Mapping[str, Precomputed]) -> dict[str, pa.Table]:
        """The most frequent motifs of each client's training graphs: client, motif, graphs."""
        rows = []
        for client, entry in precomputed.items():
            names = entry.words[MOTIFS]
            graphs = np.diff(entry.matrices[HAVING].indptr)[: len(names)]
            rows += [(client, names[k], int(graphs[k])) for k in np.argsort(-graphs, kind="stable")[:_SHOWN]]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return {MOTIFS: pa.table(dict(zip(("client", "motif", "graphs"), columns, strict=True)))}

    def search(self, data: Dataset, folder: Path | None = None) -> Motifs:
        """The motifs of all small graphs of `data`; read from `folder`, by default the cache, if they were searched
        before."""
        if data.graph_of is None:
            raise ConfigError(
                f"motifs are looked for in small graphs, but the examples of {data.name} are {data.example}s; choose "
                "data such as 'proteins', or a part without motifs.",
                code="config.small-graphs",
            )
        path = None if folder is None else folder / MOTIFS
        return cached(data.edges, data.graph_of, data.node_labels, data.edge_labels, self.max_ring, path)

    def table(self, motifs: Motifs, graphs: np.ndarray, train: np.ndarray) -> Precomputed:
        """The motifs that one client keeps, counted over only its training graphs.

        graphs: int64 [e], the rows of its examples in `motifs.counts`. train: bool [e].
        """
        counts = sp.csr_array(motifs.counts[graphs[train]])
        index = vocabulary(counts, self.keep)
        having = sp.coo_array(counts[:, index].T > 0)
        rows, columns = having.coords
        spread = (np.ones(len(rows), np.float32), (rows, np.flatnonzero(train)[columns]))
        keys = [motifs.keys[k] for k in index]
        which = sp.csr_matrix(spread, shape=(len(index), len(graphs)))
        along, words = {MOTIFS: MOTIFS, HAVING: MOTIFS}, {MOTIFS: tuple(map(str, keys))}
        return Precomputed({MOTIFS: numbers(keys)}, {HAVING: which}, along, words)


@register_matrix(MOTIF_MEAN)
def motif_mean(edges: EdgeList) -> sp.csr_matrix:
    """[K, e]: the mean over the examples that have each motif, 0 where none does."""
    having = lookup_precomputed(edges.extra.matrices, HAVING).astype(
        np.float32 if edges.weight is None else edges.weight.dtype
    )
    return mean(sp.csr_matrix((having.data, having.indices, having.indptr), shape=(having.shape[0], edges.examples)))


def numbers(keys: Sequence[Motif]) -> np.ndarray:
    """int64 [k]: a hash of each motif, the same at every client."""
    return np.array([random.word(str(key)) for key in keys], np.int64)


def tf_idf(counts: sp.csr_array) -> np.ndarray:
    """float64 [V]: T_k = C_k (log((1 + n) / (1 + n_k)) + 1) of an agent's n graphs; 0 for motifs that none has.

    counts: int64 [n, V], how often each graph has each motif. n_k is how many graphs have motif k, and C_k the mean
    of the counts over these (Eqs. 16 and 17). Eq. 16 as printed has the 1 outside the product, which only adds 1 - C_k.
    """
    graphs = counts.shape[0]
    having = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])
    mean = counts.sum(axis=0) / np.maximum(having, 1)
    result: np.ndarray = mean * (np.log((1 + graphs) / (1 + having)) + 1)
    return result


def vocabulary(counts: sp.csr_array, keep: float = 0.9) -> np.ndarray:
    """int64, ascending: the floor(keep V) columns of highest `tf_idf` of the V that the agent's graphs have at all.

    Among equal values the lower column comes first.

    Raises:
        UserError: keep is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; it is the share of motifs to keep, above 0 and at most 1.", code="user.keep")
    scores = tf_idf(counts)
    have = np.flatnonzero(scores)
    size = math.floor(Fraction(str(keep)) * len(have))  # as written: .29 of 100 is 29, though the float is below
    return np.sort(have[np.argsort(-scores[have], kind="stable")[:size]])
