"""A site's side of secure sums: what it sends, once each, and what it refuses.

And the server's: what is to be taken away from the sum of masked terms.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir

from fedweave.errors import CallRefused, FedweaveError
from fedweave.privacy.aggregation.identity import Identity
from fedweave.privacy.aggregation.messages import (
    Advert,
    Answers,
    Group,
    Use,
    add_pad,
    advertised,
    agreed,
    derived,
    private_key,
    seal,
    survived,
    told,
    unseal,
)

_SEED = 16  # bytes of a seed and of its shares


@dataclass
class _Sum:
    """What a site knows of a sum that it has sent its term of."""

    use: Use
    survivors: tuple[str, ...] = ()
    opened: bool = False


@dataclass
class Participant:
    """One site in one epoch of one run, in memory alone: after a restart there is a new epoch, so that no pad can come
    twice."""

    name: str
    identity: Identity
    group: Group
    _adverts: dict[str, Advert] = field(default_factory=dict)
    _seeds: list[tuple[bytes, bytes]] = field(default_factory=list)  # of each slot: of its key, of its self mask
    _kept: list[bytes] = field(default_factory=list)  # the site's own shares of these, of each slot
    _sums: dict[int, _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._letters = private_key(os.urandom(_SEED))

    def advertise(self) -> Advert:
        """Round 0 of figure 4.

        Raises:
            CallRefused: it was asked before.
        """
        _once(not self._seeds, f"the keys of epoch {self.group.epoch} are advertised")
        self._seeds = [(os.urandom(_SEED), os.urandom(_SEED)) for _ in range(self.group.slots)]
        pairs = [self._letters, *(private_key(seed) for seed, _ in self._seeds)]
        keys = tuple(pair.public_key().public_bytes_raw() for pair in pairs)
        signature = self.identity.sign(advertised(self.group, self.name, keys))
        return Advert(self.identity.certificate, keys, signature)

    def share(self, adverts: Mapping[str, Advert]) -> dict[str, list[bytes]]:
        """Round 1: {other site: a sealed letter for each slot}, the shares of this site's key and self
        mask.

        Raises:
            CallRefused: it was asked before; there are too few sites, or one that has not signed its keys.
        """
        _once(bool(self._seeds) and not self._adverts, f"the shares of epoch {self.group.epoch} are dealt")
        if self.name not in adverts or not set(adverts) <= set(self.group.sites):
            raise CallRefused("secure sum: keys are to come from this site and others of the run")
        self._enough(adverts)
        for site, advert in adverts.items():
            signed = advertised(self.group, site, advert.keys)
            self.identity.check(site, advert.certificate, advert.signature, signed)
            if len(advert.keys) != self.group.slots + 1:
                raise CallRefused(
                    f"secure sum: {site!r} advertises {len(advert.keys)} keys, not {self.group.slots + 1}"
                )
        self._adverts = {site: adverts[site] for site in self.group.sites if site in adverts}
        dealt = [self._dealt(pair) for pair in self._seeds]
        self._kept = [shares[self.name] for shares in dealt]
        others = [site for site in self._adverts if site != self.name]
        return {
            site: [self._seal(site, slot, dealt[slot][site]) for slot in range(self.group.slots)] for site in others
        }

    def mask(self, use: Use, words: Sequence[np.ndarray]) -> None:
        """Round 2: add all pads of a slot to unsigned `words`, in place, modulo their size.

        Raises:
            CallRefused: the slot is used up, or the sum would be of too few sites.
        """
        if not self._adverts or use.slot in self._sums or not 0 <= use.slot < self.group.slots:
            raise CallRefused(
                f"secure sum: slot {use.slot} of epoch {self.group.epoch} is not prepared, or has been used"
            )
        known = tuple(site for site in self.group.sites if site in use.peers and site in self._adverts)
        if use.peers != known or self.name not in known:
            raise CallRefused(f"secure sum: {list(use.peers)} are not this site and others that have advertised keys")
        self._enough(use.peers)
        self._sums[use.slot] = _Sum(use)
        key = private_key(self._seeds[use.slot][0])
        for peer in use.peers:
            if peer != self.name:
                secret = agreed(key, self._adverts[peer].keys[1 + use.slot])
                add_pad(pair_pad(secret, self.group, use, self.name, peer), words, self.group.sign(self.name, peer))
        add_pad(self_pad(self._seeds[use.slot][1], self.group, use, self.name), words, 1)

    def sign(self, slot: int, survivors: Sequence[str]) -> bytes:
        """Round 3, the consistency check: this site's signature on whose terms have come; it signs one list.

        Raises:
            CallRefused: it has signed already, or the list is not of sites that were to send, this one among them.
        """
        known = self._known(slot)
        _once(not known.survivors, f"the survivors of slot {slot} are signed")
        listed = tuple(site for site in known.use.peers if site in survivors)
        if list(listed) != list(survivors) or self.name not in listed:
            raise CallRefused(f"secure sum: {list(survivors)} are not this site and others that were to send a term")
        self._enough(listed)
        known.survivors = listed
        return self.identity.sign(survived(self.group, known.use, listed))

    def reveal(self, slot: int, signatures: Mapping[str, bytes], letters: Mapping[str, bytes]) -> Answers:
        """Round 4: the shares of the self masks of those on the list that was signed, and of the keys of the others.

        Of each site it is one of the two, never both.

        signatures: of survivors on that list. letters: what the others sealed for this site.

        Raises:
            CallRefused: no list was signed, it was asked before, or too few have signed this list.
        """
        known = self._known(slot)
        _once(bool(known.survivors) and not known.opened, f"slot {slot} is opened")
        use, message = known.use, survived(self.group, known.use, known.survivors)
        self._enough([site for site in known.survivors if site in signatures])
        for site in signatures:
            if site not in known.survivors:
                raise CallRefused(f"secure sum: {site!r} signs a list that it is not on")
            self.identity.check(site, self._adverts[site].certificate, signatures[site], message)
        known.opened = True
        pairs = {site: self._unsealed(site, slot, letters.get(site)) for site in use.peers}
        shares = {
            site: {self.name: pair[_SEED:] if site in known.survivors else pair[:_SEED]}
            for site, pair in pairs.items()
            if pair is not None
        }
        return Answers({self.name: self._seeds[slot][1]}, shares)

    def _known(self, slot: int) -> _Sum:
        if slot not in self._sums:
            raise CallRefused(f"secure sum: the site has sent no term in slot {slot} of epoch {self.group.epoch}")
        return self._sums[slot]

    def _enough(self, sites: Collection[str]) -> None:
        if len(sites) < self.group.needed:
            raise CallRefused(
                f"secure sum: {len(sites)} of {len(self.group.sites)} sites are too few; {self.group.needed} are needed"
            )

    def _dealt(self, seeds: tuple[bytes, bytes]) -> dict[str, bytes]:
        """{site: its shares of both}; a site's place in the run is the place of its share."""
        sites = self.group.sites
        first, second = (Shamir.split(self.group.needed, len(sites), seed) for seed in seeds)
        return {site: one[1] + two[1] for site, one, two in zip(sites, first, second, strict=True)}

    def _seal(self, to: str, slot: int, letter: bytes) -> bytes:
        return seal(
            self._letter_key(to), slot, self.group.sign(self.name, to) < 0, letter, self._about(self.name, to, slot)
        )

    def _unsealed(self, sender: str, slot: int, letter: bytes | None) -> bytes | None:
        """The shares of a site; None if what came is not what it sealed."""
        if sender == self.name:
            return self._kept[slot]
        if letter is None:
            return None
        about = self._about(sender, self.name, slot)
        return unseal(self._letter_key(sender), slot, self.group.sign(sender, self.name) < 0, letter, about)

    def _letter_key(self, other: str) -> bytes:
        secret = agreed(self._letters, self._adverts[other].keys[0])
        return derived(secret, "shares", self.group.run, self.group.epoch, sorted((self.name, other)))

    def _about(self, sender: str, receiver: str, slot: int) -> bytes:
        return told(self.group.run, self.group.epoch, slot, sender, receiver)


