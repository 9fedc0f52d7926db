"""From a table to its runs: what can be run, where its results are kept, and which of them are there."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedweave.config import Config, Document, parameters, registry, resolve
from fedweave.config.plugins import DEFAULT_NAMES, REGISTRIES
from fedweave.errors import ConfigError, DataError, FedweaveError
from fedweave.reproduce.paper import Cell, Table
from fedweave.runs.resuming import examine

QUICK = 10  # how many times fewer rounds a quick look has
_NOUNS = {"data": "data set"}


@dataclass(frozen=True)
class Run:
    """One experiment with one seed; `name` says algorithm, data set, seed and a hash of all other settings."""

    name: str
    config: Config
    directory: Path

    def finished(self) -> bool:
        """Whether its directory holds its final result; what is wrong with a directory, running it will say."""
        with suppress(FedweaveError):
            return examine(self.config, self.directory, resume=True) is not None
        return False


@dataclass(frozen=True)
class Planned:
    """A cell and its runs, one per seed; without runs, `status` says why there are none."""

    cell: Cell
    runs: tuple[Run, ...]
    status: str = ""


class Stock:
    """What of the experiments' names this version has, and which data sets are at hand; each is looked for once."""

    def __init__(self) -> None:
        self._absent: dict[str, str] = {}

    def lacks(self, document: Document) -> str:
        """What `document` asks for and this version or this machine does not have; "" if it has all."""
        found = [lack for section in REGISTRIES if (lack := unknown(section, document.get(section, {})))]
        return "; ".join(found) or self._no_data(document["data"])

    def _no_data(self, section: Document) -> str:
        from fedweave import datasets

        key = json.dumps(section, sort_keys=True)
        if key not in self._absent:
            self._absent[key] = ""
            try:
                datasets.load(**section)
            except DataError as error:
                self._absent[key] = str(error).splitlines()[0].rstrip(".")
        return self._absent[key]


def plan(table: Table, out: Path, stock: Stock) -> tuple[Planned, ...]:
    """The runs of every cell, kept in `out`/runs; cells that ask for the same experiment share them."""
    return tuple(_planned(cell, table.seeds, out / "runs", stock) for cell in table.cells)


def quick(table: Table, stock: Stock) -> Table:
    """A look that takes about a minute: one seed, a tenth of the rounds, and the first data set that is at hand."""
    names = list(dict.fromkeys(cell.document["data"]["name"] for cell in table.cells))
    at_hand = [cell.document["data"]["name"] for cell in table.cells if not stock.lacks(cell.document)]
    chosen = min(at_hand, key=names.index, default=names[0])
    cells = tuple(_shortened(cell) for cell in table.cells if cell.document["data"]["name"] == chosen)
    return replace(table, cells=cells, seeds=1)


def unfinished(planned: Iterable[Planned]) -> list[Run]:
    """The runs still to do, each once, every experiment's first seed before the second seeds."""
    runs = {run.name: (at, run) for cell in planned for at, run in enumerate(cell.runs)}
    return [run for _, run in sorted(runs.values(), key=lambda item: item[0]) if not run.finished()]


def count(planned: Iterable[Planned]) -> int:
    """How many different runs there are."""
    return len({run.name for cell in planned for run in cell.runs})


def unknown(section: str, table: Mapping[str, Any]) -> str:
    """What of a document's section this version does not have: its name, or else some of its settings; "" if all is
    there."""
    kinds, name = registry(section), table.get("name", DEFAULT_NAMES.get(section))
    if name not in kinds:
        return f"there is no {_NOUNS.get(section, section)} {name!r} yet"
    own = parameters(section, kinds[name])
    keys = [key for key in table if key not in own and key not in ("name", "path")]
    return f"{name} has no {', '.join(keys)} yet" if keys else ""


def _planned(cell: Cell, seeds: int, folder: Path, stock: Stock) -> Planned:
    try:
        if lack := stock.lacks(cell.document):
            return Planned(cell, (), f"not available: {lack}")
        return Planned(cell, tuple(_run(cell.document | {"seed": seed}, folder) for seed in range(seeds)))
    except ConfigError as error:
        return Planned(cell, (), f"failed: {error}")


def _run(document: Document, folder: Path) -> Run:
    config = resolve(document)
    alike = {key: value for key, value in config.plain().items() if key != "seed"}
    digest = hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{config.algorithm.name}-{config.data.name}-s{config.general.seed}-{digest}"
    return Run(name, config, folder / name)


def _shortened(cell: Cell) -> Cell:
    return replace(cell, document=cell.document | {"rounds": max(1, cell.document["rounds"] // QUICK)})
