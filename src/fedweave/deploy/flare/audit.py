"""What a site's journals show to its owner, as data and as text: requests, what left, its privacy cost, refusals."""

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from fedweave.core.ledger import Ledger
from fedweave.core.plugins import files_in, label
from fedweave.core.text import counted
from fedweave.core.types import EVALUATION, FRAMING, SETUP, TRAINING, Record
from fedweave.deploy.flare.accounts import DATA, NO_RUN
from fedweave.deploy.flare.admission import changed
from fedweave.deploy.flare.chain import Head
from fedweave.deploy.flare.folder import SITE_FILE, About, read_about
from fedweave.deploy.flare.journal import Records, journal_path, journals, now, read_journal
from fedweave.deploy.flare.policy import Spent, covers, replies_of
from fedweave.deploy.flare.requests import pin, versions
from fedweave.deploy.flare.sitefile import Rules, read_site_file
from fedweave.errors import CallRefused, ConfigError, UserError, listed
from fedweave.experiment.config import Document as ConfigDocument
from fedweave.experiment.runs.files import read, write
from fedweave.reports.compliance import FOOT, moved, sent
from fedweave.reports.document import Document, Section, grid
from fedweave.reports.ledger import SERVER, Flow, called, flows, period
from fedweave.reports.listing import meanings

if TYPE_CHECKING:
    from fedweave.privacy.identity import Authority, Identity


@dataclass(frozen=True)
class SiteRun:
    """The content of a site's journal of one run. joined, lists, aligned, policy, refused, cut, data: its notes by
    kind (`journal.Journal.note`). ledger: what left (`ledger_columns.SCHEMA`). damaged: number of unreadable lines."""

    name: str
    joined: tuple[Record, ...]
    lists: tuple[Record, ...]
    aligned: tuple[Record, ...]
    policy: tuple[Record, ...]
    refused: tuple[Record, ...]
    cut: tuple[Record, ...]
    ledger: pa.Table
    damaged: int
    data: tuple[Record, ...] = ()

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What left, one entry for each kind of message."""
        return tuple(flows(self.ledger))

    @property
    def heading(self) -> str:
        """The run's name, its algorithm, and when the run began."""
        first = self.joined[0] if self.joined else {}
        since = str(first.get("at", ""))[:16].replace("T", " ")
        parts = (self.name, label(str(first.get("algorithm", ""))), f"since {since} UTC" if since else "")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Audit:
    """All runs of a site, and the total of what has left it, also as a ledger (`ledger_columns.SCHEMA`).

    rules: the site's present policy, whose δ is used for all costs. lost: a sentence on missing accounts, "" if none is
    missing.
    """

    runs: tuple[SiteRun, ...]
    spent: Spent
    rules: Rules
    ledger: pa.Table
    lost: str = ""


def audit(folder: Path) -> Audit:
    """The content of all journals of the site in `folder`.

    Raises:
        UserError: there are no journals, or site.toml is not valid. FedweaveError: a later version of fedweave wrote
            one.
    """
    by_run = {path.stem: read_journal(path) for path in journals(folder)}
    if not by_run:
        with suppress(FileNotFoundError):
            folder.stat()  # raises what a search for files hides: a name that is too long, a closed folder
        raise UserError(f"{folder} holds no journal: give the folder of a site that has taken part in a run.")
    spent = Spent.of(entry for records in by_run.values() for entry in records.entries)
    rules = read_site_file(folder / SITE_FILE)[1] if (folder / SITE_FILE).exists() else Rules()
    runs = [_run(name, records) for name, records in by_run.items()]
    runs.sort(key=lambda run: str(run.joined[0].get("at")) if run.joined else "")
    numbers = {link.head.number for records in by_run.values() for link in records.links}
    return Audit(tuple(runs), spent, rules, _table(by_run.values()), _lost(rules, runs, numbers))


def _lost(rules: Rules, runs: list[SiteRun], numbers: set[int]) -> str:
    """A sentence on the unknown part of the accounts, if the owner has accepted that entries are gone; else "".

    numbers: the numbers of the entries that the journals still have.
    """
    if not rules.lost:
        return ""
    last = max(Head.read(text).number for text in rules.lost)
    count = max(1, len({*range(1, last + 1)} - numbers))
    gone = f"{count:,} entries" if count > 1 else "1 entry"
    times = sorted(str(note["at"]) for run in runs for note in run.joined if (known := _rules(note)) and known.lost)
    when = f"the owner accepted it by {times[0][:16].replace('T', ' ')} UTC" if times else "no run has begun since"
    return (
        f"accounts were lost: {gone} up to number {last} are gone from the journals (policy.lost; {when}). How "
        "many bytes, what ε and how many replies they counted is unknown, and none of it is in the numbers here: every "
        "cap holds only for what is counted"
    )


