"""Structure as columns of nodes: what a holder of data counts or computes on its own graph, and nothing else.

A mean over neighbors does not see how many they are, and no message passing tells a triangle from a path of equal
nodes. `with_places` appends columns of zeros when data is read, so that all that follows knows their names and number;
each holder fills them on its own graph (`filled`), once its other features are scaled. New data is filled likewise.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core import random
from fedweave.core.edge_attributes import is_visible
from fedweave.core.graph import TRAIN
from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset, Structure
from fedweave.datasets.features import compact
from fedweave.errors import ConfigError

DEGREE, PAGERANK, CLUSTERING, LAPLACIAN = "degree", "pagerank", "clustering", "laplacian"
PREFIX = "structure: "  # at the start of a column's name
MAX_VECTORS = 64  # of the Laplacian
DAMPING, ITERATIONS = 0.85, 100  # of PageRank (Page et al. 1999)
TRIVIAL = 1e-6  # eigenvalues up to here are those of whole components, 0
DENSE_UP_TO = 400  # nodes of a graph whose eigenvectors a dense solver finds
_ROWS = 4096  # of the product of an adjacency matrix with itself at once


class MessageEdges(NamedTuple):
    """int64 [m] each, the nodes that messages of training leave and reach; undirected edges are listed both ways.
    directed: whether edges lead only from source to target."""

    source: np.ndarray
    target: np.ndarray
    directed: bool


def check_kinds(kinds: tuple[str, ...]) -> None:
    """Raise a ConfigError for a kind of column that is not known, or listed twice."""
    first_words = [kind.partition(" ")[0] for kind in kinds]
    for kind, word in zip(kinds, first_words, strict=True):
        is_known = kind in (DEGREE, PAGERANK, CLUSTERING) or (word == LAPLACIAN and 0 < _vectors(kind) <= MAX_VECTORS)
        if not is_known:
            raise ConfigError(
                f'data.structure = {list(kinds)}: {kind!r} is not known. Choose of "{DEGREE}", "{PAGERANK}", '
                f'"{CLUSTERING}" and "{LAPLACIAN} 8", with 1 to {MAX_VECTORS} vectors.',
                code="config.value",
            )
        if first_words.count(word) > 1:
            message = f"data.structure = {list(kinds)}: {word!r} is listed twice. Leave one out."
            raise ConfigError(message, code="config.value")


def _vectors(kind: str) -> int:
    """K of "laplacian K"; 0 if it is not a whole number."""
    count = kind.removeprefix(LAPLACIAN).strip()
    return int(count) if count.isascii() and count.isdecimal() else 0


def names_of(kinds: tuple[str, ...], directed: bool) -> tuple[str, ...]:
    """The names of the columns of these kinds."""
    names = list[str]()
    for kind in kinds:
        if kind == DEGREE and directed:
            names += [f"{DEGREE} in", f"{DEGREE} out"]
        elif kind.startswith(LAPLACIAN):
            names += [f"{LAPLACIAN} {at + 1}" for at in range(_vectors(kind))]
        else:
            names.append(kind)
    return tuple(PREFIX + name for name in names)


def with_places(data: Dataset, kinds: tuple[str, ...], seed: int = 0) -> Dataset:
    """The data with columns of zeros on the right for what each holder computes on its graph.

    seed: of the random signs of eigenvectors.
    """
    check_kinds(kinds)
    if not kinds:
        return data
    names = names_of(kinds, data.edge_attrs is not None and data.edge_attrs.directed)
    of_graphs, first = data.graph_columns, data.features
    if of_graphs is not None:  # these stay the last
        first, of_graphs = of_graphs.first, of_graphs._replace(first=of_graphs.first + len(names))
    return replace(
        data,
        x=_with_columns(data.x, first, np.zeros((data.nodes, len(names)), np.float32), 0),
        columns=(*data.columns[:first], *names, *data.columns[first:]) if data.columns else (),
        structure=Structure(kinds, first, len(names), seed),
        graph_columns=of_graphs,
    )


def filled(data: Dataset) -> Dataset:
    """The data of one holder with the columns of its own graph's structure, where `data.structure` asks for them."""
    if data.structure is None:
        return data
    columns = list[np.ndarray]()
    messages = _messages(data)
    for kind in data.structure.kinds:
        if kind == DEGREE:
            columns += _log_degrees(messages, data.nodes)
        elif kind == PAGERANK:
            columns.append(_pagerank(messages, data.nodes))
        elif kind == CLUSTERING:
            columns.append(_clustering(_simple(messages, data.nodes)))
        else:
            columns += _eigenvectors(_simple(messages, data.nodes), _vectors(kind), data.structure.seed)
    values = np.stack(columns, 1).astype(np.float32)  # [n, k]
    return replace(data, x=_with_columns(data.x, data.structure.first, values, data.structure.width))


def _with_columns(x: Matrix, first: int, values: np.ndarray, count: int) -> Matrix:
    """x [n, d] with `values` [n, k] in the place of `count` columns from `first` on."""
    if isinstance(x, np.ndarray):
        return np.concatenate([x[:, :first], values, x[:, first + count :]], 1)
    parts = [x[:, :first], sp.csr_matrix(values), x[:, first + count :]]
    return compact(sp.csr_matrix(sp.hstack(parts, "csr", np.float32)))


