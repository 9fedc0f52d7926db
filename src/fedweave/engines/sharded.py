"""An executor in another process, on another device or another machine, reached by bytes: engine and executor exchange
only encoded trees.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from fedweave.algorithms.deployment import deployable
from fedweave.core.federation import StepInfo, step_info
from fedweave.core.ledger import MessageForm
from fedweave.core.model import Model
from fedweave.core.replies import Joint, Portion, ReplyBatch, Stacked, Sums, as_row
from fedweave.core.tree import Tree, decode, encode, leaves, map_leaves, nest
from fedweave.engines.calls import find_step
from fedweave.engines.engine import GroupResult, Ran, Work
from fedweave.engines.loop import Loop
from fedweave.engines.messages import Messages
from fedweave.errors import FedweaveError

_ORDER = "order"


def pack(tree: Tree) -> bytes:
    """Serialize a tree with the order of its leaves, because the last bit of a sum may depend on the order."""
    return encode({"tree": tree, _ORDER: json.dumps([path for path, _ in leaves(tree)])})


def unpack(blob: bytes, device: torch.device | str = "cpu") -> Tree:
    """Undo `pack`; the tensors are on `device`."""
    content = decode(blob, device=device)
    flat = dict(leaves(content.get("tree", {})))
    return nest({path: flat[path] for path in json.loads(content[_ORDER])})


def request(
    work: Work, clients: Sequence[str], done: Sequence[int] = (), ahead: Sequence[Tree] = (), everyone: bool = False
) -> bytes:
    """A call of some clients without the shared part of the message, which is packed once for all executors.

    done: numbers of replies that are no longer needed. ahead: queries for the replies, answered together with the call.
    everyone: whether these are all clients of the executor, which knows their names.
    """
    called, messages = set(clients), work.messages
    names = [client for client in messages.rows.clients if client in called]
    tree: Tree = {
        "step": work.name,
        "key": work.key,
        "done": json.dumps(list(done)),
        "ahead": {str(at): query for at, query in enumerate(ahead)},
        "each": {client: tree for client, tree in messages.each.items() if client in called},
        "peers": {client: tree for client, tree in messages.peers.items() if client in called},
    }
    if not everyone:
        tree["clients"] = json.dumps(list(clients))
    if names:
        tree["rows"] = {"tree": messages.rows.of(names)}
        if names != list(clients):
            tree["rows"]["clients"] = json.dumps(names)
    return pack(tree)


def read_request(
    asked: Tree, shared: Tree, device: torch.device, everyone: Sequence[str] = ()
) -> tuple[list[str], Messages]:
    """The clients and messages of a `request`, whose numbers become tensors on `device`; everyone: all clients of the
    reader."""
    clients = json.loads(asked["clients"]) if "clients" in asked else list(everyone)
    each: Any = asked.get("each")
    if rows := asked.get("rows"):
        each = Stacked(tuple(json.loads(rows["clients"]) if "clients" in rows else clients), rows["tree"])
    return clients, Messages(asked["step"], shared, each, clients, clients, asked.get("peers"), device)


def call(asked: Tree, messages: Messages, step: Any, info: StepInfo) -> Work:
    """The work of a `request`, with the executor's own step."""
    return Work(step, asked["step"], info, asked["key"], messages)


