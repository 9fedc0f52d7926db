"""ACM-GCN (Luan et al. 2022, "Revisiting Heterophily For Graph Neural Networks")."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.maker import noted
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.ops.linear import linear

CHANNELS = ("low", "high", "own")


@dataclass(frozen=True)
class ACMGCN:
    """`layers` convolutions that mix three channels, node by node, with `dropout` after each but the last.

    Each node weighs what it has in common with its neighbours (low-pass), what sets it apart from them (high-pass) and
    what it is itself, so that neighbours of other classes can help.

    Deviation: no dropout on the input features, which are often sparse.

    hidden:  width of the layers between.
    layers:  how many.
    dropout: share of a layer's outputs that is dropped in training.

    Raises:
        ConfigError: a size below 1 or a dropout outside [0, 0.99].
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        return blocks.chain(convolution, features, classes, self.hidden, self.layers, self.dropout)


def convolution(fan_in: int, fan_out: int) -> Layer:
    """3 (α_L H_L + α_H H_H + α_I H_I) with H_L = ReLU(S H W_L), H_H = ReLU((I - S) H W_H), H_I = ReLU(H W_I), and
    α = softmax(σ([H_L v_L, H_H v_H, H_I v_I]) M / 3) for every node, S = D~^-1/2 (A + I) D~^-1/2.

    The factor 3, by which equal weights add up channels as they are, is the authors' code's. Initialised like theirs:
    uniform with bound 1 / sqrt(columns).
    """

    def init(key: Tensor) -> Tree:
        def drawn(name: str, rows: int, columns: int) -> Tensor:
            return blocks.uniform(random.fold(key, name), (rows, columns), 1 / math.sqrt(columns))

        weights = {name: drawn(name, fan_in, fan_out) for name in CHANNELS}
        scores = {f"score_{name}": drawn(f"score_{name}", fan_out, 1) for name in CHANNELS}
        return weights | scores | {"mix": drawn("mix", len(CHANNELS), len(CHANNELS))}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        operator = graph.edges.operator("gcn")
        low, high, own = (linear(h, w[name]) for name in CHANNELS)
        rows = operator.shape[0] if graph.edges.shrinks else own.shape[0]
        found = (operator @ low, high[:rows] - operator @ high, own[:rows])
        channels = [torch.relu(one) for one in found]
        scores = [linear(one, w[f"score_{name}"]) for one, name in zip(channels, CHANNELS, strict=True)]
        shares = torch.softmax(linear(torch.sigmoid(torch.cat(scores, 1)), w["mix"]) / len(CHANNELS), 1)
        mixed = [share * one for share, one in zip(shares.split(1, 1), channels, strict=True)]
        result: Tensor = len(CHANNELS) * (mixed[0] + mixed[1] + mixed[2])
        return result

    return Layer(init, apply, CHANNELS, operator="gcn")
