"""Engines that show what passes between server and clients."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedweave.core.arrays import graph_tree, tree_graph
from fedweave.core.federation import DATA, Client, Sent, Step, step_name
from fedweave.core.graph import Graph
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, decode, encode
from fedweave.engines.simulation import Simulation


class Recorder(Simulation):
    """Keeps every call's replies, also those to other clients, as `heard`, and {round: the names of the steps called}
    as `ran`."""

    def __init__(self, clients: Mapping[str, Graph], **options: Any) -> None:
        self.heard: list[Any] = []
        self.ran: dict[int, list[str]] = {}
        super().__init__(clients, **options)

    def map(self, step: Step, *args: Any, **options: Any) -> Replies:
        """See `Simulation.map`."""
        return self._kept(step, super().map(step, *args, **options))

    def send(self, step: Step, *args: Any, **options: Any) -> Sent:
        """See `Simulation.send`."""
        sent: Any = super().send(step, *args, **options)
        self._kept(step, sent.content)
        return sent

    def replace_data(self, step: Step, *args: Any, **options: Any) -> Replies:
        """See `Simulation.replace_data`."""
        return self._kept(step, super().replace_data(step, *args, **options))

    def _kept(self, step: Step, replies: Any) -> Any:
        self.heard.append(replies)
        self.ran.setdefault(self.round, []).append(step_name(step))
        return replies


class BytesEngine(Simulation):
    """Lets nothing but bytes pass, as between organisations.

    Every message, reply and private state is serialised and parsed; `passed` counts the bytes, those between clients
    where they arrive.
    """

    def __init__(self, clients: Mapping[str, Graph], **options: Any) -> None:
        self.passed = {"up": 0, "down": 0, "peer": 0}
        super().__init__(clients, **(options | {"mode": "loop"}))

    def map(self, step: Step, *args: Any, **options: Any) -> Replies:
        """See `Simulation.map`."""
        return super().map(self._wired(step), *args, **options)

    def send(self, step: Step, *args: Any, **options: Any) -> Sent:
        """See `Simulation.send`."""
        return super().send(self._wired(step, to_server=False), *args, **options)

    def replace_data(self, step: Step, *args: Any, **options: Any) -> Replies:
        """See `Simulation.replace_data`."""
        return super().replace_data(self._wired(step), *args, **options)

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
    return tree_graph(decode(encode(graph_tree(graph))), graph.x.shape[1]).to(graph.device)
