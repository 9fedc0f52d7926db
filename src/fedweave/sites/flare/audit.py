"""What a site's journals show to its owner, as data and as text: requests, what left, its privacy cost, refusals."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.accounts.ledger import Flow, call_text, flows
from fedweave.core.ledger import Ledger
from fedweave.core.plugins import files_in, label
from fedweave.core.text import counted
from fedweave.core.types import EVALUATION, FRAMING, SETUP, TRAINING, Record
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Document as ConfigDocument
from fedweave.metrics.selection import ALONE, METRICS, OF_RANKS, SHELF, is_possible
from fedweave.sites.flare.accounts import NO_RUN
from fedweave.sites.flare.chain import Head
from fedweave.sites.flare.folder import RUNS, SITE_FILE
from fedweave.sites.flare.journal import Records, journal_path, journals, read_journal
from fedweave.sites.flare.own_results import read_baselines
from fedweave.sites.flare.policy import Spent, covers
from fedweave.sites.flare.policy_changes import rule_changes
from fedweave.sites.flare.requests import pin, versions
from fedweave.sites.flare.sitefile import Rules, read_site_file

_ALONE = tuple(f"({kind})" for kind in (SHELF, ALONE))  # requests for what a site reaches alone


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
    spent = Spent.of(chain.from_iterable(records.entries for records in by_run.values()))
    rules = read_site_file(folder / SITE_FILE)[1] if (folder / SITE_FILE).exists() else Rules()
    runs = list[SiteRun]()
    for name, records in by_run.items():
        notes = defaultdict[str, list[Record]](list)
        for note in records.notes:
            notes[note["note"]].append(note)
        kinds = ("joined", "lists", "aligned", "policy", "refused", "cut", "data")
        by_kind = {kind: tuple(notes[kind]) for kind in kinds}
        title = "outside of any run" if name == NO_RUN else name
        runs.append(SiteRun(title, ledger=_table([records]), damaged=len(records.damaged), **by_kind))
    runs.sort(key=lambda run: str(run.joined[0].get("at")) if run.joined else "")
    return Audit(tuple(runs), spent, rules, _table(by_run.values()), _describe_loss(rules, runs, by_run.values()))


def _describe_loss(rules: Rules, runs: list[SiteRun], journals: Iterable[Records]) -> str:
    """A sentence on the unknown part of the accounts, if the owner has accepted that entries are gone; else ""."""
    if not rules.lost:
        return ""
    links = chain.from_iterable(records.links for records in journals)
    present = {link.head.number for link in links}
    last = max(Head.read(text).number for text in rules.lost)
    count = max(1, len({*range(1, last + 1)} - present))
    gone = f"{count:,} entries" if count > 1 else "1 entry"
    times = list[str]()
    for run in runs:
        for note in run.joined:
            before = rules_of(note)
            if before is not None and before.lost:
                times.append(str(note["at"]))
    when = f"the owner accepted it by {min(times)[:16].replace('T', ' ')} UTC" if times else "no run has begun since"
    return (
        f"accounts were lost: {gone} up to number {last} are gone from the journals (policy.lost; {when}). How "
        "many bytes, what ε and how many replies they counted is unknown, and none of it is in the numbers here: every "
        "cap holds only for what is counted"
    )


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
    names = _names_in(journal, folder)
    clients = {*ledger["client"].to_pylist()}
    if len(clients) == 1 and not clients & names:
        raise UserError(f"that ledger covers only {clients.pop()}: it is another member's copy. Ask for your own.")
    in_journal, in_ledger = _count_messages(journal, names), _count_messages(ledger, names)
    return sorted(map(_describe, in_ledger - in_journal)), sorted(map(_describe, in_journal - in_ledger))


def compare_alone(folder: Path, run: str, metrics: pa.Table) -> list[str] | None:
    """Lines on the numbers of what the site in `folder` reaches alone in which the run differs from what the site sent.
    None if neither has any.

    metrics: the run's (`runs.files.METRICS`), from the user who started the run.
    """
    record = read_baselines(folder / RUNS / run)
    names = _names_in(_table([read_journal(journal_path(folder, run))]), folder)
    sent = dict[str, float]()
    for kind, listed in record.get("sent", {}).items():
        values = record.get(kind, {}).get("values", {})
        sent |= {f"{kind}/{name}": values[name] for name in listed if name in values}
    kept = dict[str, float]()
    for row in metrics.filter(pc.field("split") == "test").to_pylist():
        kind, _, name = row["metric"].partition("/")
        in_round = row["round"] == record.get("round", row["round"])
        if row["client"] in names and in_round and kind in (SHELF, ALONE) and name in METRICS:
            kept[row["metric"]] = row["value"]
    if not sent and not kept:
        return None
    lines = list[str]()
    for name in sorted(sent.keys() | kept.keys()):
        if name not in sent:
            lines.append(f"{name}: the run has {kept[name]:.9g}, the site sent none")
        elif name in kept and not math.isclose(kept[name], sent[name]):
            lines.append(f"{name}: the run has {kept[name]:.9g}, the site sent {sent[name]:.9g}")
        elif name not in kept and _is_kept(name, sent[name]):
            lines.append(f"{name}: the site sent {sent[name]:.9g}, the run has none")
    return lines


def _is_kept(name: str, value: float) -> bool:
    """Whether a run keeps this number that a site sent: of the shelf only what selects or is of one class."""
    kind, _, metric = name.partition("/")
    of_shelf = metric in OF_RANKS or METRICS[metric].judges or METRICS[metric].positive
    return is_possible(metric, value) and (kind != SHELF or of_shelf)


def _names_in(journal: pa.Table, folder: Path) -> set[str]:
    """The site's names in its journal; of a site that sent nothing, or lost its journal, that of its folder."""
    return {*journal["client"].to_pylist()} or {folder.resolve().name}