def _run(name: str, records: Records) -> SiteRun:
    def notes(kind: str) -> tuple[Record, ...]:
        return tuple(note for note in records.notes if note["note"] == kind)

    title = "outside of any run" if name == NO_RUN else name
    groups = (notes("joined"), notes("lists"), notes("aligned"), notes("policy"), notes("refused"), notes("cut"))
    return SiteRun(title, *groups, _table([records]), len(records.damaged), notes(DATA))


def _table(records: Iterable[Records]) -> pa.Table:
    ledger = Ledger()
    for one in records:
        for entry in one.entries:
            ledger.add(entry)
    return ledger.table()


def compare(folder: Path, run: str, ledger: pa.Table) -> tuple[list[str], list[str]]:
    """Compare a run's `ledger` with the journal of the site in `folder`: the site's messages of set-up, training and
    evaluation that only the ledger has, and the messages that only the journal has. If the two describe or protect a
    message differently, both lists have it.

    run: the run's number. ledger: `ledger_columns.SCHEMA`, from the user who started the run.

    Raises:
        UserError: the site has no journal of the run, or the ledger covers only another member.
    """
    path = journal_path(folder, run)
    if not path.exists():
        raise UserError(f"{folder} has taken no part in the run {run}: there is no {path}.")
    journal = _table([read_journal(path)])
    names = {*journal["client"].to_pylist()} or {folder.resolve().name}  # the site sent nothing, or lost its journal
    clients = {*ledger["client"].to_pylist()}
    if len(clients) == 1 and not clients & names:
        raise UserError(f"that ledger covers only {clients.pop()}: it is another member's copy. Ask for your own.")
    in_journal, in_ledger = (Counter(map(_message, _in_rounds(table, names))) for table in (journal, ledger))
    return sorted(map(_worded, in_ledger - in_journal)), sorted(map(_worded, in_journal - in_ledger))


def joined_with(folder: Path, run: str, document: ConfigDocument, sites: list[str]) -> bool | None:
    """Whether `document` is the configuration with which the site in `folder` joined the run of these `sites`. None if
    that is unknown: the site joined with plug-ins, or before journals had fingerprints.

    The fingerprint leaves out settings that a run may change, such as its rounds (`requests.pin`).
    """
    joined = next((note for note in read_journal(journal_path(folder, run)).notes if note["note"] == "joined"), {})
    if any(files_in(document)) or not {"pin", *versions({})} <= joined.keys():
        return None
    releases = {name: str(joined[name]) for name in versions({})}
    releases["fedweave"] = str(joined.get("server_release", releases["fedweave"]))
    return bool(joined["pin"] == pin(document, sites, releases))


def _in_rounds(ledger: pa.Table, names: set[str]) -> list[Record]:
    """The rows of these clients' messages in steps of the algorithm. Other requests, such as "(join)", are left out,
    because journals count them differently."""
    rows = ledger.filter(pc.field("direction") != "down").to_pylist()
    client_rows = [row for row in rows if row["client"] in names and not row["step"].startswith("(")]
    return [row for row in client_rows if row["purpose"] in (SETUP, TRAINING, EVALUATION)]


def _message(row: Record) -> tuple[object, ...]:
    words = row["mechanism"], row["reveals"]
    return row["round"], row["step"], row["key"], row["shape"], row["bytes"], row["to"], *words


def _worded(message: tuple[object, ...]) -> str:
    round, step, key, _, size, to, mechanism, reveals = message
    details = f" ({reveals}; protection: {mechanism})" if reveals else ""
    return f"round {round}: {step}: {key}, {size:,} bytes{f' to {to}' if to else ''}{details}"


