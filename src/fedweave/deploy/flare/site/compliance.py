"""A site's compliance report: for whoever answers for its data, what left, for whom and what for, under which rules.

Sites, the server and administrators sign such reports with the keys of their certificates; signatures are kept as JSON.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.deploy.flare.policy.policy import replies_of
from fedweave.deploy.flare.site.audit import Audit, Run, audit, changes, free, job, refused
from fedweave.deploy.flare.site.folder import SITE_FILE, About, read_about
from fedweave.deploy.flare.site.sitefile import Rules
from fedweave.deploy.flare.wire.journal import now
from fedweave.errors import CallRefused, UserError, listed
from fedweave.experiment.runs.files import read, write
from fedweave.report.compliance import FOOT, moved, sent
from fedweave.report.document import Document, Section, grid
from fedweave.report.flows import SERVER, flows, period
from fedweave.report.listing import meanings

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


_ALWAYS = ("epsilon", "bytes", "min_nodes", "min_sites")  # rules that are named also where nobody has set them
_STATED = ("requester", "purpose", "submitter")


def of_site(folder: Path, run: str = "") -> Document:
    """The report of the site in `folder`, of all its runs or of one.

    Raises:
        UserError: it took no part in any, or in none of that number (see `audit.audit`).
    """
    found = audit(folder)
    about = read_about(folder / SITE_FILE) if (folder / SITE_FILE).exists() else About()
    runs = [one for one in found.runs if not run or one.name == run]
    if not runs:
        raise UserError(
            f"{folder} took no part in a run {run!r}; it did in {listed([one.name for one in found.runs])}."
        )
    ledger = runs[0].ledger if run else found.ledger
    kinds, name = flows(ledger), folder.resolve().name
    notes = [note for one in runs for note in one.joined]
    begun = [one for one in runs if one.joined or one.flows]
    times = [str(note["at"]) for one in runs for note in (*one.joined, *one.refused)]
    others = sorted({str(site) for note in notes for site in note.get("sites", ())} - {name})
    called = {who: about.parties[who] for who in (*others, SERVER) if who in about.parties}
    size = moved(kinds)
    readers = sorted({name for one in kinds if one.direction != "down" for name in one.receivers})
    return Document(
        title=f"What left {about.legal_name or name}",
        facts=tuple(_facts(name, about, called, others, notes, period(ledger, times), run).items()),
        lead=(
            f"{size} left the site in {sum(bool(one.flows) for one in runs):,} of {counted(len(begun), 'run')}, to "
            f"{listed([called.get(who, f'the {who}' if who == SERVER else who) for who in readers])} and nobody else: "
            "the site's own journals, written before anything is sent, show no other message."
            if size
            else "Nothing has left the site.",
        ),
        sections=(
            sent(kinds, len(others) + 1, called),
            _asked(runs),
            _spent(found),
            _policy(found.rules),
            _changes(runs),
            _refused(runs),
        ),
        foot=FOOT,
    )


def _facts(
    name: str, about: About, called: Record, others: list[str], notes: list[Record], period: str, run: str
) -> dict[str, str]:
    """Whose site, which runs, when, and who asked what for."""
    stated = {key: listed(sorted({str(note[key]) for note in notes if note.get(key)})) for key in _STATED}
    by = [
        stated["requester"] or "not stated",
        *([f"as the server says, with the certificate of {stated['submitter']}"] if stated["submitter"] else []),
    ]
    owner = f"{about.legal_name} (site {name})" if about.legal_name else f"site {name}; its site.toml has no legal_name"
    server = [f"{called[SERVER]} (the server)"] if SERVER in called else []
    return {
        "of": owner,
        **({"contact": about.contact} if about.contact else {}),
        "run": run or "all runs of the site",
        "period": period,
        "asked by": "; ".join(by),
        "purpose": stated["purpose"] or "not stated",
        "other parties": listed([*server, *(f"{called[one]} (site {one})" if one in called else one for one in others)])
        or "not noted",
    }


def _asked(runs: list[Run]) -> Section:
    rows = [
        {
            "when (UTC)": str(note["at"])[:16].replace("T", " "),
            "run": run.name,
            "what": f"{job(note)}, {note.get('algorithm')}",
            "asked by": str(note.get("requester") or "not stated"),
            "purpose": str(note.get("purpose") or "not stated"),
            "configuration": str(note.get("pin"))[:12],
            "software": f"fedweave {note.get('fedweave')}, torch {note.get('torch')}",
        }
        for run in runs
        for note in run.joined
    ]
    text = (
        "The configuration is named by the first digits of its SHA-256, software by its version and its files' digest."
    )
    return Section("What was asked", (text,), grid=grid(rows, tuple(rows[0]) if rows else ()))


def _spent(found: Audit) -> Section:
    """What all runs together have spent, and what the policy leaves."""
    rules, spent, cost = found.rules, found.spent, found.spent.account.cost
    epsilon, form = spent.epsilon(rules.delta), "{:.4g}".format
    rows = [_row(f"ε at δ = {rules.delta:g}", epsilon, rules.epsilon, form), _row("bytes", spent.bytes, rules.bytes)]
    rows.append(_row("evaluations whose scores left", spent.evaluations, rules.evaluations))
    rows += [_row(f"replies of {step}", replies_of(spent, step), most) for step, most in rules.calls.items()]
    if cost.unbounded and not epsilon:
        rows[0]["spent"] = "none holds"
    text = "Over all runs of the site, as its policy counts."
    if cost.unbounded:
        held = free(found) if rules.epsilon is not None else ""
        text += f" The ε is of what left with noise; of the rest nothing limits what it tells{held}."
    return Section("What it cost, and what is left", (text,), grid=grid(rows, ("what",)))


def _row(what: str, spent: float, most: float | None, form: Callable[[float], str] = "{:,}".format) -> dict[str, str]:
    left = "no cap" if most is None else form(max(0, most - spent))
    return {"what": what, "spent": form(spent), "allowed": "no cap" if most is None else form(most), "left": left}


def _policy(rules: Rules) -> Section:
    """The rules in force."""
    shown, meant = {name: vars(rules)[name] for name in _ALWAYS} | rules.plain(), meanings(Rules)
    rows = [
        {"rule": name, "value": _value(own), "what it means": re.sub(r" \(?`[^`]*`\)?", "", meant[name])}
        for name, own in shown.items()
    ]
    digest = sha256(json.dumps(rules.plain(), sort_keys=True).encode()).hexdigest()
    text = f"Enforced by the site itself before anything is sent. SHA-256 of what is set: {digest}."
    return Section("Policy in force", (text,), grid=grid(rows, ("rule", "value", "what it means")))


def _value(own: object) -> str:
    if isinstance(own, dict):
        return ", ".join(f"{key} = {value}" for key, value in own.items())
    return ", ".join(map(str, own)) if isinstance(own, list | tuple) else "not set" if own is None else f"{own:,}"


def _changes(runs: list[Run]) -> Section:
    rows = [{"when (UTC)": at[:16].replace("T", " "), "what": said} for at, said in changes(runs)]
    text = () if rows else ("The journals note no change of the policy.",)
    return Section("Changes of the policy", text, grid=grid(rows, ("when (UTC)", "what")))


def _refused(runs: list[Run]) -> Section:
    lines = tuple(line for run in runs for line in refused(run))
    return Section("What was refused", () if lines else ("Nothing was refused.",), lines)
