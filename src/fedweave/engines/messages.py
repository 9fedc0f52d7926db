"""The messages of one call, checked here for every engine."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import Declaration, StepInfo
from fedweave.core.ledger import Counts, Ledger
from fedweave.core.mechanism import SLOTS
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, check, clone, device_of, encode, leaves, map_leaves, nest
from fedweave.core.types import HELD
from fedweave.errors import CallRefused, FedweaveError, diverged_message
from fedweave.learn import compute_on_server
from fedweave.ops.tape import ByObject, Stamp, writes
from fedweave.ops.touched import Sparsified, counted, materialize
from fedweave.privacy.secure_sum import has_diverged

RECEIVED, PRESENT = "received", "present"  # message fields that hold what peers sent


class Messages:
    """`shared | each[client] | peers[client]` for every called client.

    each: {client: tree}, or trees stacked. peers: the results of `peer_messages`. Numbers in `each` become 0-d tensors
    (float64, int64, bool) on `device`, in every mode.

    Raises:
        FedweaveError: `each` names an unknown client, leaves out a called one, or gives clients different fields; or a
            message has a field that is reserved for peers' trees.
        ReplyRefused: a message is not a tree.
    """

    def __init__(
        self,
        step: str,
        shared: Tree | None,
        each: Mapping[str, Tree] | Stacked | None,
        called: Sequence[str],
        known: Sequence[str],
        peers: Mapping[str, Tree] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.peers, self._device = peers or {}, device
        self.shared = check(shared or {}, f"the message of {step}")
        self.rows = Stacked((), {})
        if isinstance(each, Stacked):
            check(each.tree, f"the message of {step}")
            self.rows, each = each, None
        self.each = {c: check(tree, f"the message of {step} to {c!r}") for c, tree in (each or {}).items()}
        keys = {*self.shared, *self.rows.tree, *(key for tree in self.each.values() for key in tree)}
        if self.peers and (conflicting := keys & {RECEIVED, PRESENT}):
            raise FedweaveError(
                f"the message of {step} has the keys {sorted(conflicting)}, which are of what peers sent.",
                code="call.each",
            )
        owners = self.each.keys() or set(self.rows.clients)
        if not owners:
            return
        if absent := set(called) - owners:
            raise FedweaveError(
                f"`each` of {step} has no part for {sorted(absent)}; give one to every called client or to none.",
                code="call.each",
            )
        if unknown := owners - set(known):
            raise FedweaveError(
                f"`each` of {step} names {sorted(unknown)}, which are no clients of this federation.", code="call.each"
            )
        kinds = {tuple(sorted(path for path, _ in leaves(tree))) for tree in self.each.values()}
        if len(kinds) > 1:
            raise FedweaveError(
                f"`each` of {step} must give every client the same keys; it gives {sorted(kinds)}.", code="call.each"
            )

    def ragged(self, group: Sequence[str]) -> bool:
        """Whether the group's parts for single clients differ in shape, or hold strings, and so cannot be stacked."""
        if not self.each and not self.peers:
            return False
        shapes = {tuple(_shape(leaf) for _, leaf in leaves(self._client_part(client))) for client in group}
        return len(shapes) > 1 or any(str in shape for shape in shapes)

    def counts(self, clients: Sequence[str]) -> Counts | None:
        """Numbers of entries of sparse leaves in the messages to some clients; None without such leaves."""
        if self._sparse is None:
            return None
        paths, each = self._sparse
        return Counts(paths, each, [self._row[client] for client in clients])

    @cached_property
    def _sparse(self) -> tuple[tuple[str, ...], Tensor] | None:
        """The sparse leaves, and the number of entries of each in each client's message, counted together."""
        sparse_leaves = {path: leaf.dense for path, leaf in leaves(self.rows.tree) if isinstance(leaf, Sparsified)}
        return (tuple(sparse_leaves), compute_on_server(counted, sparse_leaves)) if sparse_leaves else None

    @cached_property
    def _row(self) -> dict[str, int]:
        return {client: row for row, client in enumerate(self.rows.clients)}

    def common(self) -> Tree:
        """The shared part, in new dicts."""
        return nest(self.common_leaves)

    @cached_property
    def common_leaves(self) -> dict[str, Any]:
        """{path: leaf} of the shared part."""
        return dict(leaves(self.shared))

    def down(self, client: str) -> Tree:
        """The server's message to one client, in new dicts."""
        if self.rows.clients:
            return self.common() | self.rows.one(client)
        return self.common() | _tensors(self.each.get(client, {}), self._device)

    def one(self, client: str) -> Tree:
        """One client's message, in new dicts; a peer's tree is a copy, because another client may receive it too."""
        return self.down(client) | clone(self.peers.get(client, {}))

    def stacked(self, group: Sequence[str]) -> Tree:
        """The parts for single clients, stacked."""
        if not self.each and not self.peers:
            return self.rows.of(group) if self.rows.clients else {}
        flats = [dict(leaves(self._client_part(client))) for client in group]
        messages = nest({path: torch.stack([_tensor(flat[path], self._device) for flat in flats]) for path in flats[0]})
        return messages | self.rows.of(group) if self.rows.clients else messages

    def _client_part(self, client: str) -> Tree:
        return {**self.each.get(client, {}), **self.peers.get(client, {})}

    def versions(self) -> list[int]:
        """Counters that rise when one of the server's tensors is changed in place."""
        return list(map(writes, self._sent))

    @cached_property
    def _sent(self) -> list[Tensor]:
        client_leaves = (leaf for tree in (self.rows.tree, *self.each.values()) for _, leaf in leaves(tree))
        return [leaf for leaf in (*self.common_leaves.values(), *client_leaves) if isinstance(leaf, Tensor)]


