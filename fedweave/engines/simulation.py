"""All clients in one process: `loop` calls a step once per client and is the specification; `vmap` runs it for many
clients at once and gives the same numbers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.federation import Client, Placement, Sent, Step, step_name
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger
from fedweave.core.names import TAKEN
from fedweave.core.replies import Batch, Replies, as_row, row_of
from fedweave.core.stacked import Stacked
from fedweave.core.tree import Tree, check, leaves, map_leaves, nest, to
from fedweave.engines.batching import Batches
from fedweave.engines.calls import (
    Keys,
    called,
    check_declared,
    check_permanent,
    check_quorum,
    check_summed,
    receivers,
    sources,
    with_test,
)
from fedweave.engines.data import ClientData, accepted, taken
from fedweave.engines.invocation import Invocation, Own, Post
from fedweave.engines.memory import keep_freed_memory
from fedweave.engines.messages import Messages
from fedweave.engines.resending import LastSent
from fedweave.engines.states import Group, Readers, States
from fedweave.engines.summing import SumMeter, check_alike, check_terms
from fedweave.engines.vectorised import batch_dims, matrix_of, remedy, run_batch, settled, stacked_states
from fedweave.engines.watching import Watched
from fedweave.errors import ConfigError, ReplyRefused, StepFailed, raised_at
from fedweave.ops.recording import Recordings, When, traced
from fedweave.ops.touched import TouchedRows

MODES = ("vmap", "loop")


class Simulation:
    """A federation in one process.

    graphs: {client id: its graph}, in client order. classes: number of classes. test: global test graph or None.
    held:   further graphs of the server's, by role. places: {client id: where its nodes stand in the whole graph}, for
            algorithms that ask for it. pairs: the truth about every pair of clients, for comparisons.
    chunk:  clients run at once in mode "vmap"; 0 chooses by memory. absent: (round, client) -> reason or None, to
            rehearse clients that do not reply.
    record: when repeated steps of mode "vmap" are recorded, which changes no number: "auto" from the second time on,
            "always" from the first, "never".
    resend: count what clients still have from the previous message as sent again.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        test: Graph | None = None,
        held: Mapping[str, Graph] | None = None,
        places: Mapping[str, Placement] | None = None,
        pairs: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        mode: str = "vmap",
        chunk: int = 0,
        absent: Callable[[int, str], str | None] | None = None,
        record: When = "auto",
        resend: bool = True,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"engine mode {mode!r} is unknown; choose one of {', '.join(MODES)}.")
        if record not in get_args(When):
            raise ConfigError(f"engine record {record!r} is unknown; choose one of {', '.join(get_args(When))}.")
        if not graphs:
            raise ConfigError("a federation needs at least one client.")
        if bad := [client for client in graphs if not client or "/" in client]:
            raise ConfigError(f"client ids {bad} cannot name files and tree keys; use non-empty ids without '/'.")
        if taken := sorted(TAKEN & set(graphs)):
            raise ConfigError(
                f"no client can be called {' or '.join(taken)}: in a run's files that stands for others. Rename it."
            )
        keep_freed_memory()
        self.clients, self.classes, self.test, self.mode = tuple(graphs), classes, test, mode
        self.held: Mapping[str, Graph] = with_test(held or {}, test)
        self.pairs: Mapping[str, Tensor] = dict(pairs or {})
        self._places = places or {}
        first = next(iter(graphs.values()))
        self.dtype, self.device = first.x.dtype, first.device
        self.ledger, self._last = Ledger(), LastSent(resend)
        self._sums = SumMeter(self.ledger)
        self._data, self._absent = ClientData(graphs, classes), absent
        self._graphs = self._data.graphs
        self._batches = Batches(self._graphs, chunk)
        self._states, self._readers = States(), Readers()
        self.recordings = Recordings(record)
        self._keys = Keys(seed, self.device)
        self._ids = {client: torch.tensor(random.word(client), device=self.device) for client in self.clients}
        self.begin(0)

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """{client id: its current data}, for whoever owns it all; no algorithm may look."""
        return dict(self._graphs)

    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""
        self.round, self._calls = round, 0
        self._keys.begin(round)

    def key(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
        return self._keys.server(purpose)

    def map(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        received: Sent | None = None,
    ) -> Replies:
        """See `core.federation.Federation.map`."""
        return self._run(Invocation(step, self._keys, "map"), shared, each, clients, quorum, received)

    def send(
        self,
        step: Step,
        to: Mapping[str, Sequence[str]],
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        quorum: float = 1.0,
    ) -> Sent:
        """See `core.federation.Federation.send`."""
        found = sources(step_name(step), to, self.clients)
        replies = self._run(Invocation(step, self._keys, "send", to), shared, each, list(to), quorum)
        return Post(step_name(step), replies.clients, replies.missing, found, replies)

    def replace_data(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        received: Sent | None = None,
    ) -> Replies:
        """See `core.federation.Federation.replace_data`."""
        return self._run(Invocation(step, self._keys, "replace_data"), shared, each, clients, quorum, received)

    def _run(
        self,
        call: Invocation,
        shared: Tree | None,
        each: Mapping[str, Tree] | Stacked | None,
        clients: Sequence[str] | None,
        quorum: float,
        received: Sent | None = None,
    ) -> Replies:
        here, missing = self._present(call.name, receivers(call.name, clients, received), quorum)
        check_summed(call.name, call.info, len(here), self.clients, missing)
        peers = cast(Post, received).open() if received else None
        messages = Messages(call.name, shared, each, [*here, *missing], self.clients, peers, self.device)
        if call.info.sums:
            check_alike(call.name, messages)
            self._sums.prepare((self.round, self._calls), here)
        place = {client: at for at, client in enumerate(here)}
        batches: list[Batch] = []
        with torch.no_grad(), self.recordings.used():
            for group, alone in self._groups(call, here, messages):
                began = time.perf_counter()
                tree = (self._alone if alone else self._together)(call, group, messages)
                batches.append(Batch(tuple(place[client] for client in group), tree))
                self._note(call, group, messages, tree, (time.perf_counter() - began) / len(group))
        if call.info.sums:
            check_terms(call.info, here, batches)
            self._sums.opened((self.round, self._calls), here)
        self._calls += 1
        return Replies(here, batches, missing, call.info.sums)

    def _groups(self, call: Invocation, here: list[str], messages: Messages) -> Iterator[tuple[Group, bool]]:
        """Clients to call at once, and whether the call is instead a plain call of a single client."""
        looped = self.mode == "loop" or call.info.ragged
        for batch in [tuple(here)] if looped else self._batches.plan(here):
            for group in [batch] if looped else self._states.split(batch):
                alone = looped or messages.ragged(group)
                yield from [((client,), True) for client in group] if alone else [(group, False)]

    def _present(self, name: str, clients: Sequence[str] | None, quorum: float) -> tuple[list[str], dict[str, str]]:
        chosen = called(name, clients, self.clients, quorum)
        reasons = {c: self._absent(self.round, c) for c in chosen} if self._absent else {}
        missing = {client: reason for client, reason in reasons.items() if reason}
        check_quorum(name, quorum, len(chosen), missing)
        return [client for client in chosen if client not in missing], missing

    def _alone(self, call: Invocation, group: Group, messages: Messages) -> Tree:
        """The specification: one plain call."""
        (client,) = group
        me = self._ids[client]
        place = self._places.get(client) if call.info.ragged else None
        key, secret = call.key("client", me), call.key("secret", me)
        state = {} if call.info.forgets else self._states.one(client)
        view = Client(self._graphs[client], state, key, secret, self.test, place)
        message = messages.one(client)
        given, before = [leaf for _, leaf in leaves(message) if isinstance(leaf, Tensor)], messages.versions()
        watched = Watched(view.graph, view.test, place)
        try:
            reply = call.step(view, message)
            made = taken(reply, call.info)
            check(reply, f"the reply of {call.name} from {client!r}")
            check(view.state, f"the state that {call.name} keeps at {client!r}")
            check_permanent(call.name, call.info, reply, view.state)
        except ReplyRefused:
            raise
        except Exception as error:
            raise StepFailed(
                f"step {call.name} failed on client {client!r}{raised_at(error)}: {type(error).__name__}: {error}"
            ) from error
        call.refuse_changes(before, messages)
        watched.refuse_changes(call.name, f"client {client!r}")
        if call.info.replaces_data:
            self._replace(client, made, call.name)
        own = Own([*given, *view.graph, *(made or ())])
        self._states.put(group, map_leaves(lambda leaf: as_row(own.copy(leaf)), view.state))
        return map_leaves(lambda leaf: as_row(own.copy(leaf)), reply)

    def _replace(self, client: str, made: Any, step: str) -> None:
        where = f"the graph that {step} made for {client!r}"
        graph = None if made is None else accepted(made, self._graphs[client], self.classes, where)
        self._data.replace(client, graph)
        if graph is not None:
            self._batches.renew([client])

    def _together(self, call: Invocation, group: Group, messages: Messages) -> Tree:
        """The same for all clients of a batch at once."""
        ids = torch.stack([self._ids[client] for client in group])
        graphs, mine = self._batches.graph(group), messages.stacked(group)
        states: Tree = {}
        if not call.info.forgets:
            states = stacked_states(self._states, group, graphs, copy=call.step not in self._readers)
        inputs = (graphs, states, call.key("client", ids), call.key("secret", ids), mine)
        operands, spec = pytree.tree_flatten((inputs, messages.common(), self.test))
        private = batch_dims(inputs)
        dims = private + (None,) * (len(operands) - len(private))
        named = tuple(tuple(path for path, _ in leaves(tree)) for tree in (states, mine, messages.shared))
        names = (*named, tuple(isinstance(leaf, TouchedRows) and leaf.matrix is not None for _, leaf in leaves(states)))
        roots = graphs.roots if self.test is None else graphs.roots + self.test.roots
        before, held, watched = messages.versions(), self._readers.versions(states), Watched(graphs, self.test)
        try:
            reply, state = traced(lambda *flat: run_batch(call, spec, dims, flat), (call.step,), names, roots, operands)
        except (ReplyRefused, StepFailed):
            raise
        except Exception as error:
            self._find_culprit(call, group, messages)
            raise StepFailed(
                f"step {call.name} failed when vectorised over clients {group[0]!r} to {group[-1]!r}, though not on "
                f"any of them alone{raised_at(error)}: {type(error).__name__}: "
                f"{str(error).rstrip('.')}. {remedy(error)}"
            ) from error
        call.refuse_changes(before, messages)
        watched.refuse_changes(call.name, f"clients {group[0]!r} to {group[-1]!r}")
        self._readers.note(call.step, states, held)
        own = Own([leaf for leaf in pytree.tree_leaves((graphs, messages.shared, mine)) if isinstance(leaf, Tensor)])
        matrix = matrix_of(graphs)
        kept, sent = ({path: own.copy(settled(leaf, matrix)) for path, leaf in leaves(t)} for t in (state, reply))
        self._states.put(group, nest(kept))
        return nest(sent)

    def _find_culprit(self, call: Invocation, group: Group, messages: Messages) -> None:
        """Raise the loop's error, which names the one client at fault, if the loop fails too."""
        kept = self._states
        try:
            for client in group:
                self._states = kept.copy()
                self._alone(call, (client,), messages)
        finally:
            self._states = kept

    def _note(self, call: Invocation, group: Group, messages: Messages, tree: Tree, seconds: float) -> None:
        """Meter a batch: what the server sent to its clients and what they sent."""
        reply = nest({path: row_of(leaf, 0) for path, leaf in leaves(tree)})
        check_declared(call.name, call.info, reply)
        where = (self.round, self._calls, call.name)
        heard = call.info.message
        for part, sent in self._last.metered(group, messages):
            self.ledger.record(*where, part, "down", sent, 0.0, heard)
        if call.to is None:
            self.ledger.record(*where, group, "up", reply, seconds, call.info)
            return
        self.ledger.record(*where, group, "up", {}, seconds)
        if pairs := [(client, peer) for client in group for peer in call.to[client]]:
            senders, peers = zip(*pairs, strict=True)
            self.ledger.record(*where, senders, "peer", reply, 0.0, call.info, peers)

    def snapshot(self) -> Tree:
        """All clients' private states in client order, for a checkpoint."""
        kept = self._states.dump()
        return {client: kept[client] for client in self.clients if client in kept}

    def snapshot_data(self) -> Tree:
        """The versions of the clients' data, and the data itself where it was replaced, for a checkpoint."""
        return self._data.dump()

    def restore(self, tree: Tree, data: Tree | None = None) -> None:
        """Undo `snapshot` and `snapshot_data`."""
        self._states = States()
        for client, state in tree.items():
            self._states.put((client,), map_leaves(as_row, map_leaves(Own([]).copy, to(state, self.device))))
        self._data.load(data or {})
        self._batches.renew(self.clients)
