"""Graph convolutional network (Kipf and Welling 2017, "Semi-Supervised Classification with Graph Convolutional
Networks"), and two simpler models. Simple graph convolution has no weights between hops (Wu et al. 2019, "Simplifying
Graph Convolutional Networks"). The multi-layer perceptron is the baseline without edges.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Depth, DropRate, WidthOrNone
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.models.directions import along
from fedweave.models.norms import ConvolutionStack, LayerStack, Normed
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GCN(ConvolutionStack):
    """`layers` graph convolutions of width `hidden`, with ReLU and `dropout` after each but the last.

    linear:  adds a linear classifier after the last convolution, which then has width `hidden` (F²GNN's model).
    pool:    pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
             an experiment on small graphs the default is "mean". With pooling, two
             linear layers follow (`blocks.head`).
    directed: use of edge directions: "none", messages go both ways with the same weights; "forward", from sources to
              targets; "both", each way has separate weights.
    weighted: whether messages are multiplied by edge weights; None uses weights if the data has them.

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99], an unknown pool or use of directions, or both
            `linear` and pooling.
    """

    linear: bool = False
    pool: Literal["none", "sum", "mean"] = "none"
    directed: Literal["none", "forward", "both"] = "none"
    weighted: bool | None = None
    graph_pool: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        if self.linear and self.pool != "none":
            raise ConfigError(
                "linear = True: with pool, linear layers follow anyway. Leave one of them out.", code="config.value"
            )

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        make_layer = convolution
        if self.weighted or self.directed != "none":
            make_layer = partial(along_edges, directed=self.directed, weighted=bool(self.weighted))
        if not self.linear or self.jump != "none":  # after a jump, a linear layer comes last anyway
            return blocks.chain(make_layer, features, classes, self, self.pool)
        return (*blocks.chain(make_layer, features, self.hidden, self), blocks.affine(self.hidden, classes))


def along_edges(fan_in: int, fan_out: int, directed: str, weighted: bool) -> Layer:
    """`convolution` along directed edges; A sums the edges' weights if `weighted`. D~ sums the weights of the messages
    that reach a node (PyG's `GCNConv`). Each separate way has no I (`DirGNNConv`)."""

    def make_layer(way: str, loops: bool) -> Layer:
        what = ("gcn" if loops else "gcn_bare") + ("" if weighted else "_counted")
        return convolution(fan_in, fan_out, operator_name(what, way))._replace(reads="entries")  # single edges

    return along(make_layer, fan_in, fan_out, directed)


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
class SGC(Normed):
    """S^K X W + b with S = D~^-1/2 (A + I) D~^-1/2 (eq. 8, and a bias, as in PyG's `SGConv`).

    Computed from the right as S (… S (X W)) + b, the same product: sparse features meet W once, and messages have one
    column per class. The model is a linear layer and K layers that pass messages.

    layers:  number of times that messages pass, K.
    hidden:  width of hidden layers; each layer is then an `SGConv` with K = 1, with ReLU and `dropout` after all but
             the last, as in OpenFGL's model. 0 is the paper's model with one weight matrix.
    dropout: share of a hidden layer's outputs that is dropped in training.

    Raises:
        ConfigError: no layers, or too many, a negative width, a dropout outside [0, 0.99], or a norm without `hidden`.
    """

    layers: Depth = 2
    hidden: WidthOrNone = 0
    dropout: DropRate = 0.5

    def __post_init__(self) -> None:
        if self.norm != "none" and not self.hidden:
            raise ConfigError(
                f"norm = {self.norm!r}: without hidden there is no layer to normalize. Set model.hidden, such as "
                "64, or leave norm out.",
                code="config.value",
            )

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        if self.hidden:

            def simple(fan_in: int, fan_out: int) -> Layer:
                return convolution(fan_in, fan_out)._replace(init=blocks.affine(fan_in, fan_out).init)

            stack = ConvolutionStack(self.hidden, self.layers, self.dropout, norm=self.norm)
            return blocks.chain(simple, features, classes, stack)
        first = blocks.product(lambda key: blocks.lecun(key, (features, classes), features))
        return (first, *(_pass(0) for _ in range(1, self.layers)), _pass(classes))


def _pass(bias: int) -> Layer:
    """S H, plus a bias with `bias` columns unless that number is 0."""

    def init(key: Tensor) -> Tree:
        return {"bias": torch.zeros(bias, device=key.device)} if bias else {}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out: Tensor = graph.edges.operator("gcn") @ h
        return out + w["bias"] if bias else out

    return Layer(init, apply, operator="gcn")


@dataclass(frozen=True)
class MLP(LayerStack, Normed):
    """`layers` linear layers of width `hidden`, with ReLU and `dropout` after each but the last.

    pool:    pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
             an experiment on small graphs the default is "mean". With pooling, two
             linear layers follow (`blocks.head`).
    """

    pool: Literal["none", "sum", "mean"] = "none"
    graph_pool: ClassVar[str] = "mean"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        stack = ConvolutionStack(self.hidden, self.layers, self.dropout, norm=self.norm)
        return blocks.chain(blocks.affine, features, classes, stack, self.pool)
