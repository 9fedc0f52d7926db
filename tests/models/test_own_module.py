"""A user's own module with buffers, edges that carry something, small graphs and embeddings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, GCNConv, GINEConv, global_mean_pool

import fedweave
from fedweave.algorithms import ALGORITHMS, FedAvg, FedBN, FedProto, Moon
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.tree import Tree, leaves
from fedweave.datasets import Dataset
from fedweave.experiment.rounds import RoundResult
from fedweave.learn import Sgd, fit
from fedweave.models import GCN, ModuleKind
from fedweave.partition import Random
from tests.random_graphs import replace_fields
from tests.refusals import refusal

OPTIONS: dict[str, Any] = {"local_steps": 2, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01}
EXACT = {"atol": 1e-9, "rtol": 1e-9}


class Normed(nn.Module):
    """Two graph convolutions with batch norm between, and embeddings."""

    def __init__(self, features: int, classes: int, hidden: int = 5) -> None:
        super().__init__()
        self.first, self.norm, self.second = GCNConv(features, hidden), BatchNorm(hidden), GCNConv(hidden, classes)
        self.register_buffer("scale", torch.tensor(1.0))  # a constant

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.first(x, edge_index)).relu() * self.scale

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.embed(x, edge_index), edge_index)


def same_layers(net: Normed, features: int, classes: int) -> models.Model:
    """The same model of fedweave's layers, from the module's weights."""
    model = GCN(hidden=5, dropout=0.0, norm="batch").build(features, classes)
    norm = {f"norm.{name}": net.norm.module.state_dict()[name].clone() for name in
            ("weight", "bias", "running_mean", "running_var")}  # fmt: skip
    first = {"weight": net.first.lin.weight.T.clone().detach(), "bias": net.first.bias.clone().detach(), **norm}
    second = {"weight": net.second.lin.weight.T.clone().detach(), "bias": net.second.bias.clone().detach()}
    own = (first, second)
    return tuple(replace_fields(layer, init=lambda key, at=at: own[at]) for at, layer in enumerate(model))


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fedweave.datasets.load("synthetic", nodes=90, classes=3, features=6)


def trained(algorithm: Any, data: Dataset, rounds: int = 3, **options: Any) -> RoundResult:
    fed = fedweave.federation(data, Random(clients=3).cut(data, seed=0), algorithm, dtype=torch.float64, **options)
    *_, last = fedweave.train(algorithm, fed, rounds)
    return last


@pytest.mark.parametrize("kind", [FedAvg, Moon, FedProto, ALGORITHMS["fedadam"], ALGORITHMS["ditto"]])
def test_a_module_with_batch_norm_trains_like_fedweaves_model(kind: Any, data: Dataset) -> None:
    """Weights, running statistics and, for those that compare them, embeddings; to 1e-9."""
    net = Normed(data.features, data.classes).double()
    ours = trained(kind(same_layers(net, data.features, data.classes), **OPTIONS), data)
    theirs = trained(kind(net, **OPTIONS), data)
    assert theirs.summary["local/loss"] == pytest.approx(ours.summary["local/loss"], abs=1e-9)
    if kind is FedProto:
        return
    names = {f"norm.{name}": f"norm.module.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    flat = theirs.state["w"]["0"]
    for name, other in names.items():
        torch.testing.assert_close(flat[other], ours.state["w"]["0"][name], **EXACT)
    torch.testing.assert_close(flat["first.lin.weight"].T, ours.state["w"]["0"]["weight"], **EXACT)
    assert flat.keys().isdisjoint({"scale"})
    assert flat["norm.module.num_batches_tracked"] == 6  # two steps in each of three rounds
    net.load_state_dict(flat, strict=False)
    assert int(net.norm.module.num_batches_tracked) == 6


def test_a_modules_norms_stay_at_home(data: Dataset) -> None:
    """FedBN's server never sees them, whatever they are called; clients' differ."""
    algorithm = FedBN(Normed(data.features, data.classes), **OPTIONS)
    fed = fedweave.federation(data, Random(clients=3).cut(data, seed=0), algorithm, dtype=torch.float64)
    *_, last = fedweave.train(algorithm, fed, 2)
    assert {path for path, _ in leaves(last.state["w"])} == {
        "0/first.lin.weight", "0/first.bias", "0/second.lin.weight", "0/second.bias"}  # fmt: skip
    means = [state["w"]["0"]["norm.module.running_mean"] for state in fed.snapshot().values()]
    assert not torch.equal(means[0], means[1])


class OfEdges(nn.Module):
    """Messages of features and weights of edges."""

    def __init__(self, features: int, classes: int, edge_features: int = 2, hidden: int = 4) -> None:
        super().__init__()
        self.conv = GINEConv(nn.Linear(features, hidden), edge_dim=edge_features)
        self.second = GCNConv(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.second(self.conv(x, edge_index, edge_attr).relu(), edge_index, edge_weight)


def carrying() -> tuple[Graph, Tensor, EdgeAttributes]:
    rng = np.random.default_rng(3)
    ends = np.array([[0, 1, 2, 3, 0, 4, 2], [1, 2, 3, 4, 2, 0, 2]])  # the last is a loop
    edge_attrs = EdgeAttributes(ends, directed=False, weight=rng.random(7).astype(np.float32),
                             features=rng.normal(size=(7, 2)).astype(np.float32))  # fmt: skip
    plain = ends[:, :6]
    index, x = np.concatenate([plain, plain[::-1]], 1), rng.normal(size=(5, 3))
    graph = make_graph(
        x, index, np.array([0, 1, 0, 1, 0]), np.ones((3, 5), bool), dtype=torch.float64, edge_attrs=edge_attrs
    )
    return graph, torch.from_numpy(x), edge_attrs


def test_a_module_reads_what_edges_carry() -> None:
    """Each edge's features and weight in both directions, loops once, as PyG's own call has them."""
    graph, x, edge_attrs = carrying()
    model = ModuleKind(OfEdges)().fit_to_edges(edge_attrs).build(3, 2)
    w = models.init(model, random.key(1), torch.float64)
    net = OfEdges(3, 2).double()
    net.load_state_dict(w["0"], strict=False)  # PyG's eps is a constant there
    ends = torch.from_numpy(edge_attrs.ends)
    index = torch.cat([ends, ends.flip(0)[:, :6]], 1)
    attr, weight = (
        torch.from_numpy(np.concatenate([part, part[:6]])).double() for part in (edge_attrs.features, edge_attrs.weight)
    )
    torch.testing.assert_close(models.apply(model, w, graph)[:5], net(x, index, weight, attr), **EXACT)


class OfGraphs(nn.Module):
    """A row of logits for each small graph."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.out = GCNConv(features, 4), nn.BatchNorm1d(4), nn.Linear(4, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu()
        return self.out(global_mean_pool(h, batch))


