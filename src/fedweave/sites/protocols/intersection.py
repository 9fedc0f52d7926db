"""Private set intersection of several parties: a server finds the names that all parties have, and learns no name.

Commutative blinding (Meadows 1986; Huberman, Franklin and Hogg 1999, "Enhancing privacy and trust in electronic
communities"). Built from `cryptography`; nothing here knows tensors or how messages travel.

Names are hashed to points of P-256 under a key that the parties share. A party multiplies its list by a secret number,
drawn only for this meeting, and sends it in a random order. Then every list goes around: turn by turn each party
multiplies the list of another party by its own number, once. The server compares lists that all parties have
multiplied: equal names give equal points, in any order of multiplication. A point reveals nothing of the name without
all the numbers (decisional Diffie-Hellman, with the hash as a random oracle). A party can test a name only by adding it
to a list that every party multiplies. Lists are signed with their lengths, which all parties see, and so is every turn.

Deviations: only x-coordinates are sent, and `cryptography` makes points and multiples from them. This loses the sign of
y, on which multiplication does not depend. The server also learns how many names any subset of the parties shares.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedweave.errors import CallRefused
from fedweave.sites.protocols.identity import Identity
from fedweave.sites.protocols.pads import canonical_bytes

WIDTH = 32  # bytes of a point
_CURVE, _MULTIPLY, _EVEN = ec.SECP256R1(), ec.ECDH(), b"\2"


class Opening(NamedTuple):
    """A party's statement on its list before the first turn. certificate: DER. nonce: drawn for this meeting. digest:
    hash of the list. signature: over the other fields."""

    certificate: bytes
    nonce: bytes
    size: int
    digest: bytes
    signature: bytes


@dataclass
class IntersectionParty:
    """One party in one meeting. sites: all parties, in order. key: shared key of the hash. order: for each place of the
    party's list the number of the name there."""

    name: str
    identity: Identity
    run: str
    sites: tuple[str, ...]
    key: bytes
    order: list[int] = field(default_factory=list)
    _turn: int = 0
    _local_opening: Opening | None = None
    _openings: dict[str, Opening] = field(default_factory=dict)
    _meeting: bytes = b""

    def __post_init__(self) -> None:
        self._secret = ec.generate_private_key(_CURVE)

    def open(self, names: Sequence[str]) -> tuple[np.ndarray, Opening]:
        """Return the party's list, uint8 [n, 32] in a random order, and its signed opening."""
        self.order = list(range(len(names)))
        secrets.SystemRandom().shuffle(self.order)
        points = _rows([multiple(self._secret, hash_to_point(self.key, self.run, names[row])) for row in self.order])
        nonce, list_digest = os.urandom(16), digest(points)
        signature = self.identity.sign(opens(self.run, self.name, nonce, len(points), list_digest))
        self._local_opening = Opening(self.identity.certificate, nonce, len(points), list_digest, signature)
        return points, self._local_opening

    @property
    def counts(self) -> dict[str, int]:
        """{party: length of its list}, once all openings are known."""
        return {site: opening.size for site, opening in self._openings.items()}

    def receive_openings(self, openings: Mapping[str, Opening]) -> None:
        """Receive the openings of all parties."""
        if self._openings or openings.keys() != set(self.sites) or openings[self.name] != self._local_opening:
            raise CallRefused("alignment: the server must send all sites' lists once, with this site's unchanged")
        for site, opening in openings.items():
            about = opens(self.run, site, opening.nonce, opening.size, opening.digest)
            self.identity.check(site, opening.certificate, opening.signature, about)
        self._openings = {site: openings[site] for site in self.sites}  # in the order of the sites
        entries = [[site, entry.nonce, entry.size, entry.digest] for site, entry in self._openings.items()]
        self._meeting = hashlib.sha256(canonical_bytes("fedweave: a meeting", self.run, entries)).digest()

    def blind(self, turn: int, points: np.ndarray, signature: bytes) -> tuple[np.ndarray, bytes]:
        """Take this party's turn with the list of the party that is `turn` places before it; sign the result.

        signature: of the party with the previous turn, over these points.
        """
        if not self._openings or turn != self._turn + 1 or turn >= len(self.sites):
            raise CallRefused(f"alignment: turn {turn} is not the next; every list is blinded once, in a fixed order")
        at = self.sites.index(self.name)
        owner, before, list_digest = self.sites[at - turn], self.sites[at - 1], digest(points)
        opening = self._openings[owner]
        if points.shape != (opening.size, WIDTH) or len(np.unique(points, axis=0)) < len(points):
            raise CallRefused(f"alignment: the list of {owner!r} has another length than it signed, or a point twice")
        if turn > 1:
            about = _passes(self._meeting, owner, turn - 1, list_digest)
            self.identity.check(before, self._openings[before].certificate, signature, about)
        elif list_digest != opening.digest:
            raise CallRefused(f"alignment: the list of {owner!r} is not the one that it signed")
        self._turn = turn
        blinded = _rows([multiple(self._secret, point.tobytes()) for point in points])
        return blinded, self.identity.sign(_passes(self._meeting, owner, turn, digest(blinded)))

    def rows(self, places: Sequence[int]) -> list[int]:
        """The numbers of this party's names at these places of its list."""
        if self._turn < len(self.sites) - 1:
            raise CallRefused("alignment: not every list has been blinded yet")
        if not places or len(set(places)) < len(places) or not 0 <= min(places) <= max(places) < len(self.order):
            raise CallRefused("alignment: the server names no places, places outside this site's list, or one twice")
        return [self.order[place] for place in places]

    def pad(self, name: str, words: int) -> np.ndarray:
        """Pseudorandom words of a name, uint64 [words], the same at all parties of this meeting. Without the key they
        are unknown. An owner of the key and of padded words can test names on them."""
        if not self._meeting:
            raise CallRefused("alignment: nothing is padded before the lists of all parties are known")
        stream = hashlib.shake_256(
            hmac.digest(self.key, self._meeting + canonical_bytes("fedweave: a pad", name), "sha256")
        )
        return np.frombuffer(stream.digest(8 * words), np.uint64)


