"""Everything a step computes with lies on one device, whichever that is."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.contract import federations
from fedweave.contract.subject import Subject, distance, everything
from fedweave.core.federation import Placement, step_info
from fedweave.core.graph import Graph, stack
from fedweave.core.tree import clone, decode, encode, leaves, to
from fedweave.engines.simulation import Simulation
from fedweave.learn.optimisers import OPTIMISERS
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched import TouchedRows
from fedweave.rounds import train
from tests.stand_in import DEVICE, Kernels, Mixed, Placed, Watched, present

PACKAGE = Path(__file__).parents[1] / "fedweave"
# Functions of torch that make a tensor of nothing, or of numbers, and put it on the host unless told otherwise. What
# `from_numpy` and `frombuffer` make lies on the host by nature; `x.new_zeros` and `zeros_like` take the place of x.
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones",
    "rand", "randint", "randn", "randperm", "scalar_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
ROUNDS = 2  # what is derived once for a batch is there in the second


def _factories(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FACTORIES:
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
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


# --- the stand-in ----------------------------------------------------------------------------------------------------


def test_stand_in_computes_and_refuses_the_host() -> None:
    with present() as kernels:
        x = torch.tensor([1.0, -2.0], device=DEVICE)
        assert (
            x.device == DEVICE and isinstance(x, Placed) and (2 * x + torch.ones(2, device=DEVICE)).tolist() == [3, -3]
        )
        assert torch.func.vmap(torch.func.grad(lambda v: v * v))(x).tolist() == [2, -4]
        for host in (torch.zeros(2), torch.tensor(2.0), torch.tensor(2.0) + 1):
            with pytest.raises(Mixed):
                x + host
        kernels.inside = "step"
        assert x.sum() < 0 and x[x > 0].shape == (1,) and x[torch.zeros(1, dtype=int, device=DEVICE)].shape == (1,)
        assert kernels.waits == [("step", f"aten.{name}") for name in ("is_nonzero.default", "index.Tensor")] or [
            kernel for _, kernel in kernels.waits
        ] == ["aten._local_scalar_dense.default", "aten.index.Tensor"]


# --- pieces ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    with present() as found:
        yield found


def _placed(graphs: dict[str, Graph]) -> dict[str, Graph]:
    return {client: graph.to(DEVICE) for client, graph in graphs.items()}


def test_graph_moves_and_what_is_derived_from_it_follows(kernels: Kernels) -> None:
    graphs = [graph for graph in federations.graphs().values() if graph.nodes == 64]
    here, there = stack(graphs), stack([graph.to(DEVICE) for graph in graphs])
    assert there.device == DEVICE and there.to(DEVICE) is there
    tensors = [*there.edges.cache.neighbours, there.x.blocks.touched[0], there.x.blocks.diagonal.back]
    tensors += [there.edges.cache.operator("gcn").below.forth, there.x.blocks.table.columns, *there[2:5]]
    assert {own.device for own in tensors} == {DEVICE}
    assert there.x.blocks.members[0].values.device.type == "cpu"  # NumPy's side
    assert all(a.equal(b.cpu()) for a, b in zip(here.edges.cache.neighbours, there.edges.cache.neighbours, strict=True))
    back = graphs[0].to(DEVICE).to("cpu")
    assert back.y.equal(graphs[0].y) and (back.x @ torch.eye(60)).equal(graphs[0].x @ torch.eye(60))


def test_tree_moves_as_it_is_stored_and_decodes_onto_a_device(kernels: Kernels) -> None:
    rows = TouchedRows(torch.zeros(4, 2), torch.tensor([1, 4]), torch.ones(2, 2), matrix="a batch's")
    tree = {"a": {"b": torch.arange(3)}, "rows": rows, "few": Sparsified(torch.eye(2)), "n": 3, "s": "x"}
    there = to(tree, DEVICE)
    assert [leaf.device for _, leaf in leaves(there) if hasattr(leaf, "device")] == [DEVICE] * 3
    assert (
        isinstance(there["rows"], TouchedRows) and there["rows"].matrix is None and (there["n"], there["s"]) == (3, "x")
    )
    assert to(there, DEVICE)["a"]["b"] is there["a"]["b"] and encode(there) == encode(tree)
    decoded = decode(encode(tree), device=DEVICE)
    assert isinstance(decoded["few"], Sparsified) and encode(decoded) == encode(tree)
    assert {leaf.device for _, leaf in leaves(decoded) if hasattr(leaf, "device")} == {DEVICE}


def test_optimisers_count_where_the_weights_lie(kernels: Kernels) -> None:
    w = {"a": torch.ones(3, device=DEVICE)}
    for kind in OPTIMISERS.values():
        optimiser = replace(kind(0.1, 0.0), **({} if kind(0.1, 0.0).moments else {"momentum": 0.9}))
        state = optimiser.init(w)
        after, state = optimiser.update(w, w, state)
        assert {leaf.device for _, leaf in leaves({"w": after, **state})} == {DEVICE} and state["steps"].tolist() == 1


# --- whole rounds ----------------------------------------------------------------------------------------------------


class Watching(Simulation):
    """A simulation that notes what waits inside its steps, `ragged` ones aside, from its second round on."""

    kernels: Kernels

    def _watched(self, step: Any) -> Any:
        return step if step_info(step).ragged or self.round < ROUNDS else Watched(step, self.kernels)

    def map(self, step: Any, *args: Any, **options: Any) -> Any:
        return super().map(self._watched(step), *args, **options)

    def send(self, step: Any, *args: Any, **options: Any) -> Any:
        return super().send(self._watched(step), *args, **options)


def _federation(subject: Subject, kernels: Kernels, mode: str) -> Watching:
    needs, dtype = subject.needs, torch.float64
    clients = _placed(subject.graphs(dtype))
    test = federations.global_test(dtype, needs).to(DEVICE)
    given: dict[str, Any] = {"test": test, "held": {"validation": test}}
    if not needs.graph_level:
        places = federations.places(subject.graphs(dtype))
        given["places"] = {client: Placement(*(own.to(DEVICE) for own in place)) for client, place in places.items()}
        given["held"] |= {"public": federations.public(dtype).to(DEVICE)}
    fed = subject.federation(Watching, dtype, clients=clients, mode=mode, record="never", **given)
    fed.kernels = kernels
    return fed


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_stay_on_the_device(name: str, mode: str, kernels: Kernels) -> None:
    """No tensor of the host gets into a step or the server's state, none waits, and the numbers are the host's."""
    subject = Subject(ALGORITHMS[name])
    fed = _federation(subject, kernels, mode)
    *_, last = train(subject.made(), fed, ROUNDS, 1)
    left = everything(last, fed)
    assert {str(leaf.device) for _, leaf in leaves({**left, "summary": {}}) if isinstance(leaf, torch.Tensor)} <= {
        "meta"
    }
    assert sorted(set(kernels.waits)) == []
    here = subject.run(ROUNDS, 1, mode="loop", dtype=torch.float64, engine=Simulation).left
    assert distance(left, here) < 1e-9
