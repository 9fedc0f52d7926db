"""Each algorithm's setting, chosen by validation, in every condition in which algorithms are compared."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fedweave.core.types import Values
from fedweave.metrics.selection import BEST, PLAIN, RMSE, RMSE_OF_MEAN, lower, rank
from fedweave.reports.cells import Cell, ResultTable, measured, number
from fedweave.reports.conditions import in_words, short, values_of
from fedweave.reports.reading import Group, common_selection_metric, spread
from fedweave.sweep.plan import own_grid, range_of

NEAR = 0.05  # share of a range's length (or of its logarithm) that counts as an end
_SETTINGS = ("algorithm", "model")  # sections whose keys are chosen; keys of other sections are conditions


@dataclass(frozen=True)
class Chosen:
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
    def shown(self) -> str:
        """The summaries' key of the metric on test examples, in the round that is best on validation examples."""
        return f"{BEST}/local/{self.metric}"

    def by_seed(self) -> dict[object, float]:
        """{seed: the metric on test examples}."""
        return self.group.by_seed(self.shown)

    def values(self) -> list[float | None]:
        """The metric on test examples of every run."""
        return self.group.values(self.shown)


def conditions(keys: Sequence[str], over: Sequence[str] = ()) -> tuple[str, ...]:
    """The keys of the grid in which algorithms are compared: all but their settings, and the keys in `over`."""
    return tuple(key for key in keys if key in over or key.partition(".")[0] not in _SETTINGS)


def choose(
    groups: Sequence[Group], keys: Sequence[str], apart: Sequence[str], grid: Mapping[str, Sequence[str]] | None = None
) -> list[Chosen]:
    """The best setting of every algorithm in each condition; none in a condition without validation examples, or
    without a common selection metric. A setting with fewer runs than others of the same algorithm, because some failed,
    is not chosen.

    keys: keys of the grid. apart: the keys that are conditions.
    """
    metrics = {
        repr(values_of(alike[0], apart)): common_selection_metric(alike) for alike in by_condition(groups, apart)
    }
    candidates: dict[tuple[str, str], list[Group]] = {}  # {(algorithm, condition): its settings}
    for group in groups:
        condition = repr(values_of(group, apart))
        if metrics[condition]:
            candidates.setdefault((_algorithm_of(group), condition), []).append(group)
    best = (_best(alike, metrics[condition], keys, apart, grid or {}) for (_, condition), alike in candidates.items())
    return [choice for choice in best if choice is not None]


def by_condition(groups: Sequence[Group], apart: Sequence[str]) -> list[list[Group]]:
    """The groups of each condition, which are compared with one another."""
    together: dict[str, list[Group]] = {}
    for group in groups:
        together.setdefault(repr(values_of(group, apart)), []).append(group)
    return [*together.values()]


def _best(
    alike: Sequence[Group], metric: str, keys: Sequence[str], apart: Sequence[str], grid: Mapping[str, Sequence[str]]
) -> Chosen | None:
    """The best of one algorithm's settings in one condition; None if none has the metric on validation examples."""
    runs = max(len(group.runs) for group in alike)
    means = [
        spread(group.values(f"{BEST}/val/{metric}"))[0] if len(group.runs) == runs else math.nan for group in alike
    ]
    if all(map(math.isnan, means)):
        return None
    best = alike[max(range(len(alike)), key=lambda at: -math.inf if math.isnan(means[at]) else rank(metric, means[at]))]
    setting_keys = [key for key in keys if key not in apart]
    settings = [values_of(group, setting_keys) for group in alike]
    setting = values_of(best, setting_keys)
    values = own_grid(grid, str(best.first.config["algorithm"]["name"]))
    sizes = {
        key: _size_if_at_end(setting.get(key), [one.get(key) for one in settings], values.get(key, ()))
        for key in setting_keys
    }
    fails = (metric == PLAIN and _below_constant(best)) or (metric == RMSE and _above_mean(best))
    return Chosen(
        _algorithm_of(best),
        metric,
        values_of(best, apart),
        setting,
        best,
        tried=len(alike),
        edges=tuple(key for key, size in sizes.items() if size > 2),
        failing=tuple(key for key, size in sizes.items() if fails and size > 1),
    )


