"""A layer or model beside a reference that computes with the same weights: the same values and the same gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Layer, Model
from fedweave.core.tree import leaves, nest

Weights = dict[str, Tensor]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def weights_of(layer: Layer, dtype: torch.dtype) -> Weights:
    """Weights with every entry nonzero, biases too."""
    return {name: value.to(dtype) + 0.1 for name, value in layer.init(random.key(5)).items()}


def weights_of_model(model: Model, dtype: torch.dtype) -> Weights:
    """{path: weights with every entry nonzero}."""
    return {path: value + 0.05 for path, value in leaves(models.init(model, random.key(2), dtype))}


def of_layer(layer: Layer, graph: Graph, rows: int) -> Callable[[Weights], Tensor]:
    return lambda w: layer.apply(w, graph, graph.x, None)[:rows]


def of_model(model: Model, graph: Graph, rows: int) -> Callable[[Weights], Tensor]:
    return lambda w: models.apply(model, nest(w), graph)[:rows]


def of_module(module: nn.Module, names: Mapping[str, str], *inputs: Any) -> Callable[[Weights], Tensor]:
    """`module` with our weights in place of its own. names: {ours: its own}; its matrices are ours transposed."""
    kinds = dict(module.named_parameters())
    assert set(names.values()) == set(kinds)

    def compute(w: Weights) -> Tensor:
        given = {}
        for ours, theirs in names.items():
            transposed = kinds[theirs].ndim == 2 and w[ours].ndim == 2
            given[theirs] = w[ours].T if transposed else w[ours].view(kinds[theirs].shape)
        out: Tensor = torch.func.functional_call(module, given, inputs)
        return out

    return compute


def assert_equal(
    ours: Callable[[Weights], Tensor], reference: Callable[[Weights], Tensor], w: Weights, tolerance: float
) -> None:
    """Both compute the same from `w`, and the same gradient of every weight, none of which is 0 everywhere."""
    results = []
    for compute in (ours, reference):
        free = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
        out = compute(free)
        pull = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
        results.append((out, torch.autograd.grad((out * pull).sum(), list(free.values()))))
    (out, gradients), (expected, wanted) = results
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    for name, own, other in zip(w, gradients, wanted, strict=True):
        assert other.any(), name
        torch.testing.assert_close(own, other, atol=20 * tolerance, rtol=20 * tolerance, msg=lambda m: f"{name}: {m}")  # noqa: B023
