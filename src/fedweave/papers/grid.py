"""From a table to its runs: which experiments this version can run, where their results are, and which are finished."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fedweave.core.types import Values
from fedweave.errors import ConfigError, DataError, FedweaveError
from fedweave.experiment.config import Config, Document, parameters, registry, resolve
from fedweave.experiment.config.plugins import DEFAULT_NAMES, REGISTRIES
from fedweave.experiment.runs.resuming import examine
from fedweave.papers.paper import PaperCell, PaperTable

_NOUNS = {"data": "data set"}


@dataclass(frozen=True)
class PlannedRun:
    """One experiment with one seed; `name` has algorithm, data set, seed and a hash of all other settings.

    outdated: whether its directory holds results of other code or data, which the run replaces.
    """

    name: str
    config: Config
    directory: Path
    outdated: bool = False

    def finished(self) -> bool:
        """Whether its directory holds its final result. A faulty directory counts as unfinished: running it shows the
        fault."""
        if self.outdated:
            return False
        with suppress(FedweaveError):
            return examine(self.config, self.directory, resume=True) is not None
        return False


@dataclass(frozen=True)
class PlannedCell:
    """A cell and its runs, one per seed, and the runs of its baseline if it has one; without runs, `status` has the
    reason."""

    cell: PaperCell
    runs: tuple[PlannedRun, ...]
    status: str = ""
    baseline: tuple[PlannedRun, ...] = ()

    @property
    def needed(self) -> list[tuple[PlannedRun, ...]]:
        """For each seed, the runs from which the cell's number is read."""
        return list(zip(self.runs, self.baseline, strict=True)) if self.baseline else [(run,) for run in self.runs]


class Stock:
    """Which of the experiments' plug-ins this version has, and which data sets are available; each is looked up
    once."""

    def __init__(self) -> None:
        self._absent: dict[str, str] = {}

    def lacks(self, document: Document) -> str:
        """What `document` needs and this version or this machine lacks; "" if it has all."""
        missing = [lack for section in REGISTRIES if (lack := unknown(section, document.get(section, {})))]
        return "; ".join(missing) or self._no_data(document["data"])

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


def plan(table: PaperTable, out: Path, stock: Stock, seeds: Sequence[int] | None = None) -> tuple[PlannedCell, ...]:
    """The runs of every cell, in `out`/runs; cells with the same experiment share them.

    seeds: seeds to use instead of the table's own number of seeds.
    """
    known: dict[str, PlannedRun] = {}
    return tuple(
        _planned(cell, seeds or range(cell.seeds or table.seeds), out / "runs", stock, known) for cell in table.cells
    )


def quick(table: PaperTable, stock: Stock) -> PaperTable:
    """A quick look of some minutes: one seed, `table.quick` times fewer rounds, and the first available data set."""
    names = list(dict.fromkeys(cell.document["data"]["name"] for cell in table.cells))
    at_hand = [cell.document["data"]["name"] for cell in table.cells if not stock.lacks(cell.document)]
    chosen = min(at_hand, key=names.index, default=names[0])
    cells = tuple(_shortened(cell, table.quick) for cell in table.cells if cell.document["data"]["name"] == chosen)
    return replace(table, cells=cells, seeds=1)


def unfinished(planned: Iterable[PlannedCell]) -> list[PlannedRun]:
    """The runs still to do, each once, every experiment's first seed before the second seeds."""
    runs = {run.name: (at, run) for cell in planned for at, needed in enumerate(cell.needed) for run in needed}
    return [run for _, run in sorted(runs.values(), key=lambda item: item[0]) if not run.finished()]


def count(planned: Iterable[PlannedCell]) -> int:
    """How many different runs there are."""
    return len({run.name for cell in planned for needed in cell.needed for run in needed})


def unknown(section: str, table: Values) -> str:
    """What this version lacks of a document's section: its name, or else some of its settings; "" if it has all."""
    kinds, name = registry(section), table.get("name", DEFAULT_NAMES.get(section))
    if name not in kinds:
        return f"there is no {_NOUNS.get(section, section)} {name!r} yet"
    settings = parameters(section, kinds[name])
    keys = [key for key in table if key not in settings and key not in ("name", "path")]
    return f"{name} has no {', '.join(keys)} yet" if keys else ""


def _planned(
    cell: PaperCell, seeds: Sequence[int], folder: Path, stock: Stock, known: dict[str, PlannedRun]
) -> PlannedCell:
    try:
        documents = [cell.document] if cell.baseline is None else [cell.document, cell.baseline]
        if lack := next(filter(None, map(stock.lacks, documents)), ""):
            return PlannedCell(cell, (), f"not available: {lack}")
        runs = [tuple(_run(document | {"seed": seed}, folder, known) for seed in seeds) for document in documents]
        return PlannedCell(cell, runs[0], baseline=runs[1] if runs[1:] else ())
    except ConfigError as error:
        return PlannedCell(cell, (), f"failed: {error}")


def _run(document: Document, folder: Path, known: dict[str, PlannedRun]) -> PlannedRun:
    """The run of a document, looked up among the `known` ones, because resolving a document is slow."""
    key = json.dumps(document, sort_keys=True)
    if key not in known:
        known[key] = planned_run(document, folder)
    return known[key]


def planned_run(document: Document, folder: Path) -> PlannedRun:
    """The run of a document, kept in `folder`.

    Raises:
        ConfigError: the document is not valid.
    """
    config = resolve(document)
    alike = {key: value for key, value in config.plain().items() if key != "seed"}
    digest = hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{config.algorithm.label}-{config.data.label}-s{config.general.seed}-{digest}"
    return PlannedRun(name, config, folder / name)


def _shortened(cell: PaperCell, times: int) -> PaperCell:
    """The cell with fewer rounds, evaluated at least twice if the whole run is evaluated on its way."""

    def short(document: Document) -> Document:
        rounds = max(1, document["rounds"] // times)
        every = {"eval_every": min(document["eval_every"], max(1, rounds // 2))} if "eval_every" in document else {}
        return document | {"rounds": rounds} | every

    return replace(cell, document=short(cell.document), baseline=cell.baseline and short(cell.baseline), seeds=0)
