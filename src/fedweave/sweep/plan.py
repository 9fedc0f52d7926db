"""The runs of a sweep: every algorithm with every combination of its settings, and every seed. Also the choice among
their settings, and the script that makes the runs on a cluster.

Here a grid is {key: values to try as TOML}. The key "NAME:section.key" is only for the algorithm NAME, whose values it
gives instead of the values for all. ["1e-3..1"] and ["1e-3..1", "log"] are a range.
"""

import itertools
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
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
from fedweave.report.conditions import in_words, short, values_of
from fedweave.report.reading import Group, common_selection_metric, spread

MOST = 10_000  # largest number of runs


def planned(
    config: Path, out: Path, seeds: str, algorithms: str, settings: Sequence[str], grid: Sequence[str]
) -> tuple[list[PlannedRun], list[str]]:
    """The runs in `out`/runs, each once: all combinations with the first seed, then all with the second, and so on.
    Also notes on settings that some of the algorithms do not have.

    seeds:      "0-4" or "0,3,7".
    algorithms: names with commas between, "" for the configuration's own.
    settings:   as in `fedweave run --set`, for the algorithms that have the key.
    grid:       "section.key=value,value,…" or "NAME:section.key=value,…"; an algorithm without the key runs once. The
                configuration's [algorithm] tune is tried too, unless the grid has the key.

    Raises:
        ConfigError: a name, key or value is not valid. UserError: there are too many runs.
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
    """The grid of these options, with the values of [algorithm] tune for keys that it does not have.

    Raises:
        ConfigError: the grid has seeds.
    """
    if seeded := [text for text in (*settings, *grid) if scoped(_key_of(text))[1] == "seed"]:
        raise ConfigError(f"{seeded[0]}: give the seeds of a sweep with --seeds, such as --seeds 5,6.")
    of_file = {f"algorithm.{key}": [inline(value) for value in values] for key, values in tuned(load(config)).items()}
    tried = of_file | dict(_key_and_values(text) for text in grid)
    return {current_path(key): values for key, values in tried.items()}


def _key_and_values(text: str) -> tuple[str, list[str]]:
    """ "algorithm.lr=.01,.003" as the key and TOML values."""
    key, equals, values = text.partition("=")
    parts = [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]  # not at commas in lists
    if not equals or not key.strip() or not all(parts):
        raise ConfigError(f"--grid {text}: write section.key=value,value, for example --grid algorithm.lr=.01,.003")
    return key.strip(), parts


def _key_of(text: str) -> str:
    return text.partition("=")[0].strip()


def scoped(key: str) -> tuple[str, str]:
    """The algorithm that a key of the grid is for, "" for all algorithms, and the key itself."""
    name, _, setting = key.rpartition(":")
    return name, setting


def own_grid(grid: Mapping[str, Sequence[str]], algorithm: str) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for one algorithm: its own values replace the values for all algorithms."""
    result = {key: values for key, values in grid.items() if not scoped(key)[0]}
    for key, values in grid.items():
        name, setting = scoped(key)
        if name and lookup("--grid", "algorithm", name)[0] == algorithm:
            result[setting] = values
    return result


def check_scopes(grid: Mapping[str, Sequence[str]], documents: Sequence[Document]) -> None:
    """Raise an error if a key of the grid is for an algorithm that is not run, or that does not have the key.

    Raises:
        ConfigError: names the key, and the algorithms of the sweep if the key is for another one.
    """
    for key in grid:
        name, setting = scoped(key)
        if not name:
            continue
        wanted = lookup(f"--grid {key}", "algorithm", name)[0]
        names = [_algorithm(document)[0] for document in documents]
        if wanted not in names:
            swept = ", ".join(dict.fromkeys(names))
            raise ConfigError(f"--grid {key}: {name} is not among the algorithms of this sweep: {swept}.")
        if not takes(documents[names.index(wanted)], setting):
            raise ConfigError(f"--grid {key}: {name} has no such setting.")


def range_of(values: Sequence[str]) -> tuple[float, float, bool] | None:
    """(low, high, whether logarithmic) of the range ["1e-3..1", "log"]; None for listed values."""
    first, dots, last = values[0].partition("..")
    logarithmic = values[1:] == ["log"]
    if not dots or not (logarithmic or len(values) == 1):
        return None
    with suppress(ValueError):
        low, high = float(first), float(last)
        if low < high and (low > 0 or not logarithmic):
            return low, high, logarithmic
    return None


def is_whole(document: Document, key: str) -> bool:
    """Whether a setting of [algorithm] or [model] accepts only whole numbers."""
    section, _, name = key.partition(".")
    accepted = parameters(section, resolve(document).sections[section].kind)
    return name in accepted and not accepts(accepted[name], 0.5)


