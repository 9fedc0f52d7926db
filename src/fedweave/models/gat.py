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
from fedweave.core.bounds import Depth, DropRate, EdgeFeatures, Heads, Width
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models import blocks as ways
from fedweave.models.gine import marks
from fedweave.models.norms import Normed
from fedweave.ops.attention import attend, largest
from fedweave.ops.linear import linear

SLOPE = 0.2  # of LeakyReLU below 0


@dataclass(frozen=True)
class AttentionModel(Normed):
    """A model of convolutions whose attention has several heads.

    hidden:            columns of each head; a hidden representation has `heads` * `hidden`.
    layers:            number of convolutions.
    dropout:           share of a layer's outputs that is dropped in training.
    heads:             heads of every hidden layer, side by side.
    output_heads:      heads of the last layer, averaged.
    attention_dropout: share of the attention coefficients that is dropped in training.
    """

    hidden: Width = 8
    layers: Depth = 2
    dropout: DropRate = 0.5
    heads: Heads = 8
    output_heads: Heads = 1
    attention_dropout: DropRate = 0.0

    def stacked(
        self, make_layer: Callable[..., Layer], features: int, classes: int, activation: blocks.Activation
    ) -> Model:
        """Convolutions of `heads` side by side, normalized and activated, and a last one that averages its heads."""
        blocks.check_shape(features, classes)
        wide, rate = self.heads * self.hidden, self.attention_dropout
        fans_in = [features, *[wide] * (self.layers - 1)]
        hidden = (make_layer(fan_in, self.hidden, self.heads, rate=rate) for fan_in in fans_in[:-1])
        last = make_layer(fans_in[-1], classes, self.output_heads, concat=False, rate=rate)
        return (*(blocks.activated(layer, self.dropout, activation, self.norm, wide) for layer in hidden), last)


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
        """The model from `features` columns to `classes` logits."""
        blocks.check_shape(features, classes)
        first = (marks(),) if self.ego_ids else ()
        make_layer: Callable[..., Layer] = convolution
        if ways.read(self) or self.directed != "none":
            make_layer = partial(along_edges, edge_features=ways.read(self), directed=self.directed)
        return (*first, *self.stacked(make_layer, features + len(first), classes, F.elu))


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
        # one product with the heads' vectors on a block diagonal: as `linear` sums, bits do not depend on batching
        head_columns = torch.eye(heads, dtype=values.dtype, device=values.device).repeat_interleave(fan_out, 0)
        scores = linear(
            values, torch.cat([head_columns * w["source"][:, None], head_columns * w["target"][:, None]], 1)
        )
        source, target = scores.split(heads, 1)
        neighbors = graph.edges.operator("gcn")
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attend(neighbors, source, target[: neighbors.shape[0]], values, key=drop, rate=rate)
        result: Tensor = (out if concat else out.unflatten(1, (heads, fan_out)).mean(1)) + w["bias"]
        return result

    return Layer(init, apply, ("weight",), operator="gcn", reads="entries")


def along_edges(
    fan_in: int, fan_out: int, heads: int, edge_features: int, directed: str, concat: bool = True, rate: float = 0.0
) -> Layer:
    """`convolution` over single edges, whose features add a_e · W_e e_uv to a score before LeakyReLU. The self-loop
    has the mean features of the messages that reach the node. PyG's `GATConv(edge_dim=…)`, initialized like it."""
    make_layer = partial(_single, fan_in, fan_out, heads, edge_features, concat, rate)
    return ways.along(make_layer, fan_in, heads * fan_out if concat else fan_out, directed)


