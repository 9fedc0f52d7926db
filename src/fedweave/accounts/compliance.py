"""The compliance report of a run: what left each member. A site's own report shares these sections."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from rich.filesize import decimal

from fedweave.accounts.document import Document, Section, grid
from fedweave.accounts.ledger import (
    UNTOLD,
    WAYS,
    Flow,
    called,
    flows,
    meaning,
    members,
    parts,
    period,
    pooled,
    unbounded,
    who,
)
from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.preset import Preset
from fedweave.core.algorithm import capabilities
from fedweave.core.text import counted
from fedweave.core.types import EVALUATION, FRAMING, PREDICTION, SETUP, TRAINING, Record
from fedweave.errors import listed
from fedweave.experiment.config import config_hash
from fedweave.experiment.runs.reading import Run
from fedweave.privacy.accountant import Bound, bounds, of_members, remarks, states_bound

# ----------------------------------------------------------------------------------------------------
# The data flow, in plain words and in numbers: every statement follows from the ledger.


# A declaration with one of these stems may concern features, labels or edges; the report lists it. The report never
# claims that no such data left: a description without these words proves nothing.
SENSITIVE = re.compile(
    r"\b(feature|attribut|label|class|edge|link|neighbo|adjacen|subgraph|topolog|structur|motif|ego|embedding|"
    r"representation|identit|degree|raw|data\b|input)",
    re.IGNORECASE,
)


SIMULATED = (
    "This was a simulation: its noise follows from the run's seed and protects no client. The ε holds for the same run "
    "between sites."
)


@dataclass(frozen=True)
class Disclosure:
    """The ledger of a run, aggregated.

    sentences: what clients sent and received, in plain words. flows: a line for each kind of message. members: who
    takes part. costs: the privacy cost of what each member sent under differential privacy.
    """

    sentences: tuple[str, ...]
    flows: tuple[Flow, ...]
    members: tuple[str, ...]
    costs: tuple[tuple[str, Bound], ...]


def disclose(run: Run) -> Disclosure:
    """Aggregate a run's ledger."""
    kinds = flows(run.ledger)
    sent, received, shown = (_by_message(run.ledger, way) for way in ("up", "down", "peer"))
    everyone = run.summary["clients"]
    total = {way: sum(one.bytes for one in kinds if one.direction == way) for way in WAYS}
    evaluation = sum(one.bytes for one in kinds if one.purpose == EVALUATION)
    sentences = pooled(run.config, capabilities(ALGORITHMS.get(run.summary["algorithm"])).pooled)
    sentences += [_sent(row, everyone) for row in sent]
    if not sent:
        sentences.append("No client sent anything but empty replies" + (" to the server." if shown else "."))
    sentences += [_sent(row, everyone, " to other clients") for row in shown]
    sentences.append(
        "The ledger shows nothing else that left a client; all of it is "
        f"{decimal(total['up'] + total['peer'])}, counting the names and framing of the messages."
    )
    if shown:
        sentences.append(f"Of that, {decimal(total['peer'])} went from client to client and not to the server.")
    sentences += _protection(sent + shown)
    costs = of_members(run.ledger)
    sentences += [*map(str, bounds(run.ledger)), *remarks(bound for entries in costs.values() for bound in entries)]
    together = [Bound(**entries) for entries in run.summary.get("privacy_total", ())]
    sentences += [f"With the runs that it began from, one after the other: {bound}" for bound in together]
    if costs and not run.between_sites:
        sentences.append(SIMULATED)
    if costs and any(one.direction == "up" and one.purpose == EVALUATION for one in kinds):
        sentences.append("Scores compare models with members' labels; nothing bounds what they reveal.")
    sentences += remaining(run)
    sentences += _declared(sent + shown)
    clients = len(pc.unique(run.ledger.filter(pc.field("direction") == "down")["client"]))
    keys = ", ".join(f"{row['step']}: {row['key']}" for row in received) or "nothing but empty messages"
    framing = sum(one.bytes for one in kinds if one.direction == "down" and one.key == FRAMING)
    calls = f", {decimal(framing)} of it calls without content" if 2 * framing > total["down"] else ""
    sentences.append(f"{_who(clients, everyone)} received {keys}; together {decimal(total['down'])}{calls}.")
    if again := _again(run.ledger):
        rounds = f"round{'s' * (len(again) > 1)} {', '.join(map(str, again))}"
        why = "because the run was continued; all of it is counted"
        sentences.append(f"What left in {rounds} left more than once, {why}.")
    if evaluation:
        sentences.append(f"{decimal(evaluation)} of all that was sent and received was for evaluation.")
    spent = tuple((name, bound) for name, entries in sorted(costs.items()) for bound in entries)
    return Disclosure(tuple(sentences), tuple(kinds), tuple(members(run.ledger)), spent)


def remaining(run: Run) -> tuple[str, ...]:
    """What the algorithm's protection does not prevent, as its class declares."""
    kind: object = ALGORITHMS.get(run.summary["algorithm"])
    return kind.remaining(run.section("algorithm")) if isinstance(kind, Preset) else ()


