"""A ledger for a terminal, and as rows for other programs.

Sentences add which members' data a run pooled although no message shows it.
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

from fedweave.accounts.document import unmarked
from fedweave.core.mechanism import Applied, PrivacyAccount, read_applied
from fedweave.core.text import cell, counted, printable
from fedweave.core.types import FRAMING, PURPOSES, Record
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Document
from fedweave.privacy.accountant import Bound, of_members, remarks

# ----------------------------------------------------------------------------------------------------
# A ledger for an auditor: who sent what to whom, for which purpose, when, and what the receiver learned.
# Each kind of message is one line, over all its rounds and leaves.


_ALIKE = ("direction", "step", "key", "reveals")
_BETWEEN = "\0"


def parts(ledger: pa.Table) -> pa.Array:
    """The parts as a dictionary array [rows]: the first component of a row's key, such as "own" of "own/loss".

    Where leaves of a part reveal different things, one with its own description keeps its whole key, "own/classes".
    """
    columns = [pc.fill_null(pc.cast(ledger[name], pa.string()), "") for name in _ALIKE]
    rows = pc.dictionary_encode(pc.binary_join_element_wise(*columns, _BETWEEN)).combine_chunks()
    kinds = [tuple(text.split(_BETWEEN, 3)) for text in rows.dictionary.to_pylist()]
    keys: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for direction, step, key, reveals in kinds:
        keys[direction, step, _first(key)][reveals].add(key)
    names = []
    for direction, step, key, reveals in kinds:
        alike = keys[direction, step, _first(key)]
        names.append(key if len(alike) > 1 and len(alike[reveals]) == 1 else _first(key))
    known = list(dict.fromkeys(names))
    place = np.array([known.index(name) for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(place[rows.indices.to_numpy(zero_copy_only=False)], pa.int32()), pa.array(known, pa.string())
    )


def _first(key: str) -> str:
    return key if key == FRAMING else key.split("/")[0]


SERVER = "server"
UNTOLD = "not described"
WAYS = ("up", "peer", "down")
_FEW = 3  # up to this number of members a line lists all names
_KIND = ["purpose", "direction", "step", "key", "mechanism", "reveals", "applied"]
_SUMS = [("bytes", "sum"), ("at", "min"), ("at", "max")]


@dataclass(frozen=True)
class Flow:
    """All messages of one kind.

    senders, receivers: their names. step, key: the call, and the part of its message; names and framing of all steps
    are one kind. purpose: see `core.types.PURPOSES`; "" where the ledger does not specify it. reveals: what a receiver
    learns. first, last: times in UTC; None where the ledger has none. account: the privacy cost for the member with the
    highest cost.
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


def flows(ledger: pa.Table) -> list[Flow]:
    """A ledger's kinds of messages, by purpose, way and size."""
    by_kind: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for row in _by_ends(ledger):
        framing = row["key"] == FRAMING
        step, reveals = ("", "") if framing else (row["step"], row["reveals"])
        by_kind[row["purpose"], row["direction"], step, row["key"], row["mechanism"], reveals].append(row)
    lines = [_flow(kind, rows) for kind, rows in by_kind.items()]
    return sorted(
        lines,
        key=lambda one: (
            _order(one.purpose),
            WAYS.index(one.direction),
            one.key == FRAMING,
            -one.bytes,
            one.step,
            one.key,
        ),
    )


def unbounded(kinds: Iterable[Flow]) -> str:
    """A sentence on messages of members without ε; "" where no message has an ε, or all have."""
    sent = [one for one in kinds if one.direction != "down" and one.key != FRAMING]
    bare = [one for one in sent if not (one.account.cost.epsilon or one.account.cost.squared_mu)]
    if not bare or len(bare) == len(sent):
        return ""
    keys = dict.fromkeys(f"{one.step}: {one.key}" for one in sorted(bare, key=lambda one: (one.step, one.key)))
    return f"In no ε, because nothing bounds what it reveals: {', '.join(keys)}."


def of_member(ledger: pa.Table, member: str) -> pa.Table:
    """The rows of a ledger that a member sent or received.

    Raises:
        UserError: the ledger has no such member.
    """
    ends = [pc.cast(ledger[name], pa.string()) for name in ("client", "to")]
    if member not in (known := members(ledger)):
        raise UserError(
            f"the ledger knows no member {member!r}; it has {counted(len(known), 'member')}: {listed(known)}.",
            code="user.no-member",
        )
    return ledger.filter(pc.or_kleene(pc.equal(ends[0], member), pc.equal(ends[1], member)))


def members(ledger: pa.Table) -> list[str]:
    """The names of all members in a ledger."""
    return sorted(pc.unique(pc.cast(ledger["client"], pa.string())).to_pylist())


def who(names: Sequence[str], everyone: int) -> str:
    """The names in words: a few by name, all of several as "each member"."""
    if len(names) == everyone > 1:
        return "each member"
    return ", ".join(names) if len(names) <= _FEW else f"{len(names):,} of {everyone:,} members"


