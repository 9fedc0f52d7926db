"""Identity of objects and of memory; only this module of the package compares them.

Kernels' operands are identified as objects. A reply may share memory with a client's private state under any name. Only
PyTorch counts the writes into a tensor that a step received. Everything else is identified by name and version.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils.weak import WeakTensorKeyDictionary

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")
Value = TypeVar("Value")

writes: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was written into, through views of it too."""


class ByObject(Generic[Value]):
    """{object: value} for objects that may not be hashable; keeps the objects alive, so that their ids stay theirs."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, Value]] = {}

    def __contains__(self, thing: object) -> bool:
        return id(thing) in self._kept

    def __getitem__(self, thing: object) -> Value:
        return self._kept[id(thing)][1]

    def __setitem__(self, thing: object, value: Value) -> None:
        self._kept[id(thing)] = thing, value

    def __len__(self) -> int:
        return len(self._kept)


def once(make: Callable[[Thing], Value], things: Mapping[Key, Thing]) -> dict[Key, Value]:
    """{key: `make(thing)`}, where an object under several keys is made once."""
    cache = ByObject[Value]()
    for thing in things.values():
        if thing not in cache:
            cache[thing] = make(thing)
    return {key: cache[thing] for key, thing in things.items()}


class Stamp(NamedTuple):
    """A tensor and the number of writes into it at some time."""

    tensor: Tensor
    written: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Stamp":
        """The tensor and its number of writes now."""
        return cls(tensor, writes(tensor))

    def fits(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor, without writes since."""
        return self.tensor is tensor and self.written == writes(tensor)


def storage(tensor: Tensor) -> int:
    """A number of a tensor's storage; only the tensor and its views have it."""
    number: int = tensor.untyped_storage()._cdata
    return number


def address(tensor: Tensor) -> int:
    """The address of a tensor's storage, the same for all that share memory, also with NumPy."""
    return tensor.untyped_storage().data_ptr()


