"""The executor that calls each step once per client, one client after the other. It specifies what the faster ones
must compute."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import Graph
from fedweave.core.ledger import batch_form
from fedweave.core.model import Model
from fedweave.core.replies import ReplyBatch, as_row, members_by_size
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.engines.calls import of_client
from fedweave.engines.data import ClientData
from fedweave.engines.devices import device_name
from fedweave.engines.executor import GroupResult, StepResults, Work
from fedweave.engines.states import Group, MemoryIsolation, States
from fedweave.engines.steps import carry_out, check_message_unchanged, find_step
from fedweave.engines.sum_messages import check_terms
from fedweave.metrics.pooled import example_outputs
from fedweave.ops.touched_rows import materialize


class Loop:
    """The clients of one process, which owns their graphs and states and calls them one after the other.

    graphs: {client: its graph}, in client order. classes: number of classes in all graphs. test: the global test graph
            or None.
    members: for a single client that pools the members' data, {member: int64, the numbers of its examples}.
    member_algorithms: {client: its own algorithm}, for clients whose model differs from the others' model.
    device: where steps run; by default the device of the graphs. Graphs on another device are copied when they are
            first called, and the originals stay.
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
    ) -> None:
        self.device = next(iter(graphs.values())).device if device is None else device
        self.clients, self.test = tuple(graphs), None if test is None else test.to(self.device)
        self.data = ClientData(graphs, classes, self.device)
        self._states, self._member_algorithms = States(self.device), member_algorithms or {}
        _, rows = members_by_size(members or {})
        self._members = tuple(row.to(self.device) for row in rows)

    @property
    def computes_on(self) -> tuple[str, ...]:
        return (device_name(self.device),)

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[StepResults]:
        for at, client in enumerate(clients):
            yield self._time_call(self._run_client, work, (client,), (at,))

    def _time_call(
        self, call: Callable[[Work, Group], Tree], work: Work, group: Group, at: tuple[int, ...]
    ) -> StepResults:
        """The result of `call` on a group of clients, whose positions in the call are `at`; it returns their replies as
        one tree with leaves [clients, …]."""
        began = time.perf_counter()
        with torch.no_grad():
            tree = call(work, group)
        seconds = (time.perf_counter() - began) / len(group)
        if work.info.sums:
            check_terms(work.info, group, tree)
        replies = ReplyBatch(at, tree)
        return StepResults(replies, (GroupResult(at, batch_form(replies), seconds),))

    def _of(self, work: Work, client: str) -> Work:
        """The work as the client does it: with the step of its own algorithm, if it has one."""
        algorithm = self._member_algorithms.get(client)
        return work if algorithm is None else replace(work, step=find_step(algorithm, work.name))

    def _run_client(self, work: Work, group: Group) -> Tree:
        """Call the step on a single client; returns its reply with leaves [1, …]."""
        # What the step receives. It must not write into the message or the graphs.
        (client,) = group
        work = self._of(work, client)
        me = torch.tensor(random.word(client), device=self.device)
        key, secret = of_client(work.key, "client", me), of_client(work.key, "secret", me)
        state = {} if work.info.stateless else self._states.one(client)
        view = Client(self.data.on_device(client), state, key, secret, self.test, self._members, ranks=work.ranks)
        message, versions = work.messages.one(client), work.messages.versions()
        sent = [leaf for _, leaf in leaves(message) if isinstance(leaf, Tensor)]
        reply, new_graph = carry_out(work.step, work.name, work.info, view, message, f"client {client!r}")
        check_message_unchanged(work.name, versions, work.messages)
        # What the step returns or changes: new data, the client's state and the reply. State and reply share memory
        # neither with each other nor with what the step received.
        where = f"the graph that {work.name} made for {client!r}"
        if work.info.replaces_data and self.data.replace(client, new_graph, where, work.info.columns):
            self._renew([client])
        isolation = MemoryIsolation([*sent, *view.graph, *view.graph.extra.values(), *(new_graph or ())])
        if not work.info.apart:
            rows = {path: as_row(isolation.copy(materialize(leaf))) for path, leaf in leaves(view.state)}
            self._states.put(group, rows)
        return map_leaves(lambda leaf: as_row(isolation.copy(leaf)), reply)

    def _renew(self, clients: Sequence[str]) -> None:
        """Forget values derived from the data of `clients`, which has changed; a subclass may have such values."""

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> list[list[Tree]]:
        return [[example_outputs(model, w, self.data.on_device(client)) for client in clients]]

    def snapshot(self) -> Tree:
        states = self._states.dump()
        return {client: states[client] for client in self.clients if client in states}

    def stacked_snapshot(self) -> Tree:
        return self._states.stacked(self.clients)

    def snapshot_data(self) -> Tree:
        return self.data.dump()

    @contextmanager
    def untrained(self) -> Iterator[None]:
        states, data = self._states, self.snapshot_data()
        self.restore({}, {})
        try:
            yield
        finally:
            self._states = states
            self._restore_data(data)

    def restore(self, tree: Tree, data: Tree) -> None:
        self._states = States(self.device)
        self._states.load(tree)
        self._restore_data(data)

    def _restore_data(self, data: Tree) -> None:
        if data or self.data.versions:
            self.data.load(data)
            self._renew(self.clients)
