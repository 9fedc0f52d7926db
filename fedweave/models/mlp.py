"""Multi-layer perceptron: the baseline that sees no edges, and FedEgo's reduction layers."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Layer, Model
from fedweave.core.tree import Tree
from fedweave.models import dense
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class MLP:
    """`layers` linear layers of width `hidden`, with ReLU and `dropout` after each but the last.

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
        dense.check(self.hidden, self.layers, self.dropout)

    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        return dense.chain(affine, features, classes, self.hidden, self.layers, self.dropout)


def affine(fan_in: int, fan_out: int) -> Layer:
    """H W + b, initialised like `torch.nn.Linear`."""

    def init(key: Tensor) -> Tree:
        return {
            "weight": dense.lecun(random.fold(key, "weight"), (fan_in, fan_out), fan_in),
            "bias": dense.lecun(random.fold(key, "bias"), (fan_out,), fan_in),
        }

    def apply(w: Tree, graph: Graph, h: Any, key: Tensor | None) -> Tensor:
        return linear(h, w["weight"]) + w["bias"]

    return Layer(init, apply, ("weight",))
