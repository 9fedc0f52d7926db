"""Reads the directories of runs and groups those that repeat one experiment with other seeds."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core import plugins
from fedweave.core.text import counted
from fedweave.core.types import EVALUATION, Record
from fedweave.errors import UserError, option
from fedweave.experiment.config import Document, differences, flat, load_saved
from fedweave.experiment.config.choices import model_names
from fedweave.experiment.rounds import SERVER
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    LEDGER,
    METRICS,
    MOTIFS,
    PARTITION,
    PREDICTIONS,
    SUMMARY,
    read_pairs,
    read_summary,
    read_table,
)
from fedweave.metrics.best_rounds import best_validated, fairest, selection, validated
from fedweave.metrics.groups import MEASURED
from fedweave.metrics.kinds import DIVERGED
from fedweave.metrics.measured import GLOBAL, MISSING, ROUNDED_SCORES
from fedweave.metrics.selection import (
    BEST,
    POSITIVE,
    RANKS_SAMPLED,
    RAREST,
    RMSE,
    VERDICT,
    of_result,
    selection_metric_of,
)

T = TypeVar("T")

BY_FEATURES = ("vertical", "parties")  # partitions in which parties hold different features of the same nodes


@dataclass(frozen=True)
class Run:
    """One run, read from its directory.

    summary: content of summary.json, whose "metrics" are of the round that is the run's result
    (`metrics.selection.of_result`); of an unfinished run, the same entries as far as its tables give them.
    last_metrics: those of the last round, where that is another one, else {}. partition,
    motifs, predictions: the tables of these names, or None where there is no such file. pairs: the matrices of
    pairs.npz, by name. finished: whether there was a summary.json. done: the number of completed rounds. when: the time
    of the last file, in seconds since 1970.
    """

    directory: Path
    config: Document
    summary: Record
    metrics: pa.Table
    ledger: pa.Table
    partition: pa.Table | None
    pairs: dict[str, np.ndarray]
    finished: bool
    done: int
    when: float
    motifs: pa.Table | None = None
    predictions: pa.Table | None = None
    last_metrics: Record = field(default_factory=dict)

    @property
    def result_round(self) -> int:
        """The round that is the run's result: the one that validation chose, or the last."""
        return int(self.summary.get("chosen_round") or self.last_evaluation)

    @cached_property
    def last_evaluation(self) -> int:
        """The last round that was evaluated."""
        return int(pc.max(_evaluations(self.metrics)["round"]).as_py())

    def ranks_sampled(self, round: int) -> bool:
        """Whether a round's ranks of links are those of a sample."""
        rows = values_of(self.metrics, RANKS_SAMPLED, "test", True)
        return any(rows.filter(pc.field("round") == round)["value"].to_pylist())

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order; () where they are numbers. Between sites only the sites know them."""
        labels = () if self.between_sites else self.section("data").get("labels")  # of an unfinished run
        return tuple(self.summary.get("classes") or labels or ())

    def class_names(self, count: int) -> tuple[str, ...]:
        """The name of each of `count` classes in a legend: its name, or "class 2"."""
        return self.classes if len(self.classes) == count else tuple(f"class {number}" for number in range(count))

    def section(self, name: str) -> Document:
        """A section of the configuration, empty if it is absent."""
        section = self.config.get(name, {})
        return section if isinstance(section, dict) else {}

    @property
    def models(self) -> str:
        """The names of the model, or of all members' models; "" where it is not known."""
        return model_names(self.section("model"))

    @cached_property
    def selection_metric(self) -> str:
        """The run's selection metric."""
        return selection_metric_of(self.summary.get("metrics", {}))

    @property
    def members(self) -> int:
        """How many members have data: the clients, unless one client holds the data of several members."""
        return int(self.summary.get("members") or self.summary["clients"])

    @property
    def tested(self) -> str:
        """The number of members with test examples, or of test nodes for parties that hold the same nodes.

        The number of test nodes does not depend on which parties train on them.
        """
        if self.partition is None or self.section("partition").get("name") not in BY_FEATURES:
            return counted(self.members, "client")
        return counted(pc.max(self.partition["test"]).as_py() or 0, "test node")

    @cached_property
    def test_sizes(self) -> dict[str, int]:
        """The number of each client's test examples; {} where it is not known."""
        if self.partition is None or not {"client", "test"} <= set(self.partition.column_names):
            return {}
        sizes = zip(self.partition["client"].to_pylist(), self.partition["test"].to_pylist(), strict=True)
        return {str(client): int(size) for client, size in sizes if size is not None}

    @property
    def between_sites(self) -> bool:
        """Whether the run was made between sites, and not by a simulation."""
        return self.section("engine").get("name") == "flare"

    def curve(self, metric: str, split: str, pooled: bool) -> dict[int, float]:
        """{round: value} of the global row (`pooled`) or of the mean over clients; empty if it was not measured."""
        return means(values_of(self.metrics, metric, split, pooled))

    def server_values(self, metric: str) -> dict[str, dict[int, float]]:
        """{client: {round: value}} of what the server knew of each client after every round; empty if nothing."""
        values: dict[str, dict[int, float]] = {}
        for row in values_of(self.metrics, metric, SERVER, False).to_pylist():
            values.setdefault(row["client"], {})[row["round"]] = row["value"]
        return values

    def bytes_sent(self) -> dict[int, float]:
        """{round: bytes that clients sent in training up to it}, to the server and to each other, by the ledger."""
        directions, purposes = self.ledger["direction"].cast(pa.string()), self.ledger["purpose"].cast(pa.string())
        rows = self.ledger.filter(pc.and_(pc.not_equal(directions, "down"), pc.not_equal(purposes, EVALUATION)))
        sums = rows.group_by("round").aggregate([("bytes", "sum")]).sort_by("round")
        return dict(zip(sums["round"].to_pylist(), np.cumsum(sums["bytes_sum"].to_numpy()).tolist(), strict=True))

    def clients(self, metric: str, split: str = "test", round: int | None = None) -> dict[str, float]:
        """{client: value} in a round, by default the one that is the result, or else in the last one, which alone has
        some metrics; clients where the metric is not defined are absent."""
        rows = values_of(self.metrics, metric, split, False)
        in_round = rows.filter(pc.field("round") == (self.result_round if round is None else round))
        rows = in_round if len(in_round) else rows.filter(pc.field("round") == self.last_evaluation)
        return dict(zip(rows["client"].to_pylist(), rows["value"].to_pylist(), strict=True))

    def of_clients(self, split: str = "test") -> dict[str, dict[str, float]]:
        """{client: {metric: value}} in the round that is the result."""
        is_result = (pc.field("round") == self.result_round) & (pc.field("split") == split)
        values = dict[str, dict[str, float]]()
        for row in self.metrics.filter(is_result & (pc.field("client") != GLOBAL)).to_pylist():
            values.setdefault(row["client"], {})[row["metric"]] = row["value"]
        return values


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ only in the seed, and the name that distinguishes them from other groups."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that represents the group where only one can be shown."""
        return self.runs[0]

    @property
    def selection_metric(self) -> str:
        """The selection metric of all its runs; "" where they have different ones."""
        return common_selection_metric([self])

    def values(self, name: str) -> list[float | None]:
        """One entry of every run's summary, or of its metrics; None where it is absent."""
        return [run.summary.get(name, run.summary["metrics"].get(name)) for run in self.runs]

    def by_seed(self, name: str) -> dict[object, float]:
        """{seed: the entry} of the runs that have it."""
        pairs = zip(self.runs, self.values(name), strict=True)
        return {run.config.get("seed"): value for run, value in pairs if value is not None and math.isfinite(value)}


