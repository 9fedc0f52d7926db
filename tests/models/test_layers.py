"""Every layer against PyTorch Geometric's, initial values against its rules, and sizes worked by hand."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, SAGEConv

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import Graph, make_graph
from fedweave.models import MODELS, blocks, gcn, sage
from fedweave.ops.linear import linear
from tests.models.reference import TOLERANCE, assert_equal, of_layer, of_module, weights_of
from tests.refusals import refusal

OF_NODES = [name for name in MODELS if name != "star"]  # which classifies small graphs alone (tests of FedStar)
NO_HIDDEN = ("sgc", "embedding", "lightgcn")  # whose layers nothing is dropped between
HIDDEN = [name for name in OF_NODES if name not in NO_HIDDEN]
SAGE = {"neigh": "lin_l.weight", "root": "lin_r.weight", "bias": "lin_l.bias"}  # {ours: PyTorch Geometric's}
CONVOLUTIONS = {"gcn": gcn.convolution, "sage": sage.convolution, "mlp": blocks.affine}


def graph_of(nodes: int, features: int, sparse: bool, dtype: torch.dtype, seed: int) -> tuple[Graph, Tensor, Tensor]:
    """A random graph whose first three nodes are isolated, its features [n, d] and its edges [2, E]."""
    rng = random.generator(seed, "layers")
    pairs = rng.integers(3, nodes, (2, 2 * nodes))
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1)
    x = np.where(rng.random((nodes, features)) < 0.3, rng.standard_normal((nodes, features)), 0)
    x = x.astype(np.float64 if dtype == torch.float64 else np.float32)
    graph = make_graph(
        sp.csr_matrix(x) if sparse else x, edges, np.zeros(nodes, int), np.ones((3, nodes), bool), dtype=dtype
    )
    return graph, torch.from_numpy(x), torch.from_numpy(edges)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "sage", "mlp"])
def test_layer_equals_the_reference(kind: str, sparse: bool, dtype: torch.dtype) -> None:
    for seed, (nodes, fan_in, fan_out) in enumerate([(7, 3, 1), (40, 11, 4), (150, 6, 7)]):
        graph, x, edges = graph_of(nodes, fan_in, sparse, dtype, seed)
        layer = CONVOLUTIONS[kind](fan_in, fan_out)
        module, names = {
            "gcn": (GCNConv(fan_in, fan_out), {"weight": "lin.weight", "bias": "bias"}),
            "sage": (
                SAGEConv(fan_in, fan_out),
                {"neigh": "lin_l.weight", "root": "lin_r.weight", "bias": "lin_l.bias"},
            ),
            "mlp": (torch.nn.Linear(fan_in, fan_out), {"weight": "weight", "bias": "bias"}),
        }[kind]
        theirs = of_module(module.to(dtype), names, *((x,) if kind == "mlp" else (x, edges)))
        assert_equal(of_layer(layer, graph, nodes), theirs, weights_of(layer, dtype), TOLERANCE[dtype])


def test_sage_by_hand() -> None:
    """Path 0 - 1 - 2 and node 3 alone; h = 1, 2, 4, 8, W_root = 10, W_neigh = 1, b = 0.5."""
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    x = np.array([[1.0], [2], [4], [8]])
    graph = make_graph(x, edges, np.zeros(4, int), np.ones((3, 4), bool), dtype=torch.float64)
    w = {"root": torch.tensor([[10.0]]), "neigh": torch.tensor([[1.0]]), "bias": torch.tensor([0.5])}
    w = {name: value.double() for name, value in w.items()}
    own = sage.convolution(1, 1).apply(w, graph, graph.x, None)
    assert own[:4, 0].tolist() == [12.5, 23.0, 42.5, 80.5]
    shared = sage.convolution(1, 1, share_root_weight=True).apply(w, graph, graph.x, None)
    assert shared[:4, 0].tolist() == [3.5, 5.0, 6.5, 8.5]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_model_is_its_layers_with_relu_and_dropout_between(name: str, sparse: bool) -> None:
    graph, _, _ = graph_of(30, 5, sparse, torch.float64, 1)
    model = MODELS[name](hidden=6, layers=3, dropout=0.4).build(5, 2)
    w = models.init(model, random.key(3), torch.float64)
    key = random.key(8)
    for dropped in (None, key):
        h: Any = graph.x
        for i, (fan_in, fan_out) in enumerate([(5, 6), (6, 6), (6, 2)]):
            h = CONVOLUTIONS[name](fan_in, fan_out).apply(w[str(i)], graph, h, None)
            h = torch.relu(h) if i < 2 else h
            h = random.dropout(random.fold(key, "layer", i), h, 0.4) if i < 2 and dropped is not None else h
        assert torch.equal(models.apply(model, w, graph, dropped), h)


@pytest.mark.parametrize("name", HIDDEN)
def test_dropout_only_with_a_key_and_a_rate(name: str) -> None:
    graph, _, _ = graph_of(40, 5, True, torch.float32, 2)
    with_rate, without = (MODELS[name](hidden=8, dropout=rate).build(5, 3) for rate in (0.5, 0.0))
    w = models.init(with_rate, random.key(1))
    evaluated = models.apply(with_rate, w, graph)
    assert torch.equal(evaluated, models.apply(without, w, graph, random.key(2)))
    assert not torch.equal(evaluated, models.apply(with_rate, w, graph, random.key(2)))
    assert not torch.equal(
        models.apply(with_rate, w, graph, random.key(3)), models.apply(with_rate, w, graph, random.key(2))
    )


def test_initial_values_follow_the_reference() -> None:
    """Uniform on (-a, a): the bound is met closely, the mean is 0 and the variance a^2 / 3."""
    fan_in, fan_out = 200, 50
    glorot, default = math.sqrt(6 / (fan_in + fan_out)), 1 / math.sqrt(fan_in)
    reference = {
        "gcn": (GCNConv(fan_in, fan_out).lin.weight, glorot),
        "sage": (SAGEConv(fan_in, fan_out).lin_l.weight, default),
        "mlp": (torch.nn.Linear(fan_in, fan_out).weight, default),
    }
    for name, (theirs, bound) in reference.items():
        w = models.init(MODELS[name](layers=1).build(fan_in, fan_out), random.key(4))["0"]
        matrices = [value for value in w.values() if value.ndim == 2]
        for sample in (*matrices, theirs.detach()):
            assert 0.999 * bound < sample.abs().max() <= bound
            assert abs(sample.mean()) < 4 * bound / math.sqrt(3 * sample.numel())
            assert sample.var() * 3 / bound**2 == pytest.approx(1, abs=0.05)
        if name == "gcn":
            assert not w["bias"].any()
        else:
            assert 0.8 * default < w["bias"].abs().max() <= default
        assert all(not torch.equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("gcn", {}, 1433 * 64 + 64 + 64 * 7 + 7),
        ("gcn", {"layers": 1}, 1433 * 7 + 7),
        ("gcn", {"layers": 3, "hidden": 16}, 1433 * 16 + 16 + 16 * 16 + 16 + 16 * 7 + 7),
        ("gcn", {"linear": True}, 1433 * 64 + 64 + 64 * 64 + 64 + 64 * 7 + 7),
        ("mlp", {}, 1433 * 64 + 64 + 64 * 7 + 7),
        ("sage", {}, 2 * 1433 * 64 + 64 + 2 * 64 * 7 + 7),
        ("sage", {"share_root_weight": True}, 1433 * 64 + 64 + 64 * 7 + 7),
    ],
)
def test_number_of_weights(name: str, options: dict, weights: int) -> None:
    w = models.init(MODELS[name](**options).build(1433, 7), random.key(0))
    assert sum(math.prod(weight.shape) for layer in w.values() for weight in layer.values()) == weights


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", OF_NODES)
def test_rows_of_features_nobody_has_see_no_gradient(name: str, sparse: bool) -> None:
    graph, features, _ = graph_of(30, 9, False, torch.float64, 3)
    seen = torch.tensor([j not in (2, 7) for j in range(9)])
    x = (features * seen).numpy()
    links = graph.edges.members[0].index
    graph = make_graph(
        sp.csr_matrix(x) if sparse else x, links, np.zeros(30, int), np.ones((3, 30), bool), dtype=torch.float64
    )
    model = MODELS[name](**({"hidden": 5} if name in HIDDEN else {})).build(9, 3)
    w = models.init(model, random.key(1), torch.float64)
    rows = {path.removeprefix("0/") for path in models.feature_rows(model)}
    assert rows == {key for key, value in w["0"].items() if value.ndim == 2 and len(value) == 9}
    for weight in w["0"].values():
        weight.requires_grad_()
    models.apply(model, w, graph, random.key(2)).square().sum().backward()
    for key in rows:
        assert (w["0"][key].grad[~seen] == 0).all()
        assert (w["0"][key].grad[seen] != 0).any(1).all()


def test_a_linear_classifier_after_the_convolutions() -> None:
    """Without an activation between them."""
    graph, _, _ = graph_of(30, 9, False, torch.float64, 3)
    model = MODELS["gcn"](hidden=5, linear=True).build(9, 3)
    w = models.init(model, random.key(1), torch.float64)
    h = models.apply(model[:2], w, graph)
    assert (h < 0).any()
    torch.testing.assert_close(models.apply(model, w, graph), h @ w["2"]["weight"] + w["2"]["bias"])
    with refusal("config.value", "linear = True"):
        MODELS["gcn"](linear=True, pool="sum")


def test_data_without_classes_is_refused() -> None:
    with refusal("config.shape"):
        MODELS["gcn"]().build(5, 0)


def test_linear_is_the_product() -> None:
    rng = np.random.default_rng(0)
    for n, fan_in, fan_out in [(1, 1, 1), (5, 3, 2), (300, 9, 1), (129, 4, 8)]:
        h, w = (
            torch.from_numpy(rng.standard_normal((n, fan_in))),
            torch.from_numpy(rng.standard_normal((fan_in, fan_out))),
        )
        torch.testing.assert_close(linear(h, w), h @ w, atol=1e-12, rtol=1e-12)
