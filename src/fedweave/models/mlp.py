"""Multi-layer perceptron: the baseline that sees no edges, and FedEgo's reduction layers."""

from dataclasses import dataclass
from typing import Literal

from fedweave.core.maker import noted
from fedweave.core.model import Model
from fedweave.models import blocks


@dataclass(frozen=True)
class MLP:
    """`layers` linear layers of width `hidden`, with ReLU and `dropout` after each but the last.

    hidden:  width of the layers between.
    layers:  how many.
    dropout: share of a layer's outputs that is dropped in training.
    pool:    "sum" or "mean" over the nodes of each small graph, where these are the examples; then two linear layers
             follow (see `blocks.head`).

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99] or an unknown pool.
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    pool: Literal["none", "sum", "mean"] = "none"

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout, self.pool)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        return blocks.chain(blocks.affine, features, classes, self.hidden, self.layers, self.dropout, self.pool)
