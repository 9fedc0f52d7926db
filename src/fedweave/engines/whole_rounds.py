"""A round, or an evaluation, as one recording.

Where all steps are recorded, what a round still does between them is Python: messages, checks, entries of the ledger,
keys, and what the server computes. A round that does the same each time is then recorded as a whole (`ops.recording`):
its inputs are the round's keys, the server's state and the clients' states, and its outputs the new states. On a GPU it
is captured as one graph, and rounds follow each other without waiting for the process.

A round does the same each time if two in a row, and the recorded one, asked for keys of the same names, ran the same
batches of clients and made the same entries of the ledger, with the same values that are no tensors in states and in
the algorithm's attributes, and if Python read neither a value of a tensor in it nor the number of the round. An
algorithm is a frozen value, so nothing else can change. What is recorded is played only while batches and forms stay
the same.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils import _pytree as pytree

from fedweave.core.algorithm import Evaluation
from fedweave.core.federation import Federation
from fedweave.core.ledger import Entry, Uncounted
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, nest
from fedweave.engines.calls import KeyName, Keys
from fedweave.engines.engine import LocalEngine
from fedweave.engines.states import Group
from fedweave.engines.vectorized import Layout, Vectorized, draws
from fedweave.ops.recording import StableOperands, traced
from fedweave.ops.tape import Unrecordable, running

Method = Callable[[Tree, Federation], Any]
_LOG = logging.getLogger(__name__)
_MOST = 1 << 28  # numbers in the states; with more, kernels take longer than the process, and captures store copies
_PATIENCE = 6  # calls after which the reason is logged why a method is not recorded as a whole
_TRIES = 3  # recordings in a row of which none was played: inputs take another form each time, and recording takes long


class Course(NamedTuple):
    """What one call of a method did.

    keys: the keys that it asked for. batches: the groups of clients that ran together, with the versions of their data.
    entries: what it noted in the ledger, without times and tensors. fixed: shapes, and values that are no tensors, in
    the server's state. clients: the same in the states of each batch. begun: what had run in the round before it.
    attributes: values of the algorithm's attributes.
    """

    keys: tuple[KeyName, ...]
    batches: Mapping[Group, int]
    entries: tuple[object, ...]
    fixed: tuple[object, ...]
    clients: tuple[object, ...]
    begun: tuple[object, ...]
    attributes: object


@dataclass(frozen=True)
class SideEffects:
    """What the recorded call did beside its kernels. entries: of the ledger. layouts: of the states of each batch.
    calls: its number of calls. rest: see `_packed`."""

    entries: tuple[Entry | Uncounted, ...]
    layouts: tuple[Layout, ...]
    calls: int
    rest: Any


@dataclass(frozen=True)
class Inputs:
    """What a recorded call reads.

    constants: the clients' data, in forms that no step changes. state, form: the leaves of the server's state and how
    they make it. clients: the layout and the leaves of the states of each batch.
    """

    constants: tuple[object, ...]
    state: list[Any]
    form: pytree.TreeSpec
    clients: list[tuple[Layout, list[Any]]]

    @property
    def operands(self) -> list[Any]:
        """What changes from call to call."""
        return [*self.state, *(leaf for _, flat in self.clients for leaf in flat)]

    @property
    def names(self) -> tuple[object, ...]:
        """What must be equal wherever a recording is played."""
        return str(self.form), *(layout.form for layout, _ in self.clients)


class WholeRounds:
    """The methods of an algorithm that are recorded as a whole, for one engine and its executor."""

    def __init__(self, engine: LocalEngine, keys: Keys, executor: Vectorized) -> None:
        self._engine, self._keys, self._executor = engine, keys, executor
        self._last: dict[Method, Course | str] = {}
        self._plans: dict[Method, Course] = {}
        self._calls: dict[Method, int] = {}
        self._misses: dict[Method, int] = {}  # recordings since one was played

    def carry_out(self, method: Method, state: Tree) -> Any:
        """`method(state, engine)`."""
        if self._misses.get(method, 0) >= _TRIES:
            return method(state, self._engine)
        plan = self._plans.get(method)
        inputs = None if plan is None else self._inputs(method, plan, state)
        if plan is None or inputs is None:
            return self._as_written(method, state)
        return self._replayed(method, state, plan, inputs)

    # --- a call as written, compared with the one before ---------------------------------------------------------

    def _as_written(self, method: Method, state: Tree) -> Any:
        recordings = self._executor.recordings
        before = recordings.recorded, recordings.played
        result, course, _ = self._observed(method, state)
        steady = recordings.recorded == before[0] and recordings.played > before[1]
        last = self._last.get(method)
        self._last[method] = course
        if isinstance(course, Course) and course == last and steady:
            self._plans[method] = course
        else:
            self._plans.pop(method, None)
            self._explain(method, course, steady)
        return result

    def _observed(self, method: Method, state: Tree) -> tuple[Any, Course | str, Sequence[Entry | Uncounted]]:
        """The result of a method; what it did, or what keeps it from being recorded; and its entries of the ledger."""
        executor, asked, fixed = self._executor, len(self._keys.asked), _fixed(state)
        begun, drawn = self._begun(), draws()
        with executor.ran() as batches, self._engine.ledger.new_entries() as entries:
            result = method(state, self._engine)
            ran = batches()
        if not ran:
            return result, "a step runs for one client at a time", entries
        if _packed(result) is None:
            return result, "replies are sums, or not all in this process", entries
        if draws() != drawn:
            return result, "it draws from Python's or NumPy's own generator", entries
        states = [executor.states_of(group) for group in ran]
        if None in states:
            return result, "its steps run on groups of clients that overlap", entries
        course = Course(
            tuple(self._keys.asked[asked:]),
            ran,
            tuple(map(_form, entries)),
            fixed,
            tuple(_fixed(by_path or {}) for by_path in states),
            begun,
            _attributes(method),
        )
        return result, course, entries

    def _begun(self) -> tuple[object, ...]:
        return self._engine.calls, self._keys.times

    def _explain(self, method: Method, course: Course | str, steady: bool) -> None:
        """Log, once, what keeps a method from being recorded as a whole."""
        count = self._calls[method] = self._calls.get(method, 0) + 1
        if count == _PATIENCE:
            reason = course if isinstance(course, str) else "its steps are not recorded"
            if isinstance(course, Course) and steady:
                reason = "its clients, keys or messages differ from call to call"
            _LOG.info("%s is not recorded as a whole: %s", getattr(method, "__qualname__", method), reason)

    # --- a call as recorded --------------------------------------------------------------------------------------

    def _inputs(self, method: Method, plan: Course, state: Tree) -> "Inputs | None":
        """What a recorded call reads; None if it must be carried out as written."""
        constants = self._executor.constants(plan.batches)
        states = [self._executor.states_of(group) for group in plan.batches]
        if constants is None or None in states or _fixed(state) != plan.fixed or self._begun() != plan.begun:
            return None
        if tuple(_fixed(by_path or {}) for by_path in states) != plan.clients or _attributes(method) != plan.attributes:
            return None
        leaves_of_state, form = pytree.tree_flatten(state)
        layouts = [Layout.of(by_path or {}) for by_path in states]
        inputs = Inputs(constants, leaves_of_state, form, layouts)
        numbers = (leaf.numel() for leaf in inputs.operands if isinstance(leaf, Tensor))
        return inputs if sum(numbers) <= _MOST else None

    def _replayed(self, method: Method, state: Tree, plan: Course, inputs: "Inputs") -> Any:
        engine, began, results = self._engine, time.perf_counter(), list[Any]()

        def whole(words: Tensor, *operands: Any) -> Any:
            result, output = self._run(method, plan, inputs, words, iter(operands))
            results.append(result)
            return output

        held = pytree.tree_leaves(tuple(engine.held.values()))
        roots = [*inputs.constants, *(root for graph in engine.held.values() for root in graph.roots)]
        roots += [leaf for leaf in held if isinstance(leaf, Tensor)]
        before = self._executor.recordings.recorded
        with self._executor.recordings.used():
            tensors, clients, counts, effects = traced(
                whole,
                (method,),
                (*inputs.names, engine.evaluated_clients, plan.keys, tuple(plan.batches)),
                [root for root in roots if root is not None],
                [self._keys.words(plan.keys), *inputs.operands],
                StableOperands(tuple(plan.batches.values()), frozenset()),
                whole=True,
            )
        if results:  # it was not played
            self._miss(method, self._executor.recordings.recorded > before)
            return results[0]
        self._misses[method] = 0
        if not self._sound(method, tensors):  # as written, it says which client's or part's values are at fault
            return self._as_written(method, state)
        for group, layout, flat in zip(plan.batches, effects.layouts, clients, strict=True):
            self._executor.store_states(group, layout.leaves(flat))
        self._keys.skip(plan.keys)
        engine.replay(effects.entries, counts, effects.calls, time.perf_counter() - began)
        return _unpacked(tensors, effects.rest)

    def _miss(self, method: Method, recorded: bool) -> None:
        """Count a call that was not played; the last one that is tried says why."""
        self._misses[method] = self._misses.get(method, 0) + 1 if recorded else _TRIES
        if recorded and self._misses[method] == _TRIES:
            name = getattr(method, "__qualname__", method)
            _LOG.info("%s is not recorded as a whole: its inputs take another form from call to call", name)

    def _run(
        self, method: Method, plan: Course, inputs: "Inputs", words: Tensor, operands: Iterator[Any]
    ) -> tuple[Any, Any]:
        """The result of a method whose keys, state and clients' states are these operands; and, for a recording: its
        tensors, the clients' states, the counts of the ledger's entries, and what it does beside its kernels."""
        engine, executor = self._engine, self._executor
        state = pytree.tree_unflatten(list(islice(operands, len(inputs.state))), inputs.form)
        for group, (layout, flat) in zip(plan.batches, inputs.clients, strict=True):
            executor.store_states(group, layout.leaves(islice(operands, len(flat))))
        keys, first = dict(zip(plan.keys, words.unbind(), strict=True)), engine.calls
        with self._keys.replaced_by(keys):
            result, course, entries = self._observed(method, state)
        tape, packed = running(), _packed(result)
        if course != plan and tape is not None and tape.flaw is None:
            reason = course if isinstance(course, str) else "it did something else in the calls before"
            tape.flaw = Unrecordable(reason, expected=True)
        tensors, rest = packed or ([], None)
        after = [Layout.of(executor.states_of(group) or {}) for group in plan.batches]
        counts = [entry.counts.all for entry in entries if isinstance(entry, Uncounted)]
        effects = SideEffects(tuple(entries), tuple(layout for layout, _ in after), engine.calls - first, rest)
        return result, (tensors, [flat for _, flat in after], counts, effects)

    def _sound(self, method: Method, tensors: Sequence[Tensor]) -> bool:
        """Whether a round's results are finite, where asking does not wait for a device."""
        if self._engine.device.type != "cpu" or method.__name__ != "round":
            return True
        numbers = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        return not numbers or bool(get_total_norm(numbers, math.inf).isfinite())


