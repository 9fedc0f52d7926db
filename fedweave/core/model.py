"""A model is a tuple of layers; splitting a model is slicing it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree
from fedweave.ops.sparse import Sparse


class Layer(NamedTuple):
    """One layer.

    init:        (key) -> weights of this layer, a flat dict of tensors; {} if it has none.
    apply:       (weights, graph, h, key) -> h, with h [n, in] (dense, or the graph's sparse features in the first
                 layer) and the result [n, out]. `key` is None in evaluation: no dropout.
    by_feature:  names of the weights [in, ...] whose row j meets the layer's input only as column j of `h @ weight`.
    operator:    the message-passing matrix that the layer multiplies by (see `Edges.operator`); None if it has none.
    origin:      whether its output is what later layers find as `graph.origin` (see `Graph`).
    """

    init: Callable[[Tensor], Tree]
    apply: Callable[[Tree, Graph, Any, Tensor | None], Tensor]
    by_feature: tuple[str, ...] = ()
    operator: str | None = None
    origin: bool = False


Model = tuple[Layer, ...]


def init(model: Model, key: Tensor, dtype: Any = None) -> Tree:
    """Fresh weights {"0": layer 0's, "1": ...}; layers without weights are left out."""
    weights = {str(i): layer.init(random.fold(key, "layer", i)) for i, layer in enumerate(model)}
    return {i: {k: v.to(dtype) if dtype else v for k, v in w.items()} for i, w in weights.items() if w}


def apply(
    model: Model,
    w: Tree,
    graph: Graph,
    key: Tensor | None = None,
    h: "Tensor | Sparse | None" = None,
    first: int = 0,
) -> Tensor:
    """Run the layers on `graph` from `h` [n, in] (the features if None) to [n, out]; `key` switches dropout on.

    first: for a slice of a model, the number that its first layer has in the whole, and in `w`.
    """
    out: Any = graph.x if h is None else h
    for i, layer in enumerate(model, first):
        out = layer.apply(w.get(str(i), {}), graph, out, None if key is None else random.fold(key, "layer", i))
        if layer.origin:
            graph = graph._replace(origin=out)
    return out


def feature_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by input features: the first layer's `by_feature`."""
    return frozenset(f"0/{name}" for name in model[0].by_feature)