def common(lists: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{party: places in its list of the points in all lists}, in the same order for all. All parties blinded them."""
    place = {}  # {party: {point: place}}
    for site, points in lists.items():
        place[site] = {point.tobytes(): at for at, point in enumerate(np.ascontiguousarray(points))}
    in_all = sorted(set.intersection(*map(set, place.values())))
    result = dict[str, np.ndarray]()
    for site, places in place.items():
        result[site] = np.array([places[point] for point in in_all], np.int64)
    return result


def hash_to_point(key: bytes, run: str, name: str) -> bytes:
    """The point of a name: the first of its keyed hashes that is the x-coordinate of a point."""
    for attempt in count():
        point = hmac.digest(key, canonical_bytes(run, name, attempt), "sha256")
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + point)
        except ValueError:
            continue
        return point
    raise AssertionError("unreachable")


def digest(points: np.ndarray) -> bytes:
    """SHA-256 of a list."""
    return hashlib.sha256(points.tobytes()).digest()


def multiple(secret: ec.EllipticCurvePrivateKey, point: bytes) -> bytes:
    """A point times a party's secret number."""
    try:
        public = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + point)
    except ValueError as error:
        raise CallRefused("alignment: a list contains bytes that are not a point of the curve") from error
    return secret.exchange(_MULTIPLY, public)


def _rows(points: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(bytearray(b"".join(points)), np.uint8).reshape(len(points), WIDTH)


def opens(run: str, site: str, nonce: bytes, length: int, list_digest: bytes) -> bytes:
    """The bytes that an `Opening` signs."""
    return canonical_bytes("fedweave: a list to align", run, site, nonce, length, list_digest)


def _passes(meeting: bytes, owner: str, turn: int, list_digest: bytes) -> bytes:
    return canonical_bytes("fedweave: a turn of an alignment", meeting, owner, turn, list_digest)
