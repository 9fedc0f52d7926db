"""A run's ledger for an auditor: who sent what to whom, for which purpose, when, and what the receiver learned.

Each kind of message is one line, over all its rounds and leaves. Lines are shown on a terminal or given to other
programs as rows. Sentences add which members' data a run pooled although no message shows it.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedweave.accounts.document import plain_text, print_line
from fedweave.core.mechanism import Applied, Mechanisms, PrivacyAccount, read_applied
from fedweave.core.text import cell, counted, printable
from fedweave.core.types import FRAMING, KEPT_BACK, PURPOSES, Record
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Document
from fedweave.privacy.accountant import Bound, of_members, remarks

SERVER = "server"
UNTOLD = "not described"
WAYS = ("up", "peer", "down")
DELTA = 1e-5  # of the ε of Gaussian noise
POOLED = (
    "This baseline needs all members' features, labels and edges at one place. The rows below are what that place "
    "exchanged; they do not show that every member handed over everything."
)
SCALED = {
    "simulation": "Features are scaled (normalize = {how!r}) by numbers over all nodes, which this simulation computed "
    "of the whole data before it was cut; the exchange “(scale)” is what members would send to get them.",
    "flare": "Every site scales its features by its own numbers, or leaves them as they are, as its own site.toml "
    "states; nothing left for that, and the experiment's normalize = {how!r} counts only in simulations. Data that "
    "`fedweave sites init --split` cut for sites had been scaled by it before, by numbers over all nodes.",
}
_MAX_NAMES = 3  # up to this number of members a line lists all names
_SEPARATOR = "\0"
_KIND = ["purpose", "direction", "step", "key", "mechanism", "reveals", "applied"]


def parts(ledger: pa.Table) -> pa.Array:
    """The parts as a dictionary array [rows]: the first component of a row's key, such as "own" of "own/loss".

    Where leaves of a part reveal different things, one with its own description keeps its whole key, "own/classes".
    """
    names = ("direction", "step", "key", "reveals")
    columns = [pc.fill_null(pc.cast(ledger[name], pa.string()), "") for name in names]
    rows = pc.dictionary_encode(pc.binary_join_element_wise(*columns, _SEPARATOR)).combine_chunks()
    kinds = []  # (direction, step, key, reveals, part) of each different row
    keys: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for text in rows.dictionary.to_pylist():
        direction, step, key, reveals = text.split(_SEPARATOR, 3)
        part = key if key == FRAMING else key.split("/")[0]
        kinds.append((direction, step, key, reveals, part))
        keys[direction, step, part][reveals].add(key)
    names_of_kinds = []
    for direction, step, key, reveals, part in kinds:
        by_description = keys[direction, step, part]
        names_of_kinds.append(key if len(by_description) > 1 and len(by_description[reveals]) == 1 else part)
    words = list(dict.fromkeys(names_of_kinds))
    places = np.array([words.index(name) for name in names_of_kinds], np.int32)
    indices = places[rows.indices.to_numpy(zero_copy_only=False)]  # [rows]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(words, pa.string()))


@dataclass(frozen=True)
class Flow:
    """All messages of one kind.

    senders, receivers: their names. step, key: the call, and the part of its message; names and framing of all steps
    are one kind. purpose: see `core.types.PURPOSES`; "" where the ledger does not specify it. reveals: what a receiver
    learns. first, last: times in UTC; None where the ledger has none. account: the privacy cost for the member with the
    highest cost. mechanisms: those in `mechanism`, () where the ledger has only their text.
    """

    purpose: str
    direction: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    step: str
    key: str
    mechanism: str
    reveals: str
    messages: int
    bytes: int
    account: PrivacyAccount
    first: datetime | None = field(default=None, compare=False)
    last: datetime | None = field(default=None, compare=False)
    mechanisms: Mechanisms = field(default=(), compare=False)

    @property
    def kept_back(self) -> bool:
        """Whether a site's policy kept the content at home; only its form left."""
        return self.reveals.startswith(KEPT_BACK)


