"""Graph attention network (Velickovic et al. 2018, "Graph Attention Networks")."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.maker import noted
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.ops.attention import attend
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GAT:
    """`layers` attention convolutions, with ELU and `dropout` after each but the last.

    Deviation: no dropout on the input features, which are often sparse.

    hidden:            columns of each head; a hidden representation has `heads` * `hidden`.
    layers:            how many convolutions.
    dropout:           share of a layer's outputs that is dropped in training.
    heads:             heads of every hidden layer, side by side.
    output_heads:      heads of the last layer, averaged.
    attention_dropout: share of the attention coefficients that is dropped in training.

    Raises:
        ConfigError: a size below 1 or a dropout outside [0, 0.99].
    """

    hidden: int = 8
    layers: int = 2
    dropout: float = 0.5
    heads: int = 8
    output_heads: int = 1
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout)
        blocks.check_count("heads", self.heads, 1 << 10)
        blocks.check_count("output_heads", self.output_heads, 1 << 10)
        if not 0 <= self.attention_dropout <= 0.99:
            rate = self.attention_dropout
            raise ConfigError(f"model attention_dropout = {rate}; it is a probability from 0 (off) to 0.99.")

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        if features < 1 or classes < 1:
            raise ConfigError(f"a model of {features} features and {classes} classes; it needs at least 1 of each.")
        wide = self.heads * self.hidden
        fans_in = [features, *[wide] * (self.layers - 1)]
        rate = self.attention_dropout
        hidden = (convolution(fan_in, self.hidden, self.heads, rate=rate) for fan_in in fans_in[:-1])
        last = convolution(fans_in[-1], classes, self.output_heads, concat=False, rate=rate)
        return (*(blocks.activated(_elu(layer), self.dropout, relu=False) for layer in hidden), last)


def convolution(fan_in: int, fan_out: int, heads: int, concat: bool = True, rate: float = 0.0) -> Layer:
    """Σ_j a_ij W h_j + b over the neighbours j of node i and itself, per head (eqs. 3 and 4); `fan_out` columns a head.

    Heads stand side by side (eq. 5) or, without `concat`, are averaged (eq. 6). "source" and "target" [heads * fan_out]
    are the halves of the attention vector that meet W h_j and W h_i. Where message passing leaves fewer rows, these are
    the first rows of h. `rate` is the dropout on a_ij. Initialised like PyG's `GATConv` (Glorot, zero bias).
    """
    wide = heads * fan_out

    def init(key: Tensor) -> Tree:
        names = "source", "target"
        halves = {name: blocks.glorot(random.fold(key, name), heads, fan_out).flatten() for name in names}
        weight = blocks.glorot(random.fold(key, "weight"), fan_in, wide)
        return {"weight": weight, **halves, "bias": torch.zeros(wide if concat else fan_out, device=key.device)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        values = linear(h, w["weight"])
        # one product with the heads' vectors on a block diagonal: as `linear` sums, bits do not depend on batching
        own = torch.eye(heads, dtype=values.dtype, device=values.device).repeat_interleave(fan_out, 0)
        scores = linear(values, torch.cat([own * w["source"][:, None], own * w["target"][:, None]], 1))
        source, target = scores.split(heads, 1)
        neighbours = graph.edges.operator("gcn")
        drop = None if key is None or rate == 0 else random.fold(key, "attention")
        out = attend(neighbours, source, target[: neighbours.shape[0]], values, key=drop, rate=rate)
        result: Tensor = (out if concat else out.unflatten(1, (heads, fan_out)).mean(1)) + w["bias"]
        return result

    return Layer(init, apply, ("weight",), operator="gcn", reads="entries")


def _elu(layer: Layer) -> Layer:
    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        return F.elu(layer.apply(w, graph, h, key))

    return layer._replace(apply=apply)
