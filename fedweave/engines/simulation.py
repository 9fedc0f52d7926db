"""All clients in one process: `loop` calls a step once per client and is the specification; `vmap` runs it for many
clients at once and gives the same numbers."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.federation import Client, Step, step_info, step_name
from fedweave.core.replies import Batch, Replies, row_of
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger
from fedweave.core.touched import TouchedRows
from fedweave.core.tree import Tree, check, full, leaves, map_leaves, nest
from fedweave.engines.batching import Batches
from fedweave.engines.memory import keep_freed_memory
from fedweave.engines.states import States
from fedweave.errors import ClientsMissing, ConfigError, FedweaveError, ReplyRefused, StepFailed

MODES = ("vmap", "loop")


class Simulation:
    """A federation in one process.

    graphs: {client id: its graph}, in client order. classes: number of classes. test: global test graph or None.
    chunk:  clients run at once in mode "vmap"; 0 chooses by memory. absent: (round, client) -> reason or None, to
            rehearse clients that do not reply.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        test: Graph | None = None,
        seed: int = 0,
        mode: str = "vmap",
        chunk: int = 0,
        absent: Callable[[int, str], str | None] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"engine mode {mode!r} is unknown; choose one of {', '.join(MODES)}.")
        if not graphs:
            raise ConfigError("a federation needs at least one client.")
        keep_freed_memory()
        self.clients, self.classes, self.test, self.mode = tuple(graphs), classes, test, mode
        self.dtype = next(iter(graphs.values())).x.dtype
        self.ledger = Ledger()
        self._graphs, self._absent = dict(graphs), absent
        self._batches = Batches(self._graphs, chunk)
        self._states = States()
        self._root = random.key(seed)
        self._ids = {client: torch.tensor(random.word(client)) for client in self.clients}
        self.begin(0)

    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""
        self.round, self._calls, self._times = round, 0, {}
        self._round_key = random.fold(self._root, "round", round)

    def key(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
        return random.fold(self._round_key, "server", purpose)

    def map(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        protect: Mapping[str, str] | None = None,
    ) -> Replies:
        """See `core.federation.Federation.map`."""
        name, info = step_name(step), step_info(step)
        here, missing = self._present(name, clients, quorum)
        shared, each = check(shared or {}, f"the message of {name}"), each or {}
        again = self._times[name] = self._times.get(name, -1) + 1
        call = random.fold(self._round_key, "step", name, again)
        batches: list[Batch] = []
        place = {client: at for at, client in enumerate(here)}
        looped = self.mode == "loop" or info.ragged
        with torch.no_grad():
            for group in self._groups(here, each, looped):
                began = time.perf_counter()
                run = self._alone if looped else self._together
                tree = run(step, name, group, shared, each, call)
                batches.append(Batch(tuple(place[client] for client in group), tree))
                self._note(name, info, group, shared, each, tree, (time.perf_counter() - began) / len(group), protect)
        self._calls += 1
        return Replies(here, batches, missing)

    def _groups(self, here: list[str], each: Mapping[str, Tree], looped: bool) -> list[tuple[str, ...]]:
        if looped:
            return [(client,) for client in here]
        return [part for group in self._batches.plan(here) for part in self._states.split(group)]

    def _present(self, name: str, clients: Sequence[str] | None, quorum: float) -> tuple[list[str], dict[str, str]]:
        called = self.clients if clients is None else tuple(clients)
        unknown = [client for client in called if client not in self._graphs]
        if unknown or len(set(called)) < len(called):
            raise FedweaveError(f"{name} was called on {unknown or called}: unknown or repeated clients.")
        called = tuple(client for client in self.clients if client in set(called))
        reasons = {c: self._absent(self.round, c) for c in called} if self._absent else {}
        missing = {client: reason for client, reason in reasons.items() if reason}
        wanted = max(1, -(-int(quorum * len(called) * 10**9) // 10**9))
        if len(called) - len(missing) < wanted:
            raise ClientsMissing(name, missing, wanted, len(called))
        return [client for client in called if client not in missing], missing

    def _client_key(self, call: Tensor, ids: Tensor, purpose: str) -> Tensor:
        return random.fold(call, purpose, ids)

    def _alone(self, step: Step, name: str, group: Any, shared: Tree, each: Any, call: Tensor) -> Tree:
        """The specification: one plain call."""
        (client,) = group
        me = self._ids[client]
        view = Client(
            self._graphs[client], self._states.one(client), self._client_key(call, me, "client"),
            self._client_key(call, me, "secret"), self.test,
        )  # fmt: skip
        message = {**shared, **check(each.get(client, {}), f"the message of {name} to {client}")}
        before = _versions(message)
        try:
            reply = check(step(view, message), f"the reply of {name} from {client}")
            check(view.state, f"the state that {name} keeps at {client}")
        except ReplyRefused:
            raise
        except Exception as error:
            raise StepFailed(f"step {name} failed on client {client!r}: {type(error).__name__}: {error}") from error
        if _versions(message) != before:
            raise StepFailed(f"step {name} changed its message in place on client {client!r}; copy the tensor first.")
        self._states.put(group, map_leaves(_lead, view.state))
        return map_leaves(_lead, reply)

    def _together(self, step: Step, name: str, group: Any, shared: Tree, each: Any, call: Tensor) -> Tree:
        """The same for all clients of a batch at once."""
        ids = torch.stack([self._ids[client] for client in group])
        own = [check(each.get(client, {}), f"the message of {name} to {client}") for client in group]
        inputs = (
            self._batches.graph(group), self._states.many(group), self._client_key(call, ids, "client"),
            self._client_key(call, ids, "secret"), _stack_trees(own),
        )  # fmt: skip
        found: dict[str, Any] = {}

        def one(graph: Graph, state: Tree, key: Tensor, secret: Tensor, mine: Tree) -> tuple[Tensor, ...]:
            view = Client(graph, dict(state), key, secret, self.test)
            reply = check(step(view, {**shared, **mine}), f"the reply of {name}")
            check(view.state, f"the state that {name} keeps")
            values, found["spec"] = pytree.tree_flatten((reply, view.state))
            found["fixed"] = [None if isinstance(value, Tensor) else value for value in values]
            return tuple(value for value in values if isinstance(value, Tensor))

        try:
            outputs = iter(vmap(one, in_dims=_dims(inputs))(*inputs))
        except ReplyRefused:
            raise
        except Exception as error:
            self._find_culprit(step, name, group, shared, each, call)
            raise StepFailed(
                f"step {name} failed when vectorised over clients {group[0]!r} to {group[-1]!r}, though not on any of them "
                f"alone: {type(error).__name__}: {error}. Mark it @on_client(ragged=True) if its shapes depend on data."
            ) from error
        values = [next(outputs) if value is None else value for value in found["fixed"]]
        reply, state = pytree.tree_unflatten(values, found["spec"])
        self._states.put(group, map_leaves(lambda leaf: leaf, _settle(state)))
        return _settle(reply)

    def _find_culprit(self, step: Step, name: str, group: Any, shared: Tree, each: Any, call: Tensor) -> None:
        """Raise the loop's error, which names the one client at fault, if the loop fails too."""
        kept = self._states
        for client in group:
            self._states = kept.copy()
            try:
                self._alone(step, name, (client,), shared, each, call)
            finally:
                self._states = kept

    def _note(self, name: str, info: Any, group: Any, shared: Tree, each: Any, tree: Tree, seconds: float, protect: Any) -> None:
        """Meter a batch: what its clients were sent and what they sent."""
        reply = nest({path: row_of(leaf, 0) for path, leaf in leaves(tree)})
        undeclared = [key for key in reply if key not in info.sends]
        if undeclared:
            declared = ", ".join(info.sends) or "nothing"
            raise ReplyRefused(
                f"step {name} replies with {', '.join(undeclared)}, but declares {declared}. "
                "Add it to @on_client(sends={…}) with what the receiver learns from it."
            )
        where = (self.round, self._calls, name)
        down = shared if not each else None
        if down is not None:
            self.ledger.record(*where, group, "down", down)
        else:
            for client in group:
                self.ledger.record(*where, (client,), "down", {**shared, **each.get(client, {})})
        self.ledger.record(*where, group, "up", reply, seconds, protect, info.sends)

    def snapshot(self) -> Tree:
        """All clients' private states, for a checkpoint."""
        return self._states.dump()

    def restore(self, tree: Tree) -> None:
        """Undo `snapshot`."""
        self._states = States()
        for client, state in tree.items():
            self._states.put((client,), map_leaves(_lead, state))


def _lead(leaf: Any) -> Any:
    return leaf.detach().clone()[None] if isinstance(leaf, Tensor) else leaf


def _versions(message: Tree) -> list[int]:
    return [leaf._version for _, leaf in leaves(message) if isinstance(leaf, Tensor)]


def _dims(inputs: Any) -> Any:
    return pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, inputs)


def _settle(tree: Tree) -> Tree:
    """`vmap` repeats what all clients share; keep it once."""

    def settled(leaf: Any) -> Any:
        return TouchedRows(leaf.rest[0], leaf.rows, leaf.values) if isinstance(leaf, TouchedRows) else leaf

    return nest({path: settled(leaf) for path, leaf in leaves(tree)})


def _stack_trees(trees: list[Tree]) -> Tree:
    """Per-client messages with equal structure, stacked; numbers become tensors."""
    flats = [dict(leaves(tree)) for tree in trees]
    if any(flat.keys() != flats[0].keys() for flat in flats):
        raise FedweaveError("`each` must send the same keys to every client that it names, and name all called clients or none.")
    stacked = {p: torch.stack([torch.as_tensor(full(flat[p])) for flat in flats]) for p in flats[0]}
    return nest(stacked)
