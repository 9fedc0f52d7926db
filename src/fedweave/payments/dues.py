"""What a member's pay follows from, for a member that works it out again from its own lines of a statement alone.

FairGraphFL pays in proportion to r_i + μ_i (`payoffs.unscaled`), and a member's lines have all its r_i. What they lack
is the sum over all members, one number a round.
"""

from collections.abc import Mapping
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.errors import UserError
from fedweave.incentives.payoffs import unscaled
from fedweave.incentives.statement import Terms

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
