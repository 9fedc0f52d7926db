"""Centralised training, the reference point with all data pooled at one place."""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import preset


@preset
@dataclass(frozen=True)
class Centralized:
    """FedAvg with one client that holds the undivided graph, all edges between clients included.

    `pooled` asks for that client; between organisations it is refused, since nobody may hold it.
    """

    pooled: ClassVar[bool] = True

    def parts(self) -> tuple[Part, ...]:
        """FedAvg's."""
        return ()
