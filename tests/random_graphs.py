"""Small random graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph, make_graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.random import generator


def random_graph(
    nodes: int,
    features: int = 6,
    *,
    classes: int = 3,
    sparse: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Graph:
    """About four neighbors a node, three features a node; half of the nodes train, a quarter each val and test."""
    rng = generator(seed, f"test graph {nodes}")
    edges = rng.integers(0, nodes, (2, 2 * nodes))
    edges = edges[:, edges[0] != edges[1]]
    edges = np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1)
    x = np.zeros((nodes, features))
    x[np.arange(nodes)[:, None], rng.integers(0, features, (nodes, 3))] = rng.random((nodes, 3))
    place = np.arange(nodes) % 4
    masks = np.stack([place < 2, place == 2, place == 3])
    data = sp.csr_matrix(x) if sparse else x
    return make_graph(data, edges, rng.integers(0, classes, nodes), masks, dtype=dtype)


def padded_alike(graphs: Sequence[Graph]) -> list[Graph]:
    """The same graphs, all padded to the rows of the largest, so that they can be stacked."""
    rows, examples = max(graph.nodes for graph in graphs), max(len(graph.y) for graph in graphs)
    return [
        make_graph(**graph_arrays(graph)._asdict(), dtype=graph.x.dtype, rows=rows, examples=examples)
        for graph in graphs
    ]


def dims_of(stacked: Graph) -> Graph:
    """What `vmap` divides of stacked graphs: every tensor along its first axis."""
    leaves, spec = pytree.tree_flatten(stacked)
    return pytree.tree_unflatten([0 if isinstance(leaf, torch.Tensor) else None for leaf in leaves], spec)


def replace_fields(value: Any, /, **fields: Any) -> Any:
    """A graph, or another named tuple, with other values of some fields."""
    return value._replace(**fields)
