"""The authority's side of certificates: it signs members' requests, revokes what it has signed, and renews its own."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedweave.deploy.flare.server.provision import (
    BEFORE,
    ISSUED,
    STATE,
    USER,
    is_name,
    issued,
    keep,
    note_issued,
)
from fedweave.deploy.flare.site.private import replace_private
from fedweave.deploy.flare.wire.requests import SERVER
from fedweave.deploy.sites.certificates import certificate, fingerprint
from fedweave.deploy.sites.issuing import BITS
from fedweave.errors import UserError
from fedweave.experiment.runs.files import read
from fedweave.privacy.aggregation import REVOKED, common_names

_LONG = timedelta(days=36500)  # a list of revoked certificates is valid until there is a newer one


def sign(authority: Path, asked: Path, whose: str = "") -> tuple[str, bytes, str]:
    """The name in a request, its certificate in PEM, with the list of revoked ones if there is one, and the public
    key's fingerprint.

    authority: the folder that `sites init` made. whose: "server" or the administrator's name, where it is of that.

    Raises:
        UserError: `authority` is none, or the request is none, is damaged, or is of a name that no member can have, or
            of the server or administrator and `whose` does not say so.
    """
    try:
        found = x509.load_pem_x509_csr(read(asked))
        names = common_names(found)
        key = found.public_key()
        if not found.is_signature_valid or not isinstance(key, RSAPublicKey) or len(names) != 1:
            raise ValueError("its signature is not valid, or it is of no RSA key or no name")
        if key.key_size < BITS:
            raise ValueError(f"its RSA key has {key.key_size} bits, and {BITS} are needed")
        if not is_name(names[0]) and names[0] not in (SERVER, USER):
            raise ValueError(f"{names[0]!r} is no name that a site can have")
        hosts = _hosts(found) if whose == names[0] == SERVER else ()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise UserError(f"{asked} is no request ({error}). Make one at the site: fedweave sites request.") from error
    if whose != names[0] and (whose or not is_name(names[0])):
        raise UserError(
            f"{asked} asks for a certificate of {names[0]}, with which its owner can speak as {names[0]}. If it came "
            f"from there: --for {names[0]}.",
            code="certificate.name",
        )
    made: x509.Certificate = issued(names[0], _root_key(authority), key, hosts)
    note_issued(authority, made)
    revoked = authority / REVOKED
    given = made.public_bytes(Encoding.PEM) + (revoked.read_bytes() if revoked.exists() else b"")
    return names[0], given, fingerprint(key)


def revoke(authority: Path, name: str, shown: Path | None = None) -> tuple[int, bytes]:
    """Take back all certificates of a member that this authority has signed until now; how many those are, and the
    signed list of all that are revoked, in PEM. Later ones of that name are valid.

    shown: a certificate of that member, of which the authority keeps no note: an earlier version signed it.

    Raises:
        UserError: none is known, or all known ones are revoked already, or `shown` is of another name.
    """
    path, key = authority / REVOKED, _root_key(authority)
    notes = json.loads(read(authority / ISSUED)) if (authority / ISSUED).exists() else []
    serials = {int(note["serial"], 16) for note in notes if note["name"] == name}
    if shown is not None:
        if common_names(certificate(shown)) != [name]:
            raise UserError(f"{shown} is no certificate of {name}.", code="certificate.name")
        serials.add(certificate(shown).serial_number)
    before = list(x509.load_pem_x509_crl(read(path))) if path.exists() else []
    if not (new := serials - {each.serial_number for each in before}):
        known = "all of its certificates are revoked already" if serials else "no certificate of that name is known"
        raise UserError(f"{name}: {known}; show another: --certificate {name}.crt.", code="certificate.unknown")
    now, root = datetime.now(UTC), _root(authority)
    made = x509.CertificateRevocationListBuilder(root.subject, now - BEFORE, now + _LONG)
    made = made.add_extension(x509.CRLNumber(len(before) + len(new)), critical=False)
    for each in before:
        made = made.add_revoked_certificate(each)
    for serial in sorted(new):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        made = made.add_revoked_certificate(entry.build())
    given = made.sign(key, SHA256()).public_bytes(Encoding.PEM)
    replace_private(path, given)
    return len(new), given


def renew(authority: Path) -> tuple[bytes, datetime]:
    """A new certificate of the authority's own key, in PEM, and until when it is valid; what was signed before stays.

    Raises:
        UserError: `authority` is no authority's folder.
    """
    root, first = _root(authority), datetime.now(UTC) - BEFORE
    made = x509.CertificateBuilder(root.subject, root.subject, root.public_key(), x509.random_serial_number())
    made = made.not_valid_before(first).not_valid_after(first + (root.not_valid_after_utc - root.not_valid_before_utc))
    for extension in root.extensions:
        made = made.add_extension(extension.value, extension.critical)
    signed = made.sign(_root_key(authority), SHA256())
    given = signed.public_bytes(Encoding.PEM)
    keep(authority / STATE, json.loads(read(authority / STATE)) | {"root_cert": given.decode()})
    return given, signed.not_valid_after_utc


def _hosts(asked: x509.CertificateSigningRequest) -> list[str]:
    """Of the server's machine, as its request names them.

    Raises:
        ValueError: it names none.
    """
    try:
        named = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("it does not name the server's machine (SubjectAlternativeName)") from error
    return [str(each.value) for each in named]


def _root(authority: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(json.loads(read(authority / STATE))["root_cert"].encode())


def _root_key(authority: Path) -> RSAPrivateKey:
    state = authority / STATE
    try:
        key = load_pem_private_key(json.loads(read(state))["root_pri_key"].encode(), None)
        if not isinstance(key, RSAPrivateKey):
            raise ValueError("it holds no RSA key")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{state} holds no key of an authority ({error}); name the folder of `sites init`.") from error
    return key
