"""An algorithm under test, and the small federation that it runs on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from fedweave import datasets
from fedweave.build import client_graphs, placements
from fedweave.config import own_parameters
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.errors import ConfigError
from fedweave.models import GCN
from fedweave.partition import Dirichlet
from fedweave.rounds import RoundResult, train

ROUNDS = 4  # steps are recorded in their second round and played from the third
CLIENTS, CHANGED = 4, "client-2"
DATA: dict[str, Any] = {"nodes": 120, "classes": 2, "features": 12, "sensitive": True}
SPLIT = Dirichlet(clients=CLIENTS, alpha=1.0, train=0.4, val=0.2, test=0.4)


@dataclass(frozen=True)
class Subject:
    """One algorithm. kind: what makes it of a model. values: its settings."""

    kind: Any
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        declared = capabilities(self.kind)
        for what, absent in (("vertical", "same nodes"), ("graph_level", "small graphs")):
            if getattr(declared, what):
                raise ConfigError(
                    f"the contract's federation has nodes that nobody shares; it cannot try algorithms for {absent}."
                )

    @property
    def not_owed(self) -> Mapping[str, str]:
        """{law: why it does not hold}, which the algorithm's class declares as `does_not_owe`."""
        return getattr(getattr(self.kind, "paper", self.kind), "does_not_owe", {})

    def takes(self, *names: str) -> bool:
        """Whether the algorithm has all these settings."""
        return set(names) <= own_parameters(self.kind).keys()

    def made(self, dropout: float = 0.5, **values: Any) -> Any:
        """The algorithm with a small GCN; `values` go before its own settings."""
        model = GCN(hidden=8, dropout=dropout).build(DATA["features"], DATA["classes"])
        try:
            return self.kind(model, **(dict(self.values) | values))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the algorithm refuses its settings: {error}") from error

    def federation(
        self, engine: type[Simulation] = Simulation, dtype: torch.dtype = torch.float32, **options: Any
    ) -> Simulation:
        """Four clients of different sizes, on an engine."""
        clients = options.pop("clients", None) or graphs(dtype)
        return engine(clients, classes=DATA["classes"], places=_places(), test=options.pop("test", None), **options)

    def outcome(self, rounds: int = ROUNDS, **options: Any) -> Tree:
        """All that a run leaves: the server's state, every client's, and the measured numbers."""
        fed = self.federation(**options)
        return everything(run(self.made(), fed, rounds), fed)


def graphs(dtype: torch.dtype = torch.float32, changed: str | None = None) -> dict[str, Graph]:
    """{client: graph}; the client `changed` holds other data."""
    (data, cut), (others, other_cut) = _cut(0), _cut(1)
    own = client_graphs(data, cut, dtype)
    other = client_graphs(others, other_cut, dtype) if changed else {}
    return {client: other[client] if client == changed else graph for client, graph in own.items()}


def run(
    made: Any, fed: Simulation, rounds: int = ROUNDS, resume: Any = None, summary: Any = None, eval_every: int = 2
) -> RoundResult:
    """The last round of a run."""
    *_, last = train(made, fed, rounds, eval_every, resume, summary)
    return last


def everything(step: RoundResult, fed: Simulation) -> Tree:
    """All that a run leaves after a round."""
    return {"server": step.state, "clients": fed.snapshot(), "summary": dict(step.summary)}


def distance(a: Tree, b: Tree) -> float:
    """The largest difference between two trees; infinite where names or shapes differ."""
    flat_a, flat_b = dict(leaves(a)), dict(leaves(b))
    if flat_a.keys() != flat_b.keys():
        return float("inf")
    pairs = [(torch.as_tensor(x).double(), torch.as_tensor(flat_b[path]).double()) for path, x in flat_a.items()]
    gaps = [float((x - y).abs().max()) if x.shape == y.shape else float("inf") for x, y in pairs if x.numel()]
    return max(gaps, default=0.0)


@cache
def _cut(seed: int) -> Any:
    data = datasets.load("synthetic", seed=seed, **DATA)
    return data, SPLIT.cut(data, 0)


def _places() -> Any:
    return placements(*_cut(0))