def flows(ledger: pa.Table) -> list[Flow]:
    """A ledger's kinds of messages, by purpose, way and size."""
    # 1. A row for each kind, sender and receiver. A message has a row for each of its leaves, and a repeated round has
    #    all of them again; so the leaf with the most rows counts the messages.
    columns = {}
    for name in [*_KIND, "client", "to", "bytes", "at"]:
        column = ledger[name]
        columns[name] = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    columns["leaf"] = columns["key"]
    columns["key"] = parts(ledger).dictionary_decode()
    group = [*_KIND, "client", "to"]
    over_rows = [("bytes", "count"), ("bytes", "sum"), ("at", "min"), ("at", "max")]
    leaves = pa.table(columns).group_by([*group, "leaf"]).aggregate(over_rows)
    over_leaves = [("bytes_count", "max"), ("bytes_sum", "sum"), ("at_min", "min"), ("at_max", "max")]
    by_kind: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for sums in leaves.group_by(group).aggregate(over_leaves).to_pylist():
        row = {name: sums[name] or "" for name in group}
        row["times"], row["bytes"] = sums["bytes_count_max"], sums["bytes_sum_sum"]
        row["first"], row["last"] = sums["at_min_min"], sums["at_max_max"]
        if row["key"] == FRAMING:  # of all steps together
            row["step"] = row["reveals"] = ""
        kind = tuple(row[name] for name in ("purpose", "direction", "step", "key", "mechanism", "reveals"))
        by_kind[kind].append(row)

    # 2. The rows of a kind together.
    lines = []
    for (purpose, direction, step, key, mechanism, reveals), rows in by_kind.items():
        senders = clients = tuple(sorted({row["client"] for row in rows}))
        receivers: tuple[str, ...] = (SERVER,)
        if direction == "down":
            senders, receivers = (SERVER,), clients
        elif direction == "peer":
            receivers = tuple(sorted({row["to"] for row in rows}))
        account = PrivacyAccount() if direction == "down" or key == FRAMING else _max_account(key, rows)
        applied = rows[0]["applied"]  # of one text, so all rows have the same mechanisms
        line = Flow(
            purpose,
            direction,
            senders,
            receivers,
            step,
            key,
            mechanism,
            reveals,
            messages=sum(row["times"] for row in rows),
            bytes=sum(row["bytes"] for row in rows),
            account=account,
            first=min((row["first"] for row in rows if row["first"] is not None), default=None),
            last=max((row["last"] for row in rows if row["last"] is not None), default=None),
            mechanisms=read_applied(applied).mechanisms if applied else (),
        )
        lines.append(line)

    def order(line: Flow) -> tuple[object, ...]:
        way = WAYS.index(line.direction)
        return _purpose_order(line.purpose), way, line.key == FRAMING, -line.bytes, line.step, line.key

    return sorted(lines, key=order)


