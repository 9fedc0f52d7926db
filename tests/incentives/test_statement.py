"""Statements reconcile to the cent, can be written and read, and their digest notices every change."""

import hashlib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedweave.errors import UserError
from fedweave.incentives.payoffs import payoffs
from fedweave.incentives.statement import (
    SCHEMA,
    Digest,
    StatementRound,
    Terms,
    chain,
    check,
    digest,
    hashes,
    in_cents,
    of_member,
    reasons,
    statement,
    totals,
)
from tests.random_graphs import replace_fields
from tests.refusals import refusal

TERMS, RUN = Terms("100.00", "CHF"), "5f" * 32


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def a_round(number: int, r: torch.Tensor, before: torch.Tensor | None = None) -> StatementRound:
    paid = payoffs(r, r if before is None else before)
    return StatementRound(
        number,
        ["bank a", "bank b", "bänk c"],
        alignment=r * 0.7,
        diversity=tensor(0.1, 0.2, 1 / 3),
        value=r,
        leave_one_out=None,
        density=tensor(1.0, 0.25, 0.0),
        pay=paid.pay,
        reason=reasons(paid),
    )


def example() -> pa.Table:
    first, second = tensor(0.5, 0.6, -0.1), tensor(0.7, 0.4, -0.1)
    return statement(TERMS, [a_round(1, first), a_round(2, second, first)])


amounts = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1 / 3, 1e-300, -1e-9])


@given(st.lists(amounts, min_size=1, max_size=20), st.integers(0, 10**14))
def test_cents_sum_to_the_budget_and_nobody_is_a_cent_off(pay: list[float], budget: int) -> None:
    total = sum(map(Fraction, pay))
    if total <= 0:
        with refusal("user.no-positive-sum"):
            in_cents(tensor(*pay), budget)
        return
    cents = in_cents(tensor(*pay), budget)
    assert sum(cents) == budget
    for whole, part in zip(cents, map(Fraction, pay), strict=True):
        assert abs(whole - part / total * budget) < 1
        assert whole * part >= 0
        assert whole == 0 or part != 0


@pytest.mark.parametrize(
    ("pay", "budget", "cents"),
    [
        ((1, 1, 1), 100, [34, 33, 33]),
        ((1, 1, 1), 10001, [3334, 3334, 3333]),
        ((1, 1, 1), 0, [0, 0, 0]),
        ((2, 3, 2, 0), 1, [0, 1, 0, 0]),  # 2/7, 3/7, 2/7 of a cent
        ((0.7, 0.5, -0.2), 1000, [700, 500, -200]),
        ((1.5, -0.5), 333, [500, -167]),  # 499.5 and -166.5: rounded down to 499 and -167, the first gets the cent
        ((3, -1, -1), 1, [3, -1, -1]),
        ((4, -1, -1), 1, [2, 0, -1]),  # 2, -1/2, -1/2
    ],
)
def test_cents_by_hand(pay: tuple[float, ...], budget: int, cents: list[int]) -> None:
    assert in_cents(tensor(*pay), budget) == cents


def test_lines_by_hand() -> None:
    table = example()
    assert table.schema == SCHEMA
    assert table.slice(0, 1).to_pylist() == [
        {
            "round": 1,
            "member": "bank a",
            "alignment": 0.7 * 0.5,
            "diversity": 0.1,
            "value": 0.5,
            "leave_one_out": None,
            "density": 1.0,
            "pay": Decimal("50.00"),
            "currency": "CHF",
            "reason": "owed for value",
        }
    ]
    # Round 2: .7 + .2, .4, -.1 (fines have no compensation), together 1.2.
    assert table["pay"].to_pylist() == [Decimal(x) for x in ("50.00", "60.00", "-10.00", "75.00", "33.33", "-8.33")]
    assert table["reason"].to_pylist()[2:] == [
        "fined for harm: value below zero",
        "owed for value and late contribution",
        "owed for value",
        "fined for harm: value below zero",
    ]


