"""Checks of a member's folder: its certificate, its key and its files of settings."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedweave.errors import UserError
from fedweave.experiment.runs.files import read
from fedweave.sites.flare.provision import USER, kind
from fedweave.sites.flare.requests import SERVER
from fedweave.sites.protocols.identity import REFUSED, REVOKED, STARTUP, common_names, read_root

ROOT = "rootCA.pem"  # the authority's certificate, in the folder of a member's certificate
AGAIN = "Ask the project's operator for the folder again"


def certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(read(path))
    except (UserError, ValueError) as error:
        raise UserError(f"{path} is not a certificate ({error}). {AGAIN}.") from error


def lasts(folder: Path) -> timedelta | None:
    """How long the certificates of a member and of the authority in a member's folder are both still valid, negative
    after that; None for a folder without a certificate."""
    kit = folder / STARTUP
    local = [path for path in (kit / "client.crt", kit / "server.crt") if path.exists()]  # a member has one of the two
    if not local:
        return None
    return min(certificate(path).not_valid_after_utc for path in (local[0], kit / ROOT)) - datetime.now(UTC)


def fingerprint(key: CertificatePublicKeyTypes) -> str:
    """The SHA-256 of a public key, for two people to compare."""
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex(":").upper()


def check_revoked(path: Path) -> None:
    """Refuse a certificate that is on the revocation list in its folder."""
    cert = certificate(path)
    if cert.serial_number in read_root(path.parent).revoked:
        raise UserError(
            f"the authority has revoked {path} ({REVOKED} in its folder). Make a new key, `fedweave sites request "
            f"{path.parents[1]}`, and have it signed.",
            code=REFUSED,
        )


def check_issuer(path: Path, root: Path) -> None:
    """Refuse a certificate that the authority of `root` did not sign."""
    try:
        certificate(path).verify_directly_issued_by(certificate(root))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError(
            f"{path} was not signed by {root}: they are of different projects. Take the whole folder startup of one "
            "`fedweave sites init`."
        ) from error


def check_name(path: Path, name: str) -> None:
    """Refuse a certificate that was not issued for `name`."""
    owners = common_names(certificate(path))
    if owners != [name]:
        raise UserError(
            f"{path} is the certificate of {', '.join(owners) or 'no member'}, but must be the certificate of {name}. "
            f"Replace the folder startup by the one that `fedweave sites init` made in {path.parents[1].name}."
        )


def check_certificate(path: Path) -> None:
    """Refuse a certificate that is not valid now."""
    cert, now = certificate(path), datetime.now(UTC)
    first, last = cert.not_valid_before_utc, cert.not_valid_after_utc
    if not first <= now <= last:
        remedy = "Correct" if now < first else "Ask the project's operator for a new one, or correct"
        raise UserError(
            f"{path} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, not now: this machine's clock "
            f"says {now:%Y-%m-%d %H:%M} UTC. {remedy} this machine's clock.",
            code="certificate.not-valid",
        )


def check_startup(folder: Path) -> Path:
    """Check the folder of a member or of the administrator; returns the certificate's file.

    Raises:
        UserError: the certificate is not valid now, was issued for another member or by another authority, was revoked,
            or does not fit the key; or a file of settings is damaged. Names the file.
    """
    path = folder / STARTUP / f"{kind(folder)}.crt"  # the administrator's is client.crt, too
    check_certificate(path)
    check_issuer(path, path.with_name(ROOT))
    check_name(path, member_name(folder))
    check_revoked(path)
    check_key(path.with_suffix(".key"), path)
    check_settings(folder)
    return path


def member_name(folder: Path) -> str:
    """The name that the certificate in a folder must have. NVFlare uses the name of a site's folder as the site's
    name."""
    if (folder / "startup/fed_admin.json").exists():
        return USER
    return SERVER if kind(folder) == "server" else folder.resolve().name


def check_key(key_path: Path, cert_path: Path) -> None:
    """Refuse a file that is not a private key, or that does not fit the certificate in `cert_path`."""
    try:
        key = load_pem_private_key(read(key_path), None)
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{key_path} is not a private key ({error}). {AGAIN}.") from error
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if public != certificate(cert_path).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
        raise UserError(f"{key_path} is not the key of {cert_path}: they are of different folders. {AGAIN}.")


def check_settings(folder: Path) -> None:
    """Refuse damaged files of settings of the process in `folder`."""
    for path in sorted([*folder.glob("startup/*.json"), *folder.glob("local/*.json")]):
        try:
            json.loads(read(path))
        except (UserError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}). {AGAIN}.") from error
