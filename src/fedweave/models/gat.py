"""Graph attention networks (Velickovic et al. 2018, "Graph Attention Networks"; Brody, Alon and Yahav 2022, "How
Attentive Are Graph Attention Networks?").
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import DropRate, EdgeFeatures, Heads
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks, directions
from fedweave.models.edge_settings import edge_width
from fedweave.models.gine import marks
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.attention import attend
from fedweave.ops.linear import linear
from fedweave.ops.row_reductions import largest

SLOPE = 0.2  # of LeakyReLU below 0


@dataclass(frozen=True)
class AttentionModel(ConvolutionStack):
    """A model of convolutions whose attention has several heads.

    hidden:            columns of each head; a hidden representation has `heads` * `hidden`.
    layers:            number of convolutions.
    heads:             heads of every hidden layer, side by side.
    output_heads:      heads of the last layer, averaged.
    attention_dropout: share of the attention coefficients that is dropped in training.
    """

    hidden: int = 8
    heads: Heads = 8
    output_heads: Heads = 1
    attention_dropout: DropRate = 0.0

    def stack(
        self, make_layer: Callable[..., Layer], features: int, classes: int, activation: blocks.Activation
    ) -> Model:
        """Convolutions of `heads` side by side, normalized and activated, and a last one that averages its heads; after
        a jump, a linear layer."""
        blocks.check_shape(features, classes)
        width, rate = self.heads * self.hidden, self.attention_dropout

        def side_by_side(fan_in: int, fan_out: int) -> Layer:
            return make_layer(fan_in, fan_out // self.heads, self.heads, rate=rate)

        inner = self.layers - 1 if self.jump == "none" else self.layers
        layers, fan_in = blocks.hidden_layers(self, [side_by_side] * inner, features, width, activation)
        if self.jump != "none":
            return (*layers, blocks.affine(fan_in, classes))
        last = make_layer(fan_in, classes, self.output_heads, concat=False, rate=rate)
        return (*layers, blocks.with_residual(last, fan_in, classes) if self.residual else last)


@dataclass(frozen=True)
class GAT(AttentionModel):
    """`layers` attention convolutions, with ELU and `dropout` after each but the last.

    Deviation: no dropout on the input features, which are often sparse.

    directed:      use of edge directions: "none", messages go both ways with the same weights; "forward", from sources
                   to targets; "both", each way has separate weights.
    edge_features: number of edge features that the attention reads; None reads all of the data's.
    ports:         whether to add two edge features: an edge's ports among the member's edges (Egressy et al. 2024).
    ego_ids:       whether to add a node feature that is 1 at the center of a sampled neighborhood (Egressy et al.
                   2024). It needs sampled training, and the model is evaluated on sampled neighborhoods too.
    """

    directed: Literal["none", "forward", "both"] = "none"
    edge_features: EdgeFeatures | None = None
    ports: bool = False
    ego_ids: bool = False

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        first = (marks(),) if self.ego_ids else ()
        make_layer: Callable[..., Layer] = convolution
        if edge_width(self) or self.directed != "none":
            make_layer = partial(along_edges, edge_features=edge_width(self), directed=self.directed)
        return (*first, *self.stack(make_layer, features + len(first), classes, F.elu))


def convolution(fan_in: int, fan_out: int, heads: int, concat: bool = True, rate: float = 0.0) -> Layer:
    """Σ_j a_ij W h_j + b over the neighbors j of node i and itself, per head (eqs. 3 and 4); `fan_out` columns a head.

    Heads stand side by side (eq. 5) or, without `concat`, are averaged (eq. 6). "source" and "target" [heads * fan_out]
    are the halves of the attention vector that meet W h_j and W h_i. If message passing leaves fewer rows, these are
    the first rows of h. `rate` is the dropout on a_ij. Initialized like PyG's `GATConv` (Glorot, zero bias).
    """
    wide = heads * fan_out

    def init(key: Tensor) -> Tree:
        names = "source", "target"
        halves = {name: blocks.glorot(random.fold(key, name), heads, fan_out).flatten() for name in names}
        weight = blocks.glorot(random.fold(key, "weight"), fan_in, wide)
        return {"weight": weight, **halves, "bias": torch.zeros(wide if concat else fan_out, device=key.device)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        values = linear(h, w["weight"])
        source, target = _end_scores(w, values, heads, fan_out)
        neighbors = graph.edges.operator("gcn")
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attend(neighbors, source, target[: neighbors.shape[0]], values, key=drop, rate=rate)
        return join_heads(out, heads, concat, w["bias"])

    return Layer(init, apply, ("weight",), operator="gcn", reads="entries")


def _end_scores(w: Tree, values: Tensor, heads: int, fan_out: int) -> tuple[Tensor, Tensor]:
    """[n, heads] each: the products of the values [n, heads fan_out] with the vectors of messages' sources and targets.

    One product with the heads' vectors on a block diagonal: as `linear` sums, bits do not depend on batching."""
    columns = head_sums(heads, fan_out, values)
    vectors = torch.cat([columns * w["source"][:, None], columns * w["target"][:, None]], 1)
    source, target = linear(values, vectors).split(heads, 1)
    return source, target


def join_heads(out: Tensor, heads: int, concat: bool, bias: Tensor) -> Tensor:
    """The heads' outputs [n, heads k] side by side, or their mean [n, k], plus the bias."""
    return (out if concat else out.unflatten(1, (heads, -1)).mean(1)) + bias


