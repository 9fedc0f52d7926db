"""Graph convolutional network (Kipf and Welling 2017, "Semi-Supervised Classification with Graph Convolutional
Networks"), and what is left of it without weights between its hops, simple graph convolution (Wu et al. 2019,
"Simplifying Graph Convolutional Networks"), and without edges, a multi-layer perceptron: the baseline that sees none.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.edge_attributes import named
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import noted
from fedweave.core.settings import Choices
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.models import blocks as ways
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GCN(Choices):
    """`layers` graph convolutions of width `hidden`, with ReLU and `dropout` after each but the last.

    hidden:  width of the layers between.
    layers:  number of layers.
    dropout: share of a layer's outputs that is dropped in training.
    linear:  a linear classifier follows the last convolution, which is then of width `hidden` (F²GNN's model).
    pool:    how the nodes of a small graph are joined, "sum" or "mean"; "none" where nodes are examples. In
             an experiment on small graphs the default is "mean". With it, two
             linear layers follow (`blocks.head`).
    directed: "none", messages go both ways alike; "forward", from sources to targets; "both", with separate weights for
             either way.
    weighted: whether edges count by their weight; None: where the data's have one.

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99], an unknown pool or use of directions, or `linear` and
            pooling.
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    linear: bool = False
    pool: Literal["none", "sum", "mean"] = "none"
    directed: Literal["none", "forward", "both"] = "none"
    weighted: bool | None = None
    graph_pool: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout, self.pool)
        ways.check_directed(self.directed)
        if self.linear and self.pool != "none":
            raise ConfigError("model linear = true: with pool, linear layers follow anyway; leave one of them out.")

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        make_layer = convolution
        if self.weighted or self.directed != "none":
            make_layer = partial(along_edges, directed=self.directed, weighted=bool(self.weighted))
        if self.linear:
            convolutions = blocks.chain(make_layer, features, self.hidden, self.hidden, self.layers, self.dropout)
            return (*convolutions, blocks.affine(self.hidden, classes))
        return blocks.chain(make_layer, features, classes, self.hidden, self.layers, self.dropout, self.pool)


def along_edges(fan_in: int, fan_out: int, directed: str, weighted: bool) -> Layer:
    """`convolution` with the sums of edges' weights as A, if `weighted`, and their directions: D~ has the weights of
    what reaches a node (PyG's `GCNConv`); each way by itself is without I (`DirGNNConv`)."""

    def make_layer(way: str, loops: bool) -> Layer:
        what = ("gcn" if loops else "gcn_bare") + ("" if weighted else "_counted")
        return convolution(fan_in, fan_out, named(what, way))._replace(reads="entries")  # of single edges

    return ways.along(make_layer, fan_in, fan_out, directed)


def convolution(fan_in: int, fan_out: int, operator: str = "gcn") -> Layer:
    """D~^-1/2 (A + I) D~^-1/2 H W + b (eq. 2, and a bias); initialized like PyG's `GCNConv` (Glorot, zero bias)."""

    def init(key: Tensor) -> Tree:
        weight = blocks.glorot(random.fold(key, "weight"), fan_in, fan_out)
        return {"weight": weight, "bias": torch.zeros(fan_out, device=key.device)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        result: Tensor = graph.edges.operator(operator) @ linear(h, w["weight"]) + w["bias"]
        return result

    return Layer(init, apply, ("weight",), operator=operator)


@dataclass(frozen=True)
class SGC(Choices):
    """S^K X W + b with S = D~^-1/2 (A + I) D~^-1/2 (eq. 8, and a bias, as in PyG's `SGConv`).

    Computed as S (… S (X W)) + b, the same product from the right, in which sparse features meet W once and messages
    are as wide as there are classes: a linear layer, and K that pass messages.

    layers: number of times that messages pass, K.

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
        first = blocks.product(lambda key: blocks.lecun(key, (features, classes), features))
        return (first, *(_pass(0) for _ in range(1, self.layers)), _pass(classes))


def _pass(bias: int) -> Layer:
    """S H, plus a bias of that many columns unless they are 0."""

    def init(key: Tensor) -> Tree:
        return {"bias": torch.zeros(bias, device=key.device)} if bias else {}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out: Tensor = graph.edges.operator("gcn") @ h
        return out + w["bias"] if bias else out

    return Layer(init, apply, operator="gcn")


@dataclass(frozen=True)
class MLP(Choices):
    """`layers` linear layers of width `hidden`, with ReLU and `dropout` after each but the last.

    hidden:  width of the layers between.
    layers:  number of layers.
    dropout: share of a layer's outputs that is dropped in training.
    pool:    how the nodes of a small graph are joined, "sum" or "mean"; "none" where nodes are examples. In
             an experiment on small graphs the default is "mean". With it, two
             linear layers follow (`blocks.head`).

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99] or an unknown pool.
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    pool: Literal["none", "sum", "mean"] = "none"
    graph_pool: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout, self.pool)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        return blocks.chain(blocks.affine, features, classes, self.hidden, self.layers, self.dropout, self.pool)
