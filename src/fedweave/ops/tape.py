"""Taping the kernels of a computation as they run, to make a `Recording` of them.

A `Tape` sees every kernel below `vmap` and autograd, with the tensors that it takes and gives. Being the same calls in
the same order, a recording gives the same bits, without the time that Python, `vmap` and autograd take in between.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils.weak import WeakTensorKeyDictionary

from fedweave.ops.memory import ByObject, storage
from fedweave.ops.replay import Call, Derivation, Place, Recording, compiled, parts, quickest, sizes

F = TypeVar("F", bound=Callable[..., object])
_ATEN = torch.ops.aten
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def kernel(function: F) -> F:
    """A function that a recording holds as one call.

    It takes tensors, numbers and what is `derived`, gives a new tensor or a tuple of them, of shapes that follow from
    its arguments' shapes, and changes none of them.
    """

    @wraps(function)
    def call(*args: object) -> Any:
        tape = running()
        return function(*args) if tape is None else tape.run(function, args)

    return call  # type: ignore[return-value]


def derived(make: F) -> F:
    """`make(owner, *names)`, made once and kept with its owner: what the data of a batch become for its kernels.

    A recording asks for it anew, under these names, of the batch that it is played on.
    """

    @wraps(make)
    def get(owner: object, *names: object) -> Any:
        kept, key = owner.__dict__.setdefault("_derived", {}), (make, *names)
        if key not in kept:
            with deriving():
                kept[key] = make(owner, *names)
        if (tape := running()) is not None:
            tape.note_derived(get, owner, names, parts(kept[key]))
        return kept[key]

    return get  # type: ignore[return-value]


@contextmanager
def deriving() -> Iterator[None]:
    """Where what is `derived` is made, once for a batch, so that it may read the host's arrays and wait for a device.

    It may be asked for first inside a transform, which would wrap its tensors, or while a tape runs.
    """
    with torch._C._DisableFuncTorch(), _untaped():
        yield


def running() -> "Tape | None":
    """The tape that runs now."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Tape) else None


def _untaped() -> AbstractContextManager[Any]:
    return _pop_mode_temporarily() if running() else nullcontext()


class Unrecordable(Exception):
    """Why a computation cannot be recorded. expected: it lies in the nature of the computation."""

    def __init__(self, reason: str, expected: bool = False) -> None:
        super().__init__(reason)
        self.expected = expected


class Tape(TorchDispatchMode):
    """Tapes what runs while it is entered.

    Every tensor, and every other object that kernels take, is a value with a number; first come `roots`, of which
    things are derived, then `tensors`. flaw: why there can be no recording, None so far.
    """

    def __init__(self, roots: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flaw: Exception | None = None
        self._places: list[Place] = []  # of each value
        self._tensors: Any = WeakTensorKeyDictionary()  # their numbers
        self._objects = ByObject[int]()  # those of other objects
        self._calls: list[Call] = []
        self._derivations: list[Derivation] = []
        self._named: dict[str, Any] = {}  # what the calls name
        self._names = ByObject[str]()
        self._roots, self._inputs = [self._new(root) for root in roots], [self._new(tensor) for tensor in tensors]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first use imports torch's compiler, which takes a second

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a kernel of torch."""
        out = function(*args, **(kwargs or {}))
        self._note(self._note_torch, function, args, kwargs or {}, out)
        return out

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run what is to be one call."""
        with _untaped():
            out = function(*args)
        written = args if getattr(function, "changes_inputs", False) else ()
        self._note(self._note_call, function, args, {}, out, written, getattr(function, "pure", True))
        return out

    def note_derived(
        self, get: Callable[..., Any], owner: object, names: tuple[Any, ...], given: tuple[Any, ...]
    ) -> None:
        """Note that `get(owner, *names)`, which is `derived`, has the parts `given`."""
        self._note(self._note_derivation, get, owner, names, given)

    def recording(self, results: Sequence[Tensor]) -> Recording | None:
        """What was taped, to compute `results` again; None where there is a `flaw`."""
        made: list[Recording] = []
        self._note(lambda: made.append(self._compiled([self._number(result) for result in results])))
        return made[0] if made else None

    def _compiled(self, results: list[int]) -> Recording:
        known = (self._named, self._places, self._roots, self._derivations, self._inputs)
        return compiled(self._calls, *known, results)

    def _note(self, how: Callable[..., None], *what: object) -> None:
        if self.flaw is None:
            try:
                with _untaped():
                    how(*what)
            except Exception as flaw:
                self.flaw = flaw

    def _note_torch(self, function: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if function.namespace == "profiler":  # torch's optimisers time themselves
            return
        if function is _ATEN.lift_fresh.default and args[0] not in self._tensors:  # made of numbers, always the same
            self._add(f"{self._name(torch.clone)}({self._name(args[0].clone())})", set(), set(), out)
            return
        if _BY_VALUE.intersection(function.tags) and (function is not _ATEN.index.Tensor or _masked(args[1])):
            raise Unrecordable(f"{function} makes numbers or shapes depend on values", expected=True)
        view_of = self._number(args[0]) if function.is_view and _looks_at(args[0], out) else None
        pure = torch.Tag.nondeterministic_seeded not in function.tags
        written = _written(function._schema, args, kwargs)
        self._note_call(function, args, kwargs, out, written, pure, view_of)

    def _note_call(
        self, function: Any, args: Any, kwargs: dict[str, Any], out: Any, written: Sequence[Any], *kind: Any
    ) -> None:
        """kind: whether the call is pure and what it is a view of, as `Call` has it."""
        reads: set[int] = set()
        writes: set[int] = set()
        given = [self._text(value, reads) for value in args]
        given += [f"{name}={self._text(value, reads)}" for name, value in kwargs.items()]
        self._text(written, writes)
        self._add(f"{self._name(quickest(function, not kwargs))}({', '.join(given)})", reads, writes, out, *kind)

    def _add(self, text: str, reads: set[int], writes: set[int], out: Any, *kind: Any) -> None:
        gives: set[int] = set()
        target = self._target(out, gives)
        self._calls.append(Call(target, text, frozenset(reads), frozenset(writes), frozenset(gives), *kind))

    def _note_derivation(self, get: Any, owner: Any, names: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        if not all(self._knows(part) for part in given):
            gives = tuple(self._new(part) for part in given)
            self._derivations.append(Derivation(get, self._number(owner), names, gives, tuple(map(sizes, given))))

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
        """What a call's result is assigned to; the numbers of new values in it are added to `gives`."""
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
        """What the compiled function calls a thing that is always the same."""
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
        if not self._knows(value):
            what = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise Unrecordable(f"it uses a {what} that is neither its argument nor derived from its graph")
        number: int = self._numbers(value)[value]
        return number


def _place(value: object) -> Place:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return Place(object())
    return Place(storage(value), tuple(value.shape), value.stride(), int(value.storage_offset()))


def _looks_at(value: Tensor, out: object) -> bool:
    """Whether a kernel's result is numbers of its argument, in that one's memory."""
    alike = isinstance(out, Tensor) and out.dtype == value.dtype and not out.is_complex()
    return alike and _place(out).memory == _place(value).memory


def _masked(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that a kernel of torch changes."""
    if not schema.is_mutable:
        return []
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    names = (a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return [given[name] for name in names if name in given]
