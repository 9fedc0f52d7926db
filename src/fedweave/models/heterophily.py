"""Models for graphs whose neighbors have other classes, and APPNP, which passes an MLP's logits on.

GPR-GNN: Chien et al. 2021, "Adaptive Universal Generalized PageRank Graph Neural Network". ACM-GCN: Luan et al. 2022,
"Revisiting Heterophily For Graph Neural Networks". H2GCN: Zhu et al. 2020, "Beyond Homophily in Graph Neural Networks:
Current Limitations and Effective Designs".
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Fraction
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.norms import ConvolutionStack, LayerStack
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GPRGNN(LayerStack):
    """Z = Σ_k γ_k S^k H0, k = 0 … K, with H0 an MLP's logits and trained weights γ of the hops (eq. 1), which may
    become negative, so that neighbors can count against a class.

    γ is initialized as in personalized PageRank: γ_k = alpha (1 - alpha)^k and γ_K = (1 - alpha)^K.

    Deviation: no dropout on the input features, which are often sparse.

    hidden:  width of the MLP's hidden layer.
    layers:  number of times that messages pass, K.
    dropout: share of the hidden layer's outputs that is dropped in training.
    alpha:   initial probability that a walk returns to its start, 0 to 1.
    """

    layers: int = 10
    alpha: Fraction = 0.1

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        mlp = blocks.chain(blocks.affine, features, classes, ConvolutionStack(self.hidden, 2, self.dropout))
        hops, alpha = self.layers, self.alpha

        def init(key: Tensor) -> Tree:
            walk = [alpha * (1 - alpha) ** k for k in range(hops)]
            return {"gamma": torch.tensor([*walk, (1 - alpha) ** hops], device=key.device)[:, None]}

        def weigh_hops(w: Tree, graph: Graph, h: Tree, key: Tensor | None) -> Tensor:
            stacked = torch.stack([*(h[f"hop{k}"] for k in range(hops)), h["h"]], -1)  # [n, classes, hops + 1]
            return linear(stacked.flatten(0, 1), w["gamma"]).view(stacked.shape[:2])

        return (*mlp, *(_hop(k) for k in range(hops)), Layer(init, weigh_hops))


def _hop(k: int) -> Layer:
    """S^k H0 to S^(k+1) H0, together with the earlier hops: {"h", "hop0", "hop1", …}."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tree:
        before: Tree = h if k else {"h": h}
        operator = graph.edges.operator("gcn")
        rows = operator.shape[0] if graph.edges.shrinks else before["h"].shape[0]
        hops = {name: value[:rows] for name, value in before.items() if name != "h"}
        return hops | {f"hop{k}": before["h"][:rows], "h": operator @ before["h"]}

    return Layer(lambda key: {}, apply, operator="gcn", collects=True)


@dataclass(frozen=True)
class APPNP(LayerStack):
    """Z_K of Z_{k+1} = (1 − α) S Z_k + α H, with Z_0 = H an MLP's logits (Gasteiger, Bojchevski and Günnemann 2019,
    "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", eq. 4).

    Deviation: no dropout on the input features, which are often sparse, nor on edges.

    hidden:  width of the MLP's hidden layer.
    layers:  number of times that messages pass, K.
    dropout: share of the hidden layer's outputs that is dropped in training.
    alpha:   probability that a walk returns to its start, 0 to 1.
    """

    layers: int = 10
    alpha: Fraction = 0.1

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        mlp = blocks.chain(blocks.affine, features, classes, ConvolutionStack(self.hidden, 2, self.dropout))
        return (*mlp, *(_walk(k, k == self.layers - 1, self.alpha) for k in range(self.layers)))


