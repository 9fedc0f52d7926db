"""Algorithms ranked over several conditions, such as data sets, and the test for a difference between their mean
ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.core.text import counted
from fedweave.metrics.selection import rank
from fedweave.reports.cells import ResultTable, row_of
from fedweave.reports.conditions import Condition, incomparability
from fedweave.reports.effects import UNDECIDED, three_digits

_LEVEL = 0.05


@dataclass(frozen=True)
class Ranks:
    """Algorithms' ranks in each condition that has a number of all of them; rank 1 is best.

    places: [conditions, names]; equal numbers share the mean of their places. omitted: conditions that lack a number.
    p: of the test for a difference, Friedman's for three names and more, Wilcoxon's for two; None where the test needs
    more conditions. datasets: the number of data sets in these conditions.
    """

    names: tuple[str, ...]
    places: np.ndarray
    titles: tuple[str, ...]
    omitted: tuple[str, ...]
    p: float | None
    datasets: int

    @property
    def means(self) -> dict[str, float]:
        """{name: mean rank}."""
        return dict(zip(self.names, self.places.mean(0).tolist(), strict=True))

    def sentence(self) -> str:
        """The mean ranks, and whether they differ significantly."""
        if not len(self.places):
            return "No condition has a number of all algorithms, so that nothing is ranked over them."
        best_first = sorted(self.means.items(), key=lambda item: item[1])
        order = ", ".join(f"{mean:.2f} ({name})" for name, mean in best_first)
        over = f"over {counted(len(self.places), 'condition')}"
        test = "Friedman's test" if len(self.names) > 2 else "Wilcoxon's signed-rank test"
        if self.p is None:
            sentence = f"Not tested, too few conditions: mean ranks {over}, 1 is best, are {order}."
        elif self.p < _LEVEL:
            sentence = f"Mean ranks {over}, 1 is best, differ ({test}, p = {three_digits(self.p)}): {order}."
        else:
            result = f"{UNDECIDED} {over} ({test}, p = {three_digits(self.p)})"
            sentence = f"{result}: mean ranks, 1 is best, are {order}."
        if self.p is not None and self.datasets < len(self.places):
            datasets = counted(self.datasets, "data set")
            sentence += f" The conditions are of {datasets}, so that p is lower than it should be."
        if self.omitted:
            sentence += f" Left out, without a number of all: {'; '.join(self.omitted)}."
        return sentence

    def table(self) -> ResultTable:
        """A row for each name, the best first: its place in every condition, and the mean."""
        rows = []
        for name, mean in sorted(self.means.items(), key=lambda item: item[1]) if len(self.places) else ():
            places = self.places[:, self.names.index(name)]
            rows.append(row_of(name, *map("{:g}".format, places), f"{mean:.2f}"))
        return ResultTable(("rank", *self.titles, "mean"), tuple(rows))


def ranks(conditions: Sequence[Condition]) -> Ranks:
    """The ranks of groups with the same label in several conditions, by the mean over seeds of each selection
    metric."""
    labels = dict[str, None]()
    datasets = set()
    means = dict[str, dict[str, float]]()  # {condition: {label: mean, where more is better}}
    for condition in conditions:
        labels |= dict.fromkeys(group.label for group in condition.groups)
        datasets.add(str(condition.groups[0].first.summary["dataset"]))
        means[condition.title] = {}
        if not incomparability(condition.groups):
            means[condition.title] = {name: rank(condition.metric, mean) for name, mean in condition.means.items()}
    return rank_means(means, [*labels], len(datasets))


def rank_means(means: Mapping[str, Mapping[str, float]], names: Sequence[str], datasets: int) -> Ranks:
    """The ranks of numbers {condition: {name: mean}}, where more is better; datasets: the number of data sets in the
    conditions."""
    from scipy.stats import friedmanchisquare, rankdata, wilcoxon  # slow to import

    complete = [title for title, by_name in means.items() if by_name.keys() >= {*names}]
    omitted = [title for title in means if title not in complete]
    rows = list[list[float]]()
    for title in complete:
        rows.append([means[title][name] for name in names])
    values = np.array(rows).reshape(-1, len(names))  # [conditions, names]
    places = rankdata(-values, axis=1) if complete else np.zeros((0, len(names)))
    p = None
    if len(complete) >= 3 and len(names) >= 2:
        differences = values[:, 0] - values[:, 1]
        if len(names) > 2:
            p = float(friedmanchisquare(*values.T).pvalue)
        else:
            p = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
        p = p if math.isfinite(p) else 1.0  # of equal columns
    return Ranks(tuple(names), places, tuple(complete), tuple(omitted), p, datasets)
