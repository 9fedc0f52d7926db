"""An executor in another process, on another device or machine: it exchanges only encoded trees with the engine."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.local import Local, local_of
from fedweave.core.federation import step_info
from fedweave.core.ledger import MessageForm
from fedweave.core.model import Model
from fedweave.core.replies import Joint, Portion, ReplyBatch, Stacked, Sums
from fedweave.core.stacked import unstack_states
from fedweave.core.target import CLASS, kind_of
from fedweave.core.tree import Tree, decode, encode, leaves, nest
from fedweave.engines.executor import GroupResult, StepResults, Work
from fedweave.engines.loop import Loop
from fedweave.engines.messages import Messages
from fedweave.engines.steps import find_step
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
    work: Work, clients: Sequence[str], done: Sequence[int] = (), ahead: Sequence[Tree] = (), all_clients: bool = False
) -> bytes:
    """A call of some clients without the shared part of the message, which is packed once for all executors.

    done: numbers of replies that are no longer needed. ahead: queries for the replies, answered together with the call.
    all_clients: whether these are all clients of the executor, which knows their names.
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
    if work.ranks != "all":
        tree["ranks"] = work.ranks
    if not all_clients:
        tree["clients"] = json.dumps(list(clients))
    if names:
        tree["rows"] = {"tree": messages.rows.of(names)}
        if names != list(clients):
            tree["rows"]["clients"] = json.dumps(names)
    return pack(tree)


def read_request(
    body: Tree, shared: Tree, device: torch.device, all_clients: Sequence[str] = ()
) -> tuple[list[str], Messages]:
    """The clients and messages of a `request`, whose numbers become tensors on `device`; all_clients: of the reader."""
    clients = json.loads(body["clients"]) if "clients" in body else list(all_clients)
    each: Any = body.get("each")
    if "rows" in body:
        rows = body["rows"]
        each = Stacked(tuple(json.loads(rows["clients"]) if "clients" in rows else clients), rows["tree"])
    return clients, Messages(body["step"], shared, each, clients, clients, body.get("peers"), device)