def peer_messages(message: Tree, sources: Sequence[str], trees: Mapping[str, Tree]) -> Tree:
    """The peers' part of the next message of a client that itself sent `message`; `trees` are the trees that arrived
    from its peers `sources`."""
    messages = [trees[peer] if peer in trees else map_leaves(_zero, message) for peer in sources]
    device = device_of(message)
    present = torch.tensor([peer in trees for peer in sources], dtype=torch.bool, device=device)
    return {RECEIVED: {str(at): _tensors(tree, device) for at, tree in enumerate(messages)}, PRESENT: present}


def _zero(leaf: object) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) else type(leaf)()


def _tensors(tree: Tree, device: torch.device | str) -> Tree:
    return nest({path: leaf if isinstance(leaf, str) else _tensor(leaf, device) for path, leaf in leaves(tree)})


def _tensor(leaf: object, device: torch.device | str) -> Tensor:
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64, device=device)
    return torch.as_tensor(materialize(leaf), device=device)


def _shape(leaf: object) -> Any:
    return str if isinstance(leaf, str) else (*getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf)))


# ----------------------------------------------------------------------------------------------------
# What a client still has from its last message, so that the server need not send it again (`[engine] resend`).


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


# ----------------------------------------------------------------------------------------------------
# Messages between server and clients for secure sums, in addition to the terms (`privacy.aggregation`): their form, and
# their entries in the simulation's ledger.


