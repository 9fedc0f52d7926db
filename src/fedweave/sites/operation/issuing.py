"""Both sides of certificates: a member requests and accepts them, the authority signs and revokes them.

A member makes its key where it uses it, and checks what the authority sends before it accepts that. No private key
travels. Certificates have the same form as NVFlare's provisioning makes."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from getpass import getpass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.runs.files import read
from fedweave.sites.flare.folder import check_private, replace_private
from fedweave.sites.flare.provision import (
    BACKDATED,
    ISSUED,
    ROLE,
    STATE,
    USER,
    is_name,
    issue,
    keep,
    kind,
    note_issued,
    organization,
    uses,
)
from fedweave.sites.flare.requests import SERVER
from fedweave.sites.operation.certificates import (
    ROOT,
    certificate,
    check_certificate,
    check_issuer,
    fingerprint,
    member_name,
)
from fedweave.sites.protocols.identity import REVOKED, STARTUP, common_names, read_revoked

REQUEST = "startup/request.pem"
BITS = 2048  # as NVFlare's keys


class Accepted(NamedTuple):
    """The content that `accept` took from a file: the SHA-256 fingerprint of a certificate, for other sites'
    `policy.members`; the number of certificates on a revocation list; and the end of validity of a new certificate of
    the authority. None for each that the file did not hold."""

    mark: str | None = None
    revoked: int | None = None
    expiry: datetime | None = None


def key_files(folder: Path) -> tuple[Path, Path, Path]:
    """The key and the certificate of the member in `folder`, and the key that waits for a certificate."""
    key_path = folder / STARTUP / f"{kind(folder)}.key"
    return key_path, key_path.with_suffix(".crt"), key_path.with_name(f"{key_path.name}.new")


def request(folder: Path) -> tuple[Path, str]:
    """Make a new key for the member in `folder`, and a request for its certificate. The key waits there for the
    certificate.

    Returns the request's file and the public key's fingerprint.

    Raises:
        UserError: `folder` is not the folder of a site, server or administrator.
    """
    if not list((folder / STARTUP).glob("fed_*.json")):
        raise UserError(
            f"{folder} is not a member's folder: it has no startup/fed_client.json. Name one, such as bank/bank-a."
        )
    key, (_, cert_path, waiting) = generate_private_key(public_exponent=65537, key_size=BITS), key_files(folder)
    name = member_name(folder)
    subject = {NameOID.COMMON_NAME: name, NameOID.ORGANIZATION_NAME: organization(name)}
    subject |= {NameOID.UNSTRUCTURED_NAME: ROLE} if name == USER else {}  # NVFlare reads the rights from it
    names = x509.Name([x509.NameAttribute(oid, text) for oid, text in subject.items()])
    builder = x509.CertificateSigningRequestBuilder().subject_name(names)
    for extension, critical in uses(name):
        builder = builder.add_extension(extension, critical)
    if kind(folder) == "server":  # keep the names of its machine
        hosts = certificate(cert_path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        builder = builder.add_extension(hosts.value, hosts.critical)
    replace_private(waiting, key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    (folder / REQUEST).write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return folder / REQUEST, fingerprint(key.public_key())


def accept(folder: Path, file: Path) -> Accepted:
    """Accept a file of the authority for the member in `folder`: a certificate for the key that waits there, a
    revocation list, or a new certificate of the authority. If one of them is refused, nothing changes.

    Raises:
        UserError: the content is for another key, member or authority, is not valid now, or is older than the present.
    """
    new, accepted = dict[Path, bytes](), Accepted()
    content = read(file)
    try:
        certs = x509.load_pem_x509_certificates(content) if b"BEGIN CERTIFICATE" in content else []
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}). Have it sent again.") from error
    roots = [each for each in certs if each.subject == each.issuer]
    if roots:
        new[folder / STARTUP / ROOT] = _check_root(folder, file, roots[0])
        accepted = accepted._replace(expiry=roots[0].not_valid_after_utc)
    if b"BEGIN X509 CRL" in content:
        new[folder / STARTUP / REVOKED], count = _check_list(folder, file, content)
        accepted = accepted._replace(revoked=count)
    key, cert_path, waiting = key_files(folder)
    certified = [each for each in certs if each not in roots]
    if certified or not new:
        new |= {key: _check_certificate(folder, file, certified), cert_path: b"".join(_pem(each) for each in certified)}
        accepted = accepted._replace(mark=certified[0].fingerprint(SHA256()).hex(":").upper())
    for path, pem in new.items():
        replace_private(path, pem)
    if accepted.mark is not None:
        waiting.unlink()  # once both are in place: after an interruption `accept` does it all again
        (folder / REQUEST).unlink(missing_ok=True)
    return accepted


def _check_certificate(folder: Path, file: Path, certified: Sequence[x509.Certificate]) -> bytes:
    """The key that waits in `folder` for the certificate in `file`."""
    waiting, name = key_files(folder)[2], member_name(folder)
    if not waiting.exists():
        raise UserError(f"no key waits in {folder} for a certificate: begin with `fedweave sites request {folder}`.")
    owners = common_names(certificate(file))
    if owners != [name]:
        raise UserError(
            f"{file} is the certificate of {', '.join(owners) or 'no member'}, and {folder} is the folder of {name}. "
            f"Accept the one that was signed for {name}."
        )
    check_issuer(file, folder / STARTUP / ROOT)
    check_certificate(file)
    _check_uses(file, name)
    content = read(waiting)
    key, public_key = load_pem_private_key(content, None), certified[0].public_key()
    if (
        not isinstance(key, RSAPrivateKey)
        or not isinstance(public_key, RSAPublicKey)
        or fingerprint(public_key) != fingerprint(key.public_key())
    ):
        raise UserError(f"{file} is of another key than {waiting}. Have the present {REQUEST} signed.")
    return content


def _check_uses(path: Path, name: str) -> None:
    """Refuse a certificate of the member `name` that its connections could not use. A company's own authority may have
    changed what the request asks for."""
    cert = certificate(path)
    roles = [role.value for role in cert.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
    lacking = [f"the role {ROLE} in its subject"] if name == USER and ROLE not in roles else []
    for extension, _ in uses(name):
        if not isinstance(extension, x509.ExtendedKeyUsage):
            continue
        try:
            allowed = set(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        except x509.ExtensionNotFound:
            continue  # it allows everything
        lacking += [f"the use {use._name}" for use in extension if use not in allowed]
    if lacking:
        raise UserError(
            f"{path} lacks {', '.join(lacking)}. Have the authority copy the subject and the extensions of {REQUEST}.",
            code="certificate.uses",
        )


def _check_list(folder: Path, file: Path, content: bytes) -> tuple[bytes, int]:
    """A revocation list and its number of certificates, if it has all certificates of the list in `folder`."""
    here, root = folder / STARTUP / REVOKED, certificate(folder / STARTUP / ROOT)
    pem = content[content.index(b"-----BEGIN X509 CRL") :]
    revoked = read_revoked(root, pem, file)
    if here.exists() and not revoked >= read_revoked(root, read(here), here):
        raise UserError(
            f"{file} lacks certificates that {here} revokes. Take the authority's latest list.", code="certificate.old"
        )
    return pem, len(revoked)


def _check_root(folder: Path, file: Path, root: x509.Certificate) -> bytes:
    """The authority's certificate, if it has the same key as the one in `folder` and is valid longer."""
    here = certificate(folder / STARTUP / ROOT)
    key, other = here.public_key(), root.public_key()
    are_rsa = isinstance(key, RSAPublicKey) and isinstance(other, RSAPublicKey)
    same_key = are_rsa and fingerprint(key) == fingerprint(other)
    later = root.not_valid_after_utc >= here.not_valid_after_utc and root.not_valid_before_utc <= datetime.now(UTC)
    try:
        root.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        same_key = False
    if not same_key or not later:
        raise UserError(
            f"{file} is no later certificate of the authority of {folder}: it has another key, or ends before the one "
            "that is here. Ask the authority's owner for what `fedweave sites renew` wrote.",
            code="certificate.authority",
        )
    return _pem(root)


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)


