"""What a client still has from its last message, so that the server need not send it again (`[engine] resend`)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from fedweave.core.ledger import Counts
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import HELD
from fedweave.engines.messages import Messages
from fedweave.errors import CallRefused
from fedweave.ops.identity import ByObject, Stamp


class LastSent:
    """The tensors of each client's last message that had any.

    If a client's next message has the same tensor at the same path, the tensor is omitted and its path is listed under
    `HELD` instead.

    resend: send everything every time.
    """

    def __init__(self, resend: bool) -> None:
        self._resend = resend
        self._known: dict[str, dict[str, Stamp]] = {}  # {client: {path: a tensor as sent}}

    def shorten(self, messages: Mapping[str, Tree]) -> dict[str, Tree]:
        """{client: the part of its message that must be sent}; clients with the same message and the same last message
        share the result."""
        if self._resend:
            return dict(messages)
        cache = ByObject[dict[str, Tree]]()
        result = {}
        for client, message in messages.items():
            known = self._known.get(client, {})
            tensors = _tensors_by_path(message)
            omitted = [path for path, leaf in tensors.items() if path in known and known[path].fits(leaf)]
            if message not in cache:
                cache[message] = {"": message}
            key = "\n".join(omitted)
            if key not in cache[message]:
                remaining = {path: leaf for path, leaf in leaves(message) if path not in omitted}
                cache[message][key] = nest(remaining) | {HELD: key}
            result[client] = cache[message][key]
        return result

    def note(self, messages: Mapping[str, Tree], replied: Iterable[str]) -> None:
        """Remember the messages to the clients that `replied`; what the other clients have is unknown."""
        clients = set() if self._resend else set(replied)
        for client, message in messages.items():
            if client not in clients:
                self._known.pop(client, None)
                continue
            tensors = _tensors_by_path(message)
            if tensors:
                self._known[client] = {path: Stamp.of(leaf) for path, leaf in tensors.items()}

    def group_by_message(
        self, group: Sequence[str], messages: Messages
    ) -> Iterator[tuple[tuple[str, ...], Tree, Counts | None]]:
        """The messages to the clients of a simulated `group`, grouped by equal messages up to the numbers of entries in
        sparse leaves: the clients, one of their messages, and these numbers."""
        if self._resend:
            yield tuple(group), messages.down(group[0]), messages.counts(group)
            return
        whole = {client: messages.down(client) for client in group}
        sent, clients_by_paths = self.shorten(whole), defaultdict[str, list[str]](list)
        for client in group:
            clients_by_paths[sent[client].get(HELD, "")].append(client)
        self.note(whole, group)
        for clients in clients_by_paths.values():
            yield tuple(clients), sent[clients[0]], messages.counts(clients)


class LastReceived:
    """A client's side of `LastSent`.

    resend: whether every message is whole, so that nothing is stored.
    """

    def __init__(self, resend: bool) -> None:
        self._resend = resend
        self._known: dict[str, Tensor] = {}

    def whole(self, message: Tree) -> Tree:
        """The message with the tensors that were omitted from it.

        Raises:
            CallRefused: a tensor is omitted that was not in the last message.
        """
        flat = dict(leaves(message))
        omitted = flat.pop(HELD, "")
        paths = omitted.split("\n") if isinstance(omitted, str) and omitted else []
        if not isinstance(omitted, str) or any(path not in self._known or path in flat for path in paths):
            raise CallRefused("a message leaves out a tensor that was not in the message before")
        try:
            tree = nest(flat | {path: self._known[path].clone() for path in paths})  # steps may change their message
        except ValueError as error:
            raise CallRefused(f"a message does not fit to what it leaves out: {error}") from error
        tensors = {} if self._resend else _tensors_by_path(tree)
        if tensors:
            self._known = {path: leaf.clone() for path, leaf in tensors.items()}
        return tree


def _tensors_by_path(message: Tree) -> dict[str, Tensor]:
    return {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor)}
