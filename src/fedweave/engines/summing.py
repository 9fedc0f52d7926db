"""What passes between server and clients for secure sums in addition to the terms (`privacy.aggregation`): its form,
and its place in the simulation's ledger."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fedweave.core.federation import Declaration, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import SLOTS
from fedweave.core.tree import Tree, encode, leaves
from fedweave.engines.messages import Messages
from fedweave.errors import FedweaveError, told_diverged
from fedweave.privacy.secure_sum import diverged

SHARE, SEED, KEY = 48, 16, 32  # bytes of a sealed letter with two shares, of a share, of a public key
CERTIFICATE, SIGNATURE = 1024, 256  # what the simulation counts; of RSA keys of 2048 bits that of a signature is exact
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
    """Fingerprint of what a step was told: SHA-256 of its serialised form, in digits."""
    return hashlib.sha256(encode(heard)).hexdigest()


def check_alike(step: str, messages: Messages) -> None:
    """Refuse messages for single clients in a step that replies in a secure sum: all must be told the same (see `Use`).

    Raises:
        FedweaveError: names it.
    """
    if messages.each or messages.rows.clients:
        raise FedweaveError(
            f"{step} replies in a secure sum, so all clients must be told the same; take no `each`.", code="sum.replies"
        )


def check_terms(info: StepInfo, clients: Sequence[str], replies: Tree) -> None:
    """Refuse what sites would not send: terms of a sum that are not finite. replies: those of `clients`, stacked.

    Raises:
        FedweaveError: names leaf and client.
    """
    for path, words in leaves(replies):
        if info.covering(path) in info.sums and isinstance(words, Tensor) and diverged(words):
            odd = next(client for client, own in zip(clients, words, strict=True) if diverged(own))
            raise FedweaveError(told_diverged(f"{path} of {odd!r}"), code="diverged")


class SumMeter:
    """Records in a ledger what sites would send so that sums can be masked and opened. A resumed run agrees on new
    keys, as sites do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._left, self._agreed = ledger, 0, frozenset[str]()

    def prepare(self, where: tuple[int, int], here: Sequence[str]) -> None:
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
            told = {"adverts": dict.fromkeys(here, advert)}
            self._exchange("share", where, here, told, {"shares": _bytes(len(here), SLOTS, SHARE)})
        self._left -= 1

    def opened(self, where: tuple[int, int], here: Sequence[str]) -> None:
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
