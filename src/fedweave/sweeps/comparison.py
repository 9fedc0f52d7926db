"""Algorithms with their chosen settings, compared in every condition: ranks and paired differences."""

import math
from collections.abc import Sequence

from fedweave.core.types import Record
from fedweave.experiment.runs.reading import spread
from fedweave.metrics.selection import rank
from fedweave.reports.conditions import settings_text
from fedweave.reports.effects import effect
from fedweave.reports.paired import paired_differences, paired_tests
from fedweave.reports.ranks import Ranks, rank_means
from fedweave.sweeps.choosing import ChosenSetting


def choices_by_condition(choices: Sequence[ChosenSetting]) -> dict[str, list[ChosenSetting]]:
    """{condition in words: its choices}."""
    by_condition: dict[str, list[ChosenSetting]] = {}
    for choice in choices:
        by_condition.setdefault(settings_text(choice.condition), []).append(choice)
    return by_condition


def rank_algorithms(choices: Sequence[ChosenSetting]) -> Ranks | None:
    """The algorithms' ranks over the conditions; None for fewer than two conditions, or for one algorithm."""
    by_condition = choices_by_condition(choices)
    names = list(dict.fromkeys(choice.algorithm for choice in choices))
    if len(by_condition) < 2 or len(names) < 2:
        return None
    means: dict[str, dict[str, float]] = {}
    for condition, its_choices in by_condition.items():
        means[condition] = {}
        for choice in its_choices:
            mean = spread(choice.values())[0]
            if math.isfinite(mean):
                means[condition][choice.algorithm] = rank(choice.metric, mean)
    data_sets = {str(choice.group.first.config["data"].get("name")) for choice in choices}
    ranks = rank_means(means, names, len(data_sets))
    return ranks if len(ranks.places) else None


def rows_by_condition(choices: Sequence[ChosenSetting]) -> list[Record]:
    """A row for each condition and algorithm: its result, its rank, and the paired difference to the first algorithm,
    with its significance at a level of 5 % for all algorithms of the condition together (`paired.paired_tests`)."""
    tests: dict[
        tuple[str, str], tuple[str, list[float], int]
    ] = {}  # the first algorithm, differences to it, their sign
    for condition, its_choices in choices_by_condition(choices).items():
        first, *others = its_choices
        gaps = [paired_differences(choice.by_seed(), first.by_seed()) for choice in others]
        for choice, differences, sign in zip(others, gaps, paired_tests(gaps), strict=True):
            tests[condition, choice.algorithm] = first.algorithm, differences, sign
    ranks = rank_algorithms(choices)
    rows = []
    for choice in choices:
        condition = settings_text(choice.condition)
        mean, deviation, seeds = spread(choice.values())
        row = {
            "condition": condition,
            "algorithm": choice.algorithm,
            "metric": choice.metric,
            "seeds": seeds,
            "mean": mean,
            "deviation": deviation,
        }
        if ranks is not None and condition in ranks.titles:
            row["rank"] = ranks.places[ranks.titles.index(condition), ranks.names.index(choice.algorithm)]
        if (condition, choice.algorithm) in tests:
            against, differences, sign = tests[condition, choice.algorithm]
            if differences:
                gap = effect(differences)
                row |= {"against": against, "difference": gap.mean, "low": gap.low, "high": gap.high}
                row |= {"pairs": gap.seeds, "significant": int(sign != 0)}
        rows.append(row)
    return rows
