"""A member's side of certificates: keys are made where they are used, and what the authority sends is taken up after it
was looked at. No private key travels; certificates have the form of those that NVFlare's provisioning makes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedweave.deploy.flare.server.provision import kind
from fedweave.deploy.flare.site.private import replace_private
from fedweave.deploy.sites.certificates import certificate, check_certificate, check_issuer, fingerprint
from fedweave.deploy.sites.processes import ROOT, member_name
from fedweave.errors import UserError
from fedweave.experiment.runs.files import read
from fedweave.privacy.aggregation import REVOKED, STARTUP, common_names, revoked_by

REQUEST = "startup/request.pem"
BITS = 2048  # as NVFlare's keys


class Taken(NamedTuple):
    """What `accept` took up: the SHA-256 fingerprint of a certificate, by which other sites' policies may know a
    member, how many are on a list of revoked ones, and until when the authority's own is valid; None of what was not
    in the file."""

    mark: str | None = None
    revoked: int | None = None
    until: datetime | None = None


def key_files(folder: Path) -> tuple[Path, Path, Path]:
    """The key and the certificate of the member in `folder`, and the key that waits for a certificate."""
    own = folder / STARTUP / f"{kind(folder)}.key"
    return own, own.with_suffix(".crt"), own.with_name(f"{own.name}.new")


def request(folder: Path) -> tuple[Path, str]:
    """Make a new key for the member in `folder`, which waits there for its certificate, and a request for one.

    Returns the request's file and the public key's fingerprint.

    Raises:
        UserError: `folder` is not one of a site, server or administrator.
    """
    if not list((folder / STARTUP).glob("fed_*.json")):
        raise UserError(f"{folder} is no member's folder: it has no startup/fed_client.json. Name one as bank/bank-a.")
    key, (_, own, waiting) = generate_private_key(public_exponent=65537, key_size=BITS), key_files(folder)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member_name(folder))])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name)
    if kind(folder) == "server":  # the names of its machine go on
        named = certificate(own).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        asked = asked.add_extension(named.value, named.critical)
    replace_private(waiting, key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    (folder / REQUEST).write_bytes(asked.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return folder / REQUEST, fingerprint(key.public_key())


def accept(folder: Path, given: Path) -> Taken:
    """Take up what the authority has sent to the member in `folder`: a certificate, for the key that waits there; a
    list of revoked ones; a new certificate of its own. Nothing is changed where one of them is refused.

    Raises:
        UserError: it is of another key, member or authority, is not valid now, or is older than what is here.
    """
    new, taken = dict[Path, bytes](), Taken()
    content = read(given)
    try:
        found = x509.load_pem_x509_certificates(content) if b"BEGIN CERTIFICATE" in content else []
    except ValueError as error:
        raise UserError(f"{given} is damaged ({error}). Have it sent again.") from error
    roots = [each for each in found if each.subject == each.issuer]
    if roots:
        new[folder / STARTUP / ROOT] = _checked_root(folder, given, roots[0])
        taken = taken._replace(until=roots[0].not_valid_after_utc)
    if b"BEGIN X509 CRL" in content:
        new[folder / STARTUP / REVOKED], count = _checked_list(folder, given, content)
        taken = taken._replace(revoked=count)
    key, own, waiting = key_files(folder)
    if (certified := [each for each in found if each not in roots]) or not new:
        new |= {key: _checked(folder, given, certified), own: b"".join(_pem(each) for each in certified)}
        taken = taken._replace(mark=certified[0].fingerprint(SHA256()).hex(":").upper())
    for path, made in new.items():
        replace_private(path, made)
    if taken.mark is not None:
        waiting.unlink()  # once both are in place: after an interruption `accept` does it all again
        (folder / REQUEST).unlink(missing_ok=True)
    return taken


def _checked(folder: Path, given: Path, certified: Sequence[x509.Certificate]) -> bytes:
    """The key that waits in `folder` for the certificate in the file `given`."""
    waiting, name = key_files(folder)[2], member_name(folder)
    if not waiting.exists():
        raise UserError(f"no key waits in {folder} for a certificate: begin with `fedweave sites request {folder}`.")
    named = common_names(certificate(given))
    if named != [name]:
        raise UserError(
            f"{given} is the certificate of {', '.join(named) or 'nobody'}, and {folder} is the folder of {name}. "
            f"Accept the one that was signed for {name}."
        )
    check_issuer(given, folder / STARTUP / ROOT)
    check_certificate(given)
    content = read(waiting)
    key, own = load_pem_private_key(content, None), certified[0].public_key()
    if (
        not isinstance(key, RSAPrivateKey)
        or not isinstance(own, RSAPublicKey)
        or fingerprint(own) != fingerprint(key.public_key())
    ):
        raise UserError(f"{given} is of another key than {waiting}. Have the present {REQUEST} signed.")
    return content


def _checked_list(folder: Path, given: Path, content: bytes) -> tuple[bytes, int]:
    """A list of revoked certificates, and how many those are, if it has all that the list in `folder` has."""
    here, root = folder / STARTUP / REVOKED, certificate(folder / STARTUP / ROOT)
    pem = content[content.index(b"-----BEGIN X509 CRL") :]
    revoked = revoked_by(root, pem, given)
    if here.exists() and not revoked >= revoked_by(root, read(here), here):
        raise UserError(
            f"{given} lacks certificates that {here} revokes. Take the authority's latest list.", code="certificate.old"
        )
    return pem, len(revoked)


def _checked_root(folder: Path, given: Path, root: x509.Certificate) -> bytes:
    """The authority's certificate, if it is of the same key as the one in `folder` and lasts longer."""
    here = certificate(folder / STARTUP / ROOT)
    own, other = here.public_key(), root.public_key()
    alike = isinstance(own, RSAPublicKey) and isinstance(other, RSAPublicKey) and fingerprint(own) == fingerprint(other)
    later = root.not_valid_after_utc >= here.not_valid_after_utc and root.not_valid_before_utc <= datetime.now(UTC)
    try:
        root.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        alike = False
    if not alike or not later:
        raise UserError(
            f"{given} is no later certificate of the authority of {folder}: it has another key, or ends before the one "
            "that is here. Ask the authority's owner for what `fedweave sites renew` wrote.",
            code="certificate.authority",
        )
    return _pem(root)


def _pem(made: x509.Certificate) -> bytes:
    return made.public_bytes(Encoding.PEM)
