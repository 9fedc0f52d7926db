"""A `torch.nn.Module` given to an algorithm as its model."""

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import fedweave
from fedweave.algorithms import ALGORITHMS, FedAvg, Local
from fedweave.core import model as models
from fedweave.core import random
from fedweave.datasets import Dataset
from fedweave.experiment.rounds import RoundResult
from fedweave.partition import Random
from tests.refusals import refusal

OPTIONS = {"local_steps": 2, "lr": 0.05}


class Net(nn.Module):
    """Two graph convolutions of PyTorch Geometric's."""

    def __init__(self, features: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, hidden), GCNConv(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Noisy(Net):
    """Drops out in evaluation, too."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x), edge_index)


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
    same = tuple(layer._replace(init=lambda key, at=at: own[at]) for at, layer in zip(own, gcn, strict=True))
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
    with refusal("config.module", "has no weights"):
        kind(nn.ReLU())


def test_a_module_that_draws_in_evaluation_is_refused_when_it_is_used(data: Dataset) -> None:
    with refusal("step-failed", "draws at random in evaluation"):
        trained(FedAvg(Noisy(data.features, data.classes)), data, 1)
