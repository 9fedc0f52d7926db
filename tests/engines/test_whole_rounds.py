"""Rounds that are recorded as a whole give what they give as written, and only what repeats is recorded."""

import logging
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.parts import Part
from fedweave.contract.subject import Subject, checkpoint, distance, everything
from fedweave.core.algorithm import Round
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.tree import Tree, decode, leaves, map_leaves, nest
from fedweave.engines.simulation import Simulation
from fedweave.errors import FedweaveError
from fedweave.experiment.rounds import train
from fedweave.ops.tape import Tape, ValueReads

ROUNDS = 8  # as written, with steps recorded, twice the same, recorded as a whole, and played
# Why a round is none: the server reads values, clients take turns, or its state counts rounds in Python.
NOT_WHOLE = {"fairgfl", "fairfed", "fedpub", "fedtad", "fggp", "cffl", "fedego", "fedbuff", "adafgl", "fcfl", "gcfl"}
NOT_WHOLE |= {"gcfl_plus", "glasu", "vfgnn", "standalone", "simulated_centralized", "pooled_gnn"}


def run(algorithm: Any, subject: Subject, record: str, rounds: int = ROUNDS, every: int = 1) -> tuple[Any, Any, Any]:
    """What is left after the rounds, the summaries, and the federation."""
    fed, summaries = subject.federation(Simulation, torch.float32, mode="vmap", record=record), []
    for step in train(algorithm, fed, rounds, every):
        summaries.append({name: str(value) for name, value in step.summary.items()})
    return everything(step, fed), summaries, fed


def whole(fed: Any) -> set[str]:
    """The methods whose recording was played as a whole."""
    made = [one for one in fed.recordings._computations.values() if one.recording is not None]
    return {getattr(one.functions[0], "__name__", "") for one in made} & {"round", "evaluate"}


def ledger(fed: Any) -> Any:
    return fed.ledger.table().drop_columns(["seconds", "at"])


@pytest.mark.often("fedavg", "fairgraphfl")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_recorded_round_gives_the_same_bits_and_the_same_ledger(name: str) -> None:
    subject = Subject(ALGORITHMS[name])
    (left, summaries, fed), (again, others, plain) = (run(subject.made(), subject, how) for how in ("always", "never"))
    assert distance(left, again) == 0
    assert summaries == others
    assert ledger(fed).equals(ledger(plain))
    assert (fed.ledger.table()["seconds"].to_numpy() >= 0).all()
    assert ("round" in whole(fed)) == (name not in NOT_WHOLE)


def test_rounds_without_an_evaluation_are_recorded_too() -> None:
    subject = Subject(ALGORITHMS["scaffold"])
    (left, _, fed), (again, _, _) = (run(subject.made(), subject, how, every=4) for how in ("always", "never"))
    assert distance(left, again) == 0
    assert whole(fed) == {"round"}