class Worker:
    """Owns an executor and an algorithm, whose steps are called by name. Replies stay here until the engine asks for
    them, or for sums of them.

    executor: executor of this worker's clients. algorithm: rebuilt from the run's configuration.
    """

    def __init__(self, executor: Loop, algorithm: object) -> None:
        self._executor, self._algorithm = executor, algorithm
        self._replies: dict[int, Portion] = {}
        self._number = 0
        self._outputs: tuple[int, Tree] | None = None  # (number of the request, {client: its `example_outputs`})
        self._aside: Tree | None = None  # the clients' states and data while `local` trains them instead
        self._methods: Mapping[str, Callable[..., Tree]] = {
            "run": self._run,
            "computes_on": lambda body: {"names": json.dumps(self._executor.computes_on)},
            "example_outputs": self._example_outputs,
            "snapshot": lambda body: self._executor.snapshot(),
            "snapshot_data": lambda body: self._executor.snapshot_data(),
            "restore": self._restore,
            "save": self._save,
            "set_aside": self._set_aside,
            "bring_back": lambda body: self._restore(self._aside or {}),
        }

    def answer(self, method: str, *blobs: bytes) -> bytes:
        """Run one of its methods, or query replies, on packed trees."""
        bodies = [unpack(blob, self._executor.device) for blob in blobs]
        return pack(self._methods.get(method, self._query)(*bodies))

    def _query(self, query: Tree) -> Tree:
        """What a `ShardPortion` asks of the replies with its number."""
        replies = self._replies[query["number"]]
        match query["method"]:
            case "one":
                return replies.one(query["row"])
            case "rows":
                return {str(row): replies.one(row) for row in range(len(replies.at))}
            case "stack":
                return {"leaf": replies.stack(query["path"])}
            case "weighted_sum":
                return nest(replies.weighted_sum(json.loads(query["paths"]), query["weights"])())
            case _:  # "total"
                return nest(replies.total(json.loads(query["paths"]))())

    def _run(self, body: Tree, shared: Tree) -> Tree:
        self._drop(body)
        self._outputs = None
        step = find_step(self._algorithm if self._aside is None else self._local, body["step"])
        clients, messages = read_request(body, shared, self._executor.device, self._executor.clients)
        work = Work(step, body["step"], step_info(step), body["key"], messages, body.get("ranks", "all"))
        results = list(self._executor.run(work, clients))
        replies = Joint([batch.replies for batch in results])
        number, self._number = self._number, self._number + 1
        self._replies[number] = replies
        dtypes = {path: str(replies.dtype(path)).removeprefix("torch.") for path in replies.paths}
        groups = list[object]()
        for batch in results:
            groups += [(len(group.at), group.form, group.seconds) for group in batch.groups]
        answers = dict[str, Tree]()
        for key, query in body.get("ahead", {}).items():
            try:
                answers[key] = {"found": self._query(query | {"number": number})}
            except (FedweaveError, ArithmeticError, LookupError, RuntimeError, ValueError):
                answers[key] = {}  # a later query raises the error
        return {
            "number": number,
            "at": torch.tensor(replies.at, dtype=torch.int32, device="cpu"),
            "dtypes": json.dumps(dtypes),
            "groups": json.dumps(groups),
            "ahead": answers,
        }

    def _example_outputs(self, body: Tree, shared: Tree) -> Tree:
        """The outputs of the algorithm's model with weights "w" on the examples of the "clients": of classes the next
        columns, of others all, and how many there are."""
        clients, begin = json.loads(body["clients"]), body["begin"]
        if self._outputs is None or self._outputs[0] != body["number"]:
            [outputs] = self._executor.example_outputs(deployable(self._algorithm).net, shared["w"], clients)
            self._outputs = body["number"], dict(zip(clients, outputs, strict=True))
        answer, columns = Tree(), 0
        for client, examples in self._outputs[1].items():
            columns = examples["outputs"].shape[1]
            if kind_of(examples["y"]) == CLASS:
                part = examples["outputs"][:, begin : begin + body["count"]].contiguous()
                answer[client] = examples | {"outputs": part} if begin == 0 else {"outputs": part}
            else:
                answer[client] = examples
        return {"clients": answer, "columns": columns}

    def _drop(self, body: Tree) -> None:
        """Drop replies that are no longer needed."""
        for number in json.loads(body.get("done", "[]")):
            self._replies.pop(number, None)

    @cached_property
    def _local(self) -> Local | None:
        return local_of(self._algorithm)

    def _set_aside(self, body: Tree) -> Tree:
        """Put the clients' states and data aside, until "bring_back"."""
        aside = {"states": self._executor.snapshot(), "data": self._executor.snapshot_data()}
        return self._restore({"alone": 1, "aside": aside})

    def _save(self, body: Tree) -> Tree:
        """Everything that a replacing worker must `_restore` before the request `body`; the number belongs to the next
        replies."""
        self._drop(body)
        replies_by_call = Tree()
        for number, replies in self._replies.items():
            replies_of_call = replies_by_call[str(number)] = Tree()
            for row, at in enumerate(replies.at):
                replies_of_call[str(at)] = {"at": at, "reply": replies.one(row)}
        states, data = self._executor.snapshot(), self._executor.snapshot_data()
        saved: Tree = {"states": states, "data": data, "number": self._number, "kept": replies_by_call}
        return saved if self._aside is None else saved | {"alone": 1, "aside": self._aside}

    def _restore(self, body: Tree) -> Tree:
        self._executor.restore(body.get("states", {}), body.get("data", {}))
        self._aside = body.get("aside", {}) if body.get("alone") else None  # an empty tree is not sent
        self._number = body.get("number", self._number)
        for number, replies in body.get("kept", {}).items():
            portions = [ReplyBatch.of(reply["at"], reply.get("reply", {})) for reply in replies.values()]
            self._replies[int(number)] = Joint(portions)
        return {}


Pending: TypeAlias = Callable[[], bytes]  # waits for an answer
Channel: TypeAlias = Callable[..., Pending]  # (method, *packed trees): starts `Worker.answer` where the worker is
_SUMS = ("weighted_sum", "total")  # answers that the engine adds up in place
_PART = 1_000_000  # bytes of outputs that are here at once, or one column
_TOGETHER = 64_000_000  # bytes of replies up to which all replies come together if several are needed