def _max_account(key: str, rows: list[Record]) -> PrivacyAccount:
    """The account of the client with the highest privacy cost. A message sent to several peers is one release."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)  # {client: {what was applied: messages}}
    for row in rows:
        of_client = counts[row["client"]]
        of_client[row["applied"]] = max(of_client.get(row["applied"], 0), row["times"])
    accounts = []
    for of_client in counts.values():
        account = PrivacyAccount()
        for text, times in of_client.items():
            account = account.after(read_applied(text) if text else Applied(key, ()), times)
        accounts.append(account)
    return max(accounts, key=lambda one: (one.cost.epsilon + one.cost.squared_mu, one.cost.unbounded))


def _purpose_order(purpose: str) -> int:
    return PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES)


def no_epsilon_sentence(kinds: Iterable[Flow]) -> str:
    """A sentence on messages of members without ε; "" where no message has an ε, or all have."""
    sent = [flow for flow in kinds if flow.direction != "down" and flow.key != FRAMING and not flow.kept_back]
    without = [flow for flow in sent if flow.account.cost.epsilon == 0 and flow.account.cost.squared_mu == 0]
    if not without or len(without) == len(sent):
        return ""
    without.sort(key=lambda flow: (flow.step, flow.key))
    keys = dict.fromkeys(map(call_text, without))
    return f"In no ε, because nothing bounds what it reveals: {', '.join(keys)}."


def of_member(ledger: pa.Table, member: str) -> pa.Table:
    """The rows of a ledger that a member sent or received."""
    known = members(ledger)
    if member not in known:
        raise UserError(
            f"the ledger knows no member {member!r}; it has {counted(len(known), 'member')}: {listed(known)}.",
            code="user.no-member",
        )
    is_client, is_peer = (pc.equal(pc.cast(ledger[name], pa.string()), member) for name in ("client", "to"))
    return ledger.filter(pc.or_kleene(is_client, is_peer))


def members(ledger: pa.Table) -> list[str]:
    """The names of all members in a ledger."""
    return sorted(pc.unique(pc.cast(ledger["client"], pa.string())).to_pylist())


def who(names: Sequence[str], member_count: int) -> str:
    """The names in words: a few by name, all of several as "each member"."""
    if len(names) == member_count > 1:
        return "each member"
    return ", ".join(names) if len(names) <= _MAX_NAMES else f"{len(names):,} of {member_count:,} members"


def stamp(time: datetime | None, after: datetime | None = None) -> str:
    """A time to the second; the date is left out if the time `after` which it comes has the same date; "" for None."""
    if time is None:
        return ""
    return f"{time:%H:%M:%S}" if after and after.date() == time.date() else f"{time:%Y-%m-%d %H:%M:%S}"


def period(ledger: pa.Table, further: Iterable[str] = ()) -> str:
    """The time from the first to the last message of a ledger, in UTC; "not known" without times.

    further: more times, as text of ISO 8601, that may extend the period.
    """
    ends = pc.min_max(ledger["at"]).as_py().values() if "at" in ledger.column_names else ()
    times = [f"{time:%Y-%m-%d %H:%M}" for time in ends if time is not None]
    times += [at[:16].replace("T", " ") for at in further]
    return f"{min(times)} to {max(times)} UTC" if times else "not known"


def totals(ledger: pa.Table) -> Iterator[tuple[str, dict[str, int]]]:
    """(purpose, {"up", "peer", "down": bytes}) for each purpose."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(WAYS, 0))
    for row in ledger.group_by(["purpose", "direction"]).aggregate([("bytes", "sum")]).to_pylist():
        sums[row["purpose"] or ""][row["direction"]] += row["bytes_sum"]
    for purpose in sorted(sums, key=_purpose_order):
        yield purpose, sums[purpose]


def pooling_sentences(config: Document, at_one_place: bool) -> list[str]:
    """Sentences on whether all data of a run was `at_one_place`, and by which numbers features were scaled."""
    if at_one_place:
        return [POOLED]
    how, engine = config.get("data", {}).get("normalize", "none"), config.get("engine", {}).get("name", "simulation")
    by_row = how in ("none", "row", "binary", "auto")  # each row, or client, on its own; see `datasets.features`
    return [] if by_row or engine not in SCALED else [SCALED[engine].format(how=how)]


def show_ledger(console: Console, ledger: pa.Table, member: str = "") -> None:
    """Print a line for each kind of message: who sent what to whom; then bytes for each purpose, and the cost in ε.

    member: only what this member sent and received.
    """
    known = members(ledger)
    ledger = of_member(ledger, member) if member else ledger
    print_line(console, f"member {member}" if member else f"{counted(len(known), 'member')}: {listed(known)}")
    kinds = flows(ledger)
    console.print(flow_table(kinds, len(known)))

    # Bytes of each purpose and in all.
    whole = dict.fromkeys(WAYS, 0)
    for purpose, sums in totals(ledger):
        print_line(console, f"{purpose or 'purpose not specified'}: {_traffic_text(sums, member)}")
        whole = {way: whole[way] + sums[way] for way in WAYS}
    print_line(console, f"in all: {_traffic_text(whole, member)}")

    # The ε that each member spent; members with the same ε share a line.
    names_by_cost: dict[Bound, list[str]] = {}
    for name, bounds in of_members(ledger).items():
        if not member or name == member:
            for bound in bounds:
                names_by_cost.setdefault(bound, []).append(name)
    lines = []
    for bound, names in names_by_cost.items():
        at = "" if bound.delta is None else f" at δ = {bound.delta:g}"
        remark = f", which {bound.remark}" if bound.remark else ""
        cost = f"ε = {bound.epsilon:.4g}{at} per {bound.per} after {counted(bound.messages, 'message')}{remark}"
        lines.append(f"{who(sorted(names), len(known))}: {cost}")
    if not lines:
        lines = ["no ε follows from anything that was sent"]
    for line in (*sorted(lines), *remarks(names_by_cost), no_epsilon_sentence(kinds)):
        if line:
            print_line(console, line)


