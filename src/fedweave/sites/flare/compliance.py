"""A site's compliance report, for the person who is responsible for its data.

It shows what left, for whom, for which purpose and under which rules. Sites, the server and administrators sign such
reports with the keys of their certificates. The signatures are kept as JSON."""

import json
import re
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from fedweave.accounts.compliance import FOOT, left_section, messages_section, privacy_tile, size_tile, upload_size
from fedweave.accounts.document import MAX_TILES, Document, Section, Tile, grid
from fedweave.accounts.ledger import SERVER, flows, period
from fedweave.core.settings import meanings
from fedweave.core.text import capitalized, counted
from fedweave.core.types import Record
from fedweave.errors import CallRefused, UserError, listed
from fedweave.experiment.runs.files import read, write
from fedweave.privacy.accountant import of_members
from fedweave.sites.flare.audit import Audit, SiteRun, audit, changes, free, job, refusal_lines, rules_of
from fedweave.sites.flare.folder import SITE_FILE
from fedweave.sites.flare.journal import now
from fedweave.sites.flare.machine import About, read_about
from fedweave.sites.flare.policy import replies_of
from fedweave.sites.flare.policy_changes import RuleChange, rule_changes, value_text
from fedweave.sites.flare.sitefile import Rules

if TYPE_CHECKING:
    from fedweave.sites.protocols.identity import Authority, Identity


KIND = "fedweave compliance report 2"  # counts up with the contents of a `Document`, all of which are signed
_EARLIER = ("fedweave compliance report",)
_HOW_TO_CHECK = (
    "Each signature is of the SHA-256 of this report's contents, by the key of the certificate whose fingerprint is "
    "shown. fedweave compliance REPORT.json checks that, and with --authority that the project's authority issued the "
    "certificate to that member. Without it, compare fingerprints with those that owners name."
)


