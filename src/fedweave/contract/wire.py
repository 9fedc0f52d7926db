"""Engines that show what passes between server and clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from fedweave.core.algorithm import Algorithm
from fedweave.core.arrays import graph_tree, tree_graph
from fedweave.core.federation import DATA, Call, Client, Step
from fedweave.core.graph import Graph
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, decode, encode
from fedweave.engines.engine import LocalEngine
from fedweave.engines.loop import Loop
from fedweave.engines.sharded import Shard, Sharded, ShardedEngine, deal
from fedweave.engines.simulation import Simulation
from fedweave.engines.vectorised import Vectorised
from fedweave.engines.worker import Worker
from fedweave.ops.recording import When


class Recording(LocalEngine):
    """Keeps every call's replies, also those to other clients, as `heard`, and {round: the names of the steps called}
    as `ran`."""

    @cached_property
    def heard(self) -> list[Replies]:
        """In the order of the calls."""
        return []

    @cached_property
    def ran(self) -> dict[int, list[str]]:
        """In the order of the calls."""
        return {}

    def answer(self, call: Call) -> Replies:
        """See `LocalEngine`."""
        replies = super().answer(call)
        self.heard.append(replies)
        self.ran.setdefault(self.round, []).append(call.name)
        return replies


class Recorder(Recording, Simulation):
    """A simulation that keeps what was replied."""


class ShardedRecorder(Recording, ShardedEngine):
    """Clients dealt to `shards` executors, between which and the engine nothing but bytes passes; each has an algorithm
    of its own, which `rebuild` makes."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        shards: int,
        rebuild: Callable[[], Algorithm],
        mode: str = "vmap",
        test: Graph | None = None,
        record: When = "auto",
        **options: Any,
    ) -> None:
        self.passed = 0  # bytes
        self.requests: list[str] = []  # methods

        def shard(clients: Sequence[str]) -> Shard:
            own = {client: graphs[client] for client in clients}
            kind = partial(Vectorised, record=record) if mode == "vmap" else Loop
            worker = Worker(kind(own, classes=classes, test=test), rebuild())

            def channel(method: str, *blobs: bytes) -> Callable[[], bytes]:
                answer = worker.answer(method, *blobs)
                self.passed += len(answer) + sum(map(len, blobs))
                self.requests.append(method)
                return lambda: answer

            return Shard(clients, channel)

        parts = deal({client: graph.nodes for client, graph in graphs.items()}, shards)
        executor, dtype = Sharded(tuple(graphs), [*map(shard, parts)]), next(iter(graphs.values())).x.dtype
        super().__init__(executor, classes=classes, dtype=dtype, test=test, **options)


class BytesEngine(Simulation):
    """Lets nothing but bytes pass, as between organisations.

    Every message, reply and private state is serialised and parsed; `passed` counts the bytes, those between clients
    where they arrive.
    """

    def __init__(self, clients: Mapping[str, Graph], **options: Any) -> None:
        self.passed = {"up": 0, "down": 0, "peer": 0}
        super().__init__(clients, **(options | {"mode": "loop"}))

    def answer(self, call: Call) -> Replies:
        """See `LocalEngine`."""
        return super().answer(replace(call, step=self._wired(call.step, call.way != "send")))

    def _wired(self, step: Step, to_server: bool = True) -> Step:
        def wired(client: Client, message: Tree) -> Tree:
            came = {key: message.pop(key) for key in ("received", "present") if key in message}
            peers = {name: encode(tree) for name, tree in came.get("received", {}).items()}
            down = encode(message)
            read = partial(decode, device=client.graph.device)
            client.state = read(encode(client.state))
            came |= {"received": {name: read(blob) for name, blob in peers.items()}} if came else {}
            reply = step(client, read(down) | came)
            made = reply.pop(DATA, None)
            up = encode(reply)
            client.state = read(encode(client.state))
            self.passed["up"] += len(up if to_server else encode({}))
            self.passed["down"] += len(down)
            self.passed["peer"] += sum(map(len, peers.values()))
            return read(up) | ({} if made is None else {DATA: _stored(made)})

        wired.__name__ = step.__name__
        wired.__self__ = step.__self__  # type: ignore[attr-defined]
        wired.on_client = step.on_client  # type: ignore[attr-defined]
        return wired


def _stored(graph: Graph) -> Graph:
    return tree_graph(decode(encode(graph_tree(graph)))).to(graph.device)
