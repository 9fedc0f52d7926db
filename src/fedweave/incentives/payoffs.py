"""Division of a budget: FairGraphFL's payoffs and the schemes it is compared with. All numbers are float64."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.errors import ConfigError, UserError, listed
from fedweave.incentives.shapley import Value, leave_one_out, shapley

ROUNDING = 1e-5  # share of the summands that may remain in a sum of 0: gains come from float32 scores


class Payoffs(NamedTuple):
    """Pay of N agents.

    pay: float64 [N], summing to the budget; negative is a fine. compensation: float64 [N], the part μ_i of the pay for
    late contributions, on the same scale.
    """

    pay: Tensor
    compensation: Tensor


def unscaled(r: Tensor, before: Tensor) -> Payoffs:
    """Pay before it is scaled to a budget (Eqs. 5 and 6): r_i < 0, or r_i + μ_i with μ_i = max(r_i - before_i, 0); and
    its compensations μ_i. r, before: float64 [N]."""
    late = torch.where(r < 0, 0.0, (r - before).relu())
    return Payoffs(r + late, late)


def payoffs(r: Tensor, before: Tensor | None = None, budget: float = 1.0) -> Payoffs:
    """FairGraphFL's payoffs of a round (Eqs. 5 to 7).

    A value r_i < 0 is a fine of that amount. Any other agent is paid r_i + μ_i, with μ_i = max(r_i - mean of its values
    in the rounds before, 0). All amounts are scaled to sum to `budget`.

    r:      values [N] of this round t.
    before: mean [N] over the rounds 1 to t - 1 (without the start value r⁰); None in the first round, where μ = 0.

    Raises:
        UserError: the sum before scaling is not positive (it is at least Σ r_i, which `values.updated` makes 1), or the
            budget is negative.
    """
    if not 0 <= budget < float("inf"):
        raise UserError(f"the budget is {budget}; it must be at least 0.", code="user.budget")
    r = r.double()
    before = r if before is None else before.double()
    total = unscaled(r, before).pay.sum()
    if not total > 0:
        raise UserError(
            f"values {r.tolist()} sum to {float(total)}; a budget can be divided by a positive sum only.",
            code="user.no-positive-sum",
        )
    return paid(r, before, budget)


def paid(r: Tensor, before: Tensor, budget: float) -> Payoffs:
    """`payoffs` of float64 [N]; zeros if the sum before scaling is not positive. Does not wait for a device."""
    amounts = unscaled(r, before)
    total = amounts.pay.sum()
    return Payoffs(*(torch.where(total > 0, amount / total * budget, 0.0) for amount in amounts))


def data_volume(sizes: Tensor) -> Value:
    """The value function Φ(S) = log(1 + Σ_{i in S} |D_i|) of data sizes [N]."""
    sizes = sizes.double()
    return lambda masks: torch.log1p(masks.double() @ sizes)


SCHEMES: dict[str, Callable[[Value, int, np.random.Generator | None], Tensor]] = {
    "equal": lambda value, players, rng: torch.ones(players, dtype=torch.float64, device="cpu"),
    "union": lambda value, players, rng: leave_one_out(value, players),
    "individual": lambda value, players, rng: value(torch.eye(players, dtype=torch.bool, device="cpu")).double(),
    "shapley": lambda value, players, rng: shapley(value, players, rng).values,
}


def shares(scheme: str, value: Value, players: int, rng: np.random.Generator | None = None) -> Tensor:
    """Shares of a budget, float64 [N], summing to 1.

    scheme: "equal", 1 / N each; or in proportion to "union", v(all) - v(all but i), "individual", v({i}), or
            "shapley", the Shapley value, which needs a generator for more than 12 players (`shapley.shapley`).
    value:  the value function, such as `data_volume`.

    Raises:
        ConfigError: no such scheme.
        UserError: the proportions have no positive sum; errors of the scheme's function.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"no payoff scheme {scheme!r}; there are {', '.join(SCHEMES)}.", code="config.unknown-name")
    raw = SCHEMES[scheme](value, players, rng)
    if not divisible(raw):
        raise UserError(
            f"{scheme!r} gives {raw.tolist()}, which sum to {float(raw.sum())}; a budget needs a positive sum. Choose "
            "'equal', or measure more rounds.",
            code="user.no-positive-sum",
        )
    return raw / raw.sum()


def divided(raw: Tensor) -> Tensor:
    """Shares of a budget in proportion to `raw` [N]; NaN if `raw` cannot divide a budget."""
    return raw / raw.sum() if divisible(raw) else torch.full_like(raw, torch.nan)


