"""FedDyn and FedDC against arithmetic that was written apart from it, and their laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.feddyn import DynamicRegularisation
from fedweave.algorithms.parts import Clip, Uniform, UniformTrained
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.scaffold import ControlVariates
from fedweave.core.graph import TRAIN
from fedweave.core.tree import leaves, ravel
from fedweave.core.types import FRAMING
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.ops.touched_rows import TouchedRows
from tests.algorithms.test_family_oracles import LR, ROUNDS, STEPS, Problem
from tests.algorithms.test_scaffold import called, ended
from tests.contract.federations import distance, federation, graphs, model
from tests.random_graphs import replace_fields

BOTH = ("feddyn", "feddc")


@pytest.mark.often("1.0-feddyn", "0.6-feddc")
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_rounds_are_those_of_the_reference(baselines: Any, problem: Problem, name: str, participation: float) -> None:
    state, _ = ended(name, alpha=0.3, participation=participation)
    chosen = None if participation == 1 else called(participation)
    theirs = getattr(baselines, name)(problem.start, problem.clients, ROUNDS, STEPS, LR, 0.3, chosen=chosen)
    assert np.abs(ravel(state["w"]).numpy() - theirs).max() < 1e-9


def test_constant_gradients_by_hand(baselines: Any) -> None:
    """Of 1 and 3, one step of .1 each: clients move by -.1 and -.3, the server by -.2 and their drift again."""
    part, move = DynamicRegularisation(0.1), {"0": torch.tensor([-0.2], dtype=torch.float64)}
    state = part.init(federation(clients=dict(list(graphs().items())[:2])), {"0": torch.zeros(1, dtype=torch.float64)})
    round: Any = type("R", (), {"counting": torch.tensor(2), "delta": move})
    after, _ = part.step(part.update(state, round), {"0": torch.zeros(1, dtype=torch.float64)}, move)
    assert float(after["0"]) == pytest.approx(-0.4)


@pytest.mark.often("vmap-feddyn", "loop-feddc")
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_client_without_training_examples_changes_nothing(name: str, mode: str) -> None:
    """But that it is among the N by which the server goes on."""
    clients = graphs(torch.float64)
    idle = next(iter(clients))
    masks = clients[idle].masks.clone()
    masks[TRAIN] = False
    few = clients | {idle: replace_fields(clients[idle], masks=masks)}
    some = {client: graph for client, graph in few.items() if client != idle}
    one, other = (ended(name, 1, federation(dtype=torch.float64, clients=own, mode=mode))[0] for own in (few, some))
    start = ravel(Problem().like)
    moved, without = (ravel(state["w"]) - start for state in (one, other))
    count = len(some)
    assert (moved / (1 + count / (count + 1)) - without / 2).abs().max() < 1e-12


def test_with_a_strong_pull_nothing_moves_far() -> None:
    moved = [ravel(ended("feddyn", 1, alpha=alpha, lr=1e-4)[0]["w"]) - ravel(Problem().like) for alpha in (0.1, 5000.0)]
    assert moved[1].norm() < 0.9 * moved[0].norm()


@pytest.mark.often("feddyn-told0")
@pytest.mark.parametrize(("name", "told"), [("feddyn", {"w"}), ("feddc", {"w", "ControlVariates"})])
def test_nothing_but_updates_leaves(name: str, told: set[str]) -> None:
    _, fed = ended(name)
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["key"] != FRAMING]
    crossed = {way: {row["key"].split("/")[0] for row in rows if row["direction"] == way} for way in ("up", "down")}
    assert crossed == {"up": {"update", "trains"}, "down": told}


def test_clipped_updates_make_the_clients_own_drift_too() -> None:
    state, fed = ended("feddyn", parts=(Clip(0.05),))
    own = [ravel(client["DynamicRegularisation"]["drift"]) for client in fed.snapshot().values()]
    assert (torch.stack(own).mean(0) - ravel(state["parts"]["DynamicRegularisation"]["drift"])).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ((DynamicRegularisation(), UniformTrained()), "DynamicRegularisation/drift"),
        ((ControlVariates(), Uniform()), "ControlVariates/control"),
    ],
)
def test_only_touched_rows_are_trained(make_graphs: Any, parts: tuple[Part, ...], kept: str) -> None:
    """Clients keep the rows that no feature of theirs touches once for all, in every round, with the same numbers."""
    clients = make_graphs([40, 40, 40], 400, sparse=True)
    net = MODELS["gcn"](hidden=8).build(400, 3)
    made = FedAvg(net, optimizer="sgd", lr=0.1, parts=parts)
    ends = []
    for mode in ("vmap", "loop"):
        fed = Simulation(clients, classes=3, mode=mode)
        *_, last = train(made, fed, 3, eval_every=0)
        ends.append(last.state["w"])
        if mode == "vmap":
            states = fed.executor._states.many(tuple(fed.clients), False)
            partly = [path for path, leaf in leaves(states) if isinstance(leaf, TouchedRows)]
            assert f"{kept}/0/weight" in partly
    assert distance(*ends) < 1e-9


def test_what_they_cannot_live_with_is_refused() -> None:
    with pytest.raises(ValueError, match="set optimizer = 'sgd'"):
        ALGORITHMS["feddc"](model(), optimizer="adam")
