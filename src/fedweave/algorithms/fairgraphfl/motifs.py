"""The motifs of small graphs with labeled vertices: bonds and rings (FairGraphFL, appendix A.2, definitions 4 and 5; Yu
and Gao 2022). Motifs of graphs that were searched before are in files."""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.algorithms.fairgraphfl.rings import adjacency, rings, spanning_forest
from fedweave.datasets.lookup import cache
from fedweave.errors import DataError, UserError

BATCH = 512  # vertices of small graphs searched together, which saves most of the time
VERSION = "fedweave motifs 1"  # to be raised when `extract` finds other motifs, or the file changes


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
    edge_labels: int64 [E], equal in both directions, or None.
    """
    if not 3 <= max_ring <= 100:
        raise UserError(
            f"max_ring is {max_ring}; a ring has at least 3 vertices, and at most 100 are looked for.", code="user.ring"
        )
    pairs, edge_labels = undirected_pairs(edges, graph_of, edge_labels)
    if labels is None:
        labels = np.bincount(pairs.ravel(), minlength=len(graph_of))
    elif len(labels) != len(graph_of):
        raise DataError(f"{len(labels)} labels for {len(graph_of)} vertices; give one each.")

    # 1. Search whole graphs in batches of about BATCH vertices.
    graphs = int(graph_of[-1]) + 1 if len(graph_of) else 0
    lengths = range(3, max_ring + 1)
    bridges = [np.empty(0, np.int64)]
    cycles = [[np.empty((0, length), np.int64)] for length in lengths]
    low = 0
    for high in (np.flatnonzero(np.diff(graph_of, append=graphs)) + 1).tolist():  # where each graph ends
        if high - low < BATCH and high < len(graph_of):
            continue
        begin, end = np.searchsorted(pairs[0], [low, high])
        graph = adjacency(pairs[:, begin:end] - low, high - low)
        forest = spanning_forest(graph)
        bridges.append(np.array(forest.bridges, np.int64) + begin)
        for of_length, vertices in zip(cycles, rings(graph, forest, max_ring), strict=True):
            of_length.append(vertices + low)
        low = high

    # 2. The motif of each bond and ring as a row of integers: how many labels, the labels, zeros, whether its edge has
    #    a label, that label.
    bonds = np.concatenate(bridges)
    bond_rows = np.zeros((len(bonds), max_ring + 3), np.int64)
    bond_rows[:, 0] = 2
    bond_rows[:, 1:3] = np.sort(labels[pairs[:, bonds].T], axis=1)
    if edge_labels is not None:
        bond_rows[:, -2], bond_rows[:, -1] = 1, edge_labels[bonds]
    owner, rows = [graph_of[pairs[0, bonds]]], [bond_rows]
    for length, of_length in zip(lengths, cycles, strict=True):
        vertices = np.concatenate(of_length)  # [c, length]
        ring_rows = np.zeros((len(vertices), max_ring + 3), np.int64)
        ring_rows[:, 0] = length
        ring_rows[:, 1 : 1 + length] = canonical_order(labels[vertices])
        owner.append(graph_of[vertices[:, 0]])
        rows.append(ring_rows)

    # 3. Count them.
    keys, which = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    owners = np.concatenate(owner)
    ones = np.ones(len(owners), np.int64)
    counts = sp.csr_array(sp.coo_array((ones, (owners, which.ravel())), shape=(graphs, len(keys))))
    counts.sum_duplicates()
    return Motifs(motifs_of_rows(keys), counts)


def undirected_pairs(
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
    different = np.flatnonzero(proper_labels != proper_labels[first][which])
    if len(different):
        u, v = edges[:, proper[different[0]]]
        raise DataError(f"the edge {u} - {v} has two labels; give both directions the same one.")
    return pairs, proper_labels[first]


def canonical_order(cycles: np.ndarray) -> np.ndarray:
    """Each row [l] of labels as the first, in lexical order, of its l rotations and their reflections."""
    count, length = cycles.shape
    turns = (np.arange(length) + np.arange(length)[:, None]) % length
    views = cycles[:, np.concatenate([turns, turns[:, ::-1]])]  # [c, 2 l, l]
    leading = np.ones(views.shape[:2], bool)
    for place in range(length):
        column = np.where(leading, views[:, :, place], np.iinfo(np.int64).max)
        leading &= column == column.min(1, keepdims=True)
    result: np.ndarray = views[np.arange(count), leading.argmax(1)]
    return result


def motifs_of_rows(rows: np.ndarray) -> tuple[Motif, ...]:
    """The motifs that rows int64 [V, width] stand for: number of labels, labels, zeros, whether the edge has a label,
    and that label."""
    motifs = []
    for row in rows.tolist():
        labels, has_label, label = row[1 : 1 + row[0]], row[-2], row[-1]
        motifs.append(Motif(tuple(labels), label if has_label else None))
    return tuple(motifs)


def extract_once(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None = None,
    edge_labels: np.ndarray | None = None,
    max_ring: int = 7,
    folder: Path | None = None,
) -> Motifs:
    """`extract` of these arguments, read from `folder` where they have been extracted before, else put there.

    folder: None is `motifs` in the folder of downloads (`datasets.lookup.cache`).
    """
    content = hashlib.sha256(f"{VERSION}, rings up to {max_ring}".encode())
    for array in (edges, graph_of, labels, edge_labels):
        if array is None:
            content.update(b"none")
        else:
            content.update(f"{array.shape}".encode())
            content.update(np.asarray(array, "<i8").tobytes())
    folder = cache() / "motifs" if folder is None else folder
    path = folder / f"{content.hexdigest()}.npz"
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


def write(motifs: Motifs, path: Path) -> None:
    """Put motifs into the file `path`, as a whole or not at all."""
    width = max((len(key.labels) for key in motifs.keys), default=2)
    keys = np.zeros((len(motifs.keys), width + 3), np.int64)  # as `motifs_of_rows` reads them
    for row, key in zip(keys, motifs.keys, strict=True):
        row[0], row[1 : 1 + len(key.labels)] = len(key.labels), key.labels
        row[-2], row[-1] = key.edge is not None, key.edge or 0
    counts = motifs.counts
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        whole = Path(scratch, "whole.npz")
        np.savez_compressed(whole, keys=keys, count=counts.data, motif=counts.indices, start=counts.indptr)
        os.replace(whole, path)


def read(path: Path) -> Motifs:
    """The motifs in a file that `write` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = motifs_of_rows(file["keys"])
            parts = (file["count"], file["motif"], file["start"])
        counts = sp.csr_array(parts, shape=(len(parts[2]) - 1, len(keys)))
        counts.check_format()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it, and it will be made again.", code="data.damaged"
        ) from error
    return Motifs(keys, counts)
