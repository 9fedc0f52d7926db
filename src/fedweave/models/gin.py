"""Graph isomorphism network (Xu et al. 2019, "How powerful are graph neural networks?")."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedweave.core import random
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph
from fedweave.core.maker import noted
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.models import blocks, kinds
from fedweave.ops.affine import affine


@dataclass(frozen=True)
class GIN:
    """A linear layer, `layers` GIN convolutions with ReLU and `dropout`, pooling, a linear layer with ReLU and
    `dropout`, and a linear classifier, all of width `hidden`.

    As in FairGraphFL and GCFL: epsilon is 0 and fixed, no batch norm, and the graph's embedding is the pooled last
    layer, where Xu et al. join those of all layers (eq. 4.2).

    hidden:  width of all layers but the classifier.
    layers:  how many convolutions.
    dropout: share of a layer's outputs that is dropped in training.
    pool:    "sum" or "mean" over the nodes of each small graph, where these are the examples; "none" for nodes.

    Raises:
        ConfigError: a size below 1, a dropout outside [0, 0.99] or an unknown pool.
    """

    hidden: int = 64
    layers: int = 3
    dropout: float = 0.5
    pool: Literal["none", "sum", "mean"] = "none"

    def __post_init__(self) -> None:
        blocks.check(self.hidden, self.layers, self.dropout, self.pool)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        blocks.check_shape(features, classes)
        made = (convolution(self.hidden, self.hidden, True, opens=not i) for i in range(self.layers))
        convolutions = (blocks.activated(layer, self.dropout, relu=False) for layer in made)
        first = blocks.affine(features, self.hidden)
        return (first, *convolutions, *blocks.head(self.hidden, classes, self.dropout, self.pool))


def convolution(fan_in: int, fan_out: int, relu: bool = False, opens: bool = False) -> Layer:
    """MLP(h + the sum of the neighbours' h) with MLP(z) = ReLU(z W_1 + b_1) W_2 + b_2 (eq. 4.1 with epsilon = 0), then
    ReLU if `relu`.

    opens: no message has passed before, and nothing was dropped: then nodes of small graphs that are alike
           (`models.kinds`) have the same result, which is computed once.

    Initialised like `torch.nn.Linear`.
    """

    def init(key: Tensor) -> Tree:
        sizes = {"1": (fan_in, fan_out), "2": (fan_out, fan_out)}
        weights = {f"weight{i}": blocks.lecun(random.fold(key, "weight", i), s, s[0]) for i, s in sizes.items()}
        return weights | {f"bias{i}": blocks.lecun(random.fold(key, "bias", i), s[1:], s[0]) for i, s in sizes.items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        alike = opens and graph.graph_of is not None and isinstance(graph.edges, Edges)
        if alike:
            z = graph.edges.operator(kinds.SUM) @ h
        elif graph.edges.shrinks:
            neighbours = graph.edges.operator("sum")
            z = h[: neighbours.shape[0]] + neighbours @ h
        else:
            z = graph.edges.operator("sum_with_self") @ h
        inner = affine(z, w["weight1"], w["bias1"], relu=True)
        out = affine(inner, w["weight2"], w["bias2"], relu)
        return graph.edges.operator(kinds.SPREAD) @ out if alike else out

    return Layer(init, apply, operator="sum")
