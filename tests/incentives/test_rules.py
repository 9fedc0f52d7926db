"""Every rule of pay with numbers small enough for hand work: its shares, what they add up from, and its words."""

import pyarrow as pa
import pytest
import torch

from fedweave.incentives.rules import PAYOFF, RULES, Basis, Rule
from fedweave.incentives.statement import SCHEMA

MEMBERS = ("a", "b", "c")
SIZES = (0.5, 0.25, 0.25)
BY_MEMBERS = {"a": (9.0, 1.0, 3.0), "b": (2.0, 9.0, -1.0), "c": (0.0, 0.0, 9.0)}  # of an own update nothing counts
BY_SERVER = {"the server": (3.0, -1.0, 1.0)}


def basis(gains: dict[str, tuple[float, ...]]) -> Basis:
    tensors = {judge: torch.tensor(values, dtype=torch.float64) for judge, values in gains.items()}
    return Basis(MEMBERS, tensors, torch.tensor(SIZES, dtype=torch.float64))


CASES = [
    # a gives b a quarter and c three quarters of its third, b gives a all, c measured nothing and gives both half.
    ("shapley", BY_MEMBERS, (1 / 3 + 1 / 6, 1 / 12 + 1 / 6, 1 / 4)),
    ("validated", BY_MEMBERS, (1 / 2, 1 / 4, 1 / 4)),
    ("validated", BY_SERVER, (3 / 4, 0, 1 / 4)),
    ("size", {}, SIZES),
    ("equal", {}, (1 / 3, 1 / 3, 1 / 3)),
]


@pytest.mark.parametrize(("name", "gains", "expected"), CASES)
def test_shares_and_what_they_add_up_from(
    name: str, gains: dict[str, tuple[float, ...]], expected: tuple[float, ...]
) -> None:
    rule, found = RULES[name], basis(gains)
    shares = rule.shares(found)
    assert shares.tolist() == pytest.approx(expected)
    for member in range(3):
        summands = rule.summands(found, member)
        assert sum(one.share for one in summands) == pytest.approx(expected[member])
        assert len(summands) == (2 if gains is BY_MEMBERS else 1)
        for one in summands:
            formula = one.numbers.replace("\N{MULTIPLICATION SIGN}", "*").removeprefix("size ")
            assert eval(formula, {"__builtins__": {}}) == pytest.approx(one.share)  # numbers, * and /


def test_a_statement_has_the_formula_of_who_measured() -> None:
    """The impartial division where members did; in proportion where the server did, as the shares of the cases are."""
    for name in ("shapley", "validated"):
        rule = RULES[name]
        assert rule.of(basis(BY_MEMBERS)) == rule
        other = rule.of(basis(BY_SERVER))
        assert "1 / N" not in other.formula + other.words
        assert other.shares(basis(BY_SERVER)).tolist() == rule.shares(basis(BY_SERVER)).tolist()
    assert len({rule.words for rule in (*RULES.values(), PAYOFF)}) == len(RULES) + 1


def test_gains_that_nobody_has_divide_nothing_and_the_only_member_gets_all() -> None:
    nothing = basis(dict.fromkeys(MEMBERS, (0.0, 0.0, 0.0)))
    assert bool(RULES["shapley"].shares(nothing).isnan().all())
    one = Basis(("a",), {"a": torch.tensor([1.0])}, torch.tensor([1.0]))
    rule: Rule = RULES["shapley"]
    assert rule.shares(one).tolist() == [1.0]
    assert [summand.share for summand in rule.summands(one, 0)] == [1.0]


def test_values_of_rounds() -> None:
    """r .2, .5, -.1, .3: the means before are .2 (the first round's own), .2, .35 and .2, so μ is 0, .3, 0 and .1."""
    columns = dict.fromkeys(SCHEMA.names) | {"member": "a", "pay": 0, "currency": "EUR", "reason": ""}
    rows = [columns | {"round": at + 1, "value": r} for at, r in enumerate((0.2, 0.5, -0.1, 0.3))]
    lines = pa.Table.from_pylist(rows, SCHEMA)
    workings = PAYOFF.workings(lines)
    assert [workings[at] for at in range(1, 5)] == [
        pytest.approx(numbers) for numbers in ((0.2, 0.2, 0), (0.5, 0.2, 0.3), (-0.1, 0.35, 0), (0.3, 0.2, 0.1))
    ]
    assert PAYOFF.dues(lines) == pytest.approx({1: 0.2, 2: 0.8, 3: -0.1, 4: 0.4})
