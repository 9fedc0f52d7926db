"""FedEgo's architecture (Zhang et al. 2023, sections 4.1 and 5.2): reduction and personalization layers.

The reduction layers see each node by itself, so that an ego-graph can leave a client as low-dimensional embeddings; the
personalization layers pass messages.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from fedweave.core.bounds import Depth, DropRate, Width
from fedweave.core.model import Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.settings import Settings
from fedweave.models import blocks, sage


@dataclass(frozen=True)
class Ego(Settings):
    """One linear layer with ReLU, `layers` GraphSAGE convolutions with ReLU and a linear classifier, all of width
    `hidden`, with dropout after ReLU. A node without neighbors counts as its own neighbor.

    hidden:            width of all layers but the classifier; the paper's is 512 (its Table 9).
    layers:            number of convolutions.
    dropout:           share of a layer's outputs that is dropped in training.
    dropped:           layers before the classifier that have dropout: "all" of them, or the "ends", the first and the
                       last (as in the released code).
    initial:           weights drawn "uniform" as by `torch.nn.Linear`, or "kaiming"-normal (He et al. 2015; as in the
                       released code).
    share_root_weight: one weight for a node and its neighbors (eq. 1 as printed) instead of two.
    linear:            no ReLU in the convolutions (the paper's FedEgo-Linear, eq. 9).
    order:             "gnn-mlp" puts the convolutions first, for the paper's "w/o EGO" (with `algorithm.hops = 0`).
    """

    hidden: Width = 512
    layers: Depth = 2
    dropout: DropRate = 0.5
    dropped: Literal["all", "ends"] = "all"
    initial: Literal["uniform", "kaiming"] = "uniform"
    share_root_weight: bool = False
    linear: bool = False
    order: Literal["mlp-gnn", "gnn-mlp"] = "mlp-gnn"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        kinds = ["gnn"] * self.layers
        kinds = ["mlp", *kinds] if self.order == "mlp-gnn" else [*kinds, "mlp"]
        widths = [features, *[self.hidden] * len(kinds)]
        stack = [self._layer(kind, *pair) for kind, pair in zip(kinds, pairwise(widths), strict=True)]
        rates = [self.dropout if self.dropped == "all" or i in (0, len(stack) - 1) else 0.0 for i in range(len(stack))]
        activations = [torch.relu if kind == "mlp" or not self.linear else None for kind in kinds]
        layers = (*map(blocks.activated, stack, rates, activations), blocks.affine(self.hidden, classes))
        return layers if self.initial == "uniform" else tuple(map(blocks.kaiming, layers))

    def _layer(self, kind: str, fan_in: int, fan_out: int) -> Layer:
        if kind == "mlp":
            return blocks.affine(fan_in, fan_out)
        return sage.convolution(fan_in, fan_out, self.share_root_weight, "mean_or_self")
