"""Each algorithm's setting, chosen by validation, in every condition in which algorithms are compared."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fedweave.core.types import Values
from fedweave.errors import option
from fedweave.experiment.runs.reading import Group, common_selection_metric, spread
from fedweave.metrics.selection import BEST, PLAIN, RMSE, RMSE_OF_MEAN, lower, rank
from fedweave.reports.cells import Cell, ResultTable, mean_cell, number
from fedweave.reports.conditions import setting_values, settings_text, short_name
from fedweave.sweeps.plan import algorithm_grid, range_of

NEAR = 0.05  # share of a range's length (or of its logarithm) that counts as an end
_SETTINGS = ("algorithm", "model")  # sections whose keys are chosen; keys of other sections are conditions


@dataclass(frozen=True)
class ChosenSetting:
    """An algorithm's setting that is best in a condition, by the mean of the selection metric on validation examples.

    metric:    the selection metric.
    condition: {key of the grid: value}, in which algorithms are compared.
    setting:   {key of the grid: the best value}.
    group:     the runs of the setting.
    tried:     number of settings to choose from.
    edges:     keys whose best value is the smallest or largest of three or more numbers, or is near an end of a range.
    failing:   keys whose best value is the smallest or largest of two or more numbers, or is near an end of a range;
               () unless the metric on test examples is worse than the majority-class baseline or the training mean.
    """

    algorithm: str
    metric: str
    condition: Values
    setting: Values
    group: Group
    tried: int
    edges: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()

    @property
    def test_key(self) -> str:
        """The key of the metric on test examples, in summaries of runs as they are read."""
        return f"local/{self.metric}"

    def by_seed(self) -> dict[object, float]:
        """{seed: the metric on test examples}."""
        return self.group.by_seed(self.test_key)

    def values(self) -> list[float | None]:
        """The metric on test examples of every run."""
        return self.group.values(self.test_key)


def conditions(keys: Sequence[str], over: Sequence[str] = ()) -> tuple[str, ...]:
    """The keys of the grid in which algorithms are compared: all but their settings, and the keys in `over`."""
    return tuple(key for key in keys if key in over or key.partition(".")[0] not in _SETTINGS)


def choose(
    groups: Sequence[Group],
    keys: Sequence[str],
    condition_keys: Sequence[str],
    grid: Mapping[str, Sequence[str]] | None = None,
) -> list[ChosenSetting]:
    """The best setting of every algorithm in each condition; none in a condition without validation examples, or
    without a common selection metric. A setting with fewer runs than others of the same algorithm, because some failed,
    is not chosen.

    keys: keys of the grid. condition_keys: those that are conditions.
    """
    candidates: dict[tuple[str, str], list[Group]] = {}  # {(algorithm, condition): its settings}
    metrics: dict[str, str] = {}  # {condition: its selection metric, "" without a common one}
    for same_condition in groups_by_condition(groups, condition_keys):
        metrics[repr(setting_values(same_condition[0], condition_keys))] = common_selection_metric(same_condition)
    for group in groups:
        condition = repr(setting_values(group, condition_keys))
        if metrics[condition]:
            candidates.setdefault((_algorithm_of(group), condition), []).append(group)
    choices = []
    for (_, condition), its_groups in candidates.items():
        choice = _best(its_groups, metrics[condition], keys, condition_keys, grid or {})
        if choice is not None:
            choices.append(choice)
    return choices


def groups_by_condition(groups: Sequence[Group], condition_keys: Sequence[str]) -> list[list[Group]]:
    """The groups of each condition, which are compared with one another."""
    by_condition: dict[str, list[Group]] = {}
    for group in groups:
        by_condition.setdefault(repr(setting_values(group, condition_keys)), []).append(group)
    return [*by_condition.values()]


def _best(
    groups: Sequence[Group],
    metric: str,
    keys: Sequence[str],
    condition_keys: Sequence[str],
    grid: Mapping[str, Sequence[str]],
) -> ChosenSetting | None:
    """The best of one algorithm's settings in one condition; None if none has the metric on validation examples."""
    # 1. The best group: the first of the highest rank among those with all their runs.
    number_of_runs = max(len(group.runs) for group in groups)
    best = None
    best_rank = -math.inf
    for group in groups:
        mean = spread(group.values(f"{BEST}/val/{metric}"))[0]
        complete = len(group.runs) == number_of_runs and not math.isnan(mean)
        if complete and (best is None or rank(metric, mean) > best_rank):
            best = group
            best_rank = rank(metric, mean)
    if best is None:
        return None

    # 2. Keys whose best value is at an end of what was tried.
    setting_keys = [key for key in keys if key not in condition_keys]
    setting = setting_values(best, setting_keys)
    settings = [setting_values(group, setting_keys) for group in groups]
    ranges = algorithm_grid(grid, str(best.first.config["algorithm"]["name"]))
    numbers_if_at_end = {}
    for key in setting_keys:
        tried = [one.get(key) for one in settings]
        numbers_if_at_end[key] = _numbers_if_at_end(setting.get(key), tried, ranges.get(key, ()))
    fails = (metric == PLAIN and _below_constant(best)) or (metric == RMSE and _above_mean(best))
    return ChosenSetting(
        _algorithm_of(best),
        metric,
        setting_values(best, condition_keys),
        setting,
        best,
        tried=len(groups),
        edges=tuple(key for key, numbers in numbers_if_at_end.items() if numbers > 2),
        failing=tuple(key for key, numbers in numbers_if_at_end.items() if fails and numbers > 1),
    )


