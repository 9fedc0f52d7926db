"""What sites and server tell each other for a secure sum, and the bytes that are signed and hashed; keys that two sites
share, sealed letters between them, and pads.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedweave.core.mechanism import SLOTS
from fedweave.errors import CallRefused


@dataclass(frozen=True)
class Group:
    """Who adds up, and how few may.

    epoch: begins whenever keys are agreed anew. sites: all of the run, in order. needed: t, of how many a sum is opened
    at least, and how many put a secret together. slots: the sums of an epoch.

    Raises:
        ValueError: t is not more than half of all: the server could collect t shares of a site's key from some and t of
            its self mask from others (Bonawitz et al. 2017, theorem 6.5).
    """

    run: str
    epoch: int
    sites: tuple[str, ...]
    needed: int
    slots: int = SLOTS

    def __post_init__(self) -> None:
        if not len(self.sites) < 2 * self.needed <= 2 * len(self.sites) or len(self.sites) < 2:
            raise ValueError(f"a secure sum of {self.needed} of {len(self.sites)} sites protects nobody")

    @property
    def place(self) -> dict[str, int]:
        """{site: its place among all}."""
        return {site: at for at, site in enumerate(self.sites)}

    def sign(self, one: str, other: str) -> int:
        """With which sign `one` adds the pad that it shares with `other`."""
        return 1 if self.place[one] < self.place[other] else -1


class Advert(NamedTuple):
    """A site's public keys of an epoch. certificate: DER. keys: X25519, 32 bytes each: the one that shares are sealed
    for, then one for each slot. signature: of these (`advertised`)."""

    certificate: bytes
    keys: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True)
class Use:
    """What one slot of an epoch is used for.

    call: round, step and occurrence. peers: the sites whose terms are to be added, in the order of the run. heard: the
    fingerprint of what the step was told, which is in every pad and signature: a server that tells one site another
    thing, such that the others' terms are 0 or known, has a sum that cannot be opened (Pasquini et al. 2022, "Eluding
    secure aggregation in federated learning via model inconsistency").
    """

    slot: int
    call: tuple[int, str, int]
    peers: tuple[str, ...]
    heard: str = ""


@dataclass(frozen=True)
class Answers:
    """What sites revealed of one sum. mask: {survivor: seed of its self mask}, of those who told it themselves. shares:
    {site: {holder: its share}} of survivors' self masks and of others' keys."""

    mask: Mapping[str, bytes] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


def told(*what: object) -> bytes:
    """The one byte string of a list of words, numbers, bytes and lists; no two lists have the same."""
    return json.dumps(what, default=bytes.hex, ensure_ascii=False, separators=(",", ":")).encode()


def advertised(group: Group, site: str, keys: Sequence[bytes]) -> bytes:
    """What an `Advert` signs."""
    return told("fedweave: keys of a secure sum", group.run, group.epoch, site, list(keys))


def survived(group: Group, use: Use, survivors: Sequence[str]) -> bytes:
    """What survivors sign: whose terms the sum is of."""
    where = (group.run, group.epoch, use.slot, use.call, use.peers, use.heard)
    return told("fedweave: survivors of a secure sum", *where, list(survivors))


_PIECE = 1 << 18  # bytes of a pad at a time: they stay in cache
_ZEROS = bytes(_PIECE)


def derived(secret: bytes, *purpose: object) -> bytes:
    """HKDF-SHA256: 256 bits of `secret` for a purpose."""
    return HKDF(SHA256(), 32, None, told(*purpose)).derive(secret)


def private_key(seed: bytes) -> X25519PrivateKey:
    """The X25519 key of a seed."""
    return X25519PrivateKey.from_private_bytes(derived(seed, "key"))


def agreed(own: X25519PrivateKey, theirs: bytes) -> bytes:
    """What the holder of the private key of `theirs` finds, too.

    Raises:
        CallRefused: `theirs` is no key.
    """
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:
        raise CallRefused(f"secure sum: a public key is no key of X25519 ({error})") from error


def seal(key: bytes, slot: int, second: bool, letter: bytes, about: bytes) -> bytes:
    """A letter that only the holder of `key` can read, or write. second: it goes from the later site to the earlier."""
    return ChaCha20Poly1305(key).encrypt(_nonce(slot, second), letter, about)


def unseal(key: bytes, slot: int, second: bool, sealed: bytes, about: bytes) -> bytes | None:
    """Undo `seal`; None of what is not such a letter."""
    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(slot, second), sealed, about)
    except InvalidTag:
        return None


def _nonce(slot: int, second: bool) -> bytes:
    """Another one for each letter under a key, which lasts for an epoch."""
    return slot.to_bytes(8) + bytes([second]) + bytes(3)


def add_pad(key: bytes, words: Sequence[np.ndarray], sign: int) -> None:
    """Add `sign` times the key's pad, AES-256-CTR read as words, to unsigned `words` in place, modulo their size. A key
    makes one pad, once."""
    stream, piece = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), bytearray(_PIECE + 15)
    for array in words:
        flat, step = array.reshape(-1), _PIECE // array.itemsize
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            stream.update_into(memoryview(_ZEROS)[: part.nbytes], piece)
            pad = np.frombuffer(piece, part.dtype, len(part))
            (np.add if sign > 0 else np.subtract)(part, pad, out=part)
