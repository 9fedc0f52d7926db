"""Each algorithm's setting, chosen by validation, in every condition that the algorithms are compared in."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedweave.experiment.config import flat
from fedweave.metrics.judging import BEST
from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.reading import Group, judged_alike, spread

_SETTINGS = ("algorithm", "model")  # sections whose keys are chosen; those of others are what is compared


@dataclass(frozen=True)
class Chosen:
    """The runs of the setting with the highest mean of the `metric` on validation examples.

    condition, setting: {key of the grid: value}. tried: how many settings there were. edges: keys whose chosen number
    is the least or the most that was tried.
    """

    algorithm: str
    metric: str
    condition: Mapping[str, Any]
    setting: Mapping[str, Any]
    group: Group
    tried: int
    edges: tuple[str, ...] = ()

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


def choose(groups: Sequence[Group], keys: Sequence[str], apart: Sequence[str]) -> list[Chosen]:
    """The best setting of every algorithm in each condition; empty where there are no validation examples, or no metric
    judges all groups. A setting with fewer runs than others of the same algorithm, because some failed, is not chosen.

    keys: of the grid. apart: those that are conditions.
    """
    if not (metric := judged_alike(groups)):
        return []
    together: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        values = _values(group, apart)
        together.setdefault((_algorithm(group), *map(repr, values.values())), []).append(group)
    return [made for alike in together.values() if (made := _best(alike, metric, keys, apart)) is not None]


def by_condition(groups: Sequence[Group], apart: Sequence[str]) -> list[list[Group]]:
    """Those that are compared with one another."""
    together: dict[str, list[Group]] = {}
    for group in groups:
        together.setdefault(repr(_values(group, apart)), []).append(group)
    return [*together.values()]


def _best(alike: Sequence[Group], metric: str, keys: Sequence[str], apart: Sequence[str]) -> Chosen | None:
    runs = max(len(group.runs) for group in alike)
    means = [
        spread(group.values(f"{BEST}/val/{metric}"))[0] if len(group.runs) == runs else math.nan for group in alike
    ]
    if all(map(math.isnan, means)):
        return None
    best = alike[max(range(len(alike)), key=lambda at: -math.inf if math.isnan(means[at]) else means[at])]
    mine = [key for key in keys if key not in apart]
    settings = [_values(group, mine) for group in alike]
    return Chosen(
        _algorithm(best),
        metric,
        _values(best, apart),
        _values(best, mine),
        best,
        len(alike),
        tuple(key for key in mine if _at_edge(_values(best, mine).get(key), [one.get(key) for one in settings])),
    )


def _at_edge(chosen: object, tried: Sequence[object]) -> bool:
    numbers = {value for value in tried if isinstance(value, int | float) and not isinstance(value, bool)}
    return len(numbers) > 2 and chosen in (min(numbers), max(numbers))


def _algorithm(group: Group) -> str:
    return str(group.first.summary["algorithm"])


def _values(group: Group, keys: Sequence[str]) -> dict[str, Any]:
    """Those of the keys that the group's configuration has."""
    known = flat(group.first.config)
    return {key: known[key] for key in keys if key in known}


def said(values: Mapping[str, Any]) -> str:
    """ "lr = 0.1, noise labels = 0.2"."""
    return ", ".join(f"{short(key)} = {value}" for key, value in values.items())


def short(key: str) -> str:
    """A key without its section, but for "noise labels", and the section itself in the place of its `name`."""
    section, _, name = key.partition(".")
    return f"noise {name}" if section == "noise" else section if name == "name" else key.rpartition(".")[2]


def told(found: Sequence[Chosen]) -> Iterator[str]:
    """How settings were chosen, and which may lie beyond what was tried."""
    if any(one.tried > 1 for one in found):
        yield (
            "Chosen of every algorithm is the setting whose “best val”, the mean over seeds, is highest; no "
            "test example has a say in it."
        )
    ends = dict.fromkeys(f"{one.algorithm} with {said({key: one.setting[key]})}" for one in found for key in one.edges)
    if ends:
        yield f"At the end of what was tried, so that a value beyond may be better: {', '.join(ends)}."


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
