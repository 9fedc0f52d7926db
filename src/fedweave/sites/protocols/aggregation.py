"""Secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
figure 4 with all its protection against a server that cheats. Nothing here knows tensors or how messages travel.

A federation prepares an epoch of several sums. Every site advertises a separate key for each sum, signed with its
certificate's key (`Participant.advertise`), and gives the other sites shares of the secrets that a sum may need
(`share`). Then every sum takes three exchanges: masked terms (`mask`), signatures on the list of sites whose terms
arrived (`sign`), and shares (`reveal`). From the shares the server computes and removes the remaining masks
(`subtract_masks`).

Deviations: the shared secrets are 128-bit seeds of keys and masks. A survivor that still answers when the sum is opened
reveals the seed of its self mask together with its shares of other sites' secrets. Shares are therefore combined only
for sites that no longer answer. Sealed shares stay at the server until they are needed, for all sums of an epoch.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir

from fedweave.core.mechanism import SLOTS
from fedweave.errors import CallRefused, FedweaveError
from fedweave.sites.protocols.identity import Identity
from fedweave.sites.protocols.pads import add_pad, canonical_bytes, derive_key, private_key, seal, shared_secret, unseal

_SEED = 16  # bytes of a seed and of its shares


@dataclass(frozen=True)
class SumGroup:
    """The sites of secure sums, and the smallest number of them.

    epoch: number of the key agreement. sites: all sites of the run, in order. needed: t, the smallest number of sites
    that opens a sum, and the number of shares that give a secret. slots: number of sums in an epoch.

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
            raise ValueError(f"a secure sum of {self.needed} of {len(self.sites)} sites protects no site")

    @property
    def place(self) -> dict[str, int]:
        """{site: its place among all}."""
        return {site: at for at, site in enumerate(self.sites)}

    def sign(self, one: str, other: str) -> int:
        """The sign with which `one` adds the pad that it shares with `other`."""
        return 1 if self.place[one] < self.place[other] else -1


class Advert(NamedTuple):
    """A site's public keys of an epoch. certificate: DER. keys: X25519, 32 bytes each: first the key that shares are
    sealed for, then one for each slot. signature: over these keys (`advert_bytes`)."""

    certificate: bytes
    keys: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True)
class Use:
    """The use of one slot of an epoch.

    call: round, step and occurrence. peers: the sites whose terms are to be added, in the order of the run.
    message_hash: the fingerprint of the step's message, which is in every pad and signature. If a server sends one
    site a different message, so that the other sites' terms are 0 or known, the sum cannot be opened (Pasquini et al.
    2022, "Eluding secure aggregation in federated learning via model inconsistency").
    """

    slot: int
    call: tuple[int, str, int]
    peers: tuple[str, ...]
    message_hash: str = ""


@dataclass(frozen=True)
class Answers:
    """The secrets that sites revealed for one sum. mask: {survivor: seed of its self mask}, from survivors that
    answered. shares: {site: {holder: its share}} of survivors' self masks and of other sites' keys."""

    mask: Mapping[str, bytes] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


def advert_bytes(group: SumGroup, site: str, keys: Sequence[bytes]) -> bytes:
    """The bytes that an `Advert` signs."""
    return canonical_bytes("fedweave: keys of a secure sum", group.run, group.epoch, site, list(keys))


def survivor_bytes(group: SumGroup, use: Use, survivors: Sequence[str]) -> bytes:
    """The bytes that survivors sign: the sites whose terms are in the sum."""
    where = (group.run, group.epoch, use.slot, use.call, use.peers, use.message_hash)
    return canonical_bytes("fedweave: survivors of a secure sum", *where, list(survivors))


@dataclass
class _Sum:
    """A site's record of a sum to which it has sent its term."""

    use: Use
    survivors: tuple[str, ...] = ()
    opened: bool = False


