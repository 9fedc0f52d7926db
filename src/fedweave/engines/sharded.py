"""Executors side by side, each with its share of the clients: in this process, or wherever their channels lead."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from fedweave.core.ledger import Measured
from fedweave.core.portions import Sums
from fedweave.core.tree import Tree, leaves
from fedweave.engines.executor import Metered, Ran, Work
from fedweave.engines.worker import pack, request, unpack

Pending: TypeAlias = Callable[[], bytes]  # waits for an answer
Channel: TypeAlias = Callable[..., Pending]  # (method, *packed trees): starts `Worker.answer` where the worker is


class Shard:
    """One worker's side of a `Sharded` executor.

    clients: that it owns. channel: leads to it.
    """

    def __init__(self, clients: Sequence[str], channel: Channel) -> None:
        self.clients, self._channel = tuple(clients), channel
        self._done: list[int] = []  # numbers of replies that nobody holds any more

    def begin(self, method: str, tree: Tree) -> Pending:
        """Have the worker carry out a method."""
        return self._channel(method, pack(tree))

    def ask(self, method: str, tree: Tree | None = None) -> Tree:
        """Have the worker carry out a method, and wait for it."""
        return unpack(self.begin(method, tree or {})())

    def start(self, work: Work, clients: Sequence[str], shared: object) -> Pending:
        """Have it run a step on some of its clients."""
        done, self._done = self._done, []
        return self._channel("run", request(work, clients, done), shared)

    def finish(self, answer: bytes, at: Sequence[int]) -> Ran:
        """What a `start` gave; at: the positions of its clients among all that were called."""
        found = unpack(answer)
        places = tuple(at[own] for own in found["at"].tolist())
        groups = (
            Metered(tuple(at[own] for own in mine), Measured(size, tuple(map(tuple, parts))), seconds)
            for mine, (size, parts), seconds in json.loads(found["groups"])
        )
        return Ran(ShardPortion(self, found["number"], places, json.loads(found["dtypes"])), tuple(groups))

    def forget(self, number: int) -> None:
        """Let the worker drop replies with its next step."""
        self._done.append(number)


class ShardPortion:
    """Replies that are with a worker (see `core.portions.Portion`); sums of them are made there."""

    device = torch.device("cpu")  # where answers are unpacked

    def __init__(self, shard: Shard, number: int, at: tuple[int, ...], dtypes: Mapping[str, str]) -> None:
        self.at, self.paths = at, tuple(dtypes)
        self._shard, self._number, self._dtypes = shard, number, dtypes
        finalize(self, shard.forget, number)

    def one(self, row: int) -> Tree:
        """See `core.portions.Portion`."""
        return self._shard.ask("one", {"number": self._number, "row": row})

    def stack(self, path: str) -> Tensor:
        """See `core.portions.Portion`."""
        leaf: Tensor = self._shard.ask("stack", {"number": self._number, "path": path})["leaf"]
        return leaf

    def weighted(self, paths: Sequence[str], weights: Tensor) -> Sums:
        """See `core.portions.Portion`."""
        return self._sums("weighted", paths, {"weights": weights})

    def total(self, paths: Sequence[str]) -> Sums:
        """See `core.portions.Portion`."""
        return self._sums("total", paths, {})

    def dtype(self, path: str) -> torch.dtype:
        """See `core.portions.Portion`."""
        found: torch.dtype = vars(torch)[self._dtypes[path]]
        return found

    def _sums(self, method: str, paths: Sequence[str], more: Tree) -> Sums:
        answer = self._shard.begin(method, {"number": self._number, "paths": json.dumps(list(paths)), **more})
        return lambda: dict(leaves(unpack(answer())))


class Sharded:
    """An executor whose clients are dealt to shards; between it and them nothing passes but packed trees.

    clients: of all shards, in client order. Replies stay where they are: weighted sums and totals come back as one
    partial sum of each shard, which are added up in the order of the shards.

    share: puts what all clients are told where every channel finds it. device: where answers are unpacked.
    """

    device = torch.device("cpu")

    def __init__(
        self, clients: Sequence[str], shards: Sequence[Shard], share: Callable[[bytes], Any] = lambda blob: blob
    ) -> None:
        self.clients, self._shards, self._share = tuple(clients), tuple(shards), share

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self._shards)

    @property
    def computes_on(self) -> tuple[str, ...]:
        """See `Executor`."""
        found = [json.loads(shard.ask("computes_on")["names"]) for shard in self._shards]
        return tuple(dict.fromkeys(name for names in found for name in names))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        """See `Executor`."""
        place = {client: at for at, client in enumerate(clients)}
        shared, waiting = self._share(pack(work.messages.shared)), []
        for shard in self._shards:
            if here := [client for client in shard.clients if client in place]:
                waiting.append((shard, [place[client] for client in here], shard.start(work, here, shared)))
        for shard, at, answer in waiting:
            yield shard.finish(answer(), at)

    def snapshot(self) -> Tree:
        """See `Executor`."""
        return self._collected("snapshot")

    def snapshot_data(self) -> Tree:
        """See `Executor`."""
        return self._collected("snapshot_data")

    def restore(self, tree: Tree, data: Tree) -> None:
        """See `Executor`."""
        for shard in self._shards:
            own = {"states": _of(shard, tree), "data": _of(shard, data)}
            shard.ask("restore", own)

    def _collected(self, method: str) -> Tree:
        found: Tree = {}
        for shard in self._shards:
            found |= shard.ask(method)
        return {client: found[client] for client in self.clients if client in found}


def _of(shard: Shard, tree: Tree) -> Tree:
    return {client: tree[client] for client in shard.clients if client in tree}


def deal(sizes: Mapping[str, int], shards: int) -> list[tuple[str, ...]]:
    """Clients dealt to at most so many shards of nearly equal total size, each in client order: the largest first, to
    the shard that has least; sizes: {client: number of nodes}, in client order."""
    least = min(shards, len(sizes))
    held: list[list[str]] = [[] for _ in range(least)]
    total = [0] * least
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        at = total.index(min(total))
        held[at].append(client)
        total[at] += sizes[client]
    order = {client: place for place, client in enumerate(sizes)}
    return [tuple(sorted(own, key=order.__getitem__)) for own in held]
