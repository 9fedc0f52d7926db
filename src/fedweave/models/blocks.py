"""Building blocks of all models: initial weights, linear layers, pooling, and chains of convolutions."""

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, WIDE, EdgeAttributes, kinds, operator_name
from fedweave.core.edge_list import BESIDE
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.models.module import OwnModule
from fedweave.models.norms import Norm, normalized
from fedweave.ops import linear as ops
from fedweave.ops.linear import linear

Activation = Callable[[Tensor], Tensor]


def uniform(key: Tensor, shape: tuple[int, ...], bound: float) -> Tensor:
    """float32 of the given shape, uniform in [-bound, bound)."""
    return (2 * random.uniform(key, shape) - 1) * bound


def glorot(key: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """[fan_in, fan_out], uniform with bound sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16)."""
    return uniform(key, (fan_in, fan_out), math.sqrt(6 / (fan_in + fan_out)))


def lecun(key: Tensor, shape: tuple[int, ...], fan_in: int) -> Tensor:
    """Uniform with bound 1 / sqrt(fan_in): the default of torch's and PyG's `Linear`, for the weight and the bias."""
    return uniform(key, shape, 1 / math.sqrt(fan_in))


def affine(fan_in: int, fan_out: int) -> Layer:
    """H W + b, initialized like `torch.nn.Linear`."""

    def init(key: Tensor) -> Tree:
        return {
            "weight": lecun(random.fold(key, "weight"), (fan_in, fan_out), fan_in),
            "bias": lecun(random.fold(key, "bias"), (fan_out,), fan_in),
        }

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        return ops.affine(h, w["weight"], w["bias"])

    return Layer(init, apply, ("weight",))


def product(start: Callable[[Tensor], Tensor]) -> Layer:
    """H W from W = `start`(key)."""

    def init(key: Tensor) -> Tree:
        return {"weight": start(random.fold(key, "weight"))}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        return ops.linear(h, w["weight"])

    return Layer(init, apply, ("weight",))


def pooling(how: str) -> Layer:
    """The "sum" or "mean" over the nodes of each small graph: [n, k] -> [e, k]."""
    kind = f"pool_{how}"

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        result: Tensor = graph.edges.operator(kind) @ h
        return result

    return Layer(lambda key: {}, apply, operator=kind)


def head(hidden: int, classes: int, dropout: float, pool: str) -> Model:
    """Layers after the last convolution's activation: pooling (unless "none"), a linear layer with ReLU and dropout,
    and a linear classifier."""
    pooled = () if pool == "none" else (pooling(pool),)
    return (*pooled, activated(affine(hidden, hidden), dropout), affine(hidden, classes))


def check_shape(features: int, classes: int) -> None:
    """Raise an error if a model has no input or no output.

    Raises:
        ConfigError: there are no features or no classes.
    """
    if features < 1 or classes < 1:
        raise ConfigError(
            f"a model of {features} features and {classes} classes; it needs at least 1 of each.", code="config.shape"
        )


def chain(
    convolution: Callable[[int, int], Layer],
    features: int,
    classes: int,
    hidden: int,
    layers: int,
    dropout: float,
    pool: str = "none",
    norm: Norm = "none",
) -> Model:
    """`layers` convolutions made by `convolution(fan_in, fan_out)`: features -> hidden -> ... -> classes.

    A norm, ReLU and dropout follow each convolution but the last. With pooling the widths are features -> hidden ->
    ... -> hidden, a norm, ReLU and dropout follow every convolution, and `head` comes last.

    Raises:
        ConfigError: there are no features or no classes.
    """
    check_shape(features, classes)
    if pool != "none":
        convolutions = [convolution(*pair) for pair in pairwise([features, *[hidden] * layers])]
        inner = (activated(layer, dropout, norm=norm, width=hidden) for layer in convolutions)
        return (*inner, *head(hidden, classes, dropout, pool))
    convolutions = [convolution(*pair) for pair in pairwise([features, *[hidden] * (layers - 1), classes])]
    return (*(activated(layer, dropout, norm=norm, width=hidden) for layer in convolutions[:-1]), convolutions[-1])


def kaiming(layer: Layer) -> Layer:
    """`layer` with matrices [fan_in, fan_out] drawn normal with variance 2 / fan_in (He et al. 2015, eq. 10; torch's
    `kaiming_normal_`). The layer's vectors keep their own initialization."""

    def init(key: Tensor) -> Tree:
        return {
            name: leaf
            if leaf.dim() < 2
            else math.sqrt(2 / leaf.shape[0]) * random.normal(random.fold(key, "kaiming", name), tuple(leaf.shape))
            for name, leaf in layer.init(key).items()
        }

    return layer._replace(init=init)


def activated(
    layer: Layer, rate: float, activation: Activation | None = torch.relu, norm: Norm = "none", width: int = 0
) -> Layer:
    """`layer` followed by a `norm` of its `width` columns, an activation (or none) and dropout."""
    inner = normalized(layer, norm, width)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out = inner.apply(w, graph, h, key)
        out = out if activation is None else activation(out)
        return out if key is None or rate == 0 else random.dropout(key, out, rate)

    return inner._replace(apply=apply)


# ----------------------------------------------------------------------------------------------------
# How models use the directions of edges (Rossi et al. 2023, "Edge directionality improves learning on
# heterophilic graphs", eq. 6), and how a model adapts to the edge attributes of the data.


BARE = {"edge_features": 0, "weighted": False}  # settings that are None, of a model for edges that carry nothing
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
    ways = {"in": make_layer("forward", False), "out": make_layer("reverse", False)}
    root = affine(fan_in, fan_out)

    def init(key: Tensor) -> Tree:
        weights = {f"{way}_{name}": leaf for way, one in ways.items() for name, leaf in _init(one, key, way).items()}
        return weights | {f"root_{name}": leaf for name, leaf in _init(root, key, "root").items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        keys = {way: None if key is None else random.fold(key, way) for way in ways}
        came, went = (one.apply(_weights_of_way(w, way), graph, h, keys[way]) for way, one in ways.items())
        root_output = leading(linear(h, w["root_weight"]), came.shape[0])
        result: Tensor = (1 - ALPHA) * came + ALPHA * went + root_output + w["root_bias"]
        return result

    rows = (*(f"{way}_{name}" for way, one in ways.items() for name in one.by_feature), "root_weight")
    by_feature = rows if all(one.by_feature for one in ways.values()) else ()
    return ways["in"]._replace(init=init, apply=apply, by_feature=by_feature, along=("forward", "reverse"))


def of_features(graph: Graph, what: str, way: str, weight: Tensor) -> Tensor:
    """The features of messages, or their means at nodes (`edge_attributes.operator_name`), times `weight` [k, out].

    The result is 0 where edges have no features, as in a graph that stands for clients' graphs.
    """
    held = graph.edges.operator(operator_name(what, way))
    rows, columns = held.shape
    if not columns:
        return weight.new_zeros(rows, weight.shape[1])
    result: Tensor = held @ weight
    if (usual := _usual(graph, weight, examples=False)) is None:
        return result
    one = graph.edges.operator(
        operator_name("from" if what == "features" else "mean", way)
    )  # rows that add up to 1, or empty
    return result + one @ usual.expand(one.shape[1], -1)


def beside(graph: Graph, *products: tuple[str, Tensor]) -> Tensor:
    """Σ M h over (name of a matrix M [m, n], h [n, k]), computed as one product for a whole graph: [m, k].

    Features of edges come last; a graph that stands for clients' graphs may have none. Each row of the first matrix
    adds up to 1.
    """
    if type(graph.edges) is not Edges:
        first, *others = (graph.edges.operator(kind) @ h for kind, h in products)
        return sum(others, first)
    last, weight = products[-1]
    if (last == EXAMPLE_FEATURES or kinds().get(last, ("",))[0] == "features") and (
        usual := _usual(graph, weight, examples=last == EXAMPLE_FEATURES)
    ) is not None:
        (first_kind, h), *rest = products
        products = ((first_kind, h + usual), *rest)
    held = graph.edges.operator(BESIDE.join(kind for kind, _ in products))
    result: Tensor = held @ torch.cat([h for _, h in products])[: held.shape[1]]
    return result


def _usual(graph: Graph, weight: Tensor, examples: bool) -> Tensor | None:
    """[out]: c W, the correction to a product with `weight` W [k, out] where edges' features are stored minus their
    usual values c. None where features are stored whole."""
    if type(graph.edges) is not Edges or len(weight) < WIDE:
        return None
    usual = graph.edges.feature_offsets(examples)
    if usual.shape[-1] != len(weight):  # a graph that stands for clients' graphs; its edges have no features
        return None
    return (usual.to(weight.dtype)[:, None] * weight).sum(0)


def leading(h: Tensor, rows: int) -> Tensor:
    """The rows of h [n, k] of the nodes that messages reach: the first rows in a sample, all rows in a whole graph."""
    return h if h.shape[0] == rows else h[:rows]


def read(model: object) -> int:
    """Number of edge features that a plug-in's model reads, ports included."""
    return (getattr(model, "edge_features", None) or 0) + 2 * has_ports(model)


def has_ports(model: object) -> bool:
    """Whether a plug-in's model reads edges' ports."""
    return bool(getattr(model, "ports", False))


def ported(data: Dataset, model: object) -> Dataset:
    """The data with ports on its edges, if the plug-in reads ports.

    Raises:
        ConfigError: the edges have no direction, or the model leaves out their features.
    """
    if not has_ports(model):
        return data
    if data.edge_attrs is None or not data.edge_attrs.directed:
        raise ConfigError(f"model.ports = true: the edges of {data.name!r} have no direction. Set data.directed.")
    if data.edge_attrs.width and not getattr(model, "edge_features", 0):
        raise ConfigError("model.ports = true: edge_features = 0 leaves out the ports. Remove model.edge_features.")
    return dataclasses.replace(data, edge_attrs=data.edge_attrs._replace(ports=True))


def fitted(model: Any, edge_attrs: EdgeAttributes | None) -> Any:
    """The plug-in with `edge_features` and `weighted` set from the edge attributes where these settings are None."""
    if isinstance(model, OwnModule):
        return model.fitted(edge_attrs)
    needed: dict[str, int | bool] = {"edge_features": 0 if edge_attrs is None else edge_attrs.width}
    needed["weighted"] = edge_attrs is not None and edge_attrs.weight is not None
    field_names = {field.name for field in dataclasses.fields(model)} if dataclasses.is_dataclass(model) else set()
    free = {name: value for name, value in needed.items() if name in field_names and getattr(model, name) is None}
    return dataclasses.replace(model, **free) if free else model


def unused(model: object, edge_attrs: EdgeAttributes | None) -> list[str]:
    """Warnings about edge attributes that a model that was `fitted` does not use."""
    if edge_attrs is None:
        return []
    asks = model.asks if isinstance(model, OwnModule) else ()
    lost = {
        "directions": edge_attrs.directed and getattr(model, "directed", "none") == "none",
        "weights": edge_attrs.weight is not None and not (getattr(model, "weighted", False) or "edge_weight" in asks),
        "features": bool(edge_attrs.width) and not (getattr(model, "edge_features", 0) or "edge_attr" in asks),
    }
    remedy = {
        "directions": 'gcn, gat, gine and pna take them, with model.directed = "both"; rgcn always does',
        "weights": "gcn takes them; others take them as features (data.edge_features)",
        "features": "gine, pna and gat take them",
    }
    return [f"this model does not use the edges' {what}; {remedy[what]}" for what, is_lost in lost.items() if is_lost]


def check_fits(model: object, edge_attrs: EdgeAttributes | None) -> None:
    """Raise an error if the model reads another number of features than the edges have.

    Raises:
        ConfigError: names both numbers.
    """
    wanted, available = getattr(model, "edge_features", None), 0 if edge_attrs is None else edge_attrs.width
    if wanted is not None and wanted not in (0, available):
        raise ConfigError(
            f"model.edge_features = {wanted}: the data's edges have {available} features. Set {available}."
        )


def _init(layer: Layer, key: Tensor, name: str) -> Tree:
    return layer.init(random.fold(key, name))


def _weights_of_way(w: Tree, way: str) -> Tree:
    return {name.removeprefix(f"{way}_"): leaf for name, leaf in w.items() if name.startswith(f"{way}_")}
