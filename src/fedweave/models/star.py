"""FedStar's network of two channels, and the codes of a node's position in its graph that one of them reads (Tan et al.
2023, "Federated learning on non-IID graphs via structural knowledge sharing").
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks, gcn, gin
from fedweave.models.norms import LayerStack

CODES = "structure"  # the operator whose columns are the codes
RETURNS, DEGREES = 16, 16  # columns of each kind


@register_matrix(CODES, of_nodes=True)
def structure_codes(edges: EdgeList) -> sp.csr_matrix:
    """[n, 32]: the probabilities that a random walk from a node returns after 1 to 16 steps, and the node's degree,
    one-hot, where 16 means 16 or more; 0 for a node without neighbors (section 4.1). The operator passes no
    messages."""
    a = edges.adjacency
    degree = np.diff(a.indptr)
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros(len(degree)), where=degree > 0))
    walk = sp.csr_matrix(scale @ a.astype(np.float64) @ scale)  # similar to D^-1 A, with the same diagonals of powers
    powers = [walk]
    for _ in range(1, RETURNS // 2):
        powers.append(powers[-1] @ walk)
    returns = [walk.diagonal()]
    for k in range(2, RETURNS + 1):  # the diagonal of walk^k, from two powers of at most half
        returns.append(np.asarray(powers[(k + 1) // 2 - 1].multiply(powers[k // 2 - 1]).sum(1)).ravel())
    classes = np.eye(DEGREES)[np.clip(degree, 1, DEGREES) - 1] * (degree > 0)[:, None]  # [n, 16]
    return sp.csr_matrix(np.concatenate([np.stack(returns, 1), classes], 1).astype(a.dtype))


STRUCTURE = "structure_"  # prefix of the names of the structure channel's weights


@dataclass(frozen=True)
class Star(LayerStack):
    """A channel h for features and a channel s for structure: h begins with a linear layer on the features, s with one
    on the nodes' structure codes (`structure_codes`). Then `layers` times h ← GIN([h‖s]) with ReLU and `dropout`, and
    s ← tanh(GCN(s)). The head is a linear layer on [h‖s], pooling, a linear layer with ReLU and `dropout`, and a linear
    classifier. All have width `hidden` (section 4.2).

    hidden:  width of both channels.
    layers:  number of convolutions of each channel.
    pool:    "sum" or "mean" over the nodes of each small graph.
    """

    layers: int = 3
    pool: Literal["sum", "mean"] = "sum"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        width = self.hidden
        first = blocks.affine(features, width)
        codes = blocks.affine(RETURNS + DEGREES, width)
        mixing = blocks.with_activation(gin.convolution(2 * width, width), self.dropout)
        structural = gcn.convolution(width, width)
        joining = blocks.affine(2 * width, width)

        def begin(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            return {"h": first.apply(w, graph, h, key)}

        def read_codes(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            return h | {"s": graph.edges.operator(CODES) @ w["weight"] + w["bias"]}

        def mix(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:  # h ← GIN([h‖s])
            return h | {"h": mixing.apply(w, graph, torch.cat([h["h"], h["s"]], 1), key)}

        def pass_structure(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:  # s ← tanh(GCN(s))
            return h | {"s": torch.tanh(structural.apply(w, graph, h["s"], key))}

        def join(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            return joining.apply(w, graph, torch.cat([h["h"], h["s"]], 1), key)

        convolutions = mixing._replace(apply=mix), _of_structure(structural._replace(apply=pass_structure))
        return (
            first._replace(apply=begin),
            _of_structure(codes._replace(apply=read_codes)),
            *convolutions * self.layers,
            joining._replace(apply=join, by_feature=()),
            *blocks.head(width, width, classes, self.dropout, self.pool),
        )


def _of_structure(layer: Layer) -> Layer:
    """`layer` whose weights' names begin with `STRUCTURE`."""

    def init(key: Tensor) -> Tree:
        return {STRUCTURE + name: leaf for name, leaf in layer.init(key).items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply({name.removeprefix(STRUCTURE): leaf for name, leaf in w.items()}, graph, h, key)

    return layer._replace(init=init, apply=apply, by_feature=())