def describe_requests(run: SiteRun) -> list[str]:
    """Lines for the requests of a run, and who asked for them."""
    lines = []
    for note in run.joined:
        where = "from the start" if note.get("after") == -1 else f"from round {note.get('after')}"
        versions = f"fedweave {note.get('fedweave')}, torch {note.get('torch')}"
        config = f"configuration {str(note.get('pin'))[:12]}"
        what = f"the server began {job(note)}, {where}: {note.get('algorithm')}, {config}, {versions}"
        lines.append(f"{note['at']}  {what}; {by_whom(note)}, {what_for(note)}")
    for note in run.data:
        if note["left_out"]:
            left_out = counted(len(note["left_out"]), "example")
            lines.append(f"{note['at']}  the site left {left_out} of its data out (data.forget)")
    for note in run.lists:
        counts = ", ".join(f"{site} {count}" for site, count in dict(note.get("counts") or {}).items())
        lines.append(f"{note['at']}  ids on the lists that were compared: {counts}")
    for note in run.aligned:
        nodes = f"{note.get('common')} of the site's {note.get('own')} nodes"
        lines.append(f"{note['at']}  the server named {nodes} as common to all")
    return [*lines, *(f"{at}  the owner changed the policy: {text}" for at, text in changes([run]))]


def job(note: Record) -> str:
    """The kind of job that a site joined."""
    return "prediction" if note.get("predict") else "training"


def by_whom(note: Record) -> str:
    """Who asked for a job by the request, and by the server whose certificate submitted it."""
    named, submitter = (str(note.get(key) or "") for key in ("requester", "submitter"))
    text = f"asked by {named}" if named else "the request does not say who asked"
    return f"{text} (submitted, as the server says, with the certificate of {submitter})" if submitter else text


def what_for(note: Record) -> str:
    """The purpose of a job in its request."""
    return f"for: {note['purpose']}" if note.get("purpose") else "with no purpose stated"


def changes(runs: Iterable[SiteRun]) -> list[tuple[str, str]]:
    """(time, text) for every change of the policy, in the order of time: during a job, and from one job to the next."""
    entries, before = list[tuple[str, str]](), None
    for run in runs:
        for note in run.policy:
            of = {what: ", ".join(map(str, note.get(what) or ())) for what in ("tightened", "loosened")}
            ends = {"tightened": "tightened", "loosened": "loosened, which holds from the next job on"}
            text = "; ".join(f"{of[what]} {ends[what]}" for what in ends if of[what])
            entries.append((str(note["at"]), text or "to the same rules"))
    for at, after in sorted(
        ((str(one["at"]), _rules(one)) for run in runs for one in run.joined), key=lambda it: it[0]
    ):
        if before is not None and after is not None and (odd := changed(before, after)) != ([], []):
            ways = zip(odd, ("tightened", "loosened"), strict=True)
            text = "; ".join(f"{', '.join(of)} {way}" for of, way in ways if of)
            entries.append((at, f"{text} since the job before"))
        before = after or before
    return sorted(entries)


def _rules(note: Record) -> Rules | None:
    """The rules under which a job began; None if an earlier version, which did not note them, wrote the journal."""
    with suppress(KeyError, ConfigError):
        return Rules.read(note["policy"])
    return None


def refused(run: SiteRun) -> list[str]:
    """Lines for the refusals and the damage in a run."""
    lines = [f"{note['at']}  refused {note.get('asked')}: {note.get('why')}" for note in run.refused]
    if run.cut:
        cut, values = (sum(note[key] for note in run.cut) for key in ("cut", "values"))
        first = min(note["round"] for note in run.cut)
        lines.append(
            f"{cut:,} of {values:,} values were cut to the bound of {counted(len(run.cut), 'secure sum')}, the first "
            f"in round {first}: the sums had less than what was computed here"
        )
    if run.damaged:
        lines.append(f"{counted(run.damaged, 'damaged line')}: no account counts the messages in them")
    return lines


def in_all(summary: Audit) -> str:
    """A sentence on what has left over all runs, and its ε."""
    cost, without = summary.spent.account.cost, "left without noise, and nothing limits what it reveals"
    text = f"all runs: {summary.spent.bytes:,} bytes have left"
    if cost.unbounded and not (cost.epsilon or cost.squared_mu):
        return f"{text}; no ε follows: it {without}"
    bounded = f"{summary.spent.epsilon(summary.rules.delta):.4g}"
    if cost.unbounded:
        return f"{text}; of what had noise ε is {bounded} at δ = {summary.rules.delta:g}; the rest {without}"
    return f"{text}; their ε is {bounded} at δ = {summary.rules.delta:g}"


def caps(summary: Audit) -> list[str]:
    """Lines on lost accounts, and on how much of each cap of the policy is spent."""
    rules, spent, lines = summary.rules, summary.spent, [summary.lost] if summary.lost else []
    if rules.epsilon is not None:
        now = f"{spent.epsilon(rules.delta):.4g} is spent at δ = {rules.delta:g}"
        lines.append(f"of policy.epsilon = {rules.epsilon:g}, {now}{free(summary)}")
    if rules.bytes is not None:
        lines.append(f"of policy.bytes = {rules.bytes:,}, {spent.bytes:,} are spent")
    return lines


