"""GPR-GNN (Chien et al. 2021, "Adaptive Universal Generalized PageRank Graph Neural Network")."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.core.maker import noted
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GPRGNN:
    """Z = Σ_k γ_k S^k H0, k = 0 … K, with H0 an MLP's logits and trained weights γ of the hops (eq. 1), which may
    become negative, so that neighbours can count against a class.

    γ begins as personalised PageRank's: γ_k = alpha (1 - alpha)^k and γ_K = (1 - alpha)^K.

    Deviation: no dropout on the input features, which are often sparse.

    hidden:  width of the MLP's hidden layer.
    layers:  how many times messages pass, K.
    dropout: share of the hidden layer's outputs that is dropped in training.
    alpha:   with what probability a walk returns to where it began, at first; 0 to 1.

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99] or an alpha outside [0, 1].
    """

    hidden: int = 64
    layers: int = 10
    dropout: float = 0.5
    alpha: float = 0.1

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout)
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"model alpha = {self.alpha}; it is a probability from 0 to 1.", code="config.value")

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits: `layers` + 3 layers."""
        mlp = blocks.chain(blocks.affine, features, classes, self.hidden, 2, self.dropout)
        return (*mlp, *(_hop(k) for k in range(self.layers)), _weighted(self.layers, self.alpha))


def _hop(k: int) -> Layer:
    """S^k H0 to S^(k+1) H0, with those of fewer hops beside: {"h", "hop0", "hop1", …}."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tree:
        before: Tree = h if k else {"h": h}
        operator = graph.edges.operator("gcn")
        rows = operator.shape[0] if graph.edges.shrinks else before["h"].shape[0]
        kept = {name: value[:rows] for name, value in before.items() if name != "h"}
        return kept | {f"hop{k}": before["h"][:rows], "h": operator @ before["h"]}

    return Layer(lambda key: {}, apply, operator="gcn")


def _weighted(hops: int, alpha: float) -> Layer:
    """Σ_k γ_k S^k H0."""

    def init(key: Tensor) -> Tree:
        walk = [alpha * (1 - alpha) ** k for k in range(hops)]
        return {"gamma": torch.tensor([*walk, (1 - alpha) ** hops], device=key.device)[:, None]}

    def apply(w: Tree, graph: Graph, h: Tree, key: Tensor | None) -> Tensor:
        every = torch.stack([*(h[f"hop{k}"] for k in range(hops)), h["h"]], -1)  # [n, classes, hops + 1]
        return linear(every.flatten(0, 1), w["gamma"]).view(every.shape[:2])

    return Layer(init, apply)
