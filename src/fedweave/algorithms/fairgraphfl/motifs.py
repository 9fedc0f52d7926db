"""Motifs of labelled graphs: bonds and rings (FairGraphFL, appendix A.2, definitions 4 and 5; Yu and Gao 2022)."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.algorithms.fairgraphfl.rings import adjacency, rings, spanning_forest
from fedweave.errors import DataError, UserError

BATCH = 512  # vertices of small graphs that are searched together, which saves most of the time they take


class Motif(NamedTuple):
    """What a motif is known by, the same at every agent: tuples of plain integers, equal where the motifs are.

    labels: of its vertices. Two make a bond, in ascending order; more make a ring, in that rotation and reflection of
            their cyclic order that comes first.
    edge:   the label of a bond's edge, where edges have labels.
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

    A bond is a bridge, an edge on no cycle, whatever the basis. A ring is a cycle of at most `max_ring` vertices in a
    minimum cycle basis: the one that the order of the vertices leads to, where a graph has several.

    edges:       int64 [2, E] vertices, undirected: a direction may be missing, repetitions and loops are not looked at.
    graph_of:    int64 [n], the graph of each vertex, ascending from 0.
    labels:      int64 [n]; None is the degree (the number of distinct neighbours).
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
    for found in cycles:
        owner.append(graph_of[found[:, 0]])
        keys.append(_rows(_canonical(labels[found]), max_ring))
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
    own = edge_labels[proper]
    unlike = np.flatnonzero(own != own[first][which])
    if len(unlike):
        u, v = edges[:, proper[unlike[0]]]
        raise DataError(f"the edge {u} - {v} has two labels; give both directions the same one.")
    return pairs, own[first]


def _search(pairs: np.ndarray, graph_of: np.ndarray, max_ring: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Numbers of the edges that are bridges, and the rings' vertices by length, each int64 [c, length]."""
    bridges = [np.empty(0, np.int64)]
    cycles = [[np.empty((0, length), np.int64)] for length in range(3, max_ring + 1)]
    for low, high in _batches(graph_of):
        begin, end = np.searchsorted(pairs[0], [low, high])
        graph = adjacency(pairs[:, begin:end] - low, high - low)
        forest = spanning_forest(graph)
        bridges.append(np.array(forest.bridges, np.int64) + begin)
        for all_found, found in zip(cycles, rings(graph, forest, max_ring), strict=True):
            all_found.append(found + low)
    return np.concatenate(bridges), [np.concatenate(found) for found in cycles]


def _batches(graph_of: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of vertices that hold whole graphs, as many as there are in about `BATCH` vertices."""
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
    """Each row [l] of labels in that of its l rotations and their reflections that comes first."""
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
