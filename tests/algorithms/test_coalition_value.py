"""Values of what clients brought to a round, by models that are tried at all of them."""

from typing import Any

import pytest
import torch

from fedweave.algorithms import PARTS
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.incentives.shapley import exact, judging, leave_one_out, worth
from fedweave.payments.contributions import _heard
from tests.refusals import refusal

CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 200, "classes": 3, "features": 6},
    "partition": {"name": "random", "clients": 4},
    "model": {"name": "gcn", "hidden": 4},
    "engine": {"mode": "loop"},
}


def states(rounds: int, **settings: Any) -> list[dict[str, Any]]:
    built = build(
        resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": [{"name": "coalition_value"} | settings]}})
    )
    return [step.state["parts"]["CoalitionValue"] for step in train(built.algorithm, built.fed, rounds, eval_every=0)]


def test_values_are_those_of_the_run_done_again() -> None:
    built = build(resolve(CONFIG | {"algorithm": {"name": "fedavg"}}))
    _, graphs = judging(built.fed)
    for (_, round, _), found in zip(_heard(built.algorithm, built.fed, 2), states(2), strict=True):
        value = worth(round, built.algorithm.net, graphs, "accuracy")
        with torch.no_grad():
            assert torch.allclose(found["shapley"], exact(value, 4).values, atol=1e-6)
            assert torch.allclose(found["leave_one_out"], leave_one_out(value, 4), atol=1e-6)
        assert not found["shapley_error"].any()


def test_many_clients_are_valued_by_orders_of_joining_and_rounds_between_not_at_all() -> None:
    first, second = states(2, exact=1, permutations=200, every=2)
    assert all(first[name].isnan().all() for name in ("shapley", "leave_one_out"))
    _, exactly = states(2)
    assert (second["shapley_error"] > 0).any()
    assert ((second["shapley"] - exactly["shapley"]).abs() <= 4 * second["shapley_error"] + 1e-9).all()
    assert torch.equal(second["leave_one_out"], exactly["leave_one_out"])
    assert float(second["shapley"].sum()) == pytest.approx(float(exactly["shapley"].sum()))


@pytest.mark.parametrize(("clients", "settings"), [(4, {}), (20, {"permutations": 4})])
def test_no_more_messages_try_models_than_sites_are_told_to_expect(clients: int, settings: dict[str, int]) -> None:
    """Those of orders of joining come before those without one client."""
    config = CONFIG | {"partition": {"name": "random", "clients": clients}}
    parts = [{"name": "coalition_value"} | settings]
    built = build(resolve(config | {"algorithm": {"name": "fedavg", "parts": parts}}))
    [_] = train(built.algorithm, built.fed, 1, eval_every=0)
    rows = [row for row in built.fed.ledger.table().to_pylist() if row["key"] == "tried" and row["direction"] == "up"]
    expected = built.algorithm.calls(clients).round.count(built.algorithm.try_out)
    assert 0 < len({row["call"] for row in rows}) <= expected


@pytest.mark.parametrize("other", ["secure_sum", "median", "server_adam", "functional_mix"])
def test_what_hides_updates_or_makes_another_model_of_them_is_refused(other: str) -> None:
    with refusal("config.value", "coalition_value"):
        build(resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": ["coalition_value", other]}}))


def test_settings_that_value_nobody_are_refused() -> None:
    for settings in ({"every": 0}, {"exact": 13}, {"permutations": 5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            PARTS["coalition_value"](**settings)
