"""Algorithms, one paper per file. `ALGORITHMS` is the registry: name on the command line -> frozen dataclass."""

from fedweave.algorithms.centralized import Centralized
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedego import FedEgo
from fedweave.algorithms.fedprox import FedProx
from fedweave.algorithms.local import Local

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "centralized": Centralized,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedego": FedEgo,
}

__all__ = ["ALGORITHMS", "Centralized", "FedAvg", "FedEgo", "FedProx", "Local"]
