"""Statements of account of a run: lines from the server's measurements of each client, and a seal that verifies them.

The run's hash is SHA-256 of its configuration and of every member's ledger. A member's own ledger therefore shows
whether a statement is about the run that the member took part in.

A member recomputes its pay from its own lines by the rule that paid (`incentives.rules`). They lack only the sum over
all members, one number a round.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.algorithms.parts import has
from fedweave.algorithms.preset import Preset
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.config import Document as ConfigDocument
from fedweave.experiment.config import config_hash
from fedweave.experiment.config.sections import PaySettings
from fedweave.experiment.config.toml import part_tables, section
from fedweave.experiment.runs.files import CONTRIBUTIONS, read_table
from fedweave.experiment.runs.reading import Run
from fedweave.incentives.coalitions import GAINS_IN, MEASURED_ON, WEIGHT, measured_by
from fedweave.incentives.payoffs import Payoffs, limit_shares
from fedweave.incentives.rules import PAYOFF, RULES, SIZE, TIMES, Basis, GainsRule, Rule, Summand, to_digits
from fedweave.incentives.statement import (
    MEASURES,
    Digest,
    StatementRound,
    Terms,
    digest,
    of_member,
    reasons,
    statement,
    totals,
)

PAYOFF_MEASURE, COMPENSATION = "payoff", "compensation"  # measures of the part "payoff"
_MAX_ERROR = 1 + 1e-6  # in cents, of an amount: a largest remainder's rounding, and rounding of floats
_OF_LEDGER = ("round", "call", "step", "direction", "key", "shape", "bytes", "mechanism", "reveals", "to", "applied")


class Working(NamedTuple):
    """How a member's share of the budget of a whole run follows. summands: what it adds up from. ends: the smallest and
    the largest share that a single round would give; None where shares do not depend on rounds."""

    summands: tuple[Summand, ...]
    ends: tuple[float, float] | None = None


class Account(NamedTuple):
    """A statement of account.

    table: its lines (`incentives.statement.SCHEMA`). terms, run, digest: terms, the run's hash and the digest. config,
    ledgers: the hashes that make the run's hash. sums: divisor of each round's pay (`sums`), 0 without pay. rule: by
    which it pays. covers: the number of rounds that one line is of, 0 where there is a line for each. gains: the metric
    of leave-one-out values, "" without them. warning: a note to read before anything is paid (`one_class`). workings:
    of a whole run, how each member's share follows.
    """

    table: pa.Table
    terms: Terms
    run: str
    digest: Digest
    config: str
    ledgers: dict[str, str]
    sums: dict[int, float]
    rule: Rule
    covers: int = 0
    gains: str = ""
    warning: str = ""
    workings: Mapping[str, "Working"] = {}

    def totals(self, table: pa.Table) -> pa.Table:
        """`incentives.statement.totals` of lines of this statement, with the number of rounds that they cover."""
        sums = totals(table)
        if not self.covers:
            return sums
        return sums.set_column(sums.column_names.index("rounds"), "rounds", pa.array([self.covers] * len(sums)))

    @property
    def empty(self) -> tuple[int, ...]:
        """The rounds in which there was nothing to divide."""
        return tuple(number for number, total in self.sums.items() if not total)

    def seal(self) -> Record:
        """Everything but the lines, as a JSON document."""
        warning = {"warning": self.warning} if self.warning else {}
        return warning | {
            "budget": str(self.terms.budget),
            "currency": self.terms.currency,
            "run": self.run,
            "config": self.config,
            "ledgers": self.ledgers,
            "sums": self.sums,
            "start": self.digest.start,
            "lines": list(self.digest.lines),
            "digest": self.digest.digest,
        }


def account(run: Run) -> Account:
    """The statement of a run whose algorithm pays."""
    terms = terms_of(run.config, run.directory)
    rule, workings = rule_of(run.config), dict[str, Working]()
    if in_total(run.config):
        whole, rule, workings = _whole_run(run)
        rounds = [whole]
    else:
        rounds = _rounds(run)
    paid_rounds = [entry for entry in rounds if float(entry.pay.sum()) > 0]
    if not paid_rounds:
        raise UserError(
            f"in {run.directory} no member is owed anything yet; choose an algorithm with payoffs, such as fairgraphfl."
        )
    table = statement(terms, paid_rounds)
    divisors = sums(table, terms, rule)
    divisors |= {entry.number: 0.0 for entry in rounds if not float(entry.pay.sum()) > 0}
    divisors = dict(sorted(divisors.items()))
    gains = ""
    if (run.directory / CONTRIBUTIONS).is_file():  # the file of `fedweave contributions`
        metadata = read_table(run.directory, CONTRIBUTIONS).schema.metadata or {}
        gains = metadata.get(GAINS_IN, b"").decode(errors="replace") or "accuracy"
        if MEASURED_ON in metadata:
            gains += f" on {metadata[MEASURED_ON].decode(errors='replace')}"
    config = config_hash(run.config)
    ledgers = {member: ledger_hash(run.ledger, member) for member in _members(run)}
    hash_of_run = run_hash(config, ledgers)
    return Account(
        table=table,
        terms=terms,
        run=hash_of_run,
        digest=digest(table, terms, hash_of_run, divisors),
        config=config,
        ledgers=ledgers,
        sums=divisors,
        rule=rule,
        covers=run.done if in_total(run.config) else 0,
        gains=gains,
        warning=one_class(run),
        workings=workings,
    )


def in_total(config: ConfigDocument) -> bool:
    """Whether [pay] sets one budget for the whole run."""
    return bool(section(config, "pay").get("budget"))


def rule_of(config: ConfigDocument) -> Rule:
    """The rule by which a run's members are paid."""
    return RULES[PaySettings(**section(config, "pay")).by] if in_total(config) else PAYOFF


