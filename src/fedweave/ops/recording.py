"""Recording repeated computations: when to record, and which recording to play.

A vectorized step runs the same few dozen kernels every time, and for small clients most of its time goes into
dispatching them through `vmap` and autograd. So a computation is recorded at its second call (`ops.tape`), and played
from the third. A recording is identified by its functions and sizes, not by clients.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.ops.captures import Buffers, Capture, KernelRecorder, StableOperands, is_capturable
from fedweave.ops.recorded_calls import Recording, sizes
from fedweave.ops.tape import Tape, running

When = Literal["auto", "always", "never"]
Identity = tuple[Callable[..., object] | None, ...]
Roots = Sequence[object]
# The call that is recorded. Measured on Cora (FedAvg, 3 to 100 clients): recording takes twice as long as the call,
# playing half as long, so that three more calls make up for it. A computation with one call costs nothing.
_CALL = 2
_MAX_COMPUTATIONS, _MAX_BYTES = 256, 64 << 20
_MAX_CAPTURES = 64  # batches of one computation
_LOG = logging.getLogger(__name__)
_ACTIVE: "ContextVar[Recordings | None]" = ContextVar("recordings", default=None)


class ResultForm:
    """The structure of a result: its tree, and its values that are not tensors."""

    def __init__(self) -> None:
        self._spec: Any = None  # None also for a plain list
        self._fixed: list[Any] = []

    def flat(self, result: object) -> tuple[Tensor, ...]:
        """The tensors of a result; remembers the result's structure."""
        values, spec = pytree.tree_flatten(result)
        self._spec = None if spec == pytree.tree_structure([None] * len(values)) else spec
        self._fixed = [None if isinstance(value, Tensor) else (value,) for value in values]
        return tuple(value for value in values if isinstance(value, Tensor))

    def whole(self, tensors: Iterable[Tensor]) -> Any:
        """The result that the tensors belong to."""
        fresh = iter(tensors)
        values = [next(fresh) if v is None else v[0] for v in self._fixed]
        return values if self._spec is None else pytree.tree_unflatten(values, self._spec)


class _Computation:
    """One computation on inputs of the same sizes."""

    def __init__(self, functions: Identity) -> None:
        self.functions = functions
        self.calls = 0
        self.abandoned = False
        self.recording: Recording | None = None
        self.captures: OrderedDict[Hashable, Capture] | None = OrderedDict()  # by batch; None if capturing failed
        self.buffers: dict[frozenset[int], Buffers] = {}  # buffers of the captures, by places of stable operands
        self.form = ResultForm()


