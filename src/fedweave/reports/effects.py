"""Differences between runs in words: no sentence claims more than its interval shows."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.experiment.runs.reading import Group, spread
from fedweave.metrics.selection import CHOSEN_ROUND, LAST_ROUND, MEMBER_MEAN, PLAIN, rank, title_of
from fedweave.reports.cells import with_sign
from fedweave.reports.paired import MIN_SEEDS, interval, paired_differences

UNDECIDED = "No significant difference"
MIN_SEEDS_TEXT = f"an interval needs {MIN_SEEDS} seeds"
MAX_RUNS = 8  # that a sentence names
MAX_COMPARED = 3  # of those that the best is compared with


@dataclass(frozen=True)
class Effect:
    """A mean difference over runs with the same seed, and its two-sided 95 % interval by Student's t.

    low, high: None with one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return self.seeds >= MIN_SEEDS

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0 and there are enough seeds."""
        if self.low is None or self.high is None or not self.tested:
            return False
        return not self.low <= 0 <= self.high

    @property
    def ends(self) -> str:
        """ "−0.44 to +0.29", the ends of the 95 % interval; "" with too few seeds."""
        if self.low is None or self.high is None or not self.tested:
            return ""
        return f"{with_sign(self.low, '{:.2g}'.format)} to {with_sign(self.high, '{:.2g}'.format)}"

    @property
    def uncertainty(self) -> str:
        """ "95 % interval −0.440 to +0.288, 3 seeds"; with too few seeds, that the difference is not tested."""
        if self.low is None or self.high is None:
            return "one seed, not tested"
        seeds = counted(self.seeds, "seed")
        if not self.tested:
            return f"{seeds}, not tested: {MIN_SEEDS_TEXT}"
        return f"95 % interval {with_sign(self.low, three_digits)} to {with_sign(self.high, three_digits)}, {seeds}"


def effect(differences: Sequence[float]) -> Effect:
    """The effect that the differences of all seeds show, at least one."""
    low, high = interval(differences)
    return Effect(statistics.fmean(differences), low, high, len(differences))


def orient(change: Effect, direction: int) -> Effect:
    """The effect with the opposite sign if `direction` is -1, else unchanged."""
    if direction > 0 or change.low is None or change.high is None:
        return replace(change, mean=direction * change.mean)
    return replace(change, mean=-change.mean, low=-change.high, high=-change.low)


def three_digits(value: float) -> str:
    """A number with three significant digits."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def ranking(values: Mapping[str, float], form: Callable[[float], str], metric: str = PLAIN) -> str:
    """Names with their values, the best first by `metric`; of a long list the first ones and the last."""
    best_first = sorted(values.items(), key=lambda item: -rank(metric, item[1]))
    order = [f"{form(value)} ({name})" for name, value in best_first]
    if len(order) > MAX_RUNS:
        order = [*order[: MAX_RUNS - 2], f"… {order[-1]}"]
    return ", ".join(order)


def comparison_sentence(groups: Sequence[Group], name: str, metric: str) -> str:
    """A sentence on which group of runs is ahead; "" for fewer than two groups.

    name: a number of the runs' summaries, the mean over members of `metric` (`metrics.selection.METRICS`).
    """
    means = {group.label: spread(group.values(name))[0] for group in groups}
    known = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if len(known) < 2:
        return ""
    groups_with_means = (group for group in groups if group.label in known)
    best, *others = sorted(groups_with_means, key=lambda group: -rank(metric, known[group.label]))
    of_chosen = {"chosen_round" in run.summary for group in groups for run in group.runs}
    when = CHOSEN_ROUND if all(of_chosen) else LAST_ROUND
    if len(of_chosen) > 1:
        when = "each run's result"
    ranks = f"{title_of(metric)} ({MEMBER_MEAN}, {when}) {ranking(known, '{:.3f}'.format, metric)}"

    # 1. no test, or one that does not show the best ahead
    if all(len(group.runs) == 1 for group in groups):
        return f"Not tested, one seed: {ranks}; with other seeds the order may be another."
    effects = dict[str, Effect]()
    for group in others:
        differences = paired_differences(best.by_seed(name), group.by_seed(name))
        if differences:
            effects[group.label] = effect(differences)
    if len(effects) < len(others):
        return f"Not tested, since not all runs have a seed in common: {ranks}."
    for label, change in effects.items():
        if change.significant and rank(metric, change.mean) < 0:  # possible where not all seeds are in common
            return f"Not all runs have the same seeds; over those in common {label} is ahead of {best.label}: {ranks}."
    tested = {label: change for label, change in effects.items() if change.tested}
    if not tested:
        seeds = counted(max(change.seeds for change in effects.values()), "seed")
        return f"Not tested, {seeds}; {MIN_SEEDS_TEXT}: {ranks}."

    # 2. the result of the test
    untested = [label for label in effects if label not in tested]
    if untested:
        ranks += f". Not tested against {listed(untested)}: {MIN_SEEDS_TEXT}"
    undecided = {label: change for label, change in tested.items() if not change.significant}
    if undecided:
        names = []
        for label, change in [*undecided.items()][:MAX_COMPARED]:
            names.append(f"{label} ({with_sign(change.mean, three_digits)}; {change.uncertainty})")
        more = f" and {len(undecided) - MAX_COMPARED} more" if len(undecided) > MAX_COMPARED else ""
        return f"{UNDECIDED} between {best.label} and {', '.join(names)}{more}: {ranks}."
    label, change = next(iter(tested.items()))
    size = three_digits(abs(change.mean))
    return f"{best.label} is ahead of {label} by {size} ({change.uncertainty}): {ranks}."
