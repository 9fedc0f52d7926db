"""States of many clients: stacked, written piece by piece, and unstacked they are what they were."""

import io
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedweave.core.stacked import (
    MANY,
    RowStream,
    check_states,
    is_stacked,
    read_whole,
    stack_states,
    unstack_states,
    write_tree,
)
from fedweave.core.tree import Tree, decode, encode, has_its_digest, leaves, with_digest
from fedweave.engines.states import States
from fedweave.ops.touched_rows import TouchedRows, shared_scalar


def written(tree: Tree) -> bytes:
    file = io.BytesIO()
    write_tree(file, tree)
    return file.getvalue()


def check_equal(one: Tree, other: Tree) -> None:
    assert [*one] == [*other]
    for (path, value), (there, expected) in zip(leaves(one), leaves(other), strict=True):
        assert path == there
        assert type(value) is type(expected)
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected))


def test_a_tree_is_written_as_its_encoding_with_a_digest() -> None:
    tree = {
        "a": torch.randn(3, 2),
        "b": {"half": torch.ones(2, dtype=torch.bfloat16), "n": 3, "text": '"digest": "0', "yes": True, "x": 0.5},
        "empty": torch.zeros(0, 3),
        "é": torch.tensor(1.5, dtype=torch.float64),
        "turned": torch.arange(6).view(2, 3).T,
    }
    blob, expected = written(tree), with_digest(encode(tree))
    assert has_its_digest(blob)
    assert len(blob) == len(expected)  # which leaf comes first is up to safetensors there
    assert encode(decode(blob)) == encode(decode(expected))


def test_pieces_give_the_bytes_of_the_whole_and_two_at_most_are_there() -> None:
    whole, before = torch.randn(10, 3), list[weakref.ref[Tensor]]()

    def pieces() -> Iterator[Tensor]:
        for start in range(0, 10, 4):
            assert sum(piece() is not None for piece in before) <= 1
            piece = whole[start : start + 4].clone()
            before.append(weakref.ref(piece))
            yield piece
            del piece

    stream = RowStream((10, 3), torch.float32, pieces)
    assert written({"a": stream, "b": 1}) == with_digest(encode({"a": whole, "b": 1}))


def test_whole_streams_are_their_pieces_together() -> None:
    stream = RowStream((3, 2), torch.float32, lambda: iter([torch.ones(1, 2), torch.zeros(2, 2)]))
    assert read_whole({"a": {"b": stream}, "c": 1})["a"]["b"].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_states_of_few_clients_stay_as_they_are() -> None:
    states = {"order": {"w": torch.ones(1)}, "a": {"w": torch.zeros(1)}}
    assert stack_states(states) is states
    assert unstack_states(states) is states


def mixed_states() -> tuple[States, list[str]]:
    """States of 100 clients of three forms: in stacks, in a store, with partly stored leaves and numbers."""
    names = [f"c{at}" for at in range(100)]
    states = States()
    states.put(tuple(names[:60]), {"w/z": torch.randn(60, 2), "w/a": torch.randn(60), "n": 3})
    states.put(tuple(names[20:40]), {"w/z": torch.randn(20, 2), "w/a": torch.randn(20), "n": 3})  # the others: a store
    states.put(tuple(names[60:70]), {"w/z": torch.randn(10, 2), "w/a": torch.randn(10), "n": True})
    rows = TouchedRows(torch.zeros(3, 1), torch.arange(20)[:, None] % 3, torch.randn(20, 1, 1))
    states.put(tuple(names[70:90]), {"w": rows, "steps": shared_scalar(torch.tensor(7), 20)})
    states.put(("c95",), {})
    return states, names


def test_stacked_states_are_those_of_each_client() -> None:
    states, names = mixed_states()
    order, dumped = list(reversed(names)), states.dump()
    stacked = states.stacked(order)
    assert is_stacked(stacked)
    check_states(stacked)
    expected = {client: dumped[client] for client in order if client in dumped}
    check_equal(unstack_states(read_whole(stacked)), expected)
    check_equal(unstack_states(read_whole(stack_states(expected))), expected)
    check_equal(unstack_states(decode(written(stacked))), unstack_states(decode(written(stack_states(expected)))))
    again = States()
    again.load(decode(written(stacked)))
    for client in expected:
        assert encode(again.one(client)) == encode(expected[client])


def test_few_states_are_not_stacked() -> None:
    states = States()
    states.put(("a", "b"), {"w": torch.tensor([1.0, 2.0])})
    check_equal(states.stacked(("b", "c", "a")), {"b": {"w": torch.tensor(2.0)}, "a": {"w": torch.tensor(1.0)}})


@pytest.mark.parametrize("change", [{"order": '["a"]'}, {"order": "{"}, {"alike": 3}, {"alike": {"0": {}}}])
def test_stacked_states_whose_parts_do_not_fit_are_found(change: Tree) -> None:
    stacked = read_whole(stack_states({f"c{at}": {"w": torch.ones(2)} for at in range(MANY)}))
    check_states(stacked)
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        check_states(stacked | change)


def test_a_stack_with_a_row_too_few_is_found() -> None:
    stacked = read_whole(stack_states({f"c{at}": {"w": torch.ones(2)} for at in range(MANY)}))
    stacked["alike"]["0"]["rows"]["w"] = torch.ones(MANY - 1, 2)
    with pytest.raises(ValueError, match="shape"):
        check_states(stacked)
