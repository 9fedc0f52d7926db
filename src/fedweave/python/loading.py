"""A run's directory from Python: its tables, its configuration, and the models that it left."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from fedweave.core.records import Values
from fedweave.core.tree import Tree
from fedweave.errors import UserError
from fedweave.experiment.config import Config, read_saved
from fedweave.experiment.runs.files import CONFIG, LEDGER, METRICS, PARTITION, SUMMARY, read_summary, read_table

if TYPE_CHECKING:  # looking into a run's tables should start quickly
    from torch import nn

    from fedweave.experiment.runs.own_metrics import Measured, Metric


@dataclass(frozen=True)
class SavedRun:
    """What `fedweave run` wrote into `directory`. Tables are Arrow's: `run.metrics.to_pandas()` with pandas.

    config:    resolved. summary: content of summary.json, {} of a run that is not finished.
    metrics:   columns round, client ("global" for all), split, metric, value; a row per number.
    ledger:    a row for everything that crossed a boundary. partition: a row per client.
    """

    directory: Path
    config: Config
    summary: Values
    metrics: pa.Table
    ledger: pa.Table
    partition: pa.Table

    def weights(self, model: str = "global", client: str | None = None) -> Tree:
        """The weights of the `model` "global", or of the `client`'s "personal" or "trained" one, as trees of tensors.

        Raises:
            UserError: the run is not finished, or has no such model; a run between sites has the global one alone.
        """
        from fedweave.experiment.runs.trained import MODELS, finished, joint, trained

        if model not in MODELS:
            raise UserError(f"there is no model {model!r}; choose one of {', '.join(MODELS)}.", code="user.no-model")
        if (client is None) != (model == "global"):
            raise UserError(
                "name a client of the run for its personal or trained model, and none for the global one.",
                code="user.no-client",
            )
        config = finished(self.directory)
        if config.between_sites and model == "global":
            return joint(self.directory, config)[1]
        run = trained(self.directory, config, "Of such a run the global model alone is here.")
        return run.model_of(model, client or run.built.fed.clients[0])

    def measure(self, metric: "Metric", split: str = "test", model: str | None = None) -> "Measured":
        """What a function of one's own, (y int64 [e], p float64 [e, classes]) -> number, says of the run's examples.

        split: train, val or test. model: "personal", what each client uses, unless another is named.

        Raises:
            UserError: the run is not finished, was made between sites or of parties, or has no such model or split; the
                function fails or returns no number.
        """
        from fedweave.experiment.runs.own_metrics import of_run

        return of_run(self.directory, metric, split, model)

    def module(self, model: str | None = None, client: str | None = None) -> "nn.Module":
        """The same as a module of PyTorch Geometric's, ready to predict: `module(x, edge_index)` gives logits.

        model: the global one where there is one. See `export.pyg`.

        Raises:
            UserError: see `export.source.source`.
        """
        from fedweave.export.pyg import build
        from fedweave.export.source import source

        found = source(self.directory, model, client)
        module = build(found.described())
        module.load_state_dict(found.weights)
        return module.eval()


def load_run(directory: str | Path, config: Config | None = None) -> SavedRun:
    """Read the directory of a run, finished or not.

    config: what its config.toml says, where that is known.

    Raises:
        UserError: it is not the directory of a run, or no round of it is saved yet.
        FedweaveError: a file is damaged.
    """
    folder = Path(directory).expanduser()
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is not the directory of a run: it has no {CONFIG}. Give the --out of `fedweave run`.",
            code="user.no-run",
        )
    tables = (read_table(folder, name) for name in (METRICS, LEDGER, PARTITION))
    summary = read_summary(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    return SavedRun(folder, config or read_saved(folder / CONFIG), summary, *tables)
