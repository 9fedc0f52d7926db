"""A site's identity: a certificate that the project's authority issued and has not revoked, and its key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedweave.errors import CallRefused, ConfigError

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
    """
    try:
        loaded = _load_certificate(certificate, None if root is None else root.certificate)
        names = common_names(loaded)
        is_valid = loaded.not_valid_before_utc <= (at or datetime.now(UTC)) <= loaded.not_valid_after_utc
        if names != [site] or not is_valid:
            raise ValueError(f"its certificate is for {names}, or not valid {'then' if at else 'now'}")
        key = loaded.public_key()
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
    if root is not None and loaded.serial_number in root.revoked:
        raise CallRefused(f"the certificate of {site!r} was revoked by the project's authority", code=REFUSED)


def common_names(certificate: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The names for which a certificate, or a request for one, is issued."""
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


@lru_cache(maxsize=4096)
def _load_certificate(certificate: bytes, root: x509.Certificate | None) -> x509.Certificate:
    parsed = x509.load_der_x509_certificate(certificate)
    if root is not None:
        parsed.verify_directly_issued_by(root)
    return parsed


def read_root(kit: Path) -> Authority:
    """The project's authority, from its certificate and its list of revoked certificates in a kit's folder."""
    try:
        root = x509.load_pem_x509_certificate((kit / "rootCA.pem").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"signatures need the authority's certificate in {kit}: {error}") from error
    path = kit / REVOKED
    return Authority(root, read_revoked(root, path.read_bytes(), path) if path.exists() else frozenset())


def read_revoked(root: x509.Certificate, content: bytes, path: Path) -> frozenset[int]:
    """The serial numbers on an authority's list of revoked certificates, which was read from `path`."""
    try:
        crl = x509.load_pem_x509_crl(content)
        if not crl.is_signature_valid(root.public_key()):  # type: ignore[arg-type]
            raise ValueError("the authority of this folder has not signed it")
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a list of revoked certificates: {error}") from error
    return frozenset(entry.serial_number for entry in crl)


def read_identity(folder: Path, members: Mapping[str, str] = MappingProxyType({})) -> Identity:
    """The identity that provisioning wrote for a site, an administrator or the server; members: see `Identity`."""
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
