"""Rounds that are recorded as a whole give what they give as written, and only what declares it is recorded."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, PARTS, FedAvg
from fedweave.algorithms.parts import Part, Uniform
from fedweave.algorithms.preset import preset_of
from fedweave.cli.contract import verdict
from fedweave.contract.laws import recorded_rounds_give_the_same_bits
from fedweave.contract.subject import Subject, checkpoint, distance, everything
from fedweave.core.algorithm import Evaluation, Round, recording_obstacle
from fedweave.core.federation import Federation
from fedweave.core.links import Links
from fedweave.core.tree import Tree, decode, leaves, map_leaves, nest
from fedweave.datasets.links import as_links
from fedweave.engines.simulation import Simulation
from fedweave.errors import FedweaveError
from fedweave.experiment.build import federation
from fedweave.experiment.rounds import train
from fedweave.models import GCN
from fedweave.models.links import OnPairs
from fedweave.partition import Random
from tests.links.test_links import random_data

ROUNDS = 8  # as written, with steps recorded, recorded as a whole, and played
LAW = recorded_rounds_give_the_same_bits.__name__  # `tests/contract` tries it on every algorithm


def run(algorithm: Any, subject: Subject, record: str, rounds: int = ROUNDS, every: int = 1) -> tuple[Any, Any, Any]:
    """What is left after the rounds, the summaries, and the federation."""
    fed, summaries = subject.federation(Simulation, torch.float32, mode="vmap", record=record), []
    for step in train(algorithm, fed, rounds, every):
        summaries.append({name: str(value) for name, value in step.summary.items()})
    return everything(step, fed), summaries, fed


def ledger(fed: Any) -> Any:
    return fed.ledger.table().drop_columns(["seconds", "at"])


# --- what is shipped --------------------------------------------------------------------------------------------------

# Algorithms whose rounds are not recorded: Python reads values, clients take turns, or a state counts rounds in Python.
VARYING = {"fairgfl", "fairfed", "fedpub", "fedtad", "fggp", "cffl", "fedego", "glasu", "vfgnn", "standalone"}
VARYING |= {"simulated_centralized", "pooled_gnn"}
UNDECLARED = {"fedbuff", "adafgl", "fcfl", "gcfl", "gcfl_plus"}


def test_what_the_shipped_algorithms_declare() -> None:
    made = {name: Subject(ALGORITHMS[name]).build() for name in ALGORITHMS}
    assert {name for name, own in made.items() if recording_obstacle(own.evaluate)} == UNDECLARED
    assert {name for name, own in made.items() if recording_obstacle(own.round)} == UNDECLARED | VARYING


# Settings under which algorithms have parts that none has by default, or do something else.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "median": ("fedavg", {"parts": ("median",)}),
    "trimmed mean": ("fedavg", {"parts": ("trimmed_mean",)}),
    "krum": ("fedavg", {"parts": ("krum",)}),
    "geometric median": ("fedavg", {"parts": ("geometric_median",)}),
    "bulyan": ("fedavg", {"parts": ({"name": "bulyan", "malicious": 0},)}),
    "centered clip": ("fedavg", {"parts": ("centered_clip",)}),
    "norm bound": ("fedavg", {"parts": ("norm_bound",)}),
    "top k": ("fedavg", {"parts": ("top_k",)}),
    "top k, adam": ("fedadam", {"parts": ("top_k",)}),
    "quantize": ("fedavg", {"parts": ("quantize",)}),
    "secure sum": ("fedavg", {"parts": ("clip", "secure_sum")}),
    "holders' sum": ("fedavg", {"parts": ("holders_sum",)}),
    "own users": ("fede", {"parts": ("own_users",)}),
    "mixed start": ("fedavg", {"parts": ("mixed_start",)}),
    "class counts": ("fedavg", {"parts": ("class_counts",)}),
    "trained model": ("fedavg", {"parts": ("trained_model",)}),
    "own share": ("fedavg", {"parts": ("own_share",)}),
    "own share, alone": ("fedavg", {"parts": ({"name": "own_share", "alone": True},)}),
    "proximal steps": ("fednova", {"mu": 0.1}),
    "adaptive proximal": ("fedprox", {"adaptive": True}),
    "nearest prototype": ("fedproto", {"model": {"name": "gcn", "linear": True}, "head": "prototype"}),
    "nearest trained": ("fedtgp", {"model": {"name": "gcn", "linear": True}, "head": "prototype"}),
    "ego-graphs": ("fedavg", {"model": {"name": "ego"}, "parts": ("ego_cross_entropy",)}),
    "sampled neighborhoods": ("fedavg", {"parts": ({"name": "sampled_cross_entropy", "batch": 4},)}),
    "batches of graphs": ("fedstar", {"parts": ({"name": "graph_cross_entropy", "batch": 3},)}),
    "noise on examples": (
        "fedavg",
        {"model": {"name": "mlp"}, "parts": ({"name": "dp_examples", "clip": 1.0, "sigma": 1.0},)},
    ),
    "mini-batches": ("fedavg", {"batch_size": 4}),
    "epochs": ("fedavg", {"local_epochs": 2, "batch_size": 4, "optimizer_state": "fresh"}),
    "schedule": ("fedavg", {"schedule": "cosine", "warmup": 2}),
    "schedule, local": ("local", {"schedule": "cosine"}),
    "schedule, peers": ("dfedgnn", {"schedule": "linear"}),
    "one shared layer": ("fedavg", {"share": ("0/*",)}),
    "summed scores": ("fedavg", {"scores": "sum"}),
    "no optimizer state": ("fedavg", {"optimizer_state": "fresh"}),
    "sampled clients": ("fedavg", {"participation": 0.6}),
    "sampled clients, scaffold": ("scaffold", {"participation": 0.6}),
    "sampled clients, fedproto": ("fedproto", {"participation": 0.6}),
    "sampled clients, pfedme": ("pfedme", {"participation": 0.6}),
    "sampled clients, fedgta": ("fedgta", {"participation": 0.6}),
    "all nodes": ("glasu", {"batch": 0}),
    "all nodes, noise": ("glasu", {"batch": 0, "sigma": 0.1}),
    "all nodes, exchanged gradients": ("glasu", {"batch": 0, "backward": "exchanged"}),
    "all nodes, secure sum": ("glasu", {"batch": 0, "secure_sum": True}),
    "all nodes, decay": ("glasu", {"batch": 0, "decay": 0.5, "decay_every": 2}),
    "data that changes": ("fedavg", {"parts": ({"name": "drift", "share": 0.5},)}),
    "coalitions": ("fedavg", {"parts": ("coalition_value",)}),
}


def subject_of(name: str, settings: dict[str, Any]) -> Subject:
    values = {key: value for key, value in settings.items() if key != "model"}
    if "parts" in values:
        tables = [{"name": part} if isinstance(part, str) else part for part in values["parts"]]
        values["parts"] = tuple(PARTS[table["name"]](**_without_name(table)) for table in tables)
    return Subject(ALGORITHMS[name], values, settings.get("model", {}))


def _without_name(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


@pytest.mark.often("median", "top k", "sampled clients", "schedule")
@pytest.mark.parametrize("case", SETTINGS)
def test_recorded_rounds_give_the_same_bits_with_other_settings(case: str) -> None:
    recorded_rounds_give_the_same_bits(subject_of(*SETTINGS[case]))


def test_links_are_predicted_the_same_in_recorded_rounds() -> None:
    data = as_links(random_data(), Links())
    cut, ends = Random(clients=3).cut(data, 0), []
    algorithm = FedAvg(OnPairs(GCN(hidden=8)).build(5))
    for record in ("always", "never"):
        fed = federation(data, cut, algorithm, record=record)
        *_, last = train(algorithm, fed, ROUNDS, 1)
        ends.append(everything(last, fed))
        assert fed.whole_methods == ({"round", "evaluate"} if record == "always" else set())
    assert distance(*ends) == 0


def test_every_part_that_declares_it_is_tried() -> None:
    """By the law over algorithms, by the settings above or with links."""
    subjects = [Subject(kind) for kind in ALGORITHMS.values()] + [subject_of(*case) for case in SETTINGS.values()]
    tried = {type(part) for subject in subjects for part in subject.build().composed.values()}
    left = [name for name, kind in PARTS.items() if "recorded" in vars(kind) and kind not in tried]
    assert left == ["link_prediction"]


# --- runs of what is declared -----------------------------------------------------------------------------------------


def test_rounds_without_an_evaluation_are_recorded_too() -> None:
    subject = Subject(ALGORITHMS["scaffold"])
    (left, _, fed), (again, _, _) = (run(subject.build(), subject, how, every=4) for how in ("always", "never"))
    assert distance(left, again) == 0
    assert fed.whole_methods == {"round"}


@dataclass(frozen=True)
class DifferentiatesAtTheServer(FedAvg):
    """FedAvg whose server takes a step of its own."""

    recorded = True

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round, and a step down the gradient of half the weights' squares."""
        after = super().round(state, fed)
        w = {path: leaf.clone().requires_grad_() for path, leaf in leaves(after["w"])}
        slopes = torch.autograd.grad(sum((leaf**2).sum() for leaf in w.values()) / 2, [*w.values()])
        steps = zip(w.items(), slopes, strict=True)
        return after | {"w": nest({path: (leaf - slope / 10).detach() for (path, leaf), slope in steps})}


