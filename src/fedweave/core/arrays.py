"""A client's graph as plain arrays of its real nodes, to compute with, change and store; and the graph rebuilt from
such arrays."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.carried import Carried
from fedweave.core.graph import Graph, make_graph
from fedweave.core.sizes import fits, size_class
from fedweave.core.tree import Tree, to
from fedweave.ops.sparse import Sparse

DTYPES = {"float32": torch.float32, "float64": torch.float64}  # of weights and features


class GraphArrays(NamedTuple):
    """What `make_graph` takes, of n nodes and e examples.

    x:     float [n, d], NumPy or SciPy CSR. edges: int64 [2, E], both directions. y: int64 [e], -1 unlabelled.
    masks: bool [3, e], rows TRAIN, VAL, TEST. sens: int64 [e], -1 unknown, or None. graph_of: int64 [n], the small
           graph of each node, rising from 0; None where nodes are the examples. carried: the same edges with what they
           carry; None where they carry nothing, as those that are made of other edges do.
    """

    x: "np.ndarray | sp.csr_matrix"
    edges: np.ndarray
    y: np.ndarray
    masks: np.ndarray
    sens: np.ndarray | None = None
    graph_of: np.ndarray | None = None
    carried: Carried | None = None


def graph_arrays(graph: Graph) -> GraphArrays:
    """Copies of one client's arrays on the host, without padding."""
    graph = graph.to("cpu")
    n = int(graph.real.sum())
    graph_of = None if graph.graph_of is None else graph.graph_of[:n].numpy().copy()
    own = graph.own_edges.members[0]
    e = n if graph_of is None else int(graph_of.max(initial=-1)) + 1
    e = own.carried.total if own.carried is not None and own.carried.examples else e
    x = graph.x.blocks.members[0].scipy() if isinstance(graph.x, Sparse) else graph.x.numpy()
    y, masks = graph.y[:e].numpy().copy(), graph.masks[:, :e].numpy().copy()
    sens = None if graph.sens is None else graph.sens[:e].numpy().copy()
    return GraphArrays(x[:n].copy(), own.index.copy(), y, masks, sens, graph_of, own.carried)


def dense(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """The same matrix [n, d], dense."""
    return x if isinstance(x, np.ndarray) else x.toarray()


def graph_like(graph: Graph, arrays: GraphArrays) -> Graph:
    """The graph of `arrays`, with the dtype, feature storage and, as long as it fits, padding of `graph`
    (`core.sizes.fits`), and where that lies. The order of edges does not matter."""
    x, edges, y, masks, sens, graph_of, carried = arrays
    x = sp.csr_matrix(x) if isinstance(graph.x, Sparse) else np.ascontiguousarray(dense(x))
    y, masks = np.ascontiguousarray(y), np.ascontiguousarray(masks)
    sens, graph_of = (part if part is None else np.ascontiguousarray(part) for part in (sens, graph_of))
    rows, examples = (
        now if fits(now, count) else size_class(count)
        for now, count in ((graph.nodes, x.shape[0]), (len(graph.y), len(y)))
    )
    edges = edges[:, np.lexsort(edges[::-1])]
    made = make_graph(x, edges, y, masks, sens, graph.x.dtype, rows, graph_of, examples, carried=carried)
    return made.to(graph.device)


def graph_tree(graph: Graph) -> Tree:
    """One client's graph as a tree that `encode` takes: "rows" and "examples", with padding; "x", its features, as
    "dense" or as "values", "columns", "starts" and "width"; "edges", "y" and "masks"; and, where there are any, "sens",
    "graph_of" and what edges carry, "carried". Undone by `tree_graph`."""
    x, *others, carried = graph_arrays(graph)
    if isinstance(x, np.ndarray):
        parts = {"dense": x}
    else:
        parts = {"values": x.data, "columns": x.indices, "starts": x.indptr, "width": np.array(x.shape[1])}
    named = dict(zip(GraphArrays._fields[1:-1], others, strict=True))
    sizes = {"rows": graph.nodes, "examples": len(graph.y)}
    tree = {**sizes, "x": {name: torch.from_numpy(part) for name, part in parts.items()}}
    if carried is not None:
        tree["carried"] = {name: torch.from_numpy(part) for name, part in carried.arrays().items()}
    return tree | {name: torch.from_numpy(part) for name, part in named.items() if part is not None}


def tree_graph(tree: Tree, features: int = 0) -> Graph:
    """Undo `graph_tree`, on the host; a tree that says no width, as an earlier version's, is of so many `features`."""
    tree = to(tree, "cpu")
    parts: Tree = tree["x"]
    values = parts["dense" if "dense" in parts else "values"]
    x = values.numpy()
    if "dense" not in parts:
        columns, starts = parts["columns"].numpy(), parts["starts"].numpy()
        x = sp.csr_matrix((x, columns, starts), shape=(len(starts) - 1, int(parts.get("width", features))))
    edges, y, masks = (tree[name].numpy() for name in ("edges", "y", "masks"))
    sens, graph_of = (tree[name].numpy() if name in tree else None for name in ("sens", "graph_of"))
    held = {name: part.numpy() for name, part in tree.get("carried", {}).items()}
    carried = Carried.of_arrays(held) if held else None
    sizes = tree["rows"], graph_of, tree["examples"]
    return make_graph(x, edges, y, masks, sens, values.dtype, *sizes, carried=carried)