class Worker:
    """Owns an executor and an algorithm, whose steps are called by name. Replies stay here until the engine asks for
    them, or for sums of them.

    executor: executor of this worker's clients. algorithm: rebuilt from the run's configuration.
    """

    def __init__(self, executor: Loop, algorithm: object) -> None:
        self._executor, self._algorithm = executor, algorithm
        self._kept: dict[int, Portion] = {}
        self._number = 0
        self._methods: Mapping[str, Callable[..., Tree]] = {
            "run": self._run,
            "computes_on": lambda body: {"names": json.dumps(self._executor.computes_on)},
            "one": lambda body: self._of(body).one(body["row"]),
            "rows": lambda body: _rows(self._of(body)),
            "stack": lambda body: {"leaf": self._of(body).stack(body["path"])},
            "weighted": lambda body: nest(self._of(body).weighted(json.loads(body["paths"]), body["weights"])()),
            "total": lambda body: nest(self._of(body).total(json.loads(body["paths"]))()),
            "example_outputs": self._evaluated_examples,
            "snapshot": lambda body: self._executor.snapshot(),
            "snapshot_data": lambda body: self._executor.snapshot_data(),
            "restore": self._restore,
            "save": self._save,
        }

    def answer(self, method: str, *blobs: bytes) -> bytes:
        """Run one of its methods on packed trees."""
        return pack(self._methods[method](*(unpack(blob, self._executor.device) for blob in blobs)))

    def _run(self, body: Tree, shared: Tree) -> Tree:
        self._drop(body)
        step = find_step(self._algorithm, body["step"])
        clients, messages = read_request(body, shared, self._executor.device, self._executor.clients)
        ran = list(self._executor.run(call(body, messages, step, step_info(step)), clients))
        replies = Joint([batch.replies for batch in ran])
        number, self._number = self._number, self._number + 1
        self._kept[number] = replies
        dtypes = {path: str(replies.dtype(path)).removeprefix("torch.") for path in replies.paths}
        groups = [(len(group.at), group.form, group.seconds) for batch in ran for group in batch.groups]
        return {
            "number": number,
            "at": torch.tensor(replies.at, dtype=torch.int32, device="cpu"),
            "dtypes": json.dumps(dtypes),
            "groups": json.dumps(groups),
            "ahead": {key: self._ahead(number, one) for key, one in body.get("ahead", {}).items()},
        }

    def _evaluated_examples(self, asked: Tree) -> Tree:
        """{client: outputs of the algorithm's model with weights "w" on its examples} of the "clients"."""
        net, clients = deployable(self._algorithm).net, json.loads(asked["clients"])
        return dict(zip(clients, self._executor.example_outputs(net, asked["w"], clients), strict=True))

    def _ahead(self, number: int, query: Tree) -> Tree:
        """The answer for the new replies to a query that was asked of this step's last replies. It is {} if the
        query fails, so that a later query raises the error."""
        try:
            return {"found": self._methods[query["method"]](query | {"number": number})}
        except (FedweaveError, ArithmeticError, LookupError, RuntimeError, ValueError):
            return {}

    def _of(self, body: Tree) -> Portion:
        return self._kept[body["number"]]

    def _drop(self, body: Tree) -> None:
        """Drop replies that are no longer needed."""
        for number in json.loads(body.get("done", "[]")):
            self._kept.pop(number, None)

    def _save(self, body: Tree) -> Tree:
        """Everything that a replacing worker must `_restore` before the request `body`; the number belongs to the next
        replies."""
        self._drop(body)
        portions = {
            str(number): {str(at): {"at": at, "reply": replies.one(row)} for row, at in enumerate(replies.at)}
            for number, replies in self._kept.items()
        }
        states, data = self._executor.snapshot(), self._executor.snapshot_data()
        return {"states": states, "data": data, "number": self._number, "kept": portions}

    def _restore(self, body: Tree) -> Tree:
        self._executor.restore(body.get("states", {}), body.get("data", {}))
        self._number = body.get("number", self._number)
        for number, replies in body.get("kept", {}).items():
            rows = [
                ReplyBatch((reply["at"],), map_leaves(as_row, reply.get("reply", {}))) for reply in replies.values()
            ]
            self._kept[int(number)] = Joint(rows)
        return {}


def _rows(replies: Portion) -> Tree:
    """All clients' replies, by row."""
    return {str(row): replies.one(row) for row in range(len(replies.at))}


# ----------------------------------------------------------------------------------------------------
# Executors side by side, each with its share of the clients: in this process, or at the other end of their channels.


Pending: TypeAlias = Callable[[], bytes]  # waits for an answer
Channel: TypeAlias = Callable[..., Pending]  # (method, *packed trees): starts `Worker.answer` where the worker is
_SUMS = ("weighted", "total")  # answers that the engine adds up in place
_TOGETHER = 64_000_000  # bytes of replies up to which all replies come together if several are needed


