"""LightGCN: He, Deng, Wang, Li, Zhang and Wang 2020, "LightGCN: simplifying and powering graph convolution network for
recommendation", eqs. 3 to 5."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedweave.core.bounds import Depth, Width
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class LightGCN(Settings):
    """Σ_k α_k S^k E with E = X W, S = D^-1/2 A D^-1/2 without loops and α_k = 1 / (K + 1): the mean over layers of
    vectors that pass along edges, without weights or activations between. X is one-hot where [data] features =
    "learned".

    hidden: width of a vector.
    layers: K, how many times vectors pass.
    """

    hidden: Width = 64
    layers: Depth = 3

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        start = blocks.product(lambda key: blocks.uniform(key, (features, classes), math.sqrt(6 / classes)))

        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
            rows = linear(h, w["weight"])
            total, passing = rows, graph.edges.operator("neighbours")
            for _ in range(self.layers):
                rows = passing @ rows
                total = total + rows
            return total / (self.layers + 1)

        return (Layer(start.init, apply, start.by_feature, operator="neighbours", reads="graph"),)