def _numbers_if_at_end(chosen: object, tried: Sequence[object], values: Sequence[str]) -> float:
    """How many numbers were tried, if the chosen one is the smallest or largest of them; infinite if it is near an end
    of the range `values`; else 0."""
    if not is_number(chosen):
        return 0
    bounds = range_of(values) if values else None
    if bounds is not None:
        low, high, logarithmic = bounds
        position = (chosen - low) / (high - low)
        if logarithmic:
            position = (math.log(chosen) - math.log(low)) / (math.log(high) - math.log(low))
        return 0 if NEAR < position < 1 - NEAR else math.inf
    numbers = {value for value in tried if is_number(value)}
    return len(numbers) if chosen in (min(numbers), max(numbers)) else 0


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _below_constant(group: Group) -> bool:
    """Whether members have worse accuracy, on average, than by always predicting the training majority class."""
    if any(value is not None for value in group.values("local/matched_accuracy")):
        return False  # the majority-class baseline belongs to other clients
    return spread(group.values(f"local/{PLAIN}"))[0] < spread(group.values("local/majority"))[0]


def _above_mean(group: Group) -> bool:
    """Whether members have a larger error, on average, than by always predicting their training mean."""
    return spread(group.values(f"local/{RMSE}"))[0] > spread(group.values(f"local/{RMSE_OF_MEAN}"))[0]


def _algorithm_of(group: Group) -> str:
    return str(group.first.summary["algorithm"])


_CONSTANT = {False: "the most frequent class", True: "the mean"}  # of training, by whether a lower metric is better


def describe_choices(choices: Sequence[ChosenSetting]) -> list[str]:
    """Notes on how settings were chosen, and on chosen values at an end of the grid."""
    notes = []
    if any(choice.tried > 1 for choice in choices):
        notes.append(
            "For every algorithm the setting is chosen whose “validation”, the mean over seeds, is "
            f"{'lowest' if lower(choices[0].metric) else 'highest'}; no test example has an influence."
        )
    at_edge: list[str] = []  # "fedavg with lr = 0.1"
    failing: list[str] = []
    for choice in choices:
        at_edge += [_with_value(choice, key) for key in choice.edges if key not in choice.failing]
        failing += [_with_value(choice, key) for key in choice.failing]
    if at_edge:
        settings = ", ".join(dict.fromkeys(at_edge))
        notes.append(f"At the edge of the grid, so that a value beyond may be better: {settings}.")
    if failing:
        settings = ", ".join(dict.fromkeys(failing))
        notes.append(
            f"At the edge of the grid, and worse than always predicting {_CONSTANT[lower(choices[0].metric)]} of "
            f"training: {settings}. "
            f"Such an algorithm needs its own values: {option('grid')} NAME:algorithm.lr=value,value."
        )
    return notes


def _with_value(choice: ChosenSetting, key: str) -> str:
    return f"{choice.algorithm} with {settings_text({key: choice.setting[key]})}"


def table(choices: Sequence[ChosenSetting], columns: Mapping[str, str]) -> ResultTable:
    """A row for each choice; columns: {metric: heading}."""
    condition_keys = list(dict.fromkeys(key for choice in choices for key in choice.condition))
    has_settings = any(choice.setting for choice in choices)
    metrics = metrics_with_values([choice.group for choice in choices], columns)
    rows = []
    for choice in choices:
        cells = [Cell(choice.algorithm), *(Cell(str(choice.condition.get(key, ""))) for key in condition_keys)]
        if has_settings:
            cells.append(Cell(settings_text(choice.setting) or "-"))
        cells += [mean_cell(choice.group.values(metric), number) for metric in metrics]
        rows.append(tuple(cells))
    words = ("algorithm", *map(short_name, condition_keys), *(["setting, by validation"] if has_settings else []))
    return ResultTable((*words, *(columns[metric] for metric in metrics)), tuple(rows), words=len(words))


def metrics_with_values(groups: Sequence[Group], columns: Mapping[str, str]) -> list[str]:
    """The metrics of the columns in which some group has a value."""
    metrics = []
    for metric in columns:
        values = itertools.chain(*(group.values(metric) for group in groups))
        if any(value is not None for value in values):
            metrics.append(metric)
    return metrics