# ----------------------------------------------------------------------------------------------------
# Recordings: the calls of a computation, compiled to one Python function that makes them again. First the calls are
# reduced to fewer with the same results. `vmap` and autograd take views of views, half of all calls, and each costs as
# much as a small kernel. An algorithm's parts may compute the same value several times.


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
    values that are no plain tensors."""

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


def simplified(calls: Iterable[TapedCall], places: list[MemoryPlace], results: Iterable[int]) -> list[TapedCall]:
    """Calls that give the same `results` and make the same writes. Every view is taken directly of the value in whose
    memory it lies, and equal computations run once. Results share memory with nothing new."""
    calls = list(calls)
    written = frozenset(number for call in calls for number in call.writes)
    separate = written | frozenset(results)  # values that must not be merged with others
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
            call = _renamed(call, same)
            if call.pure and gives and memory.isdisjoint(places[number].memory for number in call.reads | call.gives):
                key = call.text
        before = gives if key is None else first.setdefault(key, gives)
        if before == gives:
            remaining.append(call)
        else:
            same.update(zip(gives, before, strict=True))
    return remaining


def _view(call: TapedCall, root: int, place: MemoryPlace, base: MemoryPlace) -> TapedCall:
    offset = place.offset - base.offset
    start = f", v{root}.storage_offset() + {offset}" if offset else ""
    text = f"as_strided(v{root}, {place.size}, {place.stride}{start})"
    return call._replace(text=text, reads=frozenset({root}))


def _renamed(call: TapedCall, same: dict[int, int]) -> TapedCall:
    if same.keys().isdisjoint(call.reads | call.writes):
        return call
    text = _VALUE.sub(lambda match: f"v{same.get(int(match[1]), match[1])}", call.text)
    reads, writes = (frozenset(same.get(number, number) for number in numbers) for numbers in (call.reads, call.writes))
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


def compiled(
    calls: list[TapedCall],
    named: dict[str, Any],
    places: list[MemoryPlace],
    roots: list[int],
    derivations: list[Derivation],
    inputs: list[int],
    results: list[int],
) -> Recording:
    """A recording of those `calls` that the results depend on or that write into the inputs.

    named: {name in the calls' lines: object}. places: the memory of each value.
    """
    needed = _needed(simplified(calls, places, results), places, inputs, results)
    named["as_strided"] = torch.as_strided
    arguments = [*roots, *(number for derivation in derivations for number in derivation.gives), *inputs]
    exec("\n".join(_source(needed, arguments, results)), named)
    held = sum(value.nbytes for value in named.values() if isinstance(value, Tensor))
    inside = frozenset(value for value in named.values() if isinstance(value, Recording))
    held += sum(part.bytes for part in inside)
    outside = {places[number].memory for number in inputs}
    changes = any(places[number].memory in outside for call in needed for number in call.writes)
    pure = all(call.pure for call in needed)
    return Recording(named["replay"], derivations, held + _BYTES_PER_CALL * len(needed), changes, pure, inside)


def sizes(value: object) -> Any:
    """The properties of a tensor, a root or a derived value that must be equal wherever a recording is played."""
    if isinstance(value, Tensor):
        return value.shape, value.stride() if value.layout == torch.strided else value.layout, value.dtype, value.device
    return type(value), getattr(value, "sizes", None)


def parts(value: object) -> tuple[object, ...]:
    """The results of a call, as a tuple."""
    return tuple(value) if isinstance(value, tuple) else (value,)


def _needed(
    calls: list[TapedCall], places: list[MemoryPlace], inputs: list[int], results: list[int]
) -> list[TapedCall]:
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
    last = {number: at for at, call in enumerate(calls) for number in call.reads | call.gives}
    yield f"def replay({', '.join(f'v{number}' for number in arguments)}):"
    for at, call in enumerate(calls):
        gone = sorted(number for number in call.reads | call.gives if last[number] == at and number not in results)
        yield f"    {call.line}" + (f"; del {', '.join(f'v{number}' for number in gone)}" if gone else "")
    yield f"    return ({''.join(f'v{number}, ' for number in results)})"


# ----------------------------------------------------------------------------------------------------
# Taping the kernels of a computation as they run, to make a `Recording` of them. A `Tape` sees every kernel below
# `vmap` and autograd, with its input and output tensors. A recording makes the same calls in the same order, so it
# gives the same bits, without the time that Python, `vmap` and autograd take in between.


F = TypeVar("F", bound=Callable[..., object])
_ATEN = torch.ops.aten
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def kernel(function: F) -> F:
    """A function that a recording holds as one call.

    It takes tensors, numbers and `derived` values, and gives a new tensor or a tuple of new tensors. Their shapes
    depend only on the arguments' shapes, and the function changes no argument.
    """

    @wraps(function)
    def call(*args: object) -> Any:
        tape = running()
        return function(*args) if tape is None else tape.run(function, args)

    return call  # type: ignore[return-value]


def derived(make: F) -> F:
    """`make(owner, *names)`, made once and stored in its owner: a form of a batch's data that kernels need.

    A recording asks for it again, by these names, for the batch on which it is played.
    """

    @wraps(make)
    def get(owner: object, *names: object) -> Any:
        cache, key = owner.__dict__.setdefault("_derived", {}), (make, *names)
        if key not in cache:
            with deriving():
                cache[key] = make(owner, *names)
        if (tape := running()) is not None:
            tape.note_derived(get, owner, names, parts(cache[key]))
        return cache[key]

    return get  # type: ignore[return-value]


@contextmanager
def deriving() -> Iterator[None]:
    """Run the code that makes a `derived` value, once for a batch; it may read the host's arrays and wait for a device.

    The first request may come inside a transform, which would wrap its tensors, or while a tape runs.
    """
    with torch._C._DisableFuncTorch(), without_tape():
        yield


def running() -> "Tape | None":
    """The tape that runs now."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Tape) else None


def without_tape() -> AbstractContextManager[Any]:
    """Inside, no tape runs: for checks, which a recording does not make again."""
    return _pop_mode_temporarily() if running() else nullcontext()


class Unrecordable(Exception):
    """The reason why a computation cannot be recorded. expected: the nature of the computation excludes it."""

    def __init__(self, reason: str, expected: bool = False) -> None:
        super().__init__(reason)
        self.expected = expected


_CONSTANTS: Any = WeakTensorKeyDictionary()


def constant(tensor: Tensor) -> Tensor:
    """Mark a tensor that is cached and that nothing writes into, so that recordings may hold it; returns it."""
    _CONSTANTS[tensor] = True
    return tensor


class Tape(TorchDispatchMode):
    """Tapes the kernels that run while it is entered.

    Every tensor, and every other object that kernels take, is a value with a number. First come `roots`, from which
    values are derived, then `tensors`. flaw: the reason why there can be no recording, or None.
    """

    def __init__(self, roots: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flaw: Exception | None = None
        self._places: list[MemoryPlace] = []  # of each value
        self._tensors: Any = WeakTensorKeyDictionary()  # tensor -> number
        self._objects = ByObject[int]()  # other object -> number
        self._calls: list[TapedCall] = []
        self._derivations: list[Derivation] = []
        self._named: dict[str, Any] = {}  # name in the calls' lines -> object
        self._names = ByObject[str]()
        self._roots, self._inputs = [self._new(root) for root in roots], [self._new(tensor) for tensor in tensors]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first use imports torch's compiler, which takes a second

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a kernel of torch."""
        out = function(*args, **(kwargs or {}))
        self._note(self._note_torch, function, args, kwargs or {}, out)
        return out

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a function that counts as one call."""
        with without_tape():
            out = function(*args)
        targets = args if getattr(function, "changes_inputs", False) else ()
        self._note(self._note_call, function, args, {}, out, targets, getattr(function, "pure", True))
        return out

    def note_derived(
        self, get: Callable[..., Any], owner: object, names: tuple[Any, ...], values: tuple[Any, ...]
    ) -> None:
        """Note that `get(owner, *names)`, a `derived` value, has the parts `values`."""
        self._note(self._note_derivation, get, owner, names, values)

    def recording(self, results: Sequence[Tensor]) -> Recording | None:
        """The recording that computes `results` again; None if there is a `flaw`."""
        recordings: list[Recording] = []
        self._note(lambda: recordings.append(self._compiled([self._number(result) for result in results])))
        return recordings[0] if recordings else None

    def _compiled(self, results: list[int]) -> Recording:
        known = (self._named, self._places, self._roots, self._derivations, self._inputs)
        return compiled(self._calls, *known, results)

    def _note(self, how: Callable[..., None], *what: object) -> None:
        if self.flaw is None:
            try:
                with without_tape():
                    how(*what)
            except Exception as flaw:
                self.flaw = flaw

    def _note_torch(self, function: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if function.namespace == "profiler":  # torch's optimizers time themselves
            return
        if function is _ATEN.lift_fresh.default and args[0] not in self._tensors:  # made of numbers, always the same
            self._add(f"{self._name(torch.clone)}({self._name(args[0].clone())})", set(), set(), out)
            return
        if _BY_VALUE.intersection(function.tags) and (function is not _ATEN.index.Tensor or _masked(args[1])):
            raise Unrecordable(f"{function} makes numbers or shapes depend on values", expected=True)
        view_of = self._number(args[0]) if function.is_view and _looks_at(args[0], out) else None
        pure = torch.Tag.nondeterministic_seeded not in function.tags
        targets = _written(function._schema, args, kwargs)
        self._note_call(function, args, kwargs, out, targets, pure, view_of)

    def _note_call(
        self, function: Any, args: Any, kwargs: dict[str, Any], out: Any, targets: Sequence[Any], *kind: Any
    ) -> None:
        """kind: whether the call is pure, and the number of the value that it is a view of (`TapedCall`)."""
        reads: set[int] = set()
        writes: set[int] = set()
        arguments = [self._text(value, reads) for value in args]
        arguments += [f"{name}={self._text(value, reads)}" for name, value in kwargs.items()]
        self._text(targets, writes)
        self._add(f"{self._name(quickest(function, not kwargs))}({', '.join(arguments)})", reads, writes, out, *kind)

    def _add(self, text: str, reads: set[int], writes: set[int], out: Any, *kind: Any) -> None:
        gives: set[int] = set()
        target = self._target(out, gives)
        self._calls.append(TapedCall(target, text, frozenset(reads), frozenset(writes), frozenset(gives), *kind))

    def _note_derivation(self, get: Any, owner: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        if not all(self._knows(part) for part in values):
            gives = tuple(self._new(part) for part in values)
            self._derivations.append(Derivation(get, self._number(owner), names, gives, tuple(map(sizes, values))))

    def _text(self, value: object, reads: set[int]) -> str:
        """A value as an argument; the numbers in it are added to `reads`."""
        if isinstance(value, list | tuple):
            items = "".join(f"{self._text(item, reads)}, " for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if value is None or isinstance(value, bool | int):
            return repr(value)
        if isinstance(value, str | float | torch.dtype | torch.device | torch.layout | torch.memory_format):
            return self._name(value)
        number = self._number(value)
        reads.add(number)
        return f"v{number}"

    def _target(self, out: object, gives: set[int]) -> str:
        """The target of a call's assignment; the numbers of new values in it are added to `gives`."""
        if isinstance(out, bool | int | float | str):
            raise Unrecordable("a kernel gives a number", expected=True)
        if isinstance(out, list | tuple) and out:
            return f"({''.join(f'{self._target(item, gives)}, ' for item in out)})"
        if isinstance(out, list | tuple | None) or self._knows(out):
            return "_"
        number = self._new(out)
        gives.add(number)
        return f"v{number}"

    def _name(self, thing: object) -> str:
        """The name of a constant object in the compiled function."""
        if thing not in self._names:
            self._names[thing] = name = f"c{len(self._names)}"
            self._named[name] = thing
        return self._names[thing]

    def _new(self, value: object) -> int:
        number = len(self._places)
        self._numbers(value)[value] = number
        self._places.append(_place(value))
        return number

    def _knows(self, value: object) -> bool:
        return value in self._numbers(value)

    def _numbers(self, value: object) -> Any:
        return self._tensors if isinstance(value, Tensor) else self._objects

    def _number(self, value: object) -> int:
        if isinstance(value, Tensor) and value in _CONSTANTS and not self._knows(value):
            self._add(self._name(value), set(), set(), value)
        if not self._knows(value):
            what = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise Unrecordable(f"it uses a {what} that is neither its argument nor derived from its graph")
        number: int = self._numbers(value)[value]
        return number


def _place(value: object) -> MemoryPlace:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return MemoryPlace(object())
    return MemoryPlace(storage(value), tuple(value.shape), value.stride(), int(value.storage_offset()))


def _looks_at(value: Tensor, out: object) -> bool:
    """Whether a kernel's result is a view of its argument with the same dtype."""
    alike = isinstance(out, Tensor) and out.dtype == value.dtype and not out.is_complex()
    return alike and _place(out).memory == _place(value).memory


def _masked(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that a kernel of torch changes."""
    if not schema.is_mutable:
        return []
    arguments = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    names = (a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return [arguments[name] for name in names if name in arguments]
