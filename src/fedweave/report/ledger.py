"""A ledger for a terminal, and as rows for other programs.

Besides, in plain words, what was pooled of members' data although no message shows it.
"""

import csv
import io
from collections.abc import Sequence

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedweave.core.mechanism import Account
from fedweave.core.purposes import FRAMING
from fedweave.core.records import Record
from fedweave.core.text import cell, counted, printable
from fedweave.errors import listed
from fedweave.experiment.config import Document
from fedweave.privacy.spent import Bound, of_members, remarks
from fedweave.report.document import unmarked
from fedweave.report.flows import UNTOLD, Flow, flows, members, of_member, stamp, totals, unbounded, who

POOLED = (
    "This baseline needs all members' features, labels and edges at one place. The rows below are what that place "
    "exchanged; that every member handed over everything is not among them."
)
SCALED = {
    "simulation": "Features are scaled (normalise = {how!r}) by numbers over all nodes, which this simulation computed "
    "of the whole data before it was cut; the exchange “(scale)” is what members would send to get them.",
    "flare": "Every site scales its features by its own numbers, or leaves them as they are, as its own site.toml "
    "says; nothing left for that, and the experiment's normalise = {how!r} counts in simulations alone. Data that "
    "`fedweave sites init --split` cut for sites had been scaled by it before, by numbers over all nodes.",
}


def pooled(config: Document, at_one_place: bool) -> list[str]:
    """Sentences on a run: whether all its data was `at_one_place`, and by which numbers features were scaled."""
    if at_one_place:
        return [POOLED]
    how, engine = config.get("data", {}).get("normalise", "none"), config.get("engine", {}).get("name", "simulation")
    own = how in ("none", "row", "binary", "auto")  # each row, or client, by itself; see `datasets.features`
    return [] if own or engine not in SCALED else [SCALED[engine].format(how=how)]


DELTA = 1e-5  # of the ε of Gaussian noise


def show_ledger(console: Console, ledger: pa.Table, member: str = "") -> None:
    """Who sent what to whom, one line for each kind; how much for which purpose; and what it cost in ε.

    member: only what that one sent and received.

    Raises:
        UserError: there is no such member.
    """
    known = members(ledger)
    ledger = of_member(ledger, member) if member else ledger
    say(console, f"member {member}" if member else _all(known))
    found = flows(ledger)
    console.print(flow_table(found, len(known)))
    for line in (*_in_all(ledger, "member" if member else "members"), *_costs(ledger, member, len(known))):
        say(console, line)
    if bare := unbounded(found):
        say(console, bare)


def flow_table(found: Sequence[Flow], everyone: int, delta: float = DELTA) -> Table:
    """A line for each kind of message; ε of Gaussian noise is stated at `delta`."""
    table = Table("what for", "from → to", box=SIMPLE_HEAD)
    table.add_column("call and key")
    table.add_column("what the receiver learns", min_width=16)
    table.add_column("mechanism")
    for heading in ("messages", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("first, last (UTC)")
    for one in found:
        ends = f"{who(one.senders, everyone)} → {who(one.receivers, everyone)}"
        words = (one.purpose or "not said", ends, called(one), told(one), protected(one, delta))
        counts = (f"{one.messages:,}", decimal(one.bytes))
        table.add_row(
            *map(unmarked, (*words, *counts, f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", ")))
        )
    return table


def row(one: Flow, delta: float = DELTA) -> dict[str, str]:
    """The same as a row of what left one member, for a page."""
    return {
        "what for": one.purpose or "not said",
        "to": who(one.receivers, 0),
        "call and key": called(one),
        "what the receiver learns": told(one),
        "mechanism": protected(one, delta),
        "messages": f"{one.messages:,}",
        "bytes": f"{one.bytes:,}",
        "first, last (UTC)": f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", "),
    }


def protected(one: Flow, delta: float = DELTA) -> str:
    """What was done to it, and the ε that all messages of the kind cost the member who sent most."""
    cost = one.account.cost
    spent = f"; in all ε = {spelt(one.account, delta)}" if cost.epsilon or cost.squared_mu else ""
    return f"{one.mechanism}{spent}"


def called(one: Flow) -> str:
    """Which call, and which part of its message."""
    return one.key if one.key == FRAMING else f"{one.step}: {one.key}"


def told(one: Flow) -> str:
    """What the receiver learns, or that nobody says."""
    return one.reveals or ("" if one.key == FRAMING else UNTOLD)


def spelt(account: Account, delta: float = DELTA) -> str:
    """What releases cost at that δ, in words; "" of none that is counted."""
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    bounded = account.cost.epsilon or account.cost.squared_mu
    words = [f"{total_epsilon(account.cost, delta):.4g}"] if bounded else []
    return " and ".join([*words, *(["no bound"] if account.cost.unbounded else [])])


def say(console: Console, line: str) -> None:
    """A line of text, as it is."""
    console.print(unmarked(line), highlight=False, soft_wrap=True)


def as_rows(ledger: pa.Table, member: str = "") -> list[Record]:
    """The kinds of messages for other programs: all names are written out, times are ISO 8601; what could control a
    terminal, or hide in it, is escaped."""
    found = flows(of_member(ledger, member) if member else ledger)
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
        for one in found
    ]


def as_csv(rows: Sequence[Record]) -> str:
    """The same with a line of headings; several names are separated by spaces, and words that a spreadsheet would take
    for a formula begin with an apostrophe."""
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
        lines.append(f"{purpose or 'not said what for'}: {_moved(sums, whose)}")
        whole = {way: whole[way] + sums[way] for way in whole}
    return [*lines, f"in all: {_moved(whole, whose)}"]


def _all(known: Sequence[str]) -> str:
    return f"{counted(len(known), 'member')}: {listed(known)}"


def _moved(sums: dict[str, int], whose: str) -> str:
    between = f", {decimal(sums['peer'])} passed between members" if sums["peer"] else ""
    reached = f", {decimal(sums['down'])} reached {'it' if whose == 'member' else 'them'}" if sums["down"] else ""
    return f"{decimal(sums['up'])} left the {whose}{reached}{between}"


def _costs(ledger: pa.Table, member: str, everyone: int) -> list[str]:
    """The ε that each member spent, alike ones together."""
    spent = {name: own for name, own in of_members(ledger).items() if not member or name == member}
    alike: dict[Bound, list[str]] = {}
    for name, own in spent.items():
        for bound in own:
            alike.setdefault(bound, []).append(name)
    lines = [f"{who(sorted(names), everyone)}: {_priced(bound)}" for bound, names in alike.items()]
    return [*(sorted(lines) or ["no ε follows from anything that was sent"]), *remarks(alike)]


def _priced(bound: Bound) -> str:
    at = "" if bound.delta is None else f" at δ = {bound.delta:g}"
    remark = f", which {bound.remark}" if bound.remark else ""
    messages = counted(bound.messages, "message")
    return f"ε = {bound.epsilon:.4g}{at} per {bound.per} after {messages}{remark}"