def along_edges(
    fan_in: int, fan_out: int, heads: int, edge_features: int, directed: str, concat: bool = True, rate: float = 0.0
) -> Layer:
    """`convolution` over single edges, whose features add a_e · W_e e_uv to a score before LeakyReLU. The self-loop
    has the mean features of the messages that reach the node. PyG's `GATConv(edge_dim=…)`, initialized like it."""
    wide, plain = heads * fan_out, convolution(fan_in, fan_out, heads, concat)

    def init(key: Tensor) -> Tree:
        if not edge_features:
            return plain.init(key)
        of_edges = blocks.glorot(random.fold(key, "edge weight"), edge_features, wide)
        vector = blocks.glorot(random.fold(key, "edge"), heads, fan_out).flatten()
        return plain.init(key) | {"weight_edge": of_edges, "edge": vector}

    def make_layer(way: str, loops: bool) -> Layer:
        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
            values = linear(h, w["weight"])
            source, target = _end_scores(w, values, heads, fan_out)
            start, end = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to"))
            rows = graph.edges.operator(operator_name("sum", way)).shape[0]
            scores = start @ source + end @ target  # [m, heads]
            self_scores = directions.target_rows(source + target, rows)  # [n, heads]
            if edge_features:
                vectors = linear(w["weight_edge"], head_sums(heads, fan_out, values) * w["edge"][:, None])
                scores = scores + directions.edge_feature_product(graph, "features", way, vectors)
                self_scores = self_scores + directions.edge_feature_product(graph, "feature_means", way, vectors)
            scores, self_scores = F.leaky_relu(scores, SLOPE), F.leaky_relu(self_scores, SLOPE)
            drop = None if key is None or rate == 0 else random.fold(key, "attention")
            out = attend_along(graph, way, (scores, self_scores if loops else None), values, (drop, rate))
            return join_heads(out, heads, concat, w["bias"])

        return Layer(init, apply, ("weight",), operator=operator_name("sum", way), reads="entries")

    return directions.along(make_layer, fan_in, wide if concat else fan_out, directed)


def attend_along(
    graph: Graph, way: str, scores: tuple[Tensor, Tensor | None], values: Tensor, drop: tuple[Tensor | None, float]
) -> Tensor:
    """[n, H C]: sums of the source nodes' values [n, H C], weighted by the softmax of the messages' scores [m, H] at
    each target. The softmax includes the node's own score [n, H] where there is one."""
    start, end, into = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to", "sum"))
    sent, self_scores = scores
    top = largest(into, sent.detach())  # nothing overflows, and the softmax is the same
    if self_scores is not None:
        top = top.maximum(self_scores.detach())
    powers = torch.exp(sent - end @ top)  # [m, H]
    total = into @ powers  # [n, H]
    if self_scores is not None:
        self_power = torch.exp(self_scores - top)
        total = total + self_power
    reached = end @ torch.ones_like(values[:, :1])  # 0 at padding, which sends nothing to any node
    shares = powers / (end @ total + (1 - reached))
    heads = shares.shape[1]
    if drop[0] is not None:
        shares = random.dropout(drop[0], shares, drop[1])
    columns = torch.eye(heads, dtype=values.dtype, device=values.device).repeat_interleave(values.shape[1] // heads, 1)
    out: Tensor = into @ (linear(shares, columns) * (start @ values))
    if self_scores is not None:
        self_share = self_power / total
        if drop[0] is not None:
            self_share = random.dropout(random.fold(drop[0], "itself"), self_share, drop[1])
        out = out + linear(self_share, columns) * directions.target_rows(values, self_share.shape[0])
    return out


@dataclass(frozen=True)
class GATv2(AttentionModel):
    """`layers` attention convolutions whose scores see both ends together (Brody et al. 2022, eq. 7), with ELU and
    `dropout` after each but the last.

    Deviation: no dropout on the input features, which are often sparse.
    """

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        return self.stack(convolution_v2, features, classes, F.elu)


def convolution_v2(fan_in: int, fan_out: int, heads: int, concat: bool = True, rate: float = 0.0) -> Layer:
    """Σ_j a_ij W_l h_j + b over the neighbors j of node i and itself, per head, with a_ij the softmax over j of
    aᵀ LeakyReLU(W_l h_j + b_l + W_r h_i + b_r): PyG's `GATv2Conv`, initialized like it (Glorot, zero biases)."""
    wide, way = heads * fan_out, "undirected"

    def init(key: Tensor) -> Tree:
        weights = {name: blocks.glorot(random.fold(key, name), fan_in, wide) for name in ("left", "right")}
        biases = {f"{name}_bias": torch.zeros(wide, device=key.device) for name in weights}
        vector = blocks.glorot(random.fold(key, "attention"), heads, fan_out).flatten()
        bias = torch.zeros(wide if concat else fan_out, device=key.device)
        return {**weights, **biases, "attention": vector, "bias": bias}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        source = linear(h, w["left"]) + w["left_bias"]
        target = linear(h, w["right"]) + w["right_bias"]
        start, end = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to"))
        target = directions.target_rows(target, graph.edges.operator(operator_name("sum", way)).shape[0])
        vectors = head_sums(heads, fan_out, source) * w["attention"][:, None]
        scores = linear(F.leaky_relu(start @ source + end @ target, SLOPE), vectors)
        self_scores = linear(F.leaky_relu(directions.target_rows(source, target.shape[0]) + target, SLOPE), vectors)
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attend_along(graph, way, (scores, self_scores), source, (drop, rate))
        return join_heads(out, heads, concat, w["bias"])

    return Layer(init, apply, ("left", "right"), operator=operator_name("sum", way), reads="entries", along=(way,))


def head_sums(heads: int, columns: int, like: Tensor) -> Tensor:
    """[heads * columns, heads]: a product with it adds up each head's columns."""
    return torch.eye(heads, dtype=like.dtype, device=like.device).repeat_interleave(columns, 0)
