"""GATv2, the graph transformer and APPNP against PyTorch Geometric's layers, and one client against a batch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree
from torch_geometric.nn import APPNP, GATv2Conv, TransformerConv

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import Graph, stack
from fedweave.models import MODELS, gat, transformer
from tests.models.test_layers import TOLERANCE, graph_of, weights_of
from tests.random_graphs import padded_alike

V2 = {"left": "lin_l.weight", "left_bias": "lin_l.bias", "right": "lin_r.weight", "right_bias": "lin_r.bias"}
V2 |= {"attention": "att", "bias": "bias"}
SHI = {f"{ours}{end}": f"lin_{ours}.{theirs}" for ours in ("query", "key", "value", "skip")
       for end, theirs in (("", "weight"), ("_bias", "bias"))}  # fmt: skip
LAYERS: dict[str, Any] = {
    "gatv2": (gat.convolution_v2, GATv2Conv, V2),
    "transformer": (transformer.convolution, TransformerConv, SHI),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_the_reference(name: str, heads: int, concat: bool, sparse: bool, dtype: torch.dtype) -> None:
    """Outputs and gradients; three nodes have no neighbors."""
    make, kind, names = LAYERS[name]
    nodes, fan_in, fan_out = 40, 11, 4
    graph, x, edges = graph_of(nodes, fan_in, sparse, dtype, seed=1)
    layer, reference = make(fan_in, fan_out, heads, concat), kind(fan_in, fan_out, heads, concat).to(dtype)
    w = {key: value.requires_grad_() for key, value in weights_of(layer, dtype).items()}
    theirs = dict(reference.named_parameters())
    assert set(names) == set(w)
    assert set(names.values()) == set(theirs)
    with torch.no_grad():
        for ours, other in names.items():
            parameter = theirs[other]
            parameter.copy_(w[ours].T if other.endswith("weight") else w[ours].view(parameter.shape))
    out, expected = layer.apply(w, graph, graph.x, None)[:nodes], reference(x, edges)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    pull = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
    mine = torch.autograd.grad((out * pull).sum(), [w[ours] for ours in names])
    grads = torch.autograd.grad((expected * pull).sum(), [theirs[other] for other in names.values()])
    for other, own, slope in zip(names.values(), mine, grads, strict=True):
        wanted = slope.T if other.endswith("weight") else slope.view(own.shape)
        torch.testing.assert_close(own, wanted, atol=20 * TOLERANCE[dtype], rtol=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("layers", "alpha"), [(1, 0.1), (4, 0.3), (3, 0.0), (3, 1.0)])
def test_appnp_equals_the_reference(layers: int, alpha: float, dtype: torch.dtype) -> None:
    nodes, features = 40, 9
    graph, x, edges = graph_of(nodes, features, False, dtype, seed=2)
    model = MODELS["appnp"](hidden=5, layers=layers, alpha=alpha).build(features, 3)
    w = models.init(model, random.key(1), dtype)
    hidden = torch.relu(x @ w["0"]["weight"] + w["0"]["bias"])
    logits = hidden @ w["1"]["weight"] + w["1"]["bias"]
    expected: Tensor = APPNP(layers, alpha)(logits, edges)
    torch.testing.assert_close(
        models.apply(model, w, graph)[:nodes], expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("name", ["gatv2", "transformer", "appnp"])
@pytest.mark.parametrize("training", [False, True])
def test_one_client_is_the_same_in_a_batch(name: str, training: bool) -> None:
    graphs = padded_alike([graph_of(n, 7, True, torch.float64, n)[0] for n in (20, 33, 9)])
    model = MODELS[name](hidden=4).build(7, 3)
    w, keys = models.init(model, random.key(2), torch.float64), random.fold(random.key(3), torch.arange(3))
    stacked = stack(graphs)
    dims = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, stacked)

    def one(graph: Graph, key: Tensor) -> Tensor:
        return models.apply(model, w, graph, key if training else None)

    together = vmap(one, in_dims=(dims, 0))(stacked, keys)
    for number, graph in enumerate(graphs):
        alone = models.apply(model, w, graph, keys[number] if training else None)
        torch.testing.assert_close(together[number][graph.real], alone[graph.real], rtol=1e-12, atol=1e-12)
