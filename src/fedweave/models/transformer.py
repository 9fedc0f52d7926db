"""Graph transformer (Shi et al. 2021, "Masked Label Prediction: Unified Message Passing Model for Semi-Supervised
Classification", eqs. 3 to 5), whose attention is over neighbors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.directions import target_rows
from fedweave.models.gat import AttentionModel, attend_along, head_sums, join_heads
from fedweave.ops.linear import linear

_PROJECTIONS = ("query", "key", "value", "skip")


@dataclass(frozen=True)
class Transformer(AttentionModel):
    """`layers` convolutions of attention with keys, queries and values over neighbors, with ReLU and `dropout` after
    each but the last.

    Deviation: no dropout on the input features, which are often sparse, no layer norm unless `norm` sets it, and no
    gate on the skip connection.
    """

    hidden: int = 16
    heads: int = 4

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        return self.stack(convolution, features, classes, torch.relu)


def convolution(fan_in: int, fan_out: int, heads: int, concat: bool = True, rate: float = 0.0) -> Layer:
    """W_s h_i + b_s + Σ_j a_ij (W_v h_j + b_v) over the neighbors j of node i, per head, with a_ij the softmax over j
    of (W_q h_i + b_q)ᵀ (W_k h_j + b_k) / √d: PyG's `TransformerConv`, initialized like it (uniform, 1 / √fan_in).

    Heads are joined side by side or, without `concat`, averaged. rate: dropout on a_ij.
    """
    wide = heads * fan_out
    way = "undirected"  # messages go both ways
    widths = dict.fromkeys(_PROJECTIONS, wide) | {"skip": wide if concat else fan_out}

    def init(key: Tensor) -> Tree:
        bound, weights = 1 / math.sqrt(fan_in), Tree()
        for name, width in widths.items():
            weights[name] = blocks.uniform(random.fold(key, name), (fan_in, width), bound)
            weights[f"{name}_bias"] = blocks.uniform(random.fold(key, f"{name}_bias"), (width,), bound)
        return weights

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        query, keys, values, skip = (linear(h, w[name]) + w[f"{name}_bias"] for name in _PROJECTIONS)
        start, end = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to"))  # [m, n]
        rows = graph.edges.operator(operator_name("sum", way)).shape[0]
        products = (start @ keys) * (end @ target_rows(query, rows))  # [m, heads * fan_out]
        scores = linear(products, head_sums(heads, fan_out, products)) / math.sqrt(fan_out)
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attend_along(graph, way, (scores, None), values, (drop, rate))
        return join_heads(out, heads, concat, target_rows(skip, rows))

    return Layer(
        init, apply, by_feature=_PROJECTIONS, operator=operator_name("sum", way), reads="entries", along=(way,)
    )
