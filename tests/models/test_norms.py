"""Layer, graph and batch norm against PyTorch Geometric's, in layers, in training, and in whole runs."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch_geometric.nn import BatchNorm, GCNConv, GraphNorm, LayerNorm, SGConv

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedbn import OwnNorms
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph, make_graph, stack
from fedweave.core.tree import Tree, is_statistic, leaves, map_leaves
from fedweave.learn import OPTIMIZERS, fit
from fedweave.models import MODELS
from fedweave.models.norms import with_norm
from tests.models.test_layers import graph_of
from tests.random_graphs import dims_of, padded_alike, replace_fields
from tests.refusals import refusal

KINDS = ("layer", "graph", "batch")
NORMED = sorted(name for name, kind in MODELS.items() if "norm" in getattr(kind, "__dataclass_fields__", {}))
EXACT = {"atol": 1e-9, "rtol": 1e-9}
WIDTH = 5
IDENTITY = models.Layer(lambda key: {}, lambda w, graph, h, key: h)


def reference_of(kind: str, width: int = WIDTH) -> nn.Module:
    made: dict[str, Any] = {"layer": LayerNorm(width, mode="node"), "graph": GraphNorm(width)}
    made["batch"] = BatchNorm(width, allow_single_element=True)
    module: nn.Module = made[kind].double()
    for name, value in module.named_parameters():
        value.data += 0.1 * random.normal(random.fold(random.key(1), name), tuple(value.shape)).double()
    return module


def as_ours(module: nn.Module) -> Tree:
    """Its state under the names of a layer's weights."""
    state = {name.removeprefix("module."): value.clone() for name, value in module.state_dict().items()}
    return {f"norm.{name}": value for name, value in state.items() if value.is_floating_point()}


def loss_of(graph: Graph, logits: Tensor) -> Tensor:
    mask = graph.masks[TRAIN].to(logits.dtype)
    return (F.cross_entropy(logits, graph.y.clamp(min=0), reduction="none") * mask).sum() / mask.sum()


def labeled(graph: Graph, classes: int = 3) -> Graph:
    return replace_fields(graph, y=torch.where(graph.real, torch.arange(graph.nodes) % classes, -1))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_is_pygs(kind: str, training: bool) -> None:
    """Values and gradients; the graph has padding, whose rows are large here."""
    graph, x, _ = graph_of(7, WIDTH, False, torch.float64, seed=1)
    h = torch.cat([x, torch.full((graph.nodes - 7, WIDTH), 1e3, dtype=torch.float64)]).requires_grad_()
    theirs = reference_of(kind).train(training)
    w = map_leaves(lambda leaf: leaf.requires_grad_(), as_ours(theirs))
    layer = with_norm(IDENTITY, kind, WIDTH)
    assert set(layer.init(random.key(0))) == set(w) == set(layer.norms)
    out = layer.apply(w, graph, h, random.key(0) if training else None)[:7]
    mine = x.clone().requires_grad_()
    expected = theirs(mine)
    torch.testing.assert_close(out, expected, **EXACT)
    pull = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    grads = torch.autograd.grad((expected * pull).sum(), [mine, *theirs.parameters()])
    names = [f"norm.{name.removeprefix('module.')}" for name, _ in theirs.named_parameters()]
    ours = torch.autograd.grad((out * pull).sum(), [h, *(w[name] for name in names)])
    for own, other in zip((ours[0][:7], *ours[1:]), grads, strict=True):
        torch.testing.assert_close(own, other, **EXACT)
    assert not ours[0][7:].any()


