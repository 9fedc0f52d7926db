"""A run of sites for those who observe runs, from what its server tells whoever watches the job."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedweave.core.ledger import Ledger
from fedweave.core.records import Record
from fedweave.experiment.config import Config
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import LEDGER, read_table
from fedweave.experiment.runs.run import RunObserver


class Observed:
    """Hears of a job's progress (`deploy.flare.server.server.Progress`) and tells an observer of every round, once.

    What it tells has no state; the federation's ledger has sizes, and its table once the run's files are here.
    """

    def __init__(self, observer: RunObserver, config: Config, directory: Path) -> None:
        self._observer, self._config, self._directory = observer, config, directory
        self._done: int | None = None  # the last round that the observer knows of
        self._sizes: dict[str, int] = {}

    def __call__(self, now: Record) -> None:
        """Hear of `now`."""
        if self._done is None and now["status"] in ("running", "done", "stopped") and now.get("rounds"):
            self._done = int(now["after"])
            built: Any = SimpleNamespace(fed=SimpleNamespace(ledger=self))
            self._observer.begin(self._config, built, self._directory, self._done)
        for one in now.get("recent") or ():
            if self._done is not None and one["round"] > self._done:
                self._done, self._sizes = one["round"], one["bytes"]
                self._observer.step(Checkpoint(one["round"], one["seconds"], summary=one["summary"]))

    def end(self) -> None:
        """The run is over, for whatever reason."""
        if self._done is not None:
            self._observer.end()

    def sizes(self) -> dict[str, int]:
        """See `core.ledger.Ledger`."""
        return self._sizes

    def table(self) -> Any:
        """See `core.ledger.Ledger`; without rows where the job left no files.

        Raises:
            FedweaveError: the ledger is damaged.
        """
        return read_table(self._directory, LEDGER) if (self._directory / LEDGER).exists() else Ledger().table()
