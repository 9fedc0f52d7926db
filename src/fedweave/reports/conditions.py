"""Differences between runs in words: no sentence claims more than its interval shows."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from fedweave.core.text import counted
from fedweave.core.types import Record, Values
from fedweave.errors import listed
from fedweave.experiment.config import flat
from fedweave.metrics.selection import BEST, PLAIN, rank, title_of
from fedweave.reports.cells import (
    LEAST_SEEDS,
    NONE,
    Cell,
    ResultTable,
    interval,
    measured,
    number,
    paired_differences,
    signed,
    signs,
)
from fedweave.reports.drawing import Dots, Figure, Panel, of_run
from fedweave.reports.reading import Group, Run, common_selection_metric, distinct, grouped, spread

UNDECIDED = "No significant difference"
TOO_FEW = f"an interval needs {LEAST_SEEDS} seeds"
MANY = 8  # runs that a sentence names
NEXT = 3  # of those that the best is compared with


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
        return self.seeds >= LEAST_SEEDS

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0 and there are enough seeds."""
        if self.low is None or self.high is None or not self.tested:
            return False
        return not self.low <= 0 <= self.high

    @property
    def sureness(self) -> str:
        """ "95 % interval −0.440 to +0.288, 3 seeds"; with too few seeds, that the difference is not tested."""
        if self.low is None or self.high is None:
            return "one seed, not tested"
        if not self.tested:
            return f"{counted(self.seeds, 'seed')}, not tested: {TOO_FEW}"
        return f"95 % interval {signed(self.low, three)} to {signed(self.high, three)}, {counted(self.seeds, 'seed')}"


def turned(change: Effect, way: int) -> Effect:
    """The effect with the opposite sign if `way` is -1, else unchanged."""
    if way > 0:
        return change
    low, high = (None if end is None else -end for end in (change.high, change.low))
    return replace(change, mean=-change.mean, low=low, high=high)


def effect(values: Sequence[float]) -> Effect:
    """The effect that the differences of all seeds show, at least one."""
    low, high = interval(values)
    return Effect(statistics.fmean(values), low, high, len(values))