def _messages(data: Dataset) -> MessageEdges:
    """The messages that training sees: none later than its end, and of links those to train on only."""
    attributes = data.edge_attrs
    if attributes is None:
        return MessageEdges(data.edges[0], data.edges[1], False)
    if data.links is not None and data.public is not None:
        attributes = attributes.select(data.public[TRAIN])
    attributes = attributes.select(is_visible(attributes, TRAIN))
    source, target = attributes.ends
    if attributes.directed:
        return MessageEdges(source, target, True)
    back = source != target  # a loop is one message
    return MessageEdges(np.append(source, target[back]), np.append(target, source[back]), False)


def _simple(messages: MessageEdges, nodes: int) -> sp.csr_matrix:
    """[n, n] of 0 and 1: which nodes an edge joins, in any direction, without loops."""
    joins = messages.source != messages.target
    source, target = messages.source[joins], messages.target[joins]
    ends = np.append(source, target), np.append(target, source)
    matrix = sp.csr_matrix((np.ones(len(ends[0])), ends), shape=(nodes, nodes))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def _log_degrees(messages: MessageEdges, nodes: int) -> list[np.ndarray]:
    """log(1 + d): of the messages that reach each node and, of directed edges, of those that leave it."""
    ends = (messages.target, messages.source) if messages.directed else (messages.target,)
    return [np.log1p(np.bincount(end, minlength=nodes)) for end in ends]


def _pagerank(messages: MessageEdges, nodes: int) -> np.ndarray:
    """float64 [n]: the logarithm of n times the PageRank, 0 on the average node. Who leads nowhere stays, so that what
    one component of the graph has depends on no other."""
    degree = np.bincount(messages.source, minlength=nodes)
    ends = messages.target, messages.source
    moves = sp.csr_matrix((1 / degree[messages.source], ends), shape=(nodes, nodes)) + sp.diags((degree == 0) * 1.0)
    rank = np.ones(nodes)
    for _ in range(ITERATIONS):
        rank = 1 - DAMPING + DAMPING * (moves @ rank)
    return np.asarray(np.log(rank))


def _clustering(adjacency: sp.csr_matrix) -> np.ndarray:
    """float64 [n]: which share of a node's pairs of neighbors is joined (Watts and Strogatz 1998); 0 below 2."""
    degree = np.diff(adjacency.indptr).astype(np.float64)
    twice = np.zeros(len(degree))  # twice the number of triangles
    for first in range(0, len(degree), _ROWS):
        rows = adjacency[first : first + _ROWS]
        twice[first : first + _ROWS] = np.asarray((rows @ adjacency).multiply(rows).sum(1)).ravel()
    pairs = degree * (degree - 1)
    share: np.ndarray = np.divide(twice, pairs, out=np.zeros(len(degree)), where=pairs > 0)
    return share


def _eigenvectors(adjacency: sp.csr_matrix, count: int, seed: int) -> list[np.ndarray]:
    """float64 [n] each: the eigenvectors of the normalized Laplacian with the `count` smallest eigenvalues above 0, of
    each component by itself, with a mean square of 1 and a random sign (Dwivedi et al. 2023, "Benchmarking graph neural
    networks"); 0 where a component has fewer."""
    nodes = adjacency.shape[0]
    vectors = np.zeros((nodes, count))
    components, owner = sp.csgraph.connected_components(adjacency, directed=False)
    order = np.argsort(owner, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(owner, minlength=components))[:-1]):
        if len(rows) > 1:
            values = _of_component(adjacency[rows][:, rows], min(count, len(rows) - 1))
            vectors[rows, : values.shape[1]] = values
    signs = random.generator(seed, f"signs of {nodes} nodes").choice([-1.0, 1.0], count)
    return list((vectors * signs).T)


def _of_component(adjacency: sp.csr_matrix, count: int) -> np.ndarray:
    """float64 [m, count]: `_eigenvectors` of a connected graph, where the sum of cubes, or else the first, is positive,
    so that the solver's sign does not matter."""
    nodes = adjacency.shape[0]
    scale = sp.diags(1 / np.sqrt(np.asarray(adjacency.sum(1)).ravel()))
    matrix = scale @ adjacency @ scale  # its largest eigenvalues are 1 less the Laplacian's smallest
    if nodes <= DENSE_UP_TO or count + 1 >= nodes // 2:
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        start = np.linspace(1, 2, nodes)  # of the solver, which would draw one
        values, vectors = sp.linalg.eigsh(matrix, count + 1, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    chosen = order[1 - values[order] > TRIVIAL][:count]
    vectors = vectors[:, chosen] * np.sqrt(nodes)
    skew = (vectors**3).sum(0)
    skew = np.where(np.abs(skew) > TRIVIAL * nodes, skew, vectors[0])
    return np.asarray(vectors * np.where(skew < 0, -1, 1))
