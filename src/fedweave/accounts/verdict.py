"""The global model's result and what members reach alone, in one sentence: of a run (`reports.verdict`) or a site."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedweave.metrics.selection import CHOSEN_ROUND, MEMBER_MEAN, WORDS_OF_PLACES, lower, rank, title_of

TIE = 5e-4  # relative difference of two values that a reader sees as the same number


class Verdict(NamedTuple):
    """The values that say whether joining pays, each a mean over members on the same test examples.

    metric: the selection metric. joint: of the global model, in the round that validation chose if there is one. alone:
    {how: value} of members that do not join. tools: {tool: members whose shelf it is}. pooled: of a shelf on all
    members' examples together, which nobody has; None if it is not known. round: that of `joint`, where the result of
    the run is of another one. of: what the values are, a mean over members or those of one. interval: the 95 % interval
    of the gain, and what it is over; None where it is not known.
    """

    metric: str
    joint: float
    alone: dict[str, float]
    tools: dict[str, int]
    pooled: float | None = None
    round: float | None = None
    of: str = MEMBER_MEAN
    interval: tuple[float, float, str] | None = None

    @property
    def strongest(self) -> tuple[str, float]:
        """How members reach most alone, and that value."""
        how = max(self.alone, key=lambda how: rank(self.metric, self.alone[how]))
        return how, self.alone[how]

    @property
    def gain(self) -> float:
        """What joining adds to the strongest alone, positive where it is better; 0 for a difference that nobody
        sees."""
        _, value = self.strongest
        if math.isclose(self.joint, value, rel_tol=TIE):
            return 0.0
        return rank(self.metric, self.joint) - rank(self.metric, value)

    @property
    def sign(self) -> int:
        """1 where joining pays, -1 where it costs, 0 where it changes nothing or the interval includes that."""
        if self.interval is not None and self.interval[0] <= 0 <= self.interval[1]:
            return 0
        return (self.gain > 0) - (self.gain < 0)

    @property
    def sentence(self) -> str:
        """ "Joining pays: AUC 0.886 (member mean), shelf 0.861, alone 0.822; 0.025 above the shelf (95 % interval
        +0.010 to +0.041 over members)." """
        texts = [f"{WORDS_OF_PLACES[how]} {short(value)}" for how, value in self.alone.items()]
        when = "" if self.round is None else f", {CHOSEN_ROUND} {self.round:g}"
        values = ", ".join([f"{title_of(self.metric)} {short(self.joint)} ({self.of}{when})", *texts])
        if self.gain == 0:
            return f"Joining changes nothing: {values}."
        result = {1: "Joining pays", -1: "Joining does not pay", 0: "No significant difference"}[self.sign]
        side = "below" if (self.gain > 0) == lower(self.metric) else "above"
        between = ""
        if self.interval is not None:
            low, high, over = self.interval
            between = f" (95 % interval of the gain {signed(low)} to {signed(high)}{over})"
        return f"{result}: {values}; {short(abs(self.gain))} {side} {WORDS_OF_PLACES[self.strongest[0]]}{between}."

    @property
    def tools_sentence(self) -> str:
        """ "Shelf: boosting on own columns." ; "" without tools."""
        return f"Shelf: {tools_text(self.tools)}." if self.tools else ""


def tools_text(tools: Mapping[str, int]) -> str:
    """ "boosting on own columns", or "boosting on own columns at 4 of 6, 2 other tools"; "" without tools."""
    if len(tools) < 2:
        return "".join(tools)
    first = max(tools, key=lambda tool: tools[tool])
    others = f"{len(tools) - 1} other tool{'s' if len(tools) > 2 else ''}"
    return f"{first} at {tools[first]} of {sum(tools.values())} members, else {others}"


def signed(value: float) -> str:
    """`short` with a sign; "0" of 0."""
    if value == 0:
        return "0"
    return ("+" if value >= 0 else "\N{MINUS SIGN}") + short(abs(value))


def short(value: float) -> str:
    """A value with three decimals; a large one with four digits."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"