def three(value: float) -> str:
    """A number with three significant digits."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def ranked(values: Mapping[str, float], form: Callable[[float], str], metric: str = PLAIN) -> str:
    """Names with their values, the best first by `metric`; of a long list the first ones and the last."""
    best_first = sorted(values.items(), key=lambda item: -rank(metric, item[1]))
    order = [f"{form(value)} ({name})" for name, value in best_first]
    few = order if len(order) <= MANY else [*order[: MANY - 2], f"… {order[-1]}"]
    return ", ".join(few)


def standing(groups: Sequence[Group], name: str, metric: str) -> str:
    """A sentence on which group of runs is ahead; "" for fewer than two groups.

    name: a number of the runs' summaries, the mean over members of `metric` (`metrics.selection.METRICS`).
    """
    means = {group.label: spread(group.values(name))[0] for group in groups}
    known = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if len(known) < 2:
        return ""
    compared = (group for group in groups if group.label in known)
    best, *others = sorted(compared, key=lambda group: -rank(metric, known[group.label]))
    when = (
        " in the round that is best on validation examples" if name.startswith(f"{BEST}/") else " after the last round"
    )
    ranks = f"members' mean test {title_of(metric)}{when} is {ranked(known, '{:.3f}'.format, metric)}"
    if all(len(group.runs) == 1 for group in groups):
        return f"Not tested, one seed: {ranks}; with other seeds the order may be another."
    ahead = {
        group.label: effect(gaps)
        for group in others
        if (gaps := paired_differences(best.by_seed(name), group.by_seed(name)))
    }
    if len(ahead) < len(others):
        return f"Not tested, since not all runs have a seed in common: {ranks}."
    if behind := [label for label, gap in ahead.items() if gap.significant and rank(metric, gap.mean) < 0]:
        return f"Not all runs have the same seeds; over those in common {behind[0]} is ahead of {best.label}: {ranks}."
    enough = {label: gap for label, gap in ahead.items() if gap.tested}
    if not enough:
        seeds = counted(max(gap.seeds for gap in ahead.values()), "seed")
        return f"Not tested, {seeds}; {TOO_FEW}: {ranks}."
    missing = [label for label in ahead if label not in enough]
    ranks += f". Not tested against {listed(missing)}: {TOO_FEW}" if missing else ""
    level = {label: gap for label, gap in enough.items() if not gap.significant}
    if level:
        shown = [f"{label} ({signed(gap.mean, three)}; {gap.sureness})" for label, gap in [*level.items()][:NEXT]]
        more = f" and {len(level) - NEXT} more" if len(level) > NEXT else ""
        return f"{UNDECIDED} between {best.label} and {', '.join(shown)}{more}: {ranks}."
    label, gap = next(iter(enough.items()))
    return f"{best.label} is ahead of {label} by {three(abs(gap.mean))} ({gap.sureness}): {ranks}."


# ----------------------------------------------------------------------------------------------------
# Runs in several conditions, such as data sets or numbers of clients: algorithms are compared within each, and ranked
# over all of them.


_SECTIONS = ("data", "partition", "noise")  # sections of a configuration that determine the examples of a run
_SURE = 0.05


@dataclass(frozen=True)
class Condition:
    """Groups of runs that are compared with one another.

    title: the settings in which this condition differs from others. chosen: whether validation chose the runs; then the
    round that is best on validation counts, and not the last.
    """

    title: str
    groups: tuple[Group, ...]
    chosen: bool = False

    @property
    def metric(self) -> str:
        """The selection metric; "" where the runs have different ones."""
        return common_selection_metric(self.groups)

    @property
    def shown(self) -> str:
        """The summary's name of the mean over members of the metric on test examples."""
        return f"{BEST}/local/{self.metric}" if self.chosen else f"local/{self.metric}"

    @cached_property
    def means(self) -> dict[str, float]:
        """{label: mean over seeds of `shown`} for the groups that have this number."""
        means = {group.label: spread(group.values(self.shown))[0] for group in self.groups} if self.metric else {}
        return {label: mean for label, mean in means.items() if math.isfinite(mean)}


def conditions(groups: Sequence[Group], keys: Sequence[str] = (), chosen: bool = False) -> list[Condition]:
    """The conditions in which the runs were made, a single one where all can be compared; [] where no two groups share
    one.

    keys: settings whose values define a condition. Without keys, data set and number of clients define it, and also the
    other settings of data, partition and noise if each combination has two groups or more.
    """
    if keys:
        together = distinct(groups, lambda one, other: values_of(one, keys) == values_of(other, keys))
        titles = [in_words(values_of(alike[0], keys)) for alike in together]
    else:
        coarse = distinct(groups, lambda one, other: _examples(one) == _examples(other))
        together = [fine for alike in coarse for fine in _finer(alike)]
        titles = _titles(together)
    if all(len(alike) < 2 for alike in together):
        return []
    return [
        Condition(title, tuple(grouped([run for group in alike for run in group.runs])), chosen)
        for title, alike in zip(titles, together, strict=True)
    ]


def values_of(group: Group, keys: Sequence[str]) -> Record:
    """The group's values of those keys that its configuration has."""
    known = flat(group.first.config)
    return {key: known[key] for key in keys if key in known}


def in_words(values: Values) -> str:
    """ "lr = 0.1, noise labels = 0.2"."""
    return ", ".join(f"{short(key)} = {value}" for key, value in values.items())


def short(key: str) -> str:
    """A setting without its section; "noise labels" keeps it, and `name` of a section becomes the section."""
    section, _, name = key.partition(".")
    return f"noise {name}" if section == "noise" else section if name == "name" else key.rpartition(".")[2]


def _examples(group: Group) -> tuple[str, str]:
    return str(group.first.summary["dataset"]), group.first.tested


def _settings(group: Group) -> Record:
    """The settings that determine the examples in a simulation; {} between sites, which hold their own data."""
    config = {} if group.first.between_sites else flat(group.first.config)
    return {key: value for key, value in config.items() if key.partition(".")[0] in _SECTIONS}