def stamp(time: datetime | None, after: datetime | None = None) -> str:
    """A time to the second; the date is left out if the time `after` which it comes has the same date; "" for None."""
    if time is None:
        return ""
    return f"{time:%H:%M:%S}" if after and after.date() == time.date() else f"{time:%Y-%m-%d %H:%M:%S}"


def period(ledger: pa.Table, noted: Iterable[str] = ()) -> str:
    """The time from the first to the last message of a ledger, in UTC; "not known" without times.

    noted: further times, as text of ISO 8601, that may extend the period.
    """
    ends = pc.min_max(ledger["at"]).as_py().values() if "at" in ledger.column_names else ()
    times = [f"{time:%Y-%m-%d %H:%M}" for time in ends if time is not None]
    times += [at[:16].replace("T", " ") for at in noted]
    return f"{min(times)} to {max(times)} UTC" if times else "not known"


def totals(ledger: pa.Table) -> Iterator[tuple[str, dict[str, int]]]:
    """(purpose, {"up", "peer", "down": bytes}) for each purpose."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(WAYS, 0))
    for row in ledger.group_by(["purpose", "direction"]).aggregate([("bytes", "sum")]).to_pylist():
        sums[row["purpose"] or ""][row["direction"]] += row["bytes_sum"]
    for purpose in sorted(sums, key=_order):
        yield purpose, sums[purpose]


def _by_ends(ledger: pa.Table) -> list[Record]:
    """A row for each kind, sender and receiver.

    A message has a row for each of its leaves, and a repeated round has all of them again; so the leaf with the most
    rows counts the messages.
    """
    plain = pa.table({name: _words(ledger[name]) for name in [*_KIND, "client", "to", "bytes", "at"]})
    leaf = plain["key"]
    plain = plain.append_column("leaf", leaf)
    plain = plain.set_column(plain.schema.get_field_index("key"), "key", parts(ledger).dictionary_decode())
    leaves = plain.group_by([*_KIND, "client", "to", "leaf"]).aggregate([("bytes", "count"), *_SUMS])
    again = [("bytes_count", "max"), ("bytes_sum", "sum"), ("at_min", "min"), ("at_max", "max")]
    return [
        {name: row[name] or "" for name in (*_KIND, "client", "to")}
        | {"times": row["bytes_count_max"], "bytes": row["bytes_sum_sum"]}
        | {"first": row["at_min_min"], "last": row["at_max_max"]}
        for row in leaves.group_by([*_KIND, "client", "to"]).aggregate(again).to_pylist()
    ]


def _words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _flow(kind: tuple[str, ...], rows: list[Record]) -> Flow:
    """kind: purpose, direction, step, key, mechanism and what it reveals."""
    purpose, direction, step, key, mechanism, reveals = kind
    clients, peers = (tuple(sorted({row[end] for row in rows})) for end in ("client", "to"))
    senders = (SERVER,) if direction == "down" else clients
    receivers = clients if direction == "down" else peers if direction == "peer" else (SERVER,)
    messages, size = (sum(row[name] for row in rows) for name in ("times", "bytes"))
    times = [row[end] for row in rows for end in ("first", "last") if row[end] is not None]
    account = PrivacyAccount() if direction == "down" or key == FRAMING else _dearest(key, rows)
    ends = (min(times), max(times)) if times else (None, None)
    return Flow(purpose, direction, senders, receivers, step, key, mechanism, reveals, messages, size, account, *ends)


def _dearest(key: str, rows: list[Record]) -> PrivacyAccount:
    """The account of the client with the highest privacy cost. A message sent to several peers is one release."""
    sent: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        counts = sent[row["client"]]
        counts[row["applied"]] = max(counts.get(row["applied"], 0), row["times"])
    accounts = []
    for counts in sent.values():
        account = PrivacyAccount()
        for text, times in counts.items():
            account = account.after(read_applied(text) if text else Applied(key, ()), times)
        accounts.append(account)
    return max(accounts, key=lambda one: (one.cost.epsilon + one.cost.squared_mu, one.cost.unbounded))


def _order(purpose: str) -> int:
    return PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES)


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


def pooled(config: Document, at_one_place: bool) -> list[str]:
    """Sentences on whether all data of a run was `at_one_place`, and by which numbers features were scaled."""
    if at_one_place:
        return [POOLED]
    how, engine = config.get("data", {}).get("normalize", "none"), config.get("engine", {}).get("name", "simulation")
    by_row = how in ("none", "row", "binary", "auto")  # each row, or client, by itself; see `datasets.features`
    return [] if by_row or engine not in SCALED else [SCALED[engine].format(how=how)]


DELTA = 1e-5  # of the ε of Gaussian noise


def show_ledger(console: Console, ledger: pa.Table, member: str = "") -> None:
    """Print a line for each kind of message: who sent what to whom; then bytes for each purpose, and the cost in ε.

    member: only what this member sent and received.

    Raises:
        UserError: there is no such member.
    """
    known = members(ledger)
    ledger = of_member(ledger, member) if member else ledger
    say(console, f"member {member}" if member else f"{counted(len(known), 'member')}: {listed(known)}")
    kinds = flows(ledger)
    console.print(flow_table(kinds, len(known)))
    for line in (*_in_all(ledger, "member" if member else "members"), *_costs(ledger, member, len(known))):
        say(console, line)
    if bare := unbounded(kinds):
        say(console, bare)


def flow_table(kinds: Sequence[Flow], everyone: int, delta: float = DELTA) -> Table:
    """A line for each kind of message; ε of Gaussian noise is stated at `delta`."""
    table = Table("what for", "from → to", box=SIMPLE_HEAD)
    table.add_column("call and key")
    table.add_column("what the receiver learns", min_width=16)
    table.add_column("mechanism")
    for heading in ("messages", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("first, last (UTC)")
    for one in kinds:
        ends = f"{who(one.senders, everyone)} → {who(one.receivers, everyone)}"
        words = (one.purpose or "not specified", ends, called(one), meaning(one), protected(one, delta))
        counts = (f"{one.messages:,}", decimal(one.bytes))
        table.add_row(
            *map(unmarked, (*words, *counts, f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", ")))
        )
    return table


def row(one: Flow, delta: float = DELTA) -> dict[str, str]:
    """The line of `flow_table` as a row of a page's table, for messages that left one member."""
    return {
        "what for": one.purpose or "not specified",
        "to": who(one.receivers, 0),
        "call and key": called(one),
        "what the receiver learns": meaning(one),
        "mechanism": protected(one, delta),
        "messages": f"{one.messages:,}",
        "bytes": f"{one.bytes:,}",
        "first, last (UTC)": f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", "),
    }


