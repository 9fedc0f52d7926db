"""Paired tests over seeds: runs with the same seed are compared, and a difference counts if its interval leaves out
0."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence

MIN_SEEDS = 3  # that a test needs: two seeds have an interval of width 0 whenever their differences are equal
LEVEL = 0.05


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The two-sided 95 % interval of the mean of independent normal values, by Student's t; None for fewer than two."""
    from scipy.stats import t  # slow to import

    if len(values) < 2:
        return None, None
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - float(half), mean + float(half)


def paired_differences(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> list[float]:
    """One minus the other for every seed that both have, {seed: value} each."""
    return [one[seed] - other[seed] for seed in one if seed in other]


def paired_test(differences: Sequence[float]) -> int:
    """The result of the paired test on differences, one for each seed.

    Returns 1 if their 95 % interval lies above 0 and -1 if it lies below; else 0, also for fewer than `MIN_SEEDS`.
    """
    low, high = interval(differences)
    if low is None or high is None or len(differences) < MIN_SEEDS:
        return 0
    return int(low > 0) - int(high < 0)


def paired_tests(differences: Sequence[Sequence[float]]) -> list[int]:
    """The results of paired tests of several groups against the same group: 1, -1 or 0 for each (`paired_test`).

    The level is 5 % for all of them together (Holm 1979, "A simple sequentially rejective multiple test procedure").

    differences: of each group, one for each seed; groups of fewer than `MIN_SEEDS` are not tested.
    """
    from scipy.stats import t  # slow to import

    results = [paired_test(of_group) for of_group in differences]
    order = list[tuple[float, int]]()  # (p of the two-sided t-test that the mean is 0, group)
    for index, values in enumerate(differences):
        if len(values) >= MIN_SEEDS:
            mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
            p = 2 * float(t.sf(abs(mean) / error, len(values) - 1)) if error else float(not mean)
            order.append((p, index))
    order.sort()
    while order and order[0][0] <= LEVEL / len(order):
        order.pop(0)
    for _, index in order:  # from the first that is not significant on, none is
        results[index] = 0
    return results