def _finer(alike: Sequence[Group]) -> list[list[Group]]:
    finer = distinct(alike, lambda one, other: _settings(one) == _settings(other))
    return finer if all(len(together) > 1 for together in finer) else [[*alike]]


def _titles(together: Sequence[Sequence[Group]]) -> list[str]:
    """The data set, where there are several, and the settings in which conditions of one data set differ."""
    firsts = [alike[0] for alike in together]
    several = len({_examples(one)[0] for one in firsts}) > 1
    titles = []
    for one in firsts:
        same = [_settings(other) for other in firsts if _examples(other)[0] == _examples(one)[0]]
        mine = _settings(one)
        keys = dict.fromkeys(key for other in same for key in other)
        apart = {key: mine.get(key, "none") for key in keys if any(other.get(key) != mine.get(key) for other in same)}
        titles.append(", ".join(filter(None, [_examples(one)[0] if several else "", in_words(apart)])))
    clash = len(set(titles)) < len(titles)
    return [f"{title}, {_examples(one)[1]}" if clash else title for title, one in zip(titles, firsts, strict=True)]


def rounds(run: Run) -> str:
    """ "30", or "unfinished: round 12 of 30"."""
    if run.finished:
        return f"{run.done:,}"
    late = "" if run.evaluated == run.done else f", evaluated after round {run.evaluated:,}"
    return f"unfinished: round {run.done:,} of {run.config.get('rounds', '?')}{late}"


def incomparable(groups: Sequence[Group]) -> str:
    """Why the runs cannot be compared, and which runs; "" if they can."""
    about: tuple[tuple[str, Callable[[Run], object]], ...] = (
        ("of other data", lambda run: run.summary["dataset"]),
        ("of other numbers of clients", lambda run: run.tested),
    )
    for words, value in about:
        if len({value(group.first) for group in groups}) > 1:
            details = "; ".join(f"{group.label}: {value(group.first)}" for group in groups)
            return f"these runs are {words} ({details})"
    odd = [f"{group.first.directory}, {rounds(group.first)}" for group in groups if not group.first.finished]
    return f"not all runs are finished: {'; '.join(odd)}" if odd else ""


@dataclass(frozen=True)
class Ranks:
    """Algorithms' ranks in each condition that has a number of all of them; rank 1 is best.

    places: [conditions, names]; equal numbers share the mean of their places. left_out: conditions that lack a number.
    p: of the test for a difference, Friedman's for three names and more, Wilcoxon's for two; None where the test needs
    more conditions. sets: the number of data sets in these conditions.
    """

    names: tuple[str, ...]
    places: np.ndarray
    titles: tuple[str, ...]
    left_out: tuple[str, ...]
    p: float | None
    sets: int

    @property
    def means(self) -> dict[str, float]:
        """{name: mean rank}."""
        return dict(zip(self.names, self.places.mean(0).tolist(), strict=True))

    def sentence(self) -> str:
        """The mean ranks, and whether they differ significantly."""
        if not len(self.places):
            return "No condition has a number of all algorithms, so that nothing is ranked over them."
        placing = ", ".join(f"{mean:.2f} ({name})" for name, mean in sorted(self.means.items(), key=lambda it: it[1]))
        over = f"over {counted(len(self.places), 'condition')}"
        test = "Friedman's test" if len(self.names) > 2 else "Wilcoxon's signed-rank test"
        if self.p is None:
            verdict = f"Not tested, too few conditions: mean ranks {over}, 1 is best, are {placing}."
        elif self.p < _SURE:
            verdict = f"Mean ranks {over}, 1 is best, differ ({test}, p = {three(self.p)}): {placing}."
        else:
            verdict = f"{UNDECIDED} {over} ({test}, p = {three(self.p)}): mean ranks, 1 is best, are {placing}."
        if self.p is not None and self.sets < len(self.places):
            verdict += f" The conditions are of {counted(self.sets, 'data set')}, so that p is lower than it should be."
        return verdict + (f" Left out, without a number of all: {'; '.join(self.left_out)}." if self.left_out else "")

    def table(self) -> ResultTable:
        """A row for each name, the best first: its place in every condition, and the mean."""
        order = np.argsort(self.places.mean(0), kind="stable").tolist() if len(self.places) else []
        rows = tuple(
            (
                Cell(self.names[at]),
                *(Cell(f"{place:g}") for place in self.places[:, at]),
                Cell(f"{self.places[:, at].mean():.2f}"),
            )
            for at in order
        )
        return ResultTable(("rank", *self.titles, "mean"), rows)