def _traffic_text(sums: dict[str, int], member: str) -> str:
    """Bytes by way, of one member or (member "") of all."""
    subject, them = ("member", "it") if member else ("members", "them")
    text = f"{decimal(sums['up'])} left the {subject}"
    if sums["down"]:
        text += f", {decimal(sums['down'])} reached {them}"
    if sums["peer"]:
        text += f", {decimal(sums['peer'])} passed between members"
    return text


def flow_table(kinds: Sequence[Flow], member_count: int, delta: float = DELTA) -> Table:
    """A line for each kind of message; ε of Gaussian noise is stated at `delta`."""
    table = Table("what for", "from → to", box=SIMPLE_HEAD)
    table.add_column("call and key")
    table.add_column("what the receiver learns", min_width=16)
    table.add_column("mechanism")
    for heading in ("messages", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("first, last (UTC)")
    for one in kinds:
        cells = row(one, delta)
        cells["to"] = f"{who(one.senders, member_count)} → {who(one.receivers, member_count)}"
        cells["bytes"] = decimal(one.bytes)
        table.add_row(*map(plain_text, cells.values()))
    return table


def row(one: Flow, delta: float = DELTA) -> dict[str, str]:
    """The line of `flow_table` as a row of a page's table, for messages that left one member."""
    return {
        "what for": one.purpose or "not specified",
        "to": who(one.receivers, 0),
        "call and key": call_text(one),
        "what the receiver learns": meaning(one),
        "mechanism": mechanism_text(one, delta),
        "messages": f"{one.messages:,}",
        "bytes": f"{one.bytes:,}",
        "first, last (UTC)": f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", "),
    }


def mechanism_text(one: Flow, delta: float = DELTA) -> str:
    """The mechanism, and the ε that all messages of the kind cost the member who sent most."""
    cost = one.account.cost
    spent = f"; in all ε = {_epsilon_text(one.account, delta)}" if cost.epsilon or cost.squared_mu else ""
    return f"{one.mechanism}{spent}"


def call_text(one: Flow) -> str:
    """The call, and the part of its message."""
    return one.key if one.key == FRAMING else f"{one.step}: {one.key}"


def meaning(one: Flow) -> str:
    """What the receiver learns, or that the ledger has no description."""
    return one.reveals or ("" if one.key == FRAMING else UNTOLD)


def _epsilon_text(account: PrivacyAccount, delta: float = DELTA) -> str:
    """The privacy cost of releases at that δ, in words; "" if no release is counted."""
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    words = []
    if account.cost.epsilon or account.cost.squared_mu:
        words.append(f"{total_epsilon(account.cost, delta):.4g}")
    if account.cost.unbounded:
        words.append("no bound")
    return " and ".join(words)


def as_rows(ledger: pa.Table, member: str = "") -> list[Record]:
    """The kinds of messages for other programs: all names are written out, times are ISO 8601.

    Characters that could control a terminal, or hide in it, are escaped.
    """
    kinds = flows(of_member(ledger, member) if member else ledger)
    records = list[Record]()
    for one in kinds:
        record = {
            "purpose": printable(one.purpose),
            "from": [*map(printable, one.senders)],
            "to": [*map(printable, one.receivers)],
            "step": printable(one.step),
            "key": printable(one.key),
            "reveals": printable(one.reveals),
            "mechanism": printable(one.mechanism),
            "epsilon": _epsilon_text(one.account),
            "messages": one.messages,
            "bytes": one.bytes,
            "first": one.first and one.first.isoformat(),
            "last": one.last and one.last.isoformat(),
        }
        records.append(record)
    return records


def as_csv(rows: Sequence[Record]) -> str:
    """The rows as CSV with a line of headings; several names are separated by spaces.

    Text that a spreadsheet would evaluate as a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {**row, "from": " ".join(row["from"]), "to": " ".join(row["to"])}
        writer.writerow({key: cell(value) for key, value in plain.items()})
    return text.getvalue()
