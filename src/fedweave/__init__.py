"""fedweave: federated graph learning that is fair, private, paid for, and real.

Data, a partition, a model, an algorithm and an engine, put together in a few lines:

    data = fedweave.datasets.load("digits")
    cut = fedweave.partition.Dirichlet(clients=10, alpha=0.3).cut(data, seed=0)
    model = fedweave.models.GCN(hidden=64).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(model)
    fed = fedweave.federation(data, cut, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds=30)
    last.summary["global/accuracy"]

Nothing is imported before it is used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedweave import algorithms, datasets, metrics, models, partition
    from fedweave.engines.simulation import Simulation
    from fedweave.experiment.build import federation
    from fedweave.experiment.graphs import client_graphs, global_test_graph, width
    from fedweave.python.comparing import compare, report
    from fedweave.python.training import load_run, run, train
    from fedweave.sweeps.in_python import sweep
    from fedweave.sweeps.tuned import tune

    __version__: str

__all__ = [
    "Simulation",
    "__version__",
    "algorithms",
    "client_graphs",
    "compare",
    "datasets",
    "federation",
    "global_test_graph",
    "load_run",
    "metrics",
    "models",
    "partition",
    "report",
    "run",
    "sweep",
    "train",
    "tune",
    "width",
]

_HOME = {
    "Simulation": "fedweave.engines.simulation",
    "client_graphs": "fedweave.experiment.graphs",
    "compare": "fedweave.python.comparing",
    "federation": "fedweave.experiment.build",
    "global_test_graph": "fedweave.experiment.graphs",
    "load_run": "fedweave.python.training",
    "report": "fedweave.python.comparing",
    "run": "fedweave.python.training",
    "sweep": "fedweave.sweeps.in_python",
    "train": "fedweave.python.training",
    "tune": "fedweave.sweeps.tuned",
    "width": "fedweave.experiment.graphs",
}


def __dir__() -> list[str]:
    """The public names."""
    return __all__


if not TYPE_CHECKING:  # to a type checker the names are those imported above, and no others

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name == "__version__":
            from importlib.metadata import version

            return version("fedweave")
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        if name in __all__:
            return import_module(f"fedweave.{name}")
        from fedweave.core.settings import nearest  # slow to import

        raise AttributeError(
            f"module 'fedweave' has no attribute {name!r}.{nearest(name, __all__)} It has {', '.join(__all__)}"
        )
