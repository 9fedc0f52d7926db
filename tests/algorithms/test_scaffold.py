"""SCAFFOLD against arithmetic that was written apart from it, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.participation import places, sample
from fedweave.algorithms.parts import Clip, Uniform
from fedweave.core.graph import TRAIN
from fedweave.core.tree import ravel
from fedweave.core.types import FRAMING
from fedweave.experiment.rounds import train
from tests.algorithms.test_family_oracles import LR, ROUNDS, SGD, STEPS, Problem
from tests.contract.federations import distance, federation, graphs, model
from tests.random_graphs import replace_fields


def ended(name: str = "scaffold", rounds: int = ROUNDS, fed: Any = None, **options: Any) -> tuple[Any, Any]:
    fed = fed or federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS[name](model(0.0), **{**SGD, **options}), fed, rounds, eval_every=0)
    return last.state, fed


def called(participation: float) -> list[np.ndarray]:
    """The places of the clients that each round calls."""
    fed, rounds = federation(dtype=torch.float64), []
    for number in range(1, ROUNDS + 1):
        fed.begin(number)
        rounds.append(places(fed, sample(fed, participation)).numpy())
    return rounds


@pytest.mark.often("1-uniform-0.6")
@pytest.mark.parametrize(
    ("option", "mean", "participation"),
    [
        (2, "uniform", 1.0),
        (1, "uniform", 1.0),
        (2, "size", 1.0),
        (1, "size", 1.0),
        (2, "uniform", 0.6),
        (1, "uniform", 0.6),
    ],
)
def test_rounds_are_those_of_the_reference(
    baselines: Any, problem: Problem, option: int, mean: str, participation: float
) -> None:
    state, fed = ended(option=option, mean=mean, participation=participation)
    chosen = None if participation == 1 else called(participation)
    kinds = {"option": option, "model": mean, "control": mean, "chosen": chosen}
    x, c, own = baselines.scaffold(problem.start, problem.clients, ROUNDS, STEPS, LR, **kinds)
    assert np.abs(ravel(state["w"]).numpy() - x).max() < 1e-9
    control = ravel(state["parts"]["ControlVariates"]["control"]).numpy() / (STEPS * LR)
    assert np.abs(control - c).max() < 1e-9
    for mine, theirs in zip(fed.snapshot().values(), own, strict=True):
        kept = mine.get("ControlVariates", {})
        assert (not kept and not theirs.any()) or np.abs(
            ravel(kept["control"]).numpy() / (STEPS * LR) - theirs
        ).max() < 1e-9


def test_equal_clients_go_as_fedavgs() -> None:
    alike = dict.fromkeys("abcde", graphs(torch.float64)["site-0"])
    ends = [ended(name, fed=federation(dtype=torch.float64, clients=alike))[0]["w"] for name in ("scaffold", "fedavg")]
    assert distance(*ends) < 1e-12


def test_with_one_step_of_everybody_it_is_gradient_descent_on_the_plain_mean() -> None:
    one, other = (
        ended("scaffold", local_steps=1)[0]["w"],
        ended("fedavg", local_steps=1, parts=(Uniform(),))[0]["w"],
    )
    assert distance(one, other) < 1e-12


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_client_without_training_examples_counts_in_no_mean(mode: str) -> None:
    """Nor does it move: without weight decay its c_i stays 0."""
    clients, few = graphs(torch.float64), {}
    for at, (name, graph) in enumerate(clients.items()):
        masks = graph.masks.clone()
        masks[TRAIN] &= at > 0
        few[name] = replace_fields(graph, masks=masks)
    state, fed = ended(fed=federation(dtype=torch.float64, clients=few, mode=mode))
    others = dict(list(few.items())[1:])
    without, _ = ended(fed=federation(dtype=torch.float64, clients=others, mode=mode), rounds=1)
    first, _ = ended(fed=federation(dtype=torch.float64, clients=few, mode=mode), rounds=1)
    assert distance(first["w"], without["w"]) < 1e-12
    kept = next(iter(fed.snapshot().values()))["ControlVariates"]["control"]
    assert ravel(kept).abs().max() < 1e-12
    assert torch.isfinite(ravel(state["w"])).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam"}, r"sums of gradients, and updates by adam are not such sums; set optimizer = 'sgd'"),
        ({"mean": "size", "participation": 0.5}, r"needs all clients, and participation is 0\.5"),
        ({"option": 1, "parts": (Clip(1.0),)}, "also sends gradients, which clip does not protect"),
    ],
)
def test_what_it_cannot_live_with_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ALGORITHMS["scaffold"](model(), **options)


def test_option_1_goes_with_adam() -> None:
    state, _ = ended(option=1, optimizer="adam", lr=0.01)
    assert torch.isfinite(ravel(state["w"])).all()


@pytest.mark.parametrize(("option", "up"), [(2, {"update", "trains"}), (1, {"update", "trains", "control"})])
def test_what_leaves_is_what_is_declared(option: int, up: set[str]) -> None:
    _, fed = ended(option=option)
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["key"] != FRAMING]
    sent = {row["key"].split("/")[0]: row["reveals"] for row in rows if row["direction"] == "up"}
    assert sent.keys() == up
    assert option == 2 or sent["control"] == "change of the client's mean gradient"
    heard = {row["key"].split("/")[0]: row["reveals"] for row in rows if row["direction"] == "down"}
    assert heard["ControlVariates"] == "the mean gradient of all members' training"


def test_clipped_updates_make_the_clients_own_variates_too() -> None:
    """Else server and clients would not agree on what c is the mean of."""
    state, fed = ended(parts=(Clip(0.05),))
    own = [ravel(client["ControlVariates"]["control"]) for client in fed.snapshot().values()]
    assert (torch.stack(own).mean(0) - ravel(state["parts"]["ControlVariates"]["control"])).abs().max() < 1e-9
