"""What left each member, and its ε, as tables of the report."""

from rich.filesize import decimal

from fedweave.accounts.compliance import Disclosure
from fedweave.accounts.ledger import called, meaning, protected, stamp, who
from fedweave.errors import listed
from fedweave.privacy.accountant import Bound
from fedweave.reports.cells import NONE, Cell, ResultTable, shorten


def flow_table(disclosure: Disclosure, times: bool = True) -> ResultTable:
    """A line for each kind of message, with the times of the first and the last one if `times` is set."""
    everyone, rows = len(disclosure.members), []
    for one in disclosure.flows:
        both = [Cell(who(names, everyone), listed(names)) for names in (one.senders, one.receivers)]
        words = (Cell(called(one)), Cell(meaning(one)), Cell(protected(one)))
        sizes = (Cell(f"{one.messages:,}"), Cell(decimal(one.bytes), f"{one.bytes} bytes"))
        dates = (Cell(stamp(one.first)), Cell(stamp(one.last, one.first))) if times else ()
        rows.append((Cell(one.purpose or "not specified"), *both, *words, *sizes, *dates))
    head = ("what for", "from", "to", "call and key", "what the receiver learns", "mechanism", "messages", "bytes")
    return ResultTable((*head, *(("first (UTC)", "last (UTC)") if times else ())), tuple(rows), words=6)


def privacy_table(disclosure: Disclosure) -> ResultTable:
    """The ε of all that each member sent; members with the same ε share a row, the largest first; no row where none
    follows."""
    alike: dict[Bound, list[str]] = {}
    for name, bound in disclosure.costs:
        alike.setdefault(bound, []).append(name)
    rows = [
        (Cell(who(names, len(disclosure.members))), Cell(f"per {bound.per}"), Cell(bound.remark),
         Cell(f"{bound.epsilon:.4g}", repr(bound.epsilon)), Cell(NONE if bound.delta is None else f"{bound.delta:g}"),
         Cell(f"{bound.messages:,}"))
        for bound, names in sorted(alike.items(), key=lambda item: -item[0].epsilon)
    ]  # fmt: skip
    return ResultTable(("member", "of what", "which", "ε", "δ", "messages"), shorten(rows), words=3)