def free(summary: Audit) -> str:
    """The end of a sentence on the fields that the cap on ε does not cover: fields that may leave without a bound, and
    fields that have left without one but may not do so now. Most of the second kind left before there was a cap."""
    sent = [one for run in summary.runs for one in run.flows if one.direction != "down" and one.key != FRAMING]
    bare = [one for one in sent if one.account.cost.unbounded]
    loose = sorted({called(one) for one in bare if not any(covers(key, one.key) for key in summary.rules.unbounded)})
    exempt = [*summary.rules.unbounded, *([f"what has left without a bound: {', '.join(loose)}"] if loose else [])]
    return f"; it does not hold for {', '.join(exempt)}" if exempt else ""


# ----------------------------------------------------------------------------------------------------
# A site's compliance report, for the person who is responsible for its data: what left, for whom, for which purpose and
# under which rules. Sites, the server and administrators sign such reports with the keys of their certificates. The
# signatures are kept as JSON.


KIND = "fedweave compliance report"
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

    def signed(self, folder: Path) -> "Report":
        """A copy of the report with a signature by the key in a `folder` of a project. It replaces an earlier signature
        of the same signer.

        Raises:
            ConfigError: the folder has no certificate and key.
        """
        from fedweave.privacy.identity import read_identity

        identity, at = read_identity(folder), now()
        name = identity.name
        signature = identity.sign(_signed_message(self.document, name, at))
        entry = Signature(name, _text(identity.certificate), at, _text(signature))
        for other in self.signatures:
            _check(other, self.document, identity)
        return replace(self, signatures=(*(one for one in self.signatures if one.name != name), entry))

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
        unsigned = "This report has no signature. Sign it with the key in a folder: --sign FOLDER."
        text = (_HOW_TO_CHECK if rows else unsigned,)
        signer = self.document.signer
        unknown = bool(signer) and bool(rows) and signer not in {one.name for one in self.signatures}
        warnings = (f"{signer}, whose report this is, has not signed it: others could have changed it.",) * unknown
        table = grid(rows, tuple(rows[0]) if rows else ())
        last = Section("Signatures", text, warnings, table, (f"SHA-256 {digest}",))
        signed_by = (("report of", signer),) if signer else ()
        facts = (("number", number), *signed_by, *self.document.facts)
        return replace(self.document, number=number, facts=facts, sections=(*self.document.sections, last))


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON. The file may replace only an earlier report.

    Raises:
        UserError: the file exists and is no report.
    """
    if path.exists():
        _unchecked(path)
    text = json.dumps(asdict(report), indent=1)
    write(path, lambda file: file.write(text.encode() + b"\n"))


def read_report(path: Path, authority: Path | None = None, by: str = "") -> Report:
    """Read a report and check its signatures.

    authority: a folder with the certificate of the authority that must have issued the signers' certificates
    (rootCA.pem), and with its list of revoked ones if there is one (revoked.pem). With it, the report's own signer
    (`Document.signer`) has to have signed it, and so has `by`; a report that names no signer needs `by`.

    Raises:
        UserError: the file is no report; a signature does not fit the report, or its certificate is not from that
            authority; or an `authority` is given and a signature is missing.
    """
    from fedweave.privacy.identity import read_root

    report, root = _unchecked(path), None if authority is None else read_root(authority)
    required = sorted({report.document.signer, by} - {""})
    missing = [name for name in required if name not in {one.name for one in report.signatures}]
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


def _unchecked(path: Path) -> Report:
    try:
        report: Report = TypeAdapter(Report).validate_json(read(path))
        if report.kind != KIND:
            raise ValueError("it says to be of another kind")
    except (ValidationError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no report that `fedweave compliance` wrote ({type(error).__name__}).") from error
    return report


def _check(one: Signature, document: Document, by: "Identity | Authority | None") -> None:
    """Raise an error unless the signature fits the document and its certificate was valid when it was made."""
    from fedweave.privacy.identity import CHANGED, Identity, check_signed

    try:
        signature, certificate, at = _bytes(one.signature), _bytes(one.certificate), datetime.fromisoformat(one.at)
        arguments = one.name, certificate, signature, _signed_message(document, one.name, one.at)
        by.check(*arguments, at) if isinstance(by, Identity) else check_signed(*arguments, by, at)
    except (CallRefused, ValueError) as error:
        changed = not isinstance(error, CallRefused) or error.code == CHANGED
        why = f": the report was changed after {one.name} had signed it" if changed else ""
        raise UserError(f"{error}{why}; ask for it again.") from error


def _signed_message(document: Document, name: str, at: str) -> bytes:
    return json.dumps([KIND, document.digest, name, at]).encode()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_ALWAYS = ("epsilon", "bytes", "min_nodes", "min_sites")  # rules that the report shows even with default values
_STATED = ("requester", "purpose", "submitter")


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
            f"{listed([called.get(who, f'the {who}' if who == SERVER else who) for who in readers])}, and to no one "
            "else: the site's own journals, written before anything is sent, show no other message."
            if size
            else "Nothing has left the site.",
        ),
        sections=(
            sent(kinds, len(others) + 1, called),
            _requests(runs),
            _spent(summary),
            _policy(summary.rules),
            _changes(runs),
            _refused(runs),
        ),
        foot=FOOT,
        signer=certified_name(folder) or name,
    )


def certified_name(folder: Path) -> str:
    """The name in the certificate of the site in `folder`; "" without a certificate."""
    from fedweave.privacy.identity import read_identity

    return read_identity(folder).name if (folder / "startup").is_dir() else ""


def _facts(
    name: str, about: About, called: Record, others: list[str], notes: list[Record], period: str, run: str
) -> dict[str, str]:
    """The site and its owner, the runs, the period, and who asked for which purpose."""
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


def _requests(runs: list[SiteRun]) -> Section:
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


def _spent(summary: Audit) -> Section:
    """What all runs together have spent, and what the policy still allows."""
    rules, spent, cost = summary.rules, summary.spent, summary.spent.account.cost
    epsilon, form = spent.epsilon(rules.delta), "{:.4g}".format
    rows = [_row(f"ε at δ = {rules.delta:g}", epsilon, rules.epsilon, form), _row("bytes", spent.bytes, rules.bytes)]
    rows.append(_row("evaluations whose scores left", spent.evaluations, rules.evaluations))
    rows += [_row(f"replies of {step}", replies_of(spent, step), most) for step, most in rules.calls.items()]
    if cost.unbounded and not epsilon:
        rows[0]["spent"] = "none holds"
    text = "Over all runs of the site, as its policy counts."
    if cost.unbounded:
        exempt = free(summary) if rules.epsilon is not None else ""
        text += f" The ε covers what left with noise; nothing limits what the rest reveals{exempt}."
    if summary.lost:
        text = f"{summary.lost[0].upper()}{summary.lost[1:]}. {text}"
    return Section("What it cost, and what is left", (text,), grid=grid(rows, ("what",)))


def _row(what: str, spent: float, most: float | None, form: Callable[[float], str] = "{:,}".format) -> dict[str, str]:
    left = "no cap" if most is None else form(max(0, most - spent))
    return {"what": what, "spent": form(spent), "allowed": "no cap" if most is None else form(most), "left": left}


def _policy(rules: Rules) -> Section:
    """The rules in force."""
    shown, meant = {name: vars(rules)[name] for name in _ALWAYS} | rules.plain(), meanings(Rules)
    rows = [
        {"rule": name, "value": _value(value), "what it means": re.sub(r" \(?`[^`]*`\)?", "", meant[name])}
        for name, value in shown.items()
    ]
    digest = sha256(json.dumps(rules.plain(), sort_keys=True).encode()).hexdigest()
    text = f"Enforced by the site itself before anything is sent. SHA-256 of what is set: {digest}."
    return Section("Policy in force", (text,), grid=grid(rows, ("rule", "value", "what it means")))


def _value(setting: object) -> str:
    if isinstance(setting, dict):
        return ", ".join(f"{key} = {value}" for key, value in setting.items())
    return (
        ", ".join(map(str, setting))
        if isinstance(setting, list | tuple)
        else "not set"
        if setting is None
        else f"{setting:,}"
    )


def _changes(runs: list[SiteRun]) -> Section:
    rows = [{"when (UTC)": at[:16].replace("T", " "), "what": change} for at, change in changes(runs)]
    text = () if rows else ("The journals note no change of the policy.",)
    return Section("Changes of the policy", text, grid=grid(rows, ("when (UTC)", "what")))


def _refused(runs: list[SiteRun]) -> Section:
    lines = tuple(line for run in runs for line in refused(run))
    return Section("What was refused", () if lines else ("Nothing was refused.",), lines)
