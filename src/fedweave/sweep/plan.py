"""The runs of a sweep: every algorithm with every combination of settings that it takes, and every seed."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedweave import datasets
from fedweave.core import plugins
from fedweave.core.text import counted
from fedweave.datasets.contents import changes, digests
from fedweave.errors import ConfigError, FedweaveError, UserError
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
from fedweave.experiment.config.choice import accepts
from fedweave.experiment.config.plugins import DEFAULT_NAMES, lookup
from fedweave.experiment.config.toml import inline
from fedweave.experiment.prepared import prepared
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.papers.grid import PlannedRun, planned_run

MOST = 10_000  # runs


def planned(
    config: Path, out: Path, seeds: str, algorithms: str, settings: Sequence[str], grid: Sequence[str]
) -> tuple[list[PlannedRun], list[str]]:
    """The runs in `out`/runs, each once, every combination's first seed before the second seeds; and notes on settings
    that some of the algorithms do not have.

    seeds: "0-4" or "0,3,7". algorithms: names with commas between, "" for the configuration's own. settings: as those
    of `fedweave run --set`, for the algorithms that have the key. grid: "section.key=value,value,…"; an algorithm
    without the key runs once; [algorithm] tune of the configuration is likewise tried, where no grid has the key.
    "NAME:section.key=value,…" has the values of that algorithm, in the place of those for all.

    Raises:
        ConfigError: a name, key or value is not valid. UserError: nothing or too much is asked for.
    """
    tried = tries(config, settings, grid)
    if ranges := [key for key, values in tried.items() if range_of(values)]:
        raise ConfigError(f"--grid {ranges[0]}: values from a range are sought with --search N; or list some.")
    made, notes = algorithms_of(config, algorithms, settings)
    check_scopes(tried, made)
    documents = [one for document in made for one in combined(document, tried)]
    numbers = numbers_of(seeds)
    if len(numbers) * len(documents) > MOST:
        raise UserError(f"these are {len(numbers) * len(documents):,} runs; ask for at most {MOST:,}.")
    runs = [planned_run(document | {"seed": seed}, out / "runs") for seed in numbers for document in documents]
    for run in runs[: len(documents)]:
        run.config.check_made()
    return list({run.name: run for run in runs}.values()), notes


def tries(config: Path, settings: Sequence[str], grid: Sequence[str]) -> dict[str, list[str]]:
    """{key or NAME:key: values as TOML} of the grid, and of [algorithm] tune where no grid has the key.

    Raises:
        ConfigError: seeds are among them.
    """
    if seeded := [text for text in (*settings, *grid) if scoped(text.partition("=")[0].strip())[1] == "seed"]:
        raise ConfigError(f"{seeded[0]}: give the seeds of a sweep with --seeds, such as --seeds 5,6.")
    own = {f"algorithm.{key}": [inline(value) for value in values] for key, values in tuned(load(config)).items()}
    return own | dict(_values(text) for text in grid)


def scoped(key: str) -> tuple[str, str]:
    """The algorithm that a key of the grid is for, "" for all of them, and the key itself."""
    name, _, own = key.rpartition(":")
    return name, own


def own_grid(grid: Mapping[str, Sequence[str]], algorithm: str) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for one algorithm: those that it alone has take the place of those for all."""
    found = {key: values for key, values in grid.items() if not scoped(key)[0]}
    return found | {
        own: values
        for key, values in grid.items()
        for name, own in [scoped(key)]
        if name and lookup("--grid", "algorithm", name)[0] == algorithm
    }


def check_scopes(grid: Mapping[str, Sequence[str]], documents: Sequence[Document]) -> None:
    """Refuse a key for an algorithm that is not run, or that does not have the key.

    Raises:
        ConfigError: names the algorithms that are, or those that have the key.
    """
    for key in grid:
        name, own = scoped(key)
        if not name:
            continue
        wanted = lookup(f"--grid {key}", "algorithm", name)[0]
        if not (mine := [document for document in documents if _algorithm(document)[0] == wanted]):
            others = ", ".join(dict.fromkeys(_algorithm(document)[0] for document in documents))
            raise ConfigError(f"--grid {key}: {name} is not among the algorithms of this sweep: {others}.")
        if not takes(mine[0], own):
            raise ConfigError(f"--grid {key}: {name} has no such setting.")


def _algorithm(document: Document) -> tuple[str, type]:
    """The name of its algorithm, as it is kept, and its plug-in."""
    return lookup("algorithm.name", "algorithm", document.get("algorithm", {}).get("name", DEFAULT_NAMES["algorithm"]))


def is_whole(document: Document, key: str) -> bool:
    """Whether a setting of [algorithm] or [model] can have whole numbers alone."""
    section, _, name = key.partition(".")
    own = parameters(section, resolve(document).sections[section].kind)
    return name in own and not accepts(own[name], 0.5)


