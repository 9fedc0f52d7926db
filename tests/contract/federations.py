"""The contract's federations and algorithms, by the algorithms' registered names."""

from typing import Any

import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.parts import CrossEntropy, Outputs
from fedweave.algorithms.parts.part import Forward
from fedweave.contract import federations, small_graphs
from fedweave.contract.federations import CLASSES as CLASSES
from fedweave.contract.federations import FEATURES as FEATURES
from fedweave.contract.federations import SHARED as SHARED
from fedweave.contract.federations import SIZES as SIZES
from fedweave.contract.federations import arrays as arrays
from fedweave.contract.federations import people as people
from fedweave.contract.federations import public as public
from fedweave.contract.subject import HIDDEN as HIDDEN
from fedweave.contract.subject import BytesEngine as BytesEngine
from fedweave.contract.subject import Subject, small_settings
from fedweave.contract.subject import distance as apart
from fedweave.core.algorithm import Capabilities, capabilities
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.models import MODELS
from fedweave.partition.precompute import Precompute

VERTICAL, GRAPH_LEVEL, PEOPLE = (
    {name for name, kind in ALGORITHMS.items() if getattr(capabilities(kind), what)}
    for what in ("vertical", "graph_level", "sensitive")
)

# With which the registered algorithms say that they are to be tried.
OTHER_PARAMETERS: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in own.items() if key != "model"}
    for name, kind in ALGORITHMS.items()
    if (own := small_settings(kind))
}


def graphs(dtype: torch.dtype = torch.float32, changed: int | None = None, name: str | None = None) -> dict[str, Graph]:
    """See `fedweave.contract.federations.graphs`."""
    return federations.graphs(dtype, changed, _needs(name), finders=_finders(name))


def global_test(dtype: torch.dtype = torch.float32, name: str | None = None) -> Graph:
    """See `fedweave.contract.federations.global_test`."""
    return federations.global_test(dtype, _needs(name))


def classes(name: str | None = None) -> int:
    """How many the data of an algorithm has."""
    return federations.shape(_needs(name))[1]


def model(dropout: float = 0.5, name: str = "gcn", layers: int = 2, classes: int = CLASSES) -> Model:
    """A small model, by default a 2-layer GCN."""
    return MODELS[name](hidden=HIDDEN, layers=layers, dropout=dropout).build(FEATURES, classes)


def cross_entropy(w: Tree, net: Model, graph: Graph) -> torch.Tensor:
    """What a client trains for, without dropout."""
    return CrossEntropy().objective(Outputs(Forward(w, net, graph, None), {}, {}))  # type: ignore[arg-type]


def gin(dropout: float = 0.5, name: str = "gin") -> Model:
    """A small model of small graphs, by default a 2-layer GIN."""
    return MODELS[name](HIDDEN, 2, dropout, "sum").build(small_graphs.FEATURES, small_graphs.CLASSES)


def algorithm(name: str, dropout: float = 0.5, **options: Any) -> Any:
    """A registered algorithm with a model that it can train, by one local step a round where it counts them."""
    return Subject(ALGORITHMS[name]).build(dropout, **options)


def federation(engine: type[Simulation] = Simulation, dtype: torch.dtype = torch.float32, **options: Any) -> Simulation:
    """The five clients of `graphs` on an engine; where a test is not about its modes, nothing is recorded: that
    changes no number, and pays only for many rounds or steps (record="auto")."""
    given: dict[str, Any] = {} if "mode" in options else {"record": "never"}
    name = options.pop("name", None)
    return federations.federation(engine, dtype, _needs(name), finders=_finders(name), **(given | options))


def state_after(algorithm: Any, fed: Simulation, rounds: int) -> Tree:
    """The server's state after some rounds, of which none is evaluated."""
    fed.begin(0)
    state: Tree = algorithm.init(fed)
    for number in range(1, rounds + 1):
        fed.begin(number)
        state = algorithm.round(state, fed)
    return state


class Recorder(Simulation):
    """Keeps the last replies."""

    def map(self, *args: Any, **options: Any) -> Any:
        self.heard = super().map(*args, **options)
        return self.heard


def distance(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of equal structure; infinite where shapes differ."""
    assert dict(leaves(a)).keys() == dict(leaves(b)).keys()
    return apart(a, b)


def _needs(name: str | None) -> Capabilities:
    return Capabilities() if name is None else capabilities(ALGORITHMS[name])


def _finders(name: str | None) -> tuple[Precompute, ...]:
    return () if name is None else algorithm(name).finders


def on_device(subject: Subject, device: torch.device, **how: Any) -> Simulation:
    """The contract's federation, all that it holds included, in double precision on a device."""
    dtype, needs = torch.float64, subject.needs
    graphs, test = subject.graphs(dtype), federations.global_test(dtype, needs)
    given: dict[str, Any] = {"test": test, "held": {"validation": test}}
    if not needs.graph_level:
        given["held"] |= {"public": public(dtype)}
    fed: Simulation = subject.federation(Simulation, dtype, clients=graphs, device=device, **how, **given)
    return fed
