"""Rules of a call that all engines share: its randomness, the called clients, and the content of a reply."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Sent, StepInfo
from fedweave.core.mechanism import release_of
from fedweave.core.tree import Tree
from fedweave.errors import ClientsMissing, FedweaveError, ReplyRefused, UserError, listed

KeyName = tuple[str | int, ...]  # ("server", purpose), ("step", step, how often it ran before)


class Keys:
    """The server's side of a run's randomness: the number of the round, and how often each step ran in it.

    key_names: the names of the keys of this round so far.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._root, self._device = random.root(seed), device
        self.begin(0)

    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""
        self._times: dict[str, int] = {}
        self.key_names: list[KeyName] = []
        self._replacements: Mapping[KeyName, Tensor] = {}
        self._round = random.fold_bits(self._root, "round", round)

    def server(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
        return self._key("server", purpose)

    def occurrence(self, step: str) -> int:
        """Number of earlier runs of `step` in this round; counts this one."""
        self._times[step] = self._times.get(step, -1) + 1
        return self._times[step]

    @property
    def times(self) -> dict[str, int]:
        """How often each step ran in this round before its last run."""
        return dict(self._times)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forget afterwards which steps ran inside; the next runs of these have the same keys."""
        times = self.times
        try:
            yield
        finally:
            self._times = times

    def step(self, step: str, occurrence: int) -> Tensor:
        """Randomness of a call: f(seed, round, step, how often it ran in this round)."""
        return self._key("step", step, occurrence)

    def _key(self, *name: str | int) -> Tensor:
        self.key_names.append(name)
        replacement = self._replacements.get(name)
        if replacement is not None:
            return replacement
        return random.key_of(random.fold_bits(self._round, *name), self._device)

    def words(self, names: Sequence[KeyName]) -> Tensor:
        """The keys of these names in this round, int64 [keys]."""
        return random.keys_of([random.fold_bits(self._round, *name) for name in names], self._device)

    @contextmanager
    def override(self, keys: Mapping[KeyName, Tensor]) -> Iterator[None]:
        """Return these tensors for the keys of these names inside."""
        self._replacements = keys
        try:
            yield
        finally:
            self._replacements = {}

    def skip(self, names: Sequence[KeyName]) -> None:
        """Count the runs of steps whose keys were used without being asked for."""
        self.key_names += names
        self._times |= {str(name[1]): int(name[2]) for name in names if name[0] == "step"}


def of_client(call: Tensor, purpose: str, clients: Tensor) -> Tensor:
    """Randomness of one client in a call, or of several clients at once; `clients` are the words of their ids."""
    return random.fold(call, purpose, clients)


def resolve_clients(
    step: str, clients: Sequence[str] | None, known: Mapping[str, int], quorum: float
) -> tuple[str, ...]:
    """The called clients in client order; all `known` clients, {client: its place}, if `clients` is None.

    Raises:
        FedweaveError: no client is named, one is unknown or named twice, or the quorum is not between 0 and 1.
    """
    if not 0 <= quorum <= 1:
        raise FedweaveError(f"the quorum of {step} is {quorum}; it is a share from 0 to 1.", code="call.quorum")
    if clients is None or (len(clients) == len(known) and tuple(clients) == tuple(known)):
        return tuple(known)
    if not clients:
        raise FedweaveError(f"{step} was called on no client: none is named.")
    unknown = [client for client in clients if client not in known]
    if unknown or len(set(clients)) < len(clients):
        raise FedweaveError(
            f"{step} was called on {listed(unknown or clients)}: unknown or repeated clients.", code="call.clients"
        )
    return tuple(sorted(clients, key=known.__getitem__))


def sources(step: str, to: Mapping[str, Sequence[str]], known: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """{client: the clients that send to it, in client order} of a `send`.

    Raises:
        FedweaveError: a client is unknown, sends to itself, twice to a peer, or to a client that is not called; or
            peers receive different numbers of messages.
    """
    chosen = resolve_clients(step, list(to), known, 1.0)
    for client, peers in to.items():
        if client in peers or len(set(peers)) < len(peers) or not set(peers) <= set(to):
            raise FedweaveError(
                f"{step} is to send from {client!r} to {list(peers)}; peers are other clients, each named once and "
                "each a key of `to` itself.",
                code="call.topology",
            )
    senders_by_peer = dict[str, tuple[str, ...]]()
    for peer in chosen:
        senders_by_peer[peer] = tuple(client for client in chosen if peer in to[client])
    if len(set(map(len, senders_by_peer.values()))) > 1:
        counts = listed([f"{peer}: {len(senders)}" for peer, senders in senders_by_peer.items()])
        raise FedweaveError(
            f"{step} sends unequal numbers of messages ({counts}); let all clients receive the same number.",
            code="call.topology",
        )
    return senders_by_peer


def receivers(step: str, clients: Sequence[str] | None, received: Sent | None) -> Sequence[str] | None:
    """The clients that a `map` calls: with `received`, the clients that sent.

    Raises:
        FedweaveError: a named client did not send.
    """
    if received is None:
        return clients
    silent = [client for client in clients or () if client not in received.clients]
    if silent:
        raise FedweaveError(
            f"{step} was called on {listed(silent)} with what {received.step} sent, but they did not send.",
            code="call.not-sent",
        )
    return received.clients if clients is None else clients


def check_quorum(step: str, quorum: float, count: int, missing: dict[str, str], fixed: bool = False) -> None:
    """Raise an error if fewer than the share `quorum` of the `count` called clients reply; fixed: no setting lowers it.

    Raises:
        ClientsMissing: names the `missing` clients with their reasons.
    """
    needed = max(1, -(-int(quorum * count * 10**9) // 10**9))
    if count - len(missing) < needed:
        raise ClientsMissing(step, missing, needed, count, fixed)


def check_summed(step: str, info: StepInfo, count: int, known: Sequence[str], missing: dict[str, str]) -> None:
    """Raise an error if the replies of `count` clients are too few for a secure sum among all `known` clients.

    Raises:
        UserError: there is only one client. ClientsMissing: names the `missing` clients with their reasons.
    """
    if not info.sums:
        return
    if len(known) < 2:
        raise UserError(
            f"{step}: a secure sum needs at least two clients: the sum of one is what it would hide.",
            code="user.two-clients",
        )
    needed = max(secure_sum.min_terms(len(known)) for secure_sum in info.sums.values())
    if count < needed:
        raise ClientsMissing(step, missing, needed, count + len(missing))


_REPLIES = {
    "map": "replies to the server",
    "send": "replies to peers",
    "replace_data": "replaces its client's data",
}


def check_way(step: str, info: StepInfo, way: str) -> None:
    """Raise an error if a step runs by another function of a `Federation` than it declares.

    Raises:
        FedweaveError: names the step.
    """
    if info.way != way:
        raise FedweaveError(
            f"step {step} {_REPLIES[info.way]}, so call it with `{info.way}` instead of `{way}`, or change its "
            "@on_client (peers, replaces_data).",
            code="step.way",
        )


def check_declared(step: str, info: StepInfo, paths: Iterable[str]) -> None:
    """Raise an error if a reply has a leaf, of these `paths`, that its step does not declare.

    Raises:
        ReplyRefused: names the leaves.
    """
    undeclared = [path for path in paths if info.covering(path) is None]
    if undeclared:
        declared = ", ".join(info.sends) or "nothing"
        raise ReplyRefused(
            f"step {step} replies with {', '.join(undeclared[:5])}, but declares {declared}. "
            "Add it to `sends`, of the part with this `report` or of the step's @on_client, with what the receiver "
            "learns from it."
        )


def check_addressed(step: str, reply: Tree, peers: int) -> None:
    """Raise an error if a reply does not have one tree for each of the `peers`.

    Raises:
        ReplyRefused: names the step.
    """
    due = {str(at) for at in range(peers)}
    if set(reply) != due or not all(isinstance(parcel, dict) for parcel in reply.values()):
        raise ReplyRefused(
            f"step {step} addresses {peers} peers, and its reply has the keys {', '.join(sorted(reply)) or 'none'}. "
            "Give a tree for each, under '0', '1' and so on."
        )


def check_permanent(step: str, info: StepInfo, reply: Tree, state: Tree) -> None:
    """Raise an error if a reply declares a permanent release that the client's state does not hold.

    Raises:
        FedweaveError: names the step and the entry.
    """
    for applied in info.mechanisms_of(reply):
        for release in map(release_of, applied.mechanisms):
            if release and release not in state:
                raise FedweaveError(
                    f"{step} declares a release {release!r}, but leaves nothing of that name in client.state. Store "
                    "the noised value there, so that it is sent again rather than drawn again.",
                    code="step.release",
                )
