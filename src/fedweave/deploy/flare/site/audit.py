"""What a site's journals say to its owner, also in words: what was asked, what left, what it cost, what was refused."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.ledger import Ledger
from fedweave.core.plugins import files_in, label
from fedweave.core.purposes import EVALUATION, FRAMING, SETUP, TRAINING
from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.deploy.flare.policy.admission import changed
from fedweave.deploy.flare.policy.policy import Spent, covers
from fedweave.deploy.flare.site.accounts import NO_RUN
from fedweave.deploy.flare.site.sitefile import SITE_FILE, Rules, read_site_file
from fedweave.deploy.flare.wire.journal import Records, journal_path, journals, read
from fedweave.deploy.flare.wire.requests import pin, versions
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Document
from fedweave.report.flows import Flow, flows
from fedweave.report.ledger import called


@dataclass(frozen=True)
class Run:
    """What a site's journal says of one run. joined, lists, aligned, policy, refused, cut: its notes
    (`journal.Journal.note`). ledger: what left (`core.ledger.SCHEMA`). damaged: lines that cannot be read."""

    name: str
    joined: tuple[Record, ...]
    lists: tuple[Record, ...]
    aligned: tuple[Record, ...]
    policy: tuple[Record, ...]
    refused: tuple[Record, ...]
    cut: tuple[Record, ...]
    ledger: pa.Table
    damaged: int

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What left, a kind of messages each."""
        return tuple(flows(self.ledger))

    @property
    def heading(self) -> str:
        """Which run, of which algorithm, and since when."""
        first = self.joined[0] if self.joined else {}
        since = str(first.get("at", ""))[:16].replace("T", " ")
        told = (self.name, label(str(first.get("algorithm", ""))), f"since {since} UTC" if since else "")
        return ", ".join(filter(None, told))


@dataclass(frozen=True)
class Audit:
    """All runs of a site, and what has left it altogether, also as a ledger (`core.ledger.SCHEMA`). rules: the site's
    policy as it is now, at whose δ costs are stated."""

    runs: tuple[Run, ...]
    spent: Spent
    rules: Rules
    ledger: pa.Table


def audit(folder: Path) -> Audit:
    """What the journals of the site in `folder` hold.

    Raises:
        UserError: there are none, or its site.toml is not valid. FedweaveError: one is of a later version of fedweave.
    """
    found = {path.stem: read(path) for path in journals(folder)}
    if not found:
        with suppress(FileNotFoundError):
            folder.stat()  # says what a look for files does not: a name that is too long, a closed folder
        raise UserError(f"{folder} holds no journal: give the folder of a site that has taken part in a run.")
    spent = Spent.of(entry for records in found.values() for entry in records.entries)
    rules = read_site_file(folder / SITE_FILE)[1] if (folder / SITE_FILE).exists() else Rules()
    runs = [_run(name, records) for name, records in found.items()]
    runs.sort(key=lambda run: str(run.joined[0].get("at")) if run.joined else "")
    return Audit(tuple(runs), spent, rules, _table(found.values()))


def _run(name: str, records: Records) -> Run:
    def notes(kind: str) -> tuple[Record, ...]:
        return tuple(note for note in records.notes if note["note"] == kind)

    title = "outside of any run" if name == NO_RUN else name
    told = (notes("joined"), notes("lists"), notes("aligned"), notes("policy"), notes("refused"), notes("cut"))
    return Run(title, *told, _table([records]), len(records.damaged))


def _table(records: Iterable[Records]) -> pa.Table:
    ledger = Ledger()
    for one in records:
        for entry in one.entries:
            ledger.add(entry)
    return ledger.table()


