"""Algorithms, one paper per file.

`ALGORITHMS` is the registry: name on the command line -> frozen dataclass, or preset of FedAvg; `ALIASES` are further
names. `PARTS` are what the FedAvg family is made of: name in `[algorithm] parts` -> frozen dataclass. A paper's file is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fedweave.algorithms.registry import ALGORITHMS, ALIASES, GROUPS, PARTS

if TYPE_CHECKING:
    from fedweave.algorithms.adafgl import AdaFGL
    from fedweave.algorithms.apfl import APFL
    from fedweave.algorithms.centralized import Centralized
    from fedweave.algorithms.cffl import CFFL
    from fedweave.algorithms.cgsv import CGSV, DW, EU
    from fedweave.algorithms.dfedgnn import DFedGNN
    from fedweave.algorithms.ditto import Ditto
    from fedweave.algorithms.dp_fedavg import DPFedAvg
    from fedweave.algorithms.f2gnn import F2GNN
    from fedweave.algorithms.fairaug import FairAug
    from fedweave.algorithms.fairfed import FairFed
    from fedweave.algorithms.fairgfl import FairGFL
    from fedweave.algorithms.fairgraphfl import FairGraphFL
    from fedweave.algorithms.fcfl import FCFL
    from fedweave.algorithms.fedaux import FedAux
    from fedweave.algorithms.fedavg import FedAvg
    from fedweave.algorithms.fedavg_ft import FedAvgFT
    from fedweave.algorithms.fedbn import FedBN
    from fedweave.algorithms.fedbuff import FedBuff
    from fedweave.algorithms.feddc import FedDC
    from fedweave.algorithms.feddep import FedDEP
    from fedweave.algorithms.feddyn import FedDyn
    from fedweave.algorithms.fede import FedE
    from fedweave.algorithms.fedego import FedEgo
    from fedweave.algorithms.fedgcn import FedGCN
    from fedweave.algorithms.fedgta import FedGTA
    from fedweave.algorithms.fednova import FedNova
    from fedweave.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
    from fedweave.algorithms.fedper import FedPer
    from fedweave.algorithms.fedproto import FedProto
    from fedweave.algorithms.fedprox import FedProx
    from fedweave.algorithms.fedpub import FedPUB
    from fedweave.algorithms.fedrep import FedRep
    from fedweave.algorithms.fedsage import FedSage
    from fedweave.algorithms.fedsage_plus import FedSagePlus
    from fedweave.algorithms.fedstar import FedStar
    from fedweave.algorithms.fedtad import FedTAD
    from fedweave.algorithms.fedtgp import FedTGP
    from fedweave.algorithms.fggp import FGGP
    from fedweave.algorithms.fgssl import FGSSL
    from fedweave.algorithms.gcfl import GCFL, GCFLPlus
    from fedweave.algorithms.glasu import GLASU
    from fedweave.algorithms.graphfl import GraphFL
    from fedweave.algorithms.local import Local
    from fedweave.algorithms.moon import Moon
    from fedweave.algorithms.pfedme import PFedMe
    from fedweave.algorithms.qfedavg import QFedAvg
    from fedweave.algorithms.rffl import RFFL
    from fedweave.algorithms.scaffold import Scaffold
    from fedweave.algorithms.vertical.special import VFGNN, VFL, PooledGNN, SimulatedCentralized, Standalone

__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "APFL",
    "CFFL",
    "CGSV",
    "DW",
    "EU",
    "F2GNN",
    "FCFL",
    "FGGP",
    "FGSSL",
    "GCFL",
    "GLASU",
    "GROUPS",
    "PARTS",
    "RFFL",
    "VFGNN",
    "VFL",
    "AdaFGL",
    "Centralized",
    "DFedGNN",
    "DPFedAvg",
    "Ditto",
    "FairAug",
    "FairFed",
    "FairGFL",
    "FairGraphFL",
    "FedAdagrad",
    "FedAdam",
    "FedAux",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedBN",
    "FedBuff",
    "FedDC",
    "FedDEP",
    "FedDyn",
    "FedE",
    "FedEgo",
    "FedGCN",
    "FedGTA",
    "FedNova",
    "FedPUB",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedSage",
    "FedSagePlus",
    "FedStar",
    "FedTAD",
    "FedTGP",
    "FedYogi",
    "GCFLPlus",
    "GraphFL",
    "Local",
    "Moon",
    "PFedMe",
    "PooledGNN",
    "QFedAvg",
    "Scaffold",
    "SimulatedCentralized",
    "Standalone",
]

if not TYPE_CHECKING:  # to a type checker the names are those imported above, and no others

    def __getattr__(name):
        """Import an algorithm, a part or a file of this package when it is first used."""
        for registry in (ALGORITHMS, PARTS):
            key = registry.of_class(name)
            if key:
                return registry[key]
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
