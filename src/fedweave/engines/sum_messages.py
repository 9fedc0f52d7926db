"""Messages between server and clients for secure sums, in addition to the terms (`privacy.aggregation`).

Here are their form and their entries in the simulation's ledger.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fedweave.core.federation import Declaration, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import SLOTS
from fedweave.core.tree import Tree, encode, leaves
from fedweave.engines.messages import Messages
from fedweave.errors import FedweaveError, diverged_message
from fedweave.privacy.secure_sum import has_diverged

SHARE, SEED, KEY = 48, 16, 32  # bytes of a sealed letter with two shares, of a share, of a public key
CERTIFICATE, SIGNATURE = 1024, 256  # bytes in the simulation; the signature's are exact for RSA keys of 2048 bits
REPLIES: dict[str, Declaration] = {
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
MESSAGES = {
    "share": {"adverts": "the other sites' public keys for secure sums, certified and signed"},
    "reveal": {
        "signatures": "the other sites' signatures on whose terms a secure sum has",
        "letters": "shares of the other sites' keys and masks, sealed for this one",
    },
}
INFO = {kind: StepInfo.of(sends, ragged=True, hears=MESSAGES.get(kind, {})) for kind, sends in REPLIES.items()}


def fingerprint(message: Tree) -> str:
    """Fingerprint of a step's message: SHA-256 of its serialized form, in hexadecimal."""
    return hashlib.sha256(encode(message)).hexdigest()


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
            diverged = next(client for client, row in zip(clients, words, strict=True) if has_diverged(row))
            raise FedweaveError(diverged_message(f"{path} of {diverged!r}"), code="diverged")


class SumMeter:
    """Records in a ledger the messages with which sites mask and open sums. A resumed run agrees on new keys, as sites
    do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._remaining_slots, self._agreed = ledger, 0, frozenset[str]()

    def record_agreement(self, where: tuple[int, int], clients: Sequence[str]) -> None:
        """Keys for the sum of a step: from an epoch with remaining slots and keys of all these `clients`, or from a new
        epoch.

        where: round and number of the call.
        """
        if not self._remaining_slots or not self._agreed >= set(clients):
            self._remaining_slots, self._agreed = SLOTS, frozenset(clients)
            advert = {
                "certificate": _bytes(CERTIFICATE),
                "keys": _bytes(SLOTS + 1, KEY),
                "signature": _bytes(SIGNATURE),
            }
            self._exchange("advertise", where, clients, {}, advert)
            message = {"adverts": dict.fromkeys(clients, advert)}
            self._exchange("share", where, clients, message, {"shares": _bytes(len(clients), SLOTS, SHARE)})
        self._remaining_slots -= 1

    def record_opening(self, where: tuple[int, int], clients: Sequence[str]) -> None:
        """Signatures on the list of survivors, and shares."""
        self._exchange("survivors", where, clients, {}, {"signature": _bytes(SIGNATURE)})
        reply = {"mask": _bytes(SEED), "shares": _bytes(len(clients), SEED)}
        signatures = dict.fromkeys(clients, _bytes(SIGNATURE))
        for client in clients:
            letters = {peer: _bytes(SHARE) for peer in clients if peer != client}
            self._exchange("reveal", where, [client], {"signatures": signatures, "letters": letters}, reply)

    def _exchange(self, kind: str, where: tuple[int, int], clients: Sequence[str], down: Tree, up: Tree) -> None:
        self._ledger.record(*where, f"({kind})", tuple(clients), "down", down, 0.0, INFO[kind].message)
        self._ledger.record(*where, f"({kind})", tuple(clients), "up", up, 0.0, INFO[kind])


def _bytes(*form: int) -> Tensor:
    return torch.zeros(form, dtype=torch.uint8, device="cpu")
