"""The joint model's result beside what members reach alone, in one sentence: of a run (`reports.verdict`) or a site."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedweave.metrics.selection import ALONE, SHELF, lower, rank, title_of

TIE = 5e-4  # relative difference of two values that a reader sees as the same number
WITH_MODEL = "with this model"  # alone: the model of the run, which each member trains by itself


class Verdict(NamedTuple):
    """The values that say whether joining pays, each a mean over members on the same test examples.

    metric: the selection metric. joint: of the joint model, in the round that validation chose if there is one. alone:
    {how: value} of members that do not join. tools: {tool: members whose shelf it is}. pooled: of a shelf on all
    members' examples together, which nobody has; None if it is not known. round: that of `joint`, where the result of
    the run is of another one. of: what the values are, a mean over members or those of one.
    """

    metric: str
    joint: float
    alone: dict[str, float]
    tools: dict[str, int]
    pooled: float | None = None
    round: float | None = None
    of: str = "mean over members"

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
    def sentence(self) -> str:
        """ "AUC, mean over members: joint 0.886, alone 0.861 on the shelf (boosting on own columns), alone 0.822 with
        this model. Joining pays: 0.025 above the best alone, the shelf." """
        clauses = [f"joint {short(self.joint)}" + ("" if self.round is None else f" in round {self.round:g}")]
        for how, value in self.alone.items():
            detail = f" ({tools_text(self.tools)})" if how == SHELF and self.tools else ""
            clauses.append(f"alone {short(value)} {_WORDS[how]}{detail}")
        how, _ = self.strongest
        best = f"the best alone, {_NOUNS[how]}"
        side = "below" if (self.gain > 0) == lower(self.metric) else "above"
        if self.gain == 0:
            result = f"Joining changes nothing: the same as {best}"
        elif self.gain > 0:
            result = f"Joining pays: {short(self.gain)} {side} {best}"
        else:
            result = f"Joining does not pay yet: {short(-self.gain)} {side} {best}"
        return f"{title_of(self.metric)}, {self.of}: {', '.join(clauses)}. {result}."


_WORDS = {SHELF: "on the shelf", ALONE: WITH_MODEL}
_NOUNS = {SHELF: "the shelf", ALONE: "this model"}


def tools_text(tools: Mapping[str, int]) -> str:
    """ "boosting on own columns", or "boosting on own columns at 4 of 6, 2 other tools"; "" without tools."""
    if len(tools) < 2:
        return "".join(tools)
    first = max(tools, key=lambda tool: tools[tool])
    others = f"{len(tools) - 1} other tool{'s' if len(tools) > 2 else ''}"
    return f"{first} at {tools[first]} of {sum(tools.values())} members, else {others}"


def short(value: float) -> str:
    """A value with three decimals; a large one with four digits."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"
