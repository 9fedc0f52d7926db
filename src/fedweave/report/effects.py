"""A difference between runs in words: no sentence claims more than its interval shows."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedweave.core.text import counted
from fedweave.metrics.judging import BEST, WORDS
from fedweave.report.cells import LEAST_SEEDS, differences, interval, signed
from fedweave.report.reading import Group, spread

UNDECIDED = "No significant difference"
MANY = 8  # runs that a sentence names
NEXT = 3  # of those that the best is compared with


@dataclass(frozen=True)
class Effect:
    """A mean difference over runs with the same seed, and its two-sided 95 % interval by Student's t.

    low, high: None of one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0, and is of enough seeds."""
        if self.low is None or self.high is None or self.seeds < LEAST_SEEDS:
            return False
        return not self.low <= 0 <= self.high

    @property
    def sureness(self) -> str:
        """ "95 % interval −0.440 to +0.288, 2 seeds", or "one seed, not tested"."""
        if self.low is None or self.high is None:
            return "one seed, not tested"
        return f"95 % interval {signed(self.low, three)} to {signed(self.high, three)}, {counted(self.seeds, 'seed')}"


def effect(values: Sequence[float]) -> Effect:
    """Of the differences of all seeds, at least one."""
    low, high = interval(values)
    return Effect(statistics.fmean(values), low, high, len(values))


def three(value: float) -> str:
    """A number with three significant digits."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def ranked(values: Mapping[str, float], form: Callable[[float], str]) -> str:
    """Names with their values, the highest first; of many the first ones and the last."""
    order = [f"{form(value)} ({name})" for name, value in sorted(values.items(), key=lambda item: -item[1])]
    few = order if len(order) <= MANY else [*order[: MANY - 2], f"… {order[-1]}"]
    return ", ".join(few)


def standing(groups: Sequence[Group], name: str, metric: str) -> str:
    """Which group of runs is ahead, in a sentence; "" of fewer than two.

    name: of a number in the runs' summaries, the mean over members of `metric` (a key of `WORDS`); more is better.
    """
    means = {group.label: spread(group.values(name))[0] for group in groups}
    known = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if len(known) < 2:
        return ""
    best, *others = sorted((group for group in groups if group.label in known), key=lambda group: -known[group.label])
    when = " in the round that is best on validation examples" if name.startswith(f"{BEST}/") else ""
    ranks = f"members' mean test {WORDS[metric]}{when} is {ranked(known, '{:.3f}'.format)}"
    if all(len(group.runs) == 1 for group in groups):
        return f"Not tested, one seed: {ranks}; with other seeds the order may be another."
    ahead = {
        group.label: effect(found)
        for group in others
        if (found := differences(best.by_seed(name), group.by_seed(name)))
    }
    if len(ahead) < len(others):
        return f"Not tested, since not all runs have a seed in common: {ranks}."
    level = {label: own for label, own in ahead.items() if not own.significant}
    if level:
        shown = [f"{label} ({signed(own.mean, three)}; {own.sureness})" for label, own in [*level.items()][:NEXT]]
        more = f" and {len(level) - NEXT} more" if len(level) > NEXT else ""
        return f"{UNDECIDED} between {best.label} and {', '.join(shown)}{more}: {ranks}."
    label, own = next(iter(ahead.items()))
    return f"{best.label} is ahead of {label} by {three(own.mean)} ({own.sureness}): {ranks}."
