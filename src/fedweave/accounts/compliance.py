"""The compliance report of a run: what left each member. A site's own report shares its sections."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from rich.filesize import decimal

from fedweave.accounts.document import MAX_NAMED, Document, Section, Tile, grid
from fedweave.accounts.ledger import (
    UNTOLD,
    WAYS,
    Flow,
    call_text,
    flows,
    meaning,
    members,
    no_epsilon_sentence,
    parts,
    period,
    pooling_sentences,
    who,
)
from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.parts.packing import UPDATE
from fedweave.algorithms.preset import Preset
from fedweave.core.algorithm import capabilities
from fedweave.core.mechanism import SecureSum
from fedweave.core.text import counted
from fedweave.core.types import EVALUATION, FRAMING, KEPT_BACK, PREDICTION, SETUP, TRAINING, Record
from fedweave.errors import listed
from fedweave.experiment.config import config_hash
from fedweave.experiment.runs.reading import Run
from fedweave.privacy.accountant import Bound, bounds, of_members, remarks, states_bound

# A description with one of these stems may concern features, labels or edges; the report lists it. The report never
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
FOOT = (
    "A journal or ledger records the name, shape and size of every message, and what the algorithm declares that a "
    "receiver learns from it. It does not look into contents. Kilo is 1,000."
)
_PLACES = {TRAINING: 0, EVALUATION: 2, SETUP: 3, "": 4}  # order of purposes in a table; any other is 1
_MAX_ROWS = 60  # members whose ε is a line of its own
FRAMING_WORDS = "names and framing of messages"
EXACT = "exact, without noise"


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
    up, down, peer = (_by_message(run.ledger, way) for way in ("up", "down", "peer"))
    client_count = run.summary["clients"]
    total = dict.fromkeys(WAYS, 0)  # bytes
    for kind in kinds:
        total[kind.direction] += kind.bytes

    # 1. What clients sent.
    algorithm: object = ALGORITHMS.get(run.summary["algorithm"])
    sentences = pooling_sentences(run.config, capabilities(algorithm).pooled)
    sentences += [_sending_sentence(row, client_count) for row in up if not _kept_back(row)]
    if not up:
        sentences.append("No client sent anything but empty replies" + (" to the server." if peer else "."))
    sentences += [_sending_sentence(row, client_count, " to other clients") for row in peer if not _kept_back(row)]
    kept_back = list[str]()
    for row in filter(_kept_back, up + peer):
        clients = _clients_text(row["clients"], client_count)
        kept_back.append(f"{row['call']} ({row['reveals'].removeprefix(KEPT_BACK)}; {clients[0].lower()}{clients[1:]})")
    if kept_back:
        sentences.append(f"Policies kept this back: {', '.join(kept_back)}.")
    sentences.append(
        "The ledger shows nothing else that left a client; all of it is "
        f"{decimal(total['up'] + total['peer'])}, counting the names and framing of the messages."
    )
    if peer:
        sentences.append(f"Of that, {decimal(total['peer'])} went from client to client and not to the server.")

    # 2. What protected it, and what that costs.
    sent = [row for row in up + peer if not _kept_back(row)]
    bare = [row["call"] for row in sent if row["mechanism"] == "none"]
    if bare:
        subject = "any of it" if len(bare) == len(sent) else ", ".join(bare)
        sentences.append(f"No privacy mechanism was applied to {subject}.")
    no_epsilon = [row["call"] for row in sent if row["applied"] is not None and not states_bound(row["applied"])]
    if no_epsilon:
        sentences.append(f"No ε follows from what was applied to {', '.join(no_epsilon)}.")
    costs = of_members(run.ledger)
    member_costs = list[tuple[str, Bound]]()
    for name in sorted(costs):
        member_costs += [(name, bound) for bound in costs[name]]
    sentences += [*map(str, bounds(run.ledger)), *remarks(bound for _, bound in member_costs)]
    for entries in run.summary.get("privacy_total", ()):
        sentences.append(f"With the runs that it began from, one after the other: {Bound(**entries)}")
    if costs and not run.between_sites:
        sentences.append(SIMULATED)
    if costs and any(kind.direction == "up" and kind.purpose == EVALUATION for kind in kinds):
        sentences.append("Scores compare models with members' labels; nothing bounds what they reveal.")
    if isinstance(algorithm, Preset):  # declares what its protection does not prevent
        sentences += algorithm.remaining(run.section("algorithm"))

    # 3. What to look at more closely.
    undescribed = [row["call"] for row in sent if not row["reveals"]]
    marked = [f"{row['call']} ({row['reveals']})" for row in sent if SENSITIVE.search(row["reveals"])]
    if undescribed:
        sentences.append(f"The ledger does not say what these reveal: {', '.join(undescribed)}.")
    elif marked:
        subjects = "; ".join(marked)
        sentences.append(f"Check these: the description mentions features, labels, edges or the like in {subjects}.")

    # 4. What clients received.
    receivers = len(pc.unique(run.ledger.filter(pc.field("direction") == "down")["client"]))
    contents = ", ".join(row["call"] for row in down) or "nothing but empty messages"
    framing = sum(kind.bytes for kind in kinds if kind.direction == "down" and kind.key == FRAMING)
    calls = f", {decimal(framing)} of it calls without content" if 2 * framing > total["down"] else ""
    subject = _clients_text(receivers, client_count)
    sentences.append(f"{subject} received {contents}; together {decimal(total['down'])}{calls}.")
    repeated = _rounds_run_twice(run.ledger)
    if repeated:
        rounds = f"round{'s' * (len(repeated) > 1)} {', '.join(map(str, repeated))}"
        why = "because the run was continued; all of it is counted"
        sentences.append(f"What left in {rounds} left more than once, {why}.")
    evaluation = sum(kind.bytes for kind in kinds if kind.purpose == EVALUATION)
    if evaluation:
        sentences.append(f"{decimal(evaluation)} of all that was sent and received was for evaluation.")
    return Disclosure(tuple(sentences), tuple(kinds), tuple(members(run.ledger)), tuple(member_costs))


def _by_message(ledger: pa.Table, direction: str) -> list[Record]:
    """One row per step and part of a message, with smallest and largest numbers over clients.

    Each row has "clients", and as (min, max) a client's number of messages "times", the bytes of a message "each" and
    of all messages "all". A round that was done again has all of its messages again.
    """
    keys = parts(ledger)
    ledger = ledger.append_column("leaf", ledger["key"])
    ledger = ledger.set_column(ledger.schema.get_field_index("key"), "key", keys)
    ledger = ledger.filter((pc.field("direction") == direction) & (pc.field("key") != FRAMING))
    kind = ["step", "key", "mechanism", "reveals", "applied"]
    ends = ["client", "to"] if direction == "peer" else ["client"]
    message = [*kind, *ends, "round", "call"]
    # Leaves make messages, messages make a client's traffic, and that the smallest and largest of all clients.
    leaves = ledger.group_by([*message, "leaf"]).aggregate([("bytes", "sum"), ([], "count_all")])
    messages = leaves.group_by(message).aggregate([("bytes_sum", "sum"), ("count_all", "max")])
    messages = messages.rename_columns([*message, "all", "times"])
    messages = messages.append_column("each", pc.divide(messages["all"], messages["times"]))
    over_messages = [("times", "sum"), ("all", "sum"), ("each", "min"), ("each", "max")]
    clients = messages.group_by([*kind, "client"]).aggregate(over_messages)
    over_clients = [("client", "count"), ("times_sum", "min"), ("times_sum", "max"), ("each_min", "min")]
    over_clients += [("each_max", "max"), ("all_sum", "min"), ("all_sum", "max")]
    rows = []
    for totals in clients.group_by(kind).aggregate(over_clients).to_pylist():
        row = {name: totals[name] for name in kind}
        row["call"] = f"{row['step']}: {row['key']}"
        row["clients"] = totals["client_count"]
        row["times"] = (totals["times_sum_min"], totals["times_sum_max"])
        row["each"] = (totals["each_min_min"], totals["each_max_max"])
        row["all"] = (totals["all_sum_min"], totals["all_sum_max"])
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["all"][1], row["step"], row["key"]))


def _rounds_run_twice(ledger: pa.Table) -> list[int]:
    """The rounds in which a message left more than once; predictions belong to no round and do not count."""
    framing = ledger.filter((pc.field("direction") == "up") & (pc.field("key") == FRAMING))
    framing = framing.filter(pc.not_equal(pc.fill_null(pc.cast(framing["purpose"], pa.string()), ""), PREDICTION))
    counts = framing.group_by(["round", "call", "step", "client", "to"]).aggregate([([], "count_all")])
    numbers = counts.filter(pc.greater(counts["count_all"], 1))["round"].to_pylist()
    return sorted({number for number in numbers if number > 0})


def _kept_back(row: Record) -> bool:
    return str(row["reveals"]).startswith(KEPT_BACK)


def _sending_sentence(row: Record, client_count: int, to: str = "") -> str:
    """What clients sent, how often and how much; row: see `_by_message`."""
    contents = f"“{row['reveals']}”" if row["reveals"] else "data without a description"
    subject = _clients_text(row["clients"], client_count)
    low, high = row["times"]
    often = "once" if low == high == 1 else f"{_range_text(f'{low:,}', f'{high:,}')} times"
    if row["all"] == (0, 0):
        return f"{subject} kept {contents} back ({row['call']} is empty, {often})."
    mechanism = "" if row["mechanism"] == "none" else f", {row['mechanism']}"
    size = _range_text(*map(decimal, row["each"]))
    if high > 1:
        size += f" each time, {_range_text(*map(decimal, row['all']))} per client in all"
    return f"{subject} sent {contents}{to} ({row['call']}) {often}{mechanism}: {size}."


def _clients_text(clients: int, client_count: int) -> str:
    if client_count == clients == 1:
        return "The one client"
    if clients == client_count:
        return f"Each of the {client_count:,} clients"
    return f"{clients:,} of the {client_count:,} clients"


def _range_text(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def of_run(run: Run) -> Document:
    """The report of a run for the person who started it."""
    entries, names = flows(run.ledger), members(run.ledger)
    kind = "between sites" if run.between_sites else "a simulation: all members' data was on one machine"
    asked_by, purpose = (str(run.config.get(key) or "not stated") for key in ("requester", "purpose"))
    facts = {
        "run": f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}; {kind}",
        "period": period(run.ledger),
        "asked by": asked_by,
        "purpose": purpose,
        "members": f"{len(names):,}: {listed(names)}",
        "configuration": f"SHA-256 {config_hash(run.config)}",
    }
    privacy, clause = privacy_tile(entries, chain.from_iterable(of_members(run.ledger).values()))
    size, senders = upload_size(entries), counted(len(names), "member")
    from_peers = upload_size([flow for flow in entries if flow.direction == "peer"])
    ways = f"{from_peers} of it from member to member" if from_peers else "all of it to the server"
    where = "" if run.between_sites else "In this simulation, "
    policies = "each site decides what may leave it: see its own report, by `fedweave compliance SITE`"
    return Document(
        title=f"What left the members: {run.summary['algorithm']} on {run.summary['dataset']}",
        facts=tuple(facts.items()),
        warnings=tuple(pooling_sentences(run.config, at_one_place=len(names) == 1 < int(run.summary["clients"]))),
        sections=(
            left_section(entries, len(names)),
            messages_section(entries, len(names)),
            _cost_section(run, entries, len(names)),
        ),
        foot=FOOT,
        subtitle=" · ".join((senders, f"seed {run.summary.get('seed')}", period(run.ledger))),
        verdict=f"{where}{size} left {senders}, {ways}, {clause}." if size else "Nothing has left the members.",
        tiles=(
            size_tile("Left the members", entries),
            privacy,
            Tile("Asked by", asked_by, (f"purpose: {purpose}",)),
            Tile("Policy", "not in a run", (policies,)),
        ),
    )


def size_tile(title: str, entries: Sequence[Flow]) -> Tile:
    """How much left, and for which purposes."""
    sent = [flow for flow in entries if flow.direction != "down"]
    sizes = defaultdict[str, int](int)
    for flow in sorted(sent, key=_place):
        sizes[FRAMING_WORDS if flow.key == FRAMING else flow.purpose or "purpose not stated"] += flow.bytes
    notes = [f"{decimal(size)} {purpose}" for purpose, size in sizes.items()]
    return Tile(title, upload_size(entries) or "nothing", tuple(notes))


def privacy_tile(entries: Sequence[Flow], costs: Iterable[Bound]) -> tuple[Tile, str]:
    """How private is what left: a tile, and the end of a sentence. costs: of differential privacy."""
    sent = [flow for flow in sorted(entries, key=_place) if flow.direction != "down" and flow.key != FRAMING]
    sent = [flow for flow in sent if not flow.kept_back]
    without = [flow for flow in sent if not (flow.account.cost.epsilon or flow.account.cost.squared_mu)]
    largest = dict[str, Bound]()  # {kind of record: the bound with the largest ε}
    for bound in costs:
        largest[bound.per] = max(largest.get(bound.per, bound), bound, key=lambda one: one.epsilon)
    keys_by_protection = defaultdict[str, dict[str, None]](dict)
    for flow in without:
        key = flow.key.partition("/")[0]
        if flow.mechanism == "none":
            keys_by_protection[EXACT][key] = None
            continue
        words = ", ".join(filter(None, (one.short for one in flow.mechanisms)))
        if words or not flow.mechanisms:  # else what protects it is that of another key
            keys_by_protection[f"{words or flow.mechanism}, without ε"][key] = None
    notes = []
    for protection, keys in keys_by_protection.items():
        more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
        notes.append(f"{protection}: {', '.join([*keys][:MAX_NAMED])}{more}")

    # The updates of the model.
    exact = keys_by_protection.get(EXACT, {})
    what = "exact model updates" if UPDATE in exact else "exact values"
    updates = [flow for flow in sent if flow.key.partition("/")[0] == UPDATE]
    summed = besides = ""
    if updates and all(any(isinstance(one, SecureSum) for one in flow.mechanisms) for flow in updates):
        summed = "model updates leave only in a secure sum: single updates are hidden from the server"
    if exact and (summed or largest):
        besides = f", and {what} besides"
    if not largest:
        leaves = summed or (f"{what} leave" if exact else "")
        clause = f"without differential privacy{leaves and f': {leaves}'}{besides}"
        return Tile("Differential privacy", "none", tuple(notes)), clause
    texts, meanings = [], []
    for bound in largest.values():
        at = "" if bound.delta is None else f", δ = {bound.delta:g}"
        remark = f", which {bound.remark}" if bound.remark else ""
        texts.append(f"ε = {bound.epsilon:.3g}{at} per {bound.per}{remark}")
        meanings.append(f"{texts[-1]}: exchanging one {bound.per} for another changes likelihoods by e^ε at most")
    clause = f"with differential privacy ({'; '.join(texts)}){summed and f', {summed}'}{besides}"
    epsilon = max(bound.epsilon for bound in largest.values())
    return Tile("Differential privacy", f"ε = {epsilon:.3g}", (*meanings, *notes)), clause


def _groups(entries: Sequence[Flow], member_count: int, titles: Mapping[str, str]) -> list[tuple[str, list[Flow]]]:
    """(receivers, kinds of messages) of what left, together where a receiver learns the same for the same purpose."""
    groups = defaultdict[tuple[str, ...], list[Flow]](list)
    for flow in entries:
        if flow.direction != "down":
            to = who([titles.get(name, name) for name in flow.receivers], member_count)
            kind = ("",) * 3 if flow.key == FRAMING else (lesson(flow), flow.mechanism, flow.purpose)
            groups[to, *kind].append(flow)  # of names and framing, one line for each receiver
    return sorted(((to, group) for (to, *_), group in groups.items()), key=lambda one: _place(one[1][0]))


def _place(flow: Flow) -> int:
    """The place of a kind of message in a table."""
    return len(_PLACES) + 1 if flow.key == FRAMING else _PLACES.get(flow.purpose, 1)


def left_section(entries: Sequence[Flow], member_count: int, titles: Mapping[str, str] | None = None) -> Section:
    """What left, a line for each thing that a receiver learns, and one for what left before training; titles:
    {receiver: word for it}."""
    before, rows, total, framings = [], list[dict[str, str]](), 0, 0
    names = titles or {}
    for to, group in _groups(entries, member_count, names):
        total += sum(flow.bytes for flow in group)
        if group[0].purpose == SETUP and group[0].key != FRAMING and not group[0].kept_back:
            before += group
            continue
        row = {"what the receiver learns": _with_keys(group), "size": decimal(sum(flow.bytes for flow in group))}
        framing = group[0].key == FRAMING  # these groups come last
        framings += framing
        row |= {"protection": "" if framing else group[0].mechanism, "who received it": to}
        rows.append(row | {"used for": "" if framing else group[0].purpose or "not stated"})
    if before:
        keys = dict.fromkeys(flow.key for flow in before)
        mechanisms = sorted({flow.mechanism for flow in before})
        row = {"what the receiver learns": f"before training: {', '.join(keys)}"}
        row |= {"size": decimal(sum(flow.bytes for flow in before)), "protection": ", ".join(mechanisms)}
        receivers = dict.fromkeys(names.get(name, name) for flow in before for name in flow.receivers)
        rows.insert(len(rows) - framings, row | {"who received it": who([*receivers], member_count), "used for": SETUP})
    if len({row["who received it"] for row in rows}) == 1:  # the verdict names it
        for row in rows:
            del row["who received it"]
    if rows:
        rows.append(dict.fromkeys(rows[0], "") | {"what the receiver learns": "together", "size": decimal(total)})
    words = ("what the receiver learns", "protection", "who received it", "used for")
    return Section("What left, and what it reveals", () if rows else ("Nothing has left.",), grid=grid(rows, words, 1))


def messages_section(entries: Sequence[Flow], member_count: int, titles: Mapping[str, str] | None = None) -> Section:
    """What left, a line for each kind of message, folded; titles: {receiver: word for it}."""
    rows, several = [], len({name for flow in entries if flow.direction != "down" for name in flow.senders}) > 1
    for to, group in _groups(entries, member_count, titles or {}):
        framing = group[0].key == FRAMING
        row = {"what the receiver learns": lesson(group[0])}
        row["key"] = "" if framing else ", ".join(sorted({flow.key for flow in group}))
        row["who received it"], row["protection"] = to, "" if framing else group[0].mechanism
        row["used for"] = "" if framing else group[0].purpose or "not stated"
        if several:
            row["sent by"] = who(sorted(set().union(*(flow.senders for flow in group))), member_count)
        row["messages"] = f"{sum(flow.messages for flow in group):,}"
        row["size"] = decimal(sum(flow.bytes for flow in group))
        rows.append(row)
    words = ("what the receiver learns", "key", "who received it", "protection", "used for", "sent by")
    hint = f"{counted(len(rows), 'kind')}, with keys and the number of messages"
    return Section("Every kind of message", grid=grid(rows, words), hint=hint)


def lesson(flow: Flow) -> str:
    """What a receiver learns; for a message without a description, the call and the part of its message."""
    words = FRAMING_WORDS if flow.key == FRAMING else meaning(flow)
    return f"{words} ({call_text(flow)})" if words == UNTOLD else words


def _with_keys(group: Sequence[Flow]) -> str:
    """What a receiver learns, with the keys of the messages."""
    text = lesson(group[0])
    keys = "" if group[0].key == FRAMING or text.startswith(UNTOLD) else ", ".join(sorted({flow.key for flow in group}))
    return f"{text} ({keys})" if keys else text


def upload_size(entries: Sequence[Flow]) -> str:
    """How many bytes left members, as text; "" if none did."""
    size = sum(flow.bytes for flow in entries if flow.direction != "down")
    return decimal(size) if size else ""


def _cost_section(run: Run, entries: Sequence[Flow], member_count: int) -> Section:
    """The ε of each member; of many members a row for each different ε, the first `_MAX_ROWS`."""
    costs = of_members(run.ledger)
    names_by_cost = defaultdict[tuple[str, str, str], list[str]](list)
    for name, member_bounds in costs.items():
        for bound in member_bounds:
            at = "" if bound.delta is None else f" at δ = {bound.delta:g}"
            names_by_cost[bound.per, f"{bound.epsilon:.4g}{at}", counted(bound.messages, "message")].append(name)
    rows = []
    for (per, epsilon, messages), names in sorted(names_by_cost.items(), key=lambda item: sorted(item[1])):
        rows.append({"member": who(sorted(names), member_count), "ε": epsilon, "per": per, "of": messages})
    text = [no_epsilon_sentence(entries)]
    if not rows:
        text = ["No ε follows from any message: nothing limits what the messages reveal."]
    if len(rows) > _MAX_ROWS:
        text.append(f"The first {_MAX_ROWS} of {len(rows):,} lines.")
    text += remarks(chain.from_iterable(costs.values()))
    if costs and not run.between_sites:
        text.append(SIMULATED)
    table = grid(rows[:_MAX_ROWS], ("member", "per", "of"))
    hint = "ε of each member, and what is in no ε"
    return Section("What it cost in privacy", tuple(filter(None, text)), grid=table, hint=hint)
