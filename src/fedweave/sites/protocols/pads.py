"""Keys that two sites share, letters that they seal for each other, and pads; and the byte strings that are signed and
hashed. Built from `cryptography`."""

import json
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedweave.errors import CallRefused

_PIECE = 1 << 18  # bytes of a pad at a time, which fit into the cache
_ZEROS = bytes(_PIECE)


def canonical_bytes(*values: object) -> bytes:
    """The unique byte string of a list of words, numbers, bytes and lists; different lists have different strings."""
    return json.dumps(values, default=bytes.hex, ensure_ascii=False, separators=(",", ":")).encode()


def derive_key(secret: bytes, *purpose: object) -> bytes:
    """HKDF-SHA256: 256 bits of `secret` for a purpose."""
    return HKDF(SHA256(), 32, None, canonical_bytes(*purpose)).derive(secret)


def private_key(seed: bytes) -> X25519PrivateKey:
    """The X25519 key of a seed."""
    return X25519PrivateKey.from_private_bytes(derive_key(seed, "key"))


def shared_secret(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that two sites share; the owner of the private key of `public` computes the same."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise CallRefused(f"secure sum: a public key is not a key of X25519 ({error})") from error


def seal(key: bytes, slot: int, second: bool, letter: bytes, about: bytes) -> bytes:
    """A letter that only owners of `key` can read or write. second: it goes from the later site to the earlier."""
    return ChaCha20Poly1305(key).encrypt(_nonce(slot, second), letter, about)


def unseal(key: bytes, slot: int, second: bool, sealed: bytes, about: bytes) -> bytes | None:
    """The letter of `seal`; None if `sealed` is not such a letter."""
    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(slot, second), sealed, about)
    except InvalidTag:
        return None


def _nonce(slot: int, second: bool) -> bytes:
    """A different nonce for each letter under a key, which lasts for an epoch."""
    return slot.to_bytes(8) + bytes([second]) + bytes(3)


def add_pad(key: bytes, words: Sequence[np.ndarray], sign: int) -> None:
    """Add `sign` times the key's pad, AES-256-CTR read as words, to unsigned `words` in place, modulo their size. A key
    makes only one pad, once."""
    stream, piece = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), bytearray(_PIECE + 15)
    for array in words:
        flat, step = array.reshape(-1), _PIECE // array.itemsize
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            stream.update_into(memoryview(_ZEROS)[: part.nbytes], piece)
            pad = np.frombuffer(piece, part.dtype, len(part))
            (np.add if sign > 0 else np.subtract)(part, pad, out=part)