def _by_message(ledger: pa.Table, direction: str) -> list[Record]:
    """One row per step and part of a message: clients, messages per client, bytes per message and per client.

    A round that was done again has all of its messages again.
    """
    keys = parts(ledger)
    ledger = ledger.append_column("leaf", ledger["key"])
    ledger = ledger.set_column(ledger.schema.get_field_index("key"), "key", keys)
    ledger = ledger.filter((pc.field("direction") == direction) & (pc.field("key") != FRAMING))
    what = ["step", "key", "mechanism", "reveals", "applied"]
    ends = ["client", "to"] if direction == "peer" else ["client"]
    message = [*what, *ends, "round", "call"]
    leaves = ledger.group_by([*message, "leaf"]).aggregate([("bytes", "sum"), ([], "count_all")])
    messages = leaves.group_by(message).aggregate([("bytes_sum", "sum"), ("count_all", "max")])
    messages = messages.rename_columns([*message, "all", "times"])
    messages = messages.append_column("each", pc.divide(messages["all"], messages["times"]))
    over = [("times", "sum"), ("all", "sum"), ("each", "min"), ("each", "max")]
    clients = messages.group_by([*what, "client"]).aggregate(over)
    both = [(f"{name}_{how}", end) for name, how in over for end in ("min", "max")]
    totals = clients.group_by(what).aggregate([("client", "count"), *both])
    rows = [
        {name: row[name] for name in what}
        | {
            "clients": row["client_count"],
            "times": (row["times_sum_min"], row["times_sum_max"]),
            "each": (row["each_min_min"], row["each_max_max"]),
            "all": (row["all_sum_min"], row["all_sum_max"]),
        }
        for row in totals.to_pylist()
    ]
    return sorted(rows, key=lambda row: (-row["all"][1], row["step"], row["key"]))


def _again(ledger: pa.Table) -> list[int]:
    """The rounds in which a message left more than once; predictions belong to no round and do not count."""
    message = ["round", "call", "step", "client", "to"]
    framing = ledger.filter((pc.field("direction") == "up") & (pc.field("key") == FRAMING))
    framing = framing.filter(pc.not_equal(pc.fill_null(pc.cast(framing["purpose"], pa.string()), ""), PREDICTION))
    many = framing.group_by(message).aggregate([([], "count_all")])
    return sorted({row for row in many.filter(pc.greater(many["count_all"], 1))["round"].to_pylist() if row > 0})


def _sent(row: Record, everyone: int, to: str = "") -> str:
    what = f"“{row['reveals']}”" if row["reveals"] else "data without a description"
    low, high = row["times"]
    often = "once" if low == high == 1 else _between(low, high, "{:,}") + " times"
    if row["all"] == (0, 0):
        return f"{_who(row['clients'], everyone)} kept {what} back ({row['step']}: {row['key']} is empty, {often})."
    protected = "" if row["mechanism"] == "none" else f", {row['mechanism']}"
    size = f"{_size(row['each'])} each time" if high > 1 else _size(row["each"])
    whole = f", {_size(row['all'])} per client in all" if high > 1 else ""
    return (
        f"{_who(row['clients'], everyone)} sent {what}{to} ({row['step']}: {row['key']}) {often}{protected}: "
        f"{size}{whole}."
    )


def _who(clients: int, everyone: int) -> str:
    if everyone == clients == 1:
        return "The one client"
    return f"Each of the {everyone:,} clients" if clients == everyone else f"{clients:,} of the {everyone:,} clients"


def _protection(sent: list[Record]) -> list[str]:
    """Sentences on messages without a privacy mechanism, and on mechanisms from which no ε follows."""
    bare = [_step_and_key(row) for row in sent if row["mechanism"] == "none"]
    unbounded_rows = [
        _step_and_key(row) for row in sent if row["applied"] is not None and not states_bound(row["applied"])
    ]
    sentences = []
    if bare:
        everything = len(bare) == len(sent)
        sentences = [f"No privacy mechanism was applied to {'any of it' if everything else ', '.join(bare)}."]
    if unbounded_rows:
        sentences.append(f"No ε follows from what was applied to {', '.join(unbounded_rows)}.")
    return sentences


def _step_and_key(row: Record) -> str:
    return f"{row['step']}: {row['key']}"


def _declared(sent: list[Record]) -> list[str]:
    """A sentence on descriptions that may concern features, labels or edges; messages without a description are
    listed."""
    if not sent:
        return []
    unknown = [_step_and_key(row) for row in sent if not row["reveals"]]
    if unknown:
        return [f"The ledger does not say what these reveal: {', '.join(unknown)}."]
    marked = [f"{_step_and_key(row)} ({row['reveals']})" for row in sent if SENSITIVE.search(row["reveals"])]
    if marked:
        return [f"Check these: the description mentions features, labels, edges or the like in {'; '.join(marked)}."]
    return []


def _between(low: object, high: object, form: str) -> str:
    return form.format(low) if low == high else f"{form.format(low)} to {form.format(high)}"


def _size(bounds: tuple[int, int]) -> str:
    return _between(decimal(bounds[0]), decimal(bounds[1]), "{}")