def test_a_users_own_algorithm_is_recorded_where_it_declares_it() -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = DifferentiatesAtTheServer(subject.build().model, local_steps=1)
    (left, _, fed), (again, _, _) = (run(made, subject, record) for record in ("always", "never"))
    assert distance(left, again) == 0
    assert fed.whole_methods == {"round", "evaluate"}


@dataclass(frozen=True)
class WeighsByUpdate(Part):
    """Clients count by the size of their updates, which overflow in round `late`."""

    late: int = 3
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The rounds so far."""
        return {"done": torch.zeros((), dtype=torch.int64)}

    def update(self, state: Tree, round: Round) -> Tree:
        """Count."""
        return {"done": state["done"] + 1}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """Equal weights, or in round `late` none that are finite."""
        equal = torch.full((len(round.at),), 1 / len(round.at), dtype=torch.float64)
        return torch.where(state["done"] + 1 == self.late, equal * math.inf, equal)


@pytest.mark.parametrize("late", [1, 2, 4, 7])
def test_weights_that_are_not_finite_are_refused_in_their_round(late: int) -> None:
    subject, said = Subject(ALGORITHMS["fedavg"]), []
    for record in ("always", "never"):
        fed = subject.federation(Simulation, torch.float32, mode="vmap", record=record)
        made = FedAvg(subject.build().model, local_steps=1, parts=(WeighsByUpdate(late),))
        with pytest.raises(FedweaveError) as refused:
            for _ in train(made, fed, ROUNDS, 0):
                pass
        said.append((refused.value.code, str(refused.value), fed.round))
    assert said[0] == said[1]
    assert said[0][2] == late


def test_a_resumed_run_goes_on_with_the_same_bits() -> None:
    subject = Subject(ALGORITHMS["scaffold"])
    (left, _, _) = run(subject.build(), subject, "always", 2 * ROUNDS)
    fed = subject.federation(Simulation, torch.float32, mode="vmap", record="always")
    for step in train(subject.build(), fed, 2 * ROUNDS, 1):
        if step.round == ROUNDS:
            saved = checkpoint(step, fed)
            break
    later, tree = subject.federation(Simulation, torch.float32, mode="vmap", record="always"), decode(saved)
    later.restore(tree["clients"], tree.get("data"))
    (*_, last) = train(subject.build(), later, 2 * ROUNDS, 1, (ROUNDS, tree["state"]))
    assert later.whole_methods >= {"round"}
    assert (
        distance({"server": last.state, "clients": later.snapshot()}, {key: left[key] for key in ("server", "clients")})
        == 0
    )


def test_a_restored_engine_goes_on_from_what_it_is_given() -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    fed = subject.federation(Simulation, torch.float32, mode="vmap", record="always")
    runs = []
    for step in train(subject.build(), fed, ROUNDS, 1):
        runs.append((step.state, fed.snapshot()))
    state, clients = runs[4]
    fed.restore(clients, None)
    for _ in train(subject.build(), fed, ROUNDS, 1, (5, state)):
        pass
    assert distance(fed.snapshot(), runs[-1][1]) == 0


@dataclass(frozen=True)
class Explodes(FedAvg):
    """FedAvg whose weights grow a thousandfold in a round."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round, and the growth."""
        after = super().round(state, fed)
        return after | {"w": map_leaves(lambda leaf: leaf * 1e6, after["w"])}


