"""FedEgo's architecture (Zhang et al. 2023, sections 4.1 and 5.2): reduction and personalisation layers.

The reduction layers see each node by itself, so that an ego-graph can leave a client as low-dimensional embeddings; the
personalisation layers pass messages.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fedweave.core.model import Model
from fedweave.models import dense, sage


@dataclass(frozen=True)
class Ego:
    """One linear layer with ReLU, `layers` GraphSAGE convolutions with ReLU and a linear classifier, all of width
    `hidden`, with `dropout` after every ReLU. A node without neighbours is its own.

    hidden:            width of all layers but the classifier.
    layers:            how many convolutions.
    dropout:           share of a layer's outputs that is dropped in training.
    share_root_weight: one weight for a node and its neighbours (eq. 1 as printed) instead of two.
    linear:            no ReLU in the convolutions (the paper's FedEgo-Linear, eq. 9).
    order:             "gnn-mlp" puts the convolutions first, for the paper's "w/o EGO" (with `algorithm.hops = 0`).

    Raises:
        ConfigError: a size below 1 or a dropout outside [0, 0.99].
    """

    hidden: int = 256
    layers: int = 2
    dropout: float = 0.5
    share_root_weight: bool = False
    linear: bool = False
    order: Literal["mlp-gnn", "gnn-mlp"] = "mlp-gnn"

    def __post_init__(self) -> None:
        dense.check(self.hidden, self.layers, self.dropout)

    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        kinds = ["gnn"] * self.layers
        kinds = ["mlp", *kinds] if self.order == "mlp-gnn" else [*kinds, "mlp"]
        widths = [features, *[self.hidden] * len(kinds)]
        made = [
            dense.activated(dense.affine(*pair), self.dropout)
            if kind == "mlp"
            else dense.activated(
                sage.convolution(*pair, self.share_root_weight, "mean_or_self"), self.dropout, not self.linear
            )
            for kind, pair in zip(kinds, pairwise(widths), strict=True)
        ]
        return (*made, dense.affine(self.hidden, classes))
