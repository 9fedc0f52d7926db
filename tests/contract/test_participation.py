"""The laws where some clients take part in a round, and who these are."""

from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.participation import sample
from fedweave.cli.contract import verdict
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from tests.contract.federations import federation, graphs

# Those that are about which clients are called; the others run a second time what tests/contract/test_contract.py runs.
ABOUT = ("the_order_of_clients_does_not_matter", "training_lowers_the_loss", "a_quorum_carries_the_round")


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ["fedavg", "cgsv", "gcfl", "fedadam", "fedego"])
def test_laws_hold_where_half_of_the_clients_take_part(name: str) -> None:
    subject = Subject(ALGORITHMS[name], {"participation": 0.5})
    assert {law: said for law in ABOUT if not (said := verdict(subject, law)).startswith(("holds", "declared"))} == {}
    assert set(ABOUT) <= LAWS.keys()


def drawn(names: list[str], rounds: int = 20) -> list[set[str]]:
    """Which clients are called in each round, in a federation that lists them so."""
    given = dict(zip(names, graphs().values(), strict=True))
    fed: Any = federation(clients=given)
    found = []
    for number in range(rounds):
        fed.begin(number)
        found.append(set(sample(fed, 0.4)))
    return found


def test_who_takes_part_does_not_depend_on_the_order_in_which_clients_are_listed() -> None:
    """And in the order of their numbers it is who always did: the 2 of 5 places whose draw is least."""
    names = [f"client-{at}" for at in (1, 2, 3, 10, 20)]
    assert drawn(names) == drawn(names[::-1]) == drawn([names[at] for at in (3, 0, 4, 1, 2)])
    assert len({frozenset(called) for called in drawn(names)}) > 5
    assert all(len(called) == 2 for called in drawn(names))
