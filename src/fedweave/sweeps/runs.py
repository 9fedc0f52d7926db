"""One run of many: an experiment with one seed, and the directory of its results."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, Document, resolve
from fedweave.experiment.runs.resuming import examine


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


def plan_run(document: Document, folder: Path) -> PlannedRun:
    """The run of a document, whose results are stored in `folder`.

    Raises:
        ConfigError: the document is not valid.
    """
    config = resolve(document)
    settings = {key: value for key, value in config.plain().items() if key != "seed"}
    for name in ("alone", "shelf"):  # they change no number of the run
        settings["evaluation"].pop(name, None)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{config.algorithm.label}-{config.data.label}-s{config.general.seed}-{digest}"
    return PlannedRun(name, config, folder / name)