def test_norms_of_small_graphs_are_pygs() -> None:
    """Graph norm looks at each small graph; batch norm at the nodes of training graphs together."""
    rng = np.random.default_rng(2)
    owner = np.repeat([0, 1, 2], [4, 3, 5])
    x = rng.normal(size=(12, WIDTH))
    masks = np.zeros((3, 3), bool)
    masks[TRAIN, :2] = masks[2, 2] = True
    graph = make_graph(x, np.zeros((2, 0), int), np.zeros(3, int), masks, dtype=torch.float64, graph_of=owner)
    theirs = reference_of("graph")
    ours = with_norm(IDENTITY, "graph", WIDTH).apply(as_ours(theirs), graph, graph.x, None)
    torch.testing.assert_close(ours[:12], theirs(torch.from_numpy(x), torch.from_numpy(owner)), **EXACT)
    theirs = reference_of("batch").train()
    w = as_ours(theirs)
    ours = with_norm(IDENTITY, "batch", WIDTH).apply(w, graph, graph.x, random.key(0))
    torch.testing.assert_close(ours[:7], theirs(torch.from_numpy(x[:7])), **EXACT)


class Net(nn.Module):
    """A GCN of PyG's layers with a norm."""

    def __init__(self, features: int, classes: int, kind: str) -> None:
        super().__init__()
        self.first, self.norm, self.second = GCNConv(features, WIDTH), reference_of(kind), GCNConv(WIDTH, classes)
        self.first.bias.data += 0.3  # batch norm leaves it no gradient but rounding errors, which Adam would enlarge

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x, edges))), edges)

    def ours(self) -> Tree:
        first = {"weight": self.first.lin.weight.T, "bias": self.first.bias, **as_ours(self.norm)}
        second = {"weight": self.second.lin.weight.T, "bias": self.second.bias}
        return {"0": {name: leaf.detach().clone() for name, leaf in first.items()},
                "1": {name: leaf.detach().clone() for name, leaf in second.items()}}  # fmt: skip


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_pytorchs(kind: str, optimizer: str, clip: float) -> None:
    """Five steps with weight decay: the statistics go by momentum .1, and neither decay nor are clipped."""
    graph, x, edges = graph_of(11, 6, True, torch.float64, seed=3)
    graph, net = labeled(graph), Net(6, 3, kind).double().train()
    model = MODELS["gcn"](hidden=WIDTH, dropout=0.0, norm=kind).build(6, 3)
    w = net.ours()
    assert [path for path, _ in leaves(models.init(model, random.key(0)))] == [path for path, _ in leaves(w)]
    made = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    theirs = made(net.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(5):
        theirs.zero_grad()
        loss_of(graph, F.pad(net(x, edges), (0, 0, 0, graph.nodes - 11))).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        theirs.step()

    def loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        return loss_of(graph, models.apply(model, w, graph, key))

    ours = fit(loss, w, graph, random.key(0), OPTIMIZERS[optimizer](0.05, 0.1), 5, clip=clip).w
    for (path, own), (_, other) in zip(leaves(ours), leaves(net.ours()), strict=True):
        torch.testing.assert_close(own, other, atol=1e-8, rtol=1e-8, msg=lambda text, path=path: f"{path}: {text}")
    net.eval()
    torch.testing.assert_close(models.apply(model, ours, graph)[:11], net(x, edges), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NORMED)
def test_one_client_is_the_same_in_a_batch(name: str, kind: str, training: bool) -> None:
    """Clients of 20, 33 and 9 nodes, padded alike: not a bit depends on the padding, gradients included."""
    graphs = padded_alike([graph_of(n, 7, True, torch.float32, n)[0] for n in (20, 33, 9)])
    extra = {"hidden": 4} if name != "sgc" else {"hidden": 4, "layers": 3}
    model = MODELS[name](norm=kind, **extra).build(7, 3)
    assert any(layer.norms for layer in model)
    w, keys = models.init(model, random.key(2)), random.fold(random.key(3), torch.arange(3))
    stacked = stack(graphs)
    dims = dims_of(stacked)
    dims = replace_fields(dims, edges=stacked.edges.dims if hasattr(stacked.edges, "dims") else dims.edges)

    def slope(w: Tree, graph: Graph, key: Tensor) -> Tree:
        return models.apply(model, w, graph, key if training else None)

    together = vmap(slope, in_dims=(None, dims, 0))(w, stacked, keys)
    for at, graph in enumerate(graphs):
        n = int(graph.real.sum())
        assert torch.equal(together[at][:n], slope(w, graph, keys[at])[:n])


def test_a_client_of_one_node_takes_the_running_statistics() -> None:
    """As PyG's `allow_single_element`; they stay as they are."""
    graph = make_graph(np.ones((1, WIDTH)), np.zeros((2, 0), int), np.zeros(1, int), np.ones((3, 1), bool),
                       dtype=torch.float64)  # fmt: skip
    layer, theirs = with_norm(IDENTITY, "batch", WIDTH), reference_of("batch").train()
    w = map_leaves(lambda leaf: leaf.requires_grad_(), as_ours(theirs))
    out = layer.apply(w, graph, graph.x, random.key(0))
    torch.testing.assert_close(out[:1], theirs(graph.x[:1]), **EXACT)
    ways = torch.autograd.grad(out.sum(), [w["norm.running_mean"], w["norm.running_var"]])
    assert not any(way.any() for way in ways)


def test_names_say_what_is_a_statistic() -> None:
    w = models.init(MODELS["sage"](norm="batch", layers=3).build(4, 2), random.key(0))
    found = [path for path, _ in leaves(w) if is_statistic(path)]
    assert found == [f"{i}/norm.running_{what}" for i in (0, 1) for what in ("mean", "var")]
    assert is_statistic("0/block.bn1.num_batches_tracked")
    assert not is_statistic("0/norm.weight")
    assert not is_statistic("0/running_shoes.weight")


@pytest.mark.parametrize(("name", "values", "code"), [
    ("gcn", {"norm": "instance"}, "config.value"),
    ("sgc", {"norm": "batch"}, "config.value"),
    ("appnp", {"norm": "batch"}, "config.unknown-key"),
])  # fmt: skip
def test_models_refuse(name: str, values: dict[str, Any], code: str) -> None:
    with refusal(code):
        MODELS[name](**values)


LAWFUL = ("clients_in_batches_give_the_loops_numbers", "all_clients_at_once_do_in_double_precision",
          "recorded_steps_give_the_same_bits", "nothing_but_bytes_passes", "shards_give_the_same_bits",
          "a_resumed_run_gives_the_same", "clients_are_isolated",
          "a_client_without_training_examples_keeps_what_it_receives", "training_lowers_the_loss")  # fmt: skip


@pytest.fixture(scope="module", params=[
    ("fedavg", "gcn", "batch"), ("fedavg", "sage", "graph"), ("local", "gat", "batch"), ("fedadam", "gcn", "batch"),
    ("scaffold", "gcn", "batch"), ("ditto", "gcn", "layer"),
], ids="-".join)  # fmt: skip
def subject(request: pytest.FixtureRequest) -> Subject:
    """An algorithm with a normalized model; `tests/contract` has fedbn with batch norm."""
    name, model, norm = request.param
    return Subject(ALGORITHMS[name], model={"name": model, "norm": norm})


@pytest.mark.often(
    *(f"fedavg-gcn-batch-{law}" for law in LAWFUL),
    *(f"{case}-{LAWFUL[0]}" for case in ("fedavg-sage-graph", "local-gat-batch", "fedadam-gcn-batch",
                                         "scaffold-gcn-batch", "ditto-gcn-layer")),
    "scaffold-gcn-batch-clients_are_isolated", "local-gat-batch-a_resumed_run_gives_the_same",
)  # fmt: skip
@pytest.mark.parametrize("law", LAWFUL)
def test_laws_hold_with_norms(subject: Subject, law: str) -> None:
    """Executors, recordings, bytes, shards and resumed runs agree; no client's statistics reach another's reply."""
    LAWS[law](subject)


def normed(name: str, **values: Any) -> Any:
    kind = ALGORITHMS[name]
    model = MODELS["gcn"](norm="batch", hidden=4).build(6, 3)
    return kind(model, **values)


@pytest.mark.parametrize("name", ["dp_fedavg", "fednova", "qfedavg", "fairgfl", "fairfed", "fcfl"])
def test_what_makes_no_mean_takes_statistics_that_stay_at_home(name: str) -> None:
    with pytest.raises(ValueError, match="add the part own_norms"):
        normed(name)
    assert normed(name, parts=(OwnNorms(),)).composed.private == ("norm/*",)


@pytest.mark.parametrize("name", ["apfl", "fedpub", "fedtad", "fgssl", "graphfl", "rffl", "cffl", "fairgraphfl"])
def test_what_computes_with_weights_refuses_running_statistics(name: str) -> None:
    """Layer norm has none. FairGraphFL refuses nodes as examples before."""
    with pytest.raises(ValueError, match=r"running statistics of batch norm are not weights|small graphs"):
        normed(name)


def test_own_norms_needs_norms() -> None:
    with pytest.raises(ValueError, match=r"model\.norm = "):
        ALGORITHMS["fedbn"](MODELS["gcn"](hidden=4).build(6, 3))


def test_share_names_norms_together() -> None:
    """All but the norms is what fedbn shares."""
    model = MODELS["gcn"](norm="batch", hidden=4).build(6, 3)
    named = [path for path, _ in leaves(models.init(model, random.key(0))) if models.matches(model, path, ["norm/*"])]
    assert named == [f"0/norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")]


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "feddyn", "scaffold"])
def test_statistics_are_averaged_whatever_the_server_does(name: str) -> None:
    """One round by hand: w_i's statistics weighed as updates are; optimizers of the server and corrections leave them
    alone. Each client trains as FedAvg's does, for in its first step no correction has begun."""
    options = {"local_steps": 1, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    subject = Subject(ALGORITHMS[name], options, {"norm": "batch"})
    fed = subject.federation(dtype=torch.float64, mode="loop")
    algorithm = subject.build(dropout=0.0)
    state = algorithm.init(fed)
    after = algorithm.round(state, fed)
    counts = torch.stack([graph.masks[TRAIN].sum() for graph in subject.graphs(torch.float64).values()]).double()
    shares = counts / counts.sum() if name in ("fedavg", "fedadam") else torch.full_like(counts, 1 / len(counts))
    h = []
    for graph in subject.graphs(torch.float64).values():
        n = int(graph.real.sum())
        out = graph.edges.operator("gcn") @ (graph.x @ state["w"]["0"]["weight"]) + state["w"]["0"]["bias"]
        h.append(out[:n])
    mean = sum(share * (0.1 * one.mean(0)) for share, one in zip(shares, h, strict=True))
    var = sum(share * (0.9 + 0.1 * one.var(0)) for share, one in zip(shares, h, strict=True))
    torch.testing.assert_close(after["w"]["0"]["norm.running_mean"], mean, **EXACT)
    torch.testing.assert_close(after["w"]["0"]["norm.running_var"], var, **EXACT)


@pytest.mark.parametrize("layers", [1, 3])
def test_sgc_with_hidden_is_openfgls(layers: int) -> None:
    """SGConv with K = 1, ReLU between."""
    graph, x, edges = graph_of(20, 6, True, torch.float64, seed=4)
    model = MODELS["sgc"](hidden=5, layers=layers, dropout=0.0).build(6, 3)
    w = models.init(model, random.key(1), torch.float64)
    h = x
    for at, layer in enumerate(w.values()):
        theirs = SGConv(*layer["weight"].shape, K=1).double()
        theirs.load_state_dict({"lin.weight": layer["weight"].T, "lin.bias": layer["bias"]})
        h = theirs(torch.relu(h) if at else h, edges)
    torch.testing.assert_close(models.apply(model, w, graph)[:20], h, **EXACT)
    assert {leaf.shape for _, leaf in leaves(w)} == {leaf.shape for _, leaf in leaves(models.init(MODELS["gcn"](
        hidden=5, layers=layers).build(6, 3), random.key(0)))}  # fmt: skip
