"""What every registered algorithm owes its users. An algorithm is covered by being registered."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.adafgl import AdaFGL
from fedweave.algorithms.fedopt import ServerMomentum
from fedweave.algorithms.preset import preset_of
from fedweave.cli.contract import verdict
from fedweave.contract import laws
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import EVERY, Subject, distance
from fedweave.contract.subject import everything as everything
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import step_name
from fedweave.core.types import FRAMING
from fedweave.engines.simulation import Simulation
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import RoundResult, train
from tests.refusals import refusal

ROUNDS = 4


def run(made: Any, fed: Simulation, rounds: int = ROUNDS, resume: Any = None, summary: Any = None) -> RoundResult:
    *_, last = train(made, fed, rounds, eval_every=2, resume=resume, summary=summary)
    return last


@pytest.fixture(scope="module", params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    """A registered algorithm; the tests of one follow each other and share its runs."""
    return request.param


@pytest.fixture(scope="module")
def subject(name: str) -> Iterator[Subject]:
    return Subject(ALGORITHMS[name])


@pytest.mark.parametrize("law", LAWS)
def test_law(subject: Subject, law: str) -> None:
    if law in subject.exemptions:
        pytest.skip(subject.exemptions[law])
    LAWS[law](subject)


def test_what_is_not_owed_does_not_hold(subject: Subject) -> None:
    """Nothing is declared that need not be."""
    assert subject.exemptions.keys() <= LAWS.keys()
    for law in subject.exemptions:
        with pytest.raises(laws.Broken):
            LAWS[law](subject)


def test_what_clients_are_sent_is_described(subject: Subject) -> None:
    rows = [row for row in subject.batch_run().fed.ledger.table().to_pylist() if row["direction"] == "down"]
    assert [(row["step"], row["key"]) for row in rows if not row["reveals"] and row["key"] != FRAMING] == []


def test_all_steps_that_are_declared_run(subject: Subject) -> None:
    """Where all clients have labels, GLASU's `pull` alone is left out, and of AdaFGL's phases the other one."""
    ran, calls = subject.batch_run().fed.ran, subject.build().calls(len(subject.batch_run().fed.clients))
    due = {0: calls.setup, 1: calls.round, EVERY: (*calls.round, *calls.evaluation)}
    for round, steps in due.items():
        found, left = ran.get(round, []), {"pull"}
        if isinstance(subject.build(), AdaFGL):
            left |= {"personalise"} if round < EVERY else {"train"}
        assert found == [step_name(step) for step in steps if step.__name__ not in left]


def test_unknown_hyperparameters_are_refused(name: str) -> None:
    with refusal("config.unknown-key", "learning_rate_of_the_moon", f"`fedweave list algorithms {name}`"):
        resolve({"data": {"name": "digits"}, "algorithm": {"name": name, "learning_rate_of_the_moon": 1}})


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "record"), [(0, "always"), (0, "never"), (1, "always"), (3, "never")])
def test_other_batches_of_clients(subject: Subject, chunk: int, record: str) -> None:
    found = subject.run(mode="vmap", chunk=chunk, record=record).final
    assert distance(found, subject.loop_run().final) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("law", [laws.the_order_of_clients_does_not_matter, laws.a_resumed_run_gives_the_same])
def test_laws_one_client_after_the_other(subject: Subject, law: Any) -> None:
    law(subject, mode="loop")


def test_without_its_penalty_f2gnn_is_ordinary_training_of_one_client() -> None:
    laws.one_client_is_ordinary_training(Subject(ALGORITHMS["f2gnn"], {"alpha": 0.0}))


def test_an_algorithm_that_declares_nothing_needs_nothing() -> None:
    needs = ("pooled", "vertical", "ids", "sensitive", "graph_level", "predicts")
    assert not any(getattr(capabilities(object()), need) for need in needs)


def test_the_law_that_a_servers_optimizer_breaks_is_named_with_what_to_declare() -> None:
    @preset_of(ServerMomentum)
    class Undeclared:
        """FedAvg with momentum at the server, and no word about laws."""

    said = verdict(Subject(Undeclared), laws.ORDINARY)
    assert said.startswith("BROKEN")
    assert re.search(rf'exempt_laws = {{"{laws.ORDINARY}": .*ServerMomentum', said)