def range_of(values: Sequence[str]) -> tuple[float, float, bool] | None:
    """(least, most, whether by magnitude) of ["1e-3..1", "log"]; None of values that are listed."""
    low, dots, high = values[0].partition("..")
    with suppress(ValueError):
        ends = [float(end) for end in (low, high)] if dots else []
        if ends and ends[0] < ends[1] and values[1:] in ([], ["log"]) and (len(values) == 1 or ends[0] > 0):
            return ends[0], ends[1], len(values) > 1
    return None


def algorithms_of(config: Path, algorithms: str, settings: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The document of every algorithm, with those settings that it has; and notes on those that it does not have."""
    base, documents, notes = load(config), list[Document](), list[str]()
    tuned(base)  # which are values to try, not a setting
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
        notes += _told((name or "").strip(), exchanged, apart, document)
    return documents, notes


def keys_of(grid: Iterable[str]) -> tuple[str, ...]:
    """The keys of which any algorithm tries several values."""
    return tuple(dict.fromkeys(scoped(key)[1] for key in grid))


def check_over(over: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse a key to compare over of which no values are tried.

    Raises:
        ConfigError: names it, and those that are.
    """
    for key in over:
        if key not in keys:
            raise ConfigError(f"--over {key}: the grid has no such key; it has {', '.join(keys) or 'none'}.")


def share(runs: Sequence[PlannedRun], text: str) -> list[PlannedRun]:
    """The runs of shard "i/n", i from 1 to n: every n-th one.

    Raises:
        ConfigError: the text says no shard.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            f"--shard {text}: write the number of this shard and of all, from 1/4 to 4/4.", code="config.shard"
        )
    return list(runs[number - 1 :: count])


def _told(name: str, exchanged: Exchanged, apart: Sequence[str], document: Document) -> list[str]:
    """Sentences on what an algorithm keeps of [algorithm] and what not; apart: the --set that it does not take."""
    without = [f"{name} does not take {', '.join(f'--set {text}' for text in apart)}"] if apart else []
    return [f"{note}." for note in (*without, *exchanged.told(name, resolve(document).algorithm.values))]


def taken(document: Document, grid: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """{key: values} of the grid for the document's algorithm, of the keys that it can have."""
    own = own_grid(grid, _algorithm(document)[0])
    return {key: values for key, values in own.items() if takes(document, key)}


def combined(document: Document, grid: Mapping[str, Sequence[str]]) -> list[Document]:
    """The document with every combination of the values of those keys that it can have."""
    own, found = taken(document, grid), list[Document]()
    for chosen in itertools.product(*own.values()):
        changed = deepcopy(document)
        for key, value in zip(own, chosen, strict=True):
            override(changed, f"{key}={value}")
        found.append(changed)
    return found


def takes(document: Document, key: str, option: str = "--grid") -> bool:
    """Whether the algorithm has the key; any other key is for all, right or wrong."""
    section, _, name = key.partition(".")
    if section != "algorithm" or "." in name:
        return True
    own, kind = _algorithm(document)
    everybody = (parameters("algorithm", other) for other in registry("algorithm").values())
    if name in parameters("algorithm", kind):
        return True
    if not any(name in theirs for theirs in everybody):
        raise ConfigError(f"{option} {key}: no algorithm has the setting {name!r}; {own} has others.")
    return False


def _values(text: str) -> tuple[str, list[str]]:
    """ "algorithm.lr=.01,.003" as the key and TOML values."""
    key, equals, values = text.partition("=")
    found = [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]  # not at those in lists
    if not equals or not key.strip() or not all(found):
        raise ConfigError(f"--grid {text}: write section.key=value,value, for example --grid algorithm.lr=.01,.003")
    return key.strip(), found


def numbers_of(text: str) -> list[int]:
    """ "0-2,7" as [0, 1, 2, 7]."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MOST:
            raise ConfigError(f"--seeds {text}: write seeds such as 0-4 or 0,3,7.")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def up_to_date(runs: Sequence[PlannedRun], overwrite: bool) -> list[PlannedRun]:
    """The runs, with those to be done anew that tables or plug-ins of one's own have changed under: they would stand
    beside runs of the new.

    Raises:
        UserError: there are such runs, and they are not to be replaced; names what has changed.
    """
    known: dict[str, dict[str, str]] = {}
    found = {run.name: changed for run in runs if (changed := _changed(run, known))}
    if found and not overwrite:
        what = ", ".join(dict.fromkeys(one for changed in found.values() for one in changed))
        kept = sum(run.finished() for run in runs if run.name not in found)
        raise UserError(
            f"{what} of {counted(len(found), 'run')} has changed since, such as of {next(iter(found))}. --overwrite "
            f"does these anew and keeps the others, {kept} of them done; or sweep into another directory with --out."
        )
    return [replace(run, anew=run.name in found) for run in runs]


def _changed(run: PlannedRun, known: dict[str, dict[str, str]]) -> list[str]:
    """What is not as it was when a run was begun; known: digests of tables that have been read."""
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
    with suppress(FedweaveError):  # what is wrong with a directory, running it will say
        return changes(Checkpoint.load(run.directory / CHECKPOINT).source, known[key] | code)
    return []
