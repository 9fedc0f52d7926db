"""Statements of account: a line for each round and member, and the digest of a whole statement."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.errors import ConfigError, UserError, listed
from fedweave.incentives.payoffs import Payoffs

MONEY = pa.decimal128(18, 2)
SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32(), nullable=False),
        pa.field("member", pa.string(), nullable=False),
        pa.field("alignment", pa.float64()),
        pa.field("diversity", pa.float64()),
        pa.field("value", pa.float64()),
        pa.field("leave_one_out", pa.float64()),
        pa.field("density", pa.float64()),
        pa.field("pay", MONEY, nullable=False),
        pa.field("currency", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
MEASURES = ("alignment", "diversity", "value", "leave_one_out", "density")
MAX_BUDGET = Decimal(10) ** 12  # largest budget of a round, so that totals fit into the columns


@dataclass(frozen=True)
class Terms:
    """The terms of payment: `budget`, the sum of a round's pay, such as "1000.00"; and the `currency` of all amounts.

    Raises:
        ConfigError: the budget is not an amount in whole cents from 0 to 10^12.
    """

    budget: str | int | float = "1.00"
    currency: str = "EUR"

    def __post_init__(self) -> None:
        try:
            amount = Decimal(str(self.budget))
            valid = amount.is_finite() and 0 <= amount <= MAX_BUDGET and amount == amount.quantize(Decimal("0.01"))
        except InvalidOperation:
            valid = False
        if not valid:
            raise ConfigError(
                f"the budget is {self.budget!r}; it must be an amount in whole cents, from 0 to {MAX_BUDGET}.",
                code="config.value",
            )

    @property
    def cents(self) -> int:
        """The budget in cents."""
        return int(Decimal(str(self.budget)).scaleb(2))


class StatementRound(NamedTuple):
    """A round's entries in a statement, all [N], in the order of its members.

    number: the round's number.
    members: distinct names.
    alignment, diversity, leave_one_out: measured contributions; None if they were not measured.
    value:  the values from which the pay follows (`payoffs.payoffs`); None if they were not stored.
    density: share of the global update's entries that each member received, 0 to 1; None if there is no such share.
    pay:    amounts in any unit, negative for a fine; their proportions divide the budget.
    reason: a text for each amount (`reasons`).
    """

    number: int
    members: Sequence[str]
    alignment: Tensor | None
    diversity: Tensor | None
    value: Tensor | None
    leave_one_out: Tensor | None
    density: Tensor | None
    pay: Tensor
    reason: Sequence[str]


def reasons(payoffs: Payoffs) -> list[str]:
    """The reason of FairGraphFL's pay or fine for each member (Eqs. 5 and 6)."""
    labels = {-1: "fined for harm: value below zero", 0: "no value", 1: "owed for value"}
    texts = []
    for sign, late in zip(payoffs.pay.sign().int().tolist(), payoffs.compensation.tolist(), strict=True):
        texts.append(labels[sign] + (" and late contribution" if late > 0 else ""))
    return texts


