"""Fewer calls that give the same: hand-worked calls, and the short ways to kernels of torch."""

from collections.abc import Iterable

import pytest
import torch

from fedweave.ops.recorded_calls import _DIRECT, MemoryPlace, TapedCall, quickest, simplify

A, B = MemoryPlace("a", (2, 3), (3, 1)), MemoryPlace("b", (2, 3), (3, 1))
SWAPPED = MemoryPlace("a", (3, 2), (1, 3))
ROW = MemoryPlace("a", (3,), (1,), 3)


def call(text: str, *gives: int, reads: Iterable[int] = (), writes: Iterable[int] = (), **kind: object) -> TapedCall:
    target = f"v{gives[0]}" if gives else "_"
    return TapedCall(target, text, frozenset(reads), frozenset(writes), frozenset(gives), **kind)  # type: ignore[arg-type]


def lines(calls: list[TapedCall], places: list[MemoryPlace], *results: int) -> list[str]:
    return [found.line for found in simplify(calls, places, results)]


def view(of: int, number: int) -> TapedCall:
    return call("view()", number, reads=[of], view_of=of)


def test_a_view_of_a_view_is_taken_of_the_first_and_one_that_turns_back_not_at_all() -> None:
    calls = [view(0, 1), view(1, 2), view(2, 3), call("f(v3)", 4, reads=[3])]
    assert lines(calls, [A, SWAPPED, ROW, A, B], 4)[1:] == [
        "v2 = as_strided(v0, (3,), (1,), v0.storage_offset() + 3)",
        "v4 = f(v0)",
    ]


def test_a_view_that_is_a_result_is_a_tensor_of_its_own() -> None:
    assert lines([view(0, 1)], [A, A], 1) == ["v1 = as_strided(v0, (2, 3), (3, 1))"]


def test_what_is_computed_twice_is_computed_once_and_everywhere_named_so() -> None:
    calls = [
        call("f(v0)", 1, reads=[0]),
        call("f(v0)", 2, reads=[0]),
        call("g(v1, v2)", 3, reads=[1, 2]),
        call("g(v2, v1)", 4, reads=[1, 2]),
        call("h([v4, v3, ], 2)", 5, reads=[3, 4]),
    ]
    places = [A, *(MemoryPlace(f"memory {number}") for number in range(1, 6))]
    assert lines(calls, places, 5) == ["v1 = f(v0)", "v3 = g(v1, v1)", "v5 = h([v3, v3, ], 2)"]


@pytest.mark.parametrize("kind", [{"pure": False}, {"writes": [0]}])
def test_what_is_drawn_or_written_to_is_computed_each_time(kind: dict[str, object]) -> None:
    calls = [call("f(v0)", number, reads=[0], **kind) for number in (1, 2)]  # type: ignore[arg-type]
    assert len(lines([*calls, call("g(v1, v2)", 3, reads=[1, 2])], [A, B, MemoryPlace("c"), MemoryPlace("d")], 3)) == 3


@pytest.mark.parametrize("name", sorted(_DIRECT))
def test_the_short_way_to_a_kernel_is_to_the_same_kernel(name: str) -> None:
    number, index = torch.linspace(0.1, 2, 6).view(2, 3), torch.tensor([[1, 0, 1], [0, 0, 1]])
    of_kind = {"Scalar": (index, 5), "Tensor": (index, index + 1), "default": (number,)}
    given = {
        "gather.default": (number, 0, index),
        "scatter_add.default": (number, 0, index, number),
        "index_select.default": (number, 1, index[0]),
        "stack.default": ([number, number], 1),
        "sum.dim_IntList": (number, [1], True),
        "clamp.default": (number, 1),
        "where.self": (number > 1, number, number + 1),
        "bmm.default": (number[None], number.t()[None]),
        "unbind.int": (number, 1),
        "prod.dim_int": (number, 1),
        "constant_pad_nd.default": (number, [0, 2], 0.5),
        **dict.fromkeys(("_softmax.default", "_log_softmax.default"), (number, 1, False)),
        **dict.fromkeys(
            ("_softmax_backward_data.default", "_log_softmax_backward_data.default"),
            (number, torch.softmax(number, 1), 1, torch.float32),
        ),
    }
    packet, overload = name.split(".")
    kernel, args = getattr(getattr(torch.ops.aten, packet), overload), given.get(name, of_kind.get(overload, ()))
    short, long, seen = quickest(kernel, plain=True), quickest(kernel, plain=False), []
    assert short is getattr(torch, packet)
    with _Seen(seen):
        torch.testing.assert_close(short(*args), long(*args), rtol=0, atol=0)
    assert seen[:2] == [kernel, kernel]


class _Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the kernels that run."""

    def __init__(self, seen: list[object]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(function)
        return function(*args, **(kwargs or {}))