def capped(shares: Tensor, sizes: Tensor, cap: float) -> Tensor:
    """Shares of a budget [N], each at most `cap` times the share by size, float64 [N] that sum to 1.

    The excess goes to the other members in proportion to their shares. If only members without a share are below their
    cap, it is divided among them by size.

    Raises:
        UserError: the cap is below 1, so that the caps cannot add up to the whole budget.
    """
    if cap < 1:
        raise UserError(f"the cap is {cap:g}; it must be at least 1.", code="user.cap")
    shares, most = shares.double(), cap * sizes.double() / sizes.double().sum()
    result, full = torch.minimum(shares, most), shares >= most
    while (left := 1 - float(result.sum())) > 1e-12:  # a member at its cap stays there: at most N times
        weight = torch.where(full, 0.0, shares)
        weight = weight if bool(weight.any()) else torch.where(full, 0.0, most)
        grown = result + left * weight / weight.sum()
        full = full | (grown >= most)
        result = torch.minimum(grown, most)
    return result


def impartial(gains: Tensor) -> Tensor:
    """Shares of a budget by the members' own judgments, float64 [N] that sum to 1: the impartial division of de
    Clippel, Moulin and Tideman 2008, "Impartial division of a dollar".

    Each of N members has 1 / N of the budget to divide among the others, in proportion to the gains above 0 that it
    measured of them, equally if there are none. So nothing that a member reports changes its own share, and k members
    together decide on k / N of the budget.

    gains: [N, N], row v has the gains by every member's update that member v measured; its own does not count.
    """
    count = len(gains)
    if count == 1:
        return torch.ones(1, dtype=torch.float64, device=gains.device)
    others = 1 - torch.eye(count, dtype=torch.float64, device=gains.device)
    counted = gains.double().relu() * others
    total = counted.sum(1, keepdim=True)
    parts = torch.where(total > 0, counted / torch.where(total > 0, total, 1.0), others / (count - 1))
    return parts.mean(0)


def divisible(raw: Tensor) -> bool:
    """Whether a budget can be divided in proportion to `raw` [N]: its sum is positive beyond rounding errors."""
    return bool(raw.sum() > ROUNDING * raw.abs().sum())


