"""A round, or an evaluation, as one recording.

Where all steps are recorded, what a round still does between them is Python: messages, checks, entries of the ledger,
keys, and what the server computes. A round that does the same each time is then recorded as a whole (`ops.recording`):
its inputs are the round's keys, the server's state and the clients' states, and its outputs the new states. On a GPU it
is captured as one graph, and rounds follow each other without waiting for the process.

Whether Python code does the same each time cannot be determined from outside. So the classes of the algorithm and of
its parts declare it (`core.algorithm.Algorithm.recorded`), and the contract compares both ways. All other algorithms
run as written. This module only finds the inputs: the keys and the batches of clients that the call before took.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils import _pytree as pytree

from fedweave.core.algorithm import Evaluation, recording_obstacle
from fedweave.core.federation import Federation
from fedweave.core.ledger import Uncounted
from fedweave.core.ledger_columns import Entry
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, nest
from fedweave.engines.batches import Layout
from fedweave.engines.calls import KeyName, Keys
from fedweave.engines.engine import LocalEngine
from fedweave.engines.states import Group
from fedweave.engines.vectorized import Vectorized
from fedweave.ops.captures import StableOperands
from fedweave.ops.recording import record_or_play
from fedweave.ops.tape import Unrecordable, running

Method = Callable[[Tree, Federation], Any]
Position = tuple[object, ...]
_LOG = logging.getLogger(__name__)
_MAX_NUMBERS = (
    1 << 28
)  # numbers in the states; with more, kernels take longer than the process, and captures store copies
_PATIENCE = 6  # calls as written after which the reason is logged
_TRIES = 3  # recordings in a row of which none was played: inputs take another form each time, and recording takes long


class Plan(NamedTuple):
    """What a call takes beside the server's state.

    keys: the names of its keys. batches: the groups of clients that run together, with the versions of their data.
    """

    keys: tuple[KeyName, ...]
    batches: Mapping[Group, int]


@dataclass(frozen=True)
class SideEffects:
    """What the recorded call did beside its kernels. entries: of the ledger. layouts: of the states of each batch.
    calls: its number of calls. rest: see `_pack`."""

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
        operands = list(self.state)
        for _, flat in self.clients:
            operands += flat
        return operands

    @property
    def names(self) -> tuple[object, ...]:
        """What must be equal wherever a recording is played."""
        return str(self.form), *(layout.form for layout, _ in self.clients)


class WholeRounds:
    """The methods of an algorithm that are recorded as a whole, for one engine and its executor.

    played: the names of those that were played.
    """

    def __init__(self, engine: LocalEngine, keys: Keys, executor: Vectorized) -> None:
        self._engine, self._keys, self._executor = engine, keys, executor
        self._obstacles: dict[Method, str] = {}
        self._plans: dict[tuple[Method, Position], Plan] = {}
        self._direct_calls = Counter[Method]()  # calls as written
        self._tries = Counter[Method]()  # recordings since one was played
        self.played: set[str] = set()

    def carry_out(self, method: Method, state: Tree) -> Any:
        """`method(state, engine)`."""
        if method not in self._obstacles:
            self._obstacles[method] = recording_obstacle(method)
            if self._obstacles[method]:
                self._log(method, f"not recorded as a whole: {self._obstacles[method]}")
        if self._obstacles[method] or self._tries[method] >= _TRIES:
            return method(state, self._engine)
        plan = self._plans.get((method, self._position()))
        inputs = None if plan is None else self._inputs(plan, state)
        if plan is None or inputs is None:
            return self._run_as_written(method, state)
        return self._replay(method, state, plan, inputs)

    def _position(self) -> Position:
        """What ran in the round before; the names of keys count it."""
        return self._engine.calls, *sorted(self._keys.times.items())

    def _log(self, method: Method, what: str) -> None:
        _LOG.info("%s is %s", method.__qualname__, what)

    def _run_as_written(self, method: Method, state: Tree) -> Any:
        """The result; where its steps were all played, the next call is recorded."""
        recordings, position = self._executor.recordings, self._position()
        recorded, played = recordings.recorded, recordings.played
        result, plan, _ = self._observe(method, state)
        self._direct_calls[method] += 1
        if isinstance(plan, Plan) and recordings.recorded == recorded and recordings.played > played:
            self._plans[method, position] = plan
        elif self._direct_calls[method] == _PATIENCE:
            reason = plan if isinstance(plan, str) else "its steps are not recorded"
            self._log(method, f"not recorded as a whole: {reason}")
        return result

    def _observe(self, method: Method, state: Tree) -> tuple[Any, Plan | str, Sequence[Entry | Uncounted]]:
        """The result of a method; what it took, or why it cannot be recorded; and its entries of the ledger."""
        executor, first = self._executor, len(self._keys.key_names)
        with executor.ran() as batches, self._engine.ledger.new_entries() as entries:
            result = method(state, self._engine)
            ran = batches()
        if not ran:
            return result, "a step runs for one client at a time", entries
        if _pack(result) is None:
            return result, "replies are sums, or not all in this process", entries
        if None in [executor.states_of(group) for group in ran]:
            return result, "its steps run on groups of clients that overlap", entries
        return result, Plan(tuple(self._keys.key_names[first:]), ran), entries

    def _inputs(self, plan: Plan, state: Tree) -> Inputs | None:
        """What a recorded call reads; None if it must be carried out as written."""
        constants = self._executor.constants(plan.batches)
        states = [self._executor.states_of(group) for group in plan.batches]
        if constants is None or None in states:
            return None
        leaves_of_state, form = pytree.tree_flatten(state)
        inputs = Inputs(constants, leaves_of_state, form, [Layout.of(by_path or {}) for by_path in states])
        numbers = (leaf.numel() for leaf in inputs.operands if isinstance(leaf, Tensor))
        return inputs if sum(numbers) <= _MAX_NUMBERS else None

    def _replay(self, method: Method, state: Tree, plan: Plan, inputs: Inputs) -> Any:
        engine, began, results = self._engine, time.perf_counter(), list[Any]()

        def whole(words: Tensor, *operands: Any) -> Any:
            result, output = self._run(method, plan, inputs, words, iter(operands))
            results.append(result)
            return output

        server_graphs = tuple(engine.held.values())
        roots = list(inputs.constants)
        for graph in server_graphs:
            roots += graph.roots
        roots += [leaf for leaf in pytree.tree_leaves(server_graphs) if isinstance(leaf, Tensor)]
        before = self._executor.recordings.recorded
        with self._executor.recordings.activate():
            tensors, clients, counts, effects = record_or_play(
                whole,
                (method,),
                (*inputs.names, engine.evaluated_clients, engine.ranks, plan.keys, tuple(plan.batches)),
                [root for root in roots if root is not None],
                [self._keys.words(plan.keys), *inputs.operands],
                StableOperands(tuple(plan.batches.values()), frozenset()),
                whole=True,
            )
        if results:  # it was not played
            self._tries[method] += 1 if self._executor.recordings.recorded > before else _TRIES
            return results[0]
        self._tries[method] = 0
        if method.__name__ not in self.played:
            self.played.add(method.__name__)
            self._log(method, "recorded as a whole")
        if not self._is_finite(method, tensors):  # as written, it says which client's or part's values are at fault
            return self._run_as_written(method, state)
        for group, layout, flat in zip(plan.batches, effects.layouts, clients, strict=True):
            self._executor.store_states(group, layout.leaves(flat))
        self._keys.skip(plan.keys)
        engine.replay(effects.entries, counts, effects.calls, time.perf_counter() - began)
        return _unpack(tensors, effects.rest)

    def _run(
        self, method: Method, plan: Plan, inputs: Inputs, words: Tensor, operands: Iterator[Any]
    ) -> tuple[Any, Any]:
        """The result of a method whose keys, state and clients' states are these operands; and, for a recording: its
        tensors, the clients' states, the counts of the ledger's entries, and what it does beside its kernels."""
        engine, executor = self._engine, self._executor
        state = pytree.tree_unflatten(list(islice(operands, len(inputs.state))), inputs.form)
        for group, (layout, flat) in zip(plan.batches, inputs.clients, strict=True):
            executor.store_states(group, layout.leaves(islice(operands, len(flat))))
        keys, first = dict(zip(plan.keys, words.unbind(), strict=True)), engine.calls
        with self._keys.override(keys):
            result, new_plan, entries = self._observe(method, state)
        tape, packed = running(), _pack(result)
        if new_plan != plan and tape is not None and tape.flaw is None:  # not all that it read is among the operands
            reason = new_plan if isinstance(new_plan, str) else "it takes other keys or clients than in the call before"
            tape.flaw = Unrecordable(reason, expected=True)
        tensors, rest = packed or ([], None)
        after = [Layout.of(executor.states_of(group) or {}) for group in plan.batches]
        counts = [entry.counts.all for entry in entries if isinstance(entry, Uncounted)]
        effects = SideEffects(tuple(entries), tuple(layout for layout, _ in after), engine.calls - first, rest)
        return result, (tensors, [flat for _, flat in after], counts, effects)

    def _is_finite(self, method: Method, tensors: Sequence[Tensor]) -> bool:
        """Whether a round's results are finite, where asking does not wait for a device."""
        if self._engine.device.type != "cpu" or method.__name__ != "round":
            return True
        numbers = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        return not numbers or bool(get_total_norm(numbers, math.inf).isfinite())


def _pack(result: Any) -> tuple[list[Tensor], Any] | None:
    """The tensors of a state or an `Evaluation`, and the rest, from which `_unpack` makes it again; None if it is
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


def _unpack(tensors: Sequence[Tensor], rest: Any) -> Any:
    """Undo `_pack`."""
    (fixed, form, who), fresh = rest, iter(tensors)
    result = pytree.tree_unflatten([next(fresh) if leaf is None else leaf[0] for leaf in fixed], form)
    if who is None:
        return result
    clients, missing, places = who
    batches = [ReplyBatch(at, tree) for at, tree in zip(places, result["clients"], strict=True)]
    return Evaluation(Replies(clients, batches, missing), result["server"])
