"""Principal neighborhood aggregation (Corso et al. 2020, "Principal Neighborhood Aggregation for Graph Nets")."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Depth, DropRate, EdgeFeatures, Positive, Width
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models import blocks as ways
from fedweave.models.gine import around
from fedweave.models.norms import Normed
from fedweave.ops.attention import largest
from fedweave.ops.linear import affine, linear

LEAST = 1e-5  # a smaller variance counts as this in the gradient, and as 0 in the value


@dataclass(frozen=True)
class PNA(Normed):
    """A linear layer, `layers` convolutions that concatenate the mean, minimum, maximum and standard deviation of the
    messages, with ReLU and `dropout`. The head of `gine` follows. Each aggregate appears three times: unscaled, and
    amplified and attenuated by the node's degree.

    hidden:        width of all layers but the classifier.
    layers:        number of convolutions.
    dropout:       share of a layer's outputs that is dropped in training.
    delta:         log(d + 1) of a typical degree d, the unit of degrees: Corso et al.'s δ. The paper takes the mean
                   over training nodes; here all members share this number.
    pool:          pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
                   an experiment on small graphs the default is "mean".
    directed:      use of edge directions: "none", messages go both ways with the same weights; "forward", from sources
                   to targets; "both", each way has separate weights.
    edge_features: number of edge features that the model reads; None reads all of the data's.
    ports:         whether to add two edge features: an edge's ports among the member's edges (Egressy et al. 2024).
    ego_ids:       whether to add a node feature that is 1 at the center of a sampled neighborhood (Egressy et al.
                   2024). It needs sampled training, and the model is evaluated on sampled neighborhoods too.
    """

    hidden: Width = 64
    layers: Depth = 2
    dropout: DropRate = 0.5
    delta: Positive = 1.6
    pool: Literal["none", "sum", "mean"] = "none"
    directed: Literal["none", "forward", "both"] = "none"
    edge_features: EdgeFeatures | None = None
    ports: bool = False
    ego_ids: bool = False
    graph_pool: ClassVar[str] = "mean"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        make_layer = partial(convolution, edge_features=ways.read(self), delta=self.delta, along=self.directed)
        sizes = features, classes, self.hidden, self.layers
        return around(make_layer, *sizes, self.dropout, self.pool, self.ego_ids, self.norm)


def convolution(fan_in: int, fan_out: int, edge_features: int, delta: float, along: str = "none") -> Layer:
    """W [h_v ‖ all of {1, S, 1/S} ⊗ {mean, min, max, deviation} of messages W_m [h_v ‖ h_u ‖ W_e e_uv]] with
    S = log(d + 1) / δ (eqs. 5 to 8), and a further linear layer. PyG's `PNAConv`, initialized like it."""
    make_layer = partial(_convolution, fan_in, fan_out, edge_features, delta)
    return ways.along(make_layer, fan_in, fan_out, along)


def _convolution(fan_in: int, fan_out: int, edge_features: int, delta: float, way: str, loops: bool) -> Layer:
    def init(key: Tensor) -> Tree:
        sizes = {"_message": ((2 + bool(edge_features)) * fan_in, fan_in), "1": (13 * fan_in, fan_out)}
        sizes |= {"2": (fan_out, fan_out)} | ({"_edge": (edge_features, fan_in)} if edge_features else {})
        weights = {f"weight{i}": blocks.lecun(random.fold(key, "weight", i), s, s[0]) for i, s in sizes.items()}
        return weights | {f"bias{i}": blocks.lecun(random.fold(key, "bias", i), s[1:], s[0]) for i, s in sizes.items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        of_target, of_source, *of_edge = w["weight_message"].split(fan_in)
        itself, *scaled = w["weight1"].split([fan_in, *[4 * fan_in] * 3])
        wide = linear(h, torch.cat([of_target, of_source, itself], 1))  # one product, not three
        target, source, root = wide.split([fan_in, fan_in, fan_out], 1)
        bias = w["bias_message"]
        if edge_features:
            of_features = linear(torch.cat([w["weight_edge"], w["bias_edge"][None]]), of_edge[0])
            bias = bias + of_features[-1]
        parts = [(operator_name("to", way), target + bias), (operator_name("from", way), source)]
        parts += [(operator_name("features", way), of_features[:-1])] if edge_features else []
        four = _aggregated(graph, ways.beside(graph, *parts), way)
        plain, amplified, attenuated = linear(four, torch.cat(scaled, 1)).split(fan_out, 1)  # S (W x), not W (S x)
        pair = torch.eye(2, dtype=four.dtype, device=four.device)
        up, down = (graph.edges.operator(operator_name("scalers", way)) @ pair).split(1, 1)
        inner = (
            ways.leading(root, four.shape[0]) + w["bias1"] + plain + up / delta * amplified + down * delta * attenuated
        )
        return affine(inner, w["weight2"], w["bias2"])

    return Layer(init, apply, operator=operator_name("sum", way), reads="entries")


def _aggregated(graph: Graph, sent: Tensor, way: str) -> Tensor:
    """Mean, minimum, maximum and deviation [n, 4 k] of messages [m, k]."""
    into, mean = (graph.edges.operator(operator_name(what, way)) for what in ("sum", "mean"))
    center = mean @ sent
    variance = (mean @ (sent * sent) - center * center).clamp(min=LEAST)
    deviation = torch.where(variance > LEAST, variance.sqrt(), 0)
    below, above = largest(into, torch.cat([-sent, sent], 1)).chunk(2, 1)
    return torch.cat([center, -below, above, deviation], 1)
