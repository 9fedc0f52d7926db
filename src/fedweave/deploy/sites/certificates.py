"""Certificates of servers, sites and administrators, whether they can be used now, and what has to be beside them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedweave.deploy.flare.server.provision import USER, kind
from fedweave.deploy.flare.wire.requests import SERVER
from fedweave.errors import UserError
from fedweave.experiment.runs.files import read
from fedweave.privacy.aggregation import REFUSED, REVOKED, STARTUP, common_names, read_root


def certificate(path: Path) -> x509.Certificate:
    """The certificate in a file.

    Raises:
        UserError: it holds none.
    """
    try:
        return x509.load_pem_x509_certificate(read(path))
    except (UserError, ValueError) as error:
        raise UserError(
            f"{path} is no certificate ({error}). Ask the project's operator for the folder again."
        ) from error


def lasts(folder: Path) -> timedelta | None:
    """How long the certificate in a member's folder, and the authority's beside it, are both still valid, below 0 after
    that; None of a folder without one.

    Raises:
        UserError: a file holds none.
    """
    kit = folder / STARTUP
    if not (own := [path for path in (kit / "client.crt", kit / "server.crt") if path.exists()]):
        return None
    return min(certificate(each).not_valid_after_utc for each in (own[0], kit / "rootCA.pem")) - datetime.now(UTC)


def fingerprint(key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of a public key, for two people to compare."""
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex(":").upper()


def check_revoked(path: Path) -> None:
    """Refuse a certificate that is on the list of revoked ones beside it.

    Raises:
        UserError: names the file.
    """
    own = certificate(path)
    if own.serial_number in read_root(path.parent).revoked:
        raise UserError(
            f"the authority has revoked {path} ({REVOKED} beside it). Make a new key, `fedweave sites request "
            f"{path.parents[1]}`, and have it signed.",
            code=REFUSED,
        )


def check_issuer(path: Path, root: Path) -> None:
    """Refuse a certificate that the authority of `root` did not sign.

    Raises:
        UserError: names both files.
    """
    try:
        certificate(path).verify_directly_issued_by(certificate(root))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError(
            f"{path} was not signed by {root}: they are of different projects. Take the whole folder startup of one "
            "`fedweave sites init`."
        ) from error


def check_name(path: Path, name: str) -> None:
    """Refuse a certificate that was issued for somebody else than `name`.

    Raises:
        UserError: names the file and whose it is.
    """
    named = common_names(certificate(path))
    if named != [name]:
        raise UserError(
            f"{path} is the certificate of {', '.join(named) or 'nobody'}, and that of {name} belongs there. Put the "
            f"folder startup there that `fedweave sites init` made in {path.parents[1].name}."
        )


def check_certificate(path: Path) -> None:
    """Refuse a certificate that is not valid now.

    Raises:
        UserError: names the file, its times and the clock's.
    """
    own, now = certificate(path), datetime.now(UTC)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    if not first <= now <= last:
        remedy = "Correct" if now < first else "Ask the project's operator for a new one, or correct"
        raise UserError(
            f"{path} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, not now: this machine's clock "
            f"says {now:%Y-%m-%d %H:%M} UTC. {remedy} this machine's clock.",
            code="certificate.not-valid",
        )


ROOT = "rootCA.pem"  # the authority's certificate, beside a member's own


AGAIN = "Ask the project's operator for the folder again"


def check_startup(folder: Path) -> Path:
    """Refuse the folder of a member, or of the administrator, whose certificate is not valid now, or not its own by the
    authority, was revoked, or has not the key beside it; or whose settings are damaged. Returns the certificate's file.

    Raises:
        UserError: names the file.
    """
    path = folder / "startup" / f"{kind(folder)}.crt"
    check_certificate(path)
    check_issuer(path, path.with_name(ROOT))
    check_name(path, member_name(folder))
    check_revoked(path)
    check_key(path.with_suffix(".key"), path)
    check_settings(folder)
    return path


def member_name(folder: Path) -> str:
    """In whose name the certificate in a folder is to be; NVFlare has a site go by its folder's."""
    if (folder / "startup/fed_admin.json").exists():
        return USER
    return SERVER if kind(folder) == "server" else folder.resolve().name


def check_key(path: Path, own: Path) -> None:
    """Refuse a private key that is none, or not that of the certificate `own`.

    Raises:
        UserError: names both files.
    """
    try:
        key = load_pem_private_key(read(path), None)
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no private key ({error}). {AGAIN}.") from error
    told = (
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (key.public_key(), certificate(own).public_key())
    )
    if len(set(told)) > 1:
        raise UserError(f"{path} is not the key of {own}: they are of different folders. {AGAIN}.")


def check_settings(folder: Path) -> None:
    """Refuse a file of settings of the process in `folder` that is damaged.

    Raises:
        UserError: names it.
    """
    for path in sorted([*folder.glob("startup/*.json"), *folder.glob("local/*.json")]):
        try:
            json.loads(read(path))
        except (UserError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}). {AGAIN}.") from error
