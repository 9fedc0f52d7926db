"""Replies of clients, one tree for each."""

import pytest
import torch

from fedweave.core.replies import Replies
from fedweave.errors import FedweaveError


def test_trees_of_clients_are_their_replies() -> None:
    """Worked by hand, with a missing client, a nested leaf and a number."""
    trees = {"b": {"w": {"x": torch.tensor([1.0, 2.0])}, "n": 3}, "a": {"w": {"x": torch.tensor([5.0, 7.0])}, "n": 4}}
    replies = Replies.of(trees, {"c": "away"})
    assert replies.clients == ("b", "a")
    assert replies.missing == {"c": "away"}
    assert replies["a"]["n"] == 4
    assert replies["b"]["w"]["x"].tolist() == [1.0, 2.0]
    assert replies.stack("w/x").tolist() == [[1.0, 2.0], [5.0, 7.0]]
    assert replies.stack("n").tolist() == [3, 4]


def test_of_a_secure_sum_only_the_total_is_readable() -> None:
    trees = {"a": {"s": torch.tensor([1, 2])}, "b": {"s": torch.tensor([10, 20])}}
    replies = Replies.of(trees, {}, ("s",))
    assert replies.total("s").tolist() == [11, 22]
    with pytest.raises(FedweaveError):
        replies.stack("s")
