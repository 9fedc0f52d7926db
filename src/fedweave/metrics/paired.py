"""Differences between runs with the same seeds, and how sure they are."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The two-sided 95 % interval of the mean of independent normal values, by Student's t; None of fewer than two."""
    from scipy.stats import t  # slow to import

    if len(values) < 2:
        return None, None
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - float(half), mean + float(half)


def differences(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> list[float]:
    """One minus the other for every seed that both have, {seed: value} each."""
    return [one[seed] - other[seed] for seed in one if seed in other]


def surely_above(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> bool:
    """Whether the paired test says that one is above the other: the 95 % interval of the mean difference over their
    common seeds, of which there are at least two, lies above 0."""
    low, _ = interval(differences(one, other))
    return low is not None and low > 0
