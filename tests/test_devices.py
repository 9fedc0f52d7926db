"""Everything that a step computes with lies on one device, whichever that is, and nothing in it waits for it."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.contract import federations
from fedweave.contract.subject import Subject, checkpoint, distance, everything
from fedweave.core.federation import step_info
from fedweave.core.graph import stack
from fedweave.core.tree import decode, encode, leaves, to
from fedweave.engines.simulation import Simulation
from fedweave.experiment.config import field_parameters
from fedweave.experiment.rounds import train
from fedweave.learn.optimizers import Adam, Sgd
from fedweave.models import MODELS
from fedweave.ops import tape
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows
from tests.stand_in import DEVICE, Kernels, Mixed, Placed, Watched, present

PACKAGE = Path(__file__).parents[1] / "src" / "fedweave"
# Functions of torch that make a tensor of nothing, or of numbers, and put it on the host unless told otherwise. What
# `from_numpy` and `frombuffer` make lies on the host by nature; `x.new_zeros` and `zeros_like` take the place of x.
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones",
    "rand", "randint", "randn", "randperm", "scalar_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
ROUNDS = 2


def _factories(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name in FACTORIES:
                yield node


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in _factories(path.read_text())
        if "device" not in [given.arg for given in call.keywords]
    ]
    assert found == []


def test_factories_are_found() -> None:
    assert len([*_factories("torch.zeros(3)\nx.new_zeros(3)\ntorch.zeros_like(x)\ntorch.tensor(1, device=d)")]) == 2


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """The stand-in's; what is derived once for a batch may wait."""
    derive = tape.deriving

    @contextmanager
    def deriving() -> Iterator[None]:
        inside, found.inside = found.inside, ""
        with derive():
            yield
        found.inside = inside

    with present() as found:
        monkeypatch.setattr(tape, "deriving", deriving)
        yield found


def _places(tree: Any) -> set[torch.device]:
    return {leaf.device for _, leaf in leaves(tree) if isinstance(leaf, Tensor | TouchedRows | Sparsified)}


# --- the stand-in ----------------------------------------------------------------------------------------------------


def test_stand_in_computes(kernels: Kernels) -> None:
    x = torch.tensor([1.0, -2.0], device=DEVICE)
    assert isinstance(x, Placed)
    assert x.device == DEVICE
    assert (2 * x + torch.ones(2, device=DEVICE)).tolist() == [3, -3]
    assert torch.func.vmap(torch.func.grad(lambda v: 3 * v * v))(x).tolist() == [6, -12]


def test_stand_in_refuses_tensors_of_the_host(kernels: Kernels) -> None:
    x = torch.tensor([1.0, -2.0], device=DEVICE)
    for host in (torch.zeros(2), torch.tensor(2.0), torch.tensor(2.0) + 1):
        with pytest.raises(Mixed):
            x + host