def common_selection_metric(groups: Iterable[Group]) -> str:
    """The selection metric of all runs; "" where they have different ones."""
    metrics = {run.selection_metric for group in groups for run in group.runs}
    return metrics.pop() if len(metrics) == 1 else ""


def read_run(directory: Path) -> Run:
    """Read a run, finished or not.

    Raises:
        UserError: it is not the directory of a run, or nothing has been measured yet; the message lists missing files.
        FedweaveError: a file is damaged.
    """
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}. Give the folder of a run.")
    missing = [name for name in (CONFIG, METRICS, LEDGER) if not (directory / name).is_file()]
    if missing:
        state = f"has no {' and no '.join(missing)} yet: no round of this run is saved"
        if CONFIG in missing:
            state = f"is not the directory of a run: it has no {', no '.join(missing)}"
        raise UserError(f"{directory} {state}. Give the folder of a run.")
    config = load_saved(directory / CONFIG)
    metrics, ledger = read_table(directory, METRICS), read_table(directory, LEDGER)
    if not len(_evaluations(metrics)):
        raise UserError(
            f"{directory} has no evaluated round in {METRICS} yet. Continue it with {option('resume', True)}."
        )
    finished = (directory / SUMMARY).is_file()
    done = max(pc.max(metrics["round"]).as_py(), pc.max(ledger["round"]).as_py() or 0)
    if finished:
        summary = read_summary(directory / SUMMARY, "algorithm", "dataset", "clients")
    else:
        summary = _unfinished_summary(config, metrics, ledger, done)
        # Between sites the server may not have the models of the best round, which is then not the result.
        chosen = summary.get("chosen_round")
        if chosen is not None and config.get("engine", {}).get("name") == "flare":
            path = directory / CHECKPOINT
            if not path.exists() or Checkpoint.load(path).best_round != chosen:
                del summary["chosen_round"]

    def read_optional(name: str) -> pa.Table | None:
        return read_table(directory, name) if (directory / name).is_file() else None

    result = of_result(summary)
    return Run(
        directory=directory,
        config=config,
        summary={**summary, "metrics": result},
        last_metrics={} if result is summary["metrics"] else summary["metrics"],
        metrics=metrics,
        ledger=ledger.unify_dictionaries().combine_chunks(),
        partition=read_optional(PARTITION),
        pairs=read_pairs(directory),
        finished=finished,
        done=done,
        when=(directory / (SUMMARY if finished else METRICS)).stat().st_mtime,
        motifs=read_optional(MOTIFS),
        predictions=read_optional(PREDICTIONS),
    )


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """Read several runs.

    Raises:
        UserError: see `read_run`; or a directory is given twice.
    """
    counts = Counter(path.resolve() for path in directories)
    twice = [str(path) for path, count in counts.items() if count > 1]
    if twice:
        raise UserError(f"{', '.join(twice)} is given twice; name every directory once.")
    return [read_run(directory) for directory in directories]


