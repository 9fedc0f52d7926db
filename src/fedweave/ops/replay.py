"""Recordings: the calls of a computation, compiled to one Python function that makes them again.

Before, the calls become fewer that give the same: `vmap` and autograd take views of views, half of all calls, each of
which costs as much as a small kernel; and an algorithm's parts each compute what they need, whether or not another part
has.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

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


_BYTES_PER_CALL = 300  # of the compiled function and what it names, measured


class Derivation(NamedTuple):
    """How values are made of what a batch holds: `get(owner, *names)`, where `owner` is a value's number; the numbers
    of its parts, and their sizes."""

    get: Callable[..., object]
    owner: int
    names: tuple[object, ...]
    gives: tuple[int, ...]
    sizes: tuple[object, ...]


class Recording:
    """A computation to be played on other roots and tensors of the same sizes.

    replay: (*roots, *what is derived from them, *tensors) -> results. bytes: that it takes. changes_inputs: whether it
    writes into the tensors that it is given. pure: whether it gives the same for the same.
    """

    def __init__(
        self,
        replay: Callable[..., tuple[Tensor, ...]],
        derivations: list[Derivation],
        bytes: int,
        changes_inputs: bool,
        pure: bool,
    ) -> None:
        self._replay, self._derivations, self.bytes = replay, derivations, bytes
        self.changes_inputs, self.pure = changes_inputs, pure

    def derive(self, roots: Sequence[object]) -> tuple[list[object], Any]:
        """The roots with what is derived from them, and None; or nothing, and its sizes if they are not as recorded."""
        values, found = dict(enumerate(roots)), []
        for get, owner, names, gives, recorded in self._derivations:
            these = parts(get(values[owner], *names))
            values.update(zip(gives, these, strict=True))
            found.append(tuple(map(sizes, these)))
            if found[-1] != recorded:
                return [], tuple(found)
        return list(values.values()), None

    def play(self, values: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, for `values` from `derive`."""
        with torch.no_grad():
            return self._replay(*values, *tensors)

    def __call__(self, roots: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, as a part of another recording."""
        values, other = self.derive(roots)
        if other is not None:
            raise RuntimeError("a part has other sizes than when it was recorded")
        return self.play(values, tensors)


def compiled(
    calls: list[Call],
    named: dict[str, Any],
    places: list[Place],
    roots: list[int],
    derivations: list[Derivation],
    inputs: list[int],
    results: list[int],
) -> Recording:
    """A recording of `calls`, as far as the results depend on them or they write into the inputs.

    named: what the calls' lines name. places: where each value lies.
    """
    needed = _needed(simplified(calls, places, results), places, inputs, results)
    named["as_strided"] = torch.as_strided
    given = [*roots, *(number for derivation in derivations for number in derivation.gives), *inputs]
    exec("\n".join(_source(needed, given, results)), named)
    held = sum(value.nbytes for value in named.values() if isinstance(value, Tensor))
    held += sum(value.bytes for value in named.values() if isinstance(value, Recording))
    outside = {places[number].memory for number in inputs}
    changes = any(places[number].memory in outside for call in needed for number in call.writes)
    pure = all(call.pure for call in needed)
    return Recording(named["replay"], derivations, held + _BYTES_PER_CALL * len(needed), changes, pure)


def sizes(value: object) -> Any:
    """What must be alike, of a tensor, a root or something derived, wherever a recording is played."""
    if isinstance(value, Tensor):
        return value.shape, value.stride() if value.layout == torch.strided else value.layout, value.dtype, value.device
    return type(value), getattr(value, "sizes", None)


def parts(value: object) -> tuple[object, ...]:
    """What a call gives, as a tuple."""
    return tuple(value) if isinstance(value, tuple) else (value,)


def _needed(calls: list[Call], places: list[Place], inputs: list[int], results: list[int]) -> list[Call]:
    values, kept = set(results), []
    memory = {places[number].memory for number in [*results, *inputs]}
    for call in reversed(calls):
        if not values.isdisjoint(call.gives) or not memory.isdisjoint(places[number].memory for number in call.writes):
            kept.append(call)
            values |= call.reads
            memory.update(places[number].memory for number in call.reads)
    return kept[::-1]


def _source(calls: list[Call], given: list[int], results: list[int]) -> Iterator[str]:
    """The lines of the function; values are let go when nothing needs them any more."""
    last = {number: at for at, call in enumerate(calls) for number in call.reads | call.gives}
    yield f"def replay({', '.join(f'v{number}' for number in given)}):"
    for at, call in enumerate(calls):
        gone = sorted(number for number in call.reads | call.gives if last[number] == at and number not in results)
        yield f"    {call.line}" + (f"; del {', '.join(f'v{number}' for number in gone)}" if gone else "")
    yield f"    return ({''.join(f'v{number}, ' for number in results)})"
