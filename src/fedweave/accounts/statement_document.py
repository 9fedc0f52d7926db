"""A statement of account as a document to print."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

import pyarrow as pa

from fedweave.accounts.document import Document, Section, grid
from fedweave.accounts.ledger import period
from fedweave.accounts.statements import Account
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.experiment.config.toml import section
from fedweave.experiment.runs.reading import Run
from fedweave.incentives.rules import to_digits
from fedweave.incentives.statement import MEASURES
from fedweave.metrics.selection import selection_metric_of, title_of

_NAMES = {"alignment": "alignment φ", "diversity": "diversity d", "leave_one_out": "leave-one-out", "density": "reward"}
_MEANINGS = {
    "alignment": "Alignment is the cosine of a member's update with the joint one.",
    "diversity": "Diversity is a member's share of all known motifs.",
    "leave_one_out": "Leave-one-out is what the member's update adds to a round's joint model: the gain in {gains}.",
    "density": "Reward is the share of the joint update's entries that a member got.",
}
_AMOUNT = "A member is owed its share of the budget, in whole cents."
_SUMS = "The sum is in the column “sum”, and amounts are in whole cents."
_SEALED = (
    "The hashes stand for the run (its configuration and every member's ledger) and for all lines of the whole "
    "statement. A member checks its lines, with its own ledger, by"
)
_SIGNATURES = ("for", "name and function", "date, signature")


def document(whole: Account, table: pa.Table, about: str, command: str, run: Run, issued: date) -> Document:
    """A statement with the lines `table`: all lines of the statement or one member's.

    about: name of the run. run: gives the period from its ledger and the members' legal names from [pay]. issued: the
    day of issue.
    """
    rows, member_totals = table.to_pylist(), whole.totals(table).to_pylist()
    rounds = len({row["round"] for row in rows})
    member = member_totals[0]["member"] if len(member_totals) == 1 else ""
    number = f"SA-{whole.digest.digest[:12].upper()}{f'/{member}' if member else ''}"

    # 1. Facts and lead.
    legal_names = section(run.config, "pay").get("names", {})
    members = []
    for row in member_totals:
        name = row["member"]
        members.append(f"{legal_names[name]} ({name})" if name in legal_names else name)
    if whole.covers:
        covered = f"{counted(run.done, 'round')}, for all of them together"
    else:
        numbers = f"{rows[0]['round']} to {rows[-1]['round']}" if rounds > 1 else str(rows[0]["round"])
        covered = f"{counted(rounds, 'round')} with pay, {numbers}"
    facts = (
        ("number", number),
        ("issued", f"{issued:%Y-%m-%d}"),
        ("period", f"{period(run.ledger)}; {covered}"),
        ("members", ", ".join(members)),
        ("currency", whole.terms.currency),
    )
    lead = _lead(whole, len(member_totals), rounds, sum((row["pay"] for row in member_totals), Decimal()))
    empty = ", ".join(map(str, whole.empty))

    # 2. Totals: a line for each member, and one for all if there are several.
    measures = [name for name in MEASURES if table[name].null_count < len(table)]
    all_titles = _NAMES | {"value": whole.rule.number}
    titles = {name: all_titles[name] for name in measures}
    totals = [_total_line(row["member"], str(row["rounds"]), row, titles) for row in member_totals]
    if member:
        totals_grid = grid(totals, ("member",))
    else:
        sums: Record = {"currency": whole.terms.currency}
        for name in ("paid", "fined", "pay"):
            sums[name] = sum((row[name] for row in member_totals), Decimal())
        totals.append(_total_line("all members", str(whole.covers or rounds), sums, titles))
        totals_grid = grid(totals, ("member",), 1)
    meanings = [_MEANINGS[name].format(gains=whole.gains) for name in measures if name in _MEANINGS]
    means = " ".join(["Measures are means over rounds here.", *meanings])

    # 3. The rule of pay, the lines, how to check them, and a line for each signature on paper.
    metric = title_of(selection_metric_of(run.summary["metrics"]))
    rule = f"{whole.rule.words.format(metric=metric)} {_AMOUNT if whole.covers else _SUMS}"
    lines = grid([_line(whole, row, measures, all_titles) for row in rows], ("member", "why"))
    code = (command, f"run {whole.run}", f"statement {whole.digest.digest}")
    signers = [dict(zip(_SIGNATURES, (signer, "", ""), strict=True)) for signer in ("who issues this", *members)]
    return Document(
        title=f"Statement of account{f' of {member}' if member else ''}: {about}",
        number=number,
        facts=facts,
        lead=(whole.warning, lead) if whole.warning else (lead,),
        warnings=(f"In rounds {empty} there was nothing to divide.",) if empty else (),
        sections=(
            Section("Totals", () if whole.covers else (means,), grid=totals_grid),
            Section("How pay follows", (rule,), code=(whole.rule.formula,)),
            Section("The whole run" if whole.covers else "Round by round", grid=lines),
            Section("How to check this", (_SEALED,), code=code),
            Section("Signatures", grid=grid(signers, _SIGNATURES)),
        ),
    )


def _lead(whole: Account, members: int, rounds: int, pay: Decimal) -> str:
    """What is paid, in a sentence."""
    budget, currency = money(Decimal(whole.terms.cents).scaleb(-2)), whole.terms.currency
    if whole.covers:
        return f"{budget} {currency} for the whole run: {money(pay)} owed to {counted(members, 'member')}."
    during = counted(rounds, "round")
    if members == 1:
        return f"{money(pay)} {currency} over {during}, of {budget} {currency} that all members share in a round."
    return f"{budget} {currency} a round over {during}: {money(pay)} {currency} among {members} members."


def _total_line(name: str, rounds: str, row: Record, titles: Mapping[str, str]) -> dict[str, str]:
    """titles: of the measures, whose means are in the line."""
    means = {title: _number(row[measure]) if measure in row else "" for measure, title in titles.items()}
    amounts = {"owed": money(row["paid"]), "fined": money(row["fined"]), f"total, {row['currency']}": money(row["pay"])}
    return {"member": name, "rounds": rounds, **means, **amounts}


def _line(whole: Account, row: Record, measures: list[str], titles: Mapping[str, str]) -> dict[str, str]:
    """One line of the statement: a member in a round."""
    line = {"round": str(row["round"]), "member": row["member"]}
    line |= {titles[name]: _number(row[name]) for name in measures if name != "value"}
    if row["value"] is not None:
        line[titles["value"]] = to_digits(row["value"])
    total = whole.sums.get(row["round"])
    if total and not whole.covers:
        line["sum"] = to_digits(total)
    return line | {f"pay, {row['currency']}": money(row["pay"]), "why": row["reason"]}


def money(amount: Decimal) -> str:
    """An amount with its cents, such as 1,234.50, with a proper minus sign."""
    return f"{amount:,.2f}".replace("-", "\N{MINUS SIGN}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
