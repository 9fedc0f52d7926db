"""An executor behind bytes, which stands in another process, on another device or another machine; and what passes
between an engine and it, encoded trees and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedweave.algorithms.deployment import deployable
from fedweave.core.federation import StepInfo, step_info
from fedweave.core.portions import Batch, Joint, Portion, Stacked, as_row
from fedweave.core.tree import Tree, decode, encode, leaves, map_leaves, nest
from fedweave.engines.executor import Work
from fedweave.engines.loop import Loop
from fedweave.engines.messages import Messages
from fedweave.engines.steps import find_step
from fedweave.errors import FedweaveError
from fedweave.metrics.pooled import judged_examples

_ORDER = "order"


def pack(tree: Tree) -> bytes:
    """Serialise a tree with the order of its leaves, on which the last bit of a sum may depend."""
    return encode({"tree": tree, _ORDER: json.dumps([path for path, _ in leaves(tree)])})


def unpack(blob: bytes, device: torch.device | str = "cpu") -> Tree:
    """Undo `pack`; the tensors lie on `device`."""
    found = decode(blob, device=device)
    flat = dict(leaves(found.get("tree", {})))
    return nest({path: flat[path] for path in json.loads(found[_ORDER])})


def request(
    work: Work, clients: Sequence[str], done: Sequence[int] = (), ahead: Sequence[Tree] = (), everyone: bool = False
) -> bytes:
    """A call of some clients without what all are told, which is packed once for all executors.

    done: numbers of replies that nobody will ask for any more. ahead: what is asked of the replies at once. everyone:
    these are all that the executor has, whose names it knows.
    """
    own, messages = set(clients), work.messages
    names = [client for client in messages.rows.clients if client in own]
    tree: Tree = {
        "step": work.name,
        "key": work.key,
        "done": json.dumps(list(done)),
        "ahead": {str(at): asked for at, asked in enumerate(ahead)},
        "each": {client: tree for client, tree in messages.each.items() if client in own},
        "peers": {client: tree for client, tree in messages.peers.items() if client in own},
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
    """The clients and messages of a `request`, whose numbers become tensors on `device`; everyone: all that its reader
    has."""
    clients = json.loads(asked["clients"]) if "clients" in asked else list(everyone)
    each: Any = asked.get("each")
    if rows := asked.get("rows"):
        each = Stacked(tuple(json.loads(rows["clients"]) if "clients" in rows else clients), rows["tree"])
    return clients, Messages(asked["step"], shared, each, clients, clients, asked.get("peers"), device)


def call(asked: Tree, messages: Messages, step: Any, info: StepInfo) -> Work:
    """The work that a `request` asks for, with the executor's own step."""
    return Work(step, asked["step"], info, asked["key"], messages)


class Worker:
    """Owns an executor and an algorithm of its own, whose steps it is told by name. Replies stay here until somebody
    asks for them, or for sums of them.

    executor: of its share of the clients. algorithm: rebuilt from the run's configuration.
    """

    def __init__(self, executor: Loop, algorithm: object) -> None:
        self._executor, self._algorithm = executor, algorithm
        self._kept: dict[int, Portion] = {}
        self._number = 0
        self._methods: Mapping[str, Callable[..., Tree]] = {
            "run": self._run,
            "computes_on": lambda asked: {"names": json.dumps(self._executor.computes_on)},
            "one": lambda asked: self._of(asked).one(asked["row"]),
            "rows": lambda asked: _rows(self._of(asked)),
            "stack": lambda asked: {"leaf": self._of(asked).stack(asked["path"])},
            "weighted": lambda asked: nest(self._of(asked).weighted(json.loads(asked["paths"]), asked["weights"])()),
            "total": lambda asked: nest(self._of(asked).total(json.loads(asked["paths"]))()),
            "judged": self._judged,
            "snapshot": lambda asked: self._executor.snapshot(),
            "snapshot_data": lambda asked: self._executor.snapshot_data(),
            "restore": self._restore,
            "save": self._save,
        }

    def answer(self, method: str, *blobs: bytes) -> bytes:
        """Carry out one of its methods on packed trees."""
        return pack(self._methods[method](*(unpack(blob, self._executor.device) for blob in blobs)))

    def _run(self, asked: Tree, shared: Tree) -> Tree:
        self._drop(asked)
        step = find_step(self._algorithm, asked["step"])
        clients, messages = read_request(asked, shared, self._executor.device, self._executor.clients)
        ran = list(self._executor.run(call(asked, messages, step, step_info(step)), clients))
        replies = Joint([own.replies for own in ran])
        number, self._number = self._number, self._number + 1
        self._kept[number] = replies
        dtypes = {path: str(replies.dtype(path)).removeprefix("torch.") for path in replies.paths}
        groups = [(len(group.at), group.form, group.seconds) for own in ran for group in own.groups]
        return {
            "number": number,
            "at": torch.tensor(replies.at, dtype=torch.int32, device="cpu"),
            "dtypes": json.dumps(dtypes),
            "groups": json.dumps(groups),
            "ahead": {key: self._ahead(number, one) for key, one in asked.get("ahead", {}).items()},
        }

    def _judged(self, asked: Tree) -> Tree:
        """{client: what the algorithm's model with weights "w" says of its examples} of the "clients"."""
        net, graphs = deployable(self._algorithm).net, self._executor.data.graphs
        return {client: judged_examples(net, asked["w"], graphs[client]) for client in json.loads(asked["clients"])}

    def _ahead(self, number: int, asked: Tree) -> Tree:
        """What was asked of the last replies to this step, of these; nothing where they do not have it, which is said
        to whoever asks for it."""
        try:
            return {"found": self._methods[asked["method"]](asked | {"number": number})}
        except (FedweaveError, ArithmeticError, LookupError, RuntimeError, ValueError):
            return {}

    def _of(self, asked: Tree) -> Portion:
        return self._kept[asked["number"]]

    def _drop(self, asked: Tree) -> None:
        """Let go of replies that nobody will ask for any more."""
        for number in json.loads(asked.get("done", "[]")):
            self._kept.pop(number, None)

    def _save(self, asked: Tree) -> Tree:
        """All that a worker in its place has to `_restore` before the request `asked`; the number is that of the next
        replies."""
        self._drop(asked)
        kept = {
            str(number): {str(at): {"at": at, "reply": replies.one(row)} for row, at in enumerate(replies.at)}
            for number, replies in self._kept.items()
        }
        states, data = self._executor.snapshot(), self._executor.snapshot_data()
        return {"states": states, "data": data, "number": self._number, "kept": kept}

    def _restore(self, asked: Tree) -> Tree:
        self._executor.restore(asked.get("states", {}), asked.get("data", {}))
        self._number = asked.get("number", self._number)
        for number, replies in asked.get("kept", {}).items():
            rows = [Batch((own["at"],), map_leaves(as_row, own.get("reply", {}))) for own in replies.values()]
            self._kept[int(number)] = Joint(rows)
        return {}


def _rows(replies: Portion) -> Tree:
    """All clients' replies, by row."""
    return {str(row): replies.one(row) for row in range(len(replies.at))}