class ReplyRequests:
    """The queries for each step's replies. The next call of the step repeats them, so that a round has few messages.
    Weighted sums are repeated only if their weights were equal twice."""

    def __init__(self) -> None:
        self._now: dict[str, dict[str, Tree]] = {}  # {step: {query's name: the query for the last replies}}
        self._before: dict[str, dict[str, Tree]] = {}

    def record(self, step: str, name: str, query: Tree) -> None:
        """Record a query for the last replies to a step."""
        self._now.setdefault(step, {})[name] = query

    def ahead(self, step: str) -> dict[str, Tree]:
        """The queries to send with the next call of the step."""
        last, queries = self._before.get(step, {}), self._now.pop(step, {})
        self._before[step] = queries
        return {name: query for name, query in queries.items() if _same_weights(query, last.get(name, {}))}


def _same_weights(query: Tree, before: Tree) -> bool:
    """Whether both queries have the same weights, or the first has none."""
    weights, last = query.get("weights"), before.get("weights")
    return weights is None or (last is not None and torch.equal(weights, last))


class Shard:
    """One worker's side of a `Sharded` executor.

    clients: the clients that it owns, in its order. channel: leads to the worker.
    """

    def __init__(self, clients: Sequence[str], channel: Channel) -> None:
        self.clients, self._channel, self.requests = tuple(clients), channel, ReplyRequests()
        self._done: list[int] = []  # numbers of replies that are no longer needed

    def begin(self, method: str, tree: Tree, *shared: object) -> Pending:
        """Let the worker run a method."""
        return self._channel(method, pack(tree), *shared)

    def start(self, work: Work, clients: Sequence[str], shared: object) -> Callable[[Sequence[int]], StepResults]:
        """Let the worker run a step on some of its clients. The result waits for the worker, and takes the positions of
        these clients among all called clients."""
        done, self._done = self._done, []
        ahead = self.requests.ahead(work.name)
        all_clients = len(clients) == len(self.clients)
        pending = self._channel("run", request(work, clients, done, [*ahead.values()], all_clients), shared)

        def wait(at: Sequence[int]) -> StepResults:
            answer = unpack(pending())
            places = [at[index] for index in answer["at"].tolist()]
            groups = list[GroupResult]()
            start = total_bytes = 0
            for members, (size, parts), seconds in json.loads(answer["groups"]):
                form = MessageForm(size, tuple(map(tuple, parts)))
                groups.append(GroupResult(tuple(places[start : start + members]), form, seconds))
                start += members
                total_bytes += members * size
            answers = dict[str, tuple[Tree, Tree]]()
            for number, (name, query) in enumerate(ahead.items()):
                early = answer.get("ahead", {}).get(str(number), {})
                if "found" in early:
                    answers[name] = query, early["found"]
            replies = ShardPortion(
                self,
                work.name,
                answer["number"],
                tuple(places),
                json.loads(answer["dtypes"]),
                answers,
                total_bytes > _TOGETHER,
            )
            return StepResults(replies, tuple(groups))

        return wait

    def forget(self, number: int) -> None:
        """Let the worker drop replies with its next step."""
        self._done.append(number)