# Settings in which runs of one experiment may differ.
_SAME_EXPERIMENT = {"seed", "requester", "purpose"}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in the seed, in the given order; a repeated seed begins another group.

    An unfinished run is only grouped with runs that reached the same round.
    """
    together: dict[tuple[object, ...], list[Run]] = {}
    occurrences: Counter[tuple[object, ...]] = Counter()
    for run in runs:
        settings = {key: value for key, value in flat(run.config).items() if key not in _SAME_EXPERIMENT}
        experiment = json.dumps(settings, sort_keys=True, default=str), run.finished, run.done
        with_seed = (*experiment, run.config.get("seed"))
        together.setdefault((*experiment, occurrences[with_seed]), []).append(run)
        occurrences[with_seed] += 1
    members = [tuple(same_runs) for same_runs in together.values()]
    return [Group(label, same_runs) for label, same_runs in zip(_labels(members), members, strict=True)]


def distinct(items: Iterable[T], same: Callable[[T, T], bool]) -> list[list[T]]:
    """Partition `items` into lists of equal ones, in order of first appearance."""
    classes: list[list[T]] = []
    for item in items:
        for equal_items in classes:
            if same(equal_items[0], item):
                equal_items.append(item)
                break
        else:
            classes.append([item])
    return classes


def spread(values: Iterable[float | None]) -> tuple[float, float, int]:
    """Mean, sample standard deviation (n - 1; NaN for n < 2) and number n of the values that are finite."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    return mean, statistics.stdev(finite) if len(finite) > 1 else math.nan, len(finite)


def _evaluations(metrics: pa.Table) -> pa.Table:
    return metrics.filter(pc.field("split") != SERVER)


def values_of(metrics: pa.Table, metric: str, split: str, pooled: bool) -> pa.Table:
    """The rows of metrics.parquet, by round, client, split and metric, of one metric: global ones (`pooled`) or those
    of clients."""
    who = pc.field("client") == GLOBAL
    return metrics.filter((pc.field("metric") == metric) & (pc.field("split") == split) & (who if pooled else ~who))


def means(rows: pa.Table) -> dict[int, float]:
    """{round: mean value} of such rows."""
    by_round = rows.group_by("round").aggregate([("value", "mean")]).sort_by("round")
    return dict(zip(by_round["round"].to_pylist(), by_round["value_mean"].to_pylist(), strict=True))


def _unfinished_summary(config: Document, metrics: pa.Table, ledger: pa.Table, done: int) -> Record:
    """The summary.json that the run would have after the last evaluation, without what only a finished run knows."""
    summary: dict[str, float] = {}
    evaluated = _evaluations(metrics)
    scored = _count_scored(evaluated)
    for number in sorted(pc.unique(evaluated["round"]).to_pylist()):
        last = evaluated.filter(pc.field("round") == number)
        measured = _test_metrics(last)
        missing = scored - _count_scored(last)
        if missing:
            measured[MISSING] = float(missing)
        best = best_validated(number, validated(last, selection_metric_of(measured)), measured, summary)
        fair = fairest(number, selection(last), measured, summary, config.get("fair_margin", 0.0))
        summary = measured | best | fair
    byte_counts = dict.fromkeys(("up", "down", "peer"), 0)
    for row in ledger.group_by("direction").aggregate([("bytes", "sum")]).to_pylist():
        byte_counts[row["direction"]] = row["bytes_sum"]
    return {
        "algorithm": plugins.label(config.get("algorithm", {}).get("name")),
        "dataset": config.get("data", {}).get("name"),
        "clients": len(pc.unique(last.filter(pc.field("client") != GLOBAL)["client"])),
        "rounds": done,
        "seed": config.get("seed"),
        "bytes_up": byte_counts["up"],
        "bytes_down": byte_counts["down"],
        **({"bytes_peer": byte_counts["peer"]} if byte_counts["peer"] else {}),
        **({"chosen_round": int(summary[f"{BEST}/round"])} if f"{BEST}/round" in summary else {}),
        "bytes_evaluation": pc.sum(ledger.filter(pc.field("purpose") == EVALUATION)["bytes"]).as_py() or 0,
        "metrics": summary,
    }