def _walk(k: int, last: bool, alpha: float) -> Layer:
    """Z_k to Z_{k+1}, together with H before the last step: {"h", "start"}."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        before: Tree = h if k else {"h": h, "start": h}
        operator = graph.edges.operator("gcn")
        rows = operator.shape[0] if graph.edges.shrinks else before["h"].shape[0]
        start = before["start"][:rows]
        now = (1 - alpha) * (operator @ before["h"]) + alpha * start
        return now if last else {"h": now, "start": start}

    return Layer(lambda key: {}, apply, operator="gcn")


CHANNELS = ("low", "high", "own")


@dataclass(frozen=True)
class ACMGCN(ConvolutionStack):
    """`layers` convolutions that mix three channels, node by node, with `dropout` after each but the last.

    Each node weighs what it shares with its neighbors (low-pass), how it differs from them (high-pass) and its own
    features. Neighbors of other classes can therefore help.

    Deviation: no dropout on the input features, which are often sparse.
    """

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        return blocks.chain(convolution, features, classes, self)


def convolution(fan_in: int, fan_out: int) -> Layer:
    """3 (α_L H_L + α_H H_H + α_I H_I) with H_L = ReLU(S H W_L), H_H = ReLU((I - S) H W_H), H_I = ReLU(H W_I), and
    α = softmax(σ([H_L v_L, H_H v_H, H_I v_I]) M / 3) for every node, S = D~^-1/2 (A + I) D~^-1/2.

    The authors' code has the factor 3: with equal weights the channels are added unscaled. Initialized like that code:
    uniform with bound 1 / sqrt(columns).
    """

    def init(key: Tensor) -> Tree:
        def uniform_matrix(name: str, rows: int, columns: int) -> Tensor:
            return blocks.uniform(random.fold(key, name), (rows, columns), 1 / math.sqrt(columns))

        weights = {name: uniform_matrix(name, fan_in, fan_out) for name in CHANNELS}
        scores = {f"score_{name}": uniform_matrix(f"score_{name}", fan_out, 1) for name in CHANNELS}
        return weights | scores | {"mix": uniform_matrix("mix", len(CHANNELS), len(CHANNELS))}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        operator = graph.edges.operator("gcn")
        low, high, identity = (linear(h, w[name]) for name in CHANNELS)
        rows = operator.shape[0] if graph.edges.shrinks else identity.shape[0]
        signals = (operator @ low, high[:rows] - operator @ high, identity[:rows])
        channels = [torch.relu(signal) for signal in signals]
        scores = [linear(channel, w[f"score_{name}"]) for channel, name in zip(channels, CHANNELS, strict=True)]
        shares = torch.softmax(linear(torch.sigmoid(torch.cat(scores, 1)), w["mix"]) / len(CHANNELS), 1)  # [n, 3]
        low, high, identity = (share * channel for share, channel in zip(shares.split(1, 1), channels, strict=True))
        result: Tensor = len(CHANNELS) * (low + high + identity)
        return result

    return Layer(init, apply, CHANNELS, operator="gcn")


MAX_ROUNDS = 8  # the embedding is 2^(rounds + 1) - 1 times as wide as `hidden`


@dataclass(frozen=True)
class H2GCN(LayerStack):
    """The embeddings of a node, its neighbors and its neighbors' neighbors, side by side (algorithm 1).

    H0 = ReLU(X W). Each round makes [S1 H | S2 H] of the previous round's H, without weights: S1 over neighbors and S2
    over nodes at distance two, neither with self-loops. The logits are linear in [H0 | H1 | …] after dropout.

    Messages pass along whole graphs: sampled neighbors cannot give the nodes at distance two.

    hidden:  width of H0.
    layers:  rounds of messages, up to 8.
    dropout: share of the concatenated embedding that is dropped in training.
    """

    layers: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 2

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        width = self.hidden * (2 ** (self.layers + 1) - 1)
        *rounds, last = [_round(k) for k in range(self.layers)]

        def join_rounds(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
            out = last.apply(w, graph, h, key)
            return torch.cat([*(out[f"round{k}"] for k in range(self.layers)), out["h"]], 1)

        first = blocks.with_activation(blocks.product(lambda key: blocks.glorot(key, features, self.hidden)), 0.0)
        joined = blocks.with_activation(last._replace(apply=join_rounds), self.dropout, None)
        return (first, *rounds, joined, blocks.product(lambda key: blocks.glorot(key, width, classes)))


def _round(k: int) -> Layer:
    """{"h": H_(k+1), "round0": H0, …, "round<k>": H_k}."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tree:
        before: Tree = h if k else {"h": h}
        near, far = (graph.edges.operator(kind) @ before["h"] for kind in ("neighbours", "two_hops"))
        rounds = {name: value for name, value in before.items() if name != "h"}
        return rounds | {f"round{k}": before["h"], "h": torch.cat([near, far], 1)}

    return Layer(lambda key: {}, apply, operator="neighbours", reads="graph")