class ShardPortion:
    """Replies at a worker (see `core.replies.Portion`), which also computes their sums.

    answers: {query's name: (query, answer)} of the queries that were sent with the step. separately: whether replies
    are so large that they are requested one by one.
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
        separately: bool,
    ) -> None:
        self.at, self.paths = at, tuple(dtypes)
        self._shard, self._step, self._number, self._dtypes, self._answers = shard, step, number, dtypes, answers
        self._row: int | None = None  # the first row that was requested
        self._separately = separately
        finalize(self, shard.forget, number)

    def one(self, row: int) -> Tree:
        if "rows" not in self._answers and (self._separately or self._row in (None, row)):
            self._row = row
            return self._ask("one", {"row": row})()
        reply: Tree = self._ask("rows", {})().get(str(row), {})  # a second request fetches all rows
        return reply

    def stack(self, path: str) -> Tensor:
        leaf: Tensor = self._ask("stack", {"path": path})()["leaf"]
        return leaf

    def weighted_sum(self, paths: Sequence[str], weights: Tensor) -> Sums:
        answer = self._ask("weighted_sum", {"paths": json.dumps(list(paths)), "weights": weights})
        return lambda: dict(leaves(answer()))

    def total(self, paths: Sequence[str]) -> Sums:
        answer = self._ask("total", {"paths": json.dumps(list(paths))})
        return lambda: dict(leaves(answer()))

    def dtype(self, path: str) -> torch.dtype:
        dtype: torch.dtype = vars(torch)[self._dtypes[path]]
        return dtype

    def _ask(self, method: str, how: Tree) -> Callable[[], Tree]:
        """Start a query, unless its answer is already here."""
        query = {"method": method, **how}
        name = " ".join(str(value) for key, value in query.items() if key != "weights")
        self._shard.requests.record(self._step, name, query)
        known, reply = self._answers.get(name, ({}, {}))
        if method in _SUMS:
            self._answers.pop(name, None)
        if reply and _same_weights(query, known):
            return lambda: reply
        answer = self._shard.begin(method, query | {"number": self._number})

        def wait() -> Tree:
            result = unpack(answer())
            if method not in _SUMS:
                self._answers[name] = query, result
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
        self._outputs = count()  # numbers of requests for outputs

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def computes_on(self) -> tuple[str, ...]:
        names = list[str]()
        for answer in self._each("computes_on"):
            names += json.loads(answer["names"])
        return tuple(dict.fromkeys(names))

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[StepResults]:
        place = {client: at for at, client in enumerate(clients)}
        shared, waiting = self._shared(pack(work.messages.shared)), []
        for shard in self._shards:
            shard_clients = [client for client in shard.clients if client in place]
            if shard_clients:
                waiting.append((shard.start(work, shard_clients, shared), [place[client] for client in shard_clients]))
        for wait, at in waiting:
            yield wait(at)

    def _shared(self, blob: bytes) -> object:
        """The shared part of a message, where channels find it; an unchanged part is stored once."""
        if self._last is None or self._last[0] != blob:
            self._last = blob, self._share(blob)
        return self._last[1]

    def snapshot(self) -> Tree:
        return self._collect("snapshot")

    def stacked_snapshot(self) -> Tree:
        return self.snapshot()

    def snapshot_data(self) -> Tree:
        return self._collect("snapshot_data")

    def restore(self, tree: Tree, data: Tree) -> None:
        states = unstack_states(tree)
        self._each("restore", lambda shard: {"states": _of(shard, states), "data": _of(shard, data)})

    @contextmanager
    def untrained(self) -> Iterator[None]:
        self._each("set_aside")
        try:
            yield
        finally:
            self._each("bring_back")

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> Iterator[list[Tree]]:
        # Workers use the model of their algorithm, which is the same.
        chosen, shared, number = set(clients), self._share(pack({"w": w})), next(self._outputs)
        called = dict[Shard, str]()
        for shard in self._shards:
            its_clients = [client for client in shard.clients if client in chosen]
            if its_clients:
                called[shard] = json.dumps(its_clients)
        begin, size, columns = 0, 1, 1
        while begin < columns:
            pending = list[Pending]()
            for shard, names in called.items():
                body = {"number": number, "clients": names, "begin": begin, "count": size}
                pending.append(shard.begin("example_outputs", body, shared))
            examples = Tree()
            while pending:  # and no answer stays in memory
                answer = unpack(pending.pop(0)())
                examples |= answer.pop("clients")
                columns = answer["columns"]
            begin += examples[clients[0]]["outputs"].shape[1]
            size = max(1, _PART // max(1, sum(each["outputs"][:, 0].nbytes for each in examples.values())))
            yield [examples.pop(client) for client in clients]

    def _collect(self, method: str) -> Tree:
        result: Tree = {}
        for answer in self._each(method):
            result |= answer
        return {client: result[client] for client in self.clients if client in result}

    def _each(self, method: str, tree: Callable[[Shard], Tree] = lambda shard: {}) -> list[Tree]:
        """The answers of all workers, which run side by side."""
        pending = [shard.begin(method, tree(shard)) for shard in self._shards]
        return [unpack(wait()) for wait in pending]


def _of(shard: Shard, tree: Tree) -> Tree:
    return {client: tree[client] for client in shard.clients if client in tree}


def deal(sizes: Mapping[str, int], shards: int) -> list[tuple[str, ...]]:
    """Clients dealt to at most `shards` shards of nearly equal total size, each in client order: the largest first, to
    the shard with the smallest total; sizes: {client: number of nodes}, in client order."""
    total = [0] * min(shards, len(sizes))  # of each shard
    shard_of = dict[str, int]()
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        shard_of[client] = total.index(min(total))
        total[shard_of[client]] += sizes[client]
    parts: list[list[str]] = [[] for _ in total]
    for client in sizes:
        parts[shard_of[client]].append(client)
    return [tuple(part) for part in parts]
