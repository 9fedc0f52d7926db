"""Centralized training, the reference point that pools all clients' data (also "Global", "Oracle")."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import preset
from fedweave.core.algorithm import Capabilities


@preset
@dataclass(frozen=True)
class Centralized:
    """FedAvg with one client that holds the undivided graph, all edges between clients included.

    Not supported between organizations, because no site may hold the whole graph.
    """

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, pooled=True)

    def parts(self) -> tuple[Part, ...]:
        return ()
