"""The fast path: each step is called once for a whole batch of clients, and repeated steps are recorded."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.sizes import fillings
from fedweave.core.tree import Tree, leaves, nest
from fedweave.engines.batch_calls import (
    Batches,
    batch_dims,
    first,
    matrix_of,
    remedy,
    run_batch,
    settled,
    stacked_states,
    told_memory,
)
from fedweave.engines.calls import of_client
from fedweave.engines.executor import Ran, Work
from fedweave.engines.loop import Loop
from fedweave.engines.states import Group, MemoryIsolation, Readers
from fedweave.engines.steps import Watched, refuse_changes
from fedweave.errors import ConfigError, OutOfMemory, ReplyRefused, StepFailed, out_of_memory, raised_at
from fedweave.ops.capture import Lasting, recorder_for
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
            raise ConfigError(f"engine record {record!r} is unknown; choose one of {', '.join(get_args(When))}.")
        super().__init__(graphs, classes=classes, test=test, members=members, own=own, device=device)
        self._batches, self._readers = Batches(self.data.graphs, chunk, self.device, self._own), Readers()
        self._group_ids: dict[Group, Tensor] = {}
        self._called: dict[str, int] = {}  # how many, by each step's last call
        self.recordings = Recordings(record, recorder_for(self.device))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        """See `Executor`."""
        if work.info.ragged:
            yield from super().run(work, clients)
            return
        place = {client: at for at, client in enumerate(clients)}
        as_before = self._called.get(work.name, len(clients)) == len(clients)
        self._called[work.name] = len(clients)
        for batch in self._batches.plan(clients):
            alike = as_before and len(batch) == len(clients)
            for group, size in self._parts(batch, alike or len(clients) == len(self.clients)):
                if work.messages.ragged(group):
                    for client in group:
                        yield self._timed(self._alone, work, (client,), (place[client],))
                else:
                    together = partial(self._together, size=size)
                    with self.recordings.used():
                        ran = self._timed(together, work, group, tuple(place[client] for client in group))
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
        states: Tree = {}
        if not work.info.stateless:
            states = stacked_states(self._states, group, graphs, copy=work.step not in self._readers)
        keys = of_client(work.key, "client", ids), of_client(work.key, "secret", ids)
        inputs = (graphs, states, *keys, mine)
        operands, spec = pytree.tree_flatten((inputs, messages.common(), self.test, self._members))
        private = batch_dims(inputs)
        dims = private + (None,) * (len(operands) - len(private))
        named = tuple(tuple(path for path, _ in leaves(tree)) for tree in (states, mine, messages.shared))
        names = (*named, tuple(isinstance(leaf, TouchedRows) and leaf.matrix is not None for _, leaf in leaves(states)))
        roots = graphs.roots if self.test is None else graphs.roots + self.test.roots
        before, held, watched = messages.versions(), self._readers.versions(states), Watched(graphs, self.test)
        try:
            reply, state = traced(
                lambda *flat: run_batch(work, spec, dims, flat),
                (work.step,),
                names,
                roots,
                operands,
                self._lasting(version, graphs, len(operands)),
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
        refuse_changes(work.name, before, messages)
        watched.refuse_changes(work.name, f"clients {group[0]!r} to {group[-1]!r}")
        self._readers.note(work.step, states, held)
        return self._kept(called, None if work.info.apart else state, reply, graphs, [messages.shared, mine])

    def _ids_of(self, group: Group) -> Tensor:
        """What each client's randomness is made of, int64 [P]."""
        if group not in self._group_ids:
            if len(self._group_ids) >= _GROUPS:
                self._group_ids.clear()
            self._group_ids[group] = torch.tensor([random.word(client) for client in group], device=self.device)
        return self._group_ids[group]

    def _lasting(self, version: int, graphs: Graph, operands: int) -> Lasting:
        """The stacked graphs, which come first, and what all batches are told of the data, which comes last."""
        first, last = (len(pytree.tree_leaves(own)) for own in (graphs, (self.test, self._members)))
        return Lasting(version, frozenset((*range(first), *range(operands - last, operands))))

    def _kept(self, group: Group, state: Tree | None, reply: Tree, graphs: Graph, told: list[Tree]) -> Tree:
        """Keep what the batch left, unless its states stay as they were, in memory of its own; its replies."""
        own = MemoryIsolation([leaf for leaf in pytree.tree_leaves((graphs, *told)) if isinstance(leaf, Tensor)])
        matrix, count = matrix_of(graphs), len(group)
        kept, sent = (
            {path: own.copy(first(settled(leaf, matrix), count)) for path, leaf in leaves(tree)}
            for tree in (state or {}, reply)
        )
        if state is not None:
            self._states.put(group, nest(kept))
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
