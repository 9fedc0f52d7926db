"""The calls of a computation, compiled to one Python function that makes them again.

First the calls are reduced to fewer with the same results. `vmap` and autograd take views of views, half of all calls,
and each costs as much as a small kernel. An algorithm's parts may compute the same value several times.
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


class MemoryPlace(NamedTuple):
    """The memory of a value when it is made: `memory` is equal for values that share it. The other fields are empty for
    values that are not plain tensors."""

    memory: object
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0


class TapedCall(NamedTuple):
    """`target = text`, where a value is called v and its number, and the numbers of the values in it.

    reads:   values that the call reads. writes: values that it writes to. gives: values that it makes.
    pure:    whether the same text gives the same again, unless a call writes to a value that it reads.
    view_of: the number of the value whose memory holds the only result, if the call only takes a view.
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
    """The quickest callable for a kernel of torch; plain: it is called without keywords. Others are returned as is."""
    if not isinstance(function, torch._ops.OpOverload):
        return function
    direct = plain and function.namespace == "aten" and function.__name__ in _DIRECT
    return getattr(torch, function.overloadpacket.__name__) if direct else function._op


def simplify(calls: Iterable[TapedCall], places: list[MemoryPlace], results: Iterable[int]) -> list[TapedCall]:
    """Calls that give the same `results` and make the same writes. Every view is taken directly of the value in whose
    memory it lies, and equal computations run once. Results share memory with nothing new."""
    calls = list(calls)
    written = _mutable_values(calls)
    separate = written | set(results)  # values that must not be merged with others
    memory = {places[number].memory for number in separate}
    roots: dict[int, int] = {}  # view -> the value in whose memory it lies
    same: dict[int, int] = {}  # value -> the equal value that replaces it
    first: dict[object, tuple[int, ...]] = {}  # kind of call -> the values that its first call gives
    remaining = []
    for call in calls:
        gives = tuple(sorted(call.gives))
        key: object = None
        if call.view_of is not None and gives:
            root = roots[gives[0]] = roots.get(call.view_of, same.get(call.view_of, call.view_of))
            call = _view(call, root, places[gives[0]], places[root])
            if root not in written:  # an operation such as `squeeze_` may give it another shape
                first.setdefault((root, places[root]), (root,))
            if gives[0] not in separate:
                key = root, places[gives[0]]
        else:
            call = _rename(call, same)
            if call.pure and gives and memory.isdisjoint(places[number].memory for number in call.reads | call.gives):
                key = call.text
        before = gives if key is None else first.setdefault(key, gives)
        if before == gives:
            remaining.append(call)
        else:
            same.update(zip(gives, before, strict=True))
    return remaining


def _mutable_values(calls: Iterable[TapedCall]) -> set[int]:
    numbers = set[int]()
    for call in calls:
        numbers |= call.writes
    return numbers


def _view(call: TapedCall, root: int, place: MemoryPlace, base: MemoryPlace) -> TapedCall:
    offset = place.offset - base.offset
    start = f", v{root}.storage_offset() + {offset}" if offset else ""
    text = f"as_strided(v{root}, {place.size}, {place.stride}{start})"
    return call._replace(text=text, reads=frozenset({root}))


def _rename(call: TapedCall, same: dict[int, int]) -> TapedCall:
    if same.keys().isdisjoint(call.reads | call.writes):
        return call
    text = _VALUE.sub(lambda match: f"v{same.get(int(match[1]), match[1])}", call.text)
    reads = frozenset(same.get(number, number) for number in call.reads)
    writes = frozenset(same.get(number, number) for number in call.writes)
    return call._replace(text=text, reads=reads, writes=writes)


_BYTES_PER_CALL = 300  # measured, with the compiled function and the objects in it


class Derivation(NamedTuple):
    """How values are derived from a batch's data: `get(owner, *names)`, where `owner` is a value's number; `gives` has
    the numbers of the result's parts, and `sizes` their sizes."""

    get: Callable[..., object]
    owner: int
    names: tuple[object, ...]
    gives: tuple[int, ...]
    sizes: tuple[object, ...]