class ReplyRequests:
    """The queries for each step's replies. The next call of the step repeats them, so that a round has few messages.
    Weighted sums are repeated only if their weights were equal twice."""

    def __init__(self) -> None:
        self._now: dict[str, dict[str, Tree]] = {}  # {step: {query's name: the query for the last replies}}
        self._before: dict[str, dict[str, Tree]] = {}

    def note(self, step: str, what: str, asked: Tree) -> None:
        """Note a query for the last replies to a step."""
        self._now.setdefault(step, {})[what] = asked

    def ahead(self, step: str) -> dict[str, Tree]:
        """The queries to send with the next call of the step."""
        before, self._before[step] = self._before.get(step, {}), self._now.pop(step, {})
        return {what: query for what, query in self._before[step].items() if _alike(query, before.get(what, {}))}


def _alike(query: Tree, before: Tree) -> bool:
    """Whether both queries have the same weights, or the first has none."""
    weights, last = query.get("weights"), before.get("weights")
    return weights is None or (last is not None and torch.equal(weights, last))


class Shard:
    """One worker's side of a `Sharded` executor.

    clients: the clients that it owns, in its order. channel: leads to the worker.
    """

    def __init__(self, clients: Sequence[str], channel: Channel) -> None:
        self.clients, self._channel, self.asked = tuple(clients), channel, ReplyRequests()
        self._done: list[int] = []  # numbers of replies that are no longer needed

    def begin(self, method: str, tree: Tree) -> Pending:
        """Let the worker run a method."""
        return self._channel(method, pack(tree))

    def start(self, work: Work, clients: Sequence[str], shared: object) -> Callable[[Sequence[int]], Ran]:
        """Let the worker run a step on some of its clients. The result waits for the worker, and takes the positions of
        these clients among all called clients."""
        done, self._done = self._done, []
        ahead = self.asked.ahead(work.name)
        everyone = len(clients) == len(self.clients)
        answer = self._channel("run", request(work, clients, done, [*ahead.values()], everyone), shared)
        return lambda at: self._finished(work.name, ahead, unpack(answer()), at)

    def _finished(self, step: str, ahead: Mapping[str, Tree], answer: Tree, at: Sequence[int]) -> Ran:
        places, groups, start, total = [at[index] for index in answer["at"].tolist()], [], 0, 0
        for count, (size, parts), seconds in json.loads(answer["groups"]):
            form = MessageForm(size, tuple(map(tuple, parts)))
            groups.append(GroupResult(tuple(places[start : start + count]), form, seconds))
            start, total = start + count, total + count * size
        answers = {
            what: (query, answer["ahead"][str(number)]["found"])
            for number, (what, query) in enumerate(ahead.items())
            if "found" in answer.get("ahead", {}).get(str(number), {})
        }
        replies = ShardPortion(
            self, step, answer["number"], tuple(places), json.loads(answer["dtypes"]), answers, total > _TOGETHER
        )
        return Ran(replies, tuple(groups))

    def forget(self, number: int) -> None:
        """Let the worker drop replies with its next step."""
        self._done.append(number)


class ShardPortion:
    """Replies at a worker (see `core.replies.Portion`), which also computes their sums.

    answers: {query's name: (query, answer)} of the queries that were sent with the step. apart: whether replies are so
    large that they are requested one by one.
    """

    device = torch.device("cpu")  # device of unpacked answers

    def __init__(
        self,
        shard: Shard,
        step: str,
        number: int,
        at: tuple[int, ...],
        dtypes: Mapping[str, str],
        answers: dict[str, tuple[Tree, Tree]],
        apart: bool,
    ) -> None:
        self.at, self.paths = at, tuple(dtypes)
        self._shard, self._step, self._number, self._dtypes, self._told = shard, step, number, dtypes, answers
        self._row: int | None = None  # the first row that was requested
        self._apart = apart
        finalize(self, shard.forget, number)

    def one(self, row: int) -> Tree:
        if "rows" not in self._told and (self._apart or self._row in (None, row)):
            self._row = row
            return self._answer("one", {"row": row})()
        reply: Tree = self._answer("rows", {})().get(str(row), {})  # a second request fetches all rows
        return reply

    def stack(self, path: str) -> Tensor:
        leaf: Tensor = self._answer("stack", {"path": path})()["leaf"]
        return leaf

    def weighted(self, paths: Sequence[str], weights: Tensor) -> Sums:
        return self._sums("weighted", {"paths": json.dumps(list(paths)), "weights": weights})

    def total(self, paths: Sequence[str]) -> Sums:
        return self._sums("total", {"paths": json.dumps(list(paths))})

    def dtype(self, path: str) -> torch.dtype:
        dtype: torch.dtype = vars(torch)[self._dtypes[path]]
        return dtype

    def _sums(self, method: str, how: Tree) -> Sums:
        answer = self._answer(method, how)
        return lambda: dict(leaves(answer()))

    def _answer(self, method: str, how: Tree) -> Callable[[], Tree]:
        """Start a query, unless its answer is already here."""
        query = {"method": method, **how}
        what = " ".join(str(value) for key, value in query.items() if key != "weights")
        self._shard.asked.note(self._step, what, query)
        often = method not in _SUMS
        known, reply = self._told.get(what, ({}, {})) if often else self._told.pop(what, ({}, {}))
        if reply and _alike(query, known):
            return lambda: reply
        answer = self._shard.begin(method, {"number": self._number, **how})

        def wait() -> Tree:
            result = unpack(answer())
            if often:
                self._told[what] = query, result
            return result

        return wait