def _whole_run(run: Run) -> tuple[StatementRound, Rule, dict[str, Working]]:
    """Each member's pay for all rounds by the rule of [pay], with the last round's number; the rule as it pays here;
    and how each member's share follows."""
    pay = PaySettings(**section(run.config, "pay"))
    rule = rule_of(run.config)
    weights = run.server_values(WEIGHT)  # {member: {round: number of examples}}
    members = [*weights] or _members(run)
    rounds = sorted(set(chain.from_iterable(weights.values())))
    if not rounds and (rule.needs or pay.cap):
        raise UserError(
            f"pay.by = {pay.by!r}: nothing that pay could follow from was measured in {run.directory}. Train until a "
            f"round in which the part {' or '.join(rule.parts or RULES[SIZE].parts)} measures.",
            code="statement.unmeasured",
        )
    measured = {}  # {who measured: {member: {round: gain}}}
    if isinstance(rule, GainsRule):
        measured = {judge: run.server_values(measured_by(rule.needs, index)) for index, judge in enumerate(members)}
        if not all(measured.values()):
            measured = {"the server": run.server_values(rule.needs)}

    def basis_of(some_rounds: Sequence[int]) -> Basis:
        sizes = torch.ones(len(members), dtype=torch.float64, device="cpu")  # [N]
        if some_rounds:
            sizes = _sums_over_rounds(weights, members, some_rounds)
        gains = {judge: _sums_over_rounds(values, members, some_rounds) for judge, values in measured.items()}
        return Basis(members, gains, sizes / sizes.sum())

    basis = basis_of(rounds)
    rule, sizes = rule.of(basis), basis.sizes
    uncapped = rule.shares(basis)  # [N]
    if bool(uncapped.isnan().any()):
        digits = {}
        for judge, of_judge in basis.by.items():
            digits[judge] = [round(gain, 6) for gain in of_judge.tolist()]
        raise UserError(
            f"pay.by = {pay.by!r}: the gains over all rounds, {digits}, divide no budget. Measure more rounds, or "
            "agree on another rule.",
            code="user.no-positive-sum",
        )

    def capped(shares: torch.Tensor) -> torch.Tensor:
        return limit_shares(shares, sizes, pay.cap) if pay.cap else shares

    shares = capped(uncapped)
    of_rounds = torch.zeros(0, len(members), device="cpu")  # [rounds, N], shares by single rounds
    if measured:
        of_each = [rule.shares(basis_of([number])) for number in rounds]
        divided = [one for one in of_each if not bool(one.isnan().any())]
        of_rounds = torch.stack([capped(one) for one in divided])
    order = sorted(range(len(members)), key=members.__getitem__)
    explanations, workings = [], {}
    for index in order:
        text, before, after = f"share = {rule.terms(basis, index)}", float(uncapped[index]), float(shares[index])
        summands = rule.summands(basis, index)
        limit = f"{pay.cap:g} {TIMES} size {to_digits(float(sizes[index]))}"
        if after < before:
            text += f", limited to {limit}"
            summands.append(Summand("above the limit", f"at most {limit}", after - before))
        elif after > before:
            text += f" = {to_digits(before)}, and {to_digits(after - before)} of what others' limit left"
            summands.append(
                Summand("what others above the limit leave", f"to {to_digits(after)} in all", after - before)
            )
        explanations.append(text)
        ends = None
        if len(of_rounds) > 1:
            ends = float(of_rounds[:, index].min()), float(of_rounds[:, index].max())
        workings[members[index]] = Working(tuple(summands), ends)
    last_round, names = max(rounds, default=run.done), [members[index] for index in order]
    shares = shares[order]
    whole = StatementRound(last_round, names, None, None, shares, None, None, shares, explanations)
    return whole, rule, workings


