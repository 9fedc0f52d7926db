"""Simple graph convolution (Wu et al. 2019, "Simplifying Graph Convolutional Networks")."""

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


@dataclass(frozen=True)
class SGC:
    """S^K X W + b with S = D~^-1/2 (A + I) D~^-1/2 (eq. 8, and a bias, as in PyG's `SGConv`).

    Computed as S (… S (X W)) + b, the same product from the right, in which sparse features meet W once and messages
    are as wide as there are classes: a linear layer, and K that pass messages.

    layers: how many times messages pass, K.

    Raises:
        ConfigError: no layers, or too many.
    """

    layers: int = 2

    def __post_init__(self) -> None:
        blocks.check_count("layers", self.layers, 1 << 12)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits: `layers` + 1 layers."""
        blocks.check_shape(features, classes)
        return (_weights(features, classes), *(_pass(0) for _ in range(1, self.layers)), _pass(classes))


def _weights(fan_in: int, fan_out: int) -> Layer:
    """H W, initialised like PyG's `Linear`."""

    def init(key: Tensor) -> Tree:
        return {"weight": blocks.lecun(random.fold(key, "weight"), (fan_in, fan_out), fan_in)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        return linear(h, w["weight"])

    return Layer(init, apply, ("weight",))


def _pass(bias: int) -> Layer:
    """S H, plus a bias of that many columns unless they are 0."""

    def init(key: Tensor) -> Tree:
        return {"bias": torch.zeros(bias, device=key.device)} if bias else {}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out: Tensor = graph.edges.operator("gcn") @ h
        return out + w["bias"] if bias else out

    return Layer(init, apply, operator="gcn")
