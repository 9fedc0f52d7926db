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
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.sweep.runs import PlannedRun, plan_run

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
    runs = [plan_run(document | {"seed": seed}, out / "runs") for seed in numbers for document in documents]
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
    return of_file | dict(_key_and_values(text) for text in grid)


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
        lacking = [text for text in settings if not takes(document, _key_of(text), "--set")]
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
            known[key] = digests(datasets.read(data.name, path=folder, seed=seed, **data.values))
    with suppress(FedweaveError):  # the run itself will report a fault of its directory
        return changes(Checkpoint.load(run.directory / CHECKPOINT).source, known[key] | code)
    return []
