"""Columns of whole small graphs at the readout, such as a molecule's fingerprint: [readout ‖ W x_graph].

A graph's columns stand in the row of its first node, the last columns of `Graph.x`, with zeros at its other nodes
(`datasets.features.with_graph_values`). Layers before the readout see the columns of nodes only.
"""

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import POOLS
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.ops.linear import affine, linear

SUM = "pool_sum"


def node_features(features: int, columns: int) -> int:
    """How many of `features` columns are of nodes, where the last `columns` are of small graphs.

    Raises:
        ConfigError: nodes have no column.
    """
    if columns and features <= columns:
        raise ConfigError(
            f"model.graph_features = {columns}: the data has {features} columns, of which nodes need one at least.",
            code="config.shape",
        )
    return features - columns


def with_graph_columns(model: Model, features: int, columns: int, width: int, hidden: int, dropout: float) -> Model:
    """`model`, which reads the columns of nodes and pools to rows of `width`, as a model of `features` columns, of
    which the last `columns` are of small graphs and join the pooled rows.

    Raises:
        ConfigError: the model does not pool.
    """
    if not columns:
        return model
    places = [at for at, layer in enumerate(model) if layer.operator in POOLS]
    if not places:
        raise ConfigError(
            f"model.graph_features = {columns}: columns of small graphs join a readout, and this model does not pool. "
            "Set model.pool.",
            code="config.shape",
        )
    end = places[-1] + 1
    nodes = features - columns
    return (of_nodes(nodes), *model[:end], joined(nodes, columns, width, hidden, dropout), *model[end:])


def of_nodes(features: int) -> Layer:
    """The first columns of x, those of nodes."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        if isinstance(h, Tensor):
            return h[:, :features]
        return linear(h, torch.eye(h.shape[1], features, dtype=h.dtype, device=graph.device))

    return Layer(lambda key: {}, apply)


def joined(nodes: int, columns: int, width: int, hidden: int, dropout: float) -> Layer:
    """[r ‖ ReLU(x_graph W_1 + b_1)] W_2 + b_2 of each small graph's readout r [e, width] and its `columns`, which come
    after those of `nodes`: [e, width]."""

    def init(key: Tensor) -> Tree:
        return blocks.linear_weights(key, {"_graph": (columns, hidden), "_joined": (width + hidden, width)})

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        weight = torch.cat([w["weight_graph"].new_zeros(nodes, hidden), w["weight_graph"]])
        out = torch.relu(graph.edges.operator(SUM) @ linear(graph.x, weight) + w["bias_graph"])  # [e, hidden]
        out = out if key is None or dropout == 0 else random.dropout(key, out, dropout)
        return affine(torch.cat([h, out], 1), w["weight_joined"], w["bias_joined"])

    return Layer(init, apply, operator=SUM)
