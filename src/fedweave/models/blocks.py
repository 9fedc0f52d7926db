"""Building blocks of all models: initial weights, linear layers, pooling, and chains of convolutions."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model, rows_of
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models.norms import ConvolutionStack, Jump, Norm, with_norm
from fedweave.ops import linear as ops
from fedweave.ops.sparse import Sparse

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


def linear_weights(key: Tensor, sizes: Mapping[str, tuple[int, int]]) -> Tree:
    """{"weight<name>" [fan_in, fan_out], "bias<name>" [fan_out]} for each {name: (fan_in, fan_out)}, initialized like
    `torch.nn.Linear`."""
    weights, biases = {}, {}
    for name, (fan_in, fan_out) in sizes.items():
        weights[f"weight{name}"] = lecun(random.fold(key, "weight", name), (fan_in, fan_out), fan_in)
        biases[f"bias{name}"] = lecun(random.fold(key, "bias", name), (fan_out,), fan_in)
    return weights | biases


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


def head(fan_in: int, hidden: int, classes: int, dropout: float, pool: str) -> Model:
    """Layers after the last convolution's activation: pooling (unless "none"), a linear layer with ReLU and dropout,
    and a linear classifier."""
    pooled = () if pool == "none" else (pooling(pool),)
    return (*pooled, with_activation(affine(fan_in, hidden), dropout), affine(hidden, classes))


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
    convolution: Callable[[int, int], Layer], features: int, classes: int, stack: ConvolutionStack, pool: str = "none"
) -> Model:
    """`stack.layers` convolutions made by `convolution(fan_in, fan_out)`: features -> hidden -> ... -> classes.

    A norm, ReLU and dropout follow each convolution but the last. With pooling or a jump the widths are features ->
    hidden -> ... -> hidden, a norm, ReLU and dropout follow every convolution, and `head` or a linear layer comes last.

    Raises:
        ConfigError: there are no features or no classes.
    """
    check_shape(features, classes)
    linear_end = pool != "none" or stack.jump != "none"
    inner = stack.layers if linear_end else stack.layers - 1
    model, fan_in = hidden_layers(stack, [convolution] * inner, features, stack.hidden)
    if pool != "none":
        return (*model, *head(fan_in, stack.hidden, classes, stack.dropout, pool))
    if linear_end:
        return (*model, affine(fan_in, classes))
    last = convolution(fan_in, classes)
    return (*model, with_residual(last, fan_in, classes) if stack.residual else last)


def hidden_layers(
    stack: ConvolutionStack,
    convolutions: Sequence[Callable[[int, int], Layer]],
    features: int,
    width: int,
    activation: Activation | None = torch.relu,
) -> tuple[Model, int]:
    """The layers before a model's last ones, [n, features] -> [n, k], and k: of `width` columns each, connected as
    `stack` says, with its norm, an activation and dropout."""
    layers, fan_in = list[Layer](), features
    if stack.input_layer:
        layers.append(with_activation(affine(features, width), stack.dropout, activation))
        fan_in = width
    for at, convolution in enumerate(convolutions):
        layer = convolution(fan_in, width)
        if stack.residual:
            layer = with_residual(layer, fan_in, width)
        layer = with_activation(layer, stack.dropout, activation, stack.norm, width)
        if stack.jump != "none":
            layer = with_jump(layer, at, len(convolutions), stack.jump)
        layers.append(layer)
        fan_in = width
    if stack.jump == "cat":
        fan_in = width * len(convolutions)
    return tuple(layers), fan_in


def with_residual(layer: Layer, fan_in: int, fan_out: int) -> Layer:
    """`layer` f as f(h) + W h, [n, fan_in] -> [n, fan_out]. W is "residual", initialized like `torch.nn.Linear`; f has
    a bias already."""

    def init(key: Tensor) -> Tree:
        weight = lecun(random.fold(key, "residual"), (fan_in, fan_out), fan_in)
        return layer.init(key) | {"residual": weight}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out: Tensor = layer.apply(w, graph, h, key)  # [n, fan_out]; in a sample, of the first nodes
        if not graph.edges.shrinks:
            return out + ops.linear(h, w["residual"])
        if isinstance(h, Sparse):
            return out + ops.linear(h, w["residual"])[: out.shape[0]]
        return out + ops.linear(h[: out.shape[0]], w["residual"])

    by_feature = (*layer.by_feature, "residual") if layer.by_feature else ()
    return layer._replace(init=init, apply=apply, by_feature=by_feature)


def with_jump(layer: Layer, at: int, count: int, jump: Jump) -> Layer:
    """`layer` number `at` of `count`, which hands its output on to the last of them; the last gives what all outputs
    [n, k] make by `jump`: [n, k] or [n, count k]."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        out: Tensor = layer.apply(w, graph, rows_of(h), key)
        outputs: Tree = {f"jump{i}": h[f"jump{i}"] for i in range(at)}
        if graph.edges.shrinks:  # a sample's nodes become fewer, layer by layer
            outputs = {name: rows[: out.shape[0]] for name, rows in outputs.items()}
        outputs[f"jump{at}"] = out
        if at < count - 1:
            return outputs | {"h": out}
        if jump == "max":
            return reduce(torch.maximum, outputs.values())
        return torch.cat([*outputs.values()], 1)

    return layer._replace(apply=apply, collects=True)


def kaiming(layer: Layer) -> Layer:
    """`layer` with matrices [fan_in, fan_out] drawn normal with variance 2 / fan_in (He et al. 2015, eq. 10; torch's
    `kaiming_normal_`). The layer's vectors keep their own initialization."""

    def init(key: Tensor) -> Tree:
        weights = layer.init(key)
        for name, leaf in weights.items():
            if leaf.dim() == 2:
                normal = random.normal(random.fold(key, "kaiming", name), tuple(leaf.shape))
                weights[name] = math.sqrt(2 / leaf.shape[0]) * normal
        return weights

    return layer._replace(init=init)


def with_activation(
    layer: Layer, rate: float, activation: Activation | None = torch.relu, norm: Norm = "none", width: int = 0
) -> Layer:
    """`layer` followed by a `norm` of its `width` columns, an activation (or none) and dropout."""
    inner = with_norm(layer, norm, width)

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out = inner.apply(w, graph, h, key)
        out = out if activation is None else activation(out)
        return out if key is None or rate == 0 else random.dropout(key, out, rate)

    return inner._replace(apply=apply)
