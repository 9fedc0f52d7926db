from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.core.tree import Tree
from fedweave.engines.states import Readers, States
from fedweave.ops.touched_rows import TouchedRows


def stacked(*values: float) -> Tree:
    return {"w": torch.tensor(values, dtype=torch.float32).view(-1, 1).repeat(1, 2), "n": 3}


def test_a_client_starts_with_nothing() -> None:
    assert States().one("a") == {}
    assert States().dump() == {}
    assert States().many(("a", "b")) == {}


def test_one_returns_a_copy() -> None:
    states = States()
    states.put(("a", "b"), stacked(1, 2))
    states.one("b")["w"].add_(10)
    states.one("b")["extra"] = 1
    assert states.one("b")["w"].tolist() == [2, 2]
    assert list(states.one("b")) == ["w", "n"]


def test_what_is_put_later_does_not_reach_a_copy() -> None:
    states = States()
    states.put(("a",), stacked(1))
    kept = states.copy()
    states.put(("a",), stacked(5))
    states.put(("b",), stacked(6))
    assert kept.one("a")["w"].tolist() == [1, 1]
    assert kept.one("b") == {}


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a")])
def test_many_stacks_in_the_groups_order(order: tuple[str, ...]) -> None:
    states = States()
    states.put(("b",), stacked(2))
    states.put(("a", "c"), stacked(1, 3))
    number = {"a": 1, "b": 2, "c": 3}
    got = states.many(order)
    assert got["w"][:, 0].tolist() == [number[client] for client in order]
    assert got["n"] == 3


def test_partly_stored_rows_are_kept_as_each_clients_own() -> None:
    rest, values = torch.zeros(3, 1), torch.tensor([[[1.0]], [[2.0]]])
    states = States()
    states.put(("a", "b"), {"w": TouchedRows(rest, torch.tensor([[0], [2]]), values)})
    assert states.one("a")["w"].flatten().tolist() == [1, 0, 0]
    assert states.one("b")["w"].flatten().tolist() == [0, 0, 2]


def test_partly_stored_leaves_last_while_the_same_clients_are_called_together() -> None:
    rest, rows, values = torch.zeros(3, 1), torch.tensor([[0], [2]]), torch.tensor([[[1.0]], [[2.0]]])
    states = States()
    states.put(("a", "b"), {"w": TouchedRows(rest, rows, values), "x": torch.zeros(2)})
    again = states.many(("a", "b"))
    assert isinstance(again["w"], TouchedRows)
    again["x"].add_(1)
    assert states.one("a")["x"] == 0
    assert torch.equal(states.many(("b", "a"))["w"], torch.tensor([[[0.0], [0.0], [2.0]], [[1.0], [0.0], [0.0]]]))
    states.put(("c",), {"w": torch.zeros(1, 3, 1), "x": torch.zeros(1)})
    assert states.split(("a", "b", "c")) == [("a", "b", "c")]  # of one shape, however it is stored
    assert states.dump()["b"]["w"].tolist() == [[0], [0], [2]]


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({"w": torch.zeros(1, 2), "n": 3}, 1),
        ({"w": torch.zeros(1, 3), "n": 3}, 2),
        ({"w": torch.zeros(1, 2), "n": 4}, 2),
        ({"w": torch.zeros(1, 2, dtype=torch.float64), "n": 3}, 2),
        ({"w": torch.zeros(1, 2), "n": 3, "more": 1}, 2),
        ({}, 2),
    ],
    ids=["alike", "shape", "number", "dtype", "key", "nothing"],
)  # fmt: skip
def test_clients_are_split_by_what_they_hold(other: Tree, parts: int) -> None:
    states = States()
    states.put(("a",), stacked(1))
    states.put(("b",), other)
    groups = states.split(("a", "b"))
    assert len(groups) == parts
    assert sorted(client for group in groups for client in group) == ["a", "b"]


def test_clients_that_were_never_called_go_with_those_that_hold_nothing() -> None:
    states = States()
    states.put(("a",), {})
    assert len(states.split(("a", "b"))) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=1, unique=True), max_size=8))
def test_the_store_is_a_dict_of_clients(groups: list[list[str]]) -> None:
    states, number = States(), 0.0
    model: dict[str, float] = {}
    for group in groups:
        numbers = [number := number + 1 for _ in group]
        states.put(tuple(group), stacked(*numbers))
        model.update(zip(group, numbers, strict=True))
    assert {client: state["w"][0].item() for client, state in states.dump().items()} == model
    homes = {states._home[client][0] for client in model}
    assert homes - states._stores.keys() == set(states._stacks)  # no stack outlives its last client
    for stack, (group, _) in states._stacks.items():  # nor keeps what clients have that have gone
        assert all(states._home[client][0] == stack for client in group)


def test_dump_holds_plain_trees() -> None:
    states = States()
    states.put(("a", "b"), {"deep/w": torch.arange(4.0).view(2, 2), "s": "x"})
    dump: dict[str, Any] = states.dump()
    assert dump["b"]["deep"]["w"].tolist() == [2, 3]
    assert dump["a"]["s"] == "x"


def test_a_step_that_has_changed_a_state_in_place_is_no_reader_any_more() -> None:
    """Only readers are given states as they are stored; others would leave them changed where they fail."""
    readers, states = Readers(), {"w": torch.zeros(2)}

    def step(amount: float) -> None:
        before = readers.versions(states)
        if amount:
            states["w"] += amount
        readers.note(step, states, before)

    assert step not in readers
    step(0.0)
    assert step in readers
    step(1.0)
    assert step not in readers