@dataclass
class Participant:
    """One site in one epoch of one run. It exists only in memory: after a restart there is a new epoch, so that no pad
    is used twice."""

    name: str
    identity: Identity
    group: SumGroup
    _adverts: dict[str, Advert] = field(default_factory=dict)
    _seeds: list[tuple[bytes, bytes]] = field(default_factory=list)  # for each slot: seeds of its key and its self mask
    _local_shares: list[bytes] = field(default_factory=list)  # for each slot: the site's shares of its own secrets
    _sums: dict[int, _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._letters = private_key(os.urandom(_SEED))

    def advertise(self) -> Advert:
        """Round 0 of figure 4."""
        _once(not self._seeds, f"the keys of epoch {self.group.epoch} are advertised")
        self._seeds = [(os.urandom(_SEED), os.urandom(_SEED)) for _ in range(self.group.slots)]
        private_keys = [self._letters] + [private_key(seed) for seed, _ in self._seeds]
        keys = tuple(key.public_key().public_bytes_raw() for key in private_keys)
        signature = self.identity.sign(advert_bytes(self.group, self.name, keys))
        return Advert(self.identity.certificate, keys, signature)

    def share(self, adverts: Mapping[str, Advert]) -> dict[str, list[bytes]]:
        """Round 1: {other site: a sealed letter for each slot}, with the shares of this site's key and self mask."""
        _once(bool(self._seeds) and not self._adverts, f"the shares of epoch {self.group.epoch} are dealt")
        if self.name not in adverts or not set(adverts) <= set(self.group.sites):
            raise CallRefused("secure sum: keys must come from this site and other sites of the run")
        self._enough(adverts)
        for site, advert in adverts.items():
            statement = advert_bytes(self.group, site, advert.keys)
            self.identity.check(site, advert.certificate, advert.signature, statement)
            if len(advert.keys) != self.group.slots + 1:
                raise CallRefused(
                    f"secure sum: {site!r} advertises {len(advert.keys)} keys, not {self.group.slots + 1}"
                )
        self._adverts = {site: adverts[site] for site in self.group.sites if site in adverts}
        # For each slot {site: its shares of both seeds}; the number of a share is the site's place in the run.
        deals = []
        for key_seed, mask_seed in self._seeds:
            of_key = Shamir.split(self.group.needed, len(self.group.sites), key_seed)
            of_mask = Shamir.split(self.group.needed, len(self.group.sites), mask_seed)
            pairs = zip(self.group.sites, of_key, of_mask, strict=True)
            deals.append({site: key[1] + mask[1] for site, key, mask in pairs})
        self._local_shares = [shares[self.name] for shares in deals]
        letters = dict[str, list[bytes]]()
        for site in self._adverts:
            if site != self.name:
                letters[site] = [self._seal(site, slot, shares[site]) for slot, shares in enumerate(deals)]
        return letters

    def mask(self, use: Use, words: Sequence[np.ndarray]) -> None:
        """Round 2: add all pads of a slot to unsigned `words`, in place, modulo their size."""
        if not self._adverts or use.slot in self._sums or not 0 <= use.slot < self.group.slots:
            raise CallRefused(
                f"secure sum: slot {use.slot} of epoch {self.group.epoch} is not prepared, or has been used"
            )
        peers = tuple(site for site in self.group.sites if site in use.peers and site in self._adverts)
        if use.peers != peers or self.name not in peers:
            raise CallRefused(f"secure sum: {list(use.peers)} are not this site and others that have advertised keys")
        self._enough(use.peers)
        self._sums[use.slot] = _Sum(use)
        key = private_key(self._seeds[use.slot][0])
        for peer in use.peers:
            if peer != self.name:
                secret = shared_secret(key, self._adverts[peer].keys[1 + use.slot])
                add_pad(pair_pad(secret, self.group, use, self.name, peer), words, self.group.sign(self.name, peer))
        add_pad(self_pad(self._seeds[use.slot][1], self.group, use, self.name), words, 1)

    def sign(self, slot: int, survivors: Sequence[str]) -> bytes:
        """Round 3, the consistency check: sign the list of sites whose terms arrived. A site signs one list."""
        record = self._sum_in(slot)
        _once(not record.survivors, f"the survivors of slot {slot} are signed")
        signers = tuple(site for site in record.use.peers if site in survivors)
        if list(signers) != list(survivors) or self.name not in signers:
            raise CallRefused(f"secure sum: {list(survivors)} are not this site and others that were to send a term")
        self._enough(signers)
        record.survivors = signers
        return self.identity.sign(survivor_bytes(self.group, record.use, signers))

    def reveal(self, slot: int, signatures: Mapping[str, bytes], letters: Mapping[str, bytes]) -> Answers:
        """Round 4: the shares of the self masks of the sites on the signed list, and of the keys of the other sites.

        For each site it reveals one of the two, never both.

        signatures: of survivors on that list. letters: sealed by the other sites for this site.
        """
        record = self._sum_in(slot)
        _once(bool(record.survivors) and not record.opened, f"slot {slot} is opened")
        use, message = record.use, survivor_bytes(self.group, record.use, record.survivors)
        self._enough([site for site in record.survivors if site in signatures])
        for site in signatures:
            if site not in record.survivors:
                raise CallRefused(f"secure sum: {site!r} signs a list that it is not on")
            self.identity.check(site, self._adverts[site].certificate, signatures[site], message)
        record.opened = True
        shares = dict[str, dict[str, bytes]]()
        for site in use.peers:
            pair = self.open_letter(site, slot, letters.get(site))
            if pair is not None:  # the share of its key, then of its self mask
                shares[site] = {self.name: pair[_SEED:] if site in record.survivors else pair[:_SEED]}
        return Answers({self.name: self._seeds[slot][1]}, shares)

    def _sum_in(self, slot: int) -> _Sum:
        if slot not in self._sums:
            raise CallRefused(f"secure sum: the site has sent no term in slot {slot} of epoch {self.group.epoch}")
        return self._sums[slot]

    def _enough(self, sites: Collection[str]) -> None:
        if len(sites) < self.group.needed:
            raise CallRefused(
                f"secure sum: {len(sites)} of {len(self.group.sites)} sites are too few; {self.group.needed} are needed"
            )

    def _seal(self, to: str, slot: int, letter: bytes) -> bytes:
        is_second = self.group.sign(self.name, to) < 0
        return seal(self._letter_key(to), slot, is_second, letter, self._about(self.name, to, slot))

    def open_letter(self, sender: str, slot: int, letter: bytes | None) -> bytes | None:
        """The shares from a site; None if the letter is not the one that the site sealed."""
        if sender == self.name:
            return self._local_shares[slot]
        if letter is None:
            return None
        is_second = self.group.sign(sender, self.name) < 0
        return unseal(self._letter_key(sender), slot, is_second, letter, self._about(sender, self.name, slot))

    def _letter_key(self, other: str) -> bytes:
        secret = shared_secret(self._letters, self._adverts[other].keys[0])
        return derive_key(secret, "shares", self.group.run, self.group.epoch, sorted((self.name, other)))

    def _about(self, sender: str, receiver: str, slot: int) -> bytes:
        return canonical_bytes(self.group.run, self.group.epoch, slot, sender, receiver)


def pair_pad(secret: bytes, group: SumGroup, use: Use, one: str, other: str) -> bytes:
    """The key of the pad that two sites share: f(their secret; run, epoch, slot, round, step, occurrence, fingerprint
    of the step's message)."""
    return derive_key(secret, "pad", group.run, group.epoch, use.slot, use.call, use.message_hash, sorted((one, other)))


def self_pad(seed: bytes, group: SumGroup, use: Use, site: str) -> bytes:
    """The key of a site's self mask."""
    return derive_key(seed, "self mask", group.run, group.epoch, use.slot, use.call, use.message_hash, site)


def _once(first: bool, what: str) -> None:
    if not first:
        raise CallRefused(f"secure sum: {what} once, and after what comes before it")


def subtract_masks(
    words: Sequence[np.ndarray],
    group: SumGroup,
    use: Use,
    survivors: Sequence[str],
    answers: Sequence[Answers],
    adverts: Mapping[str, Advert],
) -> None:
    """Subtract the masks that remain in the sum of the survivors' terms from unsigned `words`, in place: all survivors'
    self masks, and the pads that survivors share with sites whose terms did not arrive.

    words: the sum, or one of its terms.
    """
    for site in survivors:
        seed = next((answer.mask[site] for answer in answers if site in answer.mask), None)
        seed = _combine_shares(site, group, answers) if seed is None else seed
        add_pad(self_pad(seed, group, use, site), words, -1)
    for lost in use.peers:
        if lost in survivors:
            continue
        key = private_key(_combine_shares(lost, group, answers))
        if key.public_key().public_bytes_raw() != adverts[lost].keys[1 + use.slot]:
            raise FedweaveError(f"secure sum: the shares of the key of {lost!r} do not belong together.")
        for site in survivors:
            secret = shared_secret(key, adverts[site].keys[1 + use.slot])
            add_pad(pair_pad(secret, group, use, site, lost), words, -group.sign(site, lost))


def _combine_shares(site: str, group: SumGroup, answers: Sequence[Answers]) -> bytes:
    shares = dict[str, bytes]()
    for answer in answers:
        shares |= answer.shares.get(site, {})
    if len(shares) < group.needed:
        raise FedweaveError(
            f"secure sum: {len(shares)} shares of the secrets of {site!r} have come, and {group.needed} are needed to "
            "do without it. Bring the sites back and resume the run."
        )
    holders = list(shares)[: group.needed]
    return Shamir.combine([(group.place[holder] + 1, shares[holder]) for holder in holders])
