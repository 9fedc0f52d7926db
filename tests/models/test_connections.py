"""Residuals, input layers and jumps: models with them against plain modules of PyTorch Geometric's layers, and wherever
models run."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, JumpingKnowledge, LayerNorm, SAGEConv, TransformerConv

from fedweave.algorithms import ALGORITHMS
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.tree import leaves, nest
from fedweave.learn import cross_entropy
from fedweave.models import MODELS
from fedweave.models.norms import ConvolutionStack
from fedweave.sampling.graphs import GraphBatches, batch_graph
from fedweave.sampling.minibatches import Minibatches
from tests.contract.federations import CLASSES, FEATURES, arrays
from tests.models.reference import TOLERANCE, assert_equal, of_model, of_module, weights_of_model
from tests.models.test_gin import small_graphs
from tests.models.test_layers import graph_of
from tests.models.test_same_bits import check_same_bits, client
from tests.refusals import refusal

CONNECTED = sorted(name for name, kind in MODELS.items() if issubclass(kind, ConvolutionStack))
ALL: dict[str, Any] = {"residual": True, "input_layer": True, "jump": "cat", "norm": "layer"}
SETTINGS: list[dict[str, Any]] = [
    {"residual": True},
    {"input_layer": True},
    {"jump": "max"},
    {"jump": "cat"},
    ALL,
    {"residual": True, "input_layer": True, "jump": "max", "layers": 1},
]
D, K, C, HEADS = 7, 6, 3, 2
SHI = [(f"{ours}{end}", f"lin_{ours}.{kind}") for ours in ("query", "key", "value", "skip")
       for end, kind in (("", "weight"), ("_bias", "bias"))]  # fmt: skip
NAMES = {  # (ours, PyTorch Geometric's) of a convolution
    "gcn": [("weight", "lin.weight"), ("bias", "bias")],
    "sage": [("neigh", "lin_l.weight"), ("root", "lin_r.weight"), ("bias", "lin_l.bias")],
    "gat": [("weight", "lin.weight"), ("source", "att_src"), ("target", "att_dst"), ("bias", "bias")],
    "transformer": SHI,
    "gin": [(f"{kind}{at}", f"nn.{place}.{kind}") for at, place in ((1, 0), (2, 2)) for kind in ("weight", "bias")],
}
ELU = ("gat",)


def test_models_of_convolutions_have_the_settings() -> None:
    assert CONNECTED == ["acmgcn", "gat", "gatv2", "gcn", "gin", "gine", "pna", "rgcn", "sage", "transformer"]


def convolution(name: str, fan_in: int, fan_out: int, last: bool) -> nn.Module:
    """PyTorch Geometric's; heads are side by side, and averaged in the last layer."""
    layer: nn.Module
    if name in ("gat", "transformer"):
        kind: Any = GATConv if name == "gat" else TransformerConv
        layer = kind(fan_in, fan_out, 1, concat=False) if last else kind(fan_in, fan_out // HEADS, HEADS)
    elif name == "gin":
        layer = GINConv(nn.Sequential(nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Linear(fan_out, fan_out)))
    else:
        layer = GCNConv(fan_in, fan_out) if name == "gcn" else SAGEConv(fan_in, fan_out)
    return layer


class Reference(nn.Module):
    """h ← activation(norm(f(h) + W h)) for each convolution f, between what the settings add."""

    def __init__(self, name: str, width: int, layers: int = 2, norm: str = "none", residual: bool = False,
                 input_layer: bool = False, jump: str = "none") -> None:  # fmt: skip
        super().__init__()
        self.activation = nn.ELU() if name in ELU else nn.ReLU()
        gin, ends_linear = name == "gin", name == "gin" or jump != "none"
        self.reads = input_layer or gin
        self.begins, self.active = nn.Linear(D, width), input_layer
        outputs = [width] * layers if ends_linear else [width] * (layers - 1) + [C]
        fan_ins = [width if self.reads else D] + [width] * (layers - 1)
        pairs = list(zip(fan_ins, outputs, strict=True))
        self.inner = layers if ends_linear else layers - 1
        self.convolutions = nn.ModuleList([convolution(name, *pair, at == self.inner) for at, pair in enumerate(pairs)])
        self.residuals = nn.ModuleList([nn.Linear(*pair, bias=False) for pair in pairs])
        self.norms = nn.ModuleList([LayerNorm(width, mode="node") for _ in range(self.inner)])
        self.residual, self.norm = residual, norm != "none"
        self.jump = None if jump == "none" else JumpingKnowledge(jump)
        joined = width * layers if jump == "cat" else width
        self.ends = nn.ModuleList([nn.Linear(joined, width), nn.Linear(width, C)] if gin else [nn.Linear(joined, C)])
        self.ends_linear = ends_linear

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h, outputs = x, list[Tensor]()
        if self.reads:
            h = self.begins(h)
            h = self.activation(h) if self.active else h
        for at, layer in enumerate(self.convolutions):
            out: Tensor = layer(h, edges)
            out = out + self.residuals[at](h) if self.residual else out
            if at == self.inner:
                return out
            h = self.activation(self.norms[at](out) if self.norm else out)
            outputs.append(h)
        h = h if self.jump is None else self.jump(outputs)
        for at, linear in enumerate(self.ends):
            h = linear(h) if at == len(self.ends) - 1 else torch.relu(linear(h))
        return h

    def names(self, name: str) -> dict[str, str]:
        """{our path: its own name of the weight}."""
        found, number = dict[str, str](), 0
        if self.reads:
            found |= {f"0/{kind}": f"begins.{kind}" for kind in ("weight", "bias")}
            number = 1
        for at in range(len(self.convolutions)):
            found |= {f"{number + at}/{ours}": f"convolutions.{at}.{own}" for ours, own in NAMES[name]}
            if self.residual:
                found[f"{number + at}/residual"] = f"residuals.{at}.weight"
            if self.norm and at < self.inner:
                found |= {f"{number + at}/norm.{kind}": f"norms.{at}.{kind}" for kind in ("weight", "bias")}
        number += len(self.convolutions)
        if self.ends_linear:
            for at in range(len(self.ends)):
                found |= {f"{number + at}/{kind}": f"ends.{at}.{kind}" for kind in ("weight", "bias")}
        return found


def without_unused(module: nn.Module, names: dict[str, str]) -> nn.Module:
    """The module without the weights that its settings do not use."""
    for path in [path for path, _ in module.named_parameters() if path not in names.values()]:
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, None)
    return module


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_reference_modules(
    name: str, settings: dict[str, Any], sparse: bool, dtype: torch.dtype
) -> None:
    graph, x, edges = graph_of(40, D, sparse, dtype, seed=1)
    heads = {"heads": HEADS, "hidden": K // HEADS} if name in ("gat", "transformer") else {"hidden": K}
    model = MODELS[name](**heads, dropout=0.0, **{"layers": 2} | settings).build(D, C)
    reference = Reference(name, K, **settings).to(dtype)
    names = reference.names(name)
    w = weights_of_model(model, dtype)
    assert set(w) == set(names)
    theirs = of_module(without_unused(reference, names), names, x, edges)
    assert_equal(of_model(model, graph, 40), theirs, w, TOLERANCE[dtype])


def test_a_residual_and_a_jump_by_hand() -> None:
    """Nodes 0 and 1 are neighbors, and 2 is alone; sage without biases: h = x, root 1, neighbor 10, W 100."""
    x, edges = np.array([[1.0], [2.0], [4.0]]), np.array([[0, 1], [1, 0]])
    graph = make_graph(x, edges, np.zeros(3, int), np.ones((3, 3), bool), dtype=torch.float64)
    one = {"root": [[1.0]], "neigh": [[10.0]], "bias": [0.0], "residual": [[100.0]]}
    w = {"0": {name: torch.tensor(value).double() for name, value in one.items()}}
    w["1"] = {name: -leaf for name, leaf in w["0"].items()}  # ReLU leaves 0 of it
    w["2"] = {"weight": torch.tensor([[1.0], [1000.0]]).double(), "bias": torch.zeros(1).double()}
    model = MODELS["sage"](hidden=1, dropout=0.0, residual=True, jump="cat").build(1, 1)
    first = [1 + 20 + 100, 2 + 10 + 200, 4 + 0 + 400]
    assert models.apply(model[:1], w, graph)["h"][:3, 0].tolist() == first
    assert models.apply(model, w, graph)[:3, 0].tolist() == first  # and 1000 · 0
    largest = MODELS["sage"](hidden=1, dropout=0.0, residual=True, jump="max").build(1, 1)
    w["2"]["weight"] = torch.tensor([[2.0]]).double()
    assert models.apply(largest, w, graph)[:3, 0].tolist() == [2 * value for value in first]


@pytest.mark.parametrize("name", CONNECTED)
def test_without_them_models_are_as_before(name: str) -> None:
    """As many layers as before, and the same weights."""
    plain = models.init(MODELS[name]().build(D, C), random.key(0))
    more = models.init(MODELS[name](residual=True).build(D, C), random.key(0))
    before = dict(leaves(plain))
    after = {path: leaf for path, leaf in leaves(more) if not path.endswith("residual")}
    assert before.keys() == after.keys() != dict(leaves(more)).keys()
    assert all(torch.equal(before[path], after[path]) for path in before)


@pytest.mark.parametrize("name", CONNECTED)
def test_one_client_is_the_same_in_a_batch(name: str) -> None:
    """With dropout, to the bit, gradients included."""
    model = MODELS[name](**ALL, **{"hidden": 2 if "heads" in MODELS[name].__dataclass_fields__ else 8}).build(27, C)
    check_same_bits(model, [client(nodes, 27, C, True, torch.float32) for nodes in (20, 33)], torch.float32)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "acmgcn"])
