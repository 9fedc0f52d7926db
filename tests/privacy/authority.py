"""A project's authority and the certificates of its sites, with keys that are quick to make."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedweave.sites.protocols import identity
from fedweave.sites.protocols.identity import Identity


class Authority:
    """Issues certificates."""

    def __init__(self, name: str = "authority") -> None:
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), _name(name)
        self.root = self._certificate(self.name, self.key)

    def issue(self, site: str, size: int = 0) -> Identity:
        """size: of an RSA key, as NVFlare has them; 0 takes an EC key, which is made at once."""
        key = rsa.generate_private_key(65537, size) if size else ec.generate_private_key(ec.SECP256R1())
        return Identity(
            self._certificate(_name(site), key).public_bytes(Encoding.DER), key, identity.Authority(self.root)
        )

    def revoke(self, serial: int) -> bytes:
        """A list of that one, in PEM."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder(self.name, now, now + timedelta(hours=1))
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        return made.add_revoked_certificate(entry).sign(self.key, SHA256()).public_bytes(Encoding.PEM)

    def _certificate(self, subject: x509.Name, key: Any) -> x509.Certificate:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        return made.sign(self.key, SHA256())


def write_kits(project: Path, sites: Sequence[str], size: int = 0) -> Authority:
    """Give sites' folders what provisioning gives them; returns who signed it."""
    authority = Authority()
    for site in sites:
        own, kit = authority.issue(site, size), project / site / "startup"
        kit.mkdir(exist_ok=True)
        (kit / "client.crt").write_bytes(x509.load_der_x509_certificate(own.certificate).public_bytes(Encoding.PEM))
        (kit / "rootCA.pem").write_bytes(own.root.certificate.public_bytes(Encoding.PEM))
        (kit / "client.key").write_bytes(
            own.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
    return authority


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
