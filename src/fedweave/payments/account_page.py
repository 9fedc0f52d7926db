"""A statement of account as a document to print."""

from decimal import Decimal

import pyarrow as pa

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.incentives.statement import MEASURES, totals
from fedweave.payments.accounts import Account
from fedweave.report.document import Document, Grid, Section, grid
from fedweave.report.flows import period

NAMES = {
    "alignment": "alignment φ",
    "diversity": "diversity d",
    "value": "value r",
    "leave_one_out": "leave-one-out",
    "density": "reward",
}

MEANT = {
    "alignment": "Alignment is the cosine of a member's update with the joint one.",
    "diversity": "Diversity is a member's share of all known motifs.",
    "value": "Pay is in proportion to value and, where it is positive, to late contribution: value above the member's "
    "own mean in the rounds before.",
    "leave_one_out": "Leave-one-out is what the member's update adds to a round's joint model: the gain in {gains}.",
    "density": "Reward is the share of the joint update's entries that a member got.",
}
_SEALED = (
    "The hashes stand for the run (its configuration and every member's ledger) and for all lines of the whole "
    "statement. A member checks its lines, with its own ledger, by"
)


def document(whole: Account, table: pa.Table, about: str, command: str, ledger: pa.Table) -> Document:
    """The lines `table`, all of a statement or one member's; about: what the run is called. ledger: the run's, whose
    times are the period."""
    rows, found = table.to_pylist(), totals(table).to_pylist()
    rounds = len({row["round"] for row in rows})
    measures = [name for name in MEASURES if any(row[name] is not None for row in rows)]
    means = [MEANT[name].format(gains=whole.gains) for name in measures]
    one = f" of {found[0]['member']}" if len(found) == 1 else ""
    pay = sum((row["pay"] for row in found), Decimal())
    numbers = f"{rows[0]['round']} to {rows[-1]['round']}" if rounds > 1 else str(rows[0]["round"])
    return Document(
        title=f"Statement of account{one}: {about}",
        number=(number := f"SA-{whole.digest.digest[:12].upper()}{f'/{one[4:]}' if one else ''}"),
        facts=(
            ("number", number),
            ("period", f"{period(ledger)}; {counted(rounds, 'round')} with pay, {numbers}"),
            ("members", ", ".join(row["member"] for row in found)),
            ("currency", whole.terms.currency),
        ),
        lead=(*filter(None, [whole.warning]), _lead(whole, len(found), rounds, pay)),
        warnings=_empty(whole),
        sections=(
            Section(
                "Totals",
                (" ".join(["Measures are means over rounds here.", *means]),),
                grid=_totals(found, measures, rounds),
            ),
            Section("Round by round", grid=grid([_line(row, measures) for row in rows], ("member", "why"))),
            Section(
                "How to check this", (_SEALED,), code=(command, f"run {whole.run}", f"statement {whole.digest.digest}")
            ),
        ),
    )


def money(amount: Decimal) -> str:
    """An amount with its cents, such as 1,234.50, with a proper minus sign."""
    return f"{amount:,.2f}".replace("-", "\N{MINUS SIGN}")


def _empty(whole: Account) -> tuple[str, ...]:
    rounds = ", ".join(map(str, whole.empty))
    return (f"In rounds {rounds} there was nothing to divide.",) if rounds else ()


def _totals(found: list[Record], measures: list[str], rounds: int) -> Grid | None:
    rows = [_total(row["member"], str(row["rounds"]), row, measures) for row in found]
    if len(found) < 2:
        return grid(rows, ("member",))
    amounts: Record = {name: sum((row[name] for row in found), Decimal()) for name in ("paid", "fined", "pay")}
    whole = amounts | {"currency": found[0]["currency"]}
    return grid([*rows, _total("all members", str(rounds), whole, measures)], ("member",), 1)


def _total(name: str, rounds: str, row: Record, measures: list[str]) -> dict[str, str]:
    means = {NAMES[one]: _number(row[one]) if one in row else "" for one in measures}
    amounts = {"paid": money(row["paid"]), "fined": money(row["fined"]), f"total, {row['currency']}": money(row["pay"])}
    return {"member": name, "rounds": rounds, **means, **amounts}


def _line(row: Record, measures: list[str]) -> dict[str, str]:
    shown = {NAMES[one]: _number(row[one]) for one in measures}
    pay = {f"pay, {row['currency']}": money(row["pay"])}
    return {"round": str(row["round"]), "member": row["member"], **shown, **pay, "why": row["reason"]}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _lead(whole: Account, members: int, rounds: int, pay: Decimal) -> str:
    budget, currency = money(Decimal(whole.terms.cents).scaleb(-2)), whole.terms.currency
    during = counted(rounds, "round")
    if members == 1:
        return f"{money(pay)} {currency} over {during}, of {budget} {currency} that all members share in a round."
    return f"{budget} {currency} a round over {during}: {money(pay)} {currency} among {members} members."
