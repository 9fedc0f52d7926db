"""FedEgo's architecture (Zhang et al. 2023, sections 4.1 and 5.2): reduction and personalization layers.

The reduction layers see each node on its own, so that an ego-graph can leave a client as low-dimensional embeddings;
the personalization layers pass messages.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from fedweave.core.model import Model
from fedweave.core.plugins import remember_maker
from fedweave.models import blocks, sage
from fedweave.models.norms import LayerStack


@dataclass(frozen=True)
class Ego(LayerStack):
    """One linear layer with ReLU, `layers` GraphSAGE convolutions with ReLU and a linear classifier, all of width
    `hidden`, with dropout after ReLU. A node without neighbors counts as its own neighbor.

    hidden:            width of all layers but the classifier; the paper's is 512 (its Table 9).
    layers:            number of convolutions.
    dropped:           layers before the classifier that have dropout: "all" of them, or the "ends", the first and the
                       last (as in the released code).
    initial:           weights drawn "uniform" as by `torch.nn.Linear`, or "kaiming"-normal (He et al. 2015; as in the
                       released code).
    share_root_weight: one weight for a node and its neighbors (eq. 1 as printed) instead of two.
    linear:            no ReLU in the convolutions (the paper's FedEgo-Linear, eq. 9).
    order:             "gnn-mlp" puts the convolutions first, for the paper's "w/o EGO" (with `algorithm.hops = 0`).
    """

    hidden: int = 512
    dropped: Literal["all", "ends"] = "all"
    initial: Literal["uniform", "kaiming"] = "uniform"
    share_root_weight: bool = False
    linear: bool = False
    order: Literal["mlp-gnn", "gnn-mlp"] = "mlp-gnn"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        kinds = ["gnn"] * self.layers
        kinds = ["mlp", *kinds] if self.order == "mlp-gnn" else [*kinds, "mlp"]
        layers, fan_in = [], features
        for at, kind in enumerate(kinds):
            activation: blocks.Activation | None = torch.relu
            if kind == "mlp":
                layer = blocks.affine(fan_in, self.hidden)
            else:
                layer = sage.convolution(fan_in, self.hidden, self.share_root_weight, "mean_or_self")
                activation = None if self.linear else torch.relu
            rate = self.dropout if self.dropped == "all" or at in (0, len(kinds) - 1) else 0.0
            layers.append(blocks.with_activation(layer, rate, activation))
            fan_in = self.hidden
        layers.append(blocks.affine(self.hidden, classes))
        return tuple(layers) if self.initial == "uniform" else tuple(map(blocks.kaiming, layers))