def test_divergence_is_said_in_the_same_words() -> None:
    subject, said = Subject(ALGORITHMS["fedavg"]), []
    for record in ("always", "never"):
        fed = subject.federation(Simulation, torch.float32, mode="vmap", record=record)
        with pytest.raises(FedweaveError) as refused:
            for _ in train(Explodes(subject.build().model, local_steps=1), fed, 40, 0):
                pass
        said.append((refused.value.code, str(refused.value), fed.round))
    assert said[0] == said[1]
    assert said[0][0] == "diverged"


# --- what its author has not declared ---------------------------------------------------------------------------------


class Memory:
    """What an author's code may keep between rounds."""

    def __init__(self) -> None:
        self.number, self.tensor = 0, torch.zeros(())
        self.generator, self.optimizer = np.random.default_rng(1), torch.optim.SGD([torch.zeros(1)], lr=8.0)

    def count(self) -> int:
        """One more."""
        self.number += 1
        return self.number

    def rate(self) -> float:
        """A learning rate that decays."""
        self.optimizer.param_groups[0]["lr"] *= 0.8
        return float(self.optimizer.param_groups[0]["lr"])


def data_of(turns: Tensor) -> Tensor:
    """The same number, by the attribute `data`, of which no kernel knows."""
    scale = torch.zeros(())
    scale.data = turns.clone()
    return scale * 1


