"""Secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
figure 4 with all its protection against a server that cheats. Built from `cryptography` and `pycryptodome`; nothing
here knows tensors or how messages travel.

A federation prepares an epoch of several sums. Every site advertises a separate key for each sum, signed with its
certificate's key (`Participant.advertise`), and gives the other sites shares of the secrets that a sum may need
(`share`). Then every sum takes three exchanges: masked terms (`mask`), signatures on the list of sites whose terms
arrived (`sign`), and shares (`reveal`). From the shares the server computes and removes the remaining masks
(`leftover`).

Deviations: the shared secrets are 128-bit seeds of keys and masks. A survivor that still answers when the sum is opened
reveals the seed of its self mask together with its shares of other sites' secrets. Shares are therefore combined only
for sites that no longer answer. Sealed shares stay at the server until they are needed, for all sums of an epoch.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedweave.core.mechanism import SLOTS
from fedweave.errors import CallRefused, ConfigError, FedweaveError

# ----------------------------------------------------------------------------------------------------
# A site's identity: a certificate that the project's authority issued and has not revoked, and its key.


STARTUP = "startup"  # the folder of NVFlare's kit, with the files below
REVOKED = "revoked.pem"  # in the same folder, if the authority has revoked any: its list (X.509), signed with its key
REFUSED = "certificate.revoked"  # the error code of a certificate on that list
CHANGED = "signature.wrong"  # the error code of a signature that does not fit the message
_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Authority:
    """A project's authority: its certificate, and the serial numbers of the certificates that it has revoked."""

    certificate: x509.Certificate
    revoked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Identity:
    """A site's certificate (DER) and key, and the authority that it trusts. members: {site: SHA-256 fingerprint of the
    only certificate that is accepted for that site}; for other sites any certificate of the authority is accepted."""

    certificate: bytes
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    root: Authority
    members: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The site for which the certificate was issued."""
        return common_names(x509.load_der_x509_certificate(self.certificate))[0]

    def sign(self, message: bytes) -> bytes:
        """A signature that `check` accepts with the certificate."""
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(message, _PSS, SHA256())
        return self.key.sign(message, ec.ECDSA(SHA256()))

    def check(
        self, site: str, certificate: bytes, signature: bytes, message: bytes, at: datetime | None = None
    ) -> None:
        """`check_signed` with the authority that the site trusts, and the certificates that it knows."""
        pinned = self.members.get(site)
        if pinned is not None and sha256(certificate).hexdigest() != pinned.replace(":", "").lower():
            raise CallRefused(f"a message from {site!r} is signed with another certificate than its own")
        check_signed(site, certificate, signature, message, self.root, at)


def check_signed(
    site: str, certificate: bytes, signature: bytes, message: bytes, root: Authority | None, at: datetime | None = None
) -> None:
    """Raise an error unless `site` signed the message, with a valid certificate that the authority issued for it and
    has not revoked.

    at: time of validity, now if None. root: the authority; without it the issuer is not checked.

    Raises:
        CallRefused: names the site and the fault.
    """
    try:
        theirs = _issued(certificate, None if root is None else root.certificate)
        names, valid = common_names(theirs), (theirs.not_valid_before_utc, theirs.not_valid_after_utc)
        if names != [site] or not valid[0] <= (at or datetime.now(UTC)) <= valid[1]:
            raise ValueError(f"its certificate is for {names}, or not valid {'then' if at else 'now'}")
        key = theirs.public_key()
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _PSS, SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(SHA256()))
        else:
            raise TypeError("its certificate has a key of another kind than RSA and EC")
    except (InvalidSignature, ValueError, TypeError) as error:
        why = str(error) or "the signature does not fit the message and the certificate's key"
        code = CHANGED if isinstance(error, InvalidSignature) else ""
        raise CallRefused(f"what is said to be from {site!r} is not signed by it: {why}", code=code) from error
    if root is not None and theirs.serial_number in root.revoked:
        raise CallRefused(f"the certificate of {site!r} was revoked by the project's authority", code=REFUSED)


def common_names(of: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The names for which a certificate, or a request for one, is issued."""
    return [str(attribute.value) for attribute in of.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


@lru_cache(maxsize=4096)
def _issued(certificate: bytes, root: x509.Certificate | None) -> x509.Certificate:
    parsed = x509.load_der_x509_certificate(certificate)
    if root is not None:
        parsed.verify_directly_issued_by(root)
    return parsed


def read_root(kit: Path) -> Authority:
    """The project's authority, from its certificate and its list of revoked certificates in a kit's folder.

    Raises:
        ConfigError: a file cannot be read, the certificate is absent, or its key did not sign the list.
    """
    try:
        root = x509.load_pem_x509_certificate((kit / "rootCA.pem").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"signatures need the authority's certificate in {kit}: {error}") from error
    path = kit / REVOKED
    return Authority(root, revoked_by(root, path.read_bytes(), path) if path.exists() else frozenset())


def revoked_by(root: x509.Certificate, content: bytes, path: Path) -> frozenset[int]:
    """The serial numbers on an authority's list of revoked certificates, which was read from `path`.

    Raises:
        ConfigError: the content is no such list, or `root` did not sign it.
    """
    try:
        crl = x509.load_pem_x509_crl(content)
        if not crl.is_signature_valid(root.public_key()):  # type: ignore[arg-type]
            raise ValueError("the authority of this folder has not signed it")
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no list of revoked certificates: {error}") from error
    return frozenset(each.serial_number for each in crl)


def read_identity(folder: Path, members: Mapping[str, str] = MappingProxyType({})) -> Identity:
    """The identity that provisioning wrote for a site, an administrator or the server; members: see `Identity`.

    Raises:
        ConfigError: a file is absent or cannot be read.
    """
    kit = folder / STARTUP
    kind = "server" if (kit / "server.crt").exists() else "client"
    try:
        certificate = x509.load_pem_x509_certificate((kit / f"{kind}.crt").read_bytes())
        key = load_pem_private_key((kit / f"{kind}.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"signatures need the certificate and key that provisioning wrote to {kit}: {error}"
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ConfigError(f"the key in {kit} is neither an RSA nor an EC key; provision the project again.")
    return Identity(certificate.public_bytes(Encoding.DER), key, read_root(kit), members)


# ----------------------------------------------------------------------------------------------------
# Messages of sites and server for a secure sum, and the bytes that are signed and hashed; keys that two sites share,
# sealed letters between them, and pads.


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
    sealed for, then one for each slot. signature: over these keys (`advertised`)."""

    certificate: bytes
    keys: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True)
class Use:
    """The use of one slot of an epoch.

    call: round, step and occurrence. peers: the sites whose terms are to be added, in the order of the run. heard: the
    fingerprint of the step's message, which is in every pad and signature. If a server sends one site a different
    message, so that the other sites' terms are 0 or known, the sum cannot be opened (Pasquini et al. 2022, "Eluding
    secure aggregation in federated learning via model inconsistency").
    """

    slot: int
    call: tuple[int, str, int]
    peers: tuple[str, ...]
    heard: str = ""


@dataclass(frozen=True)
class Answers:
    """The secrets that sites revealed for one sum. mask: {survivor: seed of its self mask}, from survivors that
    answered. shares: {site: {holder: its share}} of survivors' self masks and of other sites' keys."""

    mask: Mapping[str, bytes] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


def canonical_bytes(*what: object) -> bytes:
    """The unique byte string of a list of words, numbers, bytes and lists; different lists have different strings."""
    return json.dumps(what, default=bytes.hex, ensure_ascii=False, separators=(",", ":")).encode()


def advertised(group: SumGroup, site: str, keys: Sequence[bytes]) -> bytes:
    """The bytes that an `Advert` signs."""
    return canonical_bytes("fedweave: keys of a secure sum", group.run, group.epoch, site, list(keys))


def survived(group: SumGroup, use: Use, survivors: Sequence[str]) -> bytes:
    """The bytes that survivors sign: the sites whose terms are in the sum."""
    where = (group.run, group.epoch, use.slot, use.call, use.peers, use.heard)
    return canonical_bytes("fedweave: survivors of a secure sum", *where, list(survivors))


_PIECE = 1 << 18  # bytes of a pad at a time, which fit into the cache
_ZEROS = bytes(_PIECE)


def derived(secret: bytes, *purpose: object) -> bytes:
    """HKDF-SHA256: 256 bits of `secret` for a purpose."""
    return HKDF(SHA256(), 32, None, canonical_bytes(*purpose)).derive(secret)


def private_key(seed: bytes) -> X25519PrivateKey:
    """The X25519 key of a seed."""
    return X25519PrivateKey.from_private_bytes(derived(seed, "key"))


def agreed(private: X25519PrivateKey, theirs: bytes) -> bytes:
    """The secret that two sites share; the owner of the private key of `theirs` computes the same.

    Raises:
        CallRefused: `theirs` is no key.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:
        raise CallRefused(f"secure sum: a public key is no key of X25519 ({error})") from error


def seal(key: bytes, slot: int, second: bool, letter: bytes, about: bytes) -> bytes:
    """A letter that only owners of `key` can read or write. second: it goes from the later site to the earlier."""
    return ChaCha20Poly1305(key).encrypt(_nonce(slot, second), letter, about)


def unseal(key: bytes, slot: int, second: bool, sealed: bytes, about: bytes) -> bytes | None:
    """Undo `seal`; None if `sealed` is no such letter."""
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


# ----------------------------------------------------------------------------------------------------
# A site's side of secure sums: its messages, each sent once, and its checks. And the server's side: the masks to
# subtract from the sum of masked terms.


_SEED = 16  # bytes of a seed and of its shares


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
    _own_shares: list[bytes] = field(default_factory=list)  # for each slot: the site's own shares of its secrets
    _sums: dict[int, _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._letters = private_key(os.urandom(_SEED))

    def advertise(self) -> Advert:
        """Round 0 of figure 4.

        Raises:
            CallRefused: the keys were advertised before.
        """
        _once(not self._seeds, f"the keys of epoch {self.group.epoch} are advertised")
        self._seeds = [(os.urandom(_SEED), os.urandom(_SEED)) for _ in range(self.group.slots)]
        pairs = [self._letters, *(private_key(seed) for seed, _ in self._seeds)]
        keys = tuple(pair.public_key().public_bytes_raw() for pair in pairs)
        signature = self.identity.sign(advertised(self.group, self.name, keys))
        return Advert(self.identity.certificate, keys, signature)

    def share(self, adverts: Mapping[str, Advert]) -> dict[str, list[bytes]]:
        """Round 1: {other site: a sealed letter for each slot}, with the shares of this site's key and self mask.

        Raises:
            CallRefused: the shares were dealt before; there are too few sites, or a site has not signed its keys.
        """
        _once(bool(self._seeds) and not self._adverts, f"the shares of epoch {self.group.epoch} are dealt")
        if self.name not in adverts or not set(adverts) <= set(self.group.sites):
            raise CallRefused("secure sum: keys must come from this site and other sites of the run")
        self._enough(adverts)
        for site, advert in adverts.items():
            statement = advertised(self.group, site, advert.keys)
            self.identity.check(site, advert.certificate, advert.signature, statement)
            if len(advert.keys) != self.group.slots + 1:
                raise CallRefused(
                    f"secure sum: {site!r} advertises {len(advert.keys)} keys, not {self.group.slots + 1}"
                )
        self._adverts = {site: adverts[site] for site in self.group.sites if site in adverts}
        deals = [self._dealt(pair) for pair in self._seeds]
        self._own_shares = [shares[self.name] for shares in deals]
        others = [site for site in self._adverts if site != self.name]
        return {
            site: [self._seal(site, slot, deals[slot][site]) for slot in range(self.group.slots)] for site in others
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
        """Round 3, the consistency check: sign the list of sites whose terms arrived. A site signs one list.

        Raises:
            CallRefused: the site has signed already, or the list has other sites than the peers, or not this site.
        """
        known = self._known(slot)
        _once(not known.survivors, f"the survivors of slot {slot} are signed")
        signers = tuple(site for site in known.use.peers if site in survivors)
        if list(signers) != list(survivors) or self.name not in signers:
            raise CallRefused(f"secure sum: {list(survivors)} are not this site and others that were to send a term")
        self._enough(signers)
        known.survivors = signers
        return self.identity.sign(survived(self.group, known.use, signers))

    def reveal(self, slot: int, signatures: Mapping[str, bytes], letters: Mapping[str, bytes]) -> Answers:
        """Round 4: the shares of the self masks of the sites on the signed list, and of the keys of the other sites.

        For each site it reveals one of the two, never both.

        signatures: of survivors on that list. letters: sealed by the other sites for this site.

        Raises:
            CallRefused: no list was signed, the slot was opened before, or too few sites have signed this list.
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
        """{site: its shares of both seeds}; the number of a share is the site's place in the run."""
        sites = self.group.sites
        first, second = (Shamir.split(self.group.needed, len(sites), seed) for seed in seeds)
        return {site: one[1] + two[1] for site, one, two in zip(sites, first, second, strict=True)}

    def _seal(self, to: str, slot: int, letter: bytes) -> bytes:
        return seal(
            self._letter_key(to), slot, self.group.sign(self.name, to) < 0, letter, self._about(self.name, to, slot)
        )

    def _unsealed(self, sender: str, slot: int, letter: bytes | None) -> bytes | None:
        """The shares from a site; None if the letter is not the one that the site sealed."""
        if sender == self.name:
            return self._own_shares[slot]
        if letter is None:
            return None
        about = self._about(sender, self.name, slot)
        return unseal(self._letter_key(sender), slot, self.group.sign(sender, self.name) < 0, letter, about)

    def _letter_key(self, other: str) -> bytes:
        secret = agreed(self._letters, self._adverts[other].keys[0])
        return derived(secret, "shares", self.group.run, self.group.epoch, sorted((self.name, other)))

    def _about(self, sender: str, receiver: str, slot: int) -> bytes:
        return canonical_bytes(self.group.run, self.group.epoch, slot, sender, receiver)


def pair_pad(secret: bytes, group: SumGroup, use: Use, one: str, other: str) -> bytes:
    """The key of the pad that two sites share: f(their secret; run, epoch, slot, round, step, occurrence, fingerprint
    of the step's message)."""
    return derived(secret, "pad", group.run, group.epoch, use.slot, use.call, use.heard, sorted((one, other)))


def self_pad(seed: bytes, group: SumGroup, use: Use, site: str) -> bytes:
    """The key of a site's self mask."""
    return derived(seed, "self mask", group.run, group.epoch, use.slot, use.call, use.heard, site)


def _once(first: bool, what: str) -> None:
    if not first:
        raise CallRefused(f"secure sum: {what} once, and after what comes before it")


def leftover(
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

    Raises:
        FedweaveError: a site has too few shares, or they do not belong together; names the site.
    """
    for site in survivors:
        seed = next((answer.mask[site] for answer in answers if site in answer.mask), None)
        seed = _put_together(site, group, answers) if seed is None else seed
        add_pad(self_pad(seed, group, use, site), words, -1)
    for lost in (site for site in use.peers if site not in survivors):
        key = private_key(_put_together(lost, group, answers))
        if key.public_key().public_bytes_raw() != adverts[lost].keys[1 + use.slot]:
            raise FedweaveError(f"secure sum: the shares of the key of {lost!r} do not belong together.")
        for site in survivors:
            secret = agreed(key, adverts[site].keys[1 + use.slot])
            add_pad(pair_pad(secret, group, use, site, lost), words, -group.sign(site, lost))


def _put_together(site: str, group: SumGroup, answers: Sequence[Answers]) -> bytes:
    shares = {holder: share for answer in answers for holder, share in answer.shares.get(site, {}).items()}
    if len(shares) < group.needed:
        raise FedweaveError(
            f"secure sum: {len(shares)} shares of the secrets of {site!r} have come, and {group.needed} are needed to "
            "do without it. Bring the sites back and resume the run."
        )
    some = list(shares)[: group.needed]
    return Shamir.combine([(group.place[holder] + 1, shares[holder]) for holder in some])


__all__ = [
    "REFUSED",
    "REVOKED",
    "STARTUP",
    "Advert",
    "Answers",
    "Authority",
    "Identity",
    "Participant",
    "SumGroup",
    "Use",
    "advertised",
    "check_signed",
    "common_names",
    "leftover",
    "read_identity",
    "read_root",
    "revoked_by",
    "survived",
]
