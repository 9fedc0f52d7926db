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

_Known = dict[str, Stamp]  # {path: a tensor as sent}


class LastSent:
    """The tensors of each client's last message that had any.

    If a client's next message has the same tensor at the same path, the tensor is left out and its path is listed under
    `HELD` instead.

    resend: send everything every time.
    """

    def __init__(self, resend: bool) -> None:
        self._resend = resend
        self._known: dict[str, _Known] = {}

    def shortened(self, messages: Mapping[str, Tree]) -> dict[str, Tree]:
        """{client: the part of its message that must be sent}; clients with the same message and the same last message
        share the result."""
        if self._resend:
            return dict(messages)
        cache = ByObject[dict[str, Tree]]()
        result = {}
        for client, message in messages.items():
            held = self._held(client, message)
            held_paths = "\n".join(held)
            if message not in cache:
                cache[message] = {}
            if held_paths not in cache[message]:
                cache[message][held_paths] = _without(message, held) | {HELD: held_paths} if held else message
            result[client] = cache[message][held_paths]
        return result

    def note(self, messages: Mapping[str, Tree], replied: Iterable[str]) -> None:
        """Remember the messages to the clients that `replied`; what the other clients have is unknown."""
        here = set() if self._resend else set(replied)
        for client, message in messages.items():
            if client not in here:
                self._known.pop(client, None)
            elif tensors := _tensors_by_path(message):
                self._known[client] = {path: Stamp.of(leaf) for path, leaf in tensors.items()}

    def metered(
        self, group: Sequence[str], messages: Messages
    ) -> Iterator[tuple[tuple[str, ...], Tree, Counts | None]]:
        """The messages to the clients of a simulated `group`, grouped by equal messages up to the numbers of entries in
        sparse leaves: the clients, one of their messages, and these numbers."""
        if self._resend:
            yield tuple(group), messages.down(group[0]), messages.counts(group)
            return
        whole = {client: messages.down(client) for client in group}
        sent, alike = self.shortened(whole), defaultdict(list)
        for client in group:
            alike[sent[client].get(HELD, "")].append(client)
        self.note(whole, group)
        for clients in alike.values():
            yield tuple(clients), sent[clients[0]], messages.counts(clients)

    def _held(self, client: str, message: Tree) -> list[str]:
        known = self._known.get(client, {})
        return [path for path, leaf in _tensors_by_path(message).items() if path in known and known[path].fits(leaf)]


class LastReceived:
    """A client's side of `LastSent`.

    resend: whether every message is whole, so that nothing is stored.
    """

    def __init__(self, resend: bool) -> None:
        self._resend = resend
        self._known: dict[str, Tensor] = {}

    def whole(self, message: Tree) -> Tree:
        """The message with the tensors that were left out of it.

        Raises:
            CallRefused: it leaves out a tensor that was not in the last message.
        """
        flat = dict(leaves(message))
        held_paths = flat.pop(HELD, "")
        paths = held_paths.split("\n") if isinstance(held_paths, str) and held_paths else []
        if not isinstance(held_paths, str) or any(path not in self._known or path in flat for path in paths):
            raise CallRefused("a message leaves out a tensor that was not in the message before")
        try:
            tree = nest(flat | {path: self._known[path].clone() for path in paths})  # steps may change their message
        except ValueError as error:
            raise CallRefused(f"a message does not fit to what it leaves out: {error}") from error
        if not self._resend and (tensors := _tensors_by_path(tree)):
            self._known = {path: leaf.clone() for path, leaf in tensors.items()}
        return tree


def _tensors_by_path(message: Tree) -> dict[str, Tensor]:
    return {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor)}


def _without(message: Tree, paths: Sequence[str]) -> Tree:
    return nest({path: leaf for path, leaf in leaves(message) if path not in paths})
