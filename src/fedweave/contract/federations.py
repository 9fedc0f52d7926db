"""Small federations for conformance tests: five clients of different sizes, with the data that an algorithm needs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.contract import small_graphs
from fedweave.core.algorithm import Capabilities, Engine
from fedweave.core.graph import Graph, make_graph
from fedweave.core.operators import Precomputed
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Part, Partition
from fedweave.partition.precompute import Precompute, everywhere

FEATURES, CLASSES = 60, 3
SIZES = (21, 40, 33, 57, 12)  # nodes
LIST = 128  # rows to which all clients pad lists
SHARED = 40  # nodes of every client of a vertical federation
PLAIN = Capabilities()


E = TypeVar("E", bound=Engine)
Arrays = tuple[np.ndarray | sp.csr_matrix, ...]


def arrays(nodes: int, seed: int, labels: np.ndarray | None = None) -> Arrays:
    """A random connected graph with sparse features that depend on the classes; `labels` [nodes] sets the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, nodes) if labels is None else labels
    path = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    extra = rng.integers(0, nodes, (2, 2 * nodes))
    pairs = np.concatenate([path, extra[:, extra[0] != extra[1]]], axis=1)
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    odds = 0.03 + 0.15 * (np.arange(FEATURES) % CLASSES == y[:, None])
    x = sp.csr_matrix((rng.random((nodes, FEATURES)) < odds).astype(np.float32))
    fate = rng.permutation(nodes)
    masks = np.stack([fate < nodes // 3, (fate >= nodes // 3) & (fate < nodes // 2), fate >= nodes // 2])
    return x, edges, y, masks


def people(nodes: int, seed: int) -> Arrays:
    """`arrays` with two classes and two groups; a few groups are unknown, and one group is in class 0 more often."""
    x, edges, y, masks = arrays(nodes, seed)
    draws = np.random.default_rng(seed).random((2, nodes))
    sensitive = np.where(draws[0] < 0.05, -1, draws[1] < 0.3 + 0.4 * (y == 0)).astype(int)
    return x, edges, (y > 0).astype(int), masks, sensitive


def graphs(
    dtype: torch.dtype = torch.float32,
    changed: int | None = None,
    needs: Capabilities = PLAIN,
    halved: bool = False,
    finders: Sequence[Precompute] = (),
) -> dict[str, Graph]:
    """{client: graph} with the data that an algorithm `needs`.

    A vertical algorithm has the same nodes, labels and masks at all clients. Others may need two classes and a
    sensitive attribute, small graphs, or the results of `finders`. changed: number of a client with other data. halved:
    whether a client's nodes use only half of the features.
    """
    if needs.graph_level:
        return small_graphs.graphs(dtype, changed, precompute(small_graphs.client_data(changed), finders))
    if needs.vertical:
        _, _, y, masks = arrays(SHARED, 0)
        client_arrays: list[Arrays] = []
        for i in range(len(SIZES)):
            x, edges, *_ = arrays(SHARED, i + 100 * (i == changed), y)
            client_arrays.append((x, edges, y, masks))
    else:
        draw = people if needs.sensitive else arrays
        client_arrays = [draw(nodes + 7 * (i == changed), i + 100 * (i == changed)) for i, nodes in enumerate(SIZES)]
    names = ("x", "edges", "y", "masks", "sensitive")
    records: list[Record] = [dict(zip(names, part, strict=False)) for part in client_arrays]
    precomputed = precompute(records, finders)
    if halved:
        records = [part | {"x": _half(part["x"], i)} for i, part in enumerate(records)]
    return {f"site-{i}": make_graph(**part, dtype=dtype, extra=precomputed[i]) for i, part in enumerate(records)}


def precompute(clients: Sequence[Record], finders: Sequence[Precompute]) -> list[Precomputed]:
    """The results of `finders` on the clients' data. Unless graphs are small, some nodes have an edge to the next
    client."""
    small = "graph_of" in clients[0]
    nodes_of = "graph_of" if small else "y"
    numbers = _node_numbers([len(part[nodes_of]) for part in clients], small)

    # 1. all clients' data as one data set
    links = [number[part["edges"]] for part, number in zip(clients, numbers, strict=True)]
    if not small:
        for near, far in pairwise(numbers):
            pairs = np.array([[near[node], far[node % 10]] for node in range(0, 12, 3)]).T
            links += [pairs, pairs[::-1]]
    edges, order = np.concatenate(links, 1), np.concatenate(numbers).argsort()
    x = sp.csr_matrix(sp.vstack([part["x"] for part in clients])[order])
    y = np.concatenate([part["y"] for part in clients])
    graph_of = None
    examples = numbers
    if small:
        counts = np.cumsum([0, *(len(part["y"]) for part in clients)])
        graph_of = np.concatenate([part["graph_of"] + first for part, first in zip(clients, counts, strict=False)])
        examples = [np.arange(*span) for span in pairwise(counts)]
    else:
        y = y[order]
    kinds = np.asarray(x.argmax(1)).ravel() % 3
    data = Dataset("contract", x, edges[:, np.lexsort(edges[::-1])], y, 0, graph_of=graph_of, node_labels=kinds)

    # 2. its partition into the clients
    parts = [Part.of(data, rows, part["masks"]) for part, rows in zip(clients, examples, strict=True)]
    results = everywhere(finders, data, Partition(tuple(parts)))
    return [part.pad(dict.fromkeys(part.lists, LIST)) for part in results]


def _node_numbers(counts: Sequence[int], small: bool) -> list[np.ndarray]:
    """The numbers of each client's nodes, int64 [n]. Nodes beyond `SIZES`, which a changed client has, come last, so
    that no client's numbers depend on another client's data. With `small` graphs a client's numbers are consecutive."""
    regular = counts if small else [min(count, size) for count, size in zip(counts, SIZES, strict=True)]
    starts, beyond = np.cumsum([0, *regular]), sum(regular)
    numbers = []
    for count, size, start in zip(counts, regular, starts, strict=False):
        numbers.append(np.concatenate([np.arange(start, start + size), np.arange(beyond, beyond + count - size)]))
        beyond += count - size
    return numbers


def global_test(dtype: torch.dtype = torch.float32, needs: Capabilities = PLAIN) -> Graph:
    """A graph that no client holds; all of it is for testing."""
    if needs.graph_level:
        return small_graphs.global_test(dtype)
    x, edges, y, _, *sensitive = (people if needs.sensitive else arrays)(25, 999)
    masks = np.arange(3)[:, None] == np.full(25, 2)
    return make_graph(x, edges, y, masks, next(iter(sensitive), None), dtype)


def public(dtype: torch.dtype = torch.float32) -> Graph:
    """A sample that only the server holds."""
    x, edges, y, masks = arrays(30, 555)
    return make_graph(x, edges, y, np.zeros_like(masks), dtype=dtype)


def shape(needs: Capabilities = PLAIN) -> tuple[int, int]:
    """Numbers of features and classes of the data."""
    if needs.graph_level:
        return small_graphs.FEATURES, small_graphs.CLASSES
    return FEATURES, 2 if needs.sensitive else CLASSES


def federation(
    engine: Callable[..., E],
    dtype: torch.dtype = torch.float32,
    needs: Capabilities = PLAIN,
    finders: Sequence[Precompute] = (),
    **options: Any,
) -> E:
    """The clients of `graphs`, or `clients`, on an engine; the server holds a test set and, for nodes, a sample."""
    clients = options.pop("clients", None) or graphs(dtype, needs=needs, finders=finders)
    test = global_test(dtype, needs)
    defaults: Record = {"test": test, "held": {"validation": test}}
    if not needs.graph_level:
        defaults |= {"held": {"public": public(dtype), "validation": test}}
    return engine(clients, classes=shape(needs)[1], **(defaults | options))


def _half(x: sp.csr_matrix, which: int) -> sp.csr_matrix:
    """The features, half of them set to 0: some of every class, and different ones at neighboring clients."""
    half = sp.csr_matrix(x.multiply((np.arange(FEATURES) // CLASSES + which) % 2))
    half.eliminate_zeros()
    return half
