"""Principal neighborhood aggregation (Corso et al. 2020, "Principal Neighborhood Aggregation for Graph Nets")."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.core.bounds import EdgeFeatures, Positive
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks, directions
from fedweave.models.edge_settings import edge_width
from fedweave.models.gine import build_with_head
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.linear import affine, linear
from fedweave.ops.row_reductions import largest

MIN_VARIANCE = 1e-5  # a smaller variance counts as this in the gradient, and as 0 in the value


@dataclass(frozen=True)
class PNA(ConvolutionStack):
    """A linear layer, `layers` convolutions that concatenate the mean, minimum, maximum and standard deviation of the
    messages, with ReLU and `dropout`. The head of `gine` follows. Each aggregate appears three times: unscaled, and
    amplified and attenuated by the node's degree.

    hidden:        width of all layers but the classifier.
    layers:        number of convolutions.
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

    delta: Positive = 1.6
    pool: Literal["none", "sum", "mean"] = "none"
    directed: Literal["none", "forward", "both"] = "none"
    edge_features: EdgeFeatures | None = None
    ports: bool = False
    ego_ids: bool = False
    graph_pool: ClassVar[str] = "mean"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        make_layer = partial(convolution, edge_features=edge_width(self), delta=self.delta, along=self.directed)
        return build_with_head(make_layer, features, classes, self, self.pool, self.ego_ids)


def convolution(fan_in: int, fan_out: int, edge_features: int, delta: float, along: str = "none") -> Layer:
    """W [h_v ‖ all of {1, S, 1/S} ⊗ {mean, min, max, deviation} of messages W_m [h_v ‖ h_u ‖ W_e e_uv]] with
    S = log(d + 1) / δ (eqs. 5 to 8), and a further linear layer. PyG's `PNAConv`, initialized like it."""
    make_layer = partial(_convolution, fan_in, fan_out, edge_features, delta)
    return directions.along(make_layer, fan_in, fan_out, along)


def _convolution(fan_in: int, fan_out: int, edge_features: int, delta: float, way: str, loops: bool) -> Layer:
    def init(key: Tensor) -> Tree:
        sizes = {"_message": ((2 + bool(edge_features)) * fan_in, fan_in), "1": (13 * fan_in, fan_out)}
        sizes |= {"2": (fan_out, fan_out)} | ({"_edge": (edge_features, fan_in)} if edge_features else {})
        return blocks.linear_weights(key, sizes)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        of_target, of_source, *of_edge = w["weight_message"].split(fan_in)
        of_root, *scaled = w["weight1"].split([fan_in, *[4 * fan_in] * 3])
        wide = linear(h, torch.cat([of_target, of_source, of_root], 1))  # one product, not three
        target, source, root = wide.split([fan_in, fan_in, fan_out], 1)
        bias = w["bias_message"]
        if edge_features:
            of_features = linear(torch.cat([w["weight_edge"], w["bias_edge"][None]]), of_edge[0])
            bias = bias + of_features[-1]
        parts = [(operator_name("to", way), target + bias), (operator_name("from", way), source)]
        if edge_features:
            parts.append((operator_name("features", way), of_features[:-1]))
        messages = directions.sum_of_products(graph, *parts)  # [m, fan_in]
        # mean, minimum, maximum and deviation of the messages at each node, [n, fan_in] each
        into, averages = (graph.edges.operator(operator_name(what, way)) for what in ("sum", "mean"))
        mean = averages @ messages
        variance = (averages @ (messages * messages) - mean * mean).clamp(min=MIN_VARIANCE)
        deviation = torch.where(variance > MIN_VARIANCE, variance.sqrt(), 0)
        negative_min, maximum = largest(into, torch.cat([-messages, messages], 1)).chunk(2, 1)
        four = torch.cat([mean, -negative_min, maximum, deviation], 1)  # [n, 4 fan_in]
        plain, amplified, attenuated = linear(four, torch.cat(scaled, 1)).split(fan_out, 1)  # S (W x), not W (S x)
        pair = torch.eye(2, dtype=four.dtype, device=four.device)
        up, down = (graph.edges.operator(operator_name("scalers", way)) @ pair).split(1, 1)  # [n, 1]
        itself = directions.target_rows(root, four.shape[0])
        inner = itself + w["bias1"] + plain + up / delta * amplified + down * delta * attenuated
        return affine(inner, w["weight2"], w["bias2"])

    return Layer(init, apply, operator=operator_name("sum", way), reads="entries")
