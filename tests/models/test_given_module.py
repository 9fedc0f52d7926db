"""A `torch.nn.Module` given to an algorithm as its model."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGAT
from torch_geometric.nn import GCN as PyGCN
from torch_geometric.nn import GIN as PyGIN
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.nn import GraphSAGE as PyGraphSAGE

import fedweave
from fedweave.algorithms import ALGORITHMS, FedAvg, Local
from fedweave.core import model as models
from fedweave.core import random
from fedweave.datasets import Dataset
from fedweave.experiment.rounds import RoundResult
from fedweave.partition import Random
from tests.random_graphs import replace_fields
from tests.refusals import refusal

OPTIONS: dict[str, Any] = {"local_steps": 2, "lr": 0.05}


class Net(nn.Module):
    """Two graph convolutions of PyTorch Geometric's."""

    def __init__(self, features: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, hidden), GCNConv(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fedweave.datasets.load("synthetic", nodes=90, classes=3, features=6)


def trained(algorithm: object, data: Dataset, rounds: int = 3) -> RoundResult:
    fed = fedweave.federation(data, Random(clients=3).cut(data, seed=0), algorithm, dtype=torch.float64)
    *_, last = fedweave.train(algorithm, fed, rounds)
    return last


def test_a_module_trains_like_fedweaves_model_from_the_same_weights(data: Dataset) -> None:
    """The module's own weights are where training starts, and it is left as it was."""
    net = Net(data.features, data.classes)
    own = models.init(fedweave.models.GCN(hidden=8, dropout=0.0).build(data.features, data.classes), random.key(3))
    for layer, weights in zip((net.first, net.second), own.values(), strict=True):
        layer.lin.weight.data, layer.bias.data = weights["weight"].T.clone(), weights["bias"].clone()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gcn = fedweave.models.GCN(hidden=8, dropout=0.0).build(data.features, data.classes)
    same = tuple(replace_fields(layer, init=lambda key, at=at: own[at]) for at, layer in zip(own, gcn, strict=True))
    ours, theirs = (trained(FedAvg(model, **OPTIONS), data) for model in (same, net))
    assert theirs.summary["global/loss"] == pytest.approx(ours.summary["global/loss"], rel=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net.load_state_dict(theirs.state["w"]["0"])  # the trained weights, under the module's names
    assert not torch.equal(net.first.lin.weight, before["first.lin.weight"])


@pytest.mark.parametrize("name", ["fedprox", "ditto", "local", "dfedgnn", "centralized"])
def test_other_algorithms_take_a_module(name: str, data: Dataset) -> None:
    assert trained(ALGORITHMS[name](Net(data.features, data.classes)), data, 1).evaluated


@pytest.mark.parametrize("kind", [FedAvg, Local])
def test_what_is_no_model_is_told_what_to_do(kind: type) -> None:
    with refusal("config", "GCN(", "build(data.features"):
        kind(fedweave.models.GCN())
    with refusal("config.module-weights", "has no weights"):
        kind(nn.ReLU())


class Affine(nn.Module):
    """x A + b of `outputs` columns, then `then`."""

    def __init__(self, outputs: int = 2, then: Callable[[Tensor], Any] = lambda out: out) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(5, outputs), then

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.then(self.layer(x))


class Complex(Affine):
    """Complex weights, which a cast to real numbers would halve."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.randn(5, 2, dtype=torch.complex64))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return (x.to(self.phase.dtype) @ self.phase).real


class Pooled(Affine):
    """A row for each small graph, by its mean."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return global_mean_pool(self.layer(x), batch)


class Weighing(Affine):
    """Requires weights of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:  # type: ignore[override]
        return self.layer(x) * edge_weight.mean()


class Doubled(Affine):
    """Computes in float64, whatever it is given."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.layer(x.double())


def small(outputs: str = "class") -> Dataset:
    """40 nodes of five features, with two classes, two numbers or three labels."""
    draw = torch.Generator().manual_seed(0)
    x, edges = torch.randn(40, 5, generator=draw), torch.randint(0, 40, (2, 80), generator=draw)
    of = {"class": (x[:, 0] > 0).long(), "number": torch.stack([100 * x[:, 0], x[:, 1]], 1), "labels": (x > 0)[:, :3]}
    target = of[outputs].long() if outputs == "labels" else of[outputs]
    graph = Data(x=x, edge_index=edges[:, edges[0] != edges[1]], y=target)
    return fedweave.datasets.from_pyg(graph, target=outputs, directed=False)


@pytest.mark.parametrize(
    ("model", "outputs", "code"),
    [
        (Affine(1), "number", "config.module-outputs"),
        (Affine(1), "labels", "config.module-outputs"),
        (Affine(5), "class", "config.module-outputs"),
        (Affine(1, lambda out: out[:, 0]), "class", "config.module-outputs"),
        (Affine(2, lambda out: (out, out)), "class", "config.module-outputs"),
        (Affine(2, lambda out: torch.complex(out, out)), "class", "config.module-outputs"),
        (Affine(2, lambda out: out.detach()), "class", "config.module-gradient"),
        (Affine(2, nn.functional.dropout), "class", "config.module-state"),
        (Pooled(), "class", "config.module-pools"),
        (Doubled().double(), "class", "config.module-fails"),
        (Weighing(), "class", "config.module-inputs"),
        (fedweave.models.GCN().build(5, 1), "number", "config.outputs"),
        (fedweave.models.GCN().build(5, 3), "class", "config.outputs"),
        (fedweave.models.GIN(pool="sum").build(5, 2), "class", "config.pooling"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_before_the_run(model: Any, outputs: str, code: str) -> None:
    data = small(outputs)
    with refusal(code):
        fedweave.federation(data, Random(clients=2).cut(data, seed=0), FedAvg(model))


def test_complex_weights_are_refused() -> None:
    with refusal("config.module-weights", "complex64", "phase"):
        FedAvg(Complex())


def test_weights_of_more_digits_than_the_run_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    data = small()
    partition, algorithm = Random(clients=2).cut(data, seed=0), FedAvg(Affine().double())
    fedweave.federation(data, partition, algorithm, dtype=torch.float64)
    assert not caplog.records
    fedweave.federation(data, partition, algorithm)
    assert re.search("float32", caplog.text)


class Mixing(Affine):
    """Multiplies by a constant matrix."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer((self.matrix @ x.T).T)


def test_a_sparse_buffer_trains_as_a_dense_one() -> None:
    matrix, data = torch.tensor([[0.5, 0, 0, 1, 0], *torch.eye(5)[1:].tolist()]), small()
    results = []
    for form in (matrix, matrix.to_sparse()):
        torch.manual_seed(0)
        results.append(trained(FedAvg(Mixing(form), **OPTIONS), data).summary["global/loss"])
    assert results[1] == pytest.approx(results[0], rel=1e-9)


@pytest.mark.parametrize("kind", [PyGCN, PyGAT, PyGraphSAGE, PyGIN])
def test_models_of_pytorch_geometric_train_as_they_are(kind: Any) -> None:
    """Their optional argument batch does not make them models of small graphs."""
    algorithm = FedAvg(kind(5, 8, 2, 2), **OPTIONS)
    assert trained(algorithm, small(), 1).evaluated
