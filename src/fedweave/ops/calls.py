"""The calls of a recording, and fewer calls that give the same.

`vmap` and autograd take views of views, half of all calls, each of which costs as much as a small kernel; and an
algorithm's parts each compute what they need, whether or not another part has.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

_VALUE = re.compile(r"\bv(\d+)\b")
# The kernels that small models spend their time in. `torch.add` reaches the same kernel as `torch.ops.aten.add.Tensor`
# in two thirds of the time (small tensors), as its arguments are not matched with a schema first.
_DIRECT = {
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "abs.default", "exp.default"),
    *("log.default", "sqrt.default", "tanh.default", "relu.default", "sgn.default", "clamp.default", "where.self"),
    *("eq.Scalar", "ne.Scalar", "ge.Scalar", "gt.Scalar", "le.Scalar", "lt.Scalar"),
    *("bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar", "bitwise_and.Tensor", "bitwise_xor.Tensor"),
    *("sum.dim_IntList", "stack.default", "clone.default", "gather.default", "scatter_add.default"),
    *("index_select.default", "bmm.default", "unbind.int", "prod.dim_int", "constant_pad_nd.default"),
    *("_softmax.default", "_log_softmax.default", "_softmax_backward_data.default"),
    "_log_softmax_backward_data.default",
}


class Place(NamedTuple):
    """Where a value lies when it is made: `memory` is equal for values that share it. Of what is no plain tensor only
    that is known."""

    memory: object
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0


class Call(NamedTuple):
    """`target = text`, where a value is called v and its number, and the numbers that it reads, writes to and gives.

    pure:    whether the same text gives the same again, as long as nobody writes to what it reads.
    view_of: the number of the value in whose memory its only result lies, if that is all that it does.
    """

    target: str
    text: str
    reads: frozenset[int]
    writes: frozenset[int]
    gives: frozenset[int]
    pure: bool = True
    view_of: int | None = None

    @property
    def line(self) -> str:
        """The call as a statement."""
        return f"{self.target} = {self.text}"


def quickest(function: object, plain: bool) -> Any:
    """The shortest way to a kernel of torch; plain: it is called without keywords. Other functions are as they are."""
    if not isinstance(function, torch._ops.OpOverload):
        return function
    direct = plain and function.namespace == "aten" and function.__name__ in _DIRECT
    return getattr(torch, function.overloadpacket.__name__) if direct else function._op


def simplified(calls: Iterable[Call], places: list[Place], results: Iterable[int]) -> list[Call]:
    """Calls that give the same `results` and write the same: every view is taken at once of the value in whose memory
    it lies, and what is computed twice is computed once. Results share memory with nothing that they did not before."""
    calls = list(calls)
    written = frozenset(number for call in calls for number in call.writes)
    alone = written | frozenset(results)  # what must not become one with something else
    memory = {places[number].memory for number in alone}
    roots: dict[int, int] = {}  # of every view
    same: dict[int, int] = {}  # what stands for a value
    first: dict[object, tuple[int, ...]] = {}  # what the first call of a kind gives
    kept = []
    for call in calls:
        gives = tuple(sorted(call.gives))
        key: object = None
        if call.view_of is not None and gives:
            root = roots[gives[0]] = roots.get(call.view_of, same.get(call.view_of, call.view_of))
            call = _view(call, root, places[gives[0]], places[root])
            if root not in written:  # an operation such as `squeeze_` may give it another shape
                first.setdefault((root, places[root]), (root,))
            if gives[0] not in alone:
                key = root, places[gives[0]]
        else:
            call = _renamed(call, same)
            if call.pure and gives and memory.isdisjoint(places[number].memory for number in call.reads | call.gives):
                key = call.text
        before = gives if key is None else first.setdefault(key, gives)
        if before == gives:
            kept.append(call)
        else:
            same.update(zip(gives, before, strict=True))
    return kept


def _view(call: Call, root: int, place: Place, base: Place) -> Call:
    offset = place.offset - base.offset
    start = f", v{root}.storage_offset() + {offset}" if offset else ""
    text = f"as_strided(v{root}, {place.size}, {place.stride}{start})"
    return call._replace(text=text, reads=frozenset({root}))


def _renamed(call: Call, same: dict[int, int]) -> Call:
    if same.keys().isdisjoint(call.reads | call.writes):
        return call
    text = _VALUE.sub(lambda found: f"v{same.get(int(found[1]), found[1])}", call.text)
    reads, writes = (frozenset(same.get(number, number) for number in numbers) for numbers in (call.reads, call.writes))
    return call._replace(text=text, reads=reads, writes=writes)