def _count_scored(metrics: pa.Table) -> int:
    """How many clients have an accuracy, or an error; missing clients have other rows."""
    condition = pc.field("metric").isin(["accuracy", RMSE]) & (pc.field("client") != GLOBAL)
    return len(pc.unique(metrics.filter(condition)["client"]))


def _test_metrics(metrics: pa.Table) -> dict[str, float]:
    """The test numbers of one evaluation's rows, as a summary has them."""
    # 1. {metric: value} of the global rows, and {metric: values of the clients}.
    global_values = dict[str, float]()
    for row in metrics.filter(pc.field("client") == GLOBAL).to_pylist():
        if row["split"] == "test" or row["metric"].startswith(("fairness/", VERDICT, POSITIVE, RAREST, DIVERGED)):
            global_values[row["metric"]] = row["value"]
    client_rows = metrics.filter(pc.field("client") != GLOBAL)
    lists = client_rows.filter(pc.field("split") == "test").group_by("metric").aggregate([("value", "list")])
    client_values = dict(zip(lists["metric"].to_pylist(), lists["value_list"].to_pylist(), strict=True))

    # 2. Global values and means over clients.
    summary = dict[str, float]()
    for name, value in global_values.items():
        if not name.startswith(MEASURED):
            summary[name if "/" in name else f"{GLOBAL}/{name}"] = value
    for name, values in client_values.items():
        if not name.startswith((MEASURED, "global_test/", ROUNDED_SCORES)):
            summary[name if name.startswith("trained/") else f"local/{name}"] = statistics.fmean(values)
    if ROUNDED_SCORES in client_values:
        summary[ROUNDED_SCORES] = math.fsum(client_values[ROUNDED_SCORES])

    # 3. Differences between groups, as in `metrics.groups.summary_of`.
    clients = len(pc.unique(client_rows["client"]))
    for metric in dict.fromkeys((*global_values, *client_values)):
        if not metric.startswith(MEASURED):
            continue
        name, values = metric.removeprefix(f"{MEASURED}/"), client_values.get(metric, [])
        if metric in global_values:
            summary[f"{MEASURED}/{GLOBAL}/{name}"] = global_values[metric]
        if values:
            summary[f"{MEASURED}/median/{name}"] = statistics.median(values)
        summary[f"{MEASURED}/median/{name}_undefined"] = clients - len(values)
    return summary


_ENGINE = "engine.name"
_WHERE = {"simulation": ", simulated", "ray": ", simulated", "flare": ", between sites"}


def _labels(groups: Sequence[tuple[Run, ...]]) -> list[str]:
    """Labels of the groups: the algorithm's name, and the settings that distinguish it from the other groups."""
    # 1. The algorithm and, if there are several, the data set.
    summaries = [runs[0].summary for runs in groups]
    labels = [str(summary["algorithm"]) for summary in summaries]
    if len({summary["dataset"] for summary in summaries}) > 1:
        labels = [f"{summary['algorithm']} on {summary['dataset']}" for summary in summaries]

    # 2. The settings in which groups of the same label differ.
    for label, count in Counter(labels).items():
        if count == 1:
            continue
        same = [index for index, other in enumerate(labels) if other == label]
        configs = [flat(groups[index][0].config) for index in same]
        different = set[str]()
        for config in configs:
            different.update(differences(configs[0], config))
        different -= _SAME_EXPERIMENT
        several_engines = len({config.get(_ENGINE) for config in configs}) > 1
        if several_engines:  # then no other key of the engine tells more
            different = {key for key in different if not key.startswith("engine.")}
        for index, config in zip(same, configs, strict=True):
            if several_engines:
                labels[index] += _WHERE.get(str(config.get(_ENGINE)), "")
            labels[index] += "".join(f", {key}={config.get(key)}" for key in sorted(different))

    # 3. The directory, where the labels are still the same.
    counts = Counter(labels)
    for index, label in enumerate(labels):
        if counts[label] > 1:
            labels[index] = f"{label} ({groups[index][0].directory})"
    return labels
