"""Statements of account of a run: its lines from what the server knew of each client, and a seal to check them by.

The run's hash is SHA-256 of its configuration and of every member's ledger, so that a member can tell from its own
ledger that a statement is about the run that it took part in.

A member works its pay out again from its own lines alone (`dues`): FairGraphFL pays in proportion to r_i + μ_i
(`payoffs.unscaled`), and a member's lines have all its r_i. What they lack is the sum over all members, one number a
round.
"""

import hashlib
import json
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.experiment.config import Document, dumps
from fedweave.experiment.config.toml import section
from fedweave.experiment.runs.files import CONTRIBUTIONS, read_table
from fedweave.incentives.coalitions import GAINS_IN, MEASURED_ON
from fedweave.incentives.payoffs import Payoffs, unscaled
from fedweave.incentives.statement import MEASURES, Digest, Round, Terms, digest, reasons, statement
from fedweave.report.reading import Run

_CENT = 1 + 1e-6  # how far from its exact part a largest remainder can put an amount, and rounding of floats


def dues(own: pa.Table) -> dict[int, float]:
    """{round: r + μ} of the lines of one member, up to the first line without a value, which later means would lack."""
    lines = list(takewhile(lambda line: line["value"] is not None, own.sort_by("round").to_pylist()))
    r = torch.tensor([line["value"] for line in lines], dtype=torch.float64, device="cpu")
    means = r.cumsum(0) / torch.arange(1, len(r) + 1, device=r.device)
    raw = unscaled(r, torch.cat([r[:1], means[:-1]])).pay  # no compensation in the first round
    return dict(zip([line["round"] for line in lines], raw.tolist(), strict=True))


def sums(table: pa.Table, terms: Terms) -> dict[int, float]:
    """{round: Σ (r + μ)} of a whole statement, of the rounds in which every member's pay follows from it."""
    of_members = {
        name: table.filter(pc.equal(table["member"], name)) for name in pc.unique(table["member"]).to_pylist()
    }
    due = {name: dues(own) for name, own in of_members.items()}
    found: dict[int, float] = {}
    for number in sorted(set(table["round"].to_pylist())):
        paid = {line["member"]: line["pay"] for line in table.filter(pc.equal(table["round"], number)).to_pylist()}
        total = sum(due[name].get(number, float("nan")) for name in paid)
        if all(_follows(pay, due[name].get(number), total, terms) for name, pay in paid.items()):
            found[number] = total
    return found


def check_pay(own: pa.Table, totals: Mapping[int, float], terms: Terms) -> list[int]:
    """Check the pay in a member's lines against `totals` (`sums`); return the rounds of which that says nothing.

    Raises:
        UserError: a line has another amount than follows; names round and amounts.
    """
    due, unknown = dues(own), []
    for line in own.to_pylist():
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


PAYOFF, COMPENSATION = "payoff", "compensation"
_OF_LEDGER = ("round", "call", "step", "direction", "key", "shape", "bytes", "mechanism", "reveals", "to", "applied")


