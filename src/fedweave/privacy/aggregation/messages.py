"""What sites and server tell each other for a secure sum, and the bytes that are signed and hashed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedweave.core.mechanism import SLOTS


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
