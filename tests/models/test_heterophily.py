"""SGC, GPR-GNN, ACM-GCN and H2GCN against the papers' formulas in plain PyTorch with a dense adjacency."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SGConv

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import make_graph
from fedweave.models import MODELS
from tests.models.reference import TOLERANCE, assert_equal, of_model, of_module, weights_of_model
from tests.models.test_layers import graph_of

NODES, FEATURES, CLASSES = 40, 11, 4


def dense(edges: Tensor, dtype: torch.dtype) -> Tensor:
    a = torch.zeros(NODES, NODES, dtype=dtype)
    a[edges[0], edges[1]] = 1
    return a


def scaled(a: Tensor) -> Tensor:
    degree = a.sum(1)
    scale = torch.where(degree > 0, degree.clamp(min=1) ** -0.5, 0)
    return scale[:, None] * a * scale


def smooth(edges: Tensor, dtype: torch.dtype) -> Tensor:
    return scaled(dense(edges, dtype) + torch.eye(NODES, dtype=dtype))


def sgc(w: dict[str, Tensor], x: Tensor, edges: Tensor) -> Tensor:
    return of_module(SGConv(FEATURES, CLASSES, K=2), {"0/weight": "lin.weight", "2/bias": "lin.bias"}, x, edges)(w)


def gprgnn(w: dict[str, Tensor], x: Tensor, edges: Tensor) -> Tensor:
    hop = torch.relu(x @ w["0/weight"] + w["0/bias"]) @ w["1/weight"] + w["1/bias"]
    out, s = w["5/gamma"][0] * hop, smooth(edges, x.dtype)
    for k in (1, 2, 3):
        hop = s @ hop
        out = out + w["5/gamma"][k] * hop
    return out


def acmgcn(w: dict[str, Tensor], x: Tensor, edges: Tensor) -> Tensor:
    s = smooth(edges, x.dtype)
    filters = {"low": s, "high": torch.eye(NODES, dtype=x.dtype) - s, "own": torch.eye(NODES, dtype=x.dtype)}
    h = x
    for layer in "01":
        channels = {name: torch.relu(a @ h @ w[f"{layer}/{name}"]) for name, a in filters.items()}
        scores = torch.cat([channels[name] @ w[f"{layer}/score_{name}"] for name in filters], 1)
        shares = torch.softmax(torch.sigmoid(scores) @ w[f"{layer}/mix"] / 3, 1)
        h = 3 * sum(shares[:, [i]] * channels[name] for i, name in enumerate(filters))
    return h


def h2gcn(w: dict[str, Tensor], x: Tensor, edges: Tensor) -> Tensor:
    a = dense(edges, x.dtype)
    two = ((a @ a > 0) & (a == 0) & ~torch.eye(NODES, dtype=torch.bool)).to(x.dtype)
    rounds = [torch.relu(x @ w["0/weight"])]
    for _ in range(2):
        rounds.append(torch.cat([scaled(a) @ rounds[-1], scaled(two) @ rounds[-1]], 1))
    return torch.cat(rounds, 1) @ w["3/weight"]


REFERENCES: dict[str, tuple[dict[str, int], Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]]] = {
    "sgc": ({"layers": 2}, sgc),
    "gprgnn": ({"hidden": 6, "layers": 3}, gprgnn),
    "acmgcn": ({"hidden": 6, "layers": 2}, acmgcn),
    "h2gcn": ({"hidden": 6, "layers": 2}, h2gcn),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", REFERENCES)
def test_values_and_gradients_equal_the_reference(name: str, sparse: bool, dtype: torch.dtype) -> None:
    settings, reference = REFERENCES[name]
    graph, x, edges = graph_of(NODES, FEATURES, sparse, dtype, seed=1)
    model = MODELS[name](**settings).build(FEATURES, CLASSES)
    theirs = lambda w: reference(w, x, edges)  # noqa: E731
    assert_equal(of_model(model, graph, NODES), theirs, weights_of_model(model, dtype), TOLERANCE[dtype])


def test_nodes_at_distance_two() -> None:
    """Path 0 - 1 - 2 - 3: 0 and 2, 1 and 3 are at distance two, each the other's only such node."""
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    graph = make_graph(
        np.ones((4, 1)), np.concatenate([edges, edges[::-1]], 1), np.zeros(4, int), np.ones((3, 4), bool)
    )
    h = torch.cat([torch.tensor([[1.0], [2], [4], [8]]), torch.zeros(graph.nodes - 4, 1)])
    assert (graph.edges.operator("two_hops") @ h)[:4, 0].tolist() == [4, 8, 1, 2]
    near = graph.edges.operator("neighbours") @ h
    assert near[:4, 0].tolist() == pytest.approx([2 / 2**0.5, 1 / 2**0.5 + 2, 1 + 8 / 2**0.5, 4 / 2**0.5])


def test_gamma_begins_as_personalized_pagerank() -> None:
    w = models.init(MODELS["gprgnn"](layers=2, alpha=0.25).build(3, 2), random.key(0))
    assert w["4"]["gamma"][:, 0].tolist() == pytest.approx([0.25, 0.1875, 0.5625])
