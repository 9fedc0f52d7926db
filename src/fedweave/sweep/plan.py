"""The runs of a sweep: every algorithm with every combination of its settings, and every seed."""

import itertools
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeGuard

from fedweave import datasets
from fedweave.core import plugins
from fedweave.core.renamed import current_path
from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.datasets.features import changes, digests
from fedweave.errors import ConfigError, FedweaveError, UserError
from fedweave.experiment.build import prepared
from fedweave.experiment.config import (
    Document,
    Exchanged,
    load,
    override,
    parameters,
    registry,
    resolve,
    tuned,
    with_algorithm,
)
from fedweave.experiment.config.plugins import DEFAULT_NAMES, accepts, lookup
from fedweave.experiment.config.toml import inline
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, write
from fedweave.metrics.selection import BEST, PLAIN, RMSE, RMSE_OF_MEAN, lower, rank
from fedweave.papers.grid import PlannedRun, planned_run
from fedweave.report.cells import Cell, ResultTable, measured, number
from fedweave.report.conditions import said, short, values_of
from fedweave.report.reading import Group, judged_alike, spread

MOST = 10_000  # largest number of runs


def planned(
    config: Path, out: Path, seeds: str, algorithms: str, settings: Sequence[str], grid: Sequence[str]
) -> tuple[list[PlannedRun], list[str]]:
    """The runs in `out`/runs, each once, every combination's first seed before the second seeds. Also notes on settings
    that some of the algorithms do not have.

    seeds: "0-4" or "0,3,7". algorithms: names with commas between, "" for the configuration's own. settings: as in
    `fedweave run --set`, for the algorithms that have the key. grid: "section.key=value,value,…"; an algorithm without
    the key runs once. The configuration's [algorithm] tune is tried too, unless the grid has the key.
    "NAME:section.key=value,…" sets the values of that algorithm, instead of the values for all.

    Raises:
        ConfigError: a name, key or value is not valid. UserError: there are no runs or too many.
    """
    tried = tries(config, settings, grid)
    if ranges := [key for key, values in tried.items() if range_of(values)]:
        raise ConfigError(f"--grid {ranges[0]}: a range needs --search N. Or list some values.")
    base_documents, notes = algorithms_of(config, algorithms, settings)
    check_scopes(tried, base_documents)
    documents = [one for document in base_documents for one in combined(document, tried)]
    numbers = numbers_of(seeds)
    if len(numbers) * len(documents) > MOST:
        raise UserError(f"these are {len(numbers) * len(documents):,} runs; ask for at most {MOST:,}.")
    runs = [planned_run(document | {"seed": seed}, out / "runs") for seed in numbers for document in documents]
    for run in runs[: len(documents)]:
        run.config.check_made()
    return list({run.name: run for run in runs}.values()), notes


def tries(config: Path, settings: Sequence[str], grid: Sequence[str]) -> dict[str, list[str]]:
    """{key or NAME:key: values as TOML} of the grid, and of [algorithm] tune unless the grid has the key.

    Raises:
        ConfigError: the grid has seeds.
    """
    if seeded := [text for text in (*settings, *grid) if scoped(text.partition("=")[0].strip())[1] == "seed"]:
        raise ConfigError(f"{seeded[0]}: give the seeds of a sweep with --seeds, such as --seeds 5,6.")
    tuned_values = {
        f"algorithm.{key}": [inline(value) for value in values] for key, values in tuned(load(config)).items()
    }
    values = tuned_values | dict(_values(text) for text in grid)
    return {current_path(key): tried for key, tried in values.items()}


def scoped(key: str) -> tuple[str, str]:
    """The algorithm that a key of the grid is for, "" for all algorithms, and the key itself."""
    name, _, setting = key.rpartition(":")
    return name, setting


def own_grid(grid: Mapping[str, Sequence[str]], algorithm: str) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for one algorithm: its own values replace the values for all algorithms."""
    shared = {key: values for key, values in grid.items() if not scoped(key)[0]}
    return shared | {
        setting: values
        for key, values in grid.items()
        for name, setting in [scoped(key)]
        if name and lookup("--grid", "algorithm", name)[0] == algorithm
    }


def check_scopes(grid: Mapping[str, Sequence[str]], documents: Sequence[Document]) -> None:
    """Raise an error if a key is for an algorithm that is not run, or that does not have the key.

    Raises:
        ConfigError: names the algorithms of the sweep, or the ones that have the key.
    """
    for key in grid:
        name, setting = scoped(key)
        if not name:
            continue
        wanted = lookup(f"--grid {key}", "algorithm", name)[0]
        if not (mine := [document for document in documents if _algorithm(document)[0] == wanted]):
            others = ", ".join(dict.fromkeys(_algorithm(document)[0] for document in documents))
            raise ConfigError(f"--grid {key}: {name} is not among the algorithms of this sweep: {others}.")
        if not takes(mine[0], setting):
            raise ConfigError(f"--grid {key}: {name} has no such setting.")


def _algorithm(document: Document) -> tuple[str, type]:
    """The registered name of a document's algorithm, and its plug-in."""
    return lookup("algorithm.name", "algorithm", document.get("algorithm", {}).get("name", DEFAULT_NAMES["algorithm"]))