@pytest.mark.parametrize("budget", ["0.01", "0.07", "1", "99.99", "1000.00", "123456789.01", 0.1, 7])
def test_every_round_and_the_totals_reconcile_with_the_budget(budget: str | float) -> None:
    rounds, before, members = [], None, [f"m{i}" for i in range(7)]
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 31):
        r = torch.rand(7, generator=generator, dtype=torch.float64) - 0.1
        r = r / r.sum()
        paid = payoffs(r, r if before is None else before)
        rounds.append(StatementRound(number, members, r, None, None, None, None, paid.pay, reasons(paid)))
        before = r if before is None else before + (r - before) / number
    table = statement(Terms(budget, "EUR"), rounds)
    exact = Decimal(str(budget))
    assert min(table["pay"].to_pylist()) <= 0
    for number in range(1, 31):
        assert sum(line["pay"] for line in table.to_pylist() if line["round"] == number) == exact
    whole = totals(table)
    assert sum(whole["pay"].to_pylist()) == 30 * exact
    assert [p + f for p, f in zip(whole["paid"].to_pylist(), whole["fined"].to_pylist(), strict=True)] == whole[
        "pay"
    ].to_pylist()


def test_totals_by_hand() -> None:
    found = totals(example())
    assert found.drop_columns(["alignment", "diversity", "value", "density"]).to_pylist() == [
        line | {"rounds": 2, "leave_one_out": None, "currency": "CHF"}
        for line in (
            {"member": "bank a", "pay": Decimal("125.00"), "paid": Decimal("125.00"), "fined": Decimal(0)},
            {"member": "bank b", "pay": Decimal("93.33"), "paid": Decimal("93.33"), "fined": Decimal(0)},
            {"member": "bänk c", "pay": Decimal("-18.33"), "paid": Decimal(0), "fined": Decimal("-18.33")},
        )
    ]
    assert found["alignment"].to_pylist() == pytest.approx([0.42, 0.35, -0.07])
    assert found["value"].to_pylist() == pytest.approx([0.6, 0.5, -0.1])


def test_members_may_differ_from_round_to_round() -> None:
    rounds = [
        StatementRound(2, ["a", "b"], None, None, None, None, None, tensor(1, 1), ["", ""]),
        StatementRound(5, ["b"], None, None, None, None, None, tensor(3), [""]),
    ]
    found = totals(statement(Terms("0.03"), rounds))
    assert [(line["member"], line["rounds"], line["pay"]) for line in found.to_pylist()] == [
        ("a", 1, Decimal("0.02")),
        ("b", 2, Decimal("0.04")),
    ]


def test_no_rounds_no_lines() -> None:
    table = statement(TERMS, [])
    assert (len(table), len(totals(table))) == (0, 0)
    whole = digest(table, TERMS, RUN)
    assert whole.digest == whole.start


def as_parquet(table: pa.Table, path: Path) -> pa.Table:
    pyarrow.parquet.write_table(table, path)
    return pyarrow.parquet.read_table(path)


def as_csv(table: pa.Table, path: Path) -> pa.Table:
    pyarrow.csv.write_csv(table, path)
    return pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=SCHEMA))


@pytest.mark.parametrize("through", [as_parquet, as_csv])
def test_a_written_statement_is_the_same(through: Callable[[pa.Table, Path], pa.Table], tmp_path: Path) -> None:
    table = example()
    back = through(table, tmp_path / "statement")
    assert back.to_pylist() == table.to_pylist()
    assert digest(back, TERMS, RUN) == digest(table, TERMS, RUN)


CHANGES = {
    "round": 3,
    "member": "bank d",
    "alignment": 0.1 + 2**-56,
    "diversity": None,
    "value": 0.25,
    "leave_one_out": 0.0,
    "density": 0.5,
    "pay": Decimal("0.01"),
    "currency": "EUR",
    "reason": "Paid for value",
}


@pytest.mark.parametrize("column", SCHEMA.names)
@pytest.mark.parametrize("line", [0, 4])
def test_a_changed_line_changes_the_digest(column: str, line: int) -> None:
    table = example()
    lines = table.to_pylist()
    lines[line][column] = CHANGES[column]
    changed = digest(pa.Table.from_pylist(lines, SCHEMA), TERMS, RUN)
    whole = digest(table, TERMS, RUN)
    assert changed.digest != whole.digest
    assert sum(a != b for a, b in zip(changed.lines, whole.lines, strict=True)) == 1


