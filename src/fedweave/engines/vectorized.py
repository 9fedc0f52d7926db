"""The fast path: each step is called once for a whole batch of clients, and repeated steps are recorded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, get_args

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.sizes import batch_sizes
from fedweave.core.tree import Tree, leaves, nest
from fedweave.engines.batches import (
    Batches,
    Flat,
    client_rows,
    matrix_of,
    memory_message,
    remedy,
    run_batch,
    stack_states,
)
from fedweave.engines.executor import StepResults, Work
from fedweave.engines.loop import Loop
from fedweave.engines.states import Group, Leaves, MemoryIsolation, Readers
from fedweave.engines.steps import WriteGuard, check_message_unchanged
from fedweave.errors import ConfigError, OutOfMemory, ReplyRefused, StepFailed, error_place, out_of_memory
from fedweave.metrics.pooled import infer_outputs, split_examples
from fedweave.ops.captures import StableOperands, recorder_for
from fedweave.ops.csr import StackedCsr
from fedweave.ops.recording import Recordings, When, record_or_play
from fedweave.ops.touched_rows import TouchedRows

_GROUPS = 256  # groups of clients whose ids are cached


class Vectorized(Loop):
    """Clients of one process; clients of one size and model run together. Ragged steps, and messages that cannot be
    stacked, are calls of single clients as in `Loop`.

    chunk:  clients run at once; 0 chooses by memory.
    record: when repeated steps are recorded, which changes no number: "auto" from the second time on, "always" from
            the first, "never".
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        test: Graph | None = None,
        members: Mapping[str, Tensor] | None = None,
        member_algorithms: Mapping[str, object] | None = None,
        device: torch.device | None = None,
        chunk: int = 0,
        record: When = "auto",
    ) -> None:
        if record not in get_args(When):
            raise ConfigError(
                f"engine record {record!r} is unknown; choose one of {', '.join(get_args(When))}.",
                code="config.unknown-name",
            )
        super().__init__(
            graphs, classes=classes, test=test, members=members, member_algorithms=member_algorithms, device=device
        )
        self._batches, self._readers = Batches(self.data.graphs, chunk, self.device, self._member_algorithms), Readers()
        self._group_ids: dict[Group, Tensor] = {}
        self._flats: dict[int, Flat] = {}  # version of a batch -> its operands
        self._versions: set[int] = set()  # of batches that were called
        self._all = Flat.of((self.test, self._members), False)
        self._called: dict[str, int] = {}  # step -> number of clients in its last call
        self._ran: dict[Group, int] | None = None  # see `ran`
        self.recordings = Recordings(record, recorder_for(self.device))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[StepResults]:
        if work.info.ragged:
            self._ran = None
            yield from super().run(work, clients)
            return
        places = _ClientPlaces(clients)
        as_before = self._called.get(work.name, len(clients)) == len(clients)
        self._called[work.name] = len(clients)
        for batch in self._batches.plan(clients):
            same_size = len(clients) == len(self.clients) or (as_before and len(batch) == len(clients))
            for group, size in self._parts(batch, same_size):
                if work.messages.ragged(group):
                    self._ran = None
                    for client in group:
                        yield self._time_call(self._run_client, work, (client,), places.of((client,)))
                else:
                    together = partial(self._run_together, size=size)
                    with self.recordings.activate():
                        ran = self._time_call(together, work, group, places.of(group))
                    yield ran

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> list[list[Tree]]:
        examples: dict[str, Tree] = {}
        for batch in self._batches.plan(clients):
            _, graphs = self._batches.graph(batch)
            flat = Flat.of(graphs, True)

            def outputs(*leaves: Any, flat: Flat = flat) -> Tensor:
                return infer_outputs(model, w, flat.whole(list(leaves)))

            with torch.no_grad():
                logits = vmap(outputs, in_dims=flat.dims)(*flat.leaves)
            examples |= zip(batch, split_examples(logits, graphs.y, graphs.masks), strict=True)
        return [[examples[client] for client in clients]]

    @contextmanager
    def ran(self) -> "Iterator[Callable[[], dict[Group, int] | None]]":
        """Inside, note the batches that run; the function gives them with their versions, or None if a step ran for
        single clients."""
        self._ran = {}
        try:
            yield lambda: self._ran
        finally:
            self._ran = None

    def constants(self, batches: Mapping[Group, int]) -> tuple[object, ...] | None:
        """What steps read of these batches and that no step changes; None if a batch was stacked again since."""
        operands: list[object] = list(self._all.leaves)
        operands += [] if self.test is None else self.test.roots
        for group, version in batches.items():
            now, graphs = self._batches.graph(group)
            if now != version:
                return None
            operands += [*graphs.roots, *self._flat(version, (graphs, self._ids_of(group))).leaves]
        return tuple(thing for thing in operands if isinstance(thing, Tensor) or hasattr(thing, "sizes"))

    def states_of(self, group: Group) -> Leaves | None:
        """The states of a batch, stacked as they are stored; None if its clients are not stored together."""
        if not self._states.knows(group):
            return {}
        _, graphs = self._batches.graph(group)
        return stack_states(self._states, group, graphs, copy=False) if self._states.together(group) else None

    def store_states(self, group: Group, states: Leaves) -> None:
        """Replace the states of a batch."""
        if states or self._states.knows(group):
            self._states.put(group, states)

    def _parts(self, batch: Group, same_size: bool) -> Iterator[tuple[Group, int]]:
        """Parts of a batch whose states can be stacked, and the number of clients to which each part is filled up.

        In every round a sample has another number of clients of one size that were called before, and a recording holds
        for one number.

        same_size: whether the next call of the step has the same number of clients in the batch.
        """
        parts = self._states.split(batch)
        for part in parts:
            if same_size and len(parts) == 1:
                yield part, len(part)
                continue
            at = 0
            rows, _ = self.data.graphs.rows(part[0])
            for count, size in batch_sizes(len(part), rows, self._batches.max_clients(part[0])):
                yield part[at : at + count], size
                at += count

    def _run_together(self, work: Work, group: Group, size: int) -> Tree:
        """One call for all clients of a batch, filled up to `size` with its last client."""
        work = self._of(work, group[0])
        messages, called = work.messages, group
        group += (group[-1],) * (size - len(group))
        ids = self._ids_of(group)
        version, graphs = self._batches.graph(group)
        mine = messages.stack(group)
        if self._ran is not None:
            self._ran[group] = version
        states: Leaves = {}
        if not work.info.stateless:
            states = stack_states(self._states, group, graphs, copy=work.step not in self._readers)
        batch, private = self._flat(version, (graphs, ids)), Flat.of_leaves(states, True)
        message, shared = Flat.of_leaves(dict(leaves(mine)), True), Flat.of_leaves(messages.common_leaves, False)
        parts = (batch, private, message, Flat.of_tensor(work.key), shared, self._all)
        operands, forms = list[Any](), list[Any]()
        for part in parts:
            operands += part.leaves
            forms += part.forms
        # the batch's operands come first, the data that all batches share last
        stable_places = (*range(len(batch.leaves)), *range(len(operands) - len(self._all.leaves), len(operands)))
        partly = tuple(isinstance(leaf, TouchedRows) and leaf.matrix is not None for leaf in states.values())
        try:
            form, state_form, reply_size, *outputs = record_or_play(
                partial(self._compute, work, parts, (graphs, states), f"clients {group[0]!r} to {group[-1]!r}"),
                (work.step,),
                (private.paths, message.paths, shared.paths, partly, work.ranks),
                graphs.roots if self.test is None else graphs.roots + self.test.roots,
                operands,
                StableOperands(version, frozenset(stable_places)),
                tuple(forms),
            )
        except (ReplyRefused, StepFailed):
            raise
        except Exception as error:
            if out_of_memory(error):
                raise OutOfMemory(memory_message(work.name, size, self.device, error)) from error
            self._find_culprit(work, called)
            raise StepFailed(
                f"step {work.name} failed when vectorized over clients {group[0]!r} to {group[-1]!r}, though not on "
                f"any of them alone{error_place(error)}: {type(error).__name__}: "
                f"{str(error).rstrip('.')}. {remedy(error)}"
            ) from error
        received = [*batch.leaves, *shared.leaves, *message.leaves]
        reply, state = form.leaves(outputs[:reply_size]), state_form.leaves(outputs[reply_size:])
        return self._store(called, None if work.info.apart else state, reply, matrix_of(graphs), received)

    def _compute(
        self, work: Work, parts: Sequence[Flat], inputs: tuple[Graph, Leaves], whose: str, *operands: Any
    ) -> list[Any]:
        """Run `run_batch`, and check whether the step wrote into its message, graphs or states. A played recording
        writes only where the step did."""
        (graphs, states), messages = inputs, work.messages
        before, versions, guard = messages.versions(), self._readers.versions(states), WriteGuard(graphs, self.test)
        outputs = run_batch(work, parts, operands)
        check_message_unchanged(work.name, before, messages)
        guard.check_unchanged(work.name, whose)
        self._readers.note(work.step, states, versions)
        return outputs

    def _ids_of(self, group: Group) -> Tensor:
        """The words from which each client's randomness is derived, int64 [P]."""
        if group not in self._group_ids:
            if len(self._group_ids) >= _GROUPS:
                self._group_ids.clear()
            self._group_ids[group] = torch.tensor([random.word(client) for client in group], device=self.device)
        return self._group_ids[group]

    def _flat(self, version: int, batch: object) -> Flat:
        """A batch's graphs and ids as operands, cached from the second call on, because samples come only once."""
        if version in self._flats:
            return self._flats[version]
        flat = Flat.of(batch, True)
        if version in self._versions:
            self._flats[version] = flat
        self._versions.add(version)
        if max(len(self._versions), len(self._flats)) > _GROUPS:
            self._versions.clear()
            self._flats.clear()
        return flat

    def _store(
        self,
        group: Group,
        state: Mapping[str, Any] | None,
        reply: Mapping[str, Any],
        matrix: StackedCsr | None,
        received: Sequence[object],
    ) -> Tree:
        """Store the batch's states, unless they do not change, in new memory; returns its replies. matrix: the features
        of the batch. received: the tensors that its clients received."""
        isolation = MemoryIsolation(received, self.recordings.captures)

        def copies(tree: Mapping[str, Any]) -> Leaves:
            return {path: isolation.copy(client_rows(leaf, len(group), matrix)) for path, leaf in tree.items()}

        # the state first: if the two share memory, the reply is copied
        new_state = copies(state or {})
        sent = copies(reply)
        if state is not None:
            self._states.put(group, new_state)
        return nest(sent)

    def _find_culprit(self, work: Work, group: Group) -> None:
        """Raise the loop's error, which names the one client at fault, if the loop fails too."""
        states = self._states
        try:
            for client in group:
                self._states = states.copy()
                self._run_client(work, (client,))
        finally:
            self._states = states

    def _renew(self, clients: Sequence[str]) -> None:
        self._batches.renew(clients)
        self._flats.clear()


class _ClientPlaces:
    """Places of clients among all called clients; if all are called, without a lookup of each."""

    def __init__(self, clients: Sequence[str]) -> None:
        self._clients = tuple(clients)

    def of(self, group: Group) -> tuple[int, ...]:
        if group == self._clients:
            return tuple(range(len(group)))
        return tuple(map(self._place.__getitem__, group))

    @cached_property
    def _place(self) -> dict[str, int]:
        return dict(zip(self._clients, range(len(self._clients)), strict=True))