def is_whole(document: Document, key: str) -> bool:
    """Whether a setting of [algorithm] or [model] accepts only whole numbers."""
    section, _, name = key.partition(".")
    accepted = parameters(section, resolve(document).sections[section].kind)
    return name in accepted and not accepts(accepted[name], 0.5)


def range_of(values: Sequence[str]) -> tuple[float, float, bool] | None:
    """(low, high, whether logarithmic) of ["1e-3..1", "log"]; None for listed values."""
    low, dots, high = values[0].partition("..")
    with suppress(ValueError):
        ends = [float(end) for end in (low, high)] if dots else []
        if ends and ends[0] < ends[1] and values[1:] in ([], ["log"]) and (len(values) == 1 or ends[0] > 0):
            return ends[0], ends[1], len(values) > 1
    return None


def algorithms_of(config: Path, algorithms: str, settings: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The document of every algorithm, with the settings that it has; and notes on the settings that it lacks."""
    base, documents, notes = load(config), list[Document](), list[str]()
    tuned(base)  # removes the values to try, which are not a setting
    for name in algorithms.split(",") if algorithms else [None]:
        exchanged = Exchanged()
        document = base
        if name is not None:
            document, exchanged = with_algorithm(base, name.strip(), "--algorithms")
        document = deepcopy(document)
        apart = [text for text in settings if not takes(document, text.partition("=")[0].strip(), "--set")]
        for text in settings:
            if text not in apart:
                override(document, text)
        documents.append(document)
        notes += _sharing_notes((name or "").strip(), exchanged, apart, document)
    return documents, notes


def keys_of(grid: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The keys for which an algorithm tries several values. For whole sections, "partition" with tables, the keys in
    which the tables differ."""
    keys: list[str] = []
    for key, values in grid.items():
        document: Document = {}
        tables = []
        for value in values if "." not in scoped(key)[1] else ():
            override(document, f"{key}={value}")
            tables.append(document[key])
        if tables and all(isinstance(table, dict) for table in tables):
            names = dict.fromkeys(name for table in tables for name in table)
            differ = [name for name in names if any(table.get(name) != tables[0].get(name) for table in tables)]
            keys += [f"{key}.{name}" for name in differ]
        else:
            keys.append(scoped(key)[1])
    return tuple(dict.fromkeys(keys))


def check_over(over: Sequence[str], keys: Sequence[str]) -> None:
    """Raise an error if a key to compare over is not in the grid.

    Raises:
        ConfigError: names the key, and the keys of the grid.
    """
    for key in over:
        if key not in keys:
            raise ConfigError(f"--over {key}: the grid has no such key; it has {', '.join(keys) or 'none'}.")


def share(runs: Sequence[PlannedRun], text: str) -> list[PlannedRun]:
    """The runs of shard "i/n", i from 1 to n: every n-th one.

    Raises:
        ConfigError: the text is no shard.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            f"--shard {text}: write the number of this shard and of all, from 1/4 to 4/4.", code="config.shard"
        )
    return list(runs[number - 1 :: count])


def _sharing_notes(name: str, exchanged: Exchanged, apart: Sequence[str], document: Document) -> list[str]:
    """Notes on the settings of [algorithm] that an algorithm keeps or lacks; apart: the --set that it does not take."""
    without = [f"{name} does not take {', '.join(f'--set {text}' for text in apart)}"] if apart else []
    return [f"{note}." for note in (*without, *exchanged.told(name, resolve(document).algorithm.values))]


def taken(document: Document, grid: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for the document's algorithm, with the keys that it has."""
    algorithm_grid = own_grid(grid, _algorithm(document)[0])
    return {key: values for key, values in algorithm_grid.items() if takes(document, key)}


def combined(document: Document, grid: Mapping[str, Sequence[str]]) -> list[Document]:
    """The document with every combination of values of the keys that it has."""
    algorithm_grid, documents = taken(document, grid), list[Document]()
    for chosen in itertools.product(*algorithm_grid.values()):
        changed = deepcopy(document)
        for key, value in zip(algorithm_grid, chosen, strict=True):
            override(changed, f"{key}={value}")
        documents.append(changed)
    return documents


def takes(document: Document, key: str, option: str = "--grid") -> bool:
    """Whether the algorithm has the key; a key outside [algorithm] counts for all algorithms."""
    section, _, name = key.partition(".")
    if section != "algorithm" or "." in name:
        return True
    algorithm, kind = _algorithm(document)
    everybody = (parameters("algorithm", other) for other in registry("algorithm").values())
    if name in parameters("algorithm", kind):
        return True
    if not any(name in theirs for theirs in everybody):
        raise ConfigError(f"{option} {key}: no algorithm has the setting {name!r}; {algorithm} has others.")
    return False


def _values(text: str) -> tuple[str, list[str]]:
    """ "algorithm.lr=.01,.003" as the key and TOML values."""
    key, equals, values = text.partition("=")
    parts = [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]  # not at commas in lists
    if not equals or not key.strip() or not all(parts):
        raise ConfigError(f"--grid {text}: write section.key=value,value, for example --grid algorithm.lr=.01,.003")
    return key.strip(), parts


def numbers_of(text: str) -> list[int]:
    """ "0-2,7" as [0, 1, 2, 7]."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MOST:
            raise ConfigError(f"--seeds {text}: write seeds such as 0-4 or 0,3,7.")
        numbers += range(first, last + 1)
    return list(dict.fromkeys(numbers))


def up_to_date(runs: Sequence[PlannedRun], overwrite: bool) -> list[PlannedRun]:
    """The runs. Runs whose tables or plug-ins have changed since are marked to be repeated, because they would stand
    next to runs of the new ones.

    Raises:
        UserError: there are such runs, and `overwrite` is false; names the changes.
    """
    known: dict[str, dict[str, str]] = {}
    changes = {run.name: changed for run in runs if (changed := _changed(run, known))}
    if changes and not overwrite:
        what = ", ".join(dict.fromkeys(one for changed in changes.values() for one in changed))
        unchanged = sum(run.finished() for run in runs if run.name not in changes)
        raise UserError(
            f"{what} of {counted(len(changes), 'run')} has changed since, such as of "
            f"{next(iter(changes))}. --overwrite repeats these and keeps the others, {unchanged} of them done; or "
            "sweep into another directory with --out."
        )
    return [replace(run, outdated=run.name in changes) for run in runs]


def _changed(run: PlannedRun, known: dict[str, dict[str, str]]) -> list[str]:
    """Changes since a run was begun; known: digests of tables that have been read."""
    data, folder, seed = run.config.data, run.config.folder, run.config.general.seed
    code = plugins.digests(run.config.plain())
    if (folder is None and not code) or not (run.directory / CHECKPOINT).exists():
        return []
    crossing = run.config.external != "refuse"
    key = repr((run.config.plain() | {"rounds": 0} if crossing else data.plain(), folder, seed))
    if key not in known and folder is None:
        known[key] = {}
    if key not in known:
        load = partial(datasets.load, data.name, path=folder, seed=seed, **data.values)
        known[key] = digests(prepared(run.config)[0] if crossing else load())
    with suppress(FedweaveError):  # the run itself will report a fault of its directory
        return changes(Checkpoint.load(run.directory / CHECKPOINT).source, known[key] | code)
    return []


# ----------------------------------------------------------------------------------------------------
# Each algorithm's setting, chosen by validation, in every condition in which algorithms are compared.


NEAR = 0.05  # share of a range's length (or of its logarithm) that counts as an end
_SETTINGS = ("algorithm", "model")  # sections whose keys are chosen; keys of other sections are conditions


@dataclass(frozen=True)
class Chosen:
    """The runs of the setting with the highest mean of the `metric` on validation examples.

    condition, setting: {key of the grid: value}. tried: number of settings. edges: keys whose chosen number is the
    smallest or largest of three or more, or is near an end of a range. failing: keys at an end of two or more numbers,
    if the metric on test examples is worse than the majority-class baseline, or than the training mean.
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

    keys: keys of the grid. apart: the keys that are conditions. grid: {key or NAME:key: values, or a range}.
    """
    metrics = {repr(values_of(alike[0], apart)): judged_alike(alike) for alike in by_condition(groups, apart)}
    together: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        where = repr(values_of(group, apart))
        if metrics[where]:
            together.setdefault((_algorithm_of(group), where), []).append(group)
    best = (_best(alike, metrics[where], keys, apart, grid or {}) for (_, where), alike in together.items())
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
    runs = max(len(group.runs) for group in alike)
    means = [
        spread(group.values(f"{BEST}/val/{metric}"))[0] if len(group.runs) == runs else math.nan for group in alike
    ]
    if all(map(math.isnan, means)):
        return None
    best = alike[max(range(len(alike)), key=lambda at: -math.inf if math.isnan(means[at]) else rank(metric, means[at]))]
    mine = [key for key in keys if key not in apart]
    settings = [values_of(group, mine) for group in alike]
    chosen, algorithm_grid = values_of(best, mine), own_grid(grid, str(best.first.config["algorithm"]["name"]))
    ends = {
        key: _ended(chosen.get(key), [one.get(key) for one in settings], algorithm_grid.get(key, ())) for key in mine
    }
    failing = (metric == PLAIN and _below_constant(best)) or (metric == RMSE and _above_mean(best))
    return Chosen(
        _algorithm_of(best),
        metric,
        values_of(best, apart),
        chosen,
        best,
        len(alike),
        tuple(key for key, count in ends.items() if count > 2),
        tuple(key for key, count in ends.items() if failing and count > 1),
    )


def _ended(chosen: object, tried: Sequence[object], values: Sequence[str]) -> float:
    """Number of tried numbers if the chosen one is an end of them, infinite for the end of a range, else 0."""
    numbers = {value for value in tried if is_number(value)}
    if not is_number(chosen):
        return 0
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


_CONSTANT = {False: "the most frequent class", True: "the mean"}


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
    """ "fedavg with lr = 0.1, …" for these keys of each choice."""
    return ", ".join(
        dict.fromkeys(f"{one.algorithm} with {said({key: one.setting[key]})}" for one in choices for key in keys(one))
    )


def table(choices: Sequence[Chosen], columns: Mapping[str, str]) -> ResultTable:
    """A row for each choice; columns: {metric: heading}."""
    apart = list(dict.fromkeys(key for one in choices for key in one.condition))
    tuned = any(one.setting for one in choices)
    shown = [name for name in columns if any(value is not None for one in choices for value in one.group.values(name))]
    rows = [
        (
            Cell(one.algorithm),
            *(Cell(str(one.condition.get(key, ""))) for key in apart),
            *([Cell(said(one.setting) or "-")] if tuned else []),
            *(measured(one.group.values(name), number) for name in shown),
        )
        for one in choices
    ]
    words = ("algorithm", *map(short, apart), *(["setting, by validation"] if tuned else []))
    return ResultTable((*words, *(columns[name] for name in shown)), tuple(rows), words=len(words))


# ----------------------------------------------------------------------------------------------------
# A sweep as an array of jobs: the script for Slurm.


_WRITER_OPTIONS = ("--slurm", "--shard")  # options of the command that writes the script, not of its jobs


def script(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> str:
    """The script of an array of `tasks` jobs, each with its shard of the sweep of the command `words`. Each job makes
    `jobs` runs at a time, on the same number of cores."""
    again = shlex.join([sys.executable, "-m", "fedweave", *_without(words)])
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=fedweave-{folder.name}",
        f"#SBATCH --array=1-{tasks}",
        f"#SBATCH --cpus-per-task={jobs}",
        f"#SBATCH --output={shlex.quote(str(folder.absolute() / 'slurm-%A_%a.log'))}",
        "# Partition, account, memory and time are your cluster's: add #SBATCH lines, or give them to sbatch.",
        "set -e",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"{again} --shard $SLURM_ARRAY_TASK_ID/{tasks}",
    ]
    return "\n".join(lines) + "\n"


def save(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> tuple[str, str]:
    """Write the script into the sweep's folder; returns instructions for before and after the jobs.

    Raises:
        UserError: the folder cannot be written.
    """
    path = folder / "sweep.sbatch"
    text = script(words, tasks, jobs, folder).encode()
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    write(path, lambda file: file.write(text))
    return f"start it with: sbatch {path}", f"once all jobs have ended: {afterwards(words)}"


def afterwards(words: Sequence[str]) -> str:
    """The command that makes table and page once all jobs have ended."""
    return shlex.join(["fedweave", *_without(words)])


def _without(words: Sequence[str]) -> list[str]:
    remaining, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] not in _WRITER_OPTIONS:
            remaining.append(word)
        skip = not skip and word in _WRITER_OPTIONS
    return remaining