class Sharded:
    """An executor whose clients are dealt to shards; it exchanges only packed trees with them.

    clients: the clients of all shards, in client order. Replies stay with the workers: weighted sums and totals come
    back as one partial sum of each shard, which are added up in the order of the shards.

    share: stores the shared part of a message where every channel finds it. device: device of unpacked answers.
    """

    device = torch.device("cpu")

    def __init__(
        self, clients: Sequence[str], shards: Sequence[Shard], share: Callable[[bytes], Any] = lambda blob: blob
    ) -> None:
        self.clients, self._shards, self._share = tuple(clients), tuple(shards), share
        self._last: tuple[bytes, object] | None = None  # (packed, result of `share`)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def computes_on(self) -> tuple[str, ...]:
        name_lists = [json.loads(answer["names"]) for answer in self._each("computes_on")]
        return tuple(dict.fromkeys(name for names in name_lists for name in names))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        place = {client: at for at, client in enumerate(clients)}
        shared, waiting = self._shared(pack(work.messages.shared)), []
        for shard in self._shards:
            if here := [client for client in shard.clients if client in place]:
                waiting.append((shard.start(work, here, shared), [place[client] for client in here]))
        for ran, at in waiting:
            yield ran(at)

    def _shared(self, blob: bytes) -> object:
        """The shared part of a message, where channels find it; an unchanged part is stored once."""
        if self._last is None or self._last[0] != blob:
            self._last = blob, self._share(blob)
        return self._last[1]

    def snapshot(self) -> Tree:
        return self._collected("snapshot")

    def snapshot_data(self) -> Tree:
        return self._collected("snapshot_data")

    def restore(self, tree: Tree, data: Tree) -> None:
        self._each("restore", lambda shard: {"states": _of(shard, tree), "data": _of(shard, data)})

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> list[Tree]:
        chosen, examples = set(clients), Tree()
        for answer in self._each(
            "example_outputs",
            lambda shard: {"w": w, "clients": json.dumps([client for client in shard.clients if client in chosen])},
        ):
            examples |= answer
        return [examples[client] for client in clients]

    def _collected(self, method: str) -> Tree:
        result: Tree = {}
        for answer in self._each(method):
            result |= answer
        return {client: result[client] for client in self.clients if client in result}

    def _each(self, method: str, tree: Callable[[Shard], Tree] = lambda shard: {}) -> list[Tree]:
        """The answers of all workers, which run side by side."""
        return [unpack(answer()) for answer in [shard.begin(method, tree(shard)) for shard in self._shards]]


def _of(shard: Shard, tree: Tree) -> Tree:
    return {client: tree[client] for client in shard.clients if client in tree}


def deal(sizes: Mapping[str, int], shards: int) -> list[tuple[str, ...]]:
    """Clients dealt to at most `shards` shards of nearly equal total size, each in client order: the largest first, to
    the shard with the smallest total; sizes: {client: number of nodes}, in client order."""
    least = min(shards, len(sizes))
    held: list[list[str]] = [[] for _ in range(least)]
    total = [0] * least
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        at = total.index(min(total))
        held[at].append(client)
        total[at] += sizes[client]
    order = {client: place for place, client in enumerate(sizes)}
    return [tuple(sorted(shard, key=order.__getitem__)) for shard in held]