def algorithms_of(config: Path, algorithms: str, settings: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The document of every algorithm, with the settings that it has; and notes on the settings that it lacks."""
    base, documents, notes = load(config), list[Document](), list[str]()
    tuned(base)  # removes the values to try, which are not a setting
    names = [name.strip() for name in algorithms.split(",")] if algorithms else [""]  # "": the configuration's own
    for name in names:
        document, exchanged = with_algorithm(base, name, "--algorithms") if algorithms else (base, Exchanged())
        document = deepcopy(document)
        lacking = [text for text in settings if not takes(document, current_path(_key_of(text)), "--set")]
        for text in settings:
            if text not in lacking:
                override(document, text)
        documents.append(document)
        notes += _sharing_notes(name, exchanged, lacking, document)
    return documents, notes


def _sharing_notes(name: str, exchanged: Exchanged, lacking: Sequence[str], document: Document) -> list[str]:
    """Notes on the settings of [algorithm] that the algorithm `name` keeps or lacks.

    lacking: the texts of --set that it does not take.
    """
    unused = [f"{name} does not take {', '.join(f'--set {text}' for text in lacking)}"] if lacking else []
    return [f"{note}." for note in (*unused, *exchanged.notes(name, resolve(document).algorithm.values))]


def _algorithm(document: Document) -> tuple[str, type]:
    """The registered name of a document's algorithm, and its plug-in."""
    return lookup("algorithm.name", "algorithm", document.get("algorithm", {}).get("name", DEFAULT_NAMES["algorithm"]))


def takes(document: Document, key: str, option: str = "--grid") -> bool:
    """Whether the document's algorithm has the key; every algorithm has a key outside [algorithm].

    Raises:
        ConfigError: no algorithm has the key; names the command-line `option` that it is from.
    """
    section, _, name = key.partition(".")
    if section != "algorithm" or "." in name:
        return True
    algorithm, kind = _algorithm(document)
    if name in parameters("algorithm", kind):
        return True
    if not any(name in parameters("algorithm", other) for other in registry("algorithm").values()):
        raise ConfigError(
            f"{option} {key}: no algorithm has the setting {name!r}. Choose one of "
            f"`fedweave list algorithms {algorithm}`."
        )
    return False


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


def keys_of(grid: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The settings that the grid tries. For a whole section, such as "partition" with tables as values, these are the
    keys in which the tables differ."""
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


def up_to_date(runs: Sequence[PlannedRun], overwrite: bool) -> list[PlannedRun]:
    """The runs; those whose tables or plug-ins have changed since they began are marked outdated. They are to be
    repeated, because their results are not comparable with the results of the new tables and plug-ins.

    Raises:
        UserError: there are such runs, and `overwrite` is false; names the changes.
    """
    known: dict[str, dict[str, str]] = {}
    outdated = {run.name: changed for run in runs if (changed := _changed(run, known))}
    if outdated and not overwrite:
        what = ", ".join(dict.fromkeys(one for changed in outdated.values() for one in changed))
        finished = sum(run.finished() for run in runs if run.name not in outdated)
        raise UserError(
            f"{what} of {counted(len(outdated), 'run')} has changed since, such as of {next(iter(outdated))}. "
            f"--overwrite repeats these and keeps the others, {finished} of them done. Or sweep into another directory "
            "with --out."
        )
    return [replace(run, outdated=run.name in outdated) for run in runs]


def _changed(run: PlannedRun, known: dict[str, dict[str, str]]) -> list[str]:
    """The tables and plug-ins that have changed since a run began; known: digests of data that has been read."""
    data, folder, seed = run.config.data, run.config.folder, run.config.general.seed
    code = plugins.digests(run.config.plain())
    if (folder is None and not code) or not (run.directory / CHECKPOINT).exists():
        return []
    crossing = run.config.external != "refuse"  # then the data depends on more than its own settings
    key = repr((run.config.plain() | {"rounds": 0} if crossing else data.plain(), folder, seed))
    if key not in known:
        if folder is None:
            known[key] = {}
        elif crossing:
            known[key] = digests(prepared(run.config)[0])
        else:
            known[key] = digests(datasets.load(data.name, path=folder, seed=seed, **data.values))
    with suppress(FedweaveError):  # the run itself will report a fault of its directory
        return changes(Checkpoint.load(run.directory / CHECKPOINT).source, known[key] | code)
    return []


# ----------------------------------------------------------------------------------------------------
# Each algorithm's setting, chosen by validation, in every condition in which algorithms are compared.


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


# ----------------------------------------------------------------------------------------------------
# A sweep as an array of jobs: the script for Slurm.


_WRITER_OPTIONS = ("--slurm", "--shard")  # options of the command that writes the script, not of its jobs


def script(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> str:
    """The script of an array of `tasks` jobs, each with its shard of the sweep of the command `words`. Each job makes
    `jobs` runs at a time, on the same number of cores."""
    command = shlex.join([sys.executable, "-m", "fedweave", *_of_jobs(words)])
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=fedweave-{folder.name}",
        f"#SBATCH --array=1-{tasks}",
        f"#SBATCH --cpus-per-task={jobs}",
        f"#SBATCH --output={shlex.quote(str(folder.absolute() / 'slurm-%A_%a.log'))}",
        "# Partition, account, memory and time are your cluster's: add #SBATCH lines, or give them to sbatch.",
        "set -e",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"{command} --shard $SLURM_ARRAY_TASK_ID/{tasks}",
    ]
    return "\n".join(lines) + "\n"


def save(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> tuple[str, str]:
    """Write the `script` into the sweep's folder; returns instructions for before and after the jobs.

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
    return shlex.join(["fedweave", *_of_jobs(words)])


def _of_jobs(words: Sequence[str]) -> list[str]:
    """The words without `_WRITER_OPTIONS` and their values."""
    remaining, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] not in _WRITER_OPTIONS:
            remaining.append(word)
        skip = not skip and word in _WRITER_OPTIONS
    return remaining
