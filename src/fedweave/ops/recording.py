"""Recording repeated computations: when, and which recording is played.

A vectorised step runs the same few dozen kernels every time, and for small clients most of its time goes into
dispatching them through `vmap` and autograd. So from its second call on a computation is recorded (`ops.tape`), and
played from the third. Recordings are known by the functions and sizes that they are of, not by clients.
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

from fedweave.ops.capture import Buffers, Capture, Lasting, Recorder, capturable, places_among
from fedweave.ops.replay import Recording, sizes
from fedweave.ops.tape import Tape, running

When = Literal["auto", "always", "never"]
Identity = tuple[Callable[..., object] | None, ...]
Roots = Sequence[object]
# The call that is recorded. Measured on Cora (FedAvg, 3 to 100 clients): recording takes twice as long as the call,
# playing half as long, so that three more calls make up for it; what is called only once costs nothing.
_CALL = 2
_KEPT, _BYTES_KEPT = 256, 64 << 20  # computations
_CAPTURED = 64  # batches of one computation
_LOG = logging.getLogger(__name__)
_ACTIVE: "ContextVar[Recordings | None]" = ContextVar("recordings", default=None)


class Form:
    """How a result is put together: its tree, and what in it is no tensor."""

    def __init__(self) -> None:
        self._spec: Any = None  # of a plain list, too
        self._fixed: list[Any] = []

    def flat(self, result: object) -> tuple[Tensor, ...]:
        """The tensors of a result, whose form is noted."""
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
        self.given_up = False
        self.recording: Recording | None = None
        self.captures: OrderedDict[Hashable, Capture] | None = OrderedDict()  # by batch; None where it cannot be
        self.buffers: dict[frozenset[int], Buffers] = {}  # of its captures, by what lasts
        self.form = Form()


class Recordings:
    """What an engine has recorded. when: "auto" once that pays, "always" at the first call, "never". by: captures
    recordings where that is quicker than calling their kernels one by one.

    recorded, played, captured: how often something was.
    """

    def __init__(self, when: When = "auto", by: Recorder | None = None) -> None:
        self.recorded = self.played = self.captured = 0
        self._by = by
        self._first = {"auto": _CALL, "always": 1, "never": 0}[when]
        self._computations: OrderedDict[Any, _Computation] = OrderedDict()
        self._noted: set[str] = set()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Record what is `traced` inside."""
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
        """What all recordings hold."""
        return sum(c.recording.bytes for c in self._computations.values() if c.recording is not None)

    def run(
        self,
        function: Callable[..., Any],
        identity: Identity,
        key: Any,
        roots: Roots,
        operands: Any,
        lasting: Lasting | None = None,
    ) -> Any:
        """See `traced`."""
        computation, values = self._find(identity, key, roots)
        tape, recording = running(), computation.recording
        if recording is None:
            computation.calls += 1
            if tape is not None or computation.given_up or computation.calls < self._first:
                return function(*operands)
            return self._record(computation, function, roots, operands)
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        try:
            if tape is None:
                found = self._played(computation, recording, values, operands, tensors, lasting)
            else:
                found = tape.run(recording, (roots, tensors))
        except Exception as error:
            if recording.changes_inputs:  # it may have changed some
                raise
            self._give_up(computation, error)
            return function(*operands)
        self.played += 1
        return computation.form.whole(found)

    def _played(
        self,
        computation: _Computation,
        recording: Recording,
        values: Any,
        operands: Any,
        tensors: Sequence[Tensor],
        lasting: Lasting | None,
    ) -> tuple[Tensor, ...]:
        """What a recording gives, captured where that can be."""
        captures = computation.captures
        if self._by is None or lasting is None or captures is None:
            return recording.play(values, tensors)
        if lasting.name not in captures:
            if not capturable(recording, tensors):
                computation.captures = None
                return recording.play(values, tensors)
            fixed, buffers = places_among(operands, lasting), computation.buffers
            try:
                if fixed not in buffers:
                    buffers[fixed] = Buffers(tensors, fixed, recording.play(values, tensors))
                captures[lasting.name] = Capture(recording, values, tensors, fixed, buffers[fixed], self._by)
                self.captured += 1
            except Exception as error:
                computation.captures = None
                _LOG.info("%s is launched kernel by kernel, more slowly: %s", _names(computation), error)
                return recording.play(values, tensors)
            if len(captures) > _CAPTURED:
                captures.popitem(last=False)
        captures.move_to_end(lasting.name)
        return captures[lasting.name](tensors)

    def _find(self, identity: Identity, key: object, roots: Roots) -> tuple[_Computation, list[Any]]:
        """The computation, and what its recording, if there is one, derives from the roots."""
        while True:
            found = self._computations.get(key)
            if found is None:
                found = self._computations[key] = _Computation(identity)
                if len(self._computations) > _KEPT:
                    self._computations.popitem(last=False)  # the one that was not asked for the longest
            else:
                self._computations.move_to_end(key)
            if found.recording is None:
                return found, []
            try:
                values, other = found.recording.derive(roots)
            except Exception as error:
                self._give_up(found, error)
                return found, []
            if other is None:
                return found, values
            key = key, other  # among batches of the same sizes, those of which other sizes are derived

    def _record(self, computation: _Computation, function: Callable[..., Any], roots: Roots, operands: Any) -> Any:
        # a tensor that is given twice may be two different ones the next time
        own = [operand.detach() if isinstance(operand, Tensor) else operand for operand in operands]
        tape = Tape(roots, [operand for operand in own if isinstance(operand, Tensor)])
        with tape:
            result = function(*own)
        computation.recording = tape.recording(computation.form.flat(result))
        if tape.flaw is None:
            self.recorded += 1
        else:
            self._give_up(computation, tape.flaw)
        while self.bytes > _BYTES_KEPT and len(self._computations) > 1:
            self._computations.popitem(last=False)
        return result

    def _give_up(self, computation: _Computation, reason: Exception) -> None:
        computation.given_up, computation.recording = True, None
        name = _names(computation)
        if name not in self._noted:
            self._noted.add(name)
            level = logging.INFO if getattr(reason, "expected", False) else logging.WARNING
            _LOG.log(level, "%s is computed without a recording, more slowly: %s", name, reason)


def traced(
    function: Callable[..., object],
    identity: Identity,
    names: tuple[object, ...],
    roots: Roots,
    operands: Sequence[object],
    lasting: Lasting | None = None,
    forms: tuple[Any, ...] | None = None,
) -> Any:
    """`function(*operands)`, recorded once that pays and played from then on.

    identity: the functions that decide what `function` computes; a new function object counts as a new computation.
    names:    what the operands are called, and which of them differ between clients.
    roots:    objects of which the function derives things (`ops.tape.derived`); their `sizes` are part of the
        computation.
    operands: tensors, which may change from call to call, and numbers, which are part of the computation.
    lasting:  those that do not, by which a capture is known (`ops.capture`).
    forms:    `form_of` each operand, where that is known.
    """
    recordings = _ACTIVE.get()
    if recordings is None or torch._C._functorch.peek_interpreter_stack() is not None:
        return function(*operands)
    key = identity, names, tuple(map(sizes, roots)), forms or tuple(map(form_of, operands))
    return recordings.run(function, identity, key, roots, operands, lasting)


def form_of(operand: object) -> Any:
    """What must be alike of an operand wherever a recording is played."""
    return sizes(operand) if isinstance(operand, Tensor) else (type(operand), repr(operand))


def _names(computation: _Computation) -> str:
    return ", ".join(getattr(f, "__qualname__", repr(f)) for f in computation.functions if f is not None)