SHARE, SEED, KEY = 48, 16, 32  # bytes of a sealed letter with two shares, of a share, of a public key
CERTIFICATE, SIGNATURE = 1024, 256  # bytes in the simulation; the signature's are exact for RSA keys of 2048 bits
AGREEING: dict[str, Declaration] = {
    "advertise": {
        "certificate": "the site's certificate",
        "keys": "public keys for secure sums",
        "signature": "a signature of the site's on its public keys",
    },
    "share": {"shares": "shares of keys and masks of secure sums, sealed for the other sites"},
    "survivors": {"signature": "a signature of the site's on whose terms a secure sum has"},
    "reveal": {
        "mask": "the seed of the site's self mask in a secure sum that has its term",
        "shares": "shares of the self masks of the other sites in a secure sum, and of the keys of those not in it",
    },
}
HEARD = {
    "share": {"adverts": "the other sites' public keys for secure sums, certified and signed"},
    "reveal": {
        "signatures": "the other sites' signatures on whose terms a secure sum has",
        "letters": "shares of the other sites' keys and masks, sealed for this one",
    },
}
INFO = {kind: StepInfo.of(sends, ragged=True, hears=HEARD.get(kind, {})) for kind, sends in AGREEING.items()}


def fingerprint(heard: Tree) -> str:
    """Fingerprint of a step's message: SHA-256 of its serialized form, in hexadecimal."""
    return hashlib.sha256(encode(heard)).hexdigest()


def check_same_message(step: str, messages: Messages) -> None:
    """Raise an error if a step that replies in a secure sum has messages for single clients: all clients must receive
    the same message (see `Use`).

    Raises:
        FedweaveError: names the step.
    """
    if messages.each or messages.rows.clients:
        raise FedweaveError(
            f"{step} replies in a secure sum, so all clients must receive the same message; leave out `each`.",
            code="sum.replies",
        )


def check_terms(info: StepInfo, clients: Sequence[str], replies: Tree) -> None:
    """Raise an error if a term of a sum is not finite, as sites do. replies: the replies of `clients`, stacked.

    Raises:
        FedweaveError: names leaf and client.
    """
    for path, words in leaves(replies):
        if info.covering(path) in info.sums and isinstance(words, Tensor) and has_diverged(words):
            odd = next(client for client, row in zip(clients, words, strict=True) if has_diverged(row))
            raise FedweaveError(diverged_message(f"{path} of {odd!r}"), code="diverged")


class SumMeter:
    """Records in a ledger the messages with which sites mask and open sums. A resumed run agrees on new keys, as sites
    do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._left, self._agreed = ledger, 0, frozenset[str]()

    def record_agreement(self, where: tuple[int, int], here: Sequence[str]) -> None:
        """Keys for the sum of a step: from an epoch that has slots left and keys of all `here`, or from a new one.

        where: round and number of the call.
        """
        if not self._left or not self._agreed >= set(here):
            self._left, self._agreed = SLOTS, frozenset(here)
            advert = {
                "certificate": _bytes(CERTIFICATE),
                "keys": _bytes(SLOTS + 1, KEY),
                "signature": _bytes(SIGNATURE),
            }
            self._exchange("advertise", where, here, {}, advert)
            message = {"adverts": dict.fromkeys(here, advert)}
            self._exchange("share", where, here, message, {"shares": _bytes(len(here), SLOTS, SHARE)})
        self._left -= 1

    def record_opening(self, where: tuple[int, int], here: Sequence[str]) -> None:
        """Signatures on the list of survivors, and shares."""
        self._exchange("survivors", where, here, {}, {"signature": _bytes(SIGNATURE)})
        reply = {"mask": _bytes(SEED), "shares": _bytes(len(here), SEED)}
        signatures = dict.fromkeys(here, _bytes(SIGNATURE))
        for client in here:
            letters = {peer: _bytes(SHARE) for peer in here if peer != client}
            self._exchange("reveal", where, [client], {"signatures": signatures, "letters": letters}, reply)

    def _exchange(self, kind: str, where: tuple[int, int], here: Sequence[str], down: Tree, up: Tree) -> None:
        self._ledger.record(*where, f"({kind})", tuple(here), "down", down, 0.0, INFO[kind].message)
        self._ledger.record(*where, f"({kind})", tuple(here), "up", up, 0.0, INFO[kind])


def _bytes(*form: int) -> Tensor:
    return torch.zeros(form, dtype=torch.uint8, device="cpu")
