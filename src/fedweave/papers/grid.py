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
        from fedweave import datasets

        lacks = [unknown(section, document.get(section, {})) for section in REGISTRIES]
        if any(lacks):
            return "; ".join(filter(None, lacks))
        key = json.dumps(document["data"], sort_keys=True)
        if key not in self._absent:
            self._absent[key] = ""
            try:
                datasets.load(**document["data"])
            except DataError as error:
                self._absent[key] = str(error).splitlines()[0].rstrip(".")
        return self._absent[key]


def plan(table: PaperTable, out: Path, stock: Stock, seeds: Sequence[int] | None = None) -> tuple[PlannedCell, ...]:
    """The runs of every cell, in `out`/runs; cells with the same experiment share them.

    seeds: seeds to use instead of the table's own number of seeds.
    """
    known: dict[str, PlannedRun] = {}  # by its document, because resolving a document is slow

    def run_of(document: Document, seed: int) -> PlannedRun:
        evaluation = {**document.get("evaluation", {}), "alone": False}  # papers' tables do not have it
        document = document | {"seed": seed, "evaluation": evaluation}
        key = json.dumps(document, sort_keys=True)
        if key not in known:
            known[key] = plan_run(document, out / "runs")
        return known[key]

    planned = []
    for cell in table.cells:
        documents = [cell.document] if cell.baseline is None else [cell.document, cell.baseline]
        try:
            lacks = [lack for lack in map(stock.lacks, documents) if lack]
            if lacks:
                planned.append(PlannedCell(cell, (), f"not available: {lacks[0]}"))
                continue
            cell_seeds = seeds or range(cell.seeds or table.seeds)
            runs = [tuple(run_of(document, seed) for seed in cell_seeds) for document in documents]
        except ConfigError as error:
            planned.append(PlannedCell(cell, (), f"failed: {error}"))
            continue
        planned.append(PlannedCell(cell, runs[0], baseline=runs[1] if cell.baseline is not None else ()))
    return tuple(planned)


def quick(table: PaperTable, stock: Stock) -> PaperTable:
    """A quick look of some minutes: one seed, `table.quick` times fewer rounds, and the first available data set."""
    names = list(dict.fromkeys(cell.document["data"]["name"] for cell in table.cells))
    available = [cell.document["data"]["name"] for cell in table.cells if not stock.lacks(cell.document)]
    chosen = min(available, key=names.index, default=names[0])

    def shorten(document: Document) -> Document:
        """Fewer rounds, evaluated at least twice if the whole run is evaluated on its way."""
        rounds = max(1, document["rounds"] // table.quick)
        document = document | {"rounds": rounds}
        if "eval_every" in document:
            document["eval_every"] = min(document["eval_every"], max(1, rounds // 2))
        return document

    cells = []
    for cell in table.cells:
        if cell.document["data"]["name"] == chosen:
            baseline = cell.baseline and shorten(cell.baseline)
            cells.append(replace(cell, document=shorten(cell.document), baseline=baseline, seeds=0))
    return replace(table, cells=tuple(cells), seeds=1)


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
    names: set[str] = set()
    for cell in planned:
        names |= {run.name for run in (*cell.runs, *cell.baseline)}
    return len(names)


def unknown(section: str, table: Values) -> str:
    """What this version lacks of a document's section: its name, or else some of its settings; "" if it has all."""
    kinds, name = registry(section), table.get("name", DEFAULT_NAMES.get(section))
    if name not in kinds:
        return f"there is no {_NOUNS.get(section, section)} {name!r} yet"
    settings = parameters(section, kinds[name])
    keys = [key for key in table if key not in settings and key not in ("name", "path")]
    return f"{name} has no {', '.join(keys)} yet" if keys else ""