def test_order_omission_terms_and_run_change_the_digest() -> None:
    table = example()
    others = [
        digest(table.take([1, 0, 2, 3, 4, 5]), TERMS, RUN),
        digest(table.slice(1), TERMS, RUN),
        digest(table.slice(0, 5), TERMS, RUN),
        digest(pa.concat_tables([table, table.slice(5)]), TERMS, RUN),
        digest(table, Terms("100.01", "CHF"), RUN),
        digest(table, Terms("100.00", "EUR"), RUN),
        digest(table, TERMS, "60" * 32),
    ]
    assert len({digest(table, TERMS, RUN).digest, *(other.digest for other in others)}) == 8
    assert digest(table, Terms(100, "CHF"), RUN) == digest(table, TERMS, RUN)


def test_earlier_rounds_lead_to_the_digest_of_later_ones() -> None:
    table = example()
    early, late = digest(table.slice(0, 3), TERMS, RUN), digest(table, TERMS, RUN)
    assert chain(early.digest, late.lines[3:]) == late.digest


def test_a_line_is_hashed_as_documented() -> None:
    """The line written out by hand."""
    line = '[1,"bank a","0x1.0000000000000p-1",null,"-0x1.8000000000000p+1",null,null,5000,"CHF","paid"]'
    entry = StatementRound(1, ["bank a"], tensor(0.5), None, tensor(-3), None, None, tensor(1), ["paid"])
    assert hashes(statement(Terms("50", "CHF"), [entry])) == (hashlib.sha256(line.encode()).hexdigest(),)


def test_lines_are_chained_as_documented() -> None:
    """From the terms and the run, each link before the next line's hash: whoever follows the documentation gets it."""
    whole = digest(example(), TERMS, RUN)
    link = hashlib.sha256(f'["{RUN}",10000,"CHF"]'.encode())
    assert whole.start == link.hexdigest()
    for line in whole.lines:
        link = hashlib.sha256(link.digest() + bytes.fromhex(line))
    assert (len(whole.lines), whole.digest) == (6, link.hexdigest())


def test_a_member_checks_its_own_lines_against_the_whole() -> None:
    table = example()
    whole = digest(table, TERMS, RUN)
    own = of_member(table, "bänk c")
    assert own["round"].to_pylist() == [1, 2]
    check(own, "bänk c", whole, TERMS, RUN)

    lines = own.to_pylist()
    lines[1]["pay"] += Decimal("0.01")
    changed = pa.Table.from_pylist(lines, SCHEMA)
    forged = Digest(whole.start, (*whole.lines[:5], hashes(changed)[1]), whole.digest)
    cases = [
        (changed, whole, TERMS, RUN, "the line of bänk c in round 2 is not in the statement"),
        (changed, forged, TERMS, RUN, "do not lead to the digest"),
        (own, whole, Terms("99.00", "CHF"), RUN, "another run, budget or currency"),
        (own, whole, TERMS, "00" * 32, "another run, budget or currency"),
        (table, whole, TERMS, RUN, "bank a, bank b also have lines"),
        (pa.concat_tables([own, own]), whole, TERMS, RUN, "occurs twice"),
    ]
    for lines_given, against, terms, run, message in cases:
        with pytest.raises(UserError, match=message):
            check(lines_given, "bänk c", against, terms, run)
    with refusal("statement.no-lines", "'x'"):
        of_member(table, "x")


@pytest.mark.parametrize("budget", ["1.005", "-1", "nan", "inf", "a lot", "1e13", "", 0.001])
def test_a_budget_is_an_amount_in_cents(budget: str | float) -> None:
    with refusal("config.value", "budget"):
        Terms(budget)


def test_rounds_that_do_not_fit_are_refused() -> None:
    good = a_round(1, tensor(0.5, 0.6, -0.1))
    for rounds, message in [
        ([good, good], "round 1 comes after round 1"),
        ([replace_fields(good, members=["a", "b", "a"])], "names a member twice: a, b, a"),
        ([replace_fields(good, density=tensor(1))], "1 entries of density for 3 members"),
        ([replace_fields(good, reason=["", ""])], "2 entries of reason for 3"),
        ([replace_fields(good, pay=tensor(1, -1, 0))], "pay sums to 0.0"),
        ([replace_fields(good, pay=tensor(1, float("nan"), 0))], "needs a finite number"),
    ]:
        with pytest.raises(UserError, match=message):
            statement(TERMS, rounds)
    with refusal("statement.column", "pay"):
        hashes(example().drop_columns(["pay"]))
    mixed = pa.concat_tables([example(), statement(Terms("1", "EUR"), [good])])
    with refusal("statement.currencies", "CHF, EUR"):
        totals(mixed)
