"""What passes between an engine and executors elsewhere: encoded trees, and nothing else."""

import json
from collections.abc import Sequence
from typing import Any

from fedweave.core.federation import StepInfo
from fedweave.core.stacked import Stacked
from fedweave.core.tree import Tree, decode, encode, leaves, nest
from fedweave.engines.executor import Work
from fedweave.engines.messages import Messages

_ORDER = "order"


def pack(tree: Tree) -> bytes:
    """Serialise a tree with the order of its leaves, on which the last bit of a sum may depend."""
    return encode({"tree": tree, _ORDER: json.dumps([path for path, _ in leaves(tree)])})


def unpack(blob: bytes) -> Tree:
    """Undo `pack`."""
    found = decode(blob)
    flat = dict(leaves(found.get("tree", {})))
    return nest({path: flat[path] for path in json.loads(found[_ORDER])})


def request(work: Work, clients: Sequence[str], done: Sequence[int] = ()) -> bytes:
    """A call of some clients without what all are told, which is packed once for all executors.

    done: numbers of replies that nobody will ask for any more.
    """
    own, messages = set(clients), work.messages
    names = [client for client in messages.rows.clients if client in own]
    tree: Tree = {
        "step": work.name,
        "key": work.key,
        "clients": json.dumps(list(clients)),
        "done": json.dumps(list(done)),
        "each": {client: tree for client, tree in messages.each.items() if client in own},
        "peers": {client: tree for client, tree in messages.peers.items() if client in own},
    }
    if names:
        tree["rows"] = {"clients": json.dumps(names), "tree": messages.rows.of(names)}
    return pack(tree)


def read_request(asked: Tree, shared: Tree) -> tuple[list[str], Messages]:
    """The clients and messages of a `request`."""
    clients = json.loads(asked["clients"])
    each: Any = asked.get("each")
    if rows := asked.get("rows"):
        each = Stacked(tuple(json.loads(rows["clients"])), rows["tree"])
    return clients, Messages(asked["step"], shared, each, clients, clients, asked.get("peers"))


def call(asked: Tree, messages: Messages, step: Any, info: StepInfo) -> Work:
    """The work that a `request` asks for, with the executor's own step."""
    return Work(step, asked["step"], info, asked["key"], messages)
