"""A statement of account as a document to print."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import chain

import pyarrow as pa

from fedweave.accounts.document import Document, Section, Tile, grid
from fedweave.accounts.ledger import period
from fedweave.accounts.statements import Account, value_words
from fedweave.core.text import counted, percent
from fedweave.core.types import Record
from fedweave.experiment.config.toml import section
from fedweave.experiment.runs.reading import Run
from fedweave.incentives.rules import PAYOFF, RULES, TIMES, GainsRule, Summand, to_digits
from fedweave.incentives.statement import MEASURES, SCHEMA
from fedweave.metrics.selection import selection_metric_of, title_of

_NAMES = {"alignment": "alignment φ", "diversity": "diversity d", "leave_one_out": "leave-one-out", "density": "reward"}
_MEANINGS = {
    "alignment": "Alignment is the cosine of a member's update with the joint one.",
    "diversity": "Diversity is a member's share of all known motifs.",
    "leave_one_out": "Leave-one-out is what the member's update adds to a round's joint model: the gain in {gains}.",
    "density": "Reward is the share of the joint update's entries that a member got.",
}
_AMOUNT = "A member is owed its share of the budget, in whole cents."
_SUMS = "The budget of a round is {budget} {currency}; amounts are in whole cents."
_SEALED = (
    "The hashes stand for the run (its configuration and every member's ledger) and for all lines of the whole "
    "statement. A member checks its lines, with its own ledger, by"
)
MAX_WORKINGS = 12  # rows that show how an amount follows
CENT = Decimal("0.01")
NONE = "-"
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

    # 1. Facts.
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
    empty = ", ".join(map(str, whole.empty))
    warnings = [whole.warning] if whole.warning else []
    if empty:
        warnings.append(f"In rounds {empty} there was nothing to divide.")

    # 2. Totals: a line for each member, and one for all if there are several.
    measures = [name for name in MEASURES if table[name].null_count < len(table)]
    all_titles = _NAMES | {"value": whole.rule.number}
    titles = {name: all_titles[name] for name in measures}
    fines = any(row["fined"] for row in member_totals)
    totals = [_total_line(row["member"], str(row["rounds"]), row, titles, fines) for row in member_totals]
    if member:
        totals_grid = grid(totals, ("member",))
    else:
        sums: Record = {"currency": whole.terms.currency}
        for name in ("paid", "fined", "pay"):
            sums[name] = sum((row[name] for row in member_totals), Decimal())
        totals.append(_total_line("all members", str(whole.covers or rounds), sums, titles, fines))
        totals_grid = grid(totals, ("member",), 1)
    meanings = [_MEANINGS[name].format(gains=whole.gains) for name in measures if name in _MEANINGS]
    means = " ".join(["Measures are means over rounds here.", *meanings])
    every_total = Section("Totals", () if whole.covers else (means,), grid=totals_grid)

    # 3. The rule of pay, in words and with a member's numbers.
    metric = title_of(selection_metric_of(run.summary["metrics"]))
    sums_text = _SUMS.format(budget=money(_budget(whole, 1)), currency=whole.terms.currency)
    cap = section(run.config, "pay").get("cap")
    words = [whole.rule.words.format(metric=metric), _AMOUNT if whole.covers else sums_text]
    if not whole.covers:
        values = value_words(run.config)
        words.insert(0, f"r: {values}" if values else "r is the member's value in a round, by the algorithm.")
    elif cap:
        words.append(f"No member is owed more than {cap:g} {TIMES} its share by size; others get what that cuts off.")
    rule = (f"`{whole.rule.formula}`", " ".join(words))
    if member:
        first = replace(_own_working(whole, member, rows), text=rule)
        further = replace(every_total, hint="means of the measures, and what is owed and fined")
    else:
        first, further = every_total, Section("How pay follows", rule, hint="the rule, as formula and in words")

    # 4. The lines, how to check them, and a line for each signature on paper.
    lines = grid([_line(whole, row, measures, all_titles) for row in rows], ("member", "why"))
    code = (command, f"run {whole.run}", f"statement {whole.digest.digest}")
    signers = [dict(zip(_SIGNATURES, (signer, "", ""), strict=True)) for signer in ("who issues this", *members)]
    return Document(
        title=f"Statement of account{f' of {member}' if member else ''}: {about}",
        number=number,
        facts=facts,
        warnings=tuple(warnings),
        sections=(
            first,
            further,
            Section(
                "The whole run" if whole.covers else "Round by round",
                grid=lines,
                hint="every line of the statement, with the reason of its amount",
            ),
            Section("How to check this", (_SEALED,), code=code, hint="the command, and the hashes that seal this"),
            Section("Signatures", grid=grid(signers, _SIGNATURES), hint="lines to sign on paper"),
        ),
        subtitle=" · ".join((f"issued {issued:%Y-%m-%d}", covered, number)),
        verdict=_verdict(whole, member_totals, members, rounds, metric),
        sign=-1 if member and member_totals[0]["pay"] < 0 else 0,
        tiles=_tiles(whole, member_totals, rows, run, command, metric),
    )


def _budget(whole: Account, rounds: int) -> Decimal:
    """What all members share in the rounds of these lines."""
    return Decimal(whole.terms.cents).scaleb(-2) * (1 if whole.covers else rounds)


def _percent(part: Decimal, budget: Decimal) -> str:
    return percent(float(part / budget)) if budget else NONE


def _verdict(whole: Account, totals: list[Record], members: list[str], rounds: int, metric: str) -> str:
    """What is paid and by which rule, in a sentence."""
    budget, currency = _budget(whole, rounds), whole.terms.currency
    count = counted(len(whole.ledgers), "member")
    by = whole.rule.title + (f" in {metric}" if isinstance(whole.rule, GainsRule) else "")
    during = "for the whole run" if whole.covers else f"over {counted(rounds, 'round')}"
    if len(totals) == 1:
        pay = totals[0]["pay"]
        part = f"{_percent(pay, budget)} of the {money(budget)} that {count} share {by}"
        return f"{members[0]} {'is owed' if pay >= 0 else 'owes'} {money(abs(pay))} {currency} {during}: {part}."
    ordered = sorted(totals, key=lambda row: row["pay"])
    most, least = ordered[-1], ordered[0]
    ends = f"{most['member']} is owed most ({money(most['pay'])}) and {least['member']} least ({money(least['pay'])})"
    if most["pay"] - least["pay"] <= CENT:  # the rounding of equal amounts
        ends = f"each is owed {money(least['pay'])}" + (" or a cent more" if most["pay"] > least["pay"] else "")
    return f"{money(budget)} {currency} {during} are divided among {counted(len(totals), 'member')} {by}: {ends}."


def _tiles(
    whole: Account, totals: list[Record], rows: list[Record], run: Run, command: str, metric: str
) -> tuple[Tile, ...]:
    """How much, by which rule, against the others, how certain, and what to do if one disagrees."""
    rounds, currency, count = len({row["round"] for row in rows}), whole.terms.currency, len(whole.ledgers)
    budget, pay = _budget(whole, rounds), sum((row["pay"] for row in totals), Decimal())
    fined = sum((row["fined"] for row in totals), Decimal())
    owed_notes = [f"{_percent(pay, budget)} of {money(budget)}" if len(totals) == 1 else f"to {count} members"]
    owed_notes += [f"fines of {money(-fined)} are deducted"] if fined else []
    owed = Tile("Owed", f"{money(pay)} {currency}", tuple(owed_notes))
    how = [f"measured in {metric}"] if isinstance(whole.rule, GainsRule) else [f"`{whole.rule.formula}`"]
    cap = section(run.config, "pay").get("cap") if whole.covers else 0
    how += [f"at most {cap:g} {TIMES} the share by size"] if cap else []
    rule = Tile("Rule", whole.rule.title.partition(" ")[2], tuple(how))
    check = Tile("If you disagree", "check it", (f"`{command}`", "then ask who issued this, or compare your copies"))

    # Against the others.
    equal = budget / count
    against = Tile("An equal share", money(equal), (f"{money(budget)} / {count} members",))
    if len(totals) == 1 and equal:
        ratio = f"{float(pay / equal):.2f} {TIMES} equal"
        against = Tile("Against the others", ratio, (f"an equal share of {count} members: {money(equal)}",))

    # How certain: single rounds, and one seed.
    seed = f"one run, seed {run.summary.get('seed')}: another seed gives other amounts"
    certain = Tile("How certain", "no interval", (seed,))
    errors = run.server_values(f"{whole.rule.needs}_error") if whole.rule.needs else {}
    if any(chain.from_iterable(by_round.values() for by_round in errors.values())):
        certain = replace(certain, notes=(*certain.notes, "values are estimates from sampled orders of members"))
    if whole.covers and not isinstance(whole.rule, GainsRule):
        equal_parts = whole.rule is RULES["equal"]
        why = "follows from the number of members" if equal_parts else "sizes are as members report them"
        certain = Tile("How certain", "exact", (why,))
    elif len(totals) == 1:
        ends = whole.workings[totals[0]["member"]].ends if whole.covers else None
        if not whole.covers and rounds > 1:
            amounts = [row["pay"] for row in rows]
            certain = replace(
                certain, notes=(f"{money(min(amounts))} to {money(max(amounts))} a round", *certain.notes)
            )
        elif ends is not None:
            low, high = (money(budget * Decimal(end)) for end in ends)
            notes = (f"single rounds alone would give {low} to {high}", *certain.notes)
            certain = replace(certain, notes=notes)
    return owed, rule, against, certain, check


def _own_working(whole: Account, member: str, rows: list[Record]) -> Section:
    """How a member's amount follows, with its numbers, which add up to it."""
    currency, head = whole.terms.currency, f"amount, {whole.terms.currency}"
    lines, total = list[dict[str, str]](), sum((row["pay"] for row in rows), Decimal())
    shown = Decimal()
    if whole.covers:
        budget = _budget(whole, 1)
        summands = whole.workings[member].summands
        large = sorted(range(len(summands)), key=lambda at: -abs(summands[at].share))[:MAX_WORKINGS]
        rest = [one for at, one in enumerate(summands) if at not in large]
        chosen = [one for at, one in enumerate(summands) if at in large]
        if rest:
            chosen.append(Summand(f"{len(rest)} more", "in “The whole run”", sum(one.share for one in rest)))
        for one in chosen:
            amount = (Decimal(one.share) * budget).quantize(CENT)
            shown += amount
            line = {"from": one.source, head: money(amount)}
            lines.append(line | {f"share of {money(budget)} {currency}": one.numbers, "= share": f"{one.share:.6f}"})
    else:
        workings = PAYOFF.workings(pa.Table.from_pylist(rows, SCHEMA))
        few = len(rows) <= MAX_WORKINGS
        for row in rows if few else rows[: MAX_WORKINGS - 1]:
            line = {"round": str(row["round"]), head: money(row["pay"])}
            known = workings.get(row["round"])
            for at, name in enumerate(("r", "mean of r before", "μ")):
                line[name] = NONE if known is None else f"{known[at]:.6f}"
            divisor = whole.sums.get(row["round"])
            lines.append(line | {"sum of all r + μ": f"{divisor:.6f}" if divisor else NONE})
            shown += row["pay"]
        if not few:
            last = dict.fromkeys(lines[0], "") | {"round": f"{rows[MAX_WORKINGS - 1]['round']} to {rows[-1]['round']}"}
            lines.append(last | {head: money(total - shown)})
            shown = total
    names = [*lines[0]]
    if shown != total:
        lines.append(dict.fromkeys(names, "") | {names[0]: "rounding to whole cents", head: money(total - shown)})
    lines.append(dict.fromkeys(names, "") | {names[0]: "owed", head: money(total)})
    words = (names[0], names[2]) if whole.covers else (names[0],)
    return Section("How the amount follows", grid=grid(lines, words, 1))


def _total_line(name: str, rounds: str, row: Record, titles: Mapping[str, str], with_fines: bool) -> dict[str, str]:
    """titles: of the measures, whose means are in the line."""
    means = {title: _number(row[measure]) if measure in row else "" for measure, title in titles.items()}
    amounts = {f"owed, {row['currency']}": money(row["pay"])}
    if with_fines:
        amounts = {"owed": money(row["paid"]), "fined": money(row["fined"])}
        amounts[f"total, {row['currency']}"] = money(row["pay"])
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
