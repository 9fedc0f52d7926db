"""Graph isomorphism network (Xu et al. 2019, "How powerful are graph neural networks?").

Small graphs have many nodes of the same kind. The kinds are identified once, so that the first layer computes each
kind's output once (`kinds_sum`, `kinds_spread`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.bounds import WidthOrNone
from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import add_self_loops
from fedweave.core.plugins import remember_maker
from fedweave.core.sizes import padded_rows
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.graph_columns import node_features, with_graph_columns
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.linear import affine

SUM, SPREAD = "kinds_sum", "kinds_spread"


@register_matrix(SUM)
def kinds_sum(edges: EdgeList) -> sp.csr_matrix:
    """[k, n]: the rows of A + I of one node of each kind."""
    matrix = add_self_loops(edges.adjacency)[kinds_of(edges)[0]]
    matrix.resize(padded_rows(matrix.shape[0]), edges.nodes)
    return matrix


@register_matrix(SPREAD)
def kinds_spread(edges: EdgeList) -> sp.csr_matrix:
    """[n, k]: gives every node the row of its kind."""
    first, kind = kinds_of(edges)
    ones, rows = np.ones(edges.nodes, edges.adjacency.dtype), np.arange(edges.nodes)
    return sp.csr_matrix((ones, (rows, kind)), shape=(edges.nodes, padded_rows(len(first))))


def kinds_of(edges: EdgeList) -> tuple[np.ndarray, np.ndarray]:
    """A node of each kind, int64 [k], and the kind of each node, int64 [n]; without features every node is a kind."""
    if SUM not in edges.memo:
        each = np.arange(edges.nodes)
        edges.memo[SUM] = (each, each) if edges.features is None else kinds(edges.features, edges.adjacency)
    first, kind = edges.memo[SUM]
    return first, kind


def kinds(features: "np.ndarray | sp.csr_matrix", adjacency: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """int64 [k] one node of each kind, and int64 [n] the kind of each.

    Nodes of one kind have the same features, and neighbors with the same features. features: [m, d] of the first m ≤ n
    nodes; the others are padding, have no features and are a separate kind. adjacency: [n, n], of ones.
    """
    nodes = adjacency.shape[0]
    x = sp.csr_matrix(features, copy=True)
    x.sum_duplicates()
    rows: list[object] = []  # equal where features are equal
    for start, end in pairwise(x.indptr):
        rows.append(x.indices[start:end].tobytes() + b"/" + x.data[start:end].tobytes())
    rows += [None] * (nodes - len(rows))
    _, feature_kind = _number(rows)
    neighbors = np.split(feature_kind[adjacency.indices], adjacency.indptr[1:-1])
    pairs = [(kind, np.sort(near).tobytes()) for kind, near in zip(feature_kind.tolist(), neighbors, strict=True)]
    return _number(pairs)


def _number(values: Sequence[object]) -> tuple[np.ndarray, np.ndarray]:
    """Number different values by first appearance: the place where each appears first, int64 [k], and the number of
    each value, int64 [n]."""
    known: dict[object, int] = {}
    number, first = np.empty(len(values), np.int64), []
    for at, value in enumerate(values):
        if value not in known:
            known[value] = len(known)
            first.append(at)
        number[at] = known[value]
    return np.array(first, np.int64), number


@dataclass(frozen=True)
class GIN(ConvolutionStack):
    """A linear layer, `layers` GIN convolutions with ReLU and `dropout`, pooling, a linear layer with ReLU and
    `dropout`, and a linear classifier, all of width `hidden`.

    As in FairGraphFL and GCFL, epsilon is 0 and fixed, and there is no batch norm unless `norm` sets it. The graph's
    embedding is the pooled last layer; Xu et al. concatenate the pooled layers (eq. 4.2).

    hidden:  width of all layers but the classifier.
    layers:  number of convolutions.
    pool:    pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
             an experiment on small graphs the default is "sum".
    graph_features: number of columns of small graphs, which join the pooled nodes; an experiment takes it from the
             data (`data.graph_features`, `data.fingerprint`).
    """

    layers: int = 3
    pool: Literal["none", "sum", "mean"] = "none"
    graph_features: WidthOrNone = 0
    graph_pool: ClassVar[str] = "sum"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        nodes = node_features(features, self.graph_features)
        # with nothing between, the convolution's last product takes ReLU with it
        plain = self.norm == "none" and not self.residual and not self.input_layer
        first = partial(convolution, relu=plain, opens=not self.input_layer)
        makers = [first, *[partial(convolution, relu=plain)] * (self.layers - 1)]
        start = () if self.input_layer else (blocks.affine(nodes, self.hidden),)
        fan_in = nodes if self.input_layer else self.hidden
        layers, width = blocks.hidden_layers(self, makers, fan_in, self.hidden, None if plain else torch.relu)
        model = (*start, *layers, *blocks.head(width, self.hidden, classes, self.dropout, self.pool))
        return with_graph_columns(model, features, self.graph_features, width, self.hidden, self.dropout)


def convolution(fan_in: int, fan_out: int, relu: bool = False, opens: bool = False) -> Layer:
    """MLP(h + the sum of the neighbors' h) with MLP(z) = ReLU(z W_1 + b_1) W_2 + b_2 (eq. 4.1 with epsilon = 0), then
    ReLU if `relu`.

    opens: whether this is the first message passing and no dropout came before; then nodes of small graphs of one kind
           (`kinds`) have the same result, which is computed once.

    Initialized like `torch.nn.Linear`.
    """

    def init(key: Tensor) -> Tree:
        return blocks.linear_weights(key, {"1": (fan_in, fan_out), "2": (fan_out, fan_out)})

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        by_kind = opens and graph.graph_of is not None and isinstance(graph.edges, Edges)
        if by_kind:
            z = graph.edges.operator(SUM) @ h
        elif graph.edges.shrinks:
            neighbors = graph.edges.operator("sum")
            z = h[: neighbors.shape[0]] + neighbors @ h
        else:
            z = graph.edges.operator("sum_with_self") @ h
        inner = affine(z, w["weight1"], w["bias1"], relu=True)
        out = affine(inner, w["weight2"], w["bias2"], relu)
        return graph.edges.operator(SPREAD) @ out if by_kind else out

    return Layer(init, apply, operator="sum")
