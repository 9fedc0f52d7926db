"""The special cases of GLASU (Zhang et al. 2023, section 3.5 and table 2): the same code with fewer choices."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedweave.algorithms.glasu import GLASU
from fedweave.algorithms.vertical.split import cuts
from fedweave.core.algorithm import Capabilities

# A field of GLASU that is declared a class variable here is no longer a setting.


@dataclass(frozen=True)
class VFL(GLASU):
    """Vertical federated learning without graphs (Liu et al. 2022, FedBCD): edges = "none", exchanges = 1, so that what
    a client sends about a node depends only on that node's features."""

    exchanges: ClassVar[int] = 1  # type: ignore[misc]
    at: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]
    edges: ClassVar[str] = "none"  # type: ignore[misc]
    fan_out: ClassVar[int] = 1  # type: ignore[misc]
    recorded = GLASU.recorded


@dataclass(frozen=True)
class VFGNN(GLASU):
    """One exchange, after the last layer that passes messages (Zhou et al. 2020, "Vertically federated graph neural
    network"): exchanges = 1."""

    exchanges: ClassVar[int] = 1  # type: ignore[misc]
    at: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]
    recorded = GLASU.recorded


@dataclass(frozen=True)
class Standalone(GLASU):
    """Every client with labels trains and predicts on its own: exchanges = 0, so that only scores leave."""

    exchanges: ClassVar[int] = 0  # type: ignore[misc]
    at: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]
    aggregation: ClassVar[str] = "mean"  # type: ignore[misc]
    backward: ClassVar[str] = "frozen"  # type: ignore[misc]
    sigma: ClassVar[float] = 0.0  # type: ignore[misc]
    clip: ClassVar[float] = 1.0  # type: ignore[misc]
    delta: ClassVar[float] = 1e-5  # type: ignore[misc]
    label_epsilon: ClassVar[float | None] = None  # type: ignore[misc]
    secure_sum: ClassVar[bool] = False  # type: ignore[misc]
    recorded = GLASU.recorded


@dataclass(frozen=True)
class SimulatedCentralized(GLASU):
    """Every client has the whole graph but its own features, and the server aggregates after every layer that passes
    messages (Ni et al. 2021, "A vertical federated learning framework for graph convolutional network"): exchanges = L,
    steps = 1. The whole graph is the data's part: partition.edges = 1."""

    exchanges: ClassVar[int] = 0  # type: ignore[misc]
    at: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]
    steps: ClassVar[int] = 1  # type: ignore[misc]
    recorded = GLASU.recorded

    @property
    def cuts(self) -> tuple[int, ...]:
        """All layers that pass messages."""
        return cuts(self.model, sum(layer.operator is not None for layer in self.model))


@dataclass(frozen=True)
class PooledGNN(Standalone):
    """The reference point of GLASU's experiments: its mini-batches and sampling at one client that holds all features
    and edges (M = 1).

    Not supported between organizations, because no site may hold the whole graph.
    """

    capabilities: ClassVar[Capabilities] = replace(GLASU.capabilities, pooled=True)
    recorded = GLASU.recorded
