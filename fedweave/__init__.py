"""fedweave: federated graph learning that is fair, private, paid for, and real.

Data, a partition, a model, an algorithm and an engine, put together in a few lines:

    data = fedweave.datasets.load("digits")
    cut = fedweave.partition.Dirichlet(clients=10, alpha=0.3).cut(data, seed=0)
    fed = fedweave.Simulation(fedweave.client_graphs(data, cut), classes=data.classes, seed=0)
    model = fedweave.models.GCN(hidden=64).build(data.features, data.classes)
    *_, last = fedweave.train(fedweave.algorithms.FedAvg(model), fed, rounds=30)
    last.summary["global/accuracy"]

Nothing is imported before it is used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Simulation": "fedweave.engines.simulation",
    "client_graphs": "fedweave.build",
    "global_test_graph": "fedweave.build",
    "train": "fedweave.rounds",
}
_MODULES = ("algorithms", "datasets", "metrics", "models", "partition")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"fedweave.{name}")
    raise AttributeError(f"module 'fedweave' has no attribute {name!r}; it has {', '.join(__all__)}")
