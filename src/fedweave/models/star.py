"""FedStar's network of two channels, and the codes of a node's position in its graph that one of them reads (Tan et al.
2023, "Federated learning on non-IID graphs via structural knowledge sharing").
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.bounds import Depth, DropRate, Width
from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree
from fedweave.models import blocks, gcn, gin

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
    pairs = ((powers[(k + 1) // 2 - 1], powers[k // 2 - 1]) for k in range(2, RETURNS + 1))
    returns = [walk.diagonal(), *(np.asarray(one.multiply(other).sum(1)).ravel() for one, other in pairs)]
    classes = np.eye(DEGREES)[np.clip(degree, 1, DEGREES) - 1] * (degree > 0)[:, None]
    return sp.csr_matrix(np.concatenate([np.stack(returns, 1), classes], 1).astype(a.dtype))


STRUCTURE = "structure_"  # prefix of the names of the structure channel's weights


@dataclass(frozen=True)
class Star(Settings):
    """A channel h for features and a channel s for structure: h begins with a linear layer on the features, s with one
    on the nodes' structure codes (`structure_codes`). Then `layers` times h ← GIN([h‖s]) with ReLU and `dropout`, and
    s ← tanh(GCN(s)). The head is a linear layer on [h‖s], pooling, a linear layer with ReLU and `dropout`, and a linear
    classifier. All have width `hidden` (section 4.2).

    hidden:  width of both channels.
    layers:  number of convolutions of each channel.
    dropout: share of a layer's outputs that is dropped in training.
    pool:    "sum" or "mean" over the nodes of each small graph.
    """

    hidden: Width = 64
    layers: Depth = 3
    dropout: DropRate = 0.5
    pool: Literal["sum", "mean"] = "sum"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        blocks.check_shape(features, classes)
        width = self.hidden
        convolutions = (_mixing(width, self.dropout), _structural(width))
        return (
            _opened(blocks.affine(features, width)),
            _codes(width),
            *convolutions * self.layers,
            _joined(width),
            *blocks.head(width, classes, self.dropout, self.pool),
        )


def _opened(layer: Layer) -> Layer:
    """`layer` whose output starts the channel of features."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return {"h": layer.apply(w, graph, h, key)}

    return layer._replace(apply=apply)


def _codes(width: int) -> Layer:
    """A linear layer on the codes, which starts the channel of structure."""
    layer = blocks.affine(RETURNS + DEGREES, width)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return h | {"s": graph.edges.operator(CODES) @ w["weight"] + w["bias"]}

    return _named(layer._replace(apply=apply, by_feature=()))


def _mixing(width: int, dropout: float) -> Layer:
    """h ← GIN([h‖s])."""
    layer = blocks.activated(gin.convolution(2 * width, width), dropout)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return h | {"h": layer.apply(w, graph, torch.cat([h["h"], h["s"]], 1), key)}

    return layer._replace(apply=apply)


def _structural(width: int) -> Layer:
    """s ← tanh(GCN(s))."""
    layer = gcn.convolution(width, width)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return h | {"s": torch.tanh(layer.apply(w, graph, h["s"], key))}

    return _named(layer._replace(apply=apply, by_feature=()))


def _joined(width: int) -> Layer:
    """A linear layer on [h‖s]."""
    layer = blocks.affine(2 * width, width)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply(w, graph, torch.cat([h["h"], h["s"]], 1), key)

    return layer._replace(apply=apply, by_feature=())


def _named(layer: Layer) -> Layer:
    """`layer` whose weights' names begin with `STRUCTURE`."""

    def init(key: Tensor) -> Tree:
        return {STRUCTURE + name: leaf for name, leaf in layer.init(key).items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply({name.removeprefix(STRUCTURE): leaf for name, leaf in w.items()}, graph, h, key)

    return layer._replace(init=init, apply=apply)