@dataclass(frozen=True)
class Reads(FedAvg):
    """FedAvg whose next round depends on a value that Python reads."""

    how: Callable[[Tensor], Any] = float

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Turn the weights around in every second round."""
        turns = state.get("turns", torch.zeros(1))
        after = super().round({name: tree for name, tree in state.items() if name != "turns"}, fed)
        odd = int(self.how(turns[0])) % 2
        return after | {"turns": turns + 1, "w": map_leaves(lambda leaf: -leaf if odd else leaf, after["w"])}


READS: dict[str, Callable[[Tensor], Any]] = {
    "float": float,
    "int": int,
    "item": Tensor.item,
    "tolist": Tensor.tolist,
    "numpy": Tensor.numpy,
    "array": lambda turns: turns.__array__(),
    "if": lambda turns: 0 if turns % 2 == 0 else 1,
    "equal": lambda turns: 1 - torch.equal(turns % 2, torch.tensor(0.0)),
    "nonzero": lambda turns: len((turns % 2).reshape(1).nonzero()),
    "mask": lambda turns: len(torch.ones(1)[turns.reshape(1) % 2 > 0]),
    "str": lambda turns: str(turns.reshape(1))[8],
    "repr": lambda turns: repr(turns)[7],
    "format": lambda turns: f"{turns.reshape(1)}"[8],
    "dlpack": lambda turns: np.from_dlpack(turns.reshape(1))[0],
    "pickle": lambda turns: pickle.dumps(turns.reshape(1)) == pickle.dumps(torch.ones(1)),
    "storage": lambda turns: turns.storage()[0],
}
# These make tensors of the values that they read.
MAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda turns: torch.tensor([turns, turns + 1])[0],
    "nested": lambda turns: torch.tensor([[turns], [turns + 1]])[0, 0],
    "as_tensor": lambda turns: torch.as_tensor([turns])[0],
    "asarray": lambda turns: torch.asarray([turns])[0],
    "new_tensor": lambda turns: turns.new_tensor([turns])[0],
    "tensor_split": lambda turns: torch.ones(99).tensor_split(turns.long().reshape(1))[0].sum(),
}


def played_with_the_same_results(made: Any, subject: Subject) -> set[str]:
    """The methods that were played as a whole, in a run that gives what the run as written gives."""
    (left, summaries, fed), (again, others, _) = (run(made, subject, record) for record in ("always", "never"))
    assert distance(left, again) == 0
    assert summaries == others
    return whole(fed)


@pytest.mark.parametrize("how", READS)
def test_a_round_that_reads_a_value_is_carried_out_as_written(how: str) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = Reads(subject.made().model, local_steps=1, how=READS[how])
    assert played_with_the_same_results(made, subject) == {"evaluate"}


SEEN = ["tolist", "numpy", "array", "item", "float", "int", "if"]
SEEN += ["str", "repr", "format", "dlpack", "pickle", "storage"]


@pytest.mark.parametrize("how", [*SEEN, *MAKES])
def test_a_tape_sees_that_python_reads_a_value(how: str) -> None:
    tensor = torch.ones(())
    tape = Tape((), [tensor])
    with tape, ValueReads(tape):
        (READS | MAKES)[how](tensor)
    assert tape.flaw is not None


@dataclass(frozen=True)
class Makes(FedAvg):
    """FedAvg whose weights depend on a tensor that is made of another one's values."""

    how: Callable[[Tensor], Tensor] = torch.clone

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Shrink the weights, in each round more."""
        turns = state.get("turns", torch.zeros(()))
        after = super().round({name: tree for name, tree in state.items() if name != "turns"}, fed)
        share = 1 - self.how(turns) / 100
        return after | {"turns": turns + 1, "w": map_leaves(lambda leaf: leaf * share, after["w"])}


@pytest.mark.parametrize("how", MAKES)
def test_a_tensor_made_of_others_values_is_made_again_in_each_round(how: str) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = Makes(subject.made().model, local_steps=1, how=MAKES[how])
    (left, _, _), (again, _, _) = (run(made, subject, record) for record in ("always", "never"))
    assert distance(left, again) == 0


def test_numbers_in_lists_do_not_count_as_values() -> None:
    tape = Tape((), [torch.ones(())])
    with tape, ValueReads(tape):
        torch.tensor([1.0, 2.0])
        torch.ones(4).tensor_split(2)
    assert tape.flaw is None


class Naive(FedAvg):
    """An algorithm whose author forgets that it is a frozen value. Each `scale` differs from round to round."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Scale the weights."""
        after = super().round(state, fed)
        scale = self.scale(fed)
        return after | {"w": map_leaves(lambda leaf: leaf * (1 - scale / 100), after["w"])}

    def scale(self, fed: Any) -> Any:
        """The share, in percent, that is taken away."""
        raise NotImplementedError


class CountsInAttribute(Naive):
    """Counts rounds in a new attribute."""

    def scale(self, fed: Any) -> Any:
        """The number of the round."""
        self.__dict__["done"] = self.__dict__.get("done", 0) + 1
        return self.__dict__["done"]


class AddsToAList(Naive):
    """Counts rounds by a list."""

    def scale(self, fed: Any) -> Any:
        """The length of the list."""
        history = self.__dict__.setdefault("history", [])
        history.append(0)
        return len(history)


class DrawsFromItsGenerator(Naive):
    """Draws from a generator of its own."""

    def scale(self, fed: Any) -> Any:
        """A draw."""
        return self.__dict__.setdefault("generator", np.random.default_rng(1)).random()


class ReadsTheRound(Naive):
    """Asks the engine for the round."""

    def scale(self, fed: Any) -> Any:
        """Its number."""
        return fed.round


class ReadsTheLedger(Naive):
    """Asks how much was sent."""

    def scale(self, fed: Any) -> Any:
        """Megabytes."""
        return fed.ledger.bytes_up / 1e6


class DrawsFromPython(Naive):
    """Draws from Python's own generator."""

    def scale(self, fed: Any) -> Any:
        """A draw."""
        return random.random()


