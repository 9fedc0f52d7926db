"""The rules of pay, each described once: what has to be measured, the formula and the words that a statement prints,
and how shares and a member's check of them are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from fedweave.incentives.payoffs import divisible, impartial_shares, proportions, raw_payoffs

SIZE = "size"
TIMES = "\N{MULTIPLICATION SIGN}"
DIGITS = ".8g"  # of the numbers from which a reader computes an amount to the cent


def to_digits(value: float) -> str:
    """A number from which a reader computes an amount."""
    return format(value, DIGITS)


@dataclass(frozen=True)
class Basis:
    """What a run measured of its N members, summed over rounds.

    by: {who measured: gains by each member's update [N]}, of members or of one who is none; {} for rules that use no
    gains. sizes: the members' shares by size [N].
    """

    members: Sequence[str]
    by: Mapping[str, Tensor]
    sizes: Tensor


@dataclass(frozen=True)
class Rule:
    """A rule by which members are paid.

    needs:   what a part has to measure of each member (`algorithms.parts.Needs.measures`); "" for nothing.
    parts:   the parts that measure it, for remedies.
    number:  name of the number of a line from which its pay follows.
    formula: as a statement prints it. words: its meaning; `{metric}` stands for the metric that selects in the run.
    """

    needs: str
    parts: tuple[str, ...]
    number: str
    formula: str
    words: str

    def shares(self, basis: Basis) -> Tensor:
        """Shares of the budget [N], float64 that sum to 1; NaN if nothing divides it."""
        return torch.full_like(basis.sizes, 1 / len(basis.members))

    def terms(self, basis: Basis, member: int) -> str:
        """The right side of the formula with the numbers of a member."""
        return f"1 / {len(basis.members)}"

    def dues(self, lines: pa.Table) -> dict[int, float]:
        """{round: what the pay of one member's lines is in proportion to}, up to the first line without its number."""
        dues = {}
        for line in lines.sort_by("round").to_pylist():
            if line["value"] is None:
                break
            dues[line["round"]] = line["value"]
        return dues


class SizeRule(Rule):
    """Shares in proportion to size."""

    def shares(self, basis: Basis) -> Tensor:
        return basis.sizes

    def terms(self, basis: Basis, member: int) -> str:
        return f"size {to_digits(float(basis.sizes[member]))}"


class GainsRule(Rule):
    """Shares by gains: the impartial division, or in proportion where one who is not a member measured them."""

    def shares(self, basis: Basis) -> Tensor:
        gains = torch.stack([*basis.by.values()]).double()
        if not divisible(gains.relu().sum(0)):
            return torch.full_like(basis.sizes, torch.nan)
        return impartial_shares(gains) if list(basis.by) == list(basis.members) else proportions(gains[0].relu())

    def terms(self, basis: Basis, member: int) -> str:
        count, fractions = len(basis.members), list[str]()
        for judge, gains in basis.by.items():
            if judge == basis.members[member]:
                continue
            not_judge = torch.tensor([name != judge for name in basis.members], device="cpu")
            total = float((gains.double().relu() * not_judge).sum())
            gain = max(float(gains[member]), 0.0)
            fraction = f"{to_digits(gain)} / {to_digits(total)}" if total > 0 else f"1 / {count - 1}"
            fractions.append(f"{fraction} by {judge}")
        if list(basis.by) != list(basis.members):
            return fractions[0]
        return f"1 / {count} {TIMES} ({' + '.join(fractions)})" if fractions else "1"


class PayoffRule(Rule):
    """FairGraphFL's payoffs, round by round (`payoffs.payoffs`)."""

    def dues(self, lines: pa.Table) -> dict[int, float]:
        """{round: r + μ}; later means need every r."""
        values = super().dues(lines)
        r = torch.tensor([*values.values()], dtype=torch.float64, device="cpu")
        means = r.cumsum(0) / torch.arange(1, len(r) + 1, device=r.device)
        raw = raw_payoffs(r, torch.cat([r[:1], means[:-1]])).pay  # no compensation in the first round
        return dict(zip(values, raw.tolist(), strict=True))


_IMPARTIAL = f"share = 1 / N {TIMES} Σ over the others v of (gain by v / sum of v's gains)"
_IMPARTIALITY = (
    "Each of the N members divides 1 / N of the budget among the others, in proportion to the gains above 0 that it "
    "measured on its test examples, equally if there are none. So no member's counts change its own share."
)
RULES: dict[str, Rule] = {
    "shapley": GainsRule(
        "shapley",
        ("coalition_value",),
        "share",
        _IMPARTIAL,
        "A gain is a member's Shapley value in {metric}, summed over rounds. " + _IMPARTIALITY,
    ),
    "validated": GainsRule(
        "validated",
        ("validated_value",),
        "share",
        _IMPARTIAL,
        "A gain is what a member's update adds by itself to the model before the round, in {metric}, summed over "
        "rounds. "
        + _IMPARTIALITY
        + " If the server measured on examples of its own, shares are in proportion to these gains.",
    ),
    SIZE: SizeRule(
        SIZE,
        ("coalition_value", "validated_value"),
        "share",
        "share = size",
        "Size is the mean weight of a member's updates, divided by the sum over members.",
    ),
    "equal": Rule("", (), "share", "share = 1 / N", "All N members get the same."),
}
PAYOFF = PayoffRule(
    "",
    (),
    "value r",
    f"pay = budget of a round {TIMES} (r + μ) / sum of all members' r + μ",
    "The late contribution μ is how far r is above the member's own mean in the rounds before; it is 0 in the first "
    "round, and where r is below that mean or below 0.",
)
