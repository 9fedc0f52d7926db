import itertools
import json
import math
import pickle
import string
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor
from torch.func import vmap

from fedweave.core import random
from fedweave.core.tree import (
    add,
    check,
    decode,
    dot,
    encode,
    encoded_size,
    leaves,
    map_leaves,
    materialize,
    nest,
    norm,
    ravel,
    scale,
    sub,
    unravel,
)
from fedweave.errors import ReplyRefused
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows
from tests.refusals import refusal

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip

names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=6).filter(
    lambda name: name != "__metadata__"
)
texts = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """0-d to 3-d, possibly empty, transposed or strided."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    wide = torch.arange(2 * math.prod(shape)).reshape(*shape, 2).to(draw(st.sampled_from(DTYPES)))
    return draw(
        st.sampled_from(
            [
                wide[..., 0],
                wide[..., 1],
                wide[..., 0].contiguous(),
                wide.movedim(-1, 0)[0].mT if len(shape) > 1 else wide[..., 0],
            ]
        )
    )


leaf = st.one_of(tensors(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), texts)
trees = st.dictionaries(
    names, st.recursive(leaf, lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=6), max_size=4
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and (one == other or (one != one and other != other))


@settings(max_examples=50, deadline=None)
@given(trees)
def test_decode_undoes_encode_and_the_size_is_known_before(tree: dict[str, Any]) -> None:
    blob = encode(tree)
    there, back = dict(leaves(tree)), dict(leaves(decode(blob)))
    assert there.keys() == back.keys()
    assert all(same(there[path], back[path]) for path in there)
    assert encoded_size(tree) == len(blob)
    assert encode(decode(blob)) == blob


@settings(max_examples=50, deadline=None)
@given(trees)
def test_nest_undoes_leaves(tree: dict[str, Any]) -> None:
    flat = dict(leaves(tree))
    again = nest(flat)
    assert list(leaves(again)) == [(path, flat[path]) for path, _ in leaves(again)]
    assert dict(leaves(again)).keys() == flat.keys()


def test_size_depends_on_structure_not_on_values_or_key_order() -> None:
    tree = {"w": torch.zeros(3, 2), "n": 0, "mu": 0.0, "on": False, "name": "abc"}
    other = {"name": "xyz", "w": torch.full((3, 2), math.nan), "on": True, "n": -(2**63), "mu": 1e300}
    assert len(encode(tree)) == len(encode(other)) == encoded_size(other) == encoded_size(tree)
    longer = tree | {"name": "abcdefghijklmnop"}
    assert encoded_size(longer) == len(encode(longer)) > encoded_size(tree)


def test_size_counts_every_element() -> None:
    sizes = [encoded_size({"w": torch.zeros(1000 * k)}) for k in (1, 2, 3)]
    assert [b - a for a, b in itertools.pairwise(sizes)] == [4000, 4000]
    assert encoded_size({"w": torch.zeros(1000, dtype=torch.float64)}) - encoded_size(
        {"w": torch.zeros(500, dtype=torch.float64)}
    ) in range(4000, 4009)


def test_views_of_one_storage_are_stored_once_each() -> None:
    stack = torch.arange(12.0).reshape(4, 3)
    back = decode(encode({"a": stack[0], "b": stack[2], "all": stack, "t": stack.T}))
    assert torch.equal(back["a"], stack[0])
    assert torch.equal(back["b"], stack[2])
    assert torch.equal(back["t"], stack.T)
    assert encoded_size({"a": stack[0]}) < encoded_size({"a": stack})


def test_partly_stored_rows_cross_as_the_whole_tensor() -> None:
    rows = TouchedRows(torch.zeros(4, 2), torch.tensor([2, 4]), torch.tensor([[5.0, 6.0], [9.0, 9.0]]))
    whole = torch.tensor([[0.0, 0.0], [0.0, 0.0], [5.0, 6.0], [0.0, 0.0]])
    assert torch.equal(decode(encode({"w": rows}))["w"], whole)
    assert encoded_size({"w": rows}) == len(encode({"w": whole}))
    assert torch.equal(map_leaves(lambda leaf: leaf + 1, {"w": rows})["w"], whole + 1)
    assert torch.equal(materialize(rows), whole)


def test_the_size_of_sparse_leaves_follows_their_entries() -> None:
    """With every digit that a larger leaf adds to the header, whatever stands before and after it."""
    for count in (0, 1, 9, 13, 99, 1250, 12_500):
        few = torch.zeros(12_500)
        few[:count] = 1
        tree = {'"w"': Sparsified(few), "é": {"x": Sparsified(few[::7].double())}, "n": 3, "s": "ab", "t": few[:3]}
        assert encoded_size(tree) == len(encode(tree))


def test_gradients_and_empty_subtrees_do_not_cross() -> None:
    w = torch.ones(2, requires_grad=True)
    back = decode(encode({"w": w, "nothing": {"at": {}}}))
    assert not back["w"].requires_grad
    assert list(back) == ["w"]
    assert decode(encode({})) == {}


def test_map_leaves_takes_the_same_place_of_every_tree() -> None:
    one, two = {"a": {"b": torch.tensor(2.0)}, "c": 3}, {"c": 4, "a": {"b": torch.tensor(5.0)}}
    assert map_leaves(lambda x, y: x * y, one, two) == {"a": {"b": torch.tensor(10.0)}, "c": 12}


@pytest.mark.parametrize("value", [np.float64(1.5), np.str_("abc"), np.float64("nan")], ids=["float", "str", "nan"])
def test_numpy_scalars_that_are_python_numbers_come_back(value: Any) -> None:
    plain = value.item()
    assert same(decode(encode({"a": value}))["a"], plain)
    assert encoded_size({"a": value}) == encoded_size({"a": plain})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([1.0], "list"), (torch.nn.Linear(1, 1), "Linear"), (None, "NoneType"), (np.zeros(2), "ndarray"),
        ((1, 2), "tuple"), (b"raw", "bytes"), (1j, "complex"), (np.int64(3), "int64"),
    ],
)  # fmt: skip
def test_other_leaves_are_refused_with_their_place(value: Any, named: str) -> None:
    with refusal("reply-refused", named, "'w/0/bias'"):
        check({"w": {"0": {"bias": value}}}, "the reply")


@pytest.mark.parametrize("key", ["", "a/b", 3, None])
def test_other_keys_are_refused(key: Any) -> None:
    with refusal("reply-refused", "'w'", "non-empty", "'/'"):
        check({"w": {key: 1.0}}, "the reply")


@pytest.mark.parametrize("tree", [None, [1], torch.zeros(1), 3.0])
def test_other_replies_are_refused(tree: Any) -> None:
    with refusal("reply-refused", "return a dict"):
        check(tree, "the reply")


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        torch.zeros(2, dtype=torch.complex128),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        "\ud800",
    ],
    ids=["large", "small", "complex128", "coo", "csr", "surrogate"],
)
def test_what_the_encoding_cannot_hold_is_refused_as_such(value: Any) -> None:
    with pytest.raises(ReplyRefused):
        encode({"w": value})


def blob_of(tensors: dict[str, Tensor], python: Any = None) -> bytes:
    return save(tensors, {"python": json.dumps(python or {})})


GOOD = encode({"w": torch.arange(6.0), "name": "hello", "n": 3})
HEAD = int.from_bytes(GOOD[:8], "little")
HOSTILE = {
    "nothing": b"",
    "text": b"not a tree at all, but long enough for a header",
    "zeros": bytes(64),
    "cut inside the header": GOOD[: HEAD // 2],
    "cut inside the data": GOOD[:-1],
    "longer than said": GOOD + b"\0",
    "header of 2^63 bytes": (2**63 - 1).to_bytes(8, "little") + GOOD[8:],
    "header of 4 GB": (2**32).to_bytes(8, "little") + GOOD[8:],
    "pickle": pickle.dumps({"w": [1.0]}),
    "pickle after a good length": GOOD[:8] + pickle.dumps({"w": [1.0] * 40}),
    "no python tags": save({"w": torch.zeros(1)}),
    "tags not JSON": save({"w": torch.zeros(1)}, {"python": "{"}),
    "tags not a dict": blob_of({"w": torch.zeros(1)}, [1]),
    "tag unknown": blob_of({"w": torch.zeros(1)}, {"w": "complex"}),
    "tag names a builtin": blob_of({"w": torch.zeros(1)}, {"w": "eval"}),
    "tag not a string": blob_of({"w": torch.zeros(1)}, {"w": ["str"]}),
    "number of three": blob_of({"w": torch.zeros(3)}, {"w": "float"}),
    "integer from nan": blob_of({"w": torch.tensor(math.nan)}, {"w": "int"}),
    "bad utf-8": blob_of({"w": torch.tensor([0xFF, 0xFE], dtype=torch.uint8)}, {"w": "str"}),
    "string of floats": blob_of({"w": torch.tensor([1.5])}, {"w": "str"}),
    "leaf and subtree at once": blob_of({"w": torch.zeros(1), "w/b": torch.zeros(1)}),
    "empty key": blob_of({"": torch.zeros(1)}),
    "empty key inside": blob_of({"w//b": torch.zeros(1)}),
    "5000 levels deep": blob_of({"/".join("a" * 5000): torch.zeros(1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    with pytest.raises(ReplyRefused):
        decode(HOSTILE[name])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_still_a_tree(data: st.DataObject) -> None:
    blob = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))] if data.draw(st.booleans()) else blob
    try:
        tree = decode(bytes(blob))
    except ReplyRefused:
        return
    check(tree, "what came through")


def test_the_blob_holds_no_code() -> None:
    tree = {"w": torch.zeros(2), "s": string.printable}
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(encode(tree))


def numbers(number: int, *shape: int) -> Tensor:
    return random.normal(random.key(number), shape).double()


def weights(number: int) -> dict[str, Any]:
    return {"b": {"w": numbers(number, 3, 2), "bias": numbers(number + 1, 2)}, "a": numbers(number + 2, 4)}


def test_arithmetic_is_that_of_flat_vectors() -> None:
    one, other = weights(1), weights(5)
    a, b = ravel(one), ravel(other)
    assert torch.equal(a, torch.cat([one["a"], one["b"]["bias"], one["b"]["w"].flatten()]))  # sorted paths
    assert torch.equal(ravel(add(one, other)), a + b)
    assert torch.equal(ravel(sub(one, other)), a - b)
    for factor in (2.5, torch.tensor(2.5, dtype=torch.float64)):
        assert torch.equal(ravel(scale(one, factor)), 2.5 * a)
    torch.testing.assert_close(dot(one, other), a @ b)
    torch.testing.assert_close(norm(one), a.norm())


def test_unravel_undoes_ravel_in_the_order_and_dtypes_of_the_tree() -> None:
    tree = weights(1) | {"c": torch.tensor(2.0, dtype=torch.float32)}
    back = unravel(ravel(tree), tree)
    assert list(leaves(back)) == [(path, leaf) for path, leaf in leaves(back)]
    assert [path for path, _ in leaves(back)] == [path for path, _ in leaves(tree)]
    assert all(same(leaf, dict(leaves(tree))[path]) for path, leaf in leaves(back))
    with pytest.raises(ValueError, match=r"\[3\] is not a tree of 12 elements"):
        unravel(torch.zeros(3), weights(1))


def test_an_empty_tree_has_no_length() -> None:
    assert norm({}) == dot({}, {}) == 0
    assert ravel({}).shape == (0,)
    assert unravel(ravel({}), {}) == {}


def test_arithmetic_keeps_the_dtype() -> None:
    tree = {"w": torch.ones(2, dtype=torch.float32)}
    assert scale(tree, norm(tree))["w"].dtype == torch.float32
    assert norm(tree).dtype == torch.float64


REST, ROWS = numbers(11, 5, 2), torch.tensor([[3, 0, 5], [1, 5, 5]])  # 5 marks padding, whose values count for nothing
SHARED, SCALES = numbers(12, 5, 2), torch.tensor([0.5, 2.0], dtype=torch.float64)


VALUES = numbers(13, 2, 3, 2)


def differences(values: Tensor, rows: Tensor, factor: Tensor, whole: bool) -> dict[str, Any]:
    """Arithmetic of two trees that store the same rows, with whole tensors that clients share or have of their own."""
    one, other = TouchedRows(REST, rows, values), TouchedRows(2 * REST, rows, values.cos())
    one, other = (materialize(leaf) if whole else leaf for leaf in (one, other))
    return {
        "shared": sub({"w": one}, {"w": SHARED})["w"],
        "both": add({"w": one}, {"w": other})["w"],
        "number": scale({"w": one}, 3.0)["w"],
        "own factor": scale({"w": one}, factor)["w"],
        "own other": sub({"w": one}, {"w": factor * SHARED})["w"],
        "dot": dot({"w": one}, {"w": SHARED}),
        "norm": norm(sub({"w": one}, {"w": other})),
    }


def test_partly_stored_leaves_calculate_as_whole_ones() -> None:
    """And stay partly stored where everything but the rows of their own is the same for all clients."""
    stored: dict[str, bool] = {}

    def one(values: Tensor, rows: Tensor, factor: Tensor, whole: bool) -> dict[str, Any]:
        found = differences(values, rows, factor, whole)
        stored.update({name: isinstance(leaf, TouchedRows) for name, leaf in found.items()})
        return {name: materialize(leaf) for name, leaf in found.items()}

    fast = vmap(lambda v, r, f: one(v, r, f, False))(VALUES, ROWS, SCALES)
    assert {name for name, partly in stored.items() if partly} == {"shared", "both", "number"}
    for p in range(2):
        for name, leaf in one(VALUES[p], ROWS[p], SCALES[p], True).items():
            torch.testing.assert_close(fast[name][p], leaf)


def test_rows_that_differ_are_filled_in() -> None:
    one = TouchedRows(REST, ROWS[0], VALUES[0])
    other = TouchedRows(REST, ROWS[1], VALUES[1])
    assert torch.equal(add({"w": one}, {"w": other})["w"], materialize(one) + materialize(other))