class DrawsFromNumpy(Naive):
    """Draws from NumPy's own generator."""

    def scale(self, fed: Any) -> Any:
        """A draw."""
        return np.random.rand()  # noqa: NPY002


class SeedsTorch(Naive):
    """Seeds torch's own generator."""

    def scale(self, fed: Any) -> Any:
        """The same draw each time; other draws must not move it."""
        torch.manual_seed(5)
        return torch.rand(())


NAIVE = [CountsInAttribute, AddsToAList, DrawsFromItsGenerator, ReadsTheRound, ReadsTheLedger]


@pytest.mark.parametrize("kind", [*NAIVE, DrawsFromPython, DrawsFromNumpy, SeedsTorch])
def test_a_round_that_depends_on_what_changes_in_python_is_carried_out_as_written(kind: type[FedAvg]) -> None:
    subject, results = Subject(ALGORITHMS["fedavg"]), []
    for record in ("always", "never"):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        results.append(run(kind(subject.made().model, local_steps=1), subject, record))
    (left, summaries, fed), (again, others, plain) = results
    assert distance(left, again) == 0
    assert summaries == others
    assert ledger(fed).equals(ledger(plain))
    assert "round" not in whole(fed)


@dataclass(frozen=True)
class DifferentiatesAtTheServer(FedAvg):
    """FedAvg whose server takes a step of its own."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round, and a step down the gradient of half the weights' squares."""
        after = super().round(state, fed)
        w = {path: leaf.clone().requires_grad_() for path, leaf in leaves(after["w"])}
        slopes = torch.autograd.grad(sum((leaf**2).sum() for leaf in w.values()) / 2, [*w.values()])
        steps = zip(w.items(), slopes, strict=True)
        return after | {"w": nest({path: (leaf - slope / 10).detach() for (path, leaf), slope in steps})}


def test_a_server_that_differentiates_is_recorded_too() -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = DifferentiatesAtTheServer(subject.made().model, local_steps=1)
    (left, _, fed), (again, _, _) = (run(made, subject, record) for record in ("always", "never"))
    assert distance(left, again) == 0
    assert "round" in whole(fed)


@dataclass(frozen=True)
class Grows(FedAvg):
    """FedAvg whose state grows in each round."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round, whose mean weight is noted."""
        before = state.get("history", torch.zeros(0))
        after = super().round({name: tree for name, tree in state.items() if name != "history"}, fed)
        return after | {"history": torch.cat([before, after["w"]["0"]["weight"].mean().reshape(1)])}


@dataclass(frozen=True)
class ClientsCount(FedAvg):
    """FedAvg whose clients count their rounds in Python."""

    @on_client(sends={"update": "nothing"}, hears={"w": "the global weights"})
    def count(self, client: Client, message: Tree) -> Tree:
        """A hundredth of the weights, as often as the client was called."""
        client.state |= {"times": client.state.get("times", 0) + 1}
        return {"update": map_leaves(lambda leaf: leaf * 0.01 * client.state["times"], message["w"])}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Add the mean."""
        replies = fed.map(self.count, {"w": state["w"]})
        share = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)
        return state | {"w": map_leaves(torch.add, state["w"], replies.weighted_sum("update", share))}


@pytest.mark.parametrize("kind", [Grows, ClientsCount])
def test_a_state_of_another_form_in_each_round_is_not_recorded_again_and_again(kind: type[FedAvg]) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = kind(subject.made().model, local_steps=1)
    (left, _, fed), (again, _, _) = (run(made, subject, record, 12) for record in ("always", "never"))
    assert distance(left, again) == 0
    made_whole = [one for one in fed.recordings._computations.values() if one.functions[0] in (made.round,)]
    assert not made_whole


@dataclass(frozen=True)
class WeighsByUpdate(Part):
    """Clients count by the size of their updates, which overflow in round `late`."""

    late: int = 3
    recorded = True
    __module__ = "fedweave.tests"  # other parts' weights are read for a warning, so their rounds are not recorded

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


@pytest.mark.parametrize("late", range(1, ROUNDS))
def test_weights_that_are_not_finite_are_refused_in_their_round(late: int) -> None:
    subject, said = Subject(ALGORITHMS["fedavg"]), []
    for record in ("always", "never"):
        fed = subject.federation(Simulation, torch.float32, mode="vmap", record=record)
        made = FedAvg(subject.made().model, local_steps=1, parts=(WeighsByUpdate(late),))
        with pytest.raises(FedweaveError) as refused:
            for _ in train(made, fed, ROUNDS, 0):
                pass
        said.append((refused.value.code, str(refused.value), fed.round))
    assert said[0] == said[1]
    assert said[0][2] == late


@dataclass(frozen=True)
class CountsInPython(FedAvg):
    """FedAvg that does something else in every third round, by a number in its state."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Halve the weights in every third round."""
        done = int(state.get("done", 0))
        after = super().round({name: tree for name, tree in state.items() if name != "done"}, fed)
        return after | {"done": done + 1, "w": map_leaves(lambda leaf: leaf / (2 if done % 3 == 2 else 1), after["w"])}


