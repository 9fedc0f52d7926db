"""What is read of runs about single clients and about the data: their scores, what they hold and what they predict."""

import json
from functools import cache, lru_cache
from pathlib import Path

from fedweave.experiment.runs.files import PARTITION, read_table
from fedweave.papers.paper import Quantity
from fedweave.papers.quantities import summary
from fedweave.report.reading import Run, read_run

SETTINGS = {"global test share": "global_test", "client share": "share"}  # of the partition


def fact(name: str) -> Quantity:
    """A count of the run's data ("nodes", "edges", "classes"), its "clients", or one of `SETTINGS`."""

    def value(run: Path) -> float:
        found = _run(run)
        if name in SETTINGS:
            return float(found.section("partition")[SETTINGS[name]])
        if name == "clients":
            return float(len(read_table(run, PARTITION)))
        return _counts(json.dumps(found.section("data"), sort_keys=True))[name]

    return Quantity("share" if name in SETTINGS else "count", value, digits=1 if name in SETTINGS else 0)


def of_client(client: int, metric: str, split: str, unit: str) -> Quantity:
    """A metric of the last evaluation of one client, by its place among them; where clients have no models of their own
    on the global test, that of the global model."""

    def value(run: Path) -> float | None:
        if own := _run(run).clients(metric, split):
            return own.get(read_table(run, PARTITION)["client"][client].as_py())
        found: float | None = summary(run)["metrics"].get(metric.replace("global_test/", "global/"))
        return found

    return Quantity(unit, value)


def share_held(client: int, label: int) -> Quantity:
    """The share of a label among those of a client's nodes."""

    def value(run: Path) -> float:
        labels = read_table(run, PARTITION)["labels"][client].as_py()
        return float(labels[label] / sum(labels))

    return Quantity("share", value)


def share_predicted(client: int, label: int) -> Quantity:
    """The share of a label among what a client's own model predicts on the global test set."""
    return of_client(client, f"global_test/predicted/{label}", "test", "share")


def share_true(label: int) -> Quantity:
    """The share of a label in the global test set."""
    return of_client(0, f"global_test/true/{label}", "test", "share")


@lru_cache(maxsize=8)
def _run(run: Path) -> Run:
    """A finished run, of which a table asks for many numbers: one cell after the other, each of all seeds."""
    return read_run(run)


@cache
def _counts(section: str) -> dict[str, float]:
    """Of a data set, by its section as JSON."""
    from fedweave import datasets

    data = datasets.load(**json.loads(section))
    return {"nodes": data.nodes, "edges": data.edges.shape[1] / 2, "classes": data.classes}
