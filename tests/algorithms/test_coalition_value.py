"""Values of what clients brought to a round, by models that are tried at all of them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import PARTS, coalition_value
from fedweave.core.replies import Replies
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.incentives.shapley import COPIED, FAULT, FAULTS, exact, judging, leave_one_out, worth
from fedweave.payments.contributions import _heard
from tests.algorithms import cheats
from tests.refusals import refusal

# What the cheats are tried on: their member is the first of five, with a fifth of the test examples.
CHEATED: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 600, "classes": 3, "features": 6, "signal": 0.8},
    "partition": {"name": "random", "clients": 5},
    "model": {"name": "gcn", "hidden": 8},
    "engine": {"mode": "loop"},
}

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
    return [built.algorithm.measures(step.state, built.fed) for step in train(built.algorithm, built.fed, rounds)]


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
    for settings in ({"every": 0}, {"exact": 13}, {"permutations": 5}, {"most_gain": 1.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            PARTS["coalition_value"](**settings)


# --- members that lie about what they count --------------------------------------------------------------------------


def cheated(monkeypatch: pytest.MonkeyPatch, lie: cheats.Lie | None, seed: int, **part: Any) -> list[dict[str, Any]]:
    """What three rounds measure where the first member lies."""
    parts = [{"name": "coalition_value"} | part]
    with monkeypatch.context() as patch:
        if lie:
            cheats.Liar(0, 5, lie).install(patch)
        built = build(resolve(CHEATED | {"seed": seed, "algorithm": {"name": "fedavg", "parts": parts}}))
        steps = [*train(built.algorithm, built.fed, 3, eval_every=0)]
    return [built.algorithm.measures(step.state, built.fed) for step in steps]


def earned(rounds: list[dict[str, Any]]) -> float:
    """The first member's value over all rounds."""
    return sum(float(found["shapley"][0]) for found in rounds if not found["shapley"].isnan().any())


def faults(rounds: list[dict[str, Any]]) -> list[str]:
    return [FAULTS[int(found[FAULT][0])] if FAULT in found else "" for found in rounds]


def test_models_come_in_an_order_that_every_update_of_the_round_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[torch.Tensor]()
    monkeypatch.setattr(coalition_value, "mixing", lambda round: lambda masks: asked.append(masks) or {"w": masks})
    w, counted = {"w": torch.zeros(3)}, (torch.arange(8), torch.tensor([8]))

    def order(updates: list[list[float]], number: int = 1) -> list[list[bool]]:
        round = SimpleNamespace(updates=torch.tensor(updates), at=torch.arange(3), w=w, delta=w)
        value = coalition_value._Coalitions(round, lambda many: counted, coalition_value._order_rng(round, number))
        exact(value, 3)
        return asked.pop().tolist()

    one = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    others = [[[*row] for row in one] for _ in range(3)]
    for at, rows in enumerate(others):
        rows[at][0] += 1e-6  # of one member
    orders = [order(one), order(one, 2), *map(order, others)]
    assert order(one) == orders[0]
    assert all(sorted(rows) == sorted(orders[0]) for rows in orders)
    assert len({str(rows) for rows in orders}) == len(orders)


@pytest.mark.often("0")
@pytest.mark.parametrize("seed", range(3))
def test_who_lies_by_the_order_of_coalitions_gains_nothing(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """It was worth the lie in every round while coalitions came in their order."""
    honest, lying = (earned(cheated(monkeypatch, lie, seed)) for lie in (None, cheats.modest))
    in_order = SimpleNamespace(permutation=np.arange)
    with monkeypatch.context() as patch:
        patch.setattr(coalition_value, "_order_rng", lambda round, number: in_order)
        before = earned(cheated(monkeypatch, cheats.modest, seed))
    assert before > honest + 0.015
    assert abs(lying - honest) < (before - honest) / 2


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (cheats.from_the_second_round, ["", FAULTS[3], FAULTS[3]]),
        (lambda liar, many, client, truth: truth | {"tried": truth["tried"] + 1000}, [FAULTS[2]] * 3),
        (lambda liar, many, client, truth: truth | {"tried": truth["tried"] - 1000}, [FAULTS[2]] * 3),
        (lambda liar, many, client, truth: truth | {"tried": 0 * truth["tried"], "examples": truth["examples"] - 1000},
         [FAULTS[1]] * 3),
        (lambda liar, many, client, truth: truth | {"tried": truth["tried"] * (liar.calls % 10 // 6)},
         ["", FAULTS[4], FAULTS[4]]),
    ],
    ids=["more examples later", "too many", "too few", "none", "another model before"],
)  # fmt: skip
def test_counts_that_cannot_be_right_leave_a_round_without_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lie: cheats.Lie, expected: list[str]
) -> None:
    rounds = cheated(monkeypatch, lie, 0)
    assert faults(rounds) == expected
    for found, fault in zip(rounds, expected, strict=True):
        assert bool(found["shapley"].isnan().all()) == bool(fault)
        assert not fault or fault in caplog.text


@pytest.mark.often("0")
@pytest.mark.parametrize("seed", range(3))
def test_who_recognizes_its_update_gains_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Nothing tells its lies apart: `most_gain` bounds them, and what honest members get hardly changes."""
    bound = 0.02
    honest = cheated(monkeypatch, None, seed)
    free, bounded = (cheated(monkeypatch, cheats.fits, seed, most_gain=most) for most in (1.0, bound))
    assert not any(faults(free) + faults(bounded))
    gains = [float(found["shapley"].sum()) for found in honest]
    assert math.isclose(sum(gains), sum(float(found["shapley"].sum()) for found in bounded), abs_tol=1e-9)
    assert earned(free) > earned(honest) + 0.4  # most of a fifth in each of three rounds
    assert earned(bounded) <= sum(abs(gain) + 2 * bound for gain in gains)
    assert abs(earned(cheated(monkeypatch, None, seed, most_gain=bound)) - earned(honest)) < 0.02


def test_who_sends_anothers_update_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member sends a hundredth more than the first."""
    real = Replies.stack

    def stack(replies: Replies, path: str, **more: Any) -> torch.Tensor:
        leaf = real(replies, path, **more)
        return torch.cat([leaf[:1], 1.01 * leaf[:1], leaf[2:]]) if path.startswith("update") else leaf

    assert not any(COPIED in found for found in states(2))
    monkeypatch.setattr(Replies, "stack", stack)
    for found in states(2):
        assert found[COPIED][1] == 0
        assert found[COPIED].isnan().tolist() == [True, False, True, True]
