"""Statements of account of a run: lines from the server's measurements of each client, and a seal that verifies them.

The run's hash is SHA-256 of its configuration and of every member's ledger. A member's own ledger therefore shows
whether a statement is about the run that the member took part in.

A member recomputes its pay from its own lines by the rule that paid (`incentives.rules`). They lack only the sum over
all members, one number a round.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.core.text import counted
from fedweave.core.types import TRAINING, Record
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Document as ConfigDocument
from fedweave.experiment.config import config_hash, dumps, load_saved
from fedweave.experiment.config.experiment import PaySettings
from fedweave.experiment.config.toml import section
from fedweave.experiment.runs.files import (
    CONFIG,
    CONTRIBUTIONS,
    LEDGER,
    RUN,
    damaged,
    read,
    read_table,
    write,
    write_table,
)
from fedweave.incentives.payoffs import (
    MEASURES,
    SCHEMA,
    Digest,
    Payoffs,
    StatementRound,
    Terms,
    capped,
    check,
    digest,
    of_member,
    reasons,
    statement,
    totals,
)
from fedweave.incentives.rules import PAYOFF, RULES, SIZE, TIMES, Basis, GainsRule, Rule, to_digits
from fedweave.incentives.shapley import GAINS_IN, MEASURED_ON, WEIGHT, measured_by
from fedweave.metrics.selection import selection_metric_of, title_of
from fedweave.reports.document import Document, Grid, Section, grid
from fedweave.reports.ledger import period
from fedweave.reports.reading import Run

_CENT = 1 + 1e-6  # largest error of an amount: a largest remainder's rounding, and rounding of floats


def sums(table: pa.Table, terms: Terms, rule: Rule) -> dict[int, float]:
    """{round: the sum of `Rule.dues`} of a whole statement, for the rounds in which every member's pay follows from
    it."""
    of_members = {
        name: table.filter(pc.equal(table["member"], name)) for name in pc.unique(table["member"]).to_pylist()
    }
    due = {name: rule.dues(member_lines) for name, member_lines in of_members.items()}
    result: dict[int, float] = {}
    for number in sorted(set(table["round"].to_pylist())):
        paid = {line["member"]: line["pay"] for line in table.filter(pc.equal(table["round"], number)).to_pylist()}
        total = sum(due[name].get(number, float("nan")) for name in paid)
        if all(_follows(pay, due[name].get(number), total, terms) for name, pay in paid.items()):
            result[number] = total
    return result


def check_pay(member_lines: pa.Table, totals: Mapping[int, float], terms: Terms, rule: Rule) -> list[int]:
    """Check the pay in a member's lines against `totals` (`sums`); return the rounds that cannot be checked.

    Raises:
        UserError: a line has another amount than its value gives; names round and amounts.
    """
    due, unknown = rule.dues(member_lines), []
    for line in member_lines.to_pylist():
        number, total = line["round"], totals.get(line["round"])
        if not total or number not in due:
            unknown.append(number)
        elif not _follows(line["pay"], due[number], total, terms):
            wanted = due[number] / total * terms.cents / 100
            raise UserError(
                f"in round {number} the statement pays {line['pay']}, and from its values follow {wanted:.2f}: one of "
                "the two was changed; ask for the statement again."
            )
    return unknown


def _follows(pay: object, due: float | None, total: float, terms: Terms) -> bool:
    if due is None or not total > 0:
        return False
    wanted, cents = due / total * terms.cents, float(pay) * 100  # type: ignore[arg-type]
    return abs(cents - wanted) < _CENT + 1e-9 * abs(wanted)


PAID, COMPENSATION = "payoff", "compensation"  # measures of the part "payoff"
_OF_LEDGER = ("round", "call", "step", "direction", "key", "shape", "bytes", "mechanism", "reveals", "to", "applied")


class Account(NamedTuple):
    """A statement of account.

    table: its lines (`incentives.payoffs.SCHEMA`). terms, run, digest: terms, the run's hash and the digest. config,
    ledgers: the hashes that make the run's hash. sums: divisor of each round's pay (`sums`), 0 without pay. rule: by
    which it pays. covers: the number of rounds that one line is of, 0 where there is a line for each. gains: the metric
    of leave-one-out values, "" without them. warning: a note to read before anything is paid (`one_class`).
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

    def totals(self, table: pa.Table) -> pa.Table:
        """`incentives.payoffs.totals` of lines of this statement, with the number of rounds that they cover."""
        sums = totals(table)
        at = sums.column_names.index("rounds")
        return sums.set_column(at, "rounds", pa.array([self.covers] * len(sums))) if self.covers else sums

    @property
    def empty(self) -> tuple[int, ...]:
        """The rounds in which there was nothing to divide."""
        return tuple(number for number, total in self.sums.items() if not total)

    def seal(self) -> Record:
        """Everything but the lines, as a JSON document."""
        return ({"warning": self.warning} if self.warning else {}) | {
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
    """The statement of a run whose algorithm pays.

    Raises:
        UserError: the algorithm does not pay, or no round has pay.
    """
    terms = terms_of(run.config, run.directory)
    every = [_whole_run(run)] if in_total(run.config) else _rounds(run)
    entries = [entry for entry in every if float(entry.pay.sum()) > 0]
    if not entries:
        raise UserError(
            f"in {run.directory} no member is owed anything yet; choose an algorithm with payoffs, such as fairgraphfl."
        )
    table = statement(terms, entries)
    config, ledgers = config_hash(run.config), {name: ledger_hash(run.ledger, name) for name in _members(run)}
    whole = run_hash(config, ledgers)
    nothing = {entry.number: 0.0 for entry in every if not float(entry.pay.sum()) > 0}
    rule = rule_of(run.config)
    divided = dict(sorted((sums(table, terms, rule) | nothing).items()))
    whole_digest = digest(table, terms, whole, divided)
    covers = run.done if in_total(run.config) else 0
    gains, warning = _gains(run), one_class(run)
    return Account(table, terms, whole, whole_digest, config, ledgers, divided, rule, covers, gains, warning)


def in_total(config: ConfigDocument) -> bool:
    """Whether [pay] sets one budget for the whole run."""
    return bool(section(config, "pay").get("budget"))


def rule_of(config: ConfigDocument) -> Rule:
    """The rule by which a run's members are paid."""
    return RULES[PaySettings(**section(config, "pay")).by] if in_total(config) else PAYOFF


def _whole_run(run: Run) -> StatementRound:
    """Each member's pay for all rounds by the rule of [pay]; it has the last round's number.

    Raises:
        UserError: what the rule needs was not measured, or divides no budget.
    """
    pay = PaySettings(**section(run.config, "pay"))
    rule, weights = RULES[pay.by], run.known(WEIGHT)
    members = [*weights] or _members(run)
    rounds = sorted({number for of_member in weights.values() for number in of_member})
    if not rounds and (rule.needs or pay.cap):
        raise UserError(
            f"pay.by = {pay.by!r}: nothing that pay could follow from was measured in {run.directory}. Train until a "
            f"round in which the part {' or '.join(rule.parts or RULES[SIZE].parts)} measures.",
            code="statement.unmeasured",
        )
    sizes = _summed(weights, members, rounds) if rounds else torch.ones(len(members), dtype=torch.float64, device="cpu")
    by = _gains_by(run, rule.needs, members, rounds) if isinstance(rule, GainsRule) else {}
    basis = Basis(members, by, sizes / sizes.sum())
    whole = rule.shares(basis)
    if bool(whole.isnan().any()):
        gains = {judge: [round(gain, 6) for gain in of_judge.tolist()] for judge, of_judge in by.items()}
        raise UserError(
            f"pay.by = {pay.by!r}: the gains over all rounds, {gains}, divide no budget. Measure more rounds, or agree "
            "on another rule.",
            code="user.no-positive-sum",
        )
    shares = capped(whole, sizes, pay.cap) if pay.cap else whole
    order = sorted(range(len(members)), key=members.__getitem__)
    why = [f"share = {rule.terms(basis, at)}{_limited(pay, basis, whole, shares, at)}" for at in order]
    number, names, shares = max(rounds, default=run.done), [members[at] for at in order], shares[order]
    return StatementRound(number, names, None, None, shares, None, None, shares, why)


def _summed(values: Mapping[str, Mapping[int, float]], members: Sequence[str], rounds: Sequence[int]) -> torch.Tensor:
    """The sums over rounds of {member: {round: value}}, [N]."""
    totals = [math.fsum(values[member][number] for number in rounds) for member in members]
    return torch.tensor(totals, dtype=torch.float64, device="cpu")


def _gains_by(run: Run, name: str, members: Sequence[str], rounds: Sequence[int]) -> dict[str, torch.Tensor]:
    """{who measured: the gains [N]}: every member, or the server."""
    by = {judge: run.known(measured_by(name, at)) for at, judge in enumerate(members)}
    if not all(by.values()):
        by = {"the server": run.known(name)}
    return {judge: _summed(values, members, rounds) for judge, values in by.items()}


def _limited(pay: PaySettings, basis: Basis, whole: torch.Tensor, shares: torch.Tensor, member: int) -> str:
    """What the limit makes of a member's share, in its line."""
    before, after = float(whole[member]), float(shares[member])
    if after < before:
        return f", limited to {pay.cap:g} {TIMES} size {to_digits(float(basis.sizes[member]))}"
    return (
        f" = {to_digits(before)}, and {to_digits(after - before)} of what others' limit left" if after > before else ""
    )


def one_class(run: Run) -> str:
    """A warning if the model behind the payment predicts one class for all test examples, which have several."""
    metrics = run.summary["metrics"]
    if metrics.get("global/classes_predicted", metrics.get("local/classes_predicted")) != 1:
        return ""
    if metrics.get("global/accuracy", metrics.get("local/accuracy")) == 1:
        return ""  # all test examples are of this class
    return (
        f"Read this before you pay: after {counted(run.evaluated, 'round')} the model predicts one class for all test "
        "examples, and contributions count in full all the same."
    )


def terms_of(config: ConfigDocument, directory: Path) -> Terms:
    """Budget and currency in the configuration of the run in `directory`: [pay], the algorithm or its part "payoff".

    Raises:
        UserError: the configuration has no budget.
        ConfigError: the budget is not an amount in whole cents.
    """
    if in_total(config):
        pay = PaySettings(**section(config, "pay"))
        return Terms(_amount(pay.budget), pay.currency)
    algorithm = section(config, "algorithm")
    parts = [part if isinstance(part, dict) else {"name": part} for part in algorithm.get("parts", [])]
    for table in (algorithm, *(part for part in parts if part.get("name") == PAID)):
        if "currency" in table:
            return Terms(_amount(table["budget"]), table["currency"])
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
    measured = {name: run.known(name) for name in (*MEASURES, PAID, COMPENSATION)}
    if (run.directory / CONTRIBUTIONS).is_file():  # the file of `fedweave contributions`
        for row in read_table(run.directory, CONTRIBUTIONS).to_pylist():
            measured["leave_one_out"].setdefault(row["client"], {})[row["round"]] = row["leave_one_out"]
    paid = measured[PAID]
    out = []
    for number in sorted({number for of_client in paid.values() for number in of_client}):
        members = sorted(client for client, of_client in paid.items() if number in of_client)
        columns = {name: _column(known, members, number) for name, known in measured.items()}
        pay = torch.tensor([paid[member][number] for member in members], dtype=torch.float64, device="cpu")
        late = columns[COMPENSATION]
        why = reasons(Payoffs(pay, torch.zeros_like(pay) if late is None else late))
        out.append(StatementRound(number, members, **{name: columns[name] for name in MEASURES}, pay=pay, reason=why))
    return out


def _gains(run: Run) -> str:
    if not (run.directory / CONTRIBUTIONS).is_file():
        return ""
    metadata = read_table(run.directory, CONTRIBUTIONS).schema.metadata or {}
    metric, where = (metadata.get(key, b"").decode(errors="replace") for key in (GAINS_IN, MEASURED_ON))
    return f"{metric or 'accuracy'} on {where}" if where else metric or "accuracy"


def _column(known: dict[str, dict[int, float]], members: list[str], number: int) -> torch.Tensor | None:
    values = [known.get(member, {}).get(number) for member in members]
    return None if None in values else torch.tensor(values, dtype=torch.float64, device="cpu")


def of_client(ledger: pa.Table, name: str) -> pa.Table:
    """A client's rows of a ledger, in order."""
    return ledger.filter(pc.equal(pc.cast(ledger["client"], pa.string()), name))


def ledger_hash(ledger: pa.Table, member: str) -> str:
    """SHA-256 of a member's rows of a ledger, in order, without their durations."""
    rows = of_client(ledger, member).select(_OF_LEDGER)
    lines = (json.dumps(list(row.values()), ensure_ascii=True, separators=(",", ":")) for row in rows.to_pylist())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def run_hash(config: str, ledgers: dict[str, str]) -> str:
    """SHA-256 of the hashes of the configuration and of the members' ledgers, by name."""
    return hashlib.sha256(json.dumps([config, sorted(ledgers.items())]).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------
# A statement of account as a document to print.


NAMES = {
    "alignment": "alignment φ",
    "diversity": "diversity d",
    "leave_one_out": "leave-one-out",
    "density": "reward",
}

MEANT = {
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


def document(whole: Account, table: pa.Table, about: str, command: str, run: Run, issued: date) -> Document:
    """A statement with the lines `table`: all lines of the statement or one member's.

    about: name of the run. run: gives the period from its ledger and the members' legal names from [pay]. issued: the
    day of issue.
    """
    total = whole.covers
    rows, member_totals = table.to_pylist(), whole.totals(table).to_pylist()
    rounds = len({row["round"] for row in rows})
    measures = [name for name in MEASURES if any(row[name] is not None for row in rows)]
    names_of = NAMES | {"value": whole.rule.number}
    means = [MEANT[name].format(gains=whole.gains) for name in measures if name in MEANT]
    metric = title_of(selection_metric_of(run.summary["metrics"]))
    pays = f"{whole.rule.words.format(metric=metric)} {_AMOUNT if total else _SUMS}"
    one = f" of {member_totals[0]['member']}" if len(member_totals) == 1 else ""
    pay = sum((row["pay"] for row in member_totals), Decimal())
    names = section(run.config, "pay").get("names", {})
    numbers = f"{rows[0]['round']} to {rows[-1]['round']}" if rounds > 1 else str(rows[0]["round"])
    during = f"{counted(rounds, 'round')} with pay, {numbers}"
    if total:
        during = f"{counted(run.done, 'round')}, for all of them together"
    return Document(
        title=f"Statement of account{one}: {about}",
        number=(number := f"SA-{whole.digest.digest[:12].upper()}{f'/{one[4:]}' if one else ''}"),
        facts=(
            ("number", number),
            ("issued", f"{issued:%Y-%m-%d}"),
            ("period", f"{period(run.ledger)}; {during}"),
            ("members", ", ".join(_called(row["member"], names) for row in member_totals)),
            ("currency", whole.terms.currency),
        ),
        lead=(*filter(None, [whole.warning]), _lead(whole, len(member_totals), 0 if total else rounds, pay)),
        warnings=_empty(whole),
        sections=(
            Section(
                "Totals",
                () if total else (" ".join(["Measures are means over rounds here.", *means]),),
                grid=_totals(member_totals, names_of, measures, total or rounds),
            ),
            Section("How pay follows", (pays,), code=(whole.rule.formula,)),
            Section(
                "The whole run" if total else "Round by round",
                grid=grid([_line(row, names_of, measures, whole) for row in rows], ("member", "why")),
            ),
            Section(
                "How to check this", (_SEALED,), code=(command, f"run {whole.run}", f"statement {whole.digest.digest}")
            ),
            Section("Signatures", grid=grid(_to_sign(member_totals, names), _PAPER)),
        ),
    )


def money(amount: Decimal) -> str:
    """An amount with its cents, such as 1,234.50, with a proper minus sign."""
    return f"{amount:,.2f}".replace("-", "\N{MINUS SIGN}")


def _called(member: str, names: Mapping[str, str]) -> str:
    return f"{names[member]} ({member})" if member in names else member


def _to_sign(member_totals: list[Record], names: Mapping[str, str]) -> list[dict[str, str]]:
    """A line for each signature on paper."""
    who = ["who issues this", *(_called(row["member"], names) for row in member_totals)]
    return [dict(zip(_PAPER, (one, "", ""), strict=True)) for one in who]


_PAPER = ("for", "name and function", "date, signature")


def _empty(whole: Account) -> tuple[str, ...]:
    rounds = ", ".join(map(str, whole.empty))
    return (f"In rounds {rounds} there was nothing to divide.",) if rounds else ()


def _totals(member_totals: list[Record], names: Mapping[str, str], measures: list[str], rounds: int) -> Grid | None:
    rows = [_total(row["member"], str(row["rounds"]), row, names, measures) for row in member_totals]
    if len(member_totals) < 2:
        return grid(rows, ("member",))
    amounts: Record = {name: sum((row[name] for row in member_totals), Decimal()) for name in ("paid", "fined", "pay")}
    whole = amounts | {"currency": member_totals[0]["currency"]}
    return grid([*rows, _total("all members", str(rounds), whole, names, measures)], ("member",), 1)


def _total(name: str, rounds: str, row: Record, names: Mapping[str, str], measures: list[str]) -> dict[str, str]:
    means = {names[one]: _number(row[one]) if one in row else "" for one in measures}
    amounts = {"owed": money(row["paid"]), "fined": money(row["fined"]), f"total, {row['currency']}": money(row["pay"])}
    return {"member": name, "rounds": rounds, **means, **amounts}


def _line(row: Record, names: Mapping[str, str], measures: list[str], whole: Account) -> dict[str, str]:
    shown = {names[one]: _number(row[one]) for one in measures if one != "value"}
    if row["value"] is not None:
        shown[names["value"]] = to_digits(row["value"])
    if not whole.covers and (total := whole.sums.get(row["round"])):
        shown["sum"] = to_digits(total)
    pay = {f"pay, {row['currency']}": money(row["pay"])}
    return {"round": str(row["round"]), "member": row["member"], **shown, **pay, "why": row["reason"]}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _lead(whole: Account, members: int, rounds: int, pay: Decimal) -> str:
    budget, currency = money(Decimal(whole.terms.cents).scaleb(-2)), whole.terms.currency
    if not rounds:
        return f"{budget} {currency} for the whole run: {money(pay)} owed to {counted(members, 'member')}."
    during = counted(rounds, "round")
    if members == 1:
        return f"{money(pay)} {currency} over {during}, of {budget} {currency} that all members share in a round."
    return f"{budget} {currency} a round over {during}: {money(pay)} {currency} among {members} members."


# ----------------------------------------------------------------------------------------------------
# Checks of a statement of account against its seal, by an owner of the run or by a member from its own part only. A
# member's copy has everything that checks its lines, and no data of other members: the lines and the seal, the
# configuration and the member's own rows of the ledger. For a run between sites it also has the run's number and sites,
# so that `fedweave audit SITE --against` takes the copy for the run.


DIFFERS = "statement.differs"
SEAL, LEAVE_ONE_OUT = "statement.json", "leave_one_out"  # LEAVE_ONE_OUT is a column only after `fedweave contributions`


class Seal(NamedTuple):
    """Everything in a statement but its lines (`Account.seal`)."""

    terms: Terms
    digest: Digest
    config: str
    ledgers: dict[str, str]
    run: str
    sums: dict[int, float]


def read_seal(folder: Path) -> Seal:
    """The seal of the statement in `folder`.

    Raises:
        UserError: there is no statement, or the seal is damaged.
    """
    if not (folder / SEAL).is_file():
        raise UserError(
            f"{folder} holds no statement: it has no {SEAL}. Name the folder that `fedweave statement` wrote."
        )
    try:
        return _read(json.loads(read(folder / SEAL)))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the seal {folder / SEAL} is damaged ({type(error).__name__} {error}); ask for the statement again."
        ) from error


def _read(seal: Record) -> Seal:
    whole = Digest(seal["start"], tuple(seal["lines"]), seal["digest"])
    for word in (whole.start, whole.digest, *whole.lines):
        bytes.fromhex(word)
    sums = {int(number): float(total) for number, total in seal.get("sums", {}).items()}  # older seals have none
    if not all(0 <= total < math.inf for total in sums.values()):
        raise ValueError("a sum is negative or not finite")
    terms = Terms(seal["budget"], seal["currency"])
    return Seal(terms, whole, str(seal["config"]), dict(seal["ledgers"]), str(seal["run"]), sums)


def check_same(folders: Sequence[Path]) -> str:
    """Compare the seals in members' copies, which contain no lines: seals of one statement are equal. Returns this
    result in words, with the members whose seals were not compared.

    Raises:
        UserError: a seal contradicts itself, or differs from most seals; names these members, and the first difference.
    """
    seals = {_whose(folder): read_seal(folder) for folder in folders}
    if len(seals) < 2:
        raise UserError("name the copies of two members or more: --compare DIR --compare DIR.")
    for seal in seals.values():
        check(pa.Table.from_pylist([], SCHEMA), "", seal.digest, seal.terms, seal.run, seal.sums)
    digests = [seal.digest.digest for seal in seals.values()]
    most = max(digests, key=digests.count)
    odd = [name for name, seal in seals.items() if seal.digest.digest != most]
    if odd and 2 * digests.count(most) <= len(digests):
        raise UserError(f"the statements of {listed([*seals])} differ, and no majority has the same.", code=DIFFERS)
    if odd:
        same = next(seal for seal in seals.values() if seal.digest.digest == most)
        why = "; ".join(f"{name}: {_difference(seals[name], same)}" for name in odd)
        raise UserError(f"another statement than most members have: {why}. Ask who wrote them.", code=DIFFERS)
    left = sorted(name for name in next(iter(seals.values())).ledgers if name not in seals)
    more = f"; not compared: {listed(left)}" if left else ""
    return f"the statements of {listed([*seals])} are the same, digest {most[:16]}{more}"


def _whose(folder: Path) -> str:
    """The member whose copy a folder holds; the folder's path if that is not clear."""
    names = [path.stem.removeprefix("statement-") for path in sorted(folder.glob("statement-*.parquet"))]
    return names[0] if len(names) == 1 else str(folder)


def _difference(one: Seal, other: Seal) -> str:
    if (one.terms, one.run) != (other.terms, other.run):
        return "it is of another run, budget or currency"
    for number in sorted(one.sums.keys() | other.sums.keys()):
        if one.sums.get(number) != other.sums.get(number):
            mine, theirs = (each.sums.get(number) for each in (one, other))
            return f"in round {number} pay is divided by {mine}, and by {theirs} elsewhere"
    return "its lines differ"


def check_in_run(member_lines: pa.Table, seal: Seal, member: str, run: Run) -> None:
    """Check a member's lines of a statement against its seal, the seal against the configuration and the member's
    ledger in `run`, and the pay against the payoffs in `run`.

    Raises:
        UserError: a line was changed or left out, or the statement is about another run; the error names the part that
            does not agree.
    """
    _check_sealed(member_lines, seal, member, (run.config, run.ledger), run.directory)
    due = of_member(account(run).table, member)
    _same_pay(member_lines, due, member, run.directory)
    same = [
        name for name in due.column_names if name != LEAVE_ONE_OUT or member_lines[name].null_count < len(member_lines)
    ]
    if member_lines.select(same).to_pylist() != due.select(same).to_pylist():
        raise UserError(
            f"the lines of {member} say other values or reasons than {run.directory}, though they pay the same; ask "
            "for the statement again."
        )


def check_copy(member_lines: pa.Table, seal: Seal, member: str, folder: Path) -> None:
    """Check a member's lines only with its copy in `folder` (`write_copy`): against the seal, the seal against the
    configuration and the member's ledger, and the pay against the values in the lines.

    Raises:
        UserError: see `check_in_run`; or the rounds of the lines differ from the rounds in which the member sent an
            update; or the copy cannot show that an amount is right.
    """
    ledger = read_table(folder, LEDGER)
    _check_sealed(member_lines, seal, member, (load_saved(folder / CONFIG), ledger), folder)
    if in_total(load_saved(folder / CONFIG)):
        _check_once(member_lines, member)
    else:
        _check_rounds(member_lines, member, of_client(ledger, member))
    if unknown := check_pay(member_lines, seal.sums, seal.terms, rule_of(load_saved(folder / CONFIG))):
        raise UserError(
            f"nothing in {folder} shows that the pay of {_round_list(unknown)} is right: lines have no value, or the "
            f"seal has no sum. An owner of the run can check it: fedweave statement RUN --member {member} --check …"
        )


def _check_sealed(
    member_lines: pa.Table, seal: Seal, member: str, of_run: tuple[ConfigDocument, pa.Table], directory: Path
) -> None:
    config, ledger = of_run
    if seal.config != config_hash(config):
        raise UserError(
            f"the statement is about another configuration than {directory / CONFIG}. If the run went on after the "
            "statement was written, ask for a new one: the number of rounds is in the configuration."
        )
    if seal.ledgers.get(member) != ledger_hash(ledger, member):
        raise UserError(
            f"the statement does not know the ledger of {member} in {directory}: it is about another run, or the "
            "messages in the ledger were changed afterwards."
        )
    if seal.run != run_hash(seal.config, seal.ledgers):
        raise UserError("the run's hash does not follow from the ledgers in the seal; ask for the statement again.")
    if seal.terms != terms_of(config, directory):
        raise UserError("budget or currency differ from the configuration; ask for the statement again.")
    check(member_lines, member, seal.digest, seal.terms, seal.run, seal.sums)


def _same_pay(member_lines: pa.Table, paid: pa.Table, member: str, directory: Path) -> None:
    """Raise an error if rounds or amounts differ from the run's: the author of a statement can seal anything."""
    _check_once(member_lines, member)
    amounts, due = ({row["round"]: row["pay"] for row in table.to_pylist()} for table in (member_lines, paid))
    for number in sorted(amounts.keys() | due.keys()):
        if amounts.get(number) != due.get(number):
            claim = "leaves it out" if number not in amounts else f"says {amounts[number]}"
            raise UserError(
                f"in round {number} {directory} has {due.get(number, 'nothing')} for {member}, and the statement "
                f"{claim}; ask for the statement again."
            )


def _check_rounds(member_lines: pa.Table, member: str, ledger: pa.Table) -> None:
    """Raise an error if the lines' rounds differ from the rounds in which the member sent an update, by its `ledger`.
    The seal has no influence."""
    _check_once(member_lines, member)
    sent = ledger.filter(pc.and_(pc.equal(ledger["direction"], "up"), pc.equal(ledger["purpose"], TRAINING)))
    trained, listed_rounds = ({*table["round"].to_pylist()} for table in (sent, member_lines))
    if left_out := sorted(trained - listed_rounds):
        raise UserError(
            f"{member} sent an update in {_round_list(left_out)}, and the statement has no line of it; ask for the "
            "statement again. If that round paid no member, only the run itself shows it."
        )
    if more := sorted(listed_rounds - trained):
        raise UserError(f"the statement has {_round_list(more)}, in which {member} sent no update; ask for it again.")


def _check_once(member_lines: pa.Table, member: str) -> None:
    numbers = member_lines["round"].to_pylist()
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise UserError(f"{member} has several lines of {_round_list(twice)}; ask for the statement again.")


def _round_list(numbers: Iterable[int]) -> str:
    items = list(numbers)
    return f"round{'s' if len(items) > 1 else ''} {', '.join(map(str, items))}"


_OF_RUN = ("run", "sites")  # keys of run.json in a copy; the others describe the machine that started the run


def check_free(out: Path, member: str) -> None:
    """Raise an error if a member's copy, or the whole statement for `member` "", would overwrite other files.

    Raises:
        UserError: the folder holds a run, other files, or another member's copy.
    """
    if occupied := [name for name in (CONFIG, LEDGER) if (out / name).exists() and not (out / SEAL).exists()]:
        raise UserError(f"{out} holds a {occupied[0]} of a run or of something else; choose another folder with --out.")
    stem = f"statement-{member}" if member else "statement"
    if others := sorted(path.stem for path in out.glob("statement*.csv") if path.stem != stem):
        raise UserError(f"{out} holds {others[0]}.csv: give every member a separate folder with --out.")


def write_copy(run: Run, member: str, out: Path) -> list[Path]:
    """Write the files of a copy, without lines, page and seal; return the paths.

    Raises:
        FedweaveError: the run's run.json is damaged.
    """
    rows = _compact(of_client(run.ledger, member))
    write(out / CONFIG, lambda file: file.write(dumps(run.config).encode()))
    write_table(out / LEDGER, rows)
    return [out / CONFIG, out / LEDGER, *_number_files(run.directory / RUN, out)]


def _compact(table: pa.Table) -> pa.Table:
    """The same rows, with dictionaries of only their words: a filter leaves the other rows' words too."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            words = table[field.name].cast(field.type.value_type).combine_chunks().dictionary_encode()
            table = table.set_column(at, field, words.cast(field.type))
    return table


def _number_files(path: Path, out: Path) -> list[Path]:
    if not path.exists():
        return []
    try:
        record = {key: value for key, value in dict(json.loads(read(path))).items() if key in _OF_RUN}
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error)) from error
    write(out / RUN, lambda file: file.write(json.dumps(record).encode()))
    return [out / RUN]