class Recordings:
    """All recordings of an engine.

    when: "auto" records at the second call, "always" at the first, "never" not at all. by: captures recordings if that
    is quicker than launching their kernels one by one.

    recorded, played, captured: numbers of recordings made, of plays and of captures.
    """

    def __init__(self, when: When = "auto", by: KernelRecorder | None = None) -> None:
        self.recorded = self.played = self.captured = 0
        self._by = by
        self._first = {"auto": _CALL, "always": 1, "never": 0}[when]
        self._computations: OrderedDict[Any, _Computation] = OrderedDict()
        self._logged: set[str] = set()

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Inside, `record_or_play` uses these recordings."""
        token = _ACTIVE.set(self if self._first else None)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    @property
    def captures(self) -> bool:
        """Whether recordings are captured."""
        return self._by is not None

    @property
    def bytes(self) -> int:
        """Bytes that all recordings take."""
        return sum(c.recording.bytes for c in self._computations.values() if c.recording is not None)

    def run(
        self,
        function: Callable[..., Any],
        identity: Identity,
        key: Any,
        roots: Roots,
        operands: Any,
        stable: StableOperands | None = None,
        whole: bool = False,
    ) -> Any:
        computation, values = self._find(identity, key, roots)
        tape, recording = running(), computation.recording
        if recording is None:
            computation.calls += 1
            first = 1 if whole else self._first
            if tape is not None or computation.abandoned or computation.calls < first:
                return function(*operands)
            return self._record(computation, function, roots, operands)
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        try:
            if tape is None:
                outputs = self._play(computation, recording, values, operands, tensors, stable)
            else:
                outputs = tape.run(recording, (roots, tensors))
        except Exception as error:
            if recording.changes_inputs:  # it may have changed some of them
                raise
            self._abandon(computation, error)
            return function(*operands)
        self.played += 1
        return computation.form.whole(outputs)

    def _play(
        self,
        computation: _Computation,
        recording: Recording,
        values: Any,
        operands: Any,
        tensors: Sequence[Tensor],
        stable: StableOperands | None,
    ) -> tuple[Tensor, ...]:
        """The results of a recording, captured if possible."""
        captures = computation.captures
        if self._by is None or stable is None or captures is None:
            return recording.play(values, tensors)
        if stable.name not in captures:
            if not is_capturable(recording, tensors):
                computation.captures = None
                return recording.play(values, tensors)
            places = [at for at, operand in enumerate(operands) if isinstance(operand, Tensor)]
            fixed = frozenset(number for number, at in enumerate(places) if at in stable.places)  # among `tensors`
            buffers = computation.buffers
            try:
                if fixed not in buffers:
                    buffers[fixed] = Buffers(tensors, fixed, recording.play(values, tensors))
                captures[stable.name] = Capture(recording, values, tensors, fixed, buffers[fixed], self._by)
                self.captured += 1
                self._drop_parts(computation)
            except Exception as error:
                computation.captures = None
                _LOG.info("%s is launched kernel by kernel, more slowly: %s", _names(computation), error)
                return recording.play(values, tensors)
            if len(captures) > _MAX_CAPTURES:
                captures.popitem(last=False)
        captures.move_to_end(stable.name)
        return captures[stable.name](tensors)

    def _find(self, identity: Identity, key: object, roots: Roots) -> tuple[_Computation, list[Any]]:
        """The computation, and the values that its recording, if there is one, derives from the roots."""
        while True:
            computation = self._computations.get(key)
            if computation is None:
                computation = self._computations[key] = _Computation(identity)
                if len(self._computations) > _MAX_COMPUTATIONS:
                    self._computations.popitem(last=False)  # the least recently used
            else:
                self._computations.move_to_end(key)
            if computation.recording is None:
                return computation, []
            try:
                values, other = computation.recording.derive(roots)
            except Exception as error:
                self._abandon(computation, error)
                return computation, []
            if other is None:
                return computation, values
            key = key, other  # a batch of the same sizes, from which values of other sizes are derived

    def _drop_parts(self, whole: _Computation) -> None:
        """Drop the captures of what a new capture contains, which would take memory for nothing."""
        inside = whole.recording.parts if whole.recording is not None else ()
        for computation in self._computations.values():
            if computation.recording in inside and computation.captures:
                computation.captures.clear()
                computation.buffers.clear()

    def _record(self, computation: _Computation, function: Callable[..., Any], roots: Roots, operands: Any) -> Any:
        # a tensor that occurs twice may be two different tensors in the next call
        arguments = [operand.detach() if isinstance(operand, Tensor) else operand for operand in operands]
        tape = Tape(roots, [operand for operand in arguments if isinstance(operand, Tensor)])
        with tape:
            result = function(*arguments)
        computation.recording = tape.recording(computation.form.flat(result))
        if tape.flaw is None:
            self.recorded += 1
        else:
            self._abandon(computation, tape.flaw)
        while self.bytes > _MAX_BYTES and len(self._computations) > 1:
            self._computations.popitem(last=False)
        return result

    def _abandon(self, computation: _Computation, reason: Exception) -> None:
        computation.abandoned, computation.recording = True, None
        name = _names(computation)
        if name not in self._logged:
            self._logged.add(name)
            level = logging.INFO if getattr(reason, "expected", False) else logging.WARNING
            _LOG.log(level, "%s is computed without a recording, more slowly: %s", name, reason)


def record_or_play(
    function: Callable[..., object],
    identity: Identity,
    names: tuple[object, ...],
    roots: Roots,
    operands: Sequence[object],
    stable: StableOperands | None = None,
    forms: tuple[Any, ...] | None = None,
    whole: bool = False,
) -> Any:
    """`function(*operands)`, recorded once that pays and played from then on.

    identity: the functions that decide what `function` computes; a new function object counts as a new computation.
    names:    the operands' names, and which operands differ between clients.
    roots:    objects from which the function derives values (`ops.tape.derived`); their `sizes` are part of the
        computation.
    operands: tensors, which may change from call to call, and numbers, which are part of the computation.
    stable:   the operands that do not change; their name identifies a capture (`Capture`).
    forms:    `form_of` each operand, if that is known.
    whole:    whether it is made of recorded computations, such as a round: then it is recorded at once.
    """
    recordings = _ACTIVE.get()
    if recordings is None or torch._C._functorch.peek_interpreter_stack() is not None:
        return function(*operands)
    key = identity, names, tuple(map(sizes, roots)), forms or tuple(map(form_of, operands))
    return recordings.run(function, identity, key, roots, operands, stable, whole)


def form_of(operand: object) -> Any:
    """The properties of an operand that must be equal wherever a recording is played."""
    return sizes(operand) if isinstance(operand, Tensor) else (type(operand), repr(operand))


def _names(computation: _Computation) -> str:
    return ", ".join(getattr(f, "__qualname__", repr(f)) for f in computation.functions if f is not None)
