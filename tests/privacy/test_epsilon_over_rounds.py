"""ε over the rounds of a run."""

import pytest
import torch

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.privacy.accountant import bounds, over_rounds
from fedweave.privacy.gaussian import epsilon


def test_epsilon_over_rounds_ends_at_the_bound_of_all() -> None:
    ledger = Ledger()
    info = StepInfo.of({"h": Sends("h", Gaussian(1.0, 1.0)), "c": Sends("c", LDP(0.5, "node", "codes"))})
    for number in range(1, 4):
        names = ["a", "b"] if number < 3 else ["b"]
        ledger.record(number, 0, "s", names, "up", {"h": torch.zeros(2), "c": 1.0}, 0.0, info)
    found = over_rounds(ledger.table())
    assert found["row"] == {n: pytest.approx(epsilon(n**0.5, 1e-5)) for n in (1, 2, 3)}
    assert found["node"] == {1: 0.5, 2: 0.5, 3: 0.5}  # drawn once
    assert {own.per: own.epsilon for own in bounds(ledger.table())} == {per: own[3] for per, own in found.items()}


def test_epsilon_over_rounds_never_falls_and_is_of_whom_it_cost_most() -> None:
    """In the last round a client is called that has sent less; and rounds are noted in another order."""
    ledger = Ledger()
    info = StepInfo.of({"h": Sends("h", Gaussian(1.0, 1.0, delta=1e-7))})
    for number, names in ((3, ["b"]), (1, ["a"]), (2, ["a"])):
        ledger.record(number, 0, "s", names, "up", {"h": torch.zeros(2)}, 0.0, info)
    found = over_rounds(ledger.table())["row"]
    assert list(found) == [1, 2, 3]
    assert found == {n: pytest.approx(epsilon(min(n, 2) ** 0.5, 1e-7)) for n in (1, 2, 3)}
