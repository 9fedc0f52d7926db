"""Algorithms, one paper per file. `ALGORITHMS` is the registry: name on the command line -> frozen dataclass."""

from fedweave.algorithms.centralized import Centralized
from fedweave.algorithms.dfedgnn import DFedGNN
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedego import FedEgo
from fedweave.algorithms.fedprox import FedProx
from fedweave.algorithms.glasu import GLASU
from fedweave.algorithms.local import Local
from fedweave.algorithms.vertical.special import VFGNN, VFL, PooledGNN, SimulatedCentralized, Standalone

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "centralized": Centralized,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedego": FedEgo,
    "dfedgnn": DFedGNN,
    "glasu": GLASU,
    "vfl": VFL,
    "vfgnn": VFGNN,
    "standalone": Standalone,
    "simulated_centralized": SimulatedCentralized,
    "pooled_gnn": PooledGNN,
}

__all__ = [
    "ALGORITHMS",
    "GLASU",
    "VFGNN",
    "VFL",
    "Centralized",
    "DFedGNN",
    "FedAvg",
    "FedEgo",
    "FedProx",
    "Local",
    "PooledGNN",
    "SimulatedCentralized",
    "Standalone",
]
