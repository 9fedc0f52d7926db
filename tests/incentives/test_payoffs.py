"""Payoffs and the schemes they are compared with, against independent arithmetic and by hand."""

import math
from types import ModuleType

import numpy as np
import pytest
import torch

from fedweave.incentives.payoffs import SCHEMES, data_volume, divisible, payoffs, shares
from tests.refusals import refusal


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [1.0, 12345.67])
def test_payoffs_equal_the_reference(oracles: ModuleType, seed: int, budget: float) -> None:
    history = np.random.default_rng(seed).uniform(-0.2, 1, (1 + seed, 5))
    history /= history.sum(1, keepdims=True)
    before = torch.from_numpy(history[:-1].mean(0) if seed else history[0])
    found = payoffs(torch.from_numpy(history[-1]), before, budget)
    np.testing.assert_allclose(found.pay, oracles.payoffs(history, budget), rtol=1e-12, atol=0)
    assert float(found.pay.sum()) == pytest.approx(budget)
    assert ((found.pay < 0).numpy() == (history[-1] < 0)).all()


def test_a_round_by_hand() -> None:
    """Late contributions .2 and .1 make 1.3 in all; the fined agent gets no compensation although it improved."""
    found = payoffs(tensor(0.7, 0.5, -0.2), tensor(0.5, 0.4, -0.9), budget=130)
    torch.testing.assert_close(found.pay, tensor(90, 60, -20))
    torch.testing.assert_close(found.compensation, tensor(20, 10, 0))
    equal = tensor(0.5, -0.5)
    assert payoffs(equal, equal).pay.tolist() == [0, 0]  # values without a positive sum divide nothing


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sizes", [(100, 100, 100), (3, 50, 200, 1000, 7), (0, 10), (42,)])
def test_shares_equal_the_reference(oracles: ModuleType, scheme: str, sizes: tuple[int, ...]) -> None:
    found = shares(scheme, data_volume(torch.tensor(sizes)), len(sizes))
    np.testing.assert_allclose(found, oracles.payoff_shares(sizes, scheme), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_members_get_equal_shares(scheme: str) -> None:
    found = shares(scheme, data_volume(torch.full((4,), 90)), 4)
    torch.testing.assert_close(found, torch.full((4,), 0.25, dtype=torch.float64))


def test_two_members_by_hand() -> None:
    one, other, both = math.log(2), math.log(4), math.log(5)
    value = data_volume(torch.tensor([1, 3]))
    expected = {
        "equal": (1, 1),
        "union": (both - other, both - one),
        "individual": (one, other),
        "shapley": (one + both - other, other + both - one),
    }
    for scheme, raw in expected.items():
        torch.testing.assert_close(shares(scheme, value, 2), tensor(*raw) / sum(raw))


def test_any_value_function_can_be_divided_by() -> None:
    accuracy = tensor(0.5, 0.6, 0.7, 0.9) - 0.5  # of nobody, the first, the second, both
    found = shares("shapley", lambda masks: accuracy[masks.long() @ torch.tensor([1, 2])], 2)
    torch.testing.assert_close(found, tensor(0.15, 0.25) / 0.4)


def test_many_members_take_a_generator() -> None:
    value = data_volume(torch.arange(1, 31))
    found = shares("shapley", value, 30, np.random.default_rng(0))
    assert float(found.sum()) == pytest.approx(1)
    assert float(found[-1]) > float(found[0])
    with refusal("user.exact"):
        shares("shapley", value, 30)


def test_what_cannot_be_divided_is_refused() -> None:
    with refusal("config.unknown-name", "'fair'"):
        shares("fair", data_volume(torch.ones(2)), 2)
    with refusal("user.no-positive-sum", "'union'"):
        shares("union", data_volume(torch.zeros(2)), 2)


def test_gains_that_cancel_but_for_rounding_divide_nothing() -> None:
    assert not divisible(tensor(1 / 15, -1 / 15 + 3e-8, 0.0))
    assert not divisible(tensor(0.0, 0.0))
    assert divisible(tensor(1 / 15, -1 / 30, 0.0))
