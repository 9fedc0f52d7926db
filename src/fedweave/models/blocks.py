"""What all models share: initial weights, linear layers, pooling, and how convolutions are chained into a model."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.ops import linear as ops

POOLS = ("none", "sum", "mean")


def uniform(key: Tensor, shape: tuple[int, ...], bound: float) -> Tensor:
    """float32 of the given shape, uniform in [-bound, bound)."""
    return (2 * random.uniform(key, shape) - 1) * bound


def glorot(key: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """[fan_in, fan_out], uniform with bound sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16)."""
    return uniform(key, (fan_in, fan_out), math.sqrt(6 / (fan_in + fan_out)))


def lecun(key: Tensor, shape: tuple[int, ...], fan_in: int) -> Tensor:
    """Uniform with bound 1 / sqrt(fan_in): the default of torch's and PyG's `Linear`, weight and bias alike."""
    return uniform(key, shape, 1 / math.sqrt(fan_in))


def affine(fan_in: int, fan_out: int) -> Layer:
    """H W + b, initialised like `torch.nn.Linear`."""

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
    """What follows the last convolution's activation: pooling (unless "none"), a linear layer with ReLU and dropout,
    and a linear classifier."""
    pooled = () if pool == "none" else (pooling(pool),)
    return (*pooled, activated(affine(hidden, hidden), dropout), affine(hidden, classes))


def check(hidden: int, layers: int, dropout: float, pool: str = "none") -> None:
    """Refuse impossible sizes.

    Raises:
        ConfigError: names the parameter, its value and what is allowed.
    """
    check_count("hidden", hidden, 1 << 20)
    check_count("layers", layers, 1 << 12)
    if not 0 <= dropout <= 0.99:
        raise ConfigError(f"model dropout = {dropout}; it is a probability from 0 (off) to 0.99.", code="config.value")
    if pool not in POOLS:
        raise ConfigError(f"model pool = {pool!r}; choose one of {', '.join(POOLS)}.")


def check_count(name: str, value: int, most: int) -> None:
    """Refuse a count below 1 or above `most`.

    Raises:
        ConfigError: names the parameter, its value and what is allowed.
    """
    if value < 1:
        raise ConfigError(f"model {name} = {value}; it must be at least 1.", code="config.value")
    if value > most:  # a server's word must not fill a site's memory
        raise ConfigError(f"model {name} = {value}; it must be at most {most}.")


def check_shape(features: int, classes: int) -> None:
    """Refuse a model of nothing.

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
) -> Model:
    """`layers` convolutions made by `convolution(fan_in, fan_out)`: features -> hidden -> ... -> classes, with ReLU and
    dropout after each but the last; or, with pooling, features -> hidden -> ... -> hidden, with both after each, and
    `head`.

    Raises:
        ConfigError: there are no features or no classes.
    """
    check_shape(features, classes)
    if pool != "none":
        made = [convolution(*pair) for pair in pairwise([features, *[hidden] * layers])]
        return (*(activated(layer, dropout) for layer in made), *head(hidden, classes, dropout, pool))
    made = [convolution(*pair) for pair in pairwise([features, *[hidden] * (layers - 1), classes])]
    return (*(activated(layer, dropout) for layer in made[:-1]), made[-1])


def kaiming(layer: Layer) -> Layer:
    """`layer` whose matrices [fan_in, fan_out] begin normal with variance 2 / fan_in (He et al. 2015, eq. 10; torch's
    `kaiming_normal_`); vectors begin as they did."""

    def init(key: Tensor) -> Tree:
        return {
            name: leaf
            if leaf.dim() < 2
            else math.sqrt(2 / leaf.shape[0]) * random.normal(random.fold(key, "kaiming", name), tuple(leaf.shape))
            for name, leaf in layer.init(key).items()
        }

    return layer._replace(init=init)


def activated(layer: Layer, rate: float, relu: bool = True) -> Layer:
    """`layer` followed by ReLU (or not) and dropout."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out = layer.apply(w, graph, h, key)
        out = torch.relu(out) if relu else out
        return out if key is None or rate == 0 else random.dropout(key, out, rate)

    return layer._replace(apply=apply)
