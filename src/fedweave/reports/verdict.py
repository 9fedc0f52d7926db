"""Does joining pay? The joint model's result beside the best that members reach alone, in one sentence."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedweave.core.types import Values
from fedweave.metrics.selection import ALONE, BEST, SHELF, SHELF_JOINT, lower, rank, selection_metric_of, title_of

Metrics = Mapping[str, float | None]  # of a summary
TRAIN_ALONE = ("local", "standalone")  # algorithms; the second for parties with columns of the same nodes
TIE = 5e-4  # relative difference of two values that a reader sees as the same number
# {place of a result: what a reader calls it}
SHELVES = {
    f"{SHELF}/local": "alone, on the shelf",
    f"{SHELF_JOINT}/local": "on the shelf, with joint columns",
    f"{SHELF}/pooled": "on the shelf, all data pooled",
}
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


def verdict_of(summary: Values) -> Verdict | None:
    """The verdict on a run with this summary; None where no member is known to have learned alone, or where all do."""
    metrics: Metrics = summary["metrics"]
    if summary.get("algorithm") in TRAIN_ALONE:
        return None
    metric = selection_metric_of(metrics)
    joint = joint_value(metrics, metric)
    alone = {how: metrics.get(f"{how}/local/{metric}") for how in (SHELF, ALONE)}
    known = {how: value for how, value in alone.items() if value is not None}
    if joint is None or not known:
        return None
    best, is_result = metrics.get(f"{BEST}/round"), "chosen_round" in summary
    round = None if is_result or best == summary.get("rounds") else best
    return Verdict(metric, joint, known, shelf_tools(summary), metrics.get(f"{SHELF}/pooled/{metric}"), round)


def verdict_of_seeds(summaries: Sequence[Values]) -> Verdict | None:
    """The verdict on runs that differ in the seed: means over those that have one, of the first one's metric."""
    verdicts = [verdict for verdict in map(verdict_of, summaries) if verdict is not None]
    if not verdicts:
        return None
    first = verdicts[0]
    same = [one for one in verdicts if one.metric == first.metric and one.alone.keys() == first.alone.keys()]
    alone = {how: fmean(one.alone[how] for one in same) for how in first.alone}
    tools = Counter[str]()
    for one in same:
        tools.update(one.tools)
    pooled = [one.pooled for one in same if one.pooled is not None]
    return Verdict(
        first.metric,
        fmean(one.joint for one in same),
        alone,
        dict(tools.most_common()),
        fmean(pooled) if pooled else None,
    )


def joint_value(metrics: Metrics, metric: str) -> float | None:
    """The mean over members of the joint model's test results in the round that validation chose, else in the last
    one; on the global test set where members have no test examples."""
    for name in (f"{BEST}/local/{metric}", f"local/{metric}", f"{BEST}/global/{metric}", f"global/{metric}"):
        if metrics.get(name) is not None:
            return metrics[name]
    return None


def shelf_tools(summary: Values, which: str = "local") -> dict[str, int]:
    """{tool: members whose validation examples chose it} of a summary."""
    tools = (summary.get(SHELF) or {}).get(which)
    if not isinstance(tools, dict):  # another program may have written the file
        return {}
    return {str(tool): count for tool, count in tools.items() if isinstance(count, int)}


def tools_text(tools: Mapping[str, int]) -> str:
    """ "boosting on own columns", or "boosting on own columns at 4 of 6, 2 other tools"; "" without tools."""
    if len(tools) < 2:
        return "".join(tools)
    first = max(tools, key=lambda tool: tools[tool])
    others = f"{len(tools) - 1} other tool{'s' if len(tools) > 2 else ''}"
    return f"{first} at {tools[first]} of {sum(tools.values())} members, else {others}"


def shelf_sentences(summary: Values) -> list[str]:
    """What to know about a run's shelf: what was left out to save time."""
    drawn = (summary.get(SHELF) or {}).get("drawn")
    if not isinstance(drawn, str):
        return []
    return [f"the shelf is smaller than it could be, to save time ({drawn}); set evaluation.shelf = true for all of it"]


def short(value: float) -> str:
    """A value with three decimals; a large one with four digits."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"