SHORTEST = 12  # bytes of a passphrase
Ask: TypeAlias = Callable[[Path], bytes]  # the passphrase of the key in an authority's folder


def prompt(authority: Path) -> bytes:
    """Ask at the terminal for the passphrase of an authority's key.

    Raises:
        UserError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UserError(
            f"the key in {authority} is encrypted, and there is no terminal to ask for its passphrase. Name a file "
            "with it: --passphrase-file FILE.",
            code="certificate.passphrase",
        )
    return getpass(f"passphrase of the key in {authority}: ").encode()


def passphrase_from(file: Path) -> bytes:
    """The passphrase in the first line of a file that only its owner can read.

    Raises:
        UserError: the file cannot be read, or others can read it.
    """
    check_private(file)
    return read(file).partition(b"\n")[0].rstrip(b"\r")


_LONG = timedelta(days=36500)  # a list of revoked certificates is valid until there is a newer one


def sign(authority: Path, request_file: Path, whose: str = "", ask: Ask = prompt) -> tuple[str, bytes, str]:
    """Sign a request. Returns the name in it, its certificate in PEM with the revocation list if there is one, and the
    public key's fingerprint.

    authority: the folder that `sites init` made. whose: "server" or the administrator's name, if the request is for one
    of them.

    Raises:
        UserError: `authority` is not such a folder; or the file is not a valid request, has a name that no member can
            have, is for the server or administrator and `whose` differs, or is for no site of the project.
    """
    try:
        csr = x509.load_pem_x509_csr(read(request_file))
        names = common_names(csr)
        key = csr.public_key()
        if not csr.is_signature_valid or not isinstance(key, RSAPublicKey) or len(names) != 1:
            raise ValueError("its signature is not valid, or it is of no RSA key or no name")
        if key.key_size < BITS:
            raise ValueError(f"its RSA key has {key.key_size} bits, and {BITS} are needed")
        if not is_name(names[0]) and names[0] not in (SERVER, USER):
            raise ValueError(f"{names[0]!r} is not a name that a site can have")
        hosts = _hosts(csr) if whose == names[0] == SERVER else ()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise UserError(
            f"{request_file} is not a request ({error}). Make one at the site: fedweave sites request."
        ) from error
    if whose != names[0] and (whose or not is_name(names[0])):
        raise UserError(
            f"{request_file} asks for a certificate of {names[0]}, with which its owner can speak as {names[0]}. If it "
            f"came from there: --for {names[0]}.",
            code="certificate.name",
        )
    members = set[str]() if whose else _members(authority)
    if members and names[0] not in members:
        raise UserError(
            f"{request_file} asks for a certificate of {names[0]}, which is not a member of the project; its sites are "
            f"{', '.join(sorted(members))}. Have the request made in the folder of one: fedweave sites request "
            "DIR/MEMBER.",
            code="certificate.no-member",
        )
    cert: x509.Certificate = issue(names[0], _root_key(authority, ask), key, hosts)
    note_issued(authority, names[0], cert)
    revoked = authority / REVOKED
    pem = cert.public_bytes(Encoding.PEM) + (revoked.read_bytes() if revoked.exists() else b"")
    return names[0], pem, fingerprint(key)


def company_root(path: Path) -> bytes:
    """The certificate of a company's own authority, in PEM. It is the members' only trust: give a project an authority
    that signs nothing else.

    Raises:
        UserError: the file holds no certificate of an authority that has signed itself, or it is not valid now.
    """
    check_certificate(path)
    root = certificate(path)
    try:
        root.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError(
            f"{path} was signed by another certificate, so it is not that of an authority that has signed itself. Name "
            "the authority's own.",
            code="certificate.no-authority",
        ) from error
    extensions = root.extensions
    try:
        signs = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        signs = False
    if not signs:
        raise UserError(
            f"{path} is not a certificate of an authority (basicConstraints CA). Name the authority's own.",
            code="certificate.no-authority",
        )
    return _pem(root)


def site_certificate(authority: Path, name: str, key: RSAPublicKey, ask: Ask = prompt) -> x509.Certificate:
    """A certificate of the site `name` for its public `key`, signed by the authority. ask: see `sign`."""
    cert: x509.Certificate = issue(name, _root_key(authority, ask), key)
    return cert


def revoke(authority: Path, name: str, shown: Path | None = None, ask: Ask = prompt) -> tuple[int, bytes]:
    """Revoke all certificates of a member that this authority has signed until now. Returns their number, and the
    signed list of all revoked certificates in PEM. Later certificates of the same name are valid.

    shown: a certificate of that member without a note at the authority, because an earlier version signed it. ask: see
    `sign`.

    Raises:
        UserError: no certificate is known, all known ones are revoked already, or `shown` has another name or is not
            the authority's.
    """
    path, key = authority / REVOKED, _root_key(authority, ask)
    notes = _records(authority)
    serials = {int(note["serial"], 16) for note in notes if note["name"] == name}
    if shown is not None:
        if common_names(certificate(shown)) != [name]:
            raise UserError(f"{shown} is not a certificate of {name}.", code="certificate.name")
        try:  # its serial number could otherwise be another member's
            certificate(shown).verify_directly_issued_by(root(authority))
        except (InvalidSignature, ValueError, TypeError) as error:
            message = f"{shown} was not signed by {authority}. Show the certificate that it has signed."
            raise UserError(message, code="certificate.issuer") from error
        if certificate(shown).serial_number not in serials:
            note_issued(authority, name, certificate(shown))
        serials.add(certificate(shown).serial_number)
    before = list(x509.load_pem_x509_crl(read(path))) if path.exists() else []
    new = serials - {each.serial_number for each in before}
    if not new:
        known = "all of its certificates are revoked already" if serials else "no certificate of that name is known"
        code = "certificate.revoked-already" if serials else "certificate.unknown"
        raise UserError(
            f"{name}: {known}; show another: `fedweave sites revoke … --certificate {name}.crt`.", code=code
        )
    now, cert = datetime.now(UTC), root(authority)
    builder = x509.CertificateRevocationListBuilder(cert.subject, now - BACKDATED, now + _LONG)
    builder = builder.add_extension(x509.CRLNumber(len(before) + len(new)), critical=False)
    for each in before:
        builder = builder.add_revoked_certificate(each)
    for serial in sorted(new):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    pem = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    replace_private(path, pem)
    _mark(authority, name, "revoked", lambda note: int(note["serial"], 16) in new)
    return len(new), pem


def renew(authority: Path, ask: Ask = prompt) -> tuple[bytes, datetime]:
    """Make a new certificate for the authority's own key. Returns it in PEM, and the end of its validity. Certificates
    that the authority has signed before stay valid. ask: see `sign`.

    Raises:
        UserError: `authority` is not an authority's folder.
    """
    cert, first = root(authority), datetime.now(UTC) - BACKDATED
    builder = x509.CertificateBuilder(cert.subject, cert.subject, cert.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(first).not_valid_after(
        first + (cert.not_valid_after_utc - cert.not_valid_before_utc)
    )
    for extension in cert.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(_root_key(authority, ask), SHA256())
    pem = signed.public_bytes(Encoding.PEM)
    keep(authority / STATE, json.loads(read(authority / STATE)) | {"root_cert": pem.decode()})
    return pem, signed.not_valid_after_utc


def _hosts(csr: x509.CertificateSigningRequest) -> list[str]:
    """The names of the server's machine in its request."""
    try:
        hosts = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("it does not name the server's machine (SubjectAlternativeName)") from error
    return [str(each.value) for each in hosts]


