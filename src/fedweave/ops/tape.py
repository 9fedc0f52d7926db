"""Taping the kernels of a computation as they run, to make a `Recording` of them.

A `Tape` sees every kernel below `vmap` and autograd, with its input and output tensors. A recording makes the same
calls in the same order, so it gives the same bits, without the time that Python, `vmap` and autograd take in between.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils.weak import WeakTensorKeyDictionary

from fedweave.ops.identity import ByObject, storage
from fedweave.ops.recorded_calls import (
    Derivation,
    MemoryPlace,
    Recording,
    TapedCall,
    compile_calls,
    parts,
    quickest,
    sizes,
)

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
        tape = running()
        if tape is not None:
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

        def compile_taped() -> None:
            numbers = [self._number(result) for result in results]  # may add a call for a constant
            known = (self._named, self._places, self._roots, self._derivations, self._inputs)
            recordings.append(compile_calls(self._calls, *known, numbers))

        self._note(compile_taped)
        return recordings[0] if recordings else None

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
        if function is _ATEN.lift_fresh.default and args[0] not in self._tensors:  # built from numbers in the code
            self._add(f"{self._name(torch.clone)}({self._name(args[0].clone())})", set(), set(), out)
            return
        if _BY_VALUE.intersection(function.tags) and (function is not _ATEN.index.Tensor or _has_mask(args[1])):
            raise Unrecordable(f"{function} makes numbers or shapes depend on values", expected=True)
        view_of = self._number(args[0]) if function.is_view and _looks_at(args[0], out) else None
        pure = torch.Tag.nondeterministic_seeded not in function.tags
        targets = _mutable_arguments(function._schema, args, kwargs)
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
        if all(self._knows(part) for part in values):
            return
        gives = tuple(self._new(part) for part in values)
        self._derivations.append(Derivation(get, self._number(owner), names, gives, tuple(map(sizes, values))))

    def _text(self, value: object, reads: set[int]) -> str:
        """A value as an argument; the numbers in it are added to `reads`."""
        if isinstance(value, list | tuple):
            items = "".join([f"{self._text(item, reads)}, " for item in value])
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
            targets = [f"{self._target(item, gives)}, " for item in out]
            return f"({''.join(targets)})"
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
    if not isinstance(out, Tensor) or out.dtype != value.dtype or out.is_complex():
        return False
    return _place(out).memory == _place(value).memory


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _mutable_arguments(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that a kernel of torch changes."""
    if not schema.is_mutable:
        return []
    names = [argument.name for argument in schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    mutated = []
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in values:
            mutated.append(values[argument.name])
    return mutated
