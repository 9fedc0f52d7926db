"""Evaluation of a model whose messages are too many to fit into memory at once, as single edges have them in a large
graph: piece by piece, by the nodes that messages reach, and by the examples where these are edges. Without gradients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core import edge_attributes
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, EXAMPLE_SOURCE, EXAMPLE_TARGET, OF_EXAMPLES
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph
from fedweave.core.operators import Operator
from fedweave.core.tensor_operators import (
    DenseMatrix,
    PrecomputedEdges,
    RowSelection,
    ShrinkingEdges,
    message_operator,
)
from fedweave.core.tree import Tree
from fedweave.ops.sparse import Sparse

MAX_WHOLE = 1 << 21  # the most edges of a client that are computed as a whole
AT_ONCE = 1 << 20  # messages, or examples, of a piece


def is_large(graph: Graph) -> bool:
    """Whether a single client's graph has more than `MAX_WHOLE` edges with attributes."""
    members = graph.edges.members if isinstance(graph.edges, Edges) else ()
    return len(members) == 1 and members[0].edge_attrs is not None and members[0].edge_attrs.total > MAX_WHOLE


def apply_piecewise(model: Sequence[Any], w: Tree, graph: Graph) -> Any:
    """`core.model.apply` of these layers (`core.model.Layer`) on a whole graph, without dropout."""
    h = graph.x
    for i, layer in enumerate(model):
        if layer.operator in OF_EXAMPLES:  # it reads both ends of edges, which are the examples
            return _apply_to_examples(model[i:], w, graph, h, i)
        weights = w.get(str(i), {})
        what, _ = edge_attributes.kinds().get(str(layer.operator), ("", ""))
        if what == "sum" and not isinstance(h, Sparse):  # messages along single edges
            h = _apply_to_nodes(layer, weights, graph, h)
        else:
            h = layer.apply(weights, graph, h, None)
    return h


def _apply_to_nodes(layer: Any, w: Tree, graph: Graph, h: Any) -> Any:
    """The layer's rows of all nodes, piece by piece; the rows of a piece come first in the layer's input, which may be
    a tree."""
    nodes, dtype = len(graph.real), graph.x.dtype
    tables = {way: graph.whole_edges.incoming(way) for way in layer.along}
    before = torch.stack([table.first for table in tables.values()]).sum(0)  # [n], messages that reach earlier nodes
    features = graph.whole_edges.of_edges().features.to(dtype)  # [M, k]
    outputs, first = [], 0
    while first < nodes:
        end = max(first + 1, int(torch.searchsorted(before, int(before[first]) + AT_ONCE)))
        ways = dict[str, PieceMessages]()
        for way, table in tables.items():
            degree = table.degree[first:end]  # [t]
            start = int(table.first[first])
            span = slice(start, start + int(degree.sum()))
            target = torch.repeat_interleave(torch.arange(end - first, device=degree.device), degree)  # [m]
            source, edge = table.source[span].long() + (end - first), table.edge[span].long()  # [m]
            ways[way] = PieceMessages(source, target, features.index_select(0, edge), degree)
        piece = graph._replace(edges=PieceEdges(ways))
        around = pytree.tree_map(lambda rows, first=first, end=end: torch.cat([rows[first:end], rows]), h)
        outputs.append(layer.apply(w, piece, around, None))
        first = end
    return pytree.tree_map(lambda *pieces: torch.cat(pieces), *outputs)


def _apply_to_examples(layers: Sequence[Any], w: Tree, graph: Graph, h: Tensor | Sparse, number: int) -> Tensor:
    """The logits of edges as examples from nodes' rows h; `number` is that of the first of these layers."""
    tables, count = graph.whole_edges.of_edges(examples=True), len(graph.y)
    outputs = list[Tensor]()
    for first in range(0, count, AT_ONCE):
        at = torch.arange(first, min(first + AT_ONCE, count), device=h.device).clamp(max=len(tables.ends) - 1)
        source, target = tables.ends.index_select(0, at).unbind(1)
        features = DenseMatrix(tables.features.index_select(0, at))
        ends = {EXAMPLE_SOURCE: RowSelection(source), EXAMPLE_TARGET: RowSelection(target)}
        piece = graph._replace(edges=PrecomputedEdges(ends | {EXAMPLE_FEATURES: features}))
        out: Any = h
        for i, layer in enumerate(layers, number):
            out = layer.apply(w.get(str(i), {}), piece, out, None)
        outputs.append(out)
    return torch.cat(outputs)


@dataclass(frozen=True)
class PieceMessages:
    """The m messages of one way that reach a piece's t targets.

    source, target: int64 [m], the rows where each starts, targets first, and that it reaches, rising. features: [m, k],
    of their edges. degree: int64 [t].
    """

    source: Tensor
    target: Tensor
    features: Tensor
    degree: Tensor


@dataclass(frozen=True)
class PieceEdges(ShrinkingEdges):
    """The edges of a piece, `PieceMessages` for each way: the rows of `core.edge_attributes.EdgeMessages.matrix` for a
    few targets."""

    ways: Mapping[str, PieceMessages]

    def operator(self, kind: str) -> Operator:
        what, way = edge_attributes.kinds()[kind]
        messages = self.ways[way]
        degree = messages.degree.to(messages.features.dtype)
        return message_operator(what, messages.source, messages.target, messages.features, degree)
