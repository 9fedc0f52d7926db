"""The shelf in a run: each member's own and, in a simulation, the same on all members' examples together."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave.core import random
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.target import is_labeled
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.experiment.build import Built, ingredients
from fedweave.experiment.config import Config, Document, resolve
from fedweave.experiment.runs.saving import Described
from fedweave.experiment.shelf.columns import columns_of
from fedweave.experiment.shelf.members import Effort, Examples, Judge, Shelf, fit_shelf, seconds_of, tested
from fedweave.experiment.shelf.pairs import (
    PairExamples,
    PairShelf,
    draw_links,
    fit_pair_shelf,
    learning_seconds,
    member_pairs,
    pair_examples,
    scoring_seconds,
)
from fedweave.metrics.measured import MetricRow, table_of
from fedweave.metrics.selection import OF_RANKS, SHELF, Judging, metrics_of, positive_class, selection_metric_of
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.client_data import global_test_part, pool_clients, shares

LOCAL, POOLED = "local", "pooled"
AUTO_SECONDS = 10.0  # of one core, about, that "auto" spends on the members' shelves and on the pooled one
AUTO_ENTRIES = 1e8  # numbers in all members' columns up to which "auto" makes them
AUTO_MOLECULES = 1_600  # whose descriptors "auto" computes
_TOO_LARGE = "left out, because its columns would not fit into memory easily"
# Sections of an experiment that decide on data, split and what is drawn; of [evaluation] `sharing_settings` adds more.
_SHARED = ("data", "partition", "noise", "forget", "fold", "seed")
# From the most to the least that a shelf computes; "auto" takes the first that fits into `AUTO_SECONDS`.
EFFORTS = (
    *(Effort(rows=rows) for rows in (100_000, 30_000, 10_000, 3_000)),
    *(Effort(trees, 3_000) for trees in (100, 50, 25, 0)),
    Effort(0, 1_000),
)


@dataclass(frozen=True)
class ShelfResult:
    """What shelves reach on test examples.

    metrics: {"shelf/local/auc": mean over members, "shelf/pooled/auc": the same of one shelf on all members' examples}.
    members: {metric: {member: value}}. tools: {"local": {tool: members whose validation examples chose it}, "pooled":
    likewise}. drawn: a sentence on what was left out to save time, "" for nothing. seconds: of the processor.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    tools: dict[str, dict[str, int]] = field(default_factory=dict)
    drawn: str = ""
    seconds: float = 0.0
    place: str = SHELF

    def rows(self, round: int) -> pa.Table:
        """The members' values as rows of metrics.parquet, "shelf/auc" of each member."""
        rows = list[MetricRow]()
        for name, values in self.members.items():
            for member, value in values.items():
                rows.append((round, member, "test", f"{self.place}/{name}", value))
        return table_of(rows)

    def facts(self) -> Record:
        """The entry "shelf" of summary.json; {} without a shelf."""
        if not self.metrics:
            return {"drawn": self.drawn} if self.drawn else {}
        drawn = {"drawn": self.drawn} if self.drawn else {}
        return {**self.tools, **drawn, "seconds": self.seconds}


def sharing_settings(config: Config, judging: Judging, metrics: Record) -> list[object]:
    """What decides on a run's shelf besides data and version, which the model and the algorithm do not: runs in which
    it is the same share it (`experiment.runs.shared.shared_file`). metrics: of the run's summary."""
    document = config.plain()
    experiment = {name: document.get(name) for name in _SHARED}
    return [experiment, selection_metric_of(metrics), positive_class(judging, metrics), config.evaluation.shelf]


class ShelfValues(NamedTuple):
    """What `shelf_of_run` sums up. values: {"local" or "pooled": {member: its metrics}}. titles: likewise the
    tools that validation chose."""

    values: dict[str, dict[str, Record]]
    titles: dict[str, list[str]]
    drawn: str = ""


def shelf_of_run(
    built: Built,
    judging: Judging,
    enabled: bool | str,
    metrics: Record,
    seed: int,
    links: Mapping[str, PairExamples] | None = None,
) -> ShelfResult:
    """The shelf of every evaluated member, and of all members' examples together, by the selection metric of the run.

    It is empty where no member has training examples or columns. Members without test examples are tested on the global
    test set. Of parties that hold columns of the same nodes, those with labels have a shelf of their own columns and
    edges; the pooled one has the columns and edges of all. enabled: False for none, True for all that
    `Effort` allows, "auto" for what takes about `AUTO_SECONDS`. metrics: of the run's summary. links: members' examples
    (`shelf.pairs.member_pairs`), if they are there already. Data that is not opened here, a process elsewhere opens.

    Raises:
        WorkerLost: that process is gone.
    """
    start = time.process_time()
    data, partition, facts, evaluated = built.data, built.partition, built.facts, built.fed.evaluated_clients
    if enabled is False:
        return ShelfResult()
    if enabled == "auto" and data.links is None:
        entries = entries_of(data) if facts is None else facts.entries
        if entries > AUTO_ENTRIES:
            return result_of(ShelfValues({}, {}, _TOO_LARGE), SHELF, data, time.process_time() - start)
    if facts is not None and built.elsewhere is not None:
        return ShelfResult(**built.elsewhere(shelf_of_document, enabled, metrics, evaluated))
    result = _shelf_of_data(data, partition, evaluated, judging, enabled, metrics, seed, links)
    return result_of(result, SHELF, data, time.process_time() - start)


def shelf_of_document(document: Document, enabled: bool | str, metrics: Record, evaluated: Sequence[str]) -> Record:
    """The fields of `shelf_of_run` of the run with this document, for a process that has no data of it."""
    start, config = time.process_time(), resolve(document)
    data, partition, *_ = ingredients(config)
    judging = config.evaluation.of(data.labels, data.classes, data.target)
    result = _shelf_of_data(data, partition, evaluated, judging, enabled, metrics, config.general.seed)
    return asdict(result_of(result, SHELF, data, time.process_time() - start))


def _shelf_of_data(
    data: Dataset,
    partition: Partition,
    evaluated: Sequence[str],
    judging: Judging,
    enabled: bool | str,
    metrics: Record,
    seed: int,
    links: Mapping[str, PairExamples] | None = None,
) -> ShelfValues:
    names = client_ids(len(partition.parts), partition.names)
    evaluated = evaluated or names
    judge = Judge(selection_metric_of(metrics), positive_class(judging, metrics), data.outputs)
    seeds = {name: member_seed(seed, name) for name in (POOLED, *names)}
    if data.links is not None:
        return _of_links(links or member_pairs(data, partition), evaluated, judge, seeds, enabled)
    described = enabled is True or data.examples <= AUTO_MOLECULES
    parts = zip(names, shares(unscaled(data), partition.parts), strict=True)
    examples = {name: examples_of(share, described) for name, share in parts}
    return _of_examples(data, partition, examples, evaluated, judge, seeds, enabled, described)


class MemberShelf(NamedTuple):
    """What one member reaches: the metrics on its test examples, {} for none, and the tool that validation chose.
    drawn: see `ShelfResult`."""

    values: Record
    tool: str = ""
    drawn: str = ""


def shelf_of_member(data: Dataset, test: Dataset | None, judge: Judge, seed: int, enabled: bool | str) -> MemberShelf:
    """The shelf of a member that holds `data`, with `public` as its split, as `shelf_of_run` has it of each member.

    test: the global test set, for a member without test examples of its own. seed: see `member_seed`. enabled: see
    `shelf_of_run`; "auto" takes about `AUTO_SECONDS` for this member.
    """
    share = _whole(data, np.asarray(data.public))
    if data.links is not None:
        members, pair_effort, drawn = _draw_members({"": pair_examples(share)}, {"": seed}, enabled)
        pair_shelf = fit_pair_shelf([members[""]], judge, seed, pair_effort)
        values = _pair_values(pair_shelf, members[""], judge)
        return MemberShelf(values, "" if pair_shelf is None else pair_shelf.title, drawn)
    if enabled == "auto" and entries_of(data) > AUTO_ENTRIES:
        return MemberShelf({}, drawn=_TOO_LARGE)
    described = enabled is True or data.examples <= AUTO_MOLECULES
    examples = examples_of(share, described)
    tests = examples
    if not tested(examples) and test is not None:
        masks = np.zeros((3, test.examples), bool)
        masks[TEST] = test.has_label if test.public is None else np.asarray(test.public)[TEST]
        tests = examples_of(_whole(test, masks), described)
    if not examples.masks[TRAIN].any():
        return MemberShelf({})
    effort = choose_effort([examples], judge.outputs, enabled)
    shelf = None if effort is None else fit_shelf(examples, judge, seed, effort)
    drawn = savings([examples], effort)
    if shelf is None:
        return MemberShelf({}, drawn=drawn)
    return MemberShelf(values_on_tests(shelf, tests, judge), shelf.title, drawn)


def member_seed(seed: int, name: str) -> int:
    """The seed of a member's shelf. seed: of the run. name: of the member, or `POOLED`."""
    return random.fold_bits(random.root(seed), "shelf", name)


def _whole(data: Dataset, masks: np.ndarray) -> Dataset:
    """All of a holder's data in the form of a share (`partition.client_data.shares`). masks: bool [3, e], its split."""
    [share] = shares(unscaled(data), [Part.of(data, np.arange(data.examples), masks)])
    return share


def result_of(result: ShelfValues, place: str, data: Described, seconds: float) -> ShelfResult:
    """The means over members of what shelves reach, for a summary. place: "shelf" or "shelf_joint"."""
    summary, members = dict[str, float](), dict[str, dict[str, float]]()
    for which, of_members in result.values.items():
        for metric in (*metrics_of(data.target, data.classes), *OF_RANKS):
            known = dict[str, float]()
            for name, values in of_members.items():
                if not math.isnan(values.get(metric, math.nan)):
                    known[name] = values[metric]
            if known:
                summary[f"{place}/{which}/{metric}"] = float(np.mean([*known.values()]))
            if which == LOCAL:
                members[metric] = known
    tools = {which: dict(Counter(titles).most_common()) for which, titles in result.titles.items() if titles}
    return ShelfResult(summary, members, tools, result.drawn, seconds, place)


def unscaled(data: Dataset) -> Dataset:
    """The data of which no holder scales columns: tools scale for themselves, and pooled columns stay in one unit."""
    attributes = None if data.edge_attrs is None else data.edge_attrs._replace(auto=False)
    return replace(data, scaling="none", edge_attrs=attributes)


def examples_of(share: Dataset, with_descriptors: bool = True) -> Examples:
    """The examples of a member that holds `share`, whose `public` is its split, with the columns of `columns_of`."""
    return Examples(columns_of(share, with_descriptors), share.y, np.asarray(share.public))


def _of_links(
    members: Mapping[str, PairExamples],
    evaluated: Sequence[str],
    judge: Judge,
    seeds: Mapping[str, int],
    enabled: bool | str,
) -> ShelfValues:
    values, titles = {LOCAL: dict[str, Record](), POOLED: dict[str, Record]()}, {LOCAL: list[str](), POOLED: []}
    members, effort, drawn = _draw_members(members, seeds, enabled)
    pooled = fit_pair_shelf([*members.values()], judge, seeds[POOLED], effort)
    for name in evaluated:
        for which in (LOCAL, POOLED):
            shelf = pooled
            if which == LOCAL:
                shelf = fit_pair_shelf([members[name]], judge, seeds[name], effort)
            member_values = _pair_values(shelf, members[name], judge)
            if shelf is not None and member_values:
                values[which][name] = member_values
                titles[which].append(shelf.title)
    return ShelfValues(values, {LOCAL: titles[LOCAL], POOLED: titles[POOLED][:1]}, drawn)


def _draw_members(
    members: Mapping[str, PairExamples], seeds: Mapping[str, int], enabled: bool | str
) -> tuple[Mapping[str, PairExamples], Effort, str]:
    """The members with the links that shelves score, what the shelves may compute, and what is drawn, in words."""
    effort, share = choose_pair_effort([*members.values()], enabled)
    trained = sum(int(member.links.masks[TRAIN].sum()) for member in members.values())
    clauses = [f"{effort.rows:,} of up to {trained:,} training pairs, drawn"] if trained > effort.rows else []
    if share < 1:
        members = {name: draw_links(member, share, seeds[name]) for name, member in members.items()}
        clauses.append(f"{share:.2g} of the validation and test links, drawn")
    return members, effort, ", ".join(clauses)


def _pair_values(shelf: PairShelf | None, member: PairExamples, judge: Judge) -> Record:
    """All metrics of a shelf on a member's test links; {} without either."""
    pairs = {} if shelf is None else shelf.values(member, judge, TEST)
    return judge.values_of(pairs) if pairs else {}


def _of_examples(
    data: Dataset,
    partition: Partition,
    members: Mapping[str, Examples],
    evaluated: Sequence[str],
    judge: Judge,
    seeds: Mapping[str, int],
    enabled: bool | str,
    described: bool,
) -> ShelfValues:
    values, titles = {LOCAL: dict[str, Record](), POOLED: dict[str, Record]()}, {LOCAL: list[str](), POOLED: []}
    tests = {name: members[name] for name in evaluated}
    if not any(map(tested, tests.values())):  # only the server tests: every member's shelf on the global test set
        part = global_test_part(data, partition)
        if part is None:
            return ShelfValues({}, {})
        [share] = shares(unscaled(data), [part])
        tests = dict.fromkeys(evaluated, examples_of(share, described))
    learning = {name: examples for name, examples in members.items() if examples.masks[TRAIN].any()}
    if not learning:
        return ShelfValues({}, {})
    drawn = dict[str, str]()

    # 1. One shelf on the examples of all members; of parties, on all columns of the same examples.
    if any(part.columns is not None for part in partition.parts):
        [share] = shares(unscaled(data), pool_clients(partition).parts)
        everyone = examples_of(share, described)
        pooled_tests = {POOLED: everyone}
    else:
        everyone = Examples.join([*learning.values()])
        pooled_tests = tests
    effort = choose_effort([everyone], judge.outputs, enabled)
    shelf = None if effort is None else fit_shelf(everyone, judge, seeds[POOLED], effort)
    drawn[POOLED] = savings([everyone], effort)
    if shelf is not None:
        titles[POOLED].append(shelf.title)
        for name, examples in pooled_tests.items():
            values[POOLED][name] = values_on_tests(shelf, examples, judge)

    # 2. Each member's own.
    learning = {name: examples for name, examples in learning.items() if name in tests}
    effort = choose_effort([*learning.values()], judge.outputs, enabled)
    drawn[LOCAL] = savings([*learning.values()], effort)
    for name, examples in learning.items():
        shelf = None if effort is None else fit_shelf(examples, judge, seeds[name], effort)
        if shelf is not None:
            titles[LOCAL].append(shelf.title)
            values[LOCAL][name] = values_on_tests(shelf, tests[name], judge)
    clauses = [f"{which}: {text}" for which, text in drawn.items() if text]
    return ShelfValues(values, titles, "; ".join(clauses))


def entries_of(data: Dataset) -> float:
    """About how many numbers the columns of all examples have that are not 0."""
    if isinstance(data.x, sp.csr_matrix):  # means over neighbors have more of them
        edges = data.edges.shape[1] if data.edge_attrs is None else 2 * data.edge_attrs.total
        of_nodes = float(data.x.nnz + data.x.nnz * max(1.0, edges / max(1, data.nodes)))
    else:
        of_nodes = 2.0 * data.x.size
    return of_nodes * 2 * data.examples / max(1, data.nodes) if data.example == "edge" else of_nodes


def choose_effort(members: Sequence[Examples], outputs: int, enabled: bool | str) -> Effort | None:
    """What each of these members' shelves may compute: all that it can or, for "auto", the most that takes about
    `AUTO_SECONDS` for all of them; None where not even the least does.

    It follows from sizes, and not from a clock, so that a run gives the same numbers again.
    """
    if enabled is True:
        return Effort()
    for effort in EFFORTS:
        if sum(seconds_of(member, effort, outputs) for member in members) <= AUTO_SECONDS:
            return effort
    return None


def choose_pair_effort(members: Sequence[PairExamples], enabled: bool | str) -> tuple[Effort, float]:
    """What these members' shelves of links may compute, and the share of their validation and test links that they
    score: all or, for "auto", what takes about `AUTO_SECONDS`, half of it to learn. It follows from sizes, as in
    `choose_effort`."""
    if enabled is True:
        return Effort(), 1.0
    *_, effort = EFFORTS
    for tried in EFFORTS:
        if sum(learning_seconds(member, tried.rows) for member in members) <= AUTO_SECONDS / 2:
            effort = tried
            break
    scoring = sum(map(scoring_seconds, members))
    return effort, min(1.0, AUTO_SECONDS / 2 / max(scoring, 1e-9))


def savings(members: Sequence[Examples], effort: Effort | None) -> str:
    """What such an effort leaves out of these members' shelves, in words; "" for nothing."""
    if effort is None:
        return "left out, because it would take longer than some ten rounds"
    largest = max((int(member.masks[TRAIN].sum()) for member in members), default=0)
    clauses = []
    if largest > effort.rows:
        clauses.append(f"{effort.rows:,} of up to {largest:,} training examples, drawn")
    if effort.trees == 0:
        clauses.append("without boosting")
    elif effort.trees < Effort().trees:
        clauses.append(f"at most {effort.trees} trees")
    return ", ".join(clauses)


def values_on_tests(shelf: Shelf, examples: Examples, judge: Judge) -> Record:
    """All metrics of a shelf on labeled test examples; {} without any."""
    rows = np.flatnonzero(examples.masks[TEST] & is_labeled(examples.y))
    if not len(rows):
        return {}
    columns = {shelf.tool.columns: examples.columns[shelf.tool.columns][rows]}
    return judge.values(shelf.predict(columns), examples.y[rows], np.ones(len(rows), bool))