# Shares that differ in every round, of which a recording would keep the first: by what the author's code remembers, by
# what the engine knows, and by the value of a tensor, the number of rounds.
SHARES: dict[str, Callable[[Memory, Any, Tensor], Any]] = {
    "a number": lambda memory, fed, turns: memory.count(),
    "an optimizer": lambda memory, fed, turns: memory.rate(),
    "a generator": lambda memory, fed, turns: memory.generator.random(),
    "a tensor written into": lambda memory, fed, turns: memory.tensor.add_(1),
    "the round": lambda memory, fed, turns: fed.round,
    "the ledger": lambda memory, fed, turns: fed.ledger.bytes_up / 1e6,
    "float": lambda memory, fed, turns: float(turns),
    "apply_": lambda memory, fed, turns: turns.clone().apply_(lambda value: value % 3),
    "data": lambda memory, fed, turns: data_of(turns),
    "if": lambda memory, fed, turns: 0 if turns % 2 == 0 else 3,
}


@dataclass(frozen=True)
class Naive(FedAvg):
    """FedAvg whose weights shrink by another share in each round."""

    how: str = "a number"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "memory", Memory())

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Scale the weights."""
        turns = state.get("turns", torch.zeros(()))
        after = super().round({name: tree for name, tree in state.items() if name != "turns"}, fed)
        share = SHARES[self.how](self.memory, fed, turns)  # type: ignore[attr-defined]
        return after | {"turns": turns + 1, "w": map_leaves(lambda leaf: leaf * (1 - share / 100), after["w"])}


@dataclass(frozen=True)
class NaiveWeights(Part):
    """Clients count equally, and together by another sum in each round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", Memory())

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """Equal weights, float64 [P]."""
        share = self.memory.count()  # type: ignore[attr-defined]
        return torch.ones(len(round.at), dtype=torch.float64) / len(round.at) * (1 - share / 100)


