"""The specification: each step is called once per client, one after the other."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Placement
from fedweave.core.graph import Graph
from fedweave.core.measure import measured
from fedweave.core.members import by_size
from fedweave.core.portions import Batch, as_row
from fedweave.core.tree import Tree, check, leaves, map_leaves, to
from fedweave.engines.calls import check_permanent, of_client
from fedweave.engines.data import ClientData, accepted, taken
from fedweave.engines.executor import Metered, Ran, Work
from fedweave.engines.ownership import MemoryIsolation
from fedweave.engines.states import Group, States
from fedweave.engines.summing import check_terms
from fedweave.engines.watching import Watched, refuse_changes
from fedweave.errors import ReplyRefused, StepFailed, raised_at


class Loop:
    """Clients of one process, called one after the other.

    graphs: {client: its graph}, in client order. classes: of all graphs. test: the global test graph or None.
    places: {client: where its nodes stand in the whole graph}, for algorithms that ask for it.
    members: of the one client that holds what all members hold, {member: int64, which of its examples are its own}.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        test: Graph | None = None,
        places: Mapping[str, Placement] | None = None,
        members: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.clients, self.test = tuple(graphs), test
        self.device = next(iter(graphs.values())).device
        self.data = ClientData(graphs, classes)
        self._places, self._states = places or {}, States()
        _, self._members = by_size(members or {})
        self._ids = {client: torch.tensor(random.word(client), device=self.device) for client in self.clients}

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        """See `Executor`."""
        for at, client in enumerate(clients):
            yield self._timed(self._alone, work, (client,), (at,))

    def _timed(self, way: Callable[[Work, Group], Tree], work: Work, group: Group, at: tuple[int, ...]) -> Ran:
        began = time.perf_counter()
        with torch.no_grad():
            tree = way(work, group)
        seconds = (time.perf_counter() - began) / len(group)
        if work.info.sums:
            check_terms(work.info, group, tree)
        replies = Batch(at, tree)
        return Ran(replies, (Metered(at, measured(replies.one(0)), seconds),))

    def _alone(self, work: Work, group: Group) -> Tree:
        """One plain call."""
        (client,) = group
        me, messages = self._ids[client], work.messages
        place = self._places.get(client) if work.info.ragged else None
        key, secret = of_client(work.key, "client", me), of_client(work.key, "secret", me)
        state = {} if work.info.stateless else self._states.one(client)
        view = Client(self.data.graphs[client], state, key, secret, self.test, place, self._members)
        message = messages.one(client)
        given, before = [leaf for _, leaf in leaves(message) if isinstance(leaf, Tensor)], messages.versions()
        watched = Watched(view.graph, view.test, place)
        try:
            reply = work.step(view, message)
            made = taken(reply, work.info)
            check(reply, f"the reply of {work.name} from {client!r}")
            check(view.state, f"the state that {work.name} keeps at {client!r}")
            check_permanent(work.name, work.info, reply, view.state)
        except ReplyRefused:
            raise
        except Exception as error:
            raise StepFailed(
                f"step {work.name} failed on client {client!r}{raised_at(error)}: {type(error).__name__}: {error}"
            ) from error
        refuse_changes(work.name, before, messages)
        watched.refuse_changes(work.name, f"client {client!r}")
        if work.info.replaces_data:
            self._replace(client, made, work.name)
        own = MemoryIsolation([*given, *view.graph, *(made or ())])
        self._states.put(group, map_leaves(lambda leaf: as_row(own.copy(leaf)), view.state))
        return map_leaves(lambda leaf: as_row(own.copy(leaf)), reply)

    def _replace(self, client: str, made: object, step: str) -> None:
        where = f"the graph that {step} made for {client!r}"
        graph = None if made is None else accepted(made, self.data.graphs[client], self.data.classes, where)
        self.data.replace(client, graph)
        if graph is not None:
            self._renew([client])

    def _renew(self, clients: Sequence[str]) -> None:
        """Forget what was made of the data of `clients`, which has changed."""

    def snapshot(self) -> Tree:
        """See `Executor`."""
        kept = self._states.dump()
        return {client: kept[client] for client in self.clients if client in kept}

    def snapshot_data(self) -> Tree:
        """See `Executor`."""
        return self.data.dump()

    def restore(self, tree: Tree, data: Tree) -> None:
        """See `Executor`."""
        self._states = States()
        for client, state in tree.items():
            self._states.put(
                (client,), map_leaves(as_row, map_leaves(MemoryIsolation([]).copy, to(state, self.device)))
            )
        self.data.load(data)
        self._renew(self.clients)
