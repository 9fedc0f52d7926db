"""A shelf that runs of a sweep have in common: it depends on data, split and seed, and not on the model or the
algorithm."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from fedweave.core.types import Record
from fedweave.experiment.build import Built
from fedweave.experiment.config import Config
from fedweave.experiment.runs.files import SHARED_ALONE, write
from fedweave.experiment.shelf.runs import ShelfResult
from fedweave.metrics.selection import Judging, positive_class, selection_metric_of

# Sections of an experiment that decide on data, split and what is drawn; of [evaluation] the file adds what matters.
_SHARED = ("data", "partition", "noise", "forget", "fold", "seed")


def shelf_file(
    config: Config, built: Built, judging: Judging, summary: Record, directory: Path, source: Mapping[str, str]
) -> Path | None:
    """The file for the shelf of runs with the same data, split and seed, in the folder that a sweep made beside its
    runs; None where there is none.

    summary: the run's, which names the selection metric. source: digests of the loaded data.
    """
    folder = directory.parent / SHARED_ALONE
    if not folder.is_dir():
        return None
    document = config.plain()
    experiment = {name: document.get(name) for name in _SHARED}
    selects = selection_metric_of(summary), positive_class(judging, summary), config.evaluation.shelf
    circumstances = [built.fed.evaluated_clients, version("fedweave"), dict(source)]
    text = json.dumps([experiment, selects, circumstances], sort_keys=True, default=str)
    return folder / f"shelf-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_shelf(path: Path) -> ShelfResult | None:
    """The shelf in a file; None if there is none, or it is not whole."""
    try:
        return ShelfResult(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_shelf(path: Path, result: ShelfResult) -> None:
    """Write the shelf, for the sweep's other runs."""
    write(path, lambda file: file.write(json.dumps(asdict(result)).encode()))