class DeclaredWeights(NaiveWeights):
    """The same, which says that it does the same each time."""

    recorded = True


@preset_of(NaiveWeights)
class NaivePreset:
    """FedAvg with such weights."""


@preset_of(DeclaredWeights)
class DeclaredPreset:
    """FedAvg with such weights."""


class Evaluates(FedAvg):
    """FedAvg that scores other weights in every evaluation."""

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """The scores of scaled weights."""
        done = self.__dict__["done"] = self.__dict__.get("done", 0) + 1
        return super().evaluate(state | {"w": map_leaves(lambda leaf: leaf * (1 - done / 5), state["w"])}, fed)


class CountsInState(FedAvg):
    """FedAvg that halves its weights in every third round, by a number in its state."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round."""
        done = int(state.get("done", 0))
        after = super().round({name: tree for name, tree in state.items() if name != "done"}, fed)
        return after | {"done": done + 1, "w": map_leaves(lambda leaf: leaf / (2 if done % 3 == 2 else 1), after["w"])}


class TakesTurns(FedAvg):
    """FedAvg that calls the first two clients or all, in turns."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round of some."""
        done = self.__dict__["done"] = self.__dict__.get("done", 0) + 1
        replies = fed.map(self.train, {"w": state["w"]}, clients=fed.clients if done % 2 else fed.clients[:2])
        share = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)
        return state | {"w": map_leaves(torch.add, state["w"], replies.weighted_sum("update", share))}


OTHERS = (Evaluates, CountsInState, TakesTurns)
UNDECLARED_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {how: (Naive, {"how": how}) for how in SHARES}
UNDECLARED_KINDS |= {"part": (NaivePreset, {}), **{kind.__name__: (kind, {}) for kind in OTHERS}}


@pytest.mark.often("a number", "part", "data", "the round", "Evaluates", "TakesTurns")
@pytest.mark.parametrize("case", UNDECLARED_KINDS)
def test_what_is_not_declared_runs_as_written(case: str) -> None:
    subject, ends = Subject(*UNDECLARED_KINDS[case]), []
    for record in ("always", "never"):
        ends.append(run(subject.build(), subject, record))
    (state, summaries, fed), (state_as_written, summaries_as_written, plain) = ends
    assert distance(state, state_as_written) == 0
    assert summaries == summaries_as_written
    assert ledger(fed).equals(ledger(plain))
    assert fed.whole_methods == set()


@pytest.mark.often("an optimizer", "part", "data", "Evaluates", "the ledger")
@pytest.mark.parametrize("case", UNDECLARED_KINDS)
def test_the_contract_says_what_is_declared_falsely(case: str) -> None:
    kind, values = UNDECLARED_KINDS[case]
    declared = DeclaredPreset if case == "part" else type(kind.__name__, (kind,), {"recorded": True})
    assert verdict(Subject(declared, values), LAW).startswith("BROKEN")


def test_a_subclass_declares_for_itself() -> None:
    model = Subject(ALGORITHMS["fedavg"]).build().model
    kind, part = type("Mine", (FedAvg,), {}), type("MyUniform", (Uniform,), {})
    assert recording_obstacle(FedAvg(model).round) == ""
    assert re.search("Mine", recording_obstacle(kind(model).round))
    assert re.search("MyUniform", recording_obstacle(FedAvg(model, parts=(part(),)).evaluate))


def test_it_is_logged_once_whether_rounds_are_recorded(caplog: pytest.LogCaptureFixture) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    with caplog.at_level(logging.INFO, "fedweave"):
        run(Naive(subject.build().model, local_steps=1), subject, "always", 12)
        run(subject.build(), subject, "always", 12)
    said = [record.message for record in caplog.records if "as a whole" in record.message]
    assert sorted(words.partition(" ")[0] for words in said) == [
        "FedAvg.evaluate", "FedAvg.evaluate", "FedAvg.round", "Naive.round"]  # fmt: skip
    assert all(record.levelno == logging.INFO for record in caplog.records)