def value_words(config: ConfigDocument) -> str:
    """What the values are by which members are paid in each round: the summary of the part that decides them; "" of a
    part that is not in the registry."""
    algorithm = section(config, "algorithm")
    preset = ALGORITHMS.get(str(algorithm.get("name")))
    kinds = [*preset.made_of] if isinstance(preset, Preset) else []
    for part in part_tables(algorithm):
        kind = PARTS.get(str(part["name"]))
        kinds += [kind] if kind else []
    owner = next((kind for kind in kinds if has(kind, "value")), None)
    return "" if owner is None else " ".join((inspect.getdoc(owner) or "").partition("\n\n")[0].split())


def _sums_over_rounds(
    values: Mapping[str, Mapping[int, float]], members: Sequence[str], rounds: Sequence[int]
) -> torch.Tensor:
    """The sums over rounds of {member: {round: value}}, [N]."""
    totals = torch.zeros(len(members), dtype=torch.float64, device="cpu")
    for at, member in enumerate(members):
        totals[at] = math.fsum(values[member][number] for number in rounds)
    return totals


def one_class(run: Run) -> str:
    """A warning if the model behind the payment predicts one class for all test examples, which have several."""
    metrics = run.summary["metrics"]
    if metrics.get("global/classes_predicted", metrics.get("local/classes_predicted")) != 1:
        return ""
    if metrics.get("global/accuracy", metrics.get("local/accuracy")) == 1:
        return ""  # all test examples are of this class
    return (
        f"Read this before you pay: after {counted(run.result_round, 'round')} the model predicts one class for all "
        "test examples, and contributions count in full all the same."
    )


def terms_of(config: ConfigDocument, directory: Path) -> Terms:
    """Budget and currency in the configuration of the run in `directory`: [pay], the algorithm or its part "payoff"."""
    if in_total(config):
        pay = PaySettings(**section(config, "pay"))
        return Terms(_amount(pay.budget), pay.currency)
    algorithm = section(config, "algorithm")
    for settings in (algorithm, *(part for part in part_tables(algorithm) if part.get("name") == PAYOFF_MEASURE)):
        if "currency" in settings:
            return Terms(_amount(settings["budget"]), settings["currency"])
    name = algorithm.get("name")
    add = "choose fairgraphfl or add the parts 'agent_value' and 'payoff' (small graphs), or 'size_value' and 'payoff'"
    remedy = add if "parts" in algorithm else "choose one that does"
    raise UserError(
        f"the algorithm {name!r} of {directory} pays no member, so there is no statement to write; {remedy}, or set "
        "[pay] budget."
    )


def _amount(budget: object) -> str:
    return repr(budget) if isinstance(budget, float) else str(budget)


def _members(run: Run) -> list[str]:
    return sorted(set(run.ledger["client"].to_pylist()))


