"""Reports that sites, the server and administrators sign with the keys of their certificates, kept as JSON."""

import base64
import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from fedweave.deploy.flare.wire.journal import now
from fedweave.errors import CallRefused, UserError
from fedweave.experiment.runs.files import read, write
from fedweave.report.document import Document, Section, grid

KIND = "fedweave compliance report"
_SAID = (
    "Each signature is of the SHA-256 of this report's contents, by the key of the certificate whose fingerprint is "
    "shown. fedweave compliance REPORT.json checks that, and with --authority that the project's authority issued the "
    "certificate to that member. Without it, compare fingerprints with those that owners name."
)


if TYPE_CHECKING:
    from fedweave.privacy.aggregation.identity import Authority, Identity


@dataclass(frozen=True)
class Signature:
    """Who signed, with which certificate (DER), when, and the signature itself; bytes in base64."""

    name: str
    certificate: str
    at: str
    signature: str


@dataclass(frozen=True)
class Report:
    """A document with its signatures."""

    document: Document
    signatures: tuple[Signature, ...] = ()
    kind: str = KIND

    def signed(self, folder: Path) -> "Report":
        """The same with a signature by the key in a `folder` of a project, in place of an earlier one by the same.

        Raises:
            ConfigError: the folder has no certificate and key.
        """
        from fedweave.privacy.aggregation.identity import read_identity

        own, at = read_identity(folder), now()
        name = own.name
        made = own.sign(_message(self.document, name, at))
        found = Signature(name, _text(own.certificate), at, _text(made))
        for other in self.signatures:
            _check(other, self.document, own)
        return replace(self, signatures=(*(one for one in self.signatures if one.name != name), found))

    def shown(self) -> Document:
        """The document with its number, digest and signatures."""
        digest = self.document.digest
        number = f"CR-{digest[:12].upper()}"
        rows = [
            {
                "who": one.name,
                "when (UTC)": one.at[:16].replace("T", " "),
                "certificate, SHA-256": sha256(_bytes(one.certificate)).hexdigest(),
                "signature, first digits": _bytes(one.signature).hex()[:32],
            }
            for one in self.signatures
        ]
        text = (_SAID,) if rows else ("Nobody has signed this report: --sign FOLDER does, with the key in the folder.",)
        last = Section("Signatures", text, grid=grid(rows, tuple(rows[0]) if rows else ()), code=(f"SHA-256 {digest}",))
        facts = (("number", number), *self.document.facts)
        return replace(self.document, number=number, facts=facts, sections=(*self.document.sections, last))


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON, in the place of another one alone.

    Raises:
        UserError: the file is something else.
    """
    if path.exists():
        _unchecked(path)
    text = json.dumps(asdict(report), indent=1, ensure_ascii=False)
    write(path, lambda file: file.write(text.encode() + b"\n"))


def read_report(path: Path, authority: Path | None = None) -> Report:
    """A report, whose signatures are checked; authority: a folder with the certificate of whoever must have issued the
    signers' (rootCA.pem), and the list of revoked ones if there is one (revoked.pem).

    Raises:
        UserError: the file is none, or a signature is not of what it says, or not by a certificate of that authority.
    """
    from fedweave.privacy.aggregation.identity import read_root

    found, root = _unchecked(path), None if authority is None else read_root(authority)
    for one in found.signatures:
        _check(one, found.document, root)
    return found


def _unchecked(path: Path) -> Report:
    try:
        found: Report = TypeAdapter(Report).validate_json(read(path))
        if found.kind != KIND:
            raise ValueError("it says to be of another kind")
    except (ValidationError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no report that `fedweave compliance` wrote ({type(error).__name__}).") from error
    return found


def _check(one: Signature, document: Document, by: "Identity | Authority | None") -> None:
    """See whether a signature fits the document, by a certificate that was valid when it was made."""
    from fedweave.privacy.aggregation.identity import CHANGED, Identity, check_signed

    try:
        made, certificate, at = _bytes(one.signature), _bytes(one.certificate), datetime.fromisoformat(one.at)
        told = one.name, certificate, made, _message(document, one.name, one.at)
        by.check(*told, at) if isinstance(by, Identity) else check_signed(*told, by, at)
    except (CallRefused, ValueError) as error:
        changed = not isinstance(error, CallRefused) or error.code == CHANGED
        why = f": the report was changed after {one.name} had signed it" if changed else ""
        raise UserError(f"{error}{why}; ask for it again.") from error


def _message(document: Document, name: str, at: str) -> bytes:
    return json.dumps([KIND, document.digest, name, at]).encode()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
