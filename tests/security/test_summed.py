"""The table of docs/guarantees-sums.md on secure sums is what the registry has."""

from pathlib import Path

from tests.security import summed


def test_the_table_is_what_steps_declare() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees-sums.md").read_text()
    assert summed.table() in page, "print it with: python -m tests.security.summed"


def test_a_key_in_the_clear_is_seen() -> None:
    """Of plain FedAvg, updates and numbers of examples."""
    from fedweave.core.algorithm import calls_of
    from tests.contract.federations import algorithm

    assert summed.seen(calls_of(algorithm("fedavg"), "fedavg", 5).round) == ["n", "update"]