def pair_pad(secret: bytes, group: Group, use: Use, one: str, other: str) -> bytes:
    """The key of the pad that two sites share: f(their secret; run, epoch, slot, round, step, occurrence, what the step
    was told)."""
    return derived(secret, "pad", group.run, group.epoch, use.slot, use.call, use.heard, sorted((one, other)))


def self_pad(seed: bytes, group: Group, use: Use, site: str) -> bytes:
    """The key of a site's self mask."""
    return derived(seed, "self mask", group.run, group.epoch, use.slot, use.call, use.heard, site)


def _once(first: bool, what: str) -> None:
    if not first:
        raise CallRefused(f"secure sum: {what} once, and after what comes before it")


def leftover(
    words: Sequence[np.ndarray],
    group: Group,
    use: Use,
    survivors: Sequence[str],
    answers: Sequence[Answers],
    adverts: Mapping[str, Advert],
) -> None:
    """Take the masks that are left in the sum of the survivors' terms away from unsigned `words`, in place: everybody's
    self mask, and the pads that survivors share with those whose terms did not come.

    words: the sum, or one of its terms.

    Raises:
        FedweaveError: too few shares of a site have come, or they do not belong together; names it.
    """
    for site in survivors:
        seed = next((own.mask[site] for own in answers if site in own.mask), None)
        seed = _put_together(site, group, answers) if seed is None else seed
        add_pad(self_pad(seed, group, use, site), words, -1)
    for lost in (site for site in use.peers if site not in survivors):
        key = private_key(_put_together(lost, group, answers))
        if key.public_key().public_bytes_raw() != adverts[lost].keys[1 + use.slot]:
            raise FedweaveError(f"secure sum: the shares of the key of {lost!r} do not belong together.")
        for site in survivors:
            secret = agreed(key, adverts[site].keys[1 + use.slot])
            add_pad(pair_pad(secret, group, use, site, lost), words, -group.sign(site, lost))


def _put_together(site: str, group: Group, answers: Sequence[Answers]) -> bytes:
    found = {holder: share for own in answers for holder, share in own.shares.get(site, {}).items()}
    if len(found) < group.needed:
        raise FedweaveError(
            f"secure sum: {len(found)} shares of the secrets of {site!r} have come, and {group.needed} are needed to "
            "do without it. Bring the sites back and resume the run."
        )
    some = list(found)[: group.needed]
    return Shamir.combine([(group.place[holder] + 1, found[holder]) for holder in some])
