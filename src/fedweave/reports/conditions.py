"""Runs in several conditions, such as data sets or numbers of clients: algorithms are compared within each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean

from fedweave.core.types import Record, Values
from fedweave.experiment.config import flat
from fedweave.experiment.runs.reading import Group, Run, common_selection_metric, distinct, group_runs, spread
from fedweave.metrics.selection import (
    ALL_EXAMPLES,
    ALONE,
    MEMBER_MEAN,
    SHELF,
    WORDS_OF_PLACES,
    WORST_MEMBER,
    of_members,
    rank,
    title_of,
)
from fedweave.reports.cells import NONE, Cell, ResultTable, bytes_text, mean_cell, row_of, tenths, with_sign
from fedweave.reports.effects import effect, three_digits
from fedweave.reports.paired import paired_differences, paired_tests
from fedweave.reports.verdict import TRAIN_ALONE

MARKS = {1: "★ ", -1: "▽ ", 0: ""}  # better, worse, neither
_SECTIONS = ("data", "partition", "noise")  # sections of a configuration that determine the examples of a run


@dataclass(frozen=True)
class Condition:
    """Groups of runs that are compared with one another.

    title: the settings in which this condition differs from others.
    """

    title: str
    groups: tuple[Group, ...]

    @property
    def metric(self) -> str:
        """The selection metric; "" where the runs have different ones."""
        return common_selection_metric(self.groups)

    @property
    def metric_name(self) -> str:
        """The summary's name of the mean over members of the metric on test examples."""
        return f"local/{self.metric}"

    @cached_property
    def means(self) -> dict[str, float]:
        """{label: mean over seeds of the metric} for the groups that have this number."""
        if not self.metric:
            return {}
        means = {group.label: spread(group.values(self.metric_name))[0] for group in self.groups}
        return {label: mean for label, mean in means.items() if math.isfinite(mean)}


def alone_first(groups: Iterable[Group]) -> list[Group]:
    """The groups with those whose members train alone first, so that differences are to them."""
    return sorted(groups, key=lambda group: group.first.summary["algorithm"] not in TRAIN_ALONE)


def conditions(groups: Sequence[Group], keys: Sequence[str] = ()) -> list[Condition]:
    """The conditions in which the runs were made, a single one where all can be compared; [] where no two groups share
    one.

    keys: settings whose values define a condition. Without keys, data set and number of clients define it, and also the
    other settings of data, partition and noise if each combination has two groups or more.
    """
    if keys:
        classes = distinct(groups, lambda one, other: setting_values(one, keys) == setting_values(other, keys))
        titles = [settings_text(setting_values(same[0], keys)) for same in classes]
    else:
        classes = []
        for of_examples in distinct(groups, lambda one, other: _examples(one) == _examples(other)):
            by_settings = distinct(of_examples, lambda one, other: _settings(one) == _settings(other))
            classes += by_settings if all(len(same) > 1 for same in by_settings) else [of_examples]
        titles = _titles([same[0] for same in classes])
    if all(len(same) < 2 for same in classes):
        return []
    result = []
    for title, same in zip(titles, classes, strict=True):
        runs = chain.from_iterable(group.runs for group in same)
        result.append(Condition(title, tuple(group_runs([*runs]))))
    return result


def setting_values(group: Group, keys: Sequence[str]) -> Record:
    """The group's values of those keys that its configuration has."""
    config = flat(group.first.config)
    return {key: config[key] for key in keys if key in config}


def settings_text(values: Values) -> str:
    """ "lr = 0.1, noise labels = 0.2"."""
    return ", ".join(f"{short_name(key)} = {value}" for key, value in values.items())


def short_name(key: str) -> str:
    """A setting without its section; "noise labels" keeps it, and `name` of a section becomes the section."""
    section, _, name = key.partition(".")
    if section == "noise":
        return f"noise {name}"
    return section if name == "name" else key.rpartition(".")[2]


def _examples(group: Group) -> tuple[str, str]:
    """The data set and the number of clients."""
    return str(group.first.summary["dataset"]), group.first.tested


def _settings(group: Group) -> Record:
    """The settings that determine the examples in a simulation; {} between sites, which hold their own data."""
    config = {} if group.first.between_sites else flat(group.first.config)
    return {key: value for key, value in config.items() if key.partition(".")[0] in _SECTIONS}