def _records(authority: Path) -> list[Record]:
    """See `provision.note_issued`."""
    return list(json.loads(read(authority / ISSUED))) if (authority / ISSUED).exists() else []


def _mark(authority: Path, name: str, what: str, which: Callable[[Record], bool]) -> None:
    """Add the present time as `what` to those certificates of a member in the authority's record that have none."""
    notes = _records(authority)
    if not notes:
        return
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    marked = [{what: now, **note} if note["name"] == name and which(note) else note for note in notes]
    keep(authority / ISSUED, marked)


def dismiss(authority: Path, name: str) -> None:
    """Note in the authority's record that `name` is not a member any more, so that `sign` refuses it."""
    _mark(authority, name, "removed", lambda note: True)


def _members(authority: Path) -> set[str]:
    """The sites of the project; empty if an earlier version, which did not note them, made it."""
    notes = _records(authority)
    names = {str(note["name"]) for note in notes if "removed" not in note}
    return names - {SERVER, USER} if {SERVER, USER} <= names else set()


def root(authority: Path) -> x509.Certificate:
    """The authority's own certificate."""
    try:
        return x509.load_pem_x509_certificate(json.loads(read(authority / STATE))["root_cert"].encode())
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{authority} is not an authority's folder ({error}). Name the one that `sites init` made.",
            code="certificate.no-authority",
        ) from error


