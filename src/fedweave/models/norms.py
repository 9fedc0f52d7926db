"""The settings that several models share, and normalization between a convolution and its activation.

Norms have the forms of PyTorch Geometric: of each node's row (Ba, Kiros and Hinton 2016, "Layer normalization"), over
the nodes of a graph (Cai et al. 2021, "GraphNorm: a principled approach to accelerating graph neural network training")
and over the nodes of a batch (Ioffe and Szegedy 2015, "Batch normalization").

Batch norm's running statistics are weights by name (`core.tree.is_statistic`) without a gradient from the loss. In a
training step `RunningStatistic` sends the difference to r ← (1 − m) r + m b instead of a gradient, and training applies
this difference unscaled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core.bounds import Depth, DropRate, Width
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.linear import gram
from fedweave.ops.rows import gather_rows

Norm = Literal["none", "layer", "graph", "batch"]
Jump = Literal["none", "max", "cat"]
EPS = 1e-5  # PyTorch's and PyG's, as is the momentum of running statistics
MOMENTUM = 0.1


@dataclass(frozen=True, kw_only=True)
class Normed(Settings):
    """A model whose hidden layers may be normalized.

    norm: normalization of a hidden layer before its activation: "layer", each node over its own columns; "graph", each
          column over the nodes of a graph; "batch", each column over the nodes that train together, and over running
          statistics in evaluation.
    """

    norm: Norm = "none"


@dataclass(frozen=True)
class LayerStack(Settings):
    """A model of several layers of one width.

    hidden:  width of the hidden layers.
    layers:  number of layers.
    dropout: share of a layer's outputs that is dropped in training.
    """

    hidden: Width = 64
    layers: Depth = 2
    dropout: DropRate = 0.5


@dataclass(frozen=True, kw_only=True)
class ConvolutionStack(LayerStack, Normed):
    """A model of convolutions, and how these connect (Luo, Shi and Wu 2024, "Classic GNNs are strong baselines";
    Xu et al. 2018, "Representation learning on graphs with jumping knowledge networks").

    residual:    whether each convolution f adds a linear map of its input, h ← f(h) + W h.
    input_layer: whether a linear layer to the hidden width, with activation and dropout, comes before the first
                 convolution. gin, gine and pna always have a linear layer there; it gets activation and dropout.
    jump:        what the last layer, then linear, reads: "none", the last convolution; "max", the largest of all
                 convolutions' outputs, column by column; "cat", these outputs side by side.
    """

    residual: bool = False
    input_layer: bool = False
    jump: Jump = "none"


def with_norm(layer: Layer, norm: Norm, width: int) -> Layer:
    """`layer` [n, in] -> [n, width] followed by a norm, whose weights are leaves "norm.…" among the layer's."""
    if norm == "none":
        return layer
    fresh, normalize = _NORMS[norm]

    def init(key: Tensor) -> Tree:
        initial = {name: torch.full((width,), value, device=key.device) for name, value in fresh.items()}
        return layer.init(key) | {f"norm.{name}": leaf for name, leaf in initial.items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        mine = {name: w[f"norm.{name}"] for name in fresh}
        return normalize(mine, graph, layer.apply(w, graph, h, key), key is not None)

    norms = tuple(f"norm.{name}" for name in fresh)
    return layer._replace(init=init, apply=apply, compares=norm != "layer", norms=norms)


def _layer(w: Tree, graph: Graph, h: Tensor, training: bool) -> Tensor:
    """PyG's `LayerNorm(mode="node")`."""
    result: Tensor = F.layer_norm(h, h.shape[1:], eps=EPS) * w["weight"] + w["bias"]
    return result


def _graph(w: Tree, graph: Graph, h: Tensor, training: bool) -> Tensor:
    """PyG's `GraphNorm`: x = h − α μ, x w / √(mean x² + ε) + b, over the nodes of each small graph, or all nodes."""
    real = _real_nodes(graph, h)

    def mean(values: Tensor) -> Tensor:
        if graph.graph_of is None:
            return _mean(values, real.to(h.dtype))  # [1, k]
        means = graph.edges.operator("pool_mean") @ torch.where(real[:, None], values, 0.0)  # [e, k]
        return torch.where(real[:, None], gather_rows(means, graph.graph_of.clamp(min=0)), 0.0)  # [n, k]

    x = h - mean(h) * w["mean_scale"]
    result: Tensor = x * (w["weight"] * torch.rsqrt(mean(x.square()) + EPS)) + w["bias"]
    return result


def _batch(w: Tree, graph: Graph, h: Tensor, training: bool) -> Tensor:
    """PyG's `BatchNorm(allow_single_element=True)` over the nodes that train together: all of a client's nodes, or the
    nodes of its training graphs."""
    mean, var = w["running_mean"], w["running_var"]
    if not training:  # noise on the clients' messages may have made a variance negative
        evaluated: Tensor = (h - mean) * (w["weight"] * torch.rsqrt(var.clamp(min=0) + EPS)) + w["bias"]
        return evaluated
    rows = _real_nodes(graph, h)
    if graph.graph_of is not None:
        rows = rows & graph.masks[TRAIN].gather(0, graph.graph_of.clamp(min=0))
    share = rows.to(h.dtype)
    n, several = share.sum(), share.sum() > 1
    batch_mean = torch.where(several, _mean(h, share)[0], mean.detach())  # [k]
    batch_var = torch.where(several, _mean((h - batch_mean).square(), share)[0], var.detach())  # [k]
    unbiased = torch.where(several, batch_var * n / (n - 1).clamp(min=1), var).detach()
    weight = RunningStatistic.apply(w["weight"], mean, torch.lerp(mean, batch_mean, MOMENTUM).detach())
    weight = RunningStatistic.apply(weight, var, torch.lerp(var, unbiased, MOMENTUM).detach())
    result: Tensor = (h - batch_mean) * (weight * torch.rsqrt(batch_var + EPS)) + w["bias"]
    return result


def _mean(h: Tensor, share: Tensor) -> Tensor:
    """[1, k]: the mean of the rows of h [n, k] with share 1; share [n] has 0 and 1. The mean of no rows is 0, and its
    bits do not depend on padding."""
    return gram(share[None, :, None], h[None])[0] / share.sum().clamp(min=1)


def _real_nodes(graph: Graph, h: Tensor) -> Tensor:
    """bool [n], which rows are nodes and not padding.

    Raises:
        ConfigError: h has rows for only some nodes.
    """
    if h.shape[0] != graph.real.shape[0]:
        raise ConfigError(
            "model.norm: graph and batch norm compare all nodes, and there are rows for some only. Set norm = 'layer'.",
            code="config.whole-graphs",
        )
    return graph.real


class RunningStatistic(Operation):
    """Passes the first tensor on; backward sends the running statistic minus its next value instead of a gradient."""

    @staticmethod
    def forward(passed: Tensor, running: Tensor, following: Tensor) -> Tensor:
        return passed.clone()

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        running, following = ctx.saved_tensors
        return grad, running - following, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, passed: Tensor, running: Tensor, following: Tensor) -> tuple[Tensor, int]:
        return RunningStatistic.apply(*over_clients(info.batch_size, in_dims, passed, running, following)), 0


_Normalize = Callable[[Tree, Graph, Tensor, bool], Tensor]
_NORMS: dict[str, tuple[dict[str, float], _Normalize]] = {  # first weights, and the function
    "layer": ({"weight": 1.0, "bias": 0.0}, _layer),
    "graph": ({"weight": 1.0, "bias": 0.0, "mean_scale": 1.0}, _graph),
    "batch": ({"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}, _batch),
}
