"""Metrics of the user's own: functions of labels and probabilities, of a finished run's models on its own examples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import numpy as np
import pyarrow as pa

from fedweave.apply.predictions import predict_examples, predict_links
from fedweave.core import plugins
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import SPLITS
from fedweave.core.shown import Shown
from fedweave.core.target import is_labeled
from fedweave.core.text import counted
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Config
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.metrics.measured import GLOBAL

# (y int64 [e], p float64 [e, c]) -> a number, NaN where it has none. Of one number y and p are float64 [e], of several
# [e, t], NaN where y has gaps; of several labels y is int64 [e, t], -1 at gaps, and p float64 [e, t].
Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, repr=False)
class SplitScores(Shown):
    """The values of a function on one split.

    name:    of the function. clients: {client: its value on the client's own examples by the model that it uses}.
    local:   their mean, over those that have one. pooled: of all clients' examples together, each by its client's
             model; NaN without examples.
    overall: of the global test graph by the global model; None where there is none.
    """

    name: str
    clients: dict[str, float]
    local: float
    pooled: float
    overall: float | None = None

    def facts(self) -> dict[str, object]:
        """The function, and its values over clients."""
        facts = {"": f"{self.name} of {counted(len(self.clients), 'client')}", "local": self.local}
        facts["pooled"] = self.pooled
        return facts if self.overall is None else facts | {"overall": self.overall}


def load_metric(name: str) -> Metric:
    """The function "file.py:name", or the one that an installed package announces by this name.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    if plugins.is_file(name):
        value = plugins.load(name)
    else:
        functions = plugins.entry_point_plugins("metric")
        if name not in functions:
            raise ConfigError(
                f"--metric {name}: write file.py:function, or the name of one that an installed package announces "
                f"({', '.join(functions) or 'none does'})."
            )
        value = functions[name]
    if not callable(value):
        raise ConfigError(f"--metric {name}: it is not a function (y, p) -> number.")
    result: Metric = value
    return result


def measure_run(
    directory: Path, metric: Metric, split: str = "test", model: str | None = None, config: Config | None = None
) -> SplitScores:
    """The values of the function for a finished run's models. config: of the run, where the caller knows it.

    Raises:
        UserError: see `measure`; the run is not finished, was made between sites, or has no such model.
    """
    config = finished_config(directory) if config is None else config
    if capabilities(config.algorithm.kind).predicts:
        raise UserError("the parties of a vertical run predict jointly: take `fedweave predict` and its table.")
    run = load_trained(directory, config, "Where sites are, their owners measure.", model=model)
    table = predict_examples(run, model) if config.links is None else predict_links(run, model)
    return measure(table, metric, split)


def measure(table: pa.Table, metric: Metric, split: str = "test") -> SplitScores:
    """The values of the function on the predictions of a run's own examples (`prediction_table.predictions_table`).

    Raises:
        UserError: there is no such split, no class is known, or the function fails or returns no number.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}.", code="user.no-split")
    if "split" not in table.column_names or not any(name.partition("_")[0] == "true" for name in table.column_names):
        raise UserError("no class of these examples is known, so that nothing can be measured.")
    y, p = _targets_and_predictions(table)
    client, used = (np.array(table[column].to_pylist()) for column in ("client", "split"))
    use = (used == split) & is_labeled(y if y.ndim > 1 or y.dtype.kind == "i" else y[:, None])
    name = metric.__name__ if isinstance(metric, FunctionType) else type(metric).__name__

    def of(rows: np.ndarray) -> float:
        """The value on those of the rows, bool, that have a target and are in the split."""
        at = use & rows
        if not at.any():
            return math.nan
        value = plugins.call_plugin(f"metric {name!r}", lambda: metric(y[at], p[at]), UserError)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"metric {name!r} returned {type(value).__name__}, not a number.", code="user.metric"
            ) from error

    clients = {whose: of(client == whose) for whose in dict.fromkeys(client.tolist()) if whose != GLOBAL}
    values = [value for value in clients.values() if not math.isnan(value)]
    mean = float(np.mean(values)) if values else math.nan
    overall = of(client == GLOBAL) if GLOBAL in client else None
    return SplitScores(name, clients, mean, of(client != GLOBAL), overall)


def _targets_and_predictions(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The arguments of a `Metric` for all rows: classes, numbers or labels, and the predictions."""

    def columns(prefix: str, names: list[str], gap: float = np.nan) -> np.ndarray:
        """float64 [rows, names]; a column that the table lacks is all gaps, because none of its values is known."""
        result = np.full((len(table), len(names)), gap)
        for at, name in enumerate(names):
            if f"{prefix}{name}" in table.column_names:
                result[:, at] = [gap if value is None else value for value in table[f"{prefix}{name}"].to_pylist()]
        return result

    outputs = [column.removeprefix("p_") for column in table.column_names if column.startswith("p_")]
    targets = [column.removeprefix("predicted") for column in table.column_names if column.startswith("predicted")]
    if outputs and targets == [""]:  # classes
        place = {name: at for at, name in enumerate(outputs)}
        classes = [-1 if value is None else place[str(value)] for value in table["true"].to_pylist()]
        return np.array(classes, np.int64), columns("p_", outputs)
    if outputs:  # several labels
        return columns("true_", outputs, -1).astype(np.int64), columns("p_", outputs)
    y, p = columns("true", targets), columns("predicted", targets)
    return (y, p) if len(targets) > 1 else (y[:, 0], p[:, 0])