def _root_key(authority: Path, ask: Ask) -> RSAPrivateKey:
    state = authority / STATE
    try:
        pem = json.loads(read(state))["root_pri_key"].encode()
        encrypted = b"ENCRYPTED" in pem
        key = load_pem_private_key(pem, ask(authority) if encrypted else None)
        if not isinstance(key, RSAPrivateKey):
            raise ValueError("it holds no RSA key")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{state} holds no key of an authority ({error}), or the passphrase is wrong. Name the folder of `sites "
            "init`; a file with the passphrase is --passphrase-file FILE.",
            code="certificate.no-key",
        ) from error
    return key


def encrypt(authority: Path, passphrase: bytes, ask: Ask = prompt) -> None:
    """Encrypt the authority's key with a `passphrase`, also a key that is encrypted already. ask: see `sign`.

    Raises:
        UserError: the folder is not an authority's, the present passphrase is wrong, or the new one is shorter than
            `SHORTEST`.
    """
    if len(passphrase) < SHORTEST:
        raise UserError(
            f"a passphrase of {len(passphrase)} bytes is too short. Choose {SHORTEST} or more.",
            code="certificate.passphrase",
        )
    key = _root_key(authority, ask)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
    keep(authority / STATE, json.loads(read(authority / STATE)) | {"root_pri_key": pem.decode()})
