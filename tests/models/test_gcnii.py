"""GCNII against PyTorch Geometric's `GCN2Conv`, a case worked by hand, and Cora."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GCN2Conv

from fedweave import datasets
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TEST, TRAIN, Graph, make_graph
from fedweave.core.tree import Tree
from fedweave.learn import Adam, fit
from fedweave.metrics.classification import counts, values
from fedweave.models import MODELS, gcnii
from tests.models.reference import TOLERANCE, Weights, assert_equal, of_model, weights_of_model
from tests.models.test_layers import graph_of
from tests.random_graphs import replace_fields


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("alpha", "theta"), [(0.1, 0.5), (0.4, 1.5)])
def test_model_equals_the_reference(alpha: float, theta: float, sparse: bool, dtype: torch.dtype) -> None:
    """A model of 3 convolutions; the reference as its authors' example writes it."""
    nodes, features, classes, hidden = 40, 11, 4, 6
    graph, x, edges = graph_of(nodes, features, sparse, dtype, seed=1)
    model = MODELS["gcnii"](hidden=hidden, layers=3, alpha=alpha, theta=theta).build(features, classes)

    def reference(w: Weights) -> Tensor:
        h = origin = torch.relu(x @ w["0/weight"] + w["0/bias"])
        for layer in (1, 2, 3):
            conv = GCN2Conv(hidden, alpha, theta, layer)
            h = torch.relu(torch.func.functional_call(conv, {"weight1": w[f"{layer}/weight"]}, (h, origin, edges)))
        return h @ w["4/weight"] + w["4/bias"]

    assert_equal(of_model(model, graph, nodes), reference, weights_of_model(model, dtype), TOLERANCE[dtype])


def test_convolution_by_hand() -> None:
    """Nodes 0 - 1 and node 2 alone; A_hat h = (2, 2, 8) for h = (1, 3, 8), H0 = (4, 0, 2)."""
    graph = make_graph(np.ones((3, 1)), np.array([[0, 1], [1, 0]]), np.zeros(3, int), np.ones((3, 3), bool))
    pad = torch.zeros(len(graph.y) - 3, 1)
    h, first = (torch.cat([torch.tensor(rows)[:, None], pad]) for rows in ([1.0, 3, 8], [4.0, 0, 2]))
    layer = gcnii.convolution(1, alpha=0.5, beta=0.25)
    out = layer.apply({"weight": torch.tensor([[2.0]])}, graph, {"h": h, "first": first}, None)
    # z = (3, 1, 5); 0.75 z + 0.25 * 2 z = 1.25 z
    assert out["h"][:3, 0].tolist() == pytest.approx([3.75, 1.25, 6.25])
    assert out["first"] is first


def test_rows_may_shrink() -> None:
    """With fewer targets than nodes, the residual takes the targets' rows of the initial representation."""

    class FirstTwo:
        shrinks = True

        def operator(self, kind: str) -> torch.Tensor:
            return {"gcn": torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])}[kind]

    graph, _, _ = graph_of(8, 1, False, torch.float32, 0)
    graph = replace_fields(graph, edges=FirstTwo())  # type: ignore[arg-type]
    h = {"h": torch.tensor([[1.0], [3.0], [8.0]]), "first": torch.tensor([[4.0], [0.0], [7.0]])}
    out = gcnii.convolution(1, alpha=0.5, beta=0.0).apply({"weight": torch.tensor([[9.0]])}, graph, h, None)
    assert out["h"][:, 0].tolist() == [3.0, 4.0]


def test_the_first_representation_is_carried_on_and_dropout_spares_it() -> None:
    graph, _, _ = graph_of(30, 5, True, torch.float32, 2)
    model = MODELS["gcnii"](hidden=16, layers=2, dropout=0.9).build(5, 3)
    assert [layer.operator for layer in model] == [None, "gcn", "gcn", None]
    w = models.init(model, random.key(1))
    key = random.key(2)
    one, two = (models.apply(model[:layers], w, graph) for layers in (1, 2))
    assert torch.equal(models.apply(model[:1], w, graph, key)["first"], one["first"])
    assert torch.equal(one["h"], one["first"])
    assert torch.equal(two["first"], one["first"])
    assert not torch.equal(models.apply(model[:2], w, graph, key)["h"], two["h"])
    whole = models.apply(model, w, graph, key)
    assert torch.equal(models.apply(model[2:], w, graph, key, models.apply(model[:2], w, graph, key), first=2), whole)


def accuracy(data_root: Path, model: Any, lr: float, weight_decay: float, steps: int) -> float:
    """Test accuracy on Cora's public split after `steps` full-batch steps of Adam."""
    data = datasets.load("cora", path=str(data_root), normalize="row")
    graph = make_graph(data.x, data.edges, data.y, data.public)  # type: ignore[arg-type]
    layers = model.build(data.features, data.classes)

    def loss(w: Tree, graph: Graph, key: Tensor, _: Tree) -> Tensor:
        train = graph.masks[TRAIN]
        return torch.nn.functional.cross_entropy(models.apply(layers, w, graph, key)[train], graph.y[train])

    w, *_ = fit(loss, models.init(layers, random.key(0)), graph, random.key(1), Adam(lr, weight_decay), steps)
    return float(values(counts(models.apply(layers, w, graph), graph.y, graph.masks))["accuracy"][TEST])


@pytest.mark.slow
def test_cora(data_root: Path) -> None:
    """Chen et al. report 0.822 with 2 layers and 0.826 with 4, with dropout on the input and early stopping."""
    assert 0.75 < accuracy(data_root, MODELS["gcnii"](dropout=0.6), lr=0.01, weight_decay=5e-4, steps=100) < 0.85
