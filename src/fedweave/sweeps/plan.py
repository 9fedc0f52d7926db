"""The runs of a sweep: every algorithm with every combination of its settings, and every seed.

Here a grid is {key: values to try as TOML}. The key "NAME:section.key" is only for the algorithm NAME, whose values it
gives instead of the values for all. ["1e-3..1"] and ["1e-3..1", "log"] are a range.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from fedweave import datasets
from fedweave.core import plugins
from fedweave.core.text import counted
from fedweave.datasets.contents import changes, digests
from fedweave.errors import ConfigError, FedweaveError, UserError, option
from fedweave.experiment.config import (
    Config,
    Document,
    Exchanged,
    load,
    override,
    parameters,
    pop_tune,
    registry,
    resolve,
    with_algorithm,
)
from fedweave.experiment.config.choices import accepts
from fedweave.experiment.config.plugins import DEFAULT_NAMES, lookup
from fedweave.experiment.config.toml import inline
from fedweave.experiment.loading import load_data
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.sweeps.runs import PlannedRun, plan_run

MAX_RUNS = 10_000


def plan_runs(
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
    whole_grid = grid_of_options(config, settings, grid)
    for key, values in whole_grid.items():
        if range_of(values):
            raise ConfigError(f"{of_grid(key)}: a range needs {option('search')}. Or list some values.")
    base_documents, notes = algorithm_documents(config, algorithms, settings)
    check_scopes(whole_grid, base_documents)
    documents = list[Document]()
    for document in base_documents:
        documents += combinations(document, whole_grid)
    seed_numbers = parse_seeds(seeds)
    number_of_runs = len(seed_numbers) * len(documents)
    if number_of_runs > MAX_RUNS:
        raise UserError(f"these are {number_of_runs:,} runs; ask for at most {MAX_RUNS:,}.")
    runs = [plan_run(document | {"seed": seed}, out / "runs") for seed in seed_numbers for document in documents]
    for run in runs[: len(documents)]:
        run.config.check_made()
    return list({run.name: run for run in runs}.values()), notes


def grid_of_options(config: Path, settings: Sequence[str], grid: Sequence[str]) -> dict[str, list[str]]:
    """The grid of these options, with the values of [algorithm] tune for keys that it does not have.

    Raises:
        ConfigError: the grid has seeds.
    """
    for text in (*settings, *grid):
        if split_scope(_key_of(text))[1] == "seed":
            raise ConfigError(
                f"{text}: give the seeds of a sweep as {option('seeds')}, such as {option('seeds', '5,6')}."
            )
    result = {f"algorithm.{key}": list(map(inline, values)) for key, values in pop_tune(load(config)).items()}
    for text in grid:
        key, values = _key_and_values(text)
        result[key] = values
    return result


def _key_and_values(text: str) -> tuple[str, list[str]]:
    """ "algorithm.lr=.01,.003" as the key and TOML values."""
    key, equals, values = text.partition("=")
    parts = [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]  # not at commas in lists
    if not equals or not key.strip() or not all(parts):
        raise ConfigError(f"{option('grid', text)}: write section.key=value,value, for example algorithm.lr=.01,.003")
    return key.strip(), parts


def of_grid(key: str) -> str:
    """A key of the grid as the caller gives it."""
    return option("grid", key, f"grid[{key!r}]")


def _key_of(text: str) -> str:
    return text.partition("=")[0].strip()


def split_scope(key: str) -> tuple[str, str]:
    """The algorithm that a key of the grid is for, "" for all algorithms, and the key itself."""
    name, _, setting = key.rpartition(":")
    return name, setting


def algorithm_grid(grid: Mapping[str, Sequence[str]], algorithm: str) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for one algorithm: its own values replace the values for all algorithms."""
    result = {key: values for key, values in grid.items() if not split_scope(key)[0]}
    for key, values in grid.items():
        name, setting = split_scope(key)
        if name and lookup(option("grid"), "algorithm", name)[0] == algorithm:
            result[setting] = values
    return result


