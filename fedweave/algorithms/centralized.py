"""Centralised training, the reference point with all data pooled at one place."""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Centralized(FedAvg):
    """FedAvg with one client that holds the undivided graph, all edges between clients included.

    `pooled` asks for that client; between organisations it is refused, since nobody may hold it.
    """

    pooled: ClassVar[bool] = True