# ----------------------------------------------------------------------------------------------------
# Statements of account, a line for each round and member, and the digest of a whole statement.


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
MOST = Decimal(10) ** 12  # largest budget of a round, so that totals fit into the columns


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
            valid = amount.is_finite() and 0 <= amount <= MOST and amount == amount.quantize(Decimal("0.01"))
        except InvalidOperation:
            valid = False
        if not valid:
            raise ConfigError(
                f"the budget is {self.budget!r}; it must be an amount in whole cents, from 0 to {MOST}.",
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
    signs, late = payoffs.pay.sign().int().tolist(), (payoffs.compensation > 0).tolist()
    return [labels[sign] + (" and late contribution" if more else "") for sign, more in zip(signs, late, strict=True)]


def in_cents(pay: Tensor, budget: int) -> list[int]:
    """`pay` [N], scaled to sum to `budget` cents, in whole cents that sum to it exactly.

    Largest remainders: all amounts are rounded down, fines too. The remaining cents go to the members that lost the
    largest fractions of a cent; ties go to the first. So each error is less than a cent, a zero stays zero, and no fine
    becomes a payment. The arithmetic is exact.

    Raises:
        UserError: an entry is not finite, or the sum is not positive.
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
    """The lines of a statement, in the order of the rounds and of their members, with the columns of `SCHEMA`.

    Raises:
        UserError: rounds do not ascend, a round names a member twice, a column has another length than the members, or
            the pay cannot be divided (`in_cents`).
    """
    lines: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    before = -1
    for entry in rounds:
        if entry.number <= before:
            raise UserError(f"round {entry.number} comes after round {before}; give the rounds in order, from 0 on.")
        before = entry.number
        _check(entry)
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


def _check(entry: StatementRound) -> None:
    names = list(entry.members)
    if len(set(names)) < len(names):
        raise UserError(f"round {entry.number} names a member twice: {listed(names)}.")
    for column in (*MEASURES, "pay", "reason"):
        values = getattr(entry, column)
        if values is not None and len(values) != len(names):
            raise UserError(
                f"round {entry.number} has {len(values)} entries of {column} for {len(names)} members; one for each."
            )


def totals(table: pa.Table) -> pa.Table:
    """A line per member, by name: `rounds`, the means of the measures, total `pay`, its parts `paid` and `fined`
    (negative), and the currency.

    Raises:
        UserError: the statement has several currencies.
    """
    currencies = table["currency"].unique().to_pylist()
    if len(currencies) > 1:
        raise UserError(
            f"a statement in {', '.join(currencies)} has no total; make one for each currency.",
            code="statement.currencies",
        )
    zero = pa.scalar(Decimal("0.00"), MONEY)
    table = table.append_column("paid", pc.max_element_wise(table["pay"], zero))
    table = table.append_column("fined", pc.min_element_wise(table["pay"], zero))
    sums = [(name, "sum") for name in ("pay", "paid", "fined")]
    result = table.group_by("member").aggregate([("round", "count"), *[(name, "mean") for name in MEASURES], *sums])
    names = {"member": "member", "round_count": "rounds"}
    names |= {f"{name}_mean": name for name in MEASURES} | {f"{name}_sum": name for name, _ in sums}
    result = result.sort_by("member").select(list(names)).rename_columns(list(names.values()))
    for name, _ in sums:
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
    return Digest(start, lines, chained(start, lines))


def hashes(table: pa.Table) -> tuple[str, ...]:
    """The hash of each line.

    The encoding is a JSON list of the columns in the order of the schema, ASCII without blanks. It has amounts in cents
    and measures as C99 hexadecimal floats (`float.hex`), which are exact.

    Raises:
        UserError: a column is missing or has another type than in `SCHEMA`.
    """
    for field in SCHEMA:
        if field.name not in table.column_names or table[field.name].type != field.type:
            raise UserError(
                f"a statement needs a column {field.name} of type {field.type}; read it with its schema.",
                code="statement.column",
            )
    return tuple(_hash(_encoded([_plain(name, line[name]) for name in SCHEMA.names])) for line in table.to_pylist())


def chained(start: str, lines: Sequence[str]) -> str:
    """c_n from c_0 and the hashes of all lines."""
    link = bytes.fromhex(start)
    for line in lines:
        link = hashlib.sha256(link + bytes.fromhex(line)).digest()
    return link.hex()


def check(
    lines: pa.Table, member: str, whole: Digest, terms: Terms, run: str, sums: Mapping[int, float] | None = None
) -> None:
    """Check a member's `lines`, all that the statement has for it, against the digest of the whole statement.

    Raises:
        UserError: a line is not in the statement, belongs to another member or occurs twice, or terms, run, hashes and
            digest do not belong together.
    """
    if whole.start != _start(terms, run, sums):
        raise UserError(
            "the statement is about another run, budget or currency, or the sums that divide the pay were changed. Ask "
            "for the statement of this run."
        )
    if chained(whole.start, whole.lines) != whole.digest:
        raise UserError("the hashes of the lines do not lead to the digest; ask for the statement again.")
    strangers = set(lines["member"].to_pylist()) - {member}
    if strangers:
        raise UserError(f"{', '.join(sorted(strangers))} also have lines in it. Give only the lines of {member}.")
    listed_hashes = set(whole.lines)
    own_hashes = hashes(lines)
    for line, number in zip(own_hashes, lines["round"].to_pylist(), strict=True):
        if line not in listed_hashes:
            raise UserError(
                f"the line of {member} in round {number} is not in the statement: one of the two was changed, or they "
                "were written at different times. Write both again with `fedweave statement`, or ask for both."
            )
    if len(set(own_hashes)) < len(own_hashes):
        raise UserError(f"a line of {member} occurs twice. Give each line once.")


def of_member(table: pa.Table, member: str) -> pa.Table:
    """The lines of one member.

    Raises:
        UserError: the member has no line; the error lists the members that have lines.
    """
    lines = table.filter(pc.equal(table["member"], member))
    if not len(lines):
        names = listed(sorted(set(table["member"].to_pylist())))
        raise UserError(f"no lines of {member!r}; the statement has lines of {names}.", code="statement.no-lines")
    return lines


def _start(terms: Terms, run: str, sums: Mapping[int, float] | None) -> str:
    entries = [[number, float(total).hex()] for number, total in sorted((sums or {}).items())]
    return _hash(_encoded([run, terms.cents, terms.currency, *([entries] if entries else [])]))


def _plain(name: str, value: object) -> object:
    if name == "pay":
        return int(value.scaleb(2))  # type: ignore[attr-defined]
    return float(value).hex() if name in MEASURES and value is not None else value  # type: ignore[arg-type]


def _encoded(values: list[object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
