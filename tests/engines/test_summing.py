"""What the simulation counts of secure sums: when clients would agree on keys, and who would send what of no use."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import SLOTS, SecureSum
from fedweave.core.replies import Stacked
from fedweave.engines.messages import Messages
from fedweave.engines.sum_messages import SumMeter, check_same_message, check_terms
from fedweave.errors import FedweaveError
from fedweave.privacy.secure_sum import FixedPoint
from tests.refusals import refusal


def agreements(ledger: Ledger) -> list[tuple[int, set[str]]]:
    """The rounds in which keys were agreed on, and by whom."""
    rows = [row for row in ledger.table().to_pylist() if row["step"] == "(advertise)" and row["key"] == "keys"]
    rounds = sorted({row["round"] for row in rows})
    return [(number, {row["client"] for row in rows if row["round"] == number}) for number in rounds]


def test_keys_are_agreed_on_when_one_that_is_called_has_none_and_when_they_are_used_up() -> None:
    ledger = Ledger()
    meter = SumMeter(ledger)
    for number, here in enumerate(("ab", "a", "ab", "abc", "bc")):
        meter.record_agreement((number, 0), tuple(here))
    assert agreements(ledger) == [(0, {"a", "b"}), (3, {"a", "b", "c"})]
    for number in range(5, 5 + SLOTS):  # two of the slots are used
        meter.record_agreement((number, 0), tuple("abc"))
    assert agreements(ledger)[2:] == [(5 + SLOTS - 2, {"a", "b", "c"})]


def test_a_term_that_has_diverged_is_its_own_clients() -> None:
    own = SecureSum()
    words, info = FixedPoint.of(own), StepInfo.of({"n": Sends("a count", own)})
    odd = words.encode(torch.tensor([[1.0], [torch.nan]]), 1.0)
    fine = words.encode(torch.tensor([[1.0]]), 1.0)
    check_terms(info, "b", {"n": fine})
    with refusal("diverged", "'a'"):
        check_terms(info, "ca", {"n": odd})
    with refusal("diverged", "n/deep of 'a'"):
        check_terms(info, "ca", {"n": {"deep": odd}})


@pytest.mark.parametrize(
    ("each", "alike"),
    [
        (None, True),
        ({"a": {"x": 1.0}, "b": {"x": 1.0}}, False),
        (Stacked(("a", "b"), {"x": torch.ones(2)}), False),
    ],
)
def test_in_a_sum_nobody_is_told_what_others_are_not(each: Any, alike: bool) -> None:
    messages = Messages("add_up", {"w": torch.ones(3)}, each, ("a", "b"), ("a", "b"))
    with nullcontext() if alike else pytest.raises(FedweaveError, match="add_up replies in a secure sum"):
        check_same_message("add_up", messages)
