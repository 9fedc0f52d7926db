"""A client's graph as plain arrays of its real nodes, to compute with, change and store; and the graph rebuilt from
such arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import OF_LINKS, RELATION, Graph, make_graph
from fedweave.core.sizes import fits, size_class
from fedweave.core.tree import Tree, to
from fedweave.ops.sparse import Sparse

Matrix: TypeAlias = np.ndarray | sp.csr_matrix  # features, one row for each node
DTYPES = {"float32": torch.float32, "float64": torch.float64}  # of weights and features


class GraphArrays(NamedTuple):
    """The arrays that `make_graph` takes, with n nodes and e examples.

    x:     float [n, d], NumPy or SciPy CSR. edges: int64 [2, E], both directions. y: int64 [e], -1 unlabeled.
    masks: bool [3, e], rows TRAIN, VAL, TEST. sensitive: int64 [e], -1 unknown, or None. graph_of: int64 [n], the small
           graph of each node, rising from 0; None where nodes are the examples. edge_attrs: the same edges with their
           attributes; None where they have none, as edges that are derived from other edges.
    scale: float64 [3, t], see `Graph`, or None. pairs: int64 [3, e], and ranks: int64 [2, e], likewise.
    lists: the entries of `Graph.extra` that belong to links, or None.
    """

    x: Matrix
    edges: np.ndarray
    y: np.ndarray
    masks: np.ndarray
    sensitive: np.ndarray | None = None
    graph_of: np.ndarray | None = None
    edge_attrs: EdgeAttributes | None = None
    scale: np.ndarray | None = None
    pairs: np.ndarray | None = None
    ranks: np.ndarray | None = None
    lists: Mapping[str, np.ndarray] | None = None


def graph_arrays(graph: Graph) -> GraphArrays:
    """Copies of one client's arrays on the host, without padding."""
    graph = graph.to("cpu")
    edge_list = graph.whole_edges.members[0]
    edge_attrs = edge_list.edge_attrs
    n = e = int(graph.real.sum())  # nodes, and examples, without padding
    if graph.pairs is not None:
        e = int((graph.pairs[RELATION] >= 0).sum())
    elif edge_attrs is not None and edge_attrs.examples:
        e = edge_attrs.total
    elif graph.graph_of is not None:
        e = int(graph.graph_of[:n].max()) + 1 if n else 0
    x = graph.x.blocks.members[0].scipy() if isinstance(graph.x, Sparse) else graph.x.numpy()
    return GraphArrays(
        x=x[:n].copy(),
        edges=edge_list.index.copy(),
        y=graph.y[:e].numpy().copy(),
        masks=graph.masks[:, :e].numpy().copy(),
        sensitive=None if graph.sensitive is None else graph.sensitive[:e].numpy().copy(),
        graph_of=None if graph.graph_of is None else graph.graph_of[:n].numpy().copy(),
        edge_attrs=edge_attrs,
        scale=None if graph.scale is None else graph.scale.numpy().copy(),
        pairs=None if graph.pairs is None else graph.pairs[:, :e].numpy().copy(),
        ranks=None if graph.ranks is None else graph.ranks[:, :e].numpy().copy(),
        lists={name: graph.extra[name].numpy().copy() for name in OF_LINKS if name in graph.extra} or None,
    )


def dense(x: Matrix) -> np.ndarray:
    """The same matrix [n, d], dense."""
    return x if isinstance(x, np.ndarray) else x.toarray()


def graph_like(graph: Graph, arrays: GraphArrays) -> Graph:
    """The graph of `arrays` on the device of `graph`, with its dtype, feature storage and, as long as it fits, padding
    (`core.sizes.fits`). The order of edges does not matter."""
    nodes, examples = arrays.x.shape[0], len(arrays.y)
    return make_graph(
        x=sp.csr_matrix(arrays.x) if isinstance(graph.x, Sparse) else np.ascontiguousarray(dense(arrays.x)),
        edges=arrays.edges[:, np.lexsort(arrays.edges[::-1])],
        y=np.ascontiguousarray(arrays.y),
        masks=np.ascontiguousarray(arrays.masks),
        sensitive=None if arrays.sensitive is None else np.ascontiguousarray(arrays.sensitive),
        dtype=graph.x.dtype,
        rows=graph.nodes if fits(graph.nodes, nodes) else size_class(nodes),
        graph_of=None if arrays.graph_of is None else np.ascontiguousarray(arrays.graph_of),
        examples=len(graph.y) if fits(len(graph.y), examples) else size_class(examples),
        edge_attrs=arrays.edge_attrs,
        scale=arrays.scale,
        pairs=arrays.pairs,
        ranks=arrays.ranks,
        lists=arrays.lists,
    ).to(graph.device)


def graph_tree(graph: Graph) -> Tree:
    """One client's graph as a tree that `encode` takes: "rows" and "examples", with padding; "x", its features, as
    "dense" or as "values", "columns", "starts" and "width"; "edges", "y" and "masks"; and, where there are any, "sens",
    "graph_of", "scale", "pairs", "ranks" and the edge attributes, "carried". `tree_graph` is the inverse."""
    arrays = graph_arrays(graph)
    x, attributes = arrays.x, arrays.edge_attrs
    if isinstance(x, np.ndarray):
        parts = {"dense": x}
    else:
        parts = {"values": x.data, "columns": x.indices, "starts": x.indptr, "width": np.array(x.shape[1])}
    tree: Tree = {"rows": graph.nodes, "examples": len(graph.y)}
    tree["x"] = {name: torch.from_numpy(part) for name, part in parts.items()}
    if arrays.lists:
        tree["lists"] = {name: torch.from_numpy(part) for name, part in arrays.lists.items()}
    if attributes is not None:
        tree["carried"] = {name: torch.from_numpy(part) for name, part in attributes.arrays().items()}
    fields = {name: part for name, part in arrays._asdict().items() if name not in ("x", "edge_attrs", "lists")}
    fields["sens"] = fields.pop("sensitive")
    return tree | {name: torch.from_numpy(part) for name, part in fields.items() if part is not None}


def tree_graph(tree: Tree) -> Graph:
    """The inverse of `graph_tree`, on the host."""
    tree = to(tree, "cpu")
    parts: Tree = tree["x"]
    values = parts["dense" if "dense" in parts else "values"]
    x = values.numpy()
    if "dense" not in parts:
        columns, starts = parts["columns"].numpy(), parts["starts"].numpy()
        x = sp.csr_matrix((x, columns, starts), shape=(len(starts) - 1, int(parts["width"])))
    optional = {"sens": "sensitive", "graph_of": "graph_of", "scale": "scale", "pairs": "pairs", "ranks": "ranks"}
    fields: dict[str, Any] = {field: tree[name].numpy() for name, field in optional.items() if name in tree}
    edge_arrays = {name: part.numpy() for name, part in tree.get("carried", {}).items()}
    return make_graph(
        x,
        edges=tree["edges"].numpy(),
        y=tree["y"].numpy(),
        masks=tree["masks"].numpy(),
        dtype=values.dtype,
        rows=tree["rows"],
        examples=tree["examples"],
        edge_attrs=EdgeAttributes.from_arrays(edge_arrays) if edge_arrays else None,
        lists={name: part.numpy() for name, part in tree.get("lists", {}).items()},
        **fields,
    )
