"""What is read of runs about single clients and about the data: their scores, what they hold and what they predict."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from fedweave.report.reading import Run, read_run
from fedweave.reproduce.paper import Quantity
from fedweave.rounds import GLOBAL

SETTINGS = {"global test share": "global_test", "client share": "share"}  # of the partition


def fact(name: str) -> Quantity:
    """A count of the run's data ("nodes", "edges", "classes"), its "clients", or one of `SETTINGS`."""

    def value(run: Path) -> float:
        found = read_run(run)
        if name in SETTINGS:
            return float(found.section("partition")[SETTINGS[name]])
        if name == "clients":
            return float(len(_held(found)))
        return _counts(json.dumps(found.section("data"), sort_keys=True))[name]

    return Quantity("share" if name in SETTINGS else "count", value, digits=1 if name in SETTINGS else 0)


def of_client(client: int, metric: str, split: str, unit: str) -> Quantity:
    """A metric of the last evaluation of one client, by its place among them; of the global model where clients have no
    models of their own on the global test."""

    def value(run: Path) -> float | None:
        found = read_run(run)
        name = found.partition["client"][client].as_py() if found.partition is not None else ""
        own = found.clients(metric, split)
        return own.get(name, None if own else _pooled(found, metric))

    return Quantity(unit, value)


def share_held(client: int, label: int) -> Quantity:
    """The share of a label among those of a client's nodes."""
    return Quantity("share", lambda run: float(_held(read_run(run))[client, label]))


def share_predicted(client: int, label: int) -> Quantity:
    """The share of a label among what a client's own model predicts on the global test set."""
    return of_client(client, f"global_test/predicted/{label}", "test", "share")


def share_true(label: int) -> Quantity:
    """The share of a label in the global test set."""
    return of_client(0, f"global_test/true/{label}", "test", "share")


def _pooled(run: Run, metric: str) -> float | None:
    last = run.metrics.filter((pc.field("round") == run.evaluated) & (pc.field("client") == GLOBAL))
    named = (pc.field("metric") == metric.removeprefix("global_test/")) & (pc.field("split") == "test")
    found = last.filter(named)["value"].to_pylist()
    return found[0] if found else None


def _held(run: Run) -> np.ndarray:
    """float64 [P, c]: the share of each label among every client's."""
    labels = np.array([] if run.partition is None else run.partition["labels"].to_pylist(), np.float64)
    return labels / labels.sum(1, keepdims=True)


@cache
def _counts(section: str) -> dict[str, float]:
    """Of a data set, by its section as JSON."""
    from fedweave import datasets

    data = datasets.load(**json.loads(section))
    return {"nodes": data.nodes, "edges": data.edges.shape[1] / 2, "classes": data.classes}
