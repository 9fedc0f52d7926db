"""Each algorithm's setting, chosen by validation, in every condition that the algorithms are compared in."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fedweave.core.records import Values
from fedweave.metrics.judging import BEST, PLAIN
from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.conditions import said, short, values_of
from fedweave.report.reading import Group, judged_alike, spread
from fedweave.sweep.plan import own_grid, range_of

NEAR = 0.05  # of a range's length (of its logarithm), within which a value is at an end
_SETTINGS = ("algorithm", "model")  # sections whose keys are chosen; those of others are what is compared


@dataclass(frozen=True)
class Chosen:
    """The runs of the setting with the highest mean of the `metric` on validation examples.

    condition, setting: {key of the grid: value}. tried: how many settings there were. edges: keys whose chosen number
    is the least or the most of three or more that were tried, or is near an end of a range. failing: the same, of two
    or more, where the metric on test examples is below that of the constant prediction.
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
        """What its summaries call the metric on test examples, in the round that is best on validation examples."""
        return f"{BEST}/local/{self.metric}"

    def by_seed(self) -> dict[object, float]:
        """{seed: the metric on test examples}."""
        return self.group.by_seed(self.shown)

    def values(self) -> list[float | None]:
        """The metric on test examples of every run."""
        return self.group.values(self.shown)


def conditions(keys: Sequence[str], over: Sequence[str] = ()) -> tuple[str, ...]:
    """Those of the grid's keys that algorithms are compared in: not their settings, except where `over` says so."""
    return tuple(key for key in keys if key in over or key.partition(".")[0] not in _SETTINGS)


def choose(
    groups: Sequence[Group], keys: Sequence[str], apart: Sequence[str], grid: Mapping[str, Sequence[str]] | None = None
) -> list[Chosen]:
    """The best setting of every algorithm in each condition; none in one without validation examples, or without a
    metric that judges all its groups. A setting with fewer runs than others of the same algorithm, because some failed,
    is not chosen.

    keys: of the grid. apart: those that are conditions. grid: {key or NAME:key: values, or a range}.
    """
    metrics = {repr(values_of(alike[0], apart)): judged_alike(alike) for alike in by_condition(groups, apart)}
    together: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        where = repr(values_of(group, apart))
        if metrics[where]:
            together.setdefault((_algorithm(group), where), []).append(group)
    found = (_best(alike, metrics[where], keys, apart, grid or {}) for (_, where), alike in together.items())
    return [made for made in found if made is not None]


def by_condition(groups: Sequence[Group], apart: Sequence[str]) -> list[list[Group]]:
    """Those that are compared with one another."""
    together: dict[str, list[Group]] = {}
    for group in groups:
        together.setdefault(repr(values_of(group, apart)), []).append(group)
    return [*together.values()]


def _best(
    alike: Sequence[Group], metric: str, keys: Sequence[str], apart: Sequence[str], grid: Mapping[str, Sequence[str]]
) -> Chosen | None:
    runs = max(len(group.runs) for group in alike)
    means = [
        spread(group.values(f"{BEST}/val/{metric}"))[0] if len(group.runs) == runs else math.nan for group in alike
    ]
    if all(map(math.isnan, means)):
        return None
    best = alike[max(range(len(alike)), key=lambda at: -math.inf if math.isnan(means[at]) else means[at])]
    mine = [key for key in keys if key not in apart]
    settings = [values_of(group, mine) for group in alike]
    chosen, own = values_of(best, mine), own_grid(grid, str(best.first.config["algorithm"]["name"]))
    ends = {key: _ended(chosen.get(key), [one.get(key) for one in settings], own.get(key, ())) for key in mine}
    failing = metric == PLAIN and _below_constant(best)
    return Chosen(
        _algorithm(best),
        metric,
        values_of(best, apart),
        chosen,
        best,
        len(alike),
        tuple(key for key, count in ends.items() if count > 2),
        tuple(key for key, count in ends.items() if failing and count > 1),
    )


def _ended(chosen: object, tried: Sequence[object], values: Sequence[str]) -> float:
    """How many numbers were tried, if the chosen one is an end of them; of a range infinitely many; 0 if it is none."""
    numbers = {value for value in tried if is_number(value)}
    if not is_number(chosen):
        return 0
    if values and (found := range_of(values)):
        low, high, at = map(math.log, (*found[:2], chosen)) if found[2] else (*found[:2], chosen)
        return 0 if NEAR < (at - low) / (high - low) < 1 - NEAR else math.inf
    return len(numbers) if chosen in (min(numbers), max(numbers)) else 0


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is one, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _below_constant(group: Group) -> bool:
    """Whether members are served worse, on average, than by always predicting the most frequent class of training."""
    if any(value is not None for value in group.values("local/matched_accuracy")):
        return False  # the constant prediction is of other clients
    return spread(group.values(f"{BEST}/local/{PLAIN}"))[0] < spread(group.values("local/majority"))[0]


def _algorithm(group: Group) -> str:
    return str(group.first.summary["algorithm"])


def told(found: Sequence[Chosen]) -> Iterator[str]:
    """How settings were chosen, and which may lie beyond what was tried."""
    if any(one.tried > 1 for one in found):
        yield (
            "Chosen of every algorithm is the setting whose “best val”, the mean over seeds, is highest; no "
            "test example has a say in it."
        )
    if ends := _told(found, lambda one: [key for key in one.edges if key not in one.failing]):
        yield f"At the end of what was tried, so that a value beyond may be better: {ends}."
    if ends := _told(found, lambda one: one.failing):
        yield (
            f"At the end of what was tried, and below always predicting the most frequent class of training: {ends}. "
            "Such an algorithm needs values of its own: --grid NAME:algorithm.lr=value,value."
        )


def _told(found: Sequence[Chosen], keys: Callable[[Chosen], Sequence[str]]) -> str:
    """ "fedavg with lr = 0.1, …" of these keys of each."""
    return ", ".join(
        dict.fromkeys(f"{one.algorithm} with {said({key: one.setting[key]})}" for one in found for key in keys(one))
    )


def table(found: Sequence[Chosen], columns: Mapping[str, str]) -> Table:
    """A row of each; columns: {metric: heading}."""
    apart = list(dict.fromkeys(key for one in found for key in one.condition))
    tuned = any(one.setting for one in found)
    shown = [name for name in columns if any(value is not None for one in found for value in one.group.values(name))]
    rows = [
        (
            Cell(one.algorithm),
            *(Cell(str(one.condition.get(key, ""))) for key in apart),
            *([Cell(said(one.setting) or "-")] if tuned else []),
            *(measured(one.group.values(name), number) for name in shown),
        )
        for one in found
    ]
    words = ("algorithm", *map(short, apart), *(["setting, by validation"] if tuned else []))
    return Table((*words, *(columns[name] for name in shown)), tuple(rows), words=len(words))
