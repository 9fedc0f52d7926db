"""A small table to reproduce, and finished runs with made-up results."""

import json
from typing import Any

from fedweave.experiment.config import Document, dumps
from fedweave.papers.grid import Stock
from fedweave.papers.paper import PaperCell, PaperTable, Printed
from fedweave.papers.quantities import accuracy
from fedweave.sweeps.runs import PlannedRun

TINY: dict[str, Any] = {
    "rounds": 20,
    "eval_every": 0,
    "data": {"name": "synthetic", "nodes": 60, "classes": 3, "features": 6},
    "partition": {"clients": 2},
    "model": {"hidden": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1, "checkpoint_seconds": 0.0},
}


def document(**changes: Any) -> Document:
    """TINY with keys of sections changed."""
    return changed(TINY, **changes)


def changed(whole: Document, **changes: Any) -> Document:
    """A document with keys of sections changed."""
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in whole.items()}
    for key, value in changes.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) else value
    return found


def cell(row: str, paper: float | None = None, split: str = "global", **changes: Any) -> PaperCell:
    """A cell of TINY's accuracy."""
    return PaperCell(row, "synthetic", split, document(**changes), accuracy(split), Printed(paper, 0.01))


def table(*cells: PaperCell, seeds: int = 2) -> PaperTable:
    return PaperTable("a small table", cells, seeds, ("a note",))


def finish(run: PlannedRun, **metrics: float | None) -> None:
    """Write what a finished run leaves; `global_accuracy` is "global/accuracy"."""
    run.directory.mkdir(parents=True)
    (run.directory / "config.toml").write_text(dumps(run.config.plain()))
    named = {name.replace("_", "/"): value for name, value in metrics.items()}
    about = {"algorithm": run.config.algorithm.name, "dataset": "synthetic", "clients": 3}
    summary = about | {"rounds": run.config.general.rounds, "seconds": 90.0, "metrics": named}
    (run.directory / "summary.json").write_text(json.dumps(summary))


class AllThere(Stock):
    """As if every data set were at hand."""

    def lacks(self, document: Document) -> str:
        return ""
