"""The rules of pay, each described once: what has to be measured, the formula and the words that a statement prints,
and how shares and a member's check of them are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from fedweave.core.text import counted
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


class Summand(NamedTuple):
    """A part of a member's share of the budget: where it comes from, its formula with the member's numbers, its
    value."""

    source: str
    numbers: str
    share: float


@dataclass(frozen=True)
class Rule:
    """A rule by which members are paid.

    needs:   what a part has to measure of each member (`algorithms.parts.Needs.measures`); "" for nothing.
    parts:   the parts that measure it, for remedies.
    number:  name of the number of a line from which its pay follows.
    title:   what pay follows from, after "divided": "by size".
    formula: as a statement prints it. words: its meaning; `{metric}` stands for the metric that selects in the run.
    """

    needs: str
    parts: tuple[str, ...]
    number: str
    title: str
    formula: str
    words: str

    def of(self, basis: Basis) -> "Rule":
        """The rule as it pays by what a run measured; a rule may depend on who measured."""
        return self

    def shares(self, basis: Basis) -> Tensor:
        """Shares of the budget [N], float64 that sum to 1; NaN if nothing divides it."""
        return torch.full_like(basis.sizes, 1 / len(basis.members))

    def summands(self, basis: Basis, member: int) -> list[Summand]:
        """What a member's share adds up from."""
        count = len(basis.members)
        return [Summand(f"one of {counted(count, 'member')}", f"1 / {count}", 1 / count)]

    def terms(self, basis: Basis, member: int) -> str:
        """The right side of the formula with the numbers of a member."""
        return self.summands(basis, member)[0].numbers

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

    def summands(self, basis: Basis, member: int) -> list[Summand]:
        size = float(basis.sizes[member])
        return [Summand("its part of all members' sizes", f"size {to_digits(size)}", size)]


@dataclass(frozen=True)
class GainsRule(Rule):
    """Shares by gains: the impartial division, or in proportion where one who is not a member measured them. gain: what
    a gain is, the first sentence of the words."""

    gain: str = ""

    def of(self, basis: Basis) -> Rule:
        return self if _impartial(basis) else replace(self, formula=_PROPORTION, words=f"{self.gain} {_BY_ONE}")

    def shares(self, basis: Basis) -> Tensor:
        gains = torch.stack([*basis.by.values()]).double()
        if not divisible(gains.relu().sum(0)):
            return torch.full_like(basis.sizes, torch.nan)
        return impartial_shares(gains) if _impartial(basis) else proportions(gains[0].relu())

    def summands(self, basis: Basis, member: int) -> list[Summand]:
        count, summands = len(basis.members), list[Summand]()
        part, factor = (count, f"1 / {count} {TIMES} ") if _impartial(basis) else (1, "")
        for judge, fraction, share in self._fractions(basis, member):
            summands.append(Summand(f"measured by {judge}", f"{factor}{fraction}", share / part))
        return summands or [Summand("the only member", "1", 1.0)]

    def terms(self, basis: Basis, member: int) -> str:
        fractions = [f"{fraction} by {judge}" for judge, fraction, _ in self._fractions(basis, member)]
        if not _impartial(basis):
            return fractions[0]
        return f"1 / {len(basis.members)} {TIMES} ({' + '.join(fractions)})" if fractions else "1"

    def _fractions(self, basis: Basis, member: int) -> list[tuple[str, str, float]]:
        """(who measured, the member's gain over the sum of gains in digits, its value)."""
        count, fractions = len(basis.members), list[tuple[str, str, float]]()
        for judge, gains in basis.by.items():
            if judge == basis.members[member]:
                continue
            not_judge = torch.tensor([name != judge for name in basis.members], device="cpu")
            total = float((gains.double().relu() * not_judge).sum())
            gain = max(float(gains[member]), 0.0)
            if total > 0:
                fractions.append((judge, f"{to_digits(gain)} / {to_digits(total)}", gain / total))
            else:
                fractions.append((judge, f"1 / {count - 1}", 1 / (count - 1)))
        return fractions


def _impartial(basis: Basis) -> bool:
    """Whether members measured each other."""
    return list(basis.by) == list(basis.members)


class PayoffRule(Rule):
    """FairGraphFL's payoffs, round by round (`payoffs.payoffs`)."""

    def dues(self, lines: pa.Table) -> dict[int, float]:
        """{round: r + μ}; later means need every r."""
        return {number: r + late for number, (r, _, late) in self.workings(lines).items()}

    def workings(self, lines: pa.Table) -> dict[int, tuple[float, float, float]]:
        """{round: (r, mean of r in the rounds before, μ)} of one member's lines; a fine is r, and has no μ."""
        values = super().dues(lines)
        r = torch.tensor([*values.values()], dtype=torch.float64, device="cpu")
        means = r.cumsum(0) / torch.arange(1, len(r) + 1, device=r.device)
        before = torch.cat([r[:1], means[:-1]])  # no compensation in the first round
        late = raw_payoffs(r, before).compensation
        numbers = zip(r.tolist(), before.tolist(), late.tolist(), strict=True)
        return dict(zip(values, numbers, strict=True))


_IMPARTIAL = f"share = 1 / N {TIMES} Σ over the others v of (gain by v / sum of v's gains)"
_PROPORTION = "share = gain / sum of all members' gains"
_IMPARTIALITY = (
    "Each of the N members divides 1 / N of the budget among the others, in proportion to the gains above 0 that it "
    "measured on its test examples, equally if there are none. So no member's counts change its own share."
)
_BY_ONE = "The server measured on examples of its own; shares are in proportion to these gains, below 0 as 0."
_SHAPLEY = "A gain is a member's Shapley value in {metric}, summed over rounds."
_VALIDATED = (
    "A gain is what a member's update adds by itself to the model before the round, in {metric}, summed over rounds."
)
RULES: dict[str, Rule] = {
    "shapley": GainsRule(
        "shapley",
        ("coalition_value",),
        "share",
        "by Shapley values",
        _IMPARTIAL,
        f"{_SHAPLEY} {_IMPARTIALITY}",
        _SHAPLEY,
    ),
    "validated": GainsRule(
        "validated",
        ("validated_value",),
        "share",
        "by gains of single updates",
        _IMPARTIAL,
        f"{_VALIDATED} {_IMPARTIALITY}",
        _VALIDATED,
    ),
    SIZE: SizeRule(
        SIZE,
        ("coalition_value", "validated_value"),
        "share",
        "by size",
        "share = size",
        "Size is the mean weight of a member's updates, divided by the sum over members.",
    ),
    "equal": Rule("", (), "share", "in equal shares", "share = 1 / N", "All N members get the same."),
}
PAYOFF = PayoffRule(
    "",
    (),
    "value r",
    "by value per round",
    f"pay = budget of a round {TIMES} (r + μ) / sum of all members' r + μ",
    "The late contribution μ is how far r is above the member's own mean in the rounds before; it is 0 in the first "
    "round, and where r is below that mean or below 0.",
)