def ranks(all_conditions: Sequence[Condition]) -> Ranks:
    """The ranks of groups with the same label in several conditions, by the mean over seeds of each selection
    metric."""
    names = dict.fromkeys(group.label for one in all_conditions for group in one.groups)
    sets = {str(one.groups[0].first.summary["dataset"]) for one in all_conditions}
    comparable = {
        one.title: {}
        if incomparable(one.groups)
        else {name: rank(one.metric, mean) for name, mean in one.means.items()}
        for one in all_conditions
    }
    return placed(comparable, [*names], len(sets))


def placed(means: Mapping[str, Mapping[str, float]], names: Sequence[str], sets: int) -> Ranks:
    """The ranks of numbers {condition: {name: mean}}, where more is better; sets: the number of data sets in the
    conditions."""
    from scipy.stats import rankdata  # slow to import

    whole = [title for title, by_name in means.items() if all(name in by_name for name in names)]
    values = np.array([[means[title][name] for name in names] for title in whole]).reshape(-1, len(names))
    places = rankdata(-values, axis=1) if len(whole) else np.zeros((0, len(names)))
    left_out = tuple(title for title in means if title not in whole)
    return Ranks(tuple(names), places, tuple(whole), left_out, _p(values), sets)


def _p(values: np.ndarray) -> float | None:
    """The p-value of the test for a difference between the columns of [conditions, names]; None if it needs more
    conditions."""
    from scipy.stats import friedmanchisquare, wilcoxon

    conditions, names = values.shape
    if conditions < 3 or names < 2:
        return None
    if names > 2:
        p = float(friedmanchisquare(*values.T).pvalue)
    else:
        gaps = values[:, 0] - values[:, 1]
        p = float(wilcoxon(gaps).pvalue) if gaps.any() else 1.0
    return p if math.isfinite(p) else 1.0  # of columns that are all alike


def overview(one: Condition) -> ResultTable:
    """A row for each group of runs in a condition: its numbers, and its difference to the first group, paired over
    seeds."""
    first, metric = one.groups[0], one.metric
    columns = {one.shown: f"test {title_of(metric)}, mean over clients"}
    columns |= {f"global/{metric}": "all examples, last round", f"fairness/worst_{metric}": "worst client"}
    columns_with_values = [
        name for name in columns if any(value is not None for group in one.groups for value in group.values(name))
    ]
    unpaired = bool(incomparable(one.groups))
    pairs = (
        {}
        if unpaired
        else {
            group.label: differences
            for group in one.groups[1:]
            if (differences := paired_differences(group.by_seed(one.shown), first.by_seed(one.shown)))
        }
    )
    ways = dict(zip(pairs, signs([*pairs.values()]), strict=True))
    rows = []
    for group in one.groups:
        cells = [measured(group.values(name), number) for name in columns_with_values]
        difference_cells = [Cell(NONE), Cell("")]
        if group.label in pairs:
            gap, way = effect(pairs[group.label]), rank(metric, ways[group.label])
            star = "★ " if way > 0 else "▽ " if way < 0 else ""
            difference_cells = [Cell(f"{star}{signed(gap.mean, three)}", repr(gap.mean)), Cell(gap.sureness)]
        rows.append((Cell(group.label), Cell(str(len(group.runs))), *cells, *difference_cells))
    head = ("run", "seeds", *(columns[name] for name in columns_with_values), f"less {first.label}", "uncertainty")
    return ResultTable(head, tuple(rows))


