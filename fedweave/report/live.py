"""What a live page shows of a run, read from the run's files: they are all that it needs, wherever they are written."""

import json
import math
import time
from pathlib import Path

from fedweave.core.records import Record
from fedweave.errors import FedweaveError
from fedweave.report import figures, traffic
from fedweave.report.absences import FAULTS, faults
from fedweave.report.html import drawn
from fedweave.report.reading import Run, grouped, read_run
from fedweave.runs.files import CHECKPOINT, CONFIG, LEDGER, METRICS, RUN, SUMMARY

PROJECT_RUNS = "server/runs"  # where the server keeps a run of sites
_FILES = (CONFIG, METRICS, LEDGER, SUMMARY)


def followed(directory: Path) -> Path:
    """Where the files of a run are written: of a run of sites that the server of this machine still writes, there."""
    try:
        told = json.loads((directory / RUN).read_text())
        there = Path(told["project"]) / PROJECT_RUNS / str(told["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return directory
    return there if not (directory / SUMMARY).exists() and (there / METRICS).exists() else directory


def stamp(directory: Path) -> tuple[float, ...]:
    """Changes when one of the run's files does."""
    paths = [followed(directory) / name for name in (*_FILES, CHECKPOINT)]
    return tuple(path.stat().st_mtime if path.exists() else 0.0 for path in paths)


def state(directory: Path) -> Record:
    """All that the page shows, as JSON; "waiting" says why there is nothing yet, or no more.

    "members" are rows of the last evaluation: name, test accuracy, test loss, and how often it was missing, refused or
    late. "figures" is HTML.
    """
    try:
        run = read_run(followed(directory))
    except FedweaveError as error:
        return {"waiting": str(error), "finished": False}
    rounds = run.config.get("rounds", 0)
    return {
        "title": f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}",
        "directory": str(directory),
        "finished": run.finished,
        "round": run.done,
        "rounds": rounds,
        "saved": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.when)),
        "members": _members(run),
        "figures": _figures(run),
    }


def _figures(run: Run) -> str:
    """Curves, and bytes and ε over the rounds so far, as the report draws them."""
    groups = grouped([run])
    return drawn(figures.curves(groups), "curves") + drawn(traffic.figure(groups), "traffic")


def _members(run: Run) -> list[Record]:
    accuracy, loss = run.clients("accuracy"), run.clients("loss")
    found = faults(run.metrics)
    names, none = sorted({*accuracy, *loss, *found}), dict[str, dict[int, int]]()
    calls = {name: {what: sum(found.get(name, none).get(what, {}).values()) for what in FAULTS} for name in names}
    return [
        {"name": name, "accuracy": _finite(accuracy.get(name)), "loss": _finite(loss.get(name)), **calls[name]}
        for name in names
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
