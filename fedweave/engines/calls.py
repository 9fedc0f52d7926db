"""What every engine does alike with a call: its randomness, who is called, and what a reply may hold."""

from collections.abc import Sequence

from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree
from fedweave.errors import ClientsMissing, FedweaveError, ReplyRefused


class Keys:
    """The server's side of a run's randomness: which round it is, and how often each step ran in it."""

    def __init__(self, seed: int) -> None:
        self._root = random.key(seed)
        self.begin(0)

    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""
        self._times: dict[str, int] = {}
        self._round = random.fold(self._root, "round", round)

    def server(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
        return random.fold(self._round, "server", purpose)

    def occurrence(self, step: str) -> int:
        """How often `step` ran in this round before; counts it."""
        again = self._times[step] = self._times.get(step, -1) + 1
        return again

    def step(self, step: str, again: int) -> Tensor:
        """Randomness of a call: f(seed, round, step, how often it ran in this round)."""
        return random.fold(self._round, "step", step, again)


def of_client(call: Tensor, purpose: str, clients: Tensor) -> Tensor:
    """Randomness of one client in a call, or of several at once; `clients` are their ids' words."""
    return random.fold(call, purpose, clients)


def called(step: str, clients: Sequence[str] | None, known: Sequence[str], quorum: float) -> tuple[str, ...]:
    """The called clients in client order; all `known` ones if `clients` is None.

    Raises:
        FedweaveError: a client is unknown or named twice, or the quorum is no share.
    """
    if not 0 <= quorum <= 1:
        raise FedweaveError(f"the quorum of {step} is {quorum}; it is a share from 0 to 1.")
    if clients is None:
        return tuple(known)
    wanted = set(clients)
    unknown = [client for client in clients if client not in known]
    if unknown or len(wanted) < len(clients):
        raise FedweaveError(f"{step} was called on {unknown or tuple(clients)}: unknown or repeated clients.")
    return tuple(client for client in known if client in wanted)


def check_quorum(step: str, quorum: float, count: int, missing: dict[str, str]) -> None:
    """Refuse to go on when of `count` called clients fewer than the share `quorum` reply.

    Raises:
        ClientsMissing: names the `missing` ones with their reasons.
    """
    needed = max(1, -(-int(quorum * count * 10**9) // 10**9))
    if count - len(missing) < needed:
        raise ClientsMissing(step, missing, needed, count)


def check_declared(step: str, info: StepInfo, reply: Tree) -> None:
    """Refuse a reply with a key that its step does not declare.

    Raises:
        ReplyRefused: names the keys.
    """
    if undeclared := [key for key in reply if key not in info.sends]:
        declared = ", ".join(info.sends) or "nothing"
        raise ReplyRefused(
            f"step {step} replies with {', '.join(undeclared)}, but declares {declared}. "
            "Add it to @on_client(sends={…}) with what the receiver learns from it."
        )