def picture(one: Condition) -> Figure | None:
    """The mean over clients of the selection metric for every group of runs, with its deviation over seeds."""
    known = [(group, *spread(group.values(one.shown))) for group in one.groups if group.label in one.means]
    if not known:
        return None
    errors = [deviation if math.isfinite(deviation) else 0.0 for _, _, deviation, _ in known]
    means = [mean for _, mean, _, _ in known]
    dots = Dots("", range(len(known)), means, of_run(0), errors=errors)
    names = tuple(group.label for group, _, _, _ in known)
    return Figure((Panel("", (dots,), names, beside=f"test {title_of(one.metric)}, mean over clients"),))


# ----------------------------------------------------------------------------------------------------
# Two runs on the same test examples, such as a party alone and with others: paired example by example.


_PLACES = ("node", "graph", "edge")
_LEAST = 1e-12  # of a probability whose logarithm is taken
HEAD = ("run", "client", "test examples", "right, first run", "right, this run", "difference", "log loss, difference")
NOTE = (
    "On the same examples: this run minus the first one, of the test examples that both predict (`fedweave predict`), "
    "with the two-sided 95 % interval over examples; where there are several seeds, of each example's mean over them. "
    "It says how sure the difference is for these models on other examples, not for models of other seeds."
)

Scores = dict[
    tuple[str, object], tuple[float, float]
]  # {(client, example): (1 where it is right, -log p of its class)}


def on_same_examples(groups: Sequence[Group]) -> ResultTable:
    """A row for each group of runs but the first and each client whose test examples both runs predict.

    There are no rows where runs have no predictions.
    """
    first, *others = groups
    rows = [_row(other.label, client, pairs) for other in others for client, pairs in _pairs(first, other).items()]
    return ResultTable(HEAD, tuple(rows), words=2)


def _pairs(first: Group, other: Group) -> dict[str, list[tuple[float, float, float]]]:
    """{client: (right in the first run, right in the other, difference of log losses) of each example}.

    Numbers are means over the seeds that both groups have.
    """
    tables = [{run.config.get("seed"): run.predictions for run in group.runs} for group in (first, other)]
    scores = defaultdict(list)
    for seed in tables[0].keys() & tables[1].keys():
        before, after = (_scores(by_seed[seed]) for by_seed in tables)
        for key in before.keys() & after.keys():
            (was, lost), (now, loses) = before[key], after[key]
            scores[key].append((was, now, loses - lost))
    by_client = defaultdict(list)
    for client, example in sorted(scores, key=str):
        values = scores[client, example]
        by_client[client].append(tuple(map(statistics.fmean, zip(*values, strict=True))))
    return by_client  # type: ignore[return-value]


def _scores(table: pa.Table | None) -> Scores:
    """The scores of the test examples whose class is known."""
    if table is None or not {"split", "true"} <= {*table.column_names}:
        return {}
    if not any(name.startswith("p_") for name in table.column_names):  # of numbers
        return {}
    return dict(_of_rows(table))


def _of_rows(table: pa.Table) -> Iterator[tuple[tuple[str, object], tuple[float, float]]]:
    place = next((name for name in ("id", *_PLACES) if name in table.column_names), _PLACES[0])
    for row in table.to_pylist():
        if row["split"] == "test" and row["true"] is not None:
            p = max(row[f"p_{row['true']}"], _LEAST)
            yield (row["client"], row[place]), (float(row["predicted"] == row["true"]), -math.log(p))


def _row(label: str, client: str, pairs: list[tuple[float, float, float]]) -> tuple[Cell, ...]:
    was, now, losses = zip(*pairs, strict=True)
    right = [one - other for one, other in zip(now, was, strict=True)]
    shares = [Cell(f"{statistics.fmean(values):.3f}") for values in (was, now)]
    return (Cell(label), Cell(client), Cell(f"{len(pairs):,}"), *shares, _difference(right), _difference(losses))


def _difference(values: Sequence[float]) -> Cell:
    low, high = interval(values)
    mean = statistics.fmean(values)
    between = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return Cell(signed(mean), repr(mean), between)
