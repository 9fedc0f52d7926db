"""Private set intersection of several parties, who have a server find which of their names all have, and tell it none:
commutative blinding (Meadows 1986; Huberman, Franklin and Hogg 1999, "Enhancing privacy and trust in electronic
communities"). Built from `cryptography`; nothing here knows tensors or how messages travel.

Names are hashed to points of P-256 under a key that the parties share. A party sends its list multiplied by a secret
number of its own, drawn for this meeting alone, in a random order. Then every list goes around: turn by turn each party
multiplies the list of another by its own number, once. What all have multiplied is compared: equal names are equal
points, whatever the order of multiplication, and a point says nothing of the name to whoever lacks one of the numbers
(decisional Diffie-Hellman, the hash taken for a random oracle). A name can be tried out only by putting it on a list
that every party multiplies; lists are signed with their lengths, which all parties see, and so is every turn.

Deviations: x-coordinates alone are sent, of which `cryptography` makes points and multiples; the sign of y is lost,
which multiplication does not see. Who compares (the server) learns how many names any of the parties share, not only
all.
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
from fedweave.privacy.aggregation import Identity, canonical_bytes

WIDTH = 32  # bytes of a point
_CURVE, _MULTIPLY, _EVEN = ec.SECP256R1(), ec.ECDH(), b"\2"


class Opening(NamedTuple):
    """What a party says of its list before anybody else's turn. certificate: DER. nonce: drawn for this meeting.
    digest: of the list. signature: of the rest."""

    certificate: bytes
    nonce: bytes
    size: int
    digest: bytes
    signature: bytes


@dataclass
class IntersectionParty:
    """One party in one meeting. sites: all parties, in order. key: of the hash, the same at all. order: which of its
    names stands at each place of its list."""

    name: str
    identity: Identity
    run: str
    sites: tuple[str, ...]
    key: bytes
    order: list[int] = field(default_factory=list)
    _turn: int = 0
    _own: Opening | None = None
    _openings: dict[str, Opening] = field(default_factory=dict)
    _meeting: bytes = b""

    def __post_init__(self) -> None:
        self._secret = ec.generate_private_key(_CURVE)

    def open(self, names: Sequence[str]) -> tuple[np.ndarray, Opening]:
        """Its list, uint8 [n, 32] in a random order, and what it signs of it."""
        self.order = list(range(len(names)))
        secrets.SystemRandom().shuffle(self.order)
        points = _rows([multiple(self._secret, hashed(self.key, self.run, names[row])) for row in self.order])
        nonce, list_digest = os.urandom(16), digest(points)
        signed = self.identity.sign(opens(self.run, self.name, nonce, len(points), list_digest))
        self._own = Opening(self.identity.certificate, nonce, len(points), list_digest, signed)
        return points, self._own

    @property
    def counts(self) -> dict[str, int]:
        """{party: how long its list is}, once all have been heard of."""
        return {site: opening.size for site, opening in self._openings.items()}

    def hear(self, openings: Mapping[str, Opening]) -> None:
        """Take what all parties say of their lists.

        Raises:
            CallRefused: called twice; a party is missing or its signature is wrong; or this party's own opening was
                changed.
        """
        if self._openings or openings.keys() != set(self.sites) or openings[self.name] != self._own:
            raise CallRefused("alignment: the lists are to be those of all sites, this one's as it sent it, and once")
        for site, opening in openings.items():
            about = opens(self.run, site, opening.nonce, opening.size, opening.digest)
            self.identity.check(site, opening.certificate, opening.signature, about)
        self._openings = {site: openings[site] for site in self.sites}  # whatever the order in which they came
        named = [[site, entry.nonce, entry.size, entry.digest] for site, entry in self._openings.items()]
        self._meeting = hashlib.sha256(canonical_bytes("fedweave: a meeting", self.run, named)).digest()

    def blind(self, turn: int, points: np.ndarray, signature: bytes) -> tuple[np.ndarray, bytes]:
        """This party's turn with the list of the party that is `turn` places before it; and a signature of the result.

        signature: of whoever had the turn before, on these points.

        Raises:
            CallRefused: it is not its turn, or the list is not what that party signed, of the length that its owner
                signed, of points that are all different.
        """
        if not self._openings or turn != self._turn + 1 or turn >= len(self.sites):
            raise CallRefused(f"alignment: turn {turn} is not the next; every list is blinded once, in a fixed order")
        at = self.sites.index(self.name)
        owner, before, list_digest = self.sites[at - turn], self.sites[at - 1], digest(points)
        opening = self._openings[owner]
        if points.shape != (opening.size, WIDTH) or len(np.unique(points, axis=0)) < len(points):
            raise CallRefused(f"alignment: the list of {owner!r} is not as long as it said, or has a point twice")
        if turn > 1:
            about = _passes(self._meeting, owner, turn - 1, list_digest)
            self.identity.check(before, self._openings[before].certificate, signature, about)
        elif list_digest != opening.digest:
            raise CallRefused(f"alignment: the list of {owner!r} is not the one that it signed")
        self._turn = turn
        blinded = _rows([multiple(self._secret, point.tobytes()) for point in points])
        return blinded, self.identity.sign(_passes(self._meeting, owner, turn, digest(blinded)))

    def rows(self, places: Sequence[int]) -> list[int]:
        """Which of its names are at these places of its list.

        Raises:
            CallRefused: not every turn has been taken; or a place is not on the list, or named twice, or none is.
        """
        if self._turn < len(self.sites) - 1:
            raise CallRefused("alignment: not every list has been blinded yet")
        if not places or len(set(places)) < len(places) or not 0 <= min(places) <= max(places) < len(self.order):
            raise CallRefused("alignment: the server names places that this site's list does not have, none, or twice")
        return [self.order[place] for place in places]

    def pad(self, name: str, words: int) -> np.ndarray:
        """uint64 [words] that every party of this meeting has for a name and, without the key, nobody else; who has it
        and padded words can try names on them.

        Raises:
            CallRefused: the parties have not been heard of yet.
        """
        if not self._meeting:
            raise CallRefused("alignment: nothing is padded before the lists of all parties are known")
        drawn = hashlib.shake_256(
            hmac.digest(self.key, self._meeting + canonical_bytes("fedweave: a pad", name), "sha256")
        )
        return np.frombuffer(drawn.digest(8 * words), np.uint64)


def common(lists: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{party: places in its list of what all lists have}, in the same order for all; lists that all have blinded."""
    keys = {site: np.ascontiguousarray(points).view(f"V{WIDTH}").reshape(-1) for site, points in lists.items()}
    place = {site: {point.tobytes(): at for at, point in enumerate(entries)} for site, entries in keys.items()}
    shared = sorted(set.intersection(*map(set, place.values())))
    return {site: np.array([entries[point] for point in shared], np.int64) for site, entries in place.items()}


def hashed(key: bytes, run: str, name: str) -> bytes:
    """The point of a name: the first of its keyed hashes that is the x-coordinate of one."""
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
    """A point times a party's secret number.

    Raises:
        CallRefused: it is no point.
    """
    try:
        public = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + point)
    except ValueError as error:
        raise CallRefused("alignment: a list has what is no point of the curve") from error
    return secret.exchange(_MULTIPLY, public)


def _rows(points: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(bytearray(b"".join(points)), np.uint8).reshape(len(points), WIDTH)


def opens(run: str, site: str, nonce: bytes, length: int, list_digest: bytes) -> bytes:
    """What an `Opening` signs."""
    return canonical_bytes("fedweave: a list to align", run, site, nonce, length, list_digest)


def _passes(meeting: bytes, owner: str, turn: int, list_digest: bytes) -> bytes:
    return canonical_bytes("fedweave: a turn of an alignment", meeting, owner, turn, list_digest)
