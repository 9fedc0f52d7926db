"""GCNII (Chen et al. 2020, "Simple and Deep Graph Convolutional Networks"), the default backbone of GLASU."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Fraction, NonNegative
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.norms import ConvolutionStack, LayerStack
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class GCNII(LayerStack):
    """A linear layer with ReLU to width `hidden`, `layers` convolutions with ReLU, and a linear classifier.

    As in the authors' code, dropout acts on the input of every layer but the first. The initial representation, to
    which the convolutions return, is therefore whole; the first layer's input, often sparse, has no dropout.

    hidden:  width of all layers but the classifier.
    layers:  number of convolutions.
    dropout: share of a layer's inputs that is dropped in training.
    alpha:   share of the initial representation in every convolution, 0 to 1.
    theta:   strength of the weights: layer l mixes in beta_l = log(theta / l + 1) of them, at least 0.
    """

    layers: int = 4
    alpha: Fraction = 0.1
    theta: NonNegative = 0.5

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        stack = ConvolutionStack(self.hidden, layers=2, dropout=0.0)
        first, classifier = blocks.chain(blocks.affine, features, classes, stack)

        def begin(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tree:
            out = first.apply(w, graph, h, key)
            return {"h": out, "first": out}

        def classify(w: Tree, graph: Graph, h: Tree, key: Tensor | None) -> Tensor:
            result: Tensor = classifier.apply(w, graph, _dropout(h["h"], self.dropout, key), key)
            return result

        layers = [first._replace(apply=begin)]
        for number in range(1, self.layers + 1):
            beta = math.log(self.theta / number + 1)
            layers.append(convolution(self.hidden, self.alpha, beta, self.dropout, relu=True))
        return (*layers, classifier._replace(apply=classify))


def convolution(width: int, alpha: float, beta: float, rate: float = 0.0, relu: bool = False) -> Layer:
    """Z ((1 - beta) I + beta W) with Z = (1 - alpha) D~^-1/2 (A + I) D~^-1/2 H + alpha H0 (eq. 5), then ReLU if `relu`.

    Takes and returns {"h": H, "first": H0}; the first rows of H0 belong to H's nodes. `rate` is the dropout on H.
    Initialized like PyG's `GCN2Conv` (Glorot).
    """

    def init(key: Tensor) -> Tree:
        return {"weight": blocks.glorot(random.fold(key, "weight"), width, width)}

    def apply(w: Tree, graph: Graph, h: Tree, key: Tensor | None) -> Tree:
        neighbors = graph.edges.operator("gcn")
        first = h["first"][: neighbors.shape[0]] if graph.edges.shrinks else h["first"]
        z = torch.lerp(neighbors @ _dropout(h["h"], rate, key), first, alpha)
        identity = torch.eye(width, dtype=z.dtype, device=z.device)
        out = linear(z, torch.lerp(identity, w["weight"], beta))
        return h | {"h": torch.relu(out) if relu else out}

    return Layer(init, apply, operator="gcn")


def _dropout(h: Tensor, rate: float, key: Tensor | None) -> Tensor:
    return h if key is None or rate == 0 else random.dropout(key, h, rate)
