"""What an algorithm declares of itself is what it does."""

from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import Capabilities, capabilities
from fedweave.core.federation import step_name
from fedweave.engines.invocation import Invocation
from tests.contract.federations import algorithm, federation


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps that ran, in order."""
    names: list[str] = []
    honest = Invocation.__init__

    def noting(self: Invocation, step: Any, *rest: Any) -> None:
        names.append(step_name(step))
        honest(self, step, *rest)

    monkeypatch.setattr(Invocation, "__init__", noting)
    return names


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_step_runs_in_the_order_that_is_declared_for_it(name: str, ran: list[str]) -> None:
    """A site holds the server to it. Where all clients have labels, `pull` is left out."""
    made, fed = algorithm(name), federation(name=name)
    calls, scores = made.calls(len(fed.clients)), capabilities(made).evaluation

    def check(due: tuple[Any, ...]) -> None:
        assert [step_name(step) for step in due if step.__name__ != "pull"] == ran
        ran.clear()

    fed.begin(0)
    state = made.init(fed)
    check(calls.setup)
    fed.begin(1)
    state = made.round(state, fed)
    check(calls.round)
    made.evaluate(state, fed)
    check(calls.evaluation)
    if capabilities(made).predicts:
        made.predict(state, fed)
        check(calls.prediction)
    assert {step.__name__ for step in calls.evaluation} <= {*scores}
    assert not {step.__name__ for step in (*calls.setup, *calls.round)} & {*scores}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_declared_steps_and_predictions_exist(name: str) -> None:
    declared, made = capabilities(ALGORITHMS[name]), algorithm(name)
    assert all(isinstance(getattr(made, step).on_client, tuple) for step in declared.evaluation)
    assert declared.predicts == hasattr(made, "predict")


def test_an_algorithm_that_declares_nothing_needs_nothing() -> None:
    needs = ("pooled", "vertical", "ids", "sens", "graph_level", "predicts")
    assert not any(getattr(capabilities(object()), need) for need in needs)
    assert capabilities(object()) == Capabilities()