def _fixed(state: Tree) -> tuple[object, ...]:
    """Paths, shapes, and values that are no tensors."""
    return tuple((path, (leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf) for path, leaf in leaves(state))


def _attributes(method: Method) -> object:
    """The values in the attributes of a method's algorithm, which is to be frozen, to see whether they change."""
    values, form = pytree.tree_flatten(getattr(getattr(method, "__self__", None), "__dict__", {}))
    return str(form), tuple(map(_value, values))


def _value(thing: object) -> object:
    if isinstance(thing, np.random.Generator):
        return str(thing.bit_generator.state)
    if callable(state := getattr(thing, "getstate", None)):  # a generator of Python
        return state()
    if isinstance(thing, np.ndarray):
        return thing.tobytes()
    return thing if thing is None or isinstance(thing, bool | int | float | str | bytes) else type(thing)


def _form(entry: Entry | Uncounted) -> object:
    """An entry of the ledger without round, times and numbers that depend on values."""
    if isinstance(entry, Uncounted):
        return _form(entry.entry), entry.counts.paths, tuple(entry.counts.at)
    return replace(entry, round=0, at=0.0, seconds=0.0)


def _packed(result: Any) -> tuple[list[Tensor], Any] | None:
    """The tensors of a state or an `Evaluation`, and the rest, from which `_unpacked` makes it again; None if it is
    something else, or not all in this process."""
    who: Any = None
    if isinstance(result, Evaluation):
        batches = result.clients.batches()
        if batches is None or result.total is not None:
            return None
        who = result.clients.clients, dict(result.clients.missing), tuple(batch.at for batch in batches)
        result = {"server": result.server, "clients": [nest(batch.flat) for batch in batches]}
    if not isinstance(result, dict):
        return None
    flat, form = pytree.tree_flatten(result)
    rest = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in flat]
    return [leaf for leaf in flat if isinstance(leaf, Tensor)], (rest, form, who)


def _unpacked(tensors: Sequence[Tensor], rest: Any) -> Any:
    """Undo `_packed`."""
    (fixed, form, who), fresh = rest, iter(tensors)
    result = pytree.tree_unflatten([next(fresh) if leaf is None else leaf[0] for leaf in fixed], form)
    if who is None:
        return result
    clients, missing, places = who
    batches = [ReplyBatch(at, tree) for at, tree in zip(places, result["clients"], strict=True)]
    return Evaluation(Replies(clients, batches, missing), result["server"])
