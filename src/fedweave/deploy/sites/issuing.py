"""Keys that are made where they are used: a site asks for a certificate of its key, the authority signs it, and the
site takes it up. No private key travels; the certificates have the form of those that NVFlare's provisioning makes."""

import json
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from fedweave.deploy.flare.server.provision import STATE, is_name, issued
from fedweave.deploy.flare.site.private import private_file
from fedweave.deploy.sites.certificates import certificate, check_certificate, check_issuer, common_names
from fedweave.errors import UserError
from fedweave.experiment.runs.files import read

KEY, CERTIFICATE, ROOT = "startup/client.key", "startup/client.crt", "startup/rootCA.pem"
NEW_KEY, REQUEST = "startup/client.key.new", "startup/request.pem"
_BITS = 2048  # as NVFlare's keys


def request(folder: Path) -> tuple[Path, str]:
    """Make a new key for the site in `folder`, which waits there for its certificate, and a request for one.

    Returns the request's file and the public key's fingerprint.

    Raises:
        UserError: `folder` is not one of a site.
    """
    if not (folder / "startup/fed_client.json").exists():
        raise UserError(f"{folder} is no site's folder: it has no startup/fed_client.json. Name one as bank/bank-a.")
    key = generate_private_key(public_exponent=65537, key_size=_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.resolve().name)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256())
    (folder / NEW_KEY).unlink(missing_ok=True)
    with open(folder / NEW_KEY, "wb", opener=private_file) as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    (folder / REQUEST).write_bytes(asked.public_bytes(Encoding.PEM))
    return folder / REQUEST, fingerprint(key.public_key())


def sign(authority: Path, asked: Path) -> tuple[str, bytes, str]:
    """The name in a request, its certificate in PEM, and the public key's fingerprint.

    authority: the folder that `sites init` made.

    Raises:
        UserError: `authority` is none, or the request is none, is damaged, or is of a name that no site can have.
    """
    try:
        found = x509.load_pem_x509_csr(read(asked))
        names = common_names(found)
        key = found.public_key()
        if not found.is_signature_valid or not isinstance(key, RSAPublicKey) or len(names) != 1:
            raise ValueError("its signature is not valid, or it is of no RSA key or no name")
        if key.key_size < _BITS:
            raise ValueError(f"its RSA key has {key.key_size} bits, and {_BITS} are needed")
        if not is_name(names[0]):
            raise ValueError(f"{names[0]!r} is no name that a site can have")
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise UserError(f"{asked} is no request ({error}). Make one at the site: fedweave sites request.") from error
    made: x509.Certificate = issued(names[0], _root_key(authority / STATE), key)
    return names[0], made.public_bytes(Encoding.PEM), fingerprint(key)


def accept(folder: Path, signed: Path) -> str:
    """Take up the certificate in the file `signed`, and the key that waits for it in a site's `folder`; returns the
    certificate's SHA-256 fingerprint, by which other sites' policies may know its members.

    Raises:
        UserError: it is of another key, site or authority, or is not valid now.
    """
    if not (folder / NEW_KEY).exists():
        raise UserError(f"no key waits in {folder} for a certificate: begin with `fedweave sites request {folder}`.")
    own_name, named = folder.resolve().name, common_names(certificate(signed))
    if named != [own_name]:
        raise UserError(
            f"{signed} is the certificate of {', '.join(named) or 'nobody'}, and {folder} is the folder of {own_name}. "
            f"Accept the one that was signed for {own_name}."
        )
    check_issuer(signed, folder / ROOT)
    check_certificate(signed)
    key = load_pem_private_key(read(folder / NEW_KEY), None)
    own = certificate(signed).public_key()
    if (
        not isinstance(key, RSAPrivateKey)
        or not isinstance(own, RSAPublicKey)
        or fingerprint(own) != fingerprint(key.public_key())
    ):
        raise UserError(f"{signed} is of another key than {folder / NEW_KEY}. Have the present {REQUEST} signed.")
    _put(folder / KEY, read(folder / NEW_KEY))
    _put(folder / CERTIFICATE, read(signed))
    (folder / NEW_KEY).unlink()  # once both are in place: after an interruption `accept` does it all again
    (folder / REQUEST).unlink(missing_ok=True)
    return certificate(signed).fingerprint(SHA256()).hex(":").upper()


def _put(path: Path, content: bytes) -> None:
    """Replace a file as a whole by one that its owner alone can read."""
    beside = path.with_name(f"{path.name}.beside")
    beside.unlink(missing_ok=True)
    with open(beside, "wb", opener=private_file) as file:
        file.write(content)
    beside.replace(path)


def fingerprint(key: RSAPublicKey) -> str:
    """SHA-256 of a public key, for two people to compare."""
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex(":").upper()


def _root_key(state: Path) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(json.loads(read(state))["root_pri_key"].encode(), None)
        if not isinstance(key, RSAPrivateKey):
            raise ValueError("it holds no RSA key")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{state} holds no key of an authority ({error}); name the folder of `sites init`.") from error
    return key
