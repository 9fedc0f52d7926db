"""How a layer uses the directions and the features of edges (Rossi et al. 2023, "Edge directionality improves learning
on heterophilic graphs", eq. 6)."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, WIDE, kinds, operator_name
from fedweave.core.edge_list import BESIDE
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer
from fedweave.core.tree import Tree
from fedweave.models.blocks import affine
from fedweave.ops.linear import linear

ALPHA = 0.5  # how much messages against the edges' direction count


def along(make_layer: Callable[[str, bool], Layer], fan_in: int, fan_out: int, directed: str) -> Layer:
    """The convolution `make_layer(way, loops)` [n, fan_in] -> [n, fan_out] along edges.

    directed: "none", messages go both ways with the same weights. "forward", messages go from sources to targets.
              "both", each way has its own weights and no self-loops, and a linear layer reads the node itself:
              (1 - α) in + α out + W h + b with α = 0.5, as in PyG's `DirGNNConv`.
    """
    if directed != "both":
        way = "undirected" if directed == "none" else "forward"
        return make_layer(way, True)._replace(along=(way,))
    layers = {"in": make_layer("forward", False), "out": make_layer("reverse", False), "root": affine(fan_in, fan_out)}

    def init(key: Tensor) -> Tree:
        weights = {}
        for way, layer in layers.items():
            for name, leaf in layer.init(random.fold(key, way)).items():
                weights[f"{way}_{name}"] = leaf
        return weights

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        outputs = []
        for way in ("in", "out"):
            mine = {name.removeprefix(f"{way}_"): leaf for name, leaf in w.items() if name.startswith(f"{way}_")}
            way_key = None if key is None else random.fold(key, way)
            outputs.append(layers[way].apply(mine, graph, h, way_key))  # [n, fan_out]
        root = target_rows(linear(h, w["root_weight"]), outputs[0].shape[0])
        result: Tensor = (1 - ALPHA) * outputs[0] + ALPHA * outputs[1] + root + w["root_bias"]
        return result

    by_feature: tuple[str, ...] = ()
    if layers["in"].by_feature and layers["out"].by_feature:
        for way, layer in layers.items():
            by_feature += tuple(f"{way}_{name}" for name in layer.by_feature)
    return layers["in"]._replace(init=init, apply=apply, by_feature=by_feature, along=("forward", "reverse"))


def edge_feature_product(graph: Graph, what: str, way: str, weight: Tensor) -> Tensor:
    """The features of messages, or their means at nodes (`edge_attributes.operator_name`), times `weight` [k, out].

    The result is 0 where edges have no features, as in a graph that stands for clients' graphs.
    """
    features = graph.edges.operator(operator_name(what, way))
    rows, columns = features.shape
    if not columns:
        return weight.new_zeros(rows, weight.shape[1])
    result: Tensor = features @ weight
    offset = _offset(graph, weight, examples=False)
    if offset is None:
        return result
    # a matrix whose rows add up to 1, or are empty
    ones = graph.edges.operator(operator_name("from" if what == "features" else "mean", way))
    return result + ones @ offset.expand(ones.shape[1], -1)


def sum_of_products(graph: Graph, *products: tuple[str, Tensor]) -> Tensor:
    """Σ M h over (name of a matrix M [m, n], h [n, k]), computed as one product for a whole graph: [m, k].

    Features of edges come last; a graph that stands for clients' graphs may have none. Each row of the first matrix
    adds up to 1.
    """
    if type(graph.edges) is not Edges:
        first, *others = (graph.edges.operator(kind) @ h for kind, h in products)
        return sum(others, first)
    last, weight = products[-1]
    if last == EXAMPLE_FEATURES or kinds().get(last, ("",))[0] == "features":
        offset = _offset(graph, weight, examples=last == EXAMPLE_FEATURES)
        if offset is not None:
            (first_kind, h), *rest = products
            products = ((first_kind, h + offset), *rest)
    matrix = graph.edges.operator(BESIDE.join(kind for kind, _ in products))
    result: Tensor = matrix @ torch.cat([h for _, h in products])[: matrix.shape[1]]
    return result


def _offset(graph: Graph, weight: Tensor, examples: bool) -> Tensor | None:
    """[out]: c W, the correction to a product with `weight` W [k, out] where edges' features are stored minus values c.
    None where features are stored whole."""
    if type(graph.edges) is not Edges or len(weight) < WIDE:
        return None
    values = graph.edges.feature_offsets(examples)
    if values.shape[-1] != len(weight):  # a graph that stands for clients' graphs; its edges have no features
        return None
    return (values.to(weight.dtype)[:, None] * weight).sum(0)


def target_rows(h: Tensor, rows: int) -> Tensor:
    """The rows of h [n, k] of the nodes that messages reach: the first rows in a sample, all rows in a whole graph."""
    return h if h.shape[0] == rows else h[:rows]
