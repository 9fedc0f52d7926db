"""The fast path: each step is called once for a whole batch of clients, and repeated steps are recorded."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, get_args

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.sizes import fillings
from fedweave.core.tree import Tree, leaves, nest
from fedweave.engines.batch_calls import (
    Batches,
    Flat,
    matrix_of,
    remedy,
    run_batch,
    settled,
    stacked_states,
    told_memory,
)
from fedweave.engines.executor import Ran, Work
from fedweave.engines.loop import Loop
from fedweave.engines.states import Group, Leaves, MemoryIsolation, Readers
from fedweave.engines.steps import Watched, refuse_changes
from fedweave.errors import ConfigError, OutOfMemory, ReplyRefused, StepFailed, out_of_memory, raised_at
from fedweave.ops.capture import Lasting, recorder_for
from fedweave.ops.csr import StackedCsr
from fedweave.ops.recording import Recordings, When, traced
from fedweave.ops.touched import TouchedRows

_GROUPS = 256  # of clients called together, whose ids are kept


class Vectorised(Loop):
    """Clients of one process, those of one size and model together. Ragged steps, and messages that cannot be
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
        own: Mapping[str, object] | None = None,
        device: torch.device | None = None,
        chunk: int = 0,
        record: When = "auto",
    ) -> None:
        if record not in get_args(When):
            raise ConfigError(
                f"engine record {record!r} is unknown; choose one of {', '.join(get_args(When))}.",
                code="config.unknown-name",
            )
        super().__init__(graphs, classes=classes, test=test, members=members, own=own, device=device)
        self._batches, self._readers = Batches(self.data.graphs, chunk, self.device, self._own), Readers()
        self._group_ids: dict[Group, Tensor] = {}
        self._flats: dict[int, Flat] = {}  # by the batch's version
        self._seen: set[int] = set()
        self._all = Flat.of((self.test, self._members), False)
        self._called: dict[str, int] = {}  # how many, by each step's last call
        self.recordings = Recordings(record, recorder_for(self.device))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        """See `Executor`."""
        if work.info.ragged:
            yield from super().run(work, clients)
            return
        places = _Places(clients)
        as_before = self._called.get(work.name, len(clients)) == len(clients)
        self._called[work.name] = len(clients)
        for batch in self._batches.plan(clients):
            alike = as_before and len(batch) == len(clients)
            for group, size in self._parts(batch, alike or len(clients) == len(self.clients)):
                if work.messages.ragged(group):
                    for client in group:
                        yield self._timed(self._alone, work, (client,), places.of((client,)))
                else:
                    together = partial(self._together, size=size)
                    with self.recordings.used():
                        ran = self._timed(together, work, group, places.of(group))
                    yield ran

    def _parts(self, batch: Group, lasting: bool) -> Iterator[tuple[Group, int]]:
        """A batch in parts whose states can be stacked, and how many clients each is filled up to. How many of a sample
        are of one size, and were called before, is another number in every round; recordings hold for one number.

        lasting: the batch has as many clients in the next call of the step.
        """
        parts = self._states.split(batch)
        for part in parts:
            if lasting and len(parts) == 1:
                yield part, len(part)
                continue
            at = 0
            for count, size in fillings(len(part), self.data.graphs.rows(part[0])[0], self._batches.most(part[0])):
                yield part[at : at + count], size
                at += count

    def _together(self, work: Work, group: Group, size: int) -> Tree:
        """One call for all clients of a batch, filled up with its last client to a `size`."""
        work = self._of(work, group[0])
        messages, called = work.messages, group
        group += (group[-1],) * (size - len(group))
        ids = self._ids_of(group)
        (version, graphs), mine = self._batches.graph(group), messages.stacked(group)
        states: Leaves = {}
        if not work.info.stateless:
            states = stacked_states(self._states, group, graphs, copy=work.step not in self._readers)
        batch, private = self._flat(version, (graphs, ids)), Flat.of_leaves(states, True)
        told, shared = Flat.of_leaves(dict(leaves(mine)), True), Flat.of_leaves(messages.common_leaves, False)
        parts = (batch, private, told, Flat.alone(work.key), shared, self._all)
        operands = [leaf for part in parts for leaf in part.leaves]
        partly = tuple(isinstance(leaf, TouchedRows) and leaf.matrix is not None for leaf in states.values())
        try:
            form, kept, answered, *found = traced(
                partial(self._computed, work, parts, (graphs, states), f"clients {group[0]!r} to {group[-1]!r}"),
                (work.step,),
                (private.paths, told.paths, shared.paths, partly),
                graphs.roots if self.test is None else graphs.roots + self.test.roots,
                operands,
                self._lasting(version, len(batch.leaves), len(operands)),
                tuple([form for part in parts for form in part.forms]),
            )
        except (ReplyRefused, StepFailed):
            raise
        except Exception as error:
            if out_of_memory(error):
                raise OutOfMemory(told_memory(work.name, size, self.device, error)) from error
            self._find_culprit(work, called)
            raise StepFailed(
                f"step {work.name} failed when vectorised over clients {group[0]!r} to {group[-1]!r}, though not on "
                f"any of them alone{raised_at(error)}: {type(error).__name__}: "
                f"{str(error).rstrip('.')}. {remedy(error)}"
            ) from error
        shown = [*batch.leaves, *shared.leaves, *told.leaves]
        reply, state = form.leaves(found[:answered]), kept.leaves(found[answered:])
        return self._kept(called, None if work.info.apart else state, reply, matrix_of(graphs), shown)

    def _computed(
        self, work: Work, parts: Sequence[Flat], given: tuple[Graph, Leaves], whose: str, *operands: Any
    ) -> list[Any]:
        """`run_batch`, and whether the step wrote into what it was given, graphs and states. A recording that is played
        writes into no more than the step did."""
        (graphs, states), messages = given, work.messages
        before, held, watched = messages.versions(), self._readers.versions(states), Watched(graphs, self.test)
        found = run_batch(work, parts, operands)
        refuse_changes(work.name, before, messages)
        watched.refuse_changes(work.name, whose)
        self._readers.note(work.step, states, held)
        return found

    def _ids_of(self, group: Group) -> Tensor:
        """What each client's randomness is made of, int64 [P]."""
        if group not in self._group_ids:
            if len(self._group_ids) >= _GROUPS:
                self._group_ids.clear()
            self._group_ids[group] = torch.tensor([random.word(client) for client in group], device=self.device)
        return self._group_ids[group]

    def _lasting(self, version: int, own: int, operands: int) -> Lasting:
        """A batch's `own`, which come first, and what all batches are told of the data, which comes last."""
        return Lasting(version, frozenset((*range(own), *range(operands - len(self._all.leaves), operands))))

    def _flat(self, version: int, batch: object) -> Flat:
        """A batch's graphs and who they are of, kept from the second time on: samples come only once."""
        if version in self._flats:
            return self._flats[version]
        found = Flat.of(batch, True)
        if version in self._seen:
            self._flats[version] = found
        self._seen.add(version)
        if max(len(self._seen), len(self._flats)) > _GROUPS:
            self._seen.clear()
            self._flats.clear()
        return found

    def _kept(
        self,
        group: Group,
        state: Mapping[str, Any] | None,
        reply: Mapping[str, Any],
        matrix: StackedCsr | None,
        shown: Sequence[object],
    ) -> Tree:
        """Keep what the batch left, by path, unless its states stay as they were, in memory of its own; its replies.
        matrix: of its features. shown: what its clients were shown."""
        own, count = MemoryIsolation(shown, self.recordings.captures), len(group)
        kept, sent = (
            {path: own.copy(settled(leaf, count, matrix)) for path, leaf in found.items()}
            for found in (state or {}, reply)
        )
        if state is not None:
            self._states.put(group, kept)
        return nest(sent)

    def _find_culprit(self, work: Work, group: Group) -> None:
        """Raise the loop's error, which names the one client at fault, if the loop fails too."""
        kept = self._states
        try:
            for client in group:
                self._states = kept.copy()
                self._alone(work, (client,))
        finally:
            self._states = kept

    def _renew(self, clients: Sequence[str]) -> None:
        self._batches.renew(clients)
        self._flats.clear()


class _Places:
    """Where clients stand among all that were called; of thousands that are all of these, without a look at each."""

    def __init__(self, clients: Sequence[str]) -> None:
        self._clients = tuple(clients)

    def of(self, group: Group) -> tuple[int, ...]:
        if group == self._clients:
            return tuple(range(len(group)))
        return tuple(map(self._place.__getitem__, group))

    @cached_property
    def _place(self) -> dict[str, int]:
        return dict(zip(self._clients, range(len(self._clients)), strict=True))
