"""Metrics of one's own: functions of labels and probabilities, of a finished run's models on its own examples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import numpy as np
import pyarrow as pa

from fedweave.core import plugins
from fedweave.core.graph import SPLITS
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Config
from fedweave.metrics.measured import GLOBAL

Metric = Callable[[np.ndarray, np.ndarray], float]  # (y int64 [e], p float64 [e, c]) -> a number, NaN where it has none


@dataclass(frozen=True)
class Measured:
    """What a function says of one split.

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


def function(name: str) -> Metric:
    """The function that "file.py:name", or the name that an installed package announces, stands for.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    if plugins.is_file(name):
        found = plugins.load(name)
    else:
        known = plugins.announced("metric")
        if name not in known:
            raise ConfigError(
                f"--metric {name}: write file.py:function, or the name of one that an installed package announces "
                f"({', '.join(known) or 'none does'})."
            )
        found = known[name]
    if not callable(found):
        raise ConfigError(f"--metric {name}: it is no function (y, p) -> number.")
    result: Metric = found
    return result


def measured(table: pa.Table, metric: Metric, split: str = "test") -> Measured:
    """What the function says of the predictions of a run's own examples (`predictions.predictions_table`).

    Raises:
        UserError: there is no such split, no class is known, or the function fails or returns no number.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}.", code="user.no-split")
    if not {"true", "split"} <= set(table.column_names):
        raise UserError("no class of these examples is known, so that nothing can be measured.")
    wide = [column for column in table.column_names if column.startswith("p_")]
    place = {column.removeprefix("p_"): at for at, column in enumerate(wide)}
    y = np.array([-1 if value is None else place[str(value)] for value in table["true"].to_pylist()], np.int64)
    p = np.stack([table[column].to_numpy().astype(np.float64) for column in wide], 1)
    client, used = (np.array(table[column].to_pylist()) for column in ("client", "split"))
    use = (used == split) & (y >= 0)

    def of(member: np.ndarray) -> float:
        at = use & member
        return _called(metric, y[at], p[at]) if at.any() else math.nan

    names = [name for name in dict.fromkeys(client.tolist()) if name != GLOBAL]
    clients = {name: of(client == name) for name in names}
    some = [value for value in clients.values() if not math.isnan(value)]
    return Measured(
        _name(metric),
        clients,
        float(np.mean(some)) if some else math.nan,
        of(client != GLOBAL),
        of(client == GLOBAL) if GLOBAL in client else None,
    )


def of_run(
    directory: Path, metric: Metric, split: str = "test", model: str | None = None, config: Config | None = None
) -> Measured:
    """What the function says of a finished run's models. config: of the run, where the caller knows it.

    Raises:
        UserError: see `measured`; the run is not finished, was made between sites, or has no such model.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.experiment.runs.scoring import of_own
    from fedweave.experiment.runs.trained import finished, trained

    config = finished(directory) if config is None else config
    if capabilities(config.algorithm.kind).predicts:
        raise UserError("the parties of a vertical run predict jointly: take `fedweave predict` and its table.")
    run = trained(directory, config, "Where sites are, their owners measure.")
    return measured(of_own(run, model), metric, split)


def _name(metric: Metric) -> str:
    return metric.__name__ if isinstance(metric, FunctionType) else type(metric).__name__


def _called(metric: Metric, y: np.ndarray, p: np.ndarray) -> float:
    name = _name(metric)
    found = plugins.called(f"metric {name!r}", lambda: metric(y, p), UserError)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"metric {name!r} returned {type(found).__name__}, not a number.", code="user.metric"
        ) from error
