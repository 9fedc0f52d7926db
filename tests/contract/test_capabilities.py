"""What an algorithm declares of itself is what it does."""

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import Capabilities, capabilities
from fedweave.engines.simulation import Simulation
from tests.contract.federations import algorithm, federation


def called(fed: Simulation) -> set[str]:
    """The names of all steps so far."""
    return set(fed.ledger.table().column("step").to_pylist())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluation_calls_the_steps_that_are_declared_for_it_and_training_none_of_them(name: str) -> None:
    made, fed = algorithm(name), federation(name=name)
    declared = {f"{type(made).__name__}.{step}" for step in capabilities(made).evaluation}
    fed.begin(0)
    state = made.init(fed)
    fed.begin(1)
    state = made.round(state, fed)
    trained = called(fed)
    assert trained
    assert not trained & declared
    made.evaluate(state, fed)
    scored = called(fed) - trained
    assert scored
    assert scored <= declared


@pytest.mark.parametrize("name", ALGORITHMS)
def test_declared_steps_and_predictions_exist(name: str) -> None:
    declared, made = capabilities(ALGORITHMS[name]), algorithm(name)
    assert all(isinstance(getattr(made, step).on_client, tuple) for step in declared.evaluation)
    assert declared.predicts == hasattr(made, "predict")


def test_an_algorithm_that_declares_nothing_needs_nothing() -> None:
    needs = ("pooled", "vertical", "ids", "sens", "graph_level", "predicts")
    assert not any(getattr(capabilities(object()), need) for need in needs)
    assert capabilities(object()) == Capabilities()