def compare(folder: Path, run: str, ledger: pa.Table) -> tuple[list[str], list[str]]:
    """Messages of set-up, training and evaluation that the `ledger` of a run has of the site in `folder` and the site's
    journal has not, and those that only the journal has; one that either describes or protects otherwise is in both.

    run: the run's number. ledger: `core.ledger.SCHEMA`, as whoever started the run has it.

    Raises:
        UserError: the site has no journal of the run, or the ledger is of another member alone.
    """
    path = journal_path(folder, run)
    if not path.exists():
        raise UserError(f"{folder} has taken no part in the run {run}: there is no {path}.")
    own = _table([read(path)])
    names = {*own["client"].to_pylist()} or {folder.resolve().name}  # of a site that sent nothing, or lost its journal
    stated_of = {*ledger["client"].to_pylist()}
    if len(stated_of) == 1 and not stated_of & names:
        raise UserError(f"that ledger is of {stated_of.pop()} alone: it is another member's copy. Ask for your own.")
    sent, stated = (Counter(map(_message, _in_rounds(table, names))) for table in (own, ledger))
    return sorted(map(_worded, stated - sent)), sorted(map(_worded, sent - stated))


def joined_with(folder: Path, run: str, document: Document, sites: list[str]) -> bool | None:
    """Whether `document` is the configuration with which the site in `folder` joined the run of these `sites`; None if
    the site cannot tell: it joined with plug-ins, or before journals had fingerprints.

    What a run may change, such as its rounds, is in no fingerprint (`requests.pin`).
    """
    joined = next((note for note in read(journal_path(folder, run)).notes if note["note"] == "joined"), {})
    if any(files_in(document)) or not {"pin", *versions({})} <= joined.keys():
        return None
    releases = {name: str(joined[name]) for name in versions({})}
    return bool(joined["pin"] == pin(document, sites, releases))


def _in_rounds(ledger: pa.Table, names: set[str]) -> list[Record]:
    """What left these clients in steps of the algorithm; journals count jobs' other calls, such as "(join)", in ways of
    their own."""
    rows = ledger.filter(pc.field("direction") != "down").to_pylist()
    asked = [row for row in rows if row["client"] in names and not row["step"].startswith("(")]
    return [row for row in asked if row["purpose"] in (SETUP, TRAINING, EVALUATION)]


def _message(row: Record) -> tuple[object, ...]:
    words = row["mechanism"], row["reveals"]
    return row["round"], row["step"], row["key"], row["shape"], row["bytes"], row["to"], *words


def _worded(message: tuple[object, ...]) -> str:
    round, step, key, _, size, to, mechanism, reveals = message
    told = f" ({reveals}; protection: {mechanism})" if reveals else ""
    return f"round {round}: {step}: {key}, {size:,} bytes{f' to {to}' if to else ''}{told}"


def asked(run: Run) -> list[str]:
    """What was asked in a run, and by whom."""
    told = []
    for note in run.joined:
        where = "from the start" if note.get("after") == -1 else f"from round {note.get('after')}"
        versions = f"fedweave {note.get('fedweave')}, torch {note.get('torch')}"
        config = f"configuration {str(note.get('pin'))[:12]}"
        what = f"the server began {job(note)}, {where}: {note.get('algorithm')}, {config}, {versions}"
        told.append(f"{note['at']}  {what}; {by_whom(note)}, {what_for(note)}")
    for note in run.lists:
        counts = ", ".join(f"{site} {count}" for site, count in dict(note.get("counts") or {}).items())
        told.append(f"{note['at']}  ids on the lists that were compared: {counts}")
    for note in run.aligned:
        kept = f"{note.get('common')} of the site's {note.get('own')} nodes"
        told.append(f"{note['at']}  the server named {kept} as common to all")
    return [*told, *(f"{at}  the owner changed the policy: {said}" for at, said in changes([run]))]


def job(note: Record) -> str:
    """What kind of job a site joined."""
    return "prediction" if note.get("predict") else "training"


def by_whom(note: Record) -> str:
    """Who asked for a job, as the request says it, and with whose certificate it was submitted, as the server says."""
    named, submitter = (str(note.get(key) or "") for key in ("requester", "submitter"))
    said = f"asked by {named}" if named else "the request does not say who asked"
    return f"{said} (submitted, as the server says, with the certificate of {submitter})" if submitter else said