def _rounds(run: Run) -> list[StatementRound]:
    """The entries of each round with payoffs for the members that took part, in order."""
    measured = {name: run.server_values(name) for name in (*MEASURES, PAYOFF_MEASURE, COMPENSATION)}
    if (run.directory / CONTRIBUTIONS).is_file():  # the file of `fedweave contributions`
        for row in read_table(run.directory, CONTRIBUTIONS).to_pylist():
            measured["leave_one_out"].setdefault(row["client"], {})[row["round"]] = row["leave_one_out"]
    payoffs = measured[PAYOFF_MEASURE]  # {member: {round: payoff}}
    entries = []
    for number in sorted(set(chain.from_iterable(payoffs.values()))):
        members = sorted(member for member, by_round in payoffs.items() if number in by_round)
        columns = {name: _column(by_member, members, number) for name, by_member in measured.items()}
        pay = torch.tensor([payoffs[member][number] for member in members], dtype=torch.float64, device="cpu")
        compensation = columns[COMPENSATION]
        reason = reasons(Payoffs(pay, torch.zeros_like(pay) if compensation is None else compensation))
        measures = {name: columns[name] for name in MEASURES}
        entries.append(StatementRound(number, members, **measures, pay=pay, reason=reason))
    return entries


def _column(by_member: dict[str, dict[int, float]], members: list[str], number: int) -> torch.Tensor | None:
    """The members' values of a round, [N]; None if one is not known."""
    values = [by_member.get(member, {}).get(number) for member in members]
    return None if None in values else torch.tensor(values, dtype=torch.float64, device="cpu")


def of_client(ledger: pa.Table, name: str) -> pa.Table:
    """A client's rows of a ledger, in order."""
    return ledger.filter(pc.equal(pc.cast(ledger["client"], pa.string()), name))


def ledger_hash(ledger: pa.Table, member: str) -> str:
    """SHA-256 of a member's rows of a ledger, in order, without their durations."""
    rows = of_client(ledger, member).select(_OF_LEDGER)
    lines = [json.dumps([*row.values()], ensure_ascii=True, separators=(",", ":")) for row in rows.to_pylist()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def run_hash(config: str, ledgers: dict[str, str]) -> str:
    """SHA-256 of the hashes of the configuration and of the members' ledgers, by name."""
    return hashlib.sha256(json.dumps([config, sorted(ledgers.items())]).encode()).hexdigest()


def sums(table: pa.Table, terms: Terms, rule: Rule) -> dict[int, float]:
    """{round: the sum of `Rule.dues`} of a whole statement, for the rounds in which every member's pay follows from
    it."""
    dues = {}  # {member: {round: due}}
    for member in pc.unique(table["member"]).to_pylist():
        dues[member] = rule.dues(of_member(table, member))
    result: dict[int, float] = {}
    for number in sorted(set(table["round"].to_pylist())):
        lines = table.filter(pc.equal(table["round"], number)).to_pylist()
        pay = {line["member"]: line["pay"] for line in lines}
        due = {member: dues[member].get(number, math.nan) for member in pay}
        total = sum(due.values())
        if all(_follows(pay[member], due[member], total, terms) for member in pay):
            result[number] = total
    return result


def check_pay(member_lines: pa.Table, totals: Mapping[int, float], terms: Terms, rule: Rule) -> list[int]:
    """Check the pay in a member's lines against `totals` (`sums`); return the rounds that cannot be checked."""
    dues = rule.dues(member_lines)
    unknown = []
    for line in member_lines.to_pylist():
        number = line["round"]
        total = totals.get(number)
        if not total or number not in dues:
            unknown.append(number)
        elif not _follows(line["pay"], dues[number], total, terms):
            amount = dues[number] / total * terms.cents / 100
            raise UserError(
                f"in round {number} the statement pays {line['pay']}, and from its values follow {amount:.2f}: one of "
                "the two was changed; ask for the statement again."
            )
    return unknown


def _follows(pay: Decimal, due: float, total: float, terms: Terms) -> bool:
    """Whether a member's pay is its share of the budget, due / total, in whole cents."""
    if not total > 0:  # also of NaN
        return False
    expected_cents = due / total * terms.cents
    return abs(float(pay) * 100 - expected_cents) < _MAX_ERROR + 1e-9 * abs(expected_cents)