def _size_if_at_end(chosen: object, tried: Sequence[object], values: Sequence[str]) -> float:
    """How many numbers were tried, if the chosen one is the smallest or largest of them; infinite if it is near an end
    of the range `values`; else 0."""
    if not is_number(chosen):
        return 0
    numbers = {value for value in tried if is_number(value)}
    if values and (bounds := range_of(values)):
        low, high, at = map(math.log, (*bounds[:2], chosen)) if bounds[2] else (*bounds[:2], chosen)
        return 0 if NEAR < (at - low) / (high - low) < 1 - NEAR else math.inf
    return len(numbers) if chosen in (min(numbers), max(numbers)) else 0


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _below_constant(group: Group) -> bool:
    """Whether members have worse accuracy, on average, than by always predicting the training majority class."""
    if any(value is not None for value in group.values("local/matched_accuracy")):
        return False  # the majority-class baseline belongs to other clients
    return spread(group.values(f"{BEST}/local/{PLAIN}"))[0] < spread(group.values("local/majority"))[0]


def _above_mean(group: Group) -> bool:
    """Whether members have a larger error, on average, than by always predicting their training mean."""
    return spread(group.values(f"{BEST}/local/{RMSE}"))[0] > spread(group.values(f"local/{RMSE_OF_MEAN}"))[0]


def _algorithm_of(group: Group) -> str:
    return str(group.first.summary["algorithm"])


_CONSTANT = {False: "the most frequent class", True: "the mean"}  # of training, by whether a lower metric is better


def describe_choices(choices: Sequence[Chosen]) -> Iterator[str]:
    """Notes on how settings were chosen, and on chosen values at an end of the grid."""
    if any(one.tried > 1 for one in choices):
        yield (
            "For every algorithm the setting is chosen whose “best val”, the mean over seeds, is "
            f"{'lowest' if lower(choices[0].metric) else 'highest'}; no test example has an influence."
        )
    if ends := _settings_text(choices, lambda one: [key for key in one.edges if key not in one.failing]):
        yield f"At the edge of the grid, so that a value beyond may be better: {ends}."
    if ends := _settings_text(choices, lambda one: one.failing):
        yield (
            f"At the edge of the grid, and worse than always predicting {_CONSTANT[lower(choices[0].metric)]} of "
            f"training: {ends}. "
            "Such an algorithm needs its own values: --grid NAME:algorithm.lr=value,value."
        )


def _settings_text(choices: Sequence[Chosen], keys: Callable[[Chosen], Sequence[str]]) -> str:
    """ "fedavg with lr = 0.1, …": each choice with its values of these keys."""
    return ", ".join(
        dict.fromkeys(
            f"{one.algorithm} with {in_words({key: one.setting[key]})}" for one in choices for key in keys(one)
        )
    )


def table(choices: Sequence[Chosen], columns: Mapping[str, str]) -> ResultTable:
    """A row for each choice; columns: {metric: heading}."""
    apart = list(dict.fromkeys(key for one in choices for key in one.condition))
    has_settings = any(one.setting for one in choices)
    shown = [name for name in columns if any(value is not None for one in choices for value in one.group.values(name))]
    rows = [
        (
            Cell(one.algorithm),
            *(Cell(str(one.condition.get(key, ""))) for key in apart),
            *([Cell(in_words(one.setting) or "-")] if has_settings else []),
            *(measured(one.group.values(name), number) for name in shown),
        )
        for one in choices
    ]
    words = ("algorithm", *map(short, apart), *(["setting, by validation"] if has_settings else []))
    return ResultTable((*words, *(columns[name] for name in shown)), tuple(rows), words=len(words))