@dataclass(frozen=True)
class Signature:
    """A signature: the signer's name and certificate (DER), the time, and the signature itself; bytes in base64."""

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

    def sign(self, folder: Path) -> "Report":
        """A copy of the report with a signature by the key in a `folder` of a project. It replaces an earlier signature
        of the same signer. All earlier signatures must fit, the one that is replaced too.

        Raises:
            ConfigError: the folder has no certificate and key.
            UserError: an earlier signature does not fit.
        """
        from fedweave.sites.protocols.identity import read_identity

        identity, at = read_identity(folder), now()
        name = identity.name
        signature = identity.sign(_message_to_sign(self.document, name, at))
        entry = Signature(name, b64encode(identity.certificate).decode(), at, b64encode(signature).decode())
        for other in self.signatures:
            _check(other, self.document, identity)
        return replace(self, signatures=(*(one for one in self.signatures if one.name != name), entry))

    def with_signatures(self) -> Document:
        """The document with its number, digest and signatures."""
        digest = self.document.digest
        number = f"CR-{digest[:12].upper()}"
        rows = list[dict[str, str]]()
        for one in self.signatures:
            row = {
                "who": one.name,
                "when (UTC)": one.at[:16].replace("T", " "),
                "certificate, SHA-256": sha256(b64decode(one.certificate, validate=True)).hexdigest(),
                "signature, first digits": b64decode(one.signature, validate=True).hex()[:32],
            }
            rows.append(row)
        unsigned = "This report has no signature. Sign it with the key in a folder: --sign FOLDER."
        text = (_HOW_TO_CHECK if rows else unsigned,)
        signer = self.document.signer
        lacks_own = bool(signer) and bool(rows) and signer not in {one.name for one in self.signatures}
        warnings = (f"{signer}, whose report this is, has not signed it: others could have changed it.",) * lacks_own
        table = grid(rows, tuple(rows[0]) if rows else ())
        hint = "who signed when, certificates and digest" if self.document.verdict else ""
        last = Section("Signatures", text, (), table, (f"SHA-256 {digest}",), hint)
        report_of = (("report of", signer),) if signer else ()
        facts = (("number", number), *report_of, *self.document.facts)
        document = replace(self.document, number=number, facts=facts, sections=(*self.document.sections, last))
        tiles = document.tiles
        if document.verdict and len(tiles) < MAX_TILES:
            by = "" if signer else " --by NAME"
            check = f"check it and who issued the certificates: `fedweave compliance FILE.json --authority FOLDER{by}`"
            names = ", ".join(row["who"] for row in rows)
            notes = (f"SHA-256 {digest[:12]}…", check if rows else "others could change it: sign with `--sign FOLDER`")
            tiles = (*tiles, Tile("Signed by", names or "nobody", notes))
        return replace(document, tiles=tiles, warnings=(*document.warnings, *warnings))


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON. The file may replace only an earlier report, also of an earlier version of fedweave.

    Raises:
        UserError: the file exists and is not a report.
    """
    if path.exists():
        _parse(path)  # which refuses all else
    text = json.dumps(asdict(report), indent=1)
    write(path, lambda file: file.write(text.encode() + b"\n"))


def check_replaced(path: Path, report: Report) -> None:
    """Refuse to replace the report in `path`, if there is one, by a `report` that lacks one of its signers.

    Raises:
        UserError: a signature would be lost, or the file is not a report.
    """
    signers = {one.name for one in report.signatures}
    lost = sorted({one.name for one in _parse(path).signatures} - signers) if path.exists() else []
    if lost:
        raise UserError(
            f"{path} is a report with the signature of {listed(lost)}, which the new one lacks. Write to another file "
            "with --out, or replace it with --overwrite.",
            code="report.signed",
        )


def read_report(path: Path, authority: Path | None = None, by: str = "") -> Report:
    """Read a report and check its signatures.

    authority: a folder with the certificate of the authority that must have issued the signers' certificates
    (rootCA.pem), and with its list of revoked ones if there is one (revoked.pem). With it, the report's own signer
    (`Document.signer`) has to have signed it, and so has `by`; a report that names no signer needs `by`.

    Raises:
        UserError: the file is not a report, or one of an earlier version; a signature does not fit the report, or its
            certificate is not from that authority; or an `authority` is given and a signature is missing.
    """
    from fedweave.sites.protocols.identity import read_root

    report = _parse(path)
    if report.kind != KIND:
        raise UserError(
            f"{path} was written by an earlier version of fedweave, which signed other contents, so that its "
            "signatures cannot be checked. Ask for it to be written and signed again.",
            code="report.earlier",
        )
    root = None if authority is None else read_root(authority)
    required = sorted({report.document.signer, by} - {""})
    signers = {one.name for one in report.signatures}
    missing = [name for name in required if name not in signers]
    if root is not None and not required:
        raise UserError(
            f"{path} names no site whose report it is, so that any member of {authority} could have written it. Give "
            "--by NAME: the member who has to have signed it.",
            code="report.no-signer",
        )
    if root is not None and missing:
        raise UserError(
            f"{path} has no signature of {listed(missing)}, so that others could have changed it. Ask for the "
            "report that was signed there.",
            code="report.unsigned",
        )
    for one in report.signatures:
        _check(one, report.document, root)
    return report


def _parse(path: Path) -> Report:
    try:
        report: Report = TypeAdapter(Report).validate_json(read(path))
        if report.kind not in (KIND, *_EARLIER):
            raise ValueError("it says to be of another kind")
    except (ValidationError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a report that `fedweave compliance` wrote ({type(error).__name__}).") from error
    return report


def _check(one: Signature, document: Document, trusted: "Identity | Authority | None") -> None:
    """Raise an error unless the signature fits the document, and its certificate was valid then and is one that
    `trusted` accepts; None accepts those of every issuer."""
    from fedweave.sites.protocols.identity import CHANGED, Identity, check_signed

    try:
        signature, certificate, at = (
            b64decode(one.signature, validate=True),
            b64decode(one.certificate, validate=True),
            datetime.fromisoformat(one.at),
        )
        arguments = one.name, certificate, signature, _message_to_sign(document, one.name, one.at)
        if isinstance(trusted, Identity):
            trusted.check(*arguments, at)
        else:
            check_signed(*arguments, trusted, at)
    except (CallRefused, ValueError) as error:  # ValueError: not base64 or not a time, which no signer writes
        changed = not isinstance(error, CallRefused) or error.code == CHANGED
        why = f": the report was changed after {one.name} had signed it" if changed else ""
        raise UserError(f"{error}{why}; ask for it again.") from error


def _message_to_sign(document: Document, name: str, at: str) -> bytes:
    return json.dumps([KIND, document.digest, name, at]).encode()


BEYOND = "beyond a cap of its present policy"
MAX_REASONS = 2  # of refusals, in a tile
MAX_RUNS = 3  # that a line of a tile names
_ALWAYS = ("epsilon", "bytes", "min_nodes", "min_sites")  # rules that the report shows even with default values


def of_site(folder: Path, run: str = "") -> Document:
    """The report of the site in `folder`, on all its runs or on one `run`.

    Raises:
        UserError: the site took part in no run, or not in this one (see `audit.audit`).
    """
    summary = audit(folder)
    about = read_about(folder / SITE_FILE) if (folder / SITE_FILE).exists() else About()
    runs = [one for one in summary.runs if not run or one.name == run]
    if not runs:
        raise UserError(
            f"{folder} took no part in a run {run!r}; it did in {listed([one.name for one in summary.runs])}."
        )
    ledger = runs[0].ledger if run else summary.ledger
    kinds, name = flows(ledger), folder.resolve().name
    notes = list(chain.from_iterable(one.joined for one in runs))
    begun = [one for one in runs if one.joined or one.flows]
    refusals = [note for one in runs for note in one.refused]
    times = [str(note["at"]) for note in (*notes, *refusals)]
    sites = chain.from_iterable(note.get("sites", ()) for note in notes)
    peers = sorted({str(site) for site in sites} - {name})
    legal_names = {who: about.parties[who] for who in (*peers, SERVER) if who in about.parties}
    size = upload_size(kinds)
    readers = set[str]()
    for kind in kinds:
        if kind.direction != "down":  # to the server or to peers
            readers |= {*kind.receivers}
    names = [legal_names.get(who, f"the {who}" if who == SERVER else who) for who in sorted(readers)]
    rows = list[dict[str, str]]()
    for one in runs:
        for note in one.joined:
            row = {
                "when (UTC)": str(note["at"])[:16].replace("T", " "),
                "run": one.name,
                "what": f"{job(note)}, {note.get('algorithm')}",
                "asked by": str(note.get("requester") or "not stated"),
                "purpose": str(note.get("purpose") or "not stated"),
                "configuration": str(note.get("pin"))[:12],
                "software": f"fedweave {note.get('fedweave')}, torch {note.get('torch')}",
            }
            rows.append(row)
    text = (
        "The configuration is named by the first digits of its SHA-256, software by its version and its files' digest."
    )
    hint = f"{counted(len(rows), 'job')}: who asked, what for, and by which software"
    asked = Section("What was asked", (text,), grid=grid(rows, tuple(rows[0]) if rows else ()), hint=hint)
    changed = [{"when (UTC)": at[:16].replace("T", " "), "what": change} for at, change in changes(runs)]
    unchanged = () if changed else ("The journals note no change of the policy.",)
    refused = tuple(chain.from_iterable(map(refusal_lines, runs)))
    facts = _facts(name, about, legal_names, peers, notes, period(ledger, times), run)

    # What comes first: the verdict, tiles, and warnings on what the journals lack.
    owner = about.legal_name or f"site {name}"
    privacy, clause = privacy_tile(kinds, chain.from_iterable(of_members(ledger).values()))
    changes_by_run = _other_policies(runs, summary.rules)
    policy, within = _policy_tile(summary, changes_by_run)
    verdict = f"Nothing has left {owner}."
    if size:
        where = f"in {sum(bool(one.flows) for one in runs):,} of {counted(len(begun), 'run')}"
        verdict = f"{size} left {owner} {where}, to {listed(names)} and to no one else, {within} and {clause}."
    if refusals:
        verdict += f" {counted(len(refusals), 'request')} {'was' if len(refusals) == 1 else 'were'} refused."
    reasons = Counter(map(_reason, refusals))
    shown = tuple(f"{times:,} by {reason}" for reason, times in reasons.most_common(MAX_REASONS))
    damaged = sum(one.damaged for one in runs)
    warnings = [f"{capitalized(summary.lost)}."] if summary.lost else []
    if damaged:
        warnings.append(f"{counted(damaged, 'damaged line')} in the journals: no number here counts their messages.")
    return Document(
        title=f"What left {about.legal_name or name}",
        facts=tuple(facts.items()),
        warnings=tuple(warnings),
        sections=(
            left_section(kinds, len(peers) + 1, legal_names),
            messages_section(kinds, len(peers) + 1, legal_names),
            asked,
            _spent(summary),
            _policy(summary.rules, changes_by_run),
            Section(
                "Changes of the policy",
                unchanged,
                grid=grid(changed, ("when (UTC)", "what")),
                hint=counted(len(changed), "change") if changed else "none",
            ),
            Section(
                "What was refused",
                () if refused else ("Nothing was refused.",),
                refused,
                hint=f"{counted(len(refusals), 'request')}, with the rule that refused it" if refusals else "nothing",
            ),
        ),
        foot=f"The site's own journals, written before anything is sent, show no other message. {FOOT}",
        signer=certificate_name(folder) or name,
        subtitle=" · ".join((facts["run"], facts["period"], f"asked by {facts['asked by'].partition('; ')[0]}")),
        verdict=verdict,
        sign=-1 if within == BEYOND else 0,
        tiles=(
            size_tile("Left the site", kinds),
            privacy,
            policy,
            Tile("Refused", f"{len(refusals):,}" if refusals else "nothing", shown),
        ),
    )


def _reason(refusal: Record) -> str:
    """The rule of the policy that refused a request; of other errors only that there was one."""
    rule = re.match(r"policy\.\w+", str(refusal.get("why")))
    return rule[0] if rule else "other checks"


def certificate_name(folder: Path) -> str:
    """The name in the certificate of the site in `folder`; "" without a certificate."""
    from fedweave.sites.protocols.identity import read_identity

    return read_identity(folder).name if (folder / "startup").is_dir() else ""


def _facts(
    name: str, about: About, legal_names: Record, peers: list[str], notes: list[Record], period: str, run: str
) -> dict[str, str]:
    """The site and its owner, the runs, the period, and who asked for which purpose."""
    stated = dict[str, str]()
    for key in ("requester", "purpose", "submitter"):
        stated[key] = listed(sorted({str(note[key]) for note in notes if note.get(key)}))
    by = [stated["requester"] or "not stated"]
    if stated["submitter"]:
        by.append(f"as the server says, with the certificate of {stated['submitter']}")
    owner = f"{about.legal_name} (site {name})" if about.legal_name else f"site {name}; its site.toml has no legal_name"
    parties = [f"{legal_names[SERVER]} (the server)"] if SERVER in legal_names else []
    parties += [f"{legal_names[one]} (site {one})" if one in legal_names else one for one in peers]
    return {
        "of": owner,
        **({"contact": about.contact} if about.contact else {}),
        "run": run or "all runs of the site",
        "period": period,
        "asked by": "; ".join(by),
        "purpose": stated["purpose"] or "not stated",
        "other parties": listed(parties) or "not noted",
    }


def _amounts(summary: Audit) -> list[tuple[str, float, float | None]]:
    """(what, spent, allowed) by all runs together; None where the policy has no cap."""
    rules, spent = summary.rules, summary.spent
    amounts: list[tuple[str, float, float | None]] = [
        (f"ε at δ = {rules.delta:g}", spent.epsilon(rules.delta), rules.epsilon),
        ("bytes", spent.bytes, rules.bytes),
        ("evaluations whose scores left", spent.evaluations, rules.evaluations),
    ]
    return amounts + [(f"replies of {step}", replies_of(spent, step), limit) for step, limit in rules.calls.items()]


def _amount_text(what: str, amount: float) -> str:
    return f"{amount:.4g}" if what.startswith("ε") else f"{amount:,}"


def _other_policies(runs: Iterable[SiteRun], rules: Rules) -> dict[str, list[RuleChange]]:
    """{run: the rules in which the policy of its jobs differs from the present `rules`}, of runs with another one."""
    changes_by_run = defaultdict[str, dict[RuleChange, None]](dict)
    for run in runs:
        for note in run.joined:
            of_job = rules_of(note)
            for change in [] if of_job is None else rule_changes(of_job, rules):
                changes_by_run[run.name][change] = None
    return {run: [*differing] for run, differing in changes_by_run.items()}


def _other_policies_text(changes_by_run: Mapping[str, Sequence[RuleChange]]) -> tuple[str, ...]:
    """Lines on the runs whose policy was another one, a line for each set of differing rules."""
    runs_by_rules = defaultdict[str, list[str]](list)
    for run, differing in changes_by_run.items():
        runs_by_rules[", ".join(dict.fromkeys(change.name for change in differing))].append(run)
    lines = list[str]()
    for names, runs in runs_by_rules.items():
        more = f" and {len(runs) - MAX_RUNS:,} more" if len(runs) > MAX_RUNS else ""
        lines.append(f"the policy of {', '.join(runs[:MAX_RUNS])}{more} was another one: {names}")
    return tuple(lines)


def _policy_tile(summary: Audit, changes_by_run: Mapping[str, Sequence[RuleChange]]) -> tuple[Tile, str]:
    """Whether what left is within the caps of the policy: a tile, and a part of a sentence. changes_by_run: runs whose
    policy was another one (`_other_policies`)."""
    notes, uncapped, beyond = list[str](), list[str](), False
    for what, amount, limit in _amounts(summary):
        if limit is None:
            uncapped.append(what.partition(" ")[0])
        else:
            beyond = beyond or amount > limit
            notes.append(f"{_amount_text(what, amount)} of {_amount_text(what, limit)} {what}")
    if uncapped:
        notes.append(f"no cap on {listed(uncapped)}")
    if beyond:
        notes.append("a cap was set, or lowered, after more had left")
    title, within = "Within the policy", "within its policy"
    if changes_by_run:
        title = "Within the present caps"
        within = "within the caps of its present policy, which was not that of every run"
    tile = Tile(title, "no" if beyond else "yes", (*_other_policies_text(changes_by_run), *notes))
    return tile, BEYOND if beyond else within


def _spent(summary: Audit) -> Section:
    """What all runs together have spent, and what the policy still allows."""
    rules, cost = summary.rules, summary.spent.account.cost
    rows = list[dict[str, str]]()
    for what, amount, limit in _amounts(summary):
        row = {"what": what, "spent": _amount_text(what, amount), "allowed": "no cap", "left": "no cap"}
        if limit is not None:
            row |= {"allowed": _amount_text(what, limit), "left": _amount_text(what, max(0, limit - amount))}
        rows.append(row)
    if cost.unbounded and not summary.spent.epsilon(rules.delta):
        rows[0]["spent"] = "none holds"  # nothing that left had noise
    text = "Over all runs of the site, as its policy counts."
    if cost.unbounded:
        # The end of the sentence: what the cap on ε does not cover.
        exempt = free(summary) if rules.epsilon is not None else ""
        text += f" The ε covers what left with noise; nothing limits what the rest reveals{exempt}."
    return Section(
        "What it cost, and what is left", (text,), grid=grid(rows, ("what",)), hint="ε, bytes and replies of each cap"
    )


def _policy(rules: Rules, changes_by_run: Mapping[str, Sequence[RuleChange]]) -> Section:
    """The rules in force. changes_by_run: runs whose policy was another one (`_other_policies`)."""
    values, texts = {name: vars(rules)[name] for name in _ALWAYS} | rules.plain(), meanings(Rules.__mro__)
    rows = list[dict[str, str]]()
    for name, value in values.items():
        meaning = re.sub(r" \(?`[^`]*`\)?", "", texts[name])  # without the names in "(`policy.deny`)"
        rows.append({"rule": name, "value": value_text(value), "what it means": meaning})
    digest = sha256(json.dumps(rules.plain(), sort_keys=True).encode()).hexdigest()
    text = f"Enforced by the site itself before anything is sent. SHA-256 of what is set: {digest}."
    hint = f"{counted(len(rows), 'rule')}, with their meaning"
    warnings = tuple(
        f"At a job of run {run} the policy was another one; since then: {'; '.join(map(str, differing))}."
        for run, differing in changes_by_run.items()
    )
    return Section("Policy in force", (text,), warnings, grid=grid(rows, ("rule", "value", "what it means")), hint=hint)
