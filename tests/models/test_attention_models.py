"""GAT, GATv2, the graph transformer and APPNP against PyTorch Geometric's layers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import APPNP, GATConv, GATv2Conv, TransformerConv

from fedweave.core import model as models
from fedweave.core import random
from fedweave.models import MODELS, gat, transformer
from tests.models.reference import TOLERANCE, assert_equal, of_layer, of_module, weights_of
from tests.models.test_layers import graph_of

V1 = {"weight": "lin.weight", "source": "att_src", "target": "att_dst", "bias": "bias"}
V2 = {"left": "lin_l.weight", "left_bias": "lin_l.bias", "right": "lin_r.weight", "right_bias": "lin_r.bias"}
V2 |= {"attention": "att", "bias": "bias"}
SHI = {f"{ours}{end}": f"lin_{ours}.{theirs}" for ours in ("query", "key", "value", "skip")
       for end, theirs in (("", "weight"), ("_bias", "bias"))}  # fmt: skip
LAYERS: dict[str, Any] = {
    "gat": (gat.convolution, GATConv, V1),
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
    graph, x, edges = graph_of(40, 11, sparse, dtype, seed=1)
    layer, module = make(11, 4, heads, concat), kind(11, 4, heads, concat).to(dtype)
    theirs = of_module(module, names, x, edges)
    assert_equal(of_layer(layer, graph, 40), theirs, weights_of(layer, dtype), TOLERANCE[dtype])


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