def same_configuration(folder: Path, run: str, document: ConfigDocument, sites: list[str]) -> bool | None:
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


def _count_messages(ledger: pa.Table, names: set[str]) -> Counter[tuple[object, ...]]:
    """How often these clients sent each message in steps of the algorithm, and each number that they reach alone. Other
    requests, such as "(join)", are left out, because journals count them differently."""
    counts = Counter[tuple[object, ...]]()
    for row in ledger.filter(pc.field("direction") != "down").to_pylist():
        in_step = not row["step"].startswith("(") and row["purpose"] in (SETUP, TRAINING, EVALUATION)
        reached_alone = row["step"] in _ALONE and row["key"] != FRAMING  # empty replies are in no journal
        if row["client"] in names and (in_step or reached_alone):
            keys = ("round", "step", "key", "shape", "bytes", "to", "mechanism", "reveals")
            counts[tuple(row[key] for key in keys)] += 1
    return counts


def _describe(message: tuple[object, ...]) -> str:
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
        who = f"asked by {note['requester']}" if note.get("requester") else "the request does not say who asked"
        if note.get("submitter"):
            who += f" (submitted, as the server says, with the certificate of {note['submitter']})"
        purpose = f"for: {note['purpose']}" if note.get("purpose") else "with no purpose stated"
        lines.append(f"{note['at']}  {what}; {who}, {purpose}")
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


def changes(runs: Iterable[SiteRun]) -> list[tuple[str, str]]:
    """(time, text) for every change of the policy, in the order of time: during a job, and from one job to the next."""
    entries, joined = list[tuple[str, str]](), list[Record]()
    for run in runs:
        joined += run.joined
        for note in run.policy:
            parts = [*map(str, note.get("changes", ()))]
            if not parts:  # an earlier version noted no values
                ways = ("tightened", "loosened")
                parts = [f"{', '.join(map(str, note[way]))} {way}" for way in ways if note.get(way)]
            if note.get("loosened"):
                parts.append("what is loosened holds from the next job on")
            entries.append((str(note["at"]), "; ".join(parts) or "to the same rules"))
    before = None
    for note in sorted(joined, key=lambda note: str(note["at"])):
        after = rules_of(note)
        if after is None:
            continue
        if before is not None:
            text = "; ".join(map(str, rule_changes(before, after)))
            if text:
                entries.append((str(note["at"]), f"{text} since the job before"))
        before = after
    return sorted(entries)


def rules_of(note: Record) -> Rules | None:
    """The rules under which a job began; None if an earlier version, which did not note them, wrote the journal."""
    with suppress(KeyError, ConfigError):
        return Rules.read(note["policy"])
    return None


def refusal_lines(run: SiteRun) -> list[str]:
    """Lines for the refusals and the damage in a run."""
    lines = [f"{note['at']}  refused {note.get('asked')}: {note.get('why')}" for note in run.refused]
    if run.cut:
        cut, values = sum(note["cut"] for note in run.cut), sum(note["values"] for note in run.cut)
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
    bare = set[str]()
    for flow in chain.from_iterable(run.flows for run in summary.runs):
        allowed = any(covers(key, flow.key) for key in summary.rules.unbounded)
        sent = flow.direction != "down" and flow.key != FRAMING
        if sent and flow.account.cost.unbounded and not allowed:
            bare.add(call_text(flow))
    exempt = [*summary.rules.unbounded]
    if bare:
        exempt.append(f"what has left without a bound: {', '.join(sorted(bare))}")
    return f"; it does not hold for {', '.join(exempt)}" if exempt else ""