@dataclass(frozen=True)
class AsksForKeysByRound(FedAvg):
    """FedAvg whose server draws for a purpose that names the round."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Add a draw to the weights."""
        draw = fed.key(f"draw {int(state.get('done', 0))}").remainder(7)
        after = super().round({name: tree for name, tree in state.items() if name != "done"}, fed)
        return after | {"done": int(state.get("done", 0)) + 1, "w": map_leaves(lambda leaf: leaf + draw, after["w"])}


@dataclass(frozen=True)
class SaysLess(FedAvg):
    """FedAvg whose message has another part in every second round."""

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Train on the first two clients or on all, in turns, as the number of weights tells."""
        many = state["w"]["0"]["weight"].shape[0] % 2 == 0 if "turn" not in state else not state["turn"]
        replies = fed.map(self.train, {"w": state["w"]}, clients=fed.clients if many else fed.clients[:2])
        share = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)
        update = replies.weighted_sum("update", share)
        return state | {"w": map_leaves(torch.add, state["w"], update), "turn": bool(many)}


@pytest.mark.parametrize("kind", [CountsInPython, AsksForKeysByRound, SaysLess])
def test_a_round_that_differs_from_the_one_before_is_carried_out_as_written(kind: type[FedAvg]) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    made = kind(subject.made().model, local_steps=1)
    assert "round" not in played_with_the_same_results(made, subject)


def test_sampled_clients_are_carried_out_as_written() -> None:
    subject = Subject(ALGORITHMS["fedavg"], {"participation": 0.6})
    (left, _, fed), (again, _, _) = (run(subject.made(), subject, how) for how in ("always", "never"))
    assert distance(left, again) == 0
    assert "round" not in whole(fed)


def test_what_keeps_a_round_from_being_recorded_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    with caplog.at_level(logging.INFO, "fedweave"):
        run(CountsInPython(subject.made().model, local_steps=1), subject, "always", 12)
        run(Reads(subject.made().model, local_steps=1), subject, "always", 12)
    reasons = [record.message for record in caplog.records if ".round is" in record.message]
    assert [reason.split(" ")[0] for reason in reasons] == ["CountsInPython.round", "Reads.round"]
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_a_resumed_run_goes_on_with_the_same_bits() -> None:
    subject = Subject(ALGORITHMS["scaffold"])
    (left, _, _) = run(subject.made(), subject, "always", 2 * ROUNDS)
    fed = subject.federation(Simulation, torch.float32, mode="vmap", record="always")
    for step in train(subject.made(), fed, 2 * ROUNDS, 1):
        if step.round == ROUNDS:
            saved = checkpoint(step, fed)
            break
    later, tree = subject.federation(Simulation, torch.float32, mode="vmap", record="always"), decode(saved)
    later.restore(tree["clients"], tree.get("data"))
    (*_, last) = train(subject.made(), later, 2 * ROUNDS, 1, (ROUNDS, tree["state"]))
    assert "round" in whole(later)
    assert (
        distance({"server": last.state, "clients": later.snapshot()}, {key: left[key] for key in ("server", "clients")})
        == 0
    )


def test_a_restored_engine_goes_on_from_what_it_is_given() -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    fed = subject.federation(Simulation, torch.float32, mode="vmap", record="always")
    runs = []
    for step in train(subject.made(), fed, ROUNDS, 1):
        runs.append((step.state, fed.snapshot()))
    state, clients = runs[4]
    fed.restore(clients, None)
    for _ in train(subject.made(), fed, ROUNDS, 1, (5, state)):
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
            for _ in train(Explodes(subject.made().model, local_steps=1), fed, 40, 0):
                pass
        said.append((refused.value.code, str(refused.value), fed.round))
    assert said[0] == said[1]
    assert said[0][0] == "diverged"