def small_graphs() -> tuple[Graph, Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(5)
    owner = np.repeat([0, 1, 2, 3], [3, 4, 2, 5])
    starts = np.flatnonzero(owner[1:] == owner[:-1])
    edges = np.concatenate([[starts, starts + 1], [starts + 1, starts]], 1)
    masks = np.zeros((3, 4), bool)
    masks[TRAIN, [0, 2, 3]], masks[2, 1] = True, True
    x = rng.normal(size=(14, 3))
    graph = make_graph(x, edges, np.array([0, 1, 1, 0]), masks, dtype=torch.float64, graph_of=owner)
    return graph, torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(owner)


def test_a_module_of_small_graphs_trains_as_in_pytorch() -> None:
    """Statistics come of training graphs alone; all graphs are judged."""
    graph, x, edges, owner = small_graphs()
    model = ModuleKind(OfGraphs)().build(3, 2)
    assert models.example(model) == "graph"
    w = models.init(model, random.key(1), torch.float64)
    net = OfGraphs(3, 2).double().train()
    net.load_state_dict(w["0"])
    inside, number = owner != 1, (owner != 1).cumsum(0) - 1
    kept = inside[edges[0]]
    batch, optimizer = (
        torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2]),
        torch.optim.SGD(net.parameters(), 0.1, weight_decay=0.02),
    )
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(net(x[inside], number[edges[:, kept]], batch), torch.tensor([0, 1, 0])).backward()
        optimizer.step()

    def loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        mask = graph.masks[TRAIN]
        return F.cross_entropy(models.apply(model, w, graph, key)[mask], graph.y[mask])

    ours = fit(loss, w, graph, random.key(0), Sgd(0.1, 0.02), 4).w
    for name, value in net.state_dict().items():
        torch.testing.assert_close(
            ours["0"][name], value.double(), **EXACT, msg=lambda text, name=name: f"{name}: {text}"
        )
    torch.testing.assert_close(models.apply(model, ours, graph)[:4], net.eval()(x, edges, owner), **EXACT)


class Plain(nn.Module):
    """Asks for no edges."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Positions(Plain):
    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:  # type: ignore[override]
        return self.out(x) + pos


class Weighs(Plain):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:  # type: ignore[override]
        return self.out(x) * edge_weight.mean()


class Counts(Plain):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return self.out(x)


class Misnamed(Plain):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.running_bias = nn.Parameter(torch.zeros(classes))


class Forgetful(Plain):
    def embed(self, x: Tensor) -> Tensor:
        return x


class Short(Plain):
    def embed(self, x: Tensor) -> Tensor:
        return x[:1]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x).expand(len(x), -1))


@pytest.mark.parametrize(("kind", "code", "fact"), [
    (Positions, "inputs", "its forward takes pos"), (Counts, "state", "changes its buffers (steps)"),
    (Misnamed, "weights", "(running_bias)"),
    (Forgetful, "outputs", "its embed gave nothing"), (Short, "outputs", "its embed gave [1, 3]"),
])  # fmt: skip
def test_what_a_module_cannot_do_is_refused_before_the_run(kind: type[nn.Module], code: str, fact: str) -> None:
    with refusal(f"config.module-{code}", kind.__name__, fact):
        ModuleKind(kind)().build(3, 2)


def test_a_module_is_refused_data_without_what_it_reads() -> None:
    with refusal("config.module-inputs", "Weighs", "edge_weight", "have no weight"):
        ModuleKind(Weighs)().fit_to_edges(None)


@pytest.mark.parametrize("algorithm", ["moon", "fedproto", "fgssl"])
def test_a_module_without_embeddings_is_told_of_embed(algorithm: str) -> None:
    with pytest.raises(ValueError, match="a method embed"):
        ALGORITHMS[algorithm](Plain(3, 2))


def test_a_module_may_leave_out_the_edges() -> None:
    graph, x, _ = carrying()
    model = ModuleKind(Plain)().build(3, 2)
    w = models.init(model, random.key(0), torch.float64)
    torch.testing.assert_close(models.apply(model, w, graph)[:5], x @ w["0"]["out.weight"].T + w["0"]["out.bias"])


class Breaks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 25:
            raise ValueError("too many rows for me")  # the line that is named
        return self.out(x)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_an_error_in_a_module_names_the_client_and_the_line(mode: str, data: Dataset) -> None:
    source = Path(__file__).read_text().splitlines()
    line = 1 + next(at for at, text in enumerate(source) if "the line that is named" in text)
    with refusal("step-failed", "'", f"test_own_module.py, line {line}", "too many rows for me"):
        trained(FedAvg(Breaks(data.features, data.classes)), data, mode=mode)
