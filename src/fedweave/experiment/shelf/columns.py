"""The columns that a member's tools read of each of its examples: its own, and what its graph says in numbers.

A table program knows no graph, but a member can put the neighbors of a row into the row. Every set of columns has a
name, by which results say which one was best.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import is_visible
from fedweave.core.graph import SPLITS, TEST
from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset, split_numbers
from fedweave.datasets.features import compact, one_hot
from fedweave.datasets.fingerprints import descriptors, morgan_counts

Columns: TypeAlias = dict[str, Matrix]  # {name of a set of columns: float32 [e, d]}
OWN = "own columns"
NEIGHBORS = "own and neighbors' columns"
ENDS = "which nodes an edge joins"
GRAPHS = "sums and means of each graph's columns"
FINGERPRINTS = "fingerprints"
DESCRIPTORS = "fingerprints and descriptors"
MAX_KINDS = 16  # kinds of edges that are counted at each node; the same for all members, who may not have all


def columns_of(data: Dataset, with_descriptors: bool = True) -> Columns:
    """The sets of columns of a member's examples: of nodes and edges `OWN` and `NEIGHBORS`, of edges between nodes
    without features, such as ratings, `ENDS`, of small graphs `GRAPHS` or, of molecules, `FINGERPRINTS` and
    `DESCRIPTORS`. {} where there is nothing to read.

    data: the member's share, with `public` as its split. with_descriptors: whether RDKit's descriptors are computed,
    which takes milliseconds for each molecule.
    """
    if data.smiles:
        fingerprints = morgan_counts(data.smiles)
        if not with_descriptors:
            return {FINGERPRINTS: fingerprints}
        return {FINGERPRINTS: fingerprints, DESCRIPTORS: beside(fingerprints, descriptors(data.smiles))}
    if data.example == "graph":
        return {GRAPHS: _columns_of_graphs(data)}
    x = example_columns(data)
    if data.example == "edge" and _names_nodes(data.x):
        return {ENDS: x}  # a regression on them has a bias for each node; neighbors' names would say little more
    result = {OWN: x} if x.shape[1] else {}
    return result | {NEIGHBORS: _by_split(data, lambda edges: _with_neighbors(data, x, edges))}


def _names_nodes(x: Matrix) -> bool:
    """Whether every node has a column of its own and nothing else (`datasets.triples.with_node_columns`)."""
    if not isinstance(x, sp.csr_matrix) or x.nnz != x.shape[0]:
        return False
    return bool((x.data == 1).all() and len(np.unique(x.indices)) == x.nnz)


def example_columns(data: Dataset) -> Matrix:
    """The columns [e, d] of a node; or of an edge, with those of its source and its target."""
    if data.edge_attrs is None or not data.edge_attrs.examples:
        return data.x
    source, target = data.edge_attrs.ends
    of_edges = [] if data.edge_attrs.features is None else [data.edge_attrs.features]
    if data.edge_attrs.weight is not None:
        of_edges.append(data.edge_attrs.weight[:, None])
    return beside(*of_edges, data.x[source], data.x[target])


def join_rows(sets: Sequence[Columns]) -> Columns:
    """The columns of several members, one below the other."""
    joined = Columns()
    for name in sets[0]:
        matrices = [columns[name] for columns in sets]
        sparse = any(map(sp.issparse, matrices))
        joined[name] = sp.vstack(matrices, format="csr") if sparse else np.concatenate(matrices)
    return joined


def beside(*matrices: Matrix) -> Matrix:
    """Matrices [e, …] next to each other."""
    return sp.hstack(matrices, format="csr") if any(map(sp.issparse, matrices)) else np.concatenate(matrices, 1)


def _by_split(data: Dataset, columns_by: Callable[[np.ndarray | None], Matrix]) -> Matrix:
    """The columns of all examples by the edges that messages for their split go along, as models get them.

    columns_by: of all examples by the edges bool [M]; None for all edges.
    """
    attributes = data.edge_attrs
    if attributes is None or attributes.split_times is None or attributes.time is None:
        return columns_by(None)
    result = columns_by(None)  # of tests, and of what is in no split
    parts = list[Matrix]()
    split_of = split_numbers(np.asarray(data.public))  # [e]
    split_of = np.where(split_of < 0, TEST, split_of)
    for split in range(len(SPLITS)):
        columns = result if split == TEST else columns_by(is_visible(attributes, split))
        parts.append(sp.diags((split_of == split).astype(np.float32)) @ columns)
    total = parts[0] + parts[1] + parts[2]  # each row is of one split
    return sp.csr_matrix(total) if sp.issparse(total) else np.asarray(total, np.float32)


def _with_neighbors(data: Dataset, x: Matrix, visible: np.ndarray | None) -> Matrix:
    """`x` [e, d], and beside it what `_neighbor_columns` says of the node, or of both ends of the edge."""
    of_nodes = _neighbor_columns(data, visible)
    if data.example != "edge" or data.edge_attrs is None:
        return beside(x, of_nodes)
    source, target = data.edge_attrs.ends
    return beside(x, of_nodes[source], of_nodes[target])


def _neighbor_columns(data: Dataset, visible: np.ndarray | None) -> Matrix:
    """[n, …], for each direction: the mean of the neighbors' columns, log(1 + degree), and the sums of the attributes
    of the edges at the node.

    visible: bool [M], the edges that count; None for all.
    """
    ends, of_edges, directed = _edges(data, visible)
    columns = list[Matrix]()
    for at, other in ((ends[1], ends[0]), (ends[0], ends[1])) if directed else ((ends[1], ends[0]),):
        edges = np.arange(len(at))
        ones = np.ones(len(at), np.float32)
        incidence = sp.csr_matrix((ones, (at, edges)), shape=(data.nodes, len(at)))  # [n, M]
        adjacency = sp.csr_matrix((ones, (at, other)), shape=(data.nodes, data.nodes))
        degree = np.bincount(at, minlength=data.nodes).astype(np.float32)  # [n]
        mean = sp.diags(1 / degree.clip(1)) @ adjacency @ data.x
        columns += [mean.astype(np.float32), np.log1p(degree)[:, None]]
        if of_edges.shape[1]:
            columns.append(np.asarray((incidence @ of_edges).astype(np.float32)))
    return beside(*columns)


def _edges(data: Dataset, visible: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, bool]:
    """The ends int64 [2, M] of the edges, their attributes [M, k], and whether these have a direction; edges without
    one are listed both ways."""
    attributes = data.edge_attrs
    if attributes is None:
        of_edges = np.empty((data.edges.shape[1], 0), np.float32)
        kinds = data.edge_labels
        if kinds is not None and kinds.max(initial=-1) < MAX_KINDS:
            of_edges = one_hot(kinds, MAX_KINDS).toarray()
        return data.edges, of_edges, False
    if visible is not None:
        attributes = attributes.select(visible)
    of_edges = np.empty((attributes.total, 0), np.float32) if attributes.features is None else attributes.features
    if attributes.weight is not None:
        of_edges = np.concatenate([of_edges, attributes.weight[:, None]], 1)
    if attributes.directed:
        return attributes.ends, of_edges, True
    back = attributes.ends[::-1]
    return np.concatenate([attributes.ends, back], 1), np.concatenate([of_edges, of_edges]), False


def _columns_of_graphs(data: Dataset) -> Matrix:
    """[graphs, …]: sums and means of the columns of each graph's nodes and edges, and how many nodes and edges it
    has."""
    if data.graph_of is None:
        raise ValueError(f"the examples of {data.name} are not small graphs")
    of_nodes = compact(data.x)
    ends, of_edges, _ = _edges(data, None)
    columns = list[Matrix]()
    for graph_of, matrix in ((data.graph_of, of_nodes), (data.graph_of[ends[0]], of_edges)):
        ones, rows = np.ones(len(graph_of), np.float32), np.arange(len(graph_of))
        members = sp.csr_matrix((ones, (graph_of, rows)), shape=(data.examples, len(graph_of)))
        size = np.asarray(members.sum(1)).ravel()  # [graphs]
        sums = members @ matrix
        columns += [sums, sp.diags(1 / size.clip(1)) @ sums, size[:, None]]
    return beside(*(part.astype(np.float32) for part in columns))