def _titles(firsts: Sequence[Group]) -> list[str]:
    """The data set, where there are several, and the settings in which conditions of one data set differ; of each
    condition the first group."""
    datasets = [_examples(first)[0] for first in firsts]
    settings = [_settings(first) for first in firsts]
    titles = []
    for dataset, values in zip(datasets, settings, strict=True):
        same_dataset = [other for name, other in zip(datasets, settings, strict=True) if name == dataset]
        different = {}
        for key in dict.fromkeys(chain.from_iterable(same_dataset)):
            if any(other.get(key) != values.get(key) for other in same_dataset):
                different[key] = values.get(key, "none")
        title = [dataset if len({*datasets}) > 1 else "", settings_text(different)]
        titles.append(", ".join(filter(None, title)))
    if len(set(titles)) < len(titles):
        titles = [f"{title}, {_examples(first)[1]}" for title, first in zip(titles, firsts, strict=True)]
    return titles


def rounds_text(run: Run) -> str:
    """ "30", or "unfinished: round 12 of 30"."""
    if run.finished:
        return f"{run.done:,}"
    late = "" if run.last_evaluation == run.done else f", evaluated after round {run.last_evaluation:,}"
    return f"unfinished: round {run.done:,} of {run.config.get('rounds', '?')}{late}"


def incomparability(groups: Sequence[Group]) -> str:
    """Why the runs cannot be compared, and which runs; "" if they can."""
    values_by_reason = {
        "of other data": [group.first.summary["dataset"] for group in groups],
        "of other numbers of clients": [group.first.tested for group in groups],
    }
    for reason, values in values_by_reason.items():
        if len({*values}) > 1:
            details = "; ".join(f"{group.label}: {value}" for group, value in zip(groups, values, strict=True))
            return f"these runs are {reason} ({details})"
    unfinished = [group.first for group in groups if not group.first.finished]
    details = "; ".join(f"{run.directory}, {rounds_text(run)}" for run in unfinished)
    return f"not all runs are finished: {details}" if unfinished else ""


def overview(condition: Condition) -> ResultTable:
    """A row for each group of runs in a condition: its numbers, its cost, and its difference to the first group, paired
    over seeds."""
    groups, metric, name = condition.groups, condition.metric, condition.metric_name
    first = groups[0]
    titles = {name: f"{title_of(metric)}, {MEMBER_MEAN}"}
    fair = of_members(metric)
    worst = WORST_MEMBER if fair == metric else f"{WORST_MEMBER}, {title_of(fair)}"
    titles |= {f"global/{metric}": ALL_EXAMPLES, f"fairness/worst_{fair}": worst}
    titles |= {f"{ALONE}/local/{metric}": WORDS_OF_PLACES[ALONE], f"{SHELF}/local/{metric}": WORDS_OF_PLACES[SHELF]}
    columns = list[str]()
    for column in titles:
        values = chain.from_iterable(group.values(column) for group in groups)
        if any(value is not None for value in values):
            columns.append(column)
    differences = dict[str, list[float]]()
    if not incomparability(groups):
        for group in groups[1:]:
            gaps = paired_differences(group.by_seed(name), first.by_seed(name))
            if gaps:
                differences[group.label] = gaps
    signs = dict(zip(differences, paired_tests([*differences.values()]), strict=True))
    rows = []
    for group in groups:
        cells = [mean_cell(group.values(column), "{:.3f}".format) for column in columns]
        sent = [run.summary["bytes_up"] / max(1, run.summary["clients"]) for run in group.runs]
        cells += [mean_cell([fmean(sent)], bytes_text), mean_cell([spread(group.values("seconds"))[0]], tenths)]
        difference = Cell(NONE)
        if group.label in differences:
            change = effect(differences[group.label])
            mark = MARKS[int(rank(metric, signs[group.label]))]
            text = f"{mark}{with_sign(change.mean, three_digits)}"
            difference = Cell(text, repr(change.mean), change.ends or "not tested")
        rows.append(row_of(group.label, str(len(group.runs)), cells[0], difference, *cells[1:]))
    heads = [titles[column] for column in columns]
    heads += ["sent by each member", "seconds"]
    head = ("run", "seeds", heads[0], f"difference to {first.label}", *heads[1:])
    if len(groups) < 2:
        return ResultTable(head[:3] + head[4:], tuple(row[:3] + row[4:] for row in rows))
    return ResultTable(head, tuple(rows))