class Account(NamedTuple):
    """A statement: its lines (`incentives.statement.SCHEMA`), terms, run's hash and digest; what the run's hash is made
    of; what pay is divided by in each round (`sums`), 0 where there was nothing to divide; what
    leave-one-out values are gains in, "" where there are none; and what to read before anything is paid
    (`one_class`)."""

    table: pa.Table
    terms: Terms
    run: str
    digest: Digest
    config: str
    ledgers: dict[str, str]
    sums: dict[int, float]
    gains: str = ""
    warning: str = ""

    @property
    def empty(self) -> tuple[int, ...]:
        """The rounds in which there was nothing to divide."""
        return tuple(number for number, total in self.sums.items() if not total)

    def seal(self) -> Record:
        """All but the lines, as a JSON document."""
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
        UserError: it does not, or nobody was paid in any round.
    """
    terms, every = terms_of(run.config, run.directory), _rounds(run)
    entries = [entry for entry in every if float(entry.pay.sum()) > 0]
    if not entries:
        raise UserError(
            f"in {run.directory} nobody was paid yet; choose an algorithm with payoffs, such as fairgraphfl."
        )
    table = statement(terms, entries)
    config, ledgers = config_hash(run.config), {name: ledger_hash(run.ledger, name) for name in _members(run)}
    whole = run_hash(config, ledgers)
    nothing = {entry.number: 0.0 for entry in every if not float(entry.pay.sum()) > 0}
    divided = dict(sorted((sums(table, terms) | nothing).items()))
    sealed = digest(table, terms, whole, divided)
    return Account(table, terms, whole, sealed, config, ledgers, divided, _gains(run), one_class(run))


def one_class(run: Run) -> str:
    """A sentence where the model that members are paid for predicts one class for all test examples, of several."""
    found = run.summary["metrics"]
    if found.get("global/classes_predicted", found.get("local/classes_predicted")) != 1:
        return ""
    if found.get("global/accuracy") == 1:
        return ""  # there was nothing else to predict
    return (
        f"Read this before you pay: after {counted(run.evaluated, 'round')} the model predicts one class for all test "
        "examples, and contributions are paid in full all the same."
    )


def terms_of(config: Document, directory: Path) -> Terms:
    """Budget and currency as the configuration of the run in `directory` has them, of the algorithm or of its part
    "payoff".

    Raises:
        UserError: it has none.
        ConfigError: the budget is not an amount in whole cents.
    """
    algorithm = section(config, "algorithm")
    parts = [part if isinstance(part, dict) else {"name": part} for part in algorithm.get("parts", [])]
    for table in (algorithm, *(part for part in parts if part.get("name") == PAYOFF)):
        if "currency" in table:
            return Terms(_amount(table["budget"]), table["currency"])
    name = algorithm.get("name")
    add = "choose fairgraphfl or add the parts 'agent_value' and 'payoff' (small graphs), or 'size_value' and 'payoff'"
    remedy = add if "parts" in algorithm else "choose one that does"
    raise UserError(f"the algorithm {name!r} of {directory} pays nobody, so that there is nothing to state; {remedy}.")


def _amount(budget: object) -> str:
    return repr(budget) if isinstance(budget, float) else str(budget)


def _members(run: Run) -> list[str]:
    return sorted(set(run.ledger["client"].to_pylist()))


def _rounds(run: Run) -> list[Round]:
    """What each round with payoffs has to say of those who took part, in order."""
    measured = {name: run.known(name) for name in (*MEASURES, PAYOFF, COMPENSATION)}
    if (run.directory / CONTRIBUTIONS).is_file():  # of `fedweave contributions`
        for row in read_table(run.directory, CONTRIBUTIONS).to_pylist():
            measured["leave_one_out"].setdefault(row["client"], {})[row["round"]] = row["leave_one_out"]
    paid = measured[PAYOFF]
    out = []
    for number in sorted({number for of_client in paid.values() for number in of_client}):
        members = sorted(client for client, of_client in paid.items() if number in of_client)
        columns = {name: _column(known, members, number) for name, known in measured.items()}
        pay = torch.tensor([paid[member][number] for member in members], dtype=torch.float64, device="cpu")
        late = columns[COMPENSATION]
        why = reasons(Payoffs(pay, torch.zeros_like(pay) if late is None else late))
        out.append(Round(number, members, **{name: columns[name] for name in MEASURES}, pay=pay, reason=why))
    return out


def _gains(run: Run) -> str:
    if not (run.directory / CONTRIBUTIONS).is_file():
        return ""
    told = read_table(run.directory, CONTRIBUTIONS).schema.metadata or {}
    metric, where = (told.get(key, b"").decode(errors="replace") for key in (GAINS_IN, MEASURED_ON))
    return f"{metric or 'accuracy'} on {where}" if where else metric or "accuracy"


def _column(known: dict[str, dict[int, float]], members: list[str], number: int) -> torch.Tensor | None:
    found = [known.get(member, {}).get(number) for member in members]
    return None if None in found else torch.tensor(found, dtype=torch.float64, device="cpu")


def config_hash(config: Document) -> str:
    """SHA-256 of a configuration, written as `fedweave run` writes it."""
    return hashlib.sha256(dumps(config).encode()).hexdigest()


def of_client(ledger: pa.Table, name: str) -> pa.Table:
    """A client's rows of a ledger, in their order."""
    return ledger.filter(pc.equal(pc.cast(ledger["client"], pa.string()), name))


def ledger_hash(ledger: pa.Table, member: str) -> str:
    """SHA-256 of a member's rows of a ledger, in their order, without the seconds that they took."""
    rows = of_client(ledger, member).select(_OF_LEDGER)
    lines = (json.dumps(list(row.values()), ensure_ascii=True, separators=(",", ":")) for row in rows.to_pylist())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def run_hash(config: str, ledgers: dict[str, str]) -> str:
    """SHA-256 of the hashes of the configuration and of the members' ledgers, by name."""
    return hashlib.sha256(json.dumps([config, sorted(ledgers.items())]).encode()).hexdigest()