FOOT = (
    "A journal or ledger records the name, shape and size of every message, and what the algorithm declares that a "
    "receiver learns from it. It does not look into contents. Kilo is 1,000."
)
_PLACES = {TRAINING: 0, EVALUATION: 2, SETUP: 3, "": 4}  # of what is read first
_MOST = 60  # members whose ε is a line of its own


def of_run(run: Run) -> Document:
    """The report of a run for the person who started it."""
    entries, everyone = flows(run.ledger), members(run.ledger)
    general = run.config
    kind = "between sites" if run.between_sites else "a simulation: all members' data was on one machine"
    facts = {
        "run": f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}; {kind}",
        "period": period(run.ledger),
        "asked by": str(general.get("requester") or "not stated"),
        "purpose": str(general.get("purpose") or "not stated"),
        "members": f"{len(everyone):,}: {listed(everyone)}",
        "configuration": f"SHA-256 {config_hash(run.config)}",
    }
    whole = pooled(run.config, at_one_place=len(everyone) == 1 < int(run.summary["clients"]))
    return Document(
        title=f"What left the members: {run.summary['algorithm']} on {run.summary['dataset']}",
        facts=tuple(facts.items()),
        lead=(*whole, _left(entries)),
        sections=(
            sent(entries, len(everyone)),
            _spent(run, entries, everyone),
            Section(
                "Policies",
                ("What may leave is each site's own decision, and no part of a run; the report of the site shows it.",),
            ),
        ),
        foot=FOOT,
    )


def sent(entries: Sequence[Flow], everyone: int, receivers: dict[str, str] | None = None) -> Section:
    """What left, a line for each thing that a receiver learns; receivers: the word for the receivers."""
    kinds, left = defaultdict[tuple[str, ...], list[Flow]](list), [one for one in entries if one.direction != "down"]
    for one in left:
        to = who([(receivers or {}).get(name, name) for name in one.receivers], everyone)
        about = FRAMING if one.key == FRAMING else learnt(one)
        kinds[about, to, one.mechanism if about != FRAMING else "", one.purpose if about != FRAMING else ""].append(one)
    rows = [
        {
            "what the receiver learns": learnt(group[0]),
            "key": ", ".join(sorted({one.key for one in group})) if about != FRAMING else "",
            "who received it": to,
            "protection": protection,
            "used for": purpose if about == FRAMING else purpose or "not stated",
            "sent by": who(sorted({name for one in group for name in one.senders}), everyone),
            "messages": f"{sum(one.messages for one in group):,}",
            "size": decimal(sum(one.bytes for one in group)),
        }
        for (about, to, protection, purpose), group in sorted(
            kinds.items(), key=lambda item: _PLACES.get(item[0][3], 1)
        )
    ]
    if len({name for one in left for name in one.senders}) < 2:
        rows = [{name: word for name, word in row.items() if name != "sent by"} for row in rows]
    words = ("what the receiver learns", "key", "who received it", "protection", "used for", "sent by")
    return Section("What left, and what it reveals", () if rows else ("Nothing has left.",), grid=grid(rows, words))


def learnt(one: Flow) -> str:
    """What a receiver learns; for a message without a description, the call and the part of its message."""
    words = "names and framing of messages" if one.key == FRAMING else meaning(one)
    return f"{words} ({called(one)})" if words == UNTOLD else words


def moved(entries: Sequence[Flow]) -> str:
    """How many bytes left members, as text; "" if none did."""
    size = sum(one.bytes for one in entries if one.direction != "down")
    return decimal(size) if size else ""


def _left(entries: Sequence[Flow]) -> str:
    size, apart = moved(entries), moved([one for one in entries if one.direction == "peer"])
    between = f", {apart} of it from member to member" if apart else ", all of it to the server"
    return f"{size} left the members{between}; the ledger shows nothing else." if size else "Nothing has left."


def _spent(run: Run, entries: Sequence[Flow], everyone: Sequence[str]) -> Section:
    """The ε of each member; of many members a row for each different ε, the first `_MOST`."""
    costs = of_members(run.ledger)
    alike = defaultdict[tuple[str, str, str], list[str]](list)
    for name, client_bounds in costs.items():
        for bound in client_bounds:
            at = f"{bound.epsilon:.4g}" + ("" if bound.delta is None else f" at δ = {bound.delta:g}")
            alike[bound.per, at, counted(bound.messages, "message")].append(name)
    rows = [
        {"member": who(sorted(names), len(everyone)), "ε": at, "per": per, "of": of}
        for (per, at, of), names in sorted(alike.items(), key=lambda item: sorted(item[1]))
    ]
    text = [unbounded(entries)] if rows else ["No ε follows from any message: nothing limits what the messages reveal."]
    if len(rows) > _MOST:
        text.append(f"The first {_MOST} of {len(rows):,} lines.")
    text += remarks(bound for client_bounds in costs.values() for bound in client_bounds)
    text += [SIMULATED] if costs and not run.between_sites else []
    return Section(
        "What it cost in privacy", tuple(filter(None, text)), grid=grid(rows[:_MOST], ("member", "per", "of"))
    )
