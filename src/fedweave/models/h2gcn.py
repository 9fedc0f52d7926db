"""H2GCN (Zhu et al. 2020, "Beyond Homophily in Graph Neural Networks: Current Limitations and Effective Designs")."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.maker import noted
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.ops.linear import linear

MOST_ROUNDS = 8  # the embedding is 2^(rounds + 1) - 1 times as wide as `hidden`


@dataclass(frozen=True)
class H2GCN:
    """A node's own embedding, its neighbours' and those of the neighbours' neighbours, side by side (algorithm 1).

    H0 = ReLU(X W); round k makes [S1 H | S2 H] of the round's before, without weights, S1 over neighbours and S2 over
    nodes at distance two, neither with the node itself; the logits are linear in [H0 | H1 | …] after dropout.

    Messages pass along whole graphs: sampled neighbours cannot give the nodes at distance two.

    hidden:  width of H0.
    layers:  how many rounds of messages, up to 8.
    dropout: share of the joined embedding that is dropped in training.

    Raises:
        ConfigError: a size below 1, too many rounds, or a dropout outside [0, 0.99].
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout)
        if self.layers > MOST_ROUNDS:
            raise ConfigError(
                f"model layers = {self.layers}; each doubles the width: at most {MOST_ROUNDS}.", code="config.value"
            )

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits: `layers` + 2 layers."""
        blocks.check_shape(features, classes)
        wide = self.hidden * (2 ** (self.layers + 1) - 1)
        between = (_round(k) for k in range(self.layers - 1))
        last = blocks.activated(_joined(self.layers - 1), self.dropout, relu=False)
        first = blocks.activated(_weights(features, self.hidden), 0.0)
        return (first, *between, last, _weights(wide, classes))


def _weights(fan_in: int, fan_out: int) -> Layer:
    """H W (Glorot)."""

    def init(key: Tensor) -> Tree:
        return {"weight": blocks.glorot(random.fold(key, "weight"), fan_in, fan_out)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        return linear(h, w["weight"])

    return Layer(init, apply, ("weight",))


def _round(k: int) -> Layer:
    """{"h": H_(k+1), "round0": H0, …, "round<k>": H_k}."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tree:
        before: Tree = h if k else {"h": h}
        near, far = (graph.edges.operator(kind) @ before["h"] for kind in ("neighbours", "two_hops"))
        kept = {name: value for name, value in before.items() if name != "h"}
        return kept | {f"round{k}": before["h"], "h": torch.cat([near, far], 1)}

    return Layer(lambda key: {}, apply, operator="neighbours", reads="graph")


def _joined(k: int) -> Layer:
    """The last round, and all rounds side by side."""
    layer = _round(k)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out = layer.apply(w, graph, h, key)
        return torch.cat([*(out[f"round{i}"] for i in range(k + 1)), out["h"]], 1)

    return layer._replace(apply=apply)