@pytest.mark.parametrize("jump", ["max", "cat"])
def test_with_room_for_all_neighbors_a_mini_batch_is_the_whole_graph(name: str, jump: str) -> None:
    x, edges, y, masks = arrays(30, 1)
    graph = make_graph(x, edges, y, masks, dtype=torch.float64)
    model = MODELS[name](**ALL | {"jump": jump}, layers=3, hidden=8, dropout=0.0).build(x.shape[1], 3)
    w, key = models.init(model, random.key(2), torch.float64), random.key(3)
    whole = cross_entropy(models.apply(model, w, graph), graph.y.clamp(min=0), graph.masks[TRAIN].double())
    sampler = Minibatches(batch=12, fan_out=30)
    batch = nest({path: leaf[0] for path, leaf in leaves(sampler.batches(model, graph, key, 1))})
    assert sampler.loss(w, model, graph, key, batch) == pytest.approx(float(whole), abs=1e-12)


@pytest.mark.parametrize("name", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_mini_batch_of_all_small_graphs_is_the_full_step(name: str, settings: dict[str, Any]) -> None:
    graph = small_graphs(12, 3)[0]
    graph = graph._replace(x=graph.x.to(torch.float32))
    model = MODELS[name](**{"layers": 2} | settings, hidden=6, dropout=0.0, pool="mean").build(graph.x.shape[1], 3)
    w, sampler = models.init(model, random.key(1), torch.float32), GraphBatches(batch=len(graph.y))
    assert sampler.suits(model)
    batch = {name: leaf[0] for name, leaf in sampler.batches(graph, random.key(0), 1).items()}
    whole = cross_entropy(models.apply(model, w, graph), graph.y.clamp(min=0), graph.masks[TRAIN].float())
    drawn = models.apply(model, w, batch_graph(graph, batch))
    assert cross_entropy(drawn, batch["target"].clamp(min=0), batch["weight"]) == pytest.approx(float(whole), abs=1e-5)


LAWFUL = ("clients_in_batches_give_the_loops_numbers", "recorded_steps_give_the_same_bits",
          "shards_give_the_same_bits", "a_resumed_run_gives_the_same", "training_lowers_the_loss")  # fmt: skip


@pytest.fixture(scope="module", params=[("fedavg", "gcn"), ("fedper", "sage"), ("fedbn", "gat"), ("scaffold", "gin")],
                ids="-".join)  # fmt: skip
def subject(request: pytest.FixtureRequest) -> Subject:
    name, model = request.param
    return Subject(ALGORITHMS[name], model={"name": model, **ALL})


@pytest.mark.often(*(f"fedavg-gcn-{law}" for law in LAWFUL), *(f"{case}-{LAWFUL[0]}" for case in ("fedper-sage",)))
@pytest.mark.parametrize("law", LAWFUL)
def test_laws_hold(subject: Subject, law: str) -> None:
    LAWS[law](subject)


def test_after_a_jump_the_last_layer_is_linear_and_personal() -> None:
    algorithm = ALGORITHMS["fedper"](MODELS["gcn"](**ALL).build(FEATURES, CLASSES))
    assert algorithm.composed.private == ("-1/*",)
    assert set(algorithm.model[-1].init(random.key(0))) == {"weight", "bias"}
    assert algorithm.model[-1].operator is None


@pytest.mark.parametrize(("name", "settings", "options"), [
    ("fedgcn", {"residual": True}, {}),
    ("fedgcn", {"input_layer": True}, {}),
    ("glasu", {"jump": "cat", "layers": 4}, {"exchanges": 2}),
    ("fedego", {"jump": "max", "layers": 4}, {}),
])  # fmt: skip
def test_what_cannot_train_such_a_model_refuses_it(
    name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    kind = "sage" if name == "fedego" else "gcn"
    with pytest.raises(ValueError, match=r"residual|jump"):
        ALGORITHMS[name](MODELS[kind](**settings, hidden=4).build(FEATURES, CLASSES), **options)


@pytest.mark.parametrize(("name", "values"), [
    ("gcn", {"jump": "lstm"}), ("sage", {"residual": "yes"}), ("gin", {"input_layer": 2}),
])  # fmt: skip
def test_models_refuse(name: str, values: dict[str, Any]) -> None:
    with refusal("config.value"):
        MODELS[name](**values)


@pytest.mark.parametrize("name", ["sgc", "mlp", "lightgcn", "gcnii", "h2gcn", "gprgnn", "appnp"])
def test_other_models_have_no_such_setting(name: str) -> None:
    with refusal("config.unknown-key"):
        MODELS[name](residual=True)
