"""From a table to its runs: which experiments this version can run, where their results are, and which are finished."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedweave.core.types import Values
from fedweave.errors import ConfigError, DataError
from fedweave.experiment.config import Document, parameters, registry
from fedweave.experiment.config.plugins import DEFAULT_NAMES, REGISTRIES
from fedweave.papers.paper import PaperCell, PaperTable
from fedweave.sweeps.runs import PlannedRun, plan_run

_NOUNS = {"data": "data set"}


@dataclass(frozen=True)
class PlannedCell:
    """A cell and its runs, one per seed, and the runs of its baseline if it has one; without runs, `status` has the
    reason."""

    cell: PaperCell
    runs: tuple[PlannedRun, ...]
    status: str = ""
    baseline: tuple[PlannedRun, ...] = ()

    @property
    def runs_by_seed(self) -> list[tuple[PlannedRun, ...]]:
        """For each seed, the runs from which the cell's number is read."""
        return list(zip(self.runs, self.baseline, strict=True)) if self.baseline else [(run,) for run in self.runs]


class Stock:
    """Which of the experiments' plug-ins this version has, and which data sets are available; each is looked up
    once."""

    def __init__(self) -> None:
        self._absent: dict[str, str] = {}

    def lacks(self, document: Document) -> str:
        """What `document` needs and this version or this machine lacks; "" if it has all."""
        lacks = [unknown(section, document.get(section, {})) for section in REGISTRIES]
        return "; ".join(filter(None, lacks)) or self._no_data(document["data"])

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
    cells = []
    for cell in table.cells:
        cell_seeds = seeds or range(cell.seeds or table.seeds)
        cells.append(_plan_cell(cell, cell_seeds, out / "runs", stock, known))
    return tuple(cells)


def quick(table: PaperTable, stock: Stock) -> PaperTable:
    """A quick look of some minutes: one seed, `table.quick` times fewer rounds, and the first available data set."""
    names = list(dict.fromkeys(cell.document["data"]["name"] for cell in table.cells))
    available = [cell.document["data"]["name"] for cell in table.cells if not stock.lacks(cell.document)]
    chosen = min(available, key=names.index, default=names[0])
    cells = tuple(_shorten(cell, table.quick) for cell in table.cells if cell.document["data"]["name"] == chosen)
    return replace(table, cells=cells, seeds=1)


def unfinished(planned: Iterable[PlannedCell]) -> list[PlannedRun]:
    """The runs still to do, each once, every experiment's first seed before the second seeds."""
    runs_by_name: dict[str, tuple[int, PlannedRun]] = {}
    for cell in planned:
        for at, runs in enumerate(cell.runs_by_seed):
            runs_by_name |= {run.name: (at, run) for run in runs}
    in_order = sorted(runs_by_name.values(), key=lambda item: item[0])
    return [run for _, run in in_order if not run.finished()]


def count(planned: Iterable[PlannedCell]) -> int:
    """How many different runs there are."""
    return len({run.name for cell in planned for run in (*cell.runs, *cell.baseline)})


def unknown(section: str, table: Values) -> str:
    """What this version lacks of a document's section: its name, or else some of its settings; "" if it has all."""
    kinds, name = registry(section), table.get("name", DEFAULT_NAMES.get(section))
    if name not in kinds:
        return f"there is no {_NOUNS.get(section, section)} {name!r} yet"
    settings = parameters(section, kinds[name])
    keys = [key for key in table if key not in settings and key not in ("name", "path")]
    return f"{name} has no {', '.join(keys)} yet" if keys else ""


def _plan_cell(
    cell: PaperCell, seeds: Sequence[int], folder: Path, stock: Stock, known: dict[str, PlannedRun]
) -> PlannedCell:
    documents = [cell.document] if cell.baseline is None else [cell.document, cell.baseline]
    try:
        for document in documents:
            lack = stock.lacks(document)
            if lack:
                return PlannedCell(cell, (), f"not available: {lack}")
        runs = [tuple(_run(document | {"seed": seed}, folder, known) for seed in seeds) for document in documents]
    except ConfigError as error:
        return PlannedCell(cell, (), f"failed: {error}")
    return PlannedCell(cell, runs[0], baseline=runs[1] if cell.baseline is not None else ())


def _run(document: Document, folder: Path, known: dict[str, PlannedRun]) -> PlannedRun:
    """The run of a document, looked up among the `known` ones, because resolving a document is slow."""
    key = json.dumps(document, sort_keys=True)
    if key not in known:
        known[key] = plan_run(document, folder)
    return known[key]


def _shorten(cell: PaperCell, times: int) -> PaperCell:
    """The cell with fewer rounds, evaluated at least twice if the whole run is evaluated on its way."""

    def shorten(document: Document) -> Document:
        rounds = max(1, document["rounds"] // times)
        document = document | {"rounds": rounds}
        if "eval_every" in document:
            document["eval_every"] = min(document["eval_every"], max(1, rounds // 2))
        return document

    return replace(cell, document=shorten(cell.document), baseline=cell.baseline and shorten(cell.baseline), seeds=0)