def test_stand_in_notes_what_waits(kernels: Kernels) -> None:
    x, at = torch.tensor([1.0, -2.0], device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    kernels.inside = "step"
    assert (x[at] + x.cumsum(0)).shape == (2,)
    assert not kernels.waits
    for wait, kernel in (
        (lambda: x[x > 0], "index.Tensor"),
        (lambda: float(x[0]), "_local_scalar_dense.default"),
        (lambda: torch.tensor(1.0, device=DEVICE), "_to_copy.default"),
        (lambda: x.cpu(), "_to_copy.default"),
    ):
        kernels.waits.clear()
        wait()
        assert kernels.waits == {("step", f"aten.{kernel}")}


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_graph_moves_and_what_is_derived_from_it_follows(kernels: Kernels) -> None:
    graphs = [graph for graph in federations.graphs().values() if graph.nodes == 64]
    here, there = stack(graphs), stack([graph.to(DEVICE) for graph in graphs])
    assert there.device == DEVICE
    assert there.to(DEVICE) is there
    made = [there.x.blocks, there.edges.cache.operator("gcn")]
    tensors = [*there.edges.cache.neighbors(), *there[2:5], *(own.touched[0] for own in made)]
    tensors += [own for each in made for own in (each.diagonal.transpose, each.tall.matrix, each.table.columns)]
    assert {own.device for own in tensors} == {DEVICE}
    assert there.x.blocks.members[0].values.device.type == "cpu"  # NumPy's side
    assert all(
        a.equal(b.cpu()) for a, b in zip(here.edges.cache.neighbors(), there.edges.cache.neighbors(), strict=True)
    )
    back = graphs[0].to(DEVICE).to("cpu")
    assert back.y.equal(graphs[0].y)
    assert (back.x @ torch.eye(60)).equal(graphs[0].x @ torch.eye(60))


def test_tree_moves_as_it_is_stored_and_decodes_onto_a_device(kernels: Kernels) -> None:
    rows = TouchedRows(torch.zeros(4, 2), torch.tensor([1, 4]), torch.ones(2, 2), matrix="a batch's")
    tree = {"a": {"b": torch.arange(3)}, "rows": rows, "few": Sparsified(torch.eye(2)), "n": 3, "s": "x"}
    there = to(tree, DEVICE)
    assert _places(there) == {DEVICE}
    assert isinstance(there["rows"], TouchedRows)
    assert there["rows"].matrix is None
    assert to(there, DEVICE)["a"]["b"] is there["a"]["b"]
    assert encode(there) == encode(tree)
    decoded = decode(encode(tree), device=DEVICE)
    assert _places(decoded) == {DEVICE}
    assert encode(decoded) == encode(tree)


@pytest.mark.parametrize("optimizer", [Adam(), Sgd(momentum=0.9)])
def test_optimizers_count_where_the_weights_lie(optimizer: Any, kernels: Kernels) -> None:
    w = {"a": torch.ones(3, device=DEVICE)}
    after, state = optimizer.update(w, w, optimizer.init(w))
    assert _places({"w": after, **state}) == {DEVICE}
    assert state["steps"].tolist() == 1


# --- whole rounds ----------------------------------------------------------------------------------------------------


class Watching(Simulation):
    """A simulation that notes what waits inside its steps, `ragged` ones aside."""

    kernels: Kernels

    def _watched(self, step: Any) -> Any:
        return step if step_info(step).ragged else Watched(step, self.kernels)

    def map(self, step: Any, *args: Any, **options: Any) -> Any:
        return super().map(self._watched(step), *args, **options)

    def send(self, step: Any, *args: Any, **options: Any) -> Any:
        return super().send(self._watched(step), *args, **options)


def _federation(subject: Subject, kernels: Kernels, mode: str) -> Watching:
    needs, dtype = subject.needs, torch.float64
    graphs = subject.graphs(dtype)
    test = federations.global_test(dtype, needs).to(DEVICE)
    given: dict[str, Any] = {"test": test, "held": {"validation": test}}
    if not needs.graph_level:
        given["held"] |= {"public": federations.public(dtype).to(DEVICE)}
    clients = {client: graph.to(DEVICE) for client, graph in graphs.items()}
    fed: Watching = subject.federation(Watching, dtype, clients=clients, mode=mode, record="never", **given)
    fed.kernels = kernels
    return fed


def check_rounds(subject: Subject, made: Any, kernels: Kernels, mode: str) -> None:
    """No tensor of the host gets into a step or the server's state, no step waits, and the numbers are the host's."""
    fed, here = _federation(subject, kernels, mode), subject.federation(Simulation, torch.float64, mode="loop")
    (*_, last), (*_, specified) = (train(made, own, ROUNDS, 1) for own in (fed, here))
    left = everything(last, fed)
    assert _places(left["clients"]) | _places(left["server"]) <= {DEVICE}
    assert kernels.waits == set()
    assert distance(left, everything(specified, here)) < 1e-9


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_stay_on_the_device(name: str, kernels: Kernels) -> None:
    subject = Subject(ALGORITHMS[name])
    check_rounds(subject, subject.build(), kernels, "vmap")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_client_by_client_stay_on_the_device(name: str, kernels: Kernels) -> None:
    subject = Subject(ALGORITHMS[name])
    check_rounds(subject, subject.build(), kernels, "loop")


def test_resumed_rounds_stay_on_the_device(kernels: Kernels) -> None:
    """A checkpoint is read on the host; server and clients go on where the federation's graphs lie."""
    subject = Subject(ALGORITHMS["fedavg"])
    made, whole = subject.build(optimizer_state="kept"), _federation(subject, kernels, "vmap")
    first, *_, last = train(made, whole, ROUNDS, 1)
    again = _federation(subject, kernels, "vmap")
    [begun] = train(made, again, 1, 1)
    saved = decode(checkpoint(begun, again))
    resumed = _federation(subject, kernels, "vmap")
    resumed.restore(saved["clients"], saved.get("data"))
    [after] = train(made, resumed, ROUNDS, 1, (first.round, saved["state"]))
    assert _places(after.state) | _places(resumed.snapshot()) == {DEVICE}
    assert distance(everything(after, resumed), everything(last, whole)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"gin", "sgc", "star"}))  # graphs', without a width, fedstar's
def test_models_stay_on_the_device(name: str, kernels: Kernels) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    settings = {"dropout": 0.5} if "dropout" in field_parameters(MODELS[name]) else {}
    model = MODELS[name](hidden=8, **settings).build(*federations.shape(subject.needs))
    check_rounds(subject, replace(subject.build(), model=model), kernels, "vmap")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {"parts": (PARTS["median"](), PARTS["norm_bound"]())}),
        ("fedavg", {"parts": (PARTS["krum"](),)}),
        ("fedavg", {"parts": (PARTS["secure_sum"](),)}),
        ("fedavg", {"parts": (PARTS["drift"](share=0.5),)}),
        ("fedavg", {"participation": 0.6, "optimizer_state": "kept"}),
        ("fedstar", {"parts": (PARTS["graph_cross_entropy"](batch=3),)}),
        ("fairgfl", {"renew": True}),
        ("fedego", {"epoch_share": 0.5}),
        ("glasu", {"batch": 8, "backward": "exchanged", "steps": 1}),
        ("glasu", {"batch": 8, "secure_sum": True, "sigma": 1.0}),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_settings_stay_on_the_device(name: str, settings: dict[str, Any], kernels: Kernels) -> None:
    subject = Subject(ALGORITHMS[name])
    check_rounds(subject, subject.build(**settings), kernels, "vmap")