def what_for(note: Record) -> str:
    """What a job was for, as the request says it."""
    return f"for: {note['purpose']}" if note.get("purpose") else "with no purpose stated"


def changes(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """(when, what) of changes of the policy, by time: while a job ran, and from one job to the next."""
    found, before = list[tuple[str, str]](), None
    for run in runs:
        for note in run.policy:
            of = {what: ", ".join(map(str, note.get(what) or ())) for what in ("tightened", "loosened")}
            ends = {"tightened": "tightened", "loosened": "loosened, which holds from the next job on"}
            said = "; ".join(f"{of[what]} {ends[what]}" for what in ends if of[what])
            found.append((str(note["at"]), said or "to the same rules"))
    for at, now in sorted(((str(one["at"]), _rules(one)) for run in runs for one in run.joined), key=lambda it: it[0]):
        if before is not None and now is not None and (odd := changed(before, now)) != ([], []):
            ways = zip(odd, ("tightened", "loosened"), strict=True)
            said = "; ".join(f"{', '.join(of)} {way}" for of, way in ways if of)
            found.append((at, f"{said} since the job before"))
        before = now or before
    return sorted(found)


def _rules(note: Record) -> Rules | None:
    """The rules that a job began under; None of an earlier version, which did not say."""
    with suppress(KeyError, ConfigError):
        return Rules.read(note["policy"])
    return None


def refused(run: Run) -> list[str]:
    """Refusals and damage in a run."""
    told = [f"{note['at']}  refused {note.get('asked')}: {note.get('why')}" for note in run.refused]
    if run.cut:
        cut, values = (sum(note[key] for note in run.cut) for key in ("cut", "values"))
        first = min(note["round"] for note in run.cut)
        told.append(
            f"{cut:,} of {values:,} values were cut to the bound of {counted(len(run.cut), 'secure sum')}, the first "
            f"in round {first}: the sums had less than what was computed here"
        )
    if run.damaged:
        told.append(f"{counted(run.damaged, 'damaged line')}: what is said there to have left is counted nowhere")
    return told


def in_all(found: Audit) -> str:
    """What has left over all runs, and its ε."""
    cost, without = found.spent.account.cost, "left without noise, and nothing limits what it tells"
    told = f"all runs: {found.spent.bytes:,} bytes have left"
    if cost.unbounded and not (cost.epsilon or cost.squared_mu):
        return f"{told}; no ε follows: it {without}"
    bounded = f"{found.spent.epsilon(found.rules.delta):.4g}"
    if cost.unbounded:
        return f"{told}; of what had noise ε is {bounded} at δ = {found.rules.delta:g}; the rest {without}"
    return f"{told}; their ε is {bounded} at δ = {found.rules.delta:g}"


def caps(found: Audit) -> list[str]:
    """How much of what the policy allows is spent, a line for each cap."""
    rules, spent, told = found.rules, found.spent, []
    if rules.epsilon is not None:
        now = f"{spent.epsilon(rules.delta):.4g} is spent at δ = {rules.delta:g}"
        told.append(f"of policy.epsilon = {rules.epsilon:g}, {now}{free(found)}")
    if rules.bytes is not None:
        told.append(f"of policy.bytes = {rules.bytes:,}, {spent.bytes:,} are spent")
    return told


def free(found: Audit) -> str:
    """What a cap on ε does not hold for, as the end of a sentence: what may leave without a bound, and what has left,
    mostly before there was a cap, that the policy would not let leave now."""
    sent = [one for run in found.runs for one in run.flows if one.direction != "down" and one.key != FRAMING]
    bare = [one for one in sent if one.account.cost.unbounded]
    loose = sorted({called(one) for one in bare if not any(covers(key, one.key) for key in found.rules.unbounded)})
    held = [*found.rules.unbounded, *([f"what has left without a bound: {', '.join(loose)}"] if loose else [])]
    return f"; it does not hold for {', '.join(held)}" if held else ""