def protected(one: Flow, delta: float = DELTA) -> str:
    """The mechanism, and the ε that all messages of the kind cost the member who sent most."""
    cost = one.account.cost
    spent = f"; in all ε = {spelt(one.account, delta)}" if cost.epsilon or cost.squared_mu else ""
    return f"{one.mechanism}{spent}"


def called(one: Flow) -> str:
    """The call, and the part of its message."""
    return one.key if one.key == FRAMING else f"{one.step}: {one.key}"


def meaning(one: Flow) -> str:
    """What the receiver learns, or that the ledger has no description."""
    return one.reveals or ("" if one.key == FRAMING else UNTOLD)


def spelt(account: PrivacyAccount, delta: float = DELTA) -> str:
    """The privacy cost of releases at that δ, in words; "" if no release is counted."""
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    bounded = account.cost.epsilon or account.cost.squared_mu
    words = [f"{total_epsilon(account.cost, delta):.4g}"] if bounded else []
    return " and ".join([*words, *(["no bound"] if account.cost.unbounded else [])])


def say(console: Console, line: str) -> None:
    """A line of text, as it is."""
    console.print(unmarked(line), highlight=False, soft_wrap=True)


def as_rows(ledger: pa.Table, member: str = "") -> list[Record]:
    """The kinds of messages for other programs: all names are written out, times are ISO 8601.

    Characters that could control a terminal, or hide in it, are escaped.
    """
    kinds = flows(of_member(ledger, member) if member else ledger)
    return [
        {
            "purpose": printable(one.purpose),
            "from": [*map(printable, one.senders)],
            "to": [*map(printable, one.receivers)],
            "step": printable(one.step),
            "key": printable(one.key),
            "reveals": printable(one.reveals),
            "mechanism": printable(one.mechanism),
            "epsilon": spelt(one.account),
            "messages": one.messages,
            "bytes": one.bytes,
            **{end: None if at is None else at.isoformat() for end, at in (("first", one.first), ("last", one.last))},
        }
        for one in kinds
    ]


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


def _in_all(ledger: pa.Table, whose: str) -> list[str]:
    lines, whole = [], dict.fromkeys(("up", "down", "peer"), 0)
    for purpose, sums in totals(ledger):
        lines.append(f"{purpose or 'purpose not specified'}: {_moved(sums, whose)}")
        whole = {way: whole[way] + sums[way] for way in whole}
    return [*lines, f"in all: {_moved(whole, whose)}"]


def _moved(sums: dict[str, int], whose: str) -> str:
    between = f", {decimal(sums['peer'])} passed between members" if sums["peer"] else ""
    reached = f", {decimal(sums['down'])} reached {'it' if whose == 'member' else 'them'}" if sums["down"] else ""
    return f"{decimal(sums['up'])} left the {whose}{reached}{between}"


def _costs(ledger: pa.Table, member: str, everyone: int) -> list[str]:
    """The ε that each member spent; members with the same ε share a line."""
    spent = {name: bounds for name, bounds in of_members(ledger).items() if not member or name == member}
    alike: dict[Bound, list[str]] = {}
    for name, bounds in spent.items():
        for bound in bounds:
            alike.setdefault(bound, []).append(name)
    lines = [f"{who(sorted(names), everyone)}: {_priced(bound)}" for bound, names in alike.items()]
    return [*(sorted(lines) or ["no ε follows from anything that was sent"]), *remarks(alike)]


def _priced(bound: Bound) -> str:
    at = "" if bound.delta is None else f" at δ = {bound.delta:g}"
    remark = f", which {bound.remark}" if bound.remark else ""
    messages = counted(bound.messages, "message")
    return f"ε = {bound.epsilon:.4g}{at} per {bound.per} after {messages}{remark}"
