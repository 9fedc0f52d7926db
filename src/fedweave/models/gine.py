"""Graph isomorphism network with edge features (Hu et al. 2020, "Strategies for pre-training graph neural networks").

Ego ids (You et al. 2021, "Identity-aware graph neural networks"; Egressy et al. 2024) are a node feature that marks the
center of a sampled neighborhood.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import EdgeFeatures, WidthOrNone
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree, map_leaves
from fedweave.errors import ConfigError
from fedweave.models import blocks, directions
from fedweave.models.edge_settings import edge_width
from fedweave.models.graph_columns import node_features, with_graph_columns
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.linear import affine
from fedweave.ops.sparse import dense
from fedweave.sampling.minibatches import EGO_IDS, Minibatches, places_of

EVALUATED_NEIGHBORS = 10  # sampled messages of each way, or neighbors, per node and layer in evaluation
AT_ONCE = 1 << 14  # places of neighborhoods that evaluation samples at once for a client


def marks() -> Layer:
    """[x ‖ id], before a model with one more feature: the id is 1 at the node, or at both ends of the edge, at the
    center of the sampled neighborhood, and 0 elsewhere."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        if not graph.edges.shrinks:
            raise ConfigError(
                "model.ego_ids = true: in a whole graph every node is the center of its own neighborhood. Train "
                "with algorithm.parts = ['sampled_cross_entropy'] and without parts that read whole graphs, or set "
                "model.ego_ids = false.",
                code="config.whole-graphs",
            )
        whole = torch.eye(1, dtype=graph.x.dtype, device=graph.device)
        return torch.cat([dense(h), graph.edges.operator(EGO_IDS) @ whole], 1)

    return Layer(lambda key: {}, apply, operator=EGO_IDS, infer=minibatch_logits)


def minibatch_logits(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The logits [e, c] of all examples without dropout; each example has a neighborhood that is the same each time."""
    sampler, count = Minibatches(1, EVALUATED_NEIGHBORS), len(graph.y)
    size = max(1, AT_ONCE // places_of(model, sampler.fan_out))
    key, logits = random.key(0, graph.device), []
    for first in range(0, count, size):
        chosen = torch.arange(first, min(first + size, count), device=graph.device)[None]
        around = sampler.around(model, graph, chosen, key[None])
        logits.append(sampler.logits(w, model, graph, None, map_leaves(lambda leaf: leaf[0], around)))
    return torch.cat(logits)


@dataclass(frozen=True)
class GINE(ConvolutionStack):
    """A linear layer, `layers` GIN convolutions whose messages add the edges' features, with ReLU and `dropout`,
    pooling, a linear layer with ReLU and `dropout`, and a linear classifier, all of width `hidden`.

    hidden:        width of all layers but the classifier.
    layers:        number of convolutions.
    pool:          pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
                   an experiment on small graphs the default is "mean".
    directed:      use of edge directions: "none", messages go both ways with the same weights; "forward", from sources
                   to targets; "both", each way has separate weights.
    edge_features: number of edge features that the model reads; None reads all of the data's.
    graph_features: number of columns of small graphs, which join the pooled nodes; an experiment takes it from the
                   data (`data.graph_features`, `data.fingerprint`).
    ports:         whether to add two edge features: an edge's ports among the member's edges (Egressy et al. 2024).
    ego_ids:       whether to add a node feature that is 1 at the center of a sampled neighborhood (Egressy et al.
                   2024). It needs sampled training, and the model is evaluated on sampled neighborhoods too.
    """

    pool: Literal["none", "sum", "mean"] = "none"
    directed: Literal["none", "forward", "both"] = "none"
    edge_features: EdgeFeatures | None = None
    ports: bool = False
    ego_ids: bool = False
    graph_features: WidthOrNone = 0
    graph_pool: ClassVar[str] = "mean"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        make_layer = partial(convolution, edge_features=edge_width(self), along=self.directed)
        return build_with_head(make_layer, features, classes, self, self.pool, self.ego_ids, self.graph_features)


def build_with_head(
    make_layer: "partial[Layer]",
    features: int,
    classes: int,
    stack: ConvolutionStack,
    pool: str,
    ego_ids: bool,
    graph_features: int = 0,
) -> Model:
    """A linear layer, `stack.layers` convolutions `make_layer(hidden, hidden)` with a norm, ReLU and dropout, and
    `blocks.head`. With `ego_ids`, `marks` comes before them. graph_features: see `with_graph_columns`.

    Raises:
        ConfigError: there are no features or no classes.
    """
    blocks.check_shape(features, classes)
    start, fan_in = [marks()] if ego_ids else [], node_features(features, graph_features) + ego_ids
    if not stack.input_layer:
        start.append(blocks.affine(fan_in, stack.hidden))
        fan_in = stack.hidden
    layers, width = blocks.hidden_layers(stack, [make_layer] * stack.layers, fan_in, stack.hidden)
    model = (*start, *layers, *blocks.head(width, stack.hidden, classes, stack.dropout, pool))
    return with_graph_columns(model, features, graph_features, width, stack.hidden, stack.dropout)


def convolution(fan_in: int, fan_out: int, edge_features: int, along: str = "none") -> Layer:
    """MLP(h + Σ ReLU(h_u + W_e e_uv + b_e)) over the edges (u, v) of node v with MLP(z) = ReLU(z W_1 + b_1) W_2 + b_2;
    without features of edges, Σ ReLU(h_u). Epsilon is 0. PyG's `GINEConv`, initialized like `torch.nn.Linear`."""
    return directions.along(partial(_convolution, fan_in, fan_out, edge_features), fan_in, fan_out, along)


def _convolution(fan_in: int, fan_out: int, edge_features: int, way: str, loops: bool) -> Layer:
    def init(key: Tensor) -> Tree:
        sizes = {"1": (fan_in, fan_out), "2": (fan_out, fan_out)}
        if edge_features:
            sizes["_edge"] = (edge_features, fan_in)
        return blocks.linear_weights(key, sizes)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        parts = [(operator_name("from", way), h + w["bias_edge"] if edge_features else h)]
        if edge_features:
            parts.append((operator_name("features", way), w["weight_edge"]))
        messages = torch.relu(directions.sum_of_products(graph, *parts))  # [m, k]
        received: Tensor = graph.edges.operator(operator_name("sum", way)) @ messages  # [n, k]
        z = directions.target_rows(h, received.shape[0]) + received
        inner = affine(z, w["weight1"], w["bias1"], relu=True)
        return affine(inner, w["weight2"], w["bias2"])

    return Layer(init, apply, operator=operator_name("sum", way), reads="messages")
