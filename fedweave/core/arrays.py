"""A client's graph as plain arrays of its real nodes, to compute with, to change and to store; and a graph made of such
arrays again."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.graph import Graph, make_graph
from fedweave.core.sizes import fits, size_class
from fedweave.core.tree import Tree
from fedweave.ops.sparse import Sparse


class GraphArrays(NamedTuple):
    """What `make_graph` takes, of n nodes.

    x:     float [n, d], NumPy or SciPy CSR. edges: int64 [2, E], both directions. y: int64 [n], -1 unlabelled.
    masks: bool [3, n], rows TRAIN, VAL, TEST. sens: int64 [n], -1 unknown, or None.
    """

    x: "np.ndarray | sp.csr_matrix"
    edges: np.ndarray
    y: np.ndarray
    masks: np.ndarray
    sens: np.ndarray | None = None


def graph_arrays(graph: Graph) -> GraphArrays:
    """Copies of one client's arrays, without padding."""
    n = int(graph.real.sum())
    x = graph.x.blocks.members[0].scipy() if isinstance(graph.x, Sparse) else graph.x.numpy()
    y, masks = graph.y[:n].numpy().copy(), graph.masks[:, :n].numpy().copy()
    sens = None if graph.sens is None else graph.sens[:n].numpy().copy()
    return GraphArrays(x[:n].copy(), graph.edges.members[0].index.copy(), y, masks, sens)


def graph_like(graph: Graph, arrays: GraphArrays) -> Graph:
    """The graph of `arrays`, with the dtype of `graph` and features stored alike, and padded alike while that fits
    (`core.sizes.fits`). The order of edges does not matter."""
    x, edges, y, masks, sens = arrays
    if isinstance(graph.x, Sparse):
        x = sp.csr_matrix(x)
    else:
        x = np.ascontiguousarray(x if isinstance(x, np.ndarray) else x.toarray())
    y, masks = np.ascontiguousarray(y), np.ascontiguousarray(masks)
    sens = None if sens is None else np.ascontiguousarray(sens)
    rows, n = len(graph.y), len(y)
    size = rows if fits(rows, n) else size_class(n)
    return make_graph(x, edges[:, np.lexsort(edges[::-1])], y, masks, sens, graph.x.dtype, size)


def graph_tree(graph: Graph) -> Tree:
    """One client's graph as a tree that `encode` takes; undone by `tree_graph`."""
    x, *others = graph_arrays(graph)
    parts = {"dense": x} if isinstance(x, np.ndarray) else {"values": x.data, "columns": x.indices, "starts": x.indptr}
    named = dict(zip(GraphArrays._fields[1:], others, strict=True))
    tree = {"rows": len(graph.y), "x": {name: torch.from_numpy(part) for name, part in parts.items()}}
    return tree | {name: torch.from_numpy(part) for name, part in named.items() if part is not None}


def tree_graph(tree: Tree, features: int) -> Graph:
    """Undo `graph_tree`, for a graph of so many features."""
    parts: Tree = tree["x"]
    values = parts["dense" if "dense" in parts else "values"]
    x = values.numpy()
    if "dense" not in parts:
        x = sp.csr_matrix((x, parts["columns"].numpy(), parts["starts"].numpy()), shape=(len(tree["y"]), features))
    edges, y, masks = (tree[name].numpy() for name in ("edges", "y", "masks"))
    sens = tree["sens"].numpy() if "sens" in tree else None
    return make_graph(x, edges, y, masks, sens, values.dtype, tree["rows"])