def check_scopes(grid: Mapping[str, Sequence[str]], documents: Sequence[Document]) -> None:
    """Raise an error if a key of the grid is for an algorithm that is not run, or that does not have the key.

    Raises:
        ConfigError: names the key, and the algorithms of the sweep if the key is for another one.
    """
    for key in grid:
        name, setting = split_scope(key)
        if not name:
            continue
        algorithm = lookup(of_grid(key), "algorithm", name)[0]
        names = [_algorithm(document)[0] for document in documents]
        if algorithm not in names:
            swept = ", ".join(dict.fromkeys(names))
            raise ConfigError(f"{of_grid(key)}: {name} is not among the algorithms of this sweep: {swept}.")
        if not takes(documents[names.index(algorithm)], setting):
            raise ConfigError(f"{of_grid(key)}: {name} has no such setting.")


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


def algorithm_documents(config: Path, algorithms: str, settings: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The document of every algorithm, with the settings that it has; and notes on the settings that it lacks."""
    base = load(config)
    pop_tune(base)  # removes the values to try, which are not a setting
    names = [name.strip() for name in algorithms.split(",")] if algorithms else [""]  # "": the configuration's own
    documents = []
    notes: list[str] = []
    for name in names:
        document, exchanged = with_algorithm(base, name, option("algorithms")) if algorithms else (base, Exchanged())
        document = deepcopy(document)
        lacking = []
        for text in settings:
            if not takes(document, _key_of(text), option("set", _key_of(text), f"settings, {_key_of(text)}")):
                lacking.append(text)
        for text in settings:
            if text not in lacking:
                override(document, text)
        documents.append(document)
        if lacking:
            notes.append(f"{name} does not take {', '.join(lacking)} of {option('set', None, 'settings')}.")
        notes += [f"{note}." for note in exchanged.notes(name, _resolve(document, settings).algorithm.values)]
    return documents, notes


def _resolve(document: Document, settings: Sequence[str]) -> Config:
    """The experiment of a document with these settings.

    Raises:
        ConfigError: one is not valid; where its value is a list with commas, names the grid, which tries each.
    """
    try:
        return resolve(document)
    except ConfigError as error:
        for text in settings:
            key, _, value = text.partition("=")
            if error.code == "config.value" and "," in value and str(error).startswith(key):
                grid = option("grid", text, f"grid[{key.strip()!r}]")
                raise ConfigError(f"{error} To try each value: {grid}.", code=error.code) from error
        raise


def _algorithm(document: Document) -> tuple[str, type]:
    """The registered name of a document's algorithm, and its plug-in."""
    return lookup("algorithm.name", "algorithm", document.get("algorithm", {}).get("name", DEFAULT_NAMES["algorithm"]))


def takes(document: Document, key: str, where: str = "") -> bool:
    """Whether the document's algorithm has the key; every algorithm has a key outside [algorithm].

    Raises:
        ConfigError: no algorithm has the key; names `where` it is from, by default the grid.
    """
    section, _, name = key.partition(".")
    if section != "algorithm" or "." in name:
        return True
    algorithm, kind = _algorithm(document)
    if name in parameters("algorithm", kind):
        return True
    if not any(name in parameters("algorithm", other) for other in registry("algorithm").values()):
        raise ConfigError(
            f"{where or of_grid(key)}: no algorithm has the setting {name!r}. Choose one of "
            f"`fedweave list algorithms {algorithm}`."
        )
    return False


def grid_of(document: Document, grid: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for the document's algorithm, with the keys that it has."""
    its_grid = algorithm_grid(grid, _algorithm(document)[0])
    return {key: values for key, values in its_grid.items() if takes(document, key)}


def combinations(document: Document, grid: Mapping[str, Sequence[str]]) -> list[Document]:
    """The document with every combination of values of the keys that it has."""
    its_grid = grid_of(document, grid)
    documents = []
    for values in itertools.product(*its_grid.values()):
        variant = deepcopy(document)
        for key, value in zip(its_grid, values, strict=True):
            override(variant, f"{key}={value}")
        documents.append(variant)
    return documents


def parse_seeds(text: str) -> list[int]:
    """ "0-2,7" as [0, 1, 2, 7]."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MAX_RUNS:
            raise ConfigError(f"{option('seeds', text)}: write seeds such as 0-4 or 0,3,7.")
        numbers += range(first, last + 1)
    return list(dict.fromkeys(numbers))


def share(runs: Sequence[PlannedRun], text: str) -> list[PlannedRun]:
    """The runs of shard "i/n", i from 1 to n: every n-th one.

    Raises:
        ConfigError: the text is not a shard.
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
        setting = split_scope(key)[1]
        tables = _section_tables(key, values) if "." not in setting else []
        if not tables:
            keys.append(setting)
        for name in dict.fromkeys(name for table in tables for name in table):
            if any(table.get(name) != tables[0].get(name) for table in tables):
                keys.append(f"{key}.{name}")
    return tuple(dict.fromkeys(keys))


def _section_tables(key: str, values: Sequence[str]) -> list[Document]:
    """The values of a whole section; [] unless all are tables."""
    document: Document = {}
    tables = []
    for value in values:
        override(document, f"{key}={value}")
        tables.append(document[key])
    return tables if all(isinstance(table, dict) for table in tables) else []


def check_over(over: Sequence[str], keys: Sequence[str]) -> None:
    """Raise an error if a key to compare over is not in the grid.

    Raises:
        ConfigError: names the key, and the keys of the grid.
    """
    for key in over:
        if key not in keys:
            raise ConfigError(f"{option('over', key)}: the grid has no such key; it has {', '.join(keys) or 'none'}.")


def up_to_date(runs: Sequence[PlannedRun], overwrite: bool) -> list[PlannedRun]:
    """The runs; those whose tables or plug-ins have changed since they began are marked outdated. They are to be
    repeated, because their results are not comparable with the results of the new tables and plug-ins.

    Raises:
        UserError: there are such runs, and `overwrite` is false; names the changes.
    """
    digests_of_data: dict[str, dict[str, str]] = {}
    outdated: dict[str, list[str]] = {}  # {name of a run: what has changed}
    for run in runs:
        run_changes = _changes(run, digests_of_data)
        if run_changes:
            outdated[run.name] = run_changes
    if outdated and not overwrite:
        what = ", ".join(dict.fromkeys(itertools.chain(*outdated.values())))
        finished = sum(run.finished() for run in runs if run.name not in outdated)
        raise UserError(
            f"{what} of {counted(len(outdated), 'run')} has changed since, such as of {next(iter(outdated))}. "
            f"{option('overwrite', True)} repeats these and keeps the others, {finished} of them done. Or sweep into "
            f"another directory as {option('out')}."
        )
    return [replace(run, outdated=run.name in outdated) for run in runs]


def _changes(run: PlannedRun, digests_of_data: dict[str, dict[str, str]]) -> list[str]:
    """The tables and plug-ins that have changed since a run began.

    digests_of_data: digests of data that has been read for other runs, to which this run's are added.
    """
    config = run.config
    code = plugins.digests(config.plain())
    has_tables = config.folder is not None
    if (not has_tables and not code) or not (run.directory / CHECKPOINT).exists():
        return []
    digests_now = code
    if has_tables:
        crossing = config.external != "refuse"  # then the data depends on more than its own settings
        settings = config.plain() | {"rounds": 0} if crossing else config.data.plain()
        key = repr((settings, config.folder, config.general.seed))
        if key not in digests_of_data:
            if crossing:
                data = load_data(config)[0]
            else:
                values, seed = config.data.values, config.general.seed
                data = datasets.read(config.data.name, path=config.folder, seed=seed, **values)
            digests_of_data[key] = digests(data)
        digests_now = digests_of_data[key] | code
    with suppress(FedweaveError):  # the run itself will report a fault of its directory
        return changes(Checkpoint.load(run.directory / CHECKPOINT).source, digests_now)
    return []