def in_cents(pay: Tensor, budget: int) -> list[int]:
    """`pay` [N], scaled to sum to `budget` cents, in whole cents that sum to it exactly.

    Largest remainders: all amounts are rounded down, fines too. The remaining cents go to the members that lost the
    largest fractions of a cent; ties go to the first. So each error is less than a cent, a zero stays zero, and no fine
    becomes a payment. The arithmetic is exact.
    """
    if not bool(pay.isfinite().all()):
        raise UserError(f"pay is {pay.tolist()}; every member needs a finite number.")
    parts = [Fraction(amount) for amount in pay.tolist()]
    total = sum(parts)
    if not total > 0:
        raise UserError(
            f"pay sums to {float(total)}; a budget can be divided by a positive sum only.", code="user.no-positive-sum"
        )
    exact = [part / total * budget for part in parts]
    cents = [int(amount // 1) for amount in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (cents[i] - exact[i], i))
    for i in by_remainder[: budget - sum(cents)]:
        cents[i] += 1
    return cents


def statement(terms: Terms, rounds: Sequence[StatementRound]) -> pa.Table:
    """The lines of a statement, in the order of the rounds and of their members, with the columns of `SCHEMA`."""
    lines: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    before = -1
    for entry in rounds:
        if entry.number <= before:
            raise UserError(f"round {entry.number} comes after round {before}; give the rounds in order, from 0 on.")
        before = entry.number
        if len(set(entry.members)) < len(entry.members):
            raise UserError(f"round {entry.number} names a member twice: {listed(entry.members)}.")
        for column in (*MEASURES, "pay", "reason"):
            values = getattr(entry, column)
            if values is not None and len(values) != len(entry.members):
                raise UserError(
                    f"round {entry.number} has {len(values)} entries of {column} for {len(entry.members)} members; one "
                    "for each."
                )
        cents = in_cents(entry.pay, terms.cents)
        lines["round"] += [entry.number] * len(cents)
        lines["member"] += entry.members
        for name in MEASURES:
            values = getattr(entry, name)
            lines[name] += [None] * len(cents) if values is None else values.to(torch.float64).tolist()
        lines["pay"] += [Decimal(amount).scaleb(-2) for amount in cents]
        lines["currency"] += [terms.currency] * len(cents)
        lines["reason"] += entry.reason
    return pa.table(lines, schema=SCHEMA)


def totals(table: pa.Table) -> pa.Table:
    """A line per member, by name: `rounds`, the means of the measures, total `pay`, its parts `paid` and `fined`
    (negative), and the currency."""
    currencies = table["currency"].unique().to_pylist()
    if len(currencies) > 1:
        raise UserError(
            f"a statement in {', '.join(currencies)} has no total; make one for each currency.",
            code="statement.currencies",
        )
    zero = pa.scalar(Decimal("0.00"), MONEY)
    table = table.append_column("paid", pc.max_element_wise(table["pay"], zero))
    table = table.append_column("fined", pc.min_element_wise(table["pay"], zero))
    amounts = ("pay", "paid", "fined")
    aggregations = [("round", "count"), *((name, "mean") for name in MEASURES), *((name, "sum") for name in amounts)]
    result = table.group_by("member").aggregate(aggregations).sort_by("member")
    result = result.select(["member", *(f"{name}_{function}" for name, function in aggregations)])
    result = result.rename_columns(["member", "rounds", *MEASURES, *amounts])
    for name in amounts:
        result = result.set_column(result.column_names.index(name), name, result[name].cast(pa.decimal128(38, 2)))
    return result.append_column("currency", pa.array(currencies * len(result), pa.string()))


class Digest(NamedTuple):
    """The hash chain of a statement. start: c_0. lines: h_1 to h_n. digest: c_n. All SHA-256 in hexadecimal."""

    start: str
    lines: tuple[str, ...]
    digest: str


def digest(table: pa.Table, terms: Terms, run: str, sums: Mapping[int, float] | None = None) -> Digest:
    """The digest of a statement under its `terms`. run: the hash of the run. sums: {round: sum of its values}.

    Raises:
        UserError: a column is missing or has another type than in `SCHEMA`.
    """
    start, lines = _start(terms, run, sums), hashes(table)
    return Digest(start, lines, chain(start, lines))


def hashes(table: pa.Table) -> tuple[str, ...]:
    """The hash of each line.

    The encoding is a JSON list of the columns in the order of the schema, ASCII without blanks. It has amounts in cents
    and measures as C99 hexadecimal floats (`float.hex`), which are exact.
    """
    for field in SCHEMA:
        if field.name not in table.column_names or table[field.name].type != field.type:
            raise UserError(
                f"a statement needs a column {field.name} of type {field.type}; read it with its schema.",
                code="statement.column",
            )
    result = []
    for line in table.to_pylist():
        line["pay"] = int(line["pay"].scaleb(2))
        for name in MEASURES:
            line[name] = None if line[name] is None else line[name].hex()
        result.append(_hash([line[name] for name in SCHEMA.names]))
    return tuple(result)


def chain(start: str, lines: Sequence[str]) -> str:
    """c_n from c_0 and the hashes of all lines."""
    link = bytes.fromhex(start)
    for line in lines:
        link = hashlib.sha256(link + bytes.fromhex(line)).digest()
    return link.hex()


def check(
    lines: pa.Table, member: str, whole: Digest, terms: Terms, run: str, sums: Mapping[int, float] | None = None
) -> None:
    """Check a member's `lines`, all that the statement has for it, against the digest of the whole statement."""
    if whole.start != _start(terms, run, sums):
        raise UserError(
            "the statement is about another run, budget or currency, or the sums that divide the pay were changed. Ask "
            "for the statement of this run."
        )
    if chain(whole.start, whole.lines) != whole.digest:
        raise UserError("the hashes of the lines do not lead to the digest; ask for the statement again.")
    other_members = set(lines["member"].to_pylist()) - {member}
    if other_members:
        raise UserError(f"{', '.join(sorted(other_members))} also have lines in it. Give only the lines of {member}.")
    statement_hashes = set(whole.lines)
    member_hashes = hashes(lines)
    for line, number in zip(member_hashes, lines["round"].to_pylist(), strict=True):
        if line not in statement_hashes:
            raise UserError(
                f"the line of {member} in round {number} is not in the statement: one of the two was changed, or they "
                "were written at different times. Write both again with `fedweave statement`, or ask for both."
            )
    if len(set(member_hashes)) < len(member_hashes):
        raise UserError(f"a line of {member} occurs twice. Give each line once.")


def of_member(table: pa.Table, member: str) -> pa.Table:
    """The lines of one member."""
    lines = table.filter(pc.equal(table["member"], member))
    if not len(lines):
        names = listed(sorted(set(table["member"].to_pylist())))
        raise UserError(f"no lines of {member!r}; the statement has lines of {names}.", code="statement.no-lines")
    return lines


def _start(terms: Terms, run: str, sums: Mapping[int, float] | None) -> str:
    values: list[object] = [run, terms.cents, terms.currency]
    if sums:
        values.append([[number, float(total).hex()] for number, total in sorted(sums.items())])
    return _hash(values)


def _hash(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