def _single(
    fan_in: int, fan_out: int, heads: int, edge_features: int, concat: bool, rate: float, way: str, loops: bool
) -> Layer:
    wide, plain = heads * fan_out, convolution(fan_in, fan_out, heads, concat)

    def init(key: Tensor) -> Tree:
        if not edge_features:
            return plain.init(key)
        of_edges = blocks.glorot(random.fold(key, "edge weight"), edge_features, wide)
        vector = blocks.glorot(random.fold(key, "edge"), heads, fan_out).flatten()
        return plain.init(key) | {"weight_edge": of_edges, "edge": vector}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        values = linear(h, w["weight"])
        head_columns = torch.eye(heads, dtype=values.dtype, device=values.device).repeat_interleave(fan_out, 0)
        source, target = linear(
            values, torch.cat([head_columns * w[end][:, None] for end in ("source", "target")], 1)
        ).split(heads, 1)
        start, end = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to"))
        rows = graph.edges.operator(operator_name("sum", way)).shape[0]
        scores, self_scores = start @ source + end @ target, ways.leading(source + target, rows)
        if edge_features:
            vectors = linear(w["weight_edge"], head_columns * w["edge"][:, None])
            scores = scores + ways.of_features(graph, "features", way, vectors)
            self_scores = self_scores + ways.of_features(graph, "feature_means", way, vectors)
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        scores, self_scores = F.leaky_relu(scores, SLOPE), F.leaky_relu(self_scores, SLOPE)
        out = attended(graph, way, (scores, self_scores if loops else None), values, (drop, rate))
        result: Tensor = (out if concat else out.unflatten(1, (heads, fan_out)).mean(1)) + w["bias"]
        return result

    return Layer(init, apply, ("weight",), operator=operator_name("sum", way), reads="entries")


def attended(
    graph: Graph, way: str, scores: tuple[Tensor, Tensor | None], values: Tensor, drop: tuple[Tensor | None, float]
) -> Tensor:
    """[n, H C]: sums of the source nodes' values [n, H C], weighted by the softmax of the messages' scores [m, H] at
    each target. The softmax includes the node's own score [n, H] where there is one."""
    start, end, into = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to", "sum"))
    sent, self_scores = scores
    top = largest(into, sent.detach())  # nothing overflows, and the softmax is the same
    top = top if self_scores is None else top.maximum(self_scores.detach())
    powers = torch.exp(sent - end @ top)
    total, itself = into @ powers, None if self_scores is None else torch.exp(self_scores - top)
    total = total if itself is None else total + itself
    reached = end @ torch.ones_like(values[:, :1])  # 0 at padding, which sends nothing to any node
    shares = powers / (end @ total + (1 - reached))
    heads = shares.shape[1]
    if drop[0] is not None:
        shares = random.dropout(drop[0], shares, drop[1])
    columns = torch.eye(heads, dtype=values.dtype, device=values.device).repeat_interleave(values.shape[1] // heads, 1)
    out: Tensor = into @ (linear(shares, columns) * (start @ values))
    if itself is not None:
        self_share = itself / total
        self_share = (
            self_share if drop[0] is None else random.dropout(random.fold(drop[0], "itself"), self_share, drop[1])
        )
        out = out + linear(self_share, columns) * ways.leading(values, self_share.shape[0])
    return out


@dataclass(frozen=True)
class GATv2(AttentionModel):
    """`layers` attention convolutions whose scores see both ends together (Brody et al. 2022, eq. 7), with ELU and
    `dropout` after each but the last.

    Deviation: no dropout on the input features, which are often sparse.
    """

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        return self.stacked(convolution_v2, features, classes, F.elu)


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
        left, right = (linear(h, w[name]) + w[f"{name}_bias"] for name in ("left", "right"))
        start, end = (graph.edges.operator(operator_name(what, way)) for what in ("from", "to"))
        right = ways.leading(right, graph.edges.operator(operator_name("sum", way)).shape[0])
        vectors = head_sums(heads, fan_out, left) * w["attention"][:, None]
        scores = linear(F.leaky_relu(start @ left + end @ right, SLOPE), vectors)
        self_scores = linear(F.leaky_relu(ways.leading(left, right.shape[0]) + right, SLOPE), vectors)
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attended(graph, way, (scores, self_scores), left, (drop, rate))
        result: Tensor = (out if concat else out.unflatten(1, (heads, fan_out)).mean(1)) + w["bias"]
        return result

    return Layer(init, apply, ("left", "right"), operator=operator_name("sum", way), reads="entries", along=(way,))


def head_sums(heads: int, columns: int, like: Tensor) -> Tensor:
    """[heads * columns, heads]: a product with it adds up each head's columns."""
    return torch.eye(heads, dtype=like.dtype, device=like.device).repeat_interleave(columns, 0)
