"""GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec 2017, "Inductive Representation Learning on Large
Graphs")."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse


@dataclass(frozen=True)
class SAGE(ConvolutionStack):
    """`layers` mean-aggregator convolutions of width `hidden`, with ReLU and `dropout` after each but the last.

    pool:              pooling of a small graph's nodes, "sum" or "mean"; "none" if nodes are the examples. In
                       an experiment on small graphs the default is "mean". With pooling, two
                       linear layers follow (`blocks.head`).
    share_root_weight: one weight for a node and its neighbors instead of two, as FedEgo's eq. 1 prints it.
    """

    share_root_weight: bool = False
    pool: Literal["none", "sum", "mean"] = "none"
    graph_pool: ClassVar[str] = "mean"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        make_layer = partial(convolution, share_root_weight=self.share_root_weight)
        return blocks.chain(make_layer, features, classes, self, self.pool)


def convolution(fan_in: int, fan_out: int, share_root_weight: bool = False, operator: str = "mean") -> Layer:
    """W_root h + W_neigh mean(h of the neighbors) + b. Without neighbors the mean is 0 (or, with the operator
    "mean_or_self", the node itself).

    The two weights side by side are algorithm 1's W on CONCAT(h, mean). The bias and the initial values are as in
    PyG's `SAGEConv`. With `share_root_weight` W_root is W_neigh (FedEgo eq. 1, and a bias).
    """
    names = ("neigh",) if share_root_weight else ("root", "neigh")

    def init(key: Tensor) -> Tree:
        weights = {name: blocks.lecun(random.fold(key, name), (fan_in, fan_out), fan_in) for name in names}
        return weights | {"bias": blocks.lecun(random.fold(key, "bias"), (fan_out,), fan_in)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        bias: Tensor = w["bias"]
        if graph.edges.shrinks and not isinstance(h, Sparse):  # fewer rows are left to multiply after the mean
            self_rows, means = graph.edges.with_means(h, operator)
            if share_root_weight:
                return linear(self_rows + means, w["neigh"]) + bias
            return linear(self_rows, w["root"]) + linear(means, w["neigh"]) + bias
        neigh = linear(h, w["neigh"])
        root = neigh if share_root_weight else linear(h, w["root"])
        means = graph.edges.operator(operator) @ neigh
        return root[: means.shape[0]] + means + bias

    return Layer(init, apply, names, operator)