class Recording:
    """A computation that can be played on other roots and tensors of the same sizes.

    replay: (*roots, *values derived from them, *tensors) -> results. bytes: its memory. changes_inputs: whether it
    writes into its input tensors. pure: whether equal inputs give equal results. parts: recordings that it plays.
    """

    def __init__(
        self,
        replay: Callable[..., tuple[Tensor, ...]],
        derivations: list[Derivation],
        bytes: int,
        changes_inputs: bool,
        pure: bool,
        parts: "frozenset[Recording]" = frozenset(),
    ) -> None:
        self.parts = parts
        self._replay, self._derivations, self.bytes = replay, derivations, bytes
        self.changes_inputs, self.pure = changes_inputs, pure

    def derive(self, roots: Sequence[object]) -> tuple[list[object], Any]:
        """The roots with the values derived from them, and None; or [] and the new sizes if they differ from the
        recorded sizes."""
        values, new_sizes = dict(enumerate(roots)), []
        for get, owner, names, gives, recorded_sizes in self._derivations:
            values_here = parts(get(values[owner], *names))
            values.update(zip(gives, values_here, strict=True))
            new_sizes.append(tuple(map(sizes, values_here)))
            if new_sizes[-1] != recorded_sizes:
                return [], tuple(new_sizes)
        return list(values.values()), None

    def play(self, values: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, for `values` from `derive`."""
        with torch.no_grad():
            return self._replay(*values, *tensors)

    def __call__(self, roots: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, when this is a part of another recording."""
        values, other = self.derive(roots)
        if other is not None:
            raise RuntimeError("a part has other sizes than when it was recorded")
        return self.play(values, tensors)


def compile_calls(
    calls: list[TapedCall],
    named: dict[str, Any],
    places: list[MemoryPlace],
    roots: list[int],
    derivations: list[Derivation],
    inputs: list[int],
    results: list[int],
) -> Recording:
    """A recording of the needed `calls` (`_select_needed`), reduced to fewer.

    named: {name in the calls' lines: object}. places: the memory of each value.
    """
    needed = _select_needed(simplify(calls, places, results), places, inputs, results)
    named["as_strided"] = torch.as_strided
    arguments = list(roots)
    for derivation in derivations:
        arguments += derivation.gives
    exec("\n".join(_source(needed, [*arguments, *inputs], results)), named)
    inner = frozenset(value for value in named.values() if isinstance(value, Recording))
    memory = sum(value.nbytes for value in named.values() if isinstance(value, Tensor))
    memory += sum(part.bytes for part in inner) + _BYTES_PER_CALL * len(needed)
    written = _mutable_values(needed)
    input_memory = {places[number].memory for number in inputs}
    changes_inputs = any(places[number].memory in input_memory for number in written)
    pure = all(call.pure for call in needed)
    return Recording(named["replay"], derivations, memory, changes_inputs, pure, inner)


def sizes(value: object) -> Any:
    """The properties of a tensor, a root or a derived value that must be equal wherever a recording is played."""
    if isinstance(value, Tensor):
        return value.shape, value.stride() if value.layout == torch.strided else value.layout, value.dtype, value.device
    return type(value), getattr(value, "sizes", None)


def parts(value: object) -> tuple[object, ...]:
    """The results of a call, as a tuple."""
    return tuple(value) if isinstance(value, tuple) else (value,)


def _select_needed(
    calls: list[TapedCall], places: list[MemoryPlace], inputs: list[int], results: list[int]
) -> list[TapedCall]:
    """The calls that the results depend on or that write into the inputs."""
    values, remaining = set(results), []
    memory = {places[number].memory for number in [*results, *inputs]}
    for call in reversed(calls):
        if not values.isdisjoint(call.gives) or not memory.isdisjoint(places[number].memory for number in call.writes):
            remaining.append(call)
            values |= call.reads
            memory.update(places[number].memory for number in call.reads)
    return remaining[::-1]


def _source(calls: list[TapedCall], arguments: list[int], results: list[int]) -> Iterator[str]:
    """The lines of the function; a value is deleted after its last use."""
    last_use = dict[int, int]()
    for at, call in enumerate(calls):
        last_use.update(dict.fromkeys(call.reads | call.gives, at))
    yield f"def replay({', '.join(f'v{number}' for number in arguments)}):"
    for at, call in enumerate(calls):
        unused = sorted(number for number in call.reads | call.gives if last_use[number] == at)
        names = [f"v{number}" for number in unused if number not in results]
        yield f"    {call.line}" + (f"; del {', '.join(names)}" if names else "")
    yield f"    return ({''.join(f'v{number}, ' for number in results)})"
