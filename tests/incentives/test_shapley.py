"""The laws that define Shapley values, worked examples, and estimates beside what they estimate."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.errors import UserError
from fedweave.incentives.shapley import Value, coalitions, exact, leave_one_out, permutation_shapley, shapley


def game(players: int, seed: int) -> Value:
    """Any number for any coalition, that of nobody included."""
    table = torch.from_numpy(np.random.default_rng(seed).normal(size=2**players))
    return lambda masks: table[(masks.long() << torch.arange(players)).sum(1)]


def one(value: Value, *members: int, players: int) -> float:
    mask = torch.zeros(1, players, dtype=torch.bool)
    mask[0, list(members)] = True
    return float(value(mask))


def monte_carlo(antithetic: bool) -> Callable[[Value, int], Tensor]:
    return lambda value, players: permutation_shapley(value, players, np.random.default_rng(0), 40, antithetic).values


METHODS = {
    "exact": lambda value, n: exact(value, n).values,
    "plain": monte_carlo(False),
    "antithetic": monte_carlo(True),
}
SIZES = [1, 2, 3, 5, 8]


@pytest.mark.parametrize("players", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_efficiency_the_values_sum_to_the_gain_of_all(method: str, players: int) -> None:
    value = game(players, players)
    gain = one(value, *range(players), players=players) - one(value, players=players)
    assert float(METHODS[method](value, players).sum()) == pytest.approx(gain, abs=1e-12)


@pytest.mark.parametrize("players", SIZES[1:])
def test_symmetry_players_that_add_the_same_get_the_same(players: int) -> None:
    table = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 2**players)))

    def value(masks: Tensor) -> Tensor:  # sees of the first two players only how many are in
        return table[masks[:, :2].sum(1), (masks[:, 2:].long() << torch.arange(players - 2)).sum(1)]

    found = exact(value, players).values
    assert float(found[0]) == pytest.approx(float(found[1]), abs=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_null_player_who_adds_nothing_gets_nothing(method: str) -> None:
    inner = game(5, 2)
    without = [0, 1, 3, 4, 5]
    found = METHODS[method](lambda masks: inner(masks[:, without]), 6)
    assert float(found[2]) == 0
    if method == "exact":
        torch.testing.assert_close(found[without], exact(inner, 5).values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("players", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_additivity_values_of_a_sum_are_sums_of_values(method: str, players: int) -> None:
    a, b, solve = game(players, 3), game(players, 4), METHODS[method]
    together = solve(lambda masks: a(masks) - 2 * b(masks), players)
    torch.testing.assert_close(together, solve(a, players) - 2 * solve(b, players), rtol=0, atol=1e-12)


def test_gloves_by_hand() -> None:
    """One left glove, two right ones, a pair is worth 1: the scarce side gets 2/3."""
    found = exact(lambda masks: (masks[:, 0] & (masks[:, 1] | masks[:, 2])).double(), 3).values
    torch.testing.assert_close(found, torch.tensor([2 / 3, 1 / 6, 1 / 6], dtype=torch.float64))


@pytest.mark.parametrize("players", [1, 2, 4, 7])
def test_exact_equals_the_reference(oracles: ModuleType, players: int) -> None:
    value = game(players, 5)
    expected = oracles.shapley(list(range(players)), lambda s: one(value, *s, players=players))
    np.testing.assert_allclose(exact(value, players).values, [expected[i] for i in range(players)], rtol=0, atol=1e-12)


def test_twelve_players_take_one_call_with_every_coalition_once() -> None:
    calls = []

    def value(masks: Tensor) -> Tensor:
        calls.append(masks)
        return masks.sum(1)

    found = exact(value, 12)
    assert [len(masks.unique(dim=0)) for masks in calls] == [4096] == [len(masks) for masks in calls]
    torch.testing.assert_close(found.values, torch.ones(12, dtype=torch.float64))
    assert (found.error.tolist(), found.coalitions) == ([0.0] * 12, 4096)


def test_coalitions_are_numbered_by_their_bits() -> None:
    assert coalitions(2).tolist() == [[False, False], [True, False], [False, True], [True, True]]


@pytest.mark.often("True")
@pytest.mark.parametrize("antithetic", [False, True])
def test_an_estimate_is_within_its_error_of_the_exact_values(antithetic: bool) -> None:
    value = game(7, 6)
    truth = exact(value, 7).values
    off = []
    for seed in range(200):
        found = permutation_shapley(value, 7, np.random.default_rng(seed), 200, antithetic)
        off.append((found.values - truth) / found.error)
    off = torch.stack(off)
    assert float(off.abs().max()) < 5
    assert 0.85 < float(off.square().mean().sqrt()) < 1.15  # so the error is no larger than it need be, either
    assert 0.92 < float((off.abs() < 1.96).double().mean()) < 0.98


def test_the_error_of_two_orders_is_half_of_what_they_differ_by() -> None:
    """Two players, each of whom one order lets join first: the standard deviation of (a, b) is |a - b| / √2, and the
    error of their mean that divided by √2."""
    value = game(2, 10)
    orders = [permutation_shapley(value, 2, np.random.default_rng(seed), 2, antithetic=False) for seed in range(8)]
    found = next(estimate for estimate in orders if estimate.coalitions == 4)
    first = one(value, 0, players=2) - one(value, players=2)
    last = one(value, 0, 1, players=2) - one(value, 1, players=2)
    assert found.values[0].item() == pytest.approx((first + last) / 2)
    assert found.error[0].item() == pytest.approx(abs(first - last) / 2)


def test_reversed_orders_leave_nothing_to_estimate_where_gains_are_linear_in_the_place() -> None:
    """v = |S|² symmetric: each order gives 2k + 1 at place k, an order and its reverse always N."""
    found = permutation_shapley(lambda masks: masks.sum(1) ** 2, 20, np.random.default_rng(0), 4)
    torch.testing.assert_close(found.values, torch.full((20,), 20.0, dtype=torch.float64))
    assert float(found.error.max()) == 0
    assert (
        float(
            permutation_shapley(lambda m: m.sum(1) ** 2, 20, np.random.default_rng(0), 4, antithetic=False).error.max()
        )
        > 1
    )


def test_only_distinct_prefixes_are_valued_in_batches() -> None:
    seen = []

    def value(masks: Tensor) -> Tensor:
        seen.append(masks)
        return masks.double() @ torch.arange(30).double()

    found = permutation_shapley(value, 30, np.random.default_rng(0), 50, batch=64)
    rows = torch.cat(seen)
    assert max(map(len, seen)) == 64
    assert len(rows.unique(dim=0)) == len(rows) == found.coalitions < 31 * 50
    torch.testing.assert_close(found.values, torch.arange(30).double())


def test_the_generator_alone_decides_the_draws() -> None:
    value = game(9, 7)
    first, again, other = (permutation_shapley(value, 9, np.random.default_rng(seed), 10).values for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_shapley_is_exact_up_to_twelve_and_sampled_above() -> None:
    value = game(3, 8)
    assert torch.equal(shapley(value, 3).values, exact(value, 3).values)
    assert shapley(lambda masks: masks.sum(1), 12).coalitions == 4096
    thirteen = shapley(lambda masks: masks[:, 0].double(), 13, np.random.default_rng(0), 10)
    assert thirteen.values.tolist() == [1.0] + [0.0] * 12


def test_leave_one_out_by_hand() -> None:
    gloves: Value = lambda masks: (masks[:, 0] & (masks[:, 1] | masks[:, 2])).double()  # noqa: E731
    assert leave_one_out(gloves, 3).tolist() == [1.0, 0.0, 0.0]
    value = game(5, 9)
    everyone = one(value, *range(5), players=5)
    expected = [everyone - one(value, *(j for j in range(5) if j != i), players=5) for i in range(5)]
    assert leave_one_out(value, 5).tolist() == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: exact(v, 13), r"13 players would take 2\^13 coalitions; `exact` takes 1 to 12 players"),
        (lambda v: exact(v, 0), "1 to 12 players"),
        (lambda v: shapley(v, 13), "at most 12 players, here are 13; give a generator"),
        (lambda v: permutation_shapley(v, 0, np.random.default_rng(0)), "at least 1 player"),
        (lambda v: permutation_shapley(v, 3, np.random.default_rng(0), 5), "an even number"),
        (lambda v: permutation_shapley(v, 3, np.random.default_rng(0), 2), "at least 1 player and 4 permutations"),
        (lambda v: permutation_shapley(v, 3, np.random.default_rng(0), 1, antithetic=False), "2 permutations"),
        (lambda v: leave_one_out(v, 0), "at least 1"),
        (lambda v: exact(lambda masks: masks, 2), r"returned \(4, 2\) for 4 coalitions"),
        (lambda v: exact(lambda masks: v(masks).log(), 2), r"coalition \[\] is -inf"),
        (lambda v: leave_one_out(lambda masks: v(masks) * float("nan"), 2), r"coalition \[0, 1\] is nan"),
    ],
)
def test_limits_are_named(call: Callable[[Value], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(lambda masks: masks.double().sum(1))
