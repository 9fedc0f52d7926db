"""The small federation that the contract runs on."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.config import own_parameters
from fedweave.contract.wire import BytesEngine as BytesEngine
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Placement
from fedweave.core.graph import Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.models import MODELS
from tests.contract import small_graphs

FEATURES, CLASSES, HIDDEN = 60, 3, 8
SIZES = (21, 40, 33, 57, 12)
SHARED = 40  # nodes of every client of a vertical federation
VERTICAL = {name for name, kind in ALGORITHMS.items() if capabilities(kind).vertical}
GRAPH_LEVEL = {name for name, kind in ALGORITHMS.items() if capabilities(kind).graph_level}
PEOPLE = {name for name, kind in ALGORITHMS.items() if capabilities(kind).sens}
# Algorithms that a GCN does not suit, or whose defaults take long here: their model and their parameters.
OTHER_MODELS: dict[str, dict[str, Any]] = {"fedego": {"name": "ego", "layers": 2}, "fedstar": {"name": "star"}}
OTHER_PARAMETERS: dict[str, dict[str, Any]] = {
    "fedego": {"batch": 4, "batches": 2, "epochs": 1, "server_epochs": 1, "fan_out": 2, "lr": 0.01, "sigma": 0.01}
}
OTHER_PARAMETERS["fedsage"] = {"batch": 8, "fan_out": 2, "local_steps": 2}
OTHER_PARAMETERS["fedsage_plus"] = OTHER_PARAMETERS["fedsage"] | {
    "slots": 2,
    "epochs": 4,
    "exchanges": 3,
    "sample": 8,
    "hidden": (8,),
    "rounding": "random",
}
OTHER_PARAMETERS["fairgfl"] = {"code_size": 20, "encoder_rounds": 3, "sample": 24, "epsilon_a": 6.0, "epsilon_b": 4.0}
OTHER_PARAMETERS["fedavgm"] = {"server_lr": 0.1, "local_steps": 3}  # with longer steps the losses here oscillate
OTHER_PARAMETERS["fedadam"] = {"local_steps": 3}
OTHER_PARAMETERS["dp_fedavg"] = {"sigma": 0.01}  # with more noise nothing is learnt by five clients
OTHER_PARAMETERS["fairgraphfl"] = {"lr": 0.01}
OTHER_PARAMETERS["fedstar"] = {"lr": 0.01}
OTHER_PARAMETERS |= {
    "gcfl": {"eps1": 10.0, "eps2": 0.0, "wait": 2},
    "gcfl_plus": {"eps1": 10.0, "eps2": 0.0, "wait": 2, "length": 2},
}  # the clusters are cut while the contract looks
OTHER_PARAMETERS |= {
    name: {"batch": 16, "lr": 0.1} | ({} if name == "vfl" else {"fan_out": 2}) for name in sorted(VERTICAL)
}


def arrays(nodes: int, seed: int, given: np.ndarray | None = None) -> tuple[Any, ...]:
    """A random connected graph with sparse features that depend on the classes, which may be `given` [nodes]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, nodes) if given is None else given
    path = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    extra = rng.integers(0, nodes, (2, 2 * nodes))
    pairs = np.concatenate([path, extra[:, extra[0] != extra[1]]], axis=1)
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    odds = 0.03 + 0.15 * (np.arange(FEATURES) % CLASSES == y[:, None])
    x = sp.csr_matrix((rng.random((nodes, FEATURES)) < odds).astype(np.float32))
    fate = rng.permutation(nodes)
    masks = np.stack([fate < nodes // 3, (fate >= nodes // 3) & (fate < nodes // 2), fate >= nodes // 2])
    return x, edges, y, masks


def graphs(dtype: torch.dtype = torch.float32, changed: int | None = None, name: str | None = None) -> dict[str, Graph]:
    """Five clients of different sizes or, for a vertical algorithm, with the same nodes, labels and masks; for one that
    needs a sensitive attribute, with that and two classes; for one of small graphs, with those and their motifs;
    `changed` holds other data."""
    if name in GRAPH_LEVEL:
        return small_graphs.graphs(dtype, changed, known=True)
    if name in VERTICAL:
        _, _, y, masks = arrays(SHARED, 0)
        sides = (arrays(SHARED, i + 100 * (i == changed), y) for i in range(len(SIZES)))
        return {f"site-{i}": make_graph(x, edges, y, masks, dtype=dtype) for i, (x, edges, *_) in enumerate(sides)}
    drawn = people if name in PEOPLE else arrays
    return {
        f"site-{i}": make_graph(*drawn(nodes + 7 * (i == changed), i + 100 * (i == changed)), dtype=dtype)
        for i, nodes in enumerate(SIZES)
    }


def people(nodes: int, seed: int) -> tuple[Any, ...]:
    """As `arrays` with two classes, and two groups of which one is in the first class more often; a few unknown."""
    x, edges, y, masks = arrays(nodes, seed)
    draws = np.random.default_rng(seed).random((2, nodes))
    sens = np.where(draws[0] < 0.05, -1, draws[1] < 0.3 + 0.4 * (y == 0)).astype(int)
    return x, edges, (y > 0).astype(int), masks, sens


def places(clients: Mapping[str, Graph]) -> dict[str, Placement]:
    """Where the clients' nodes stand: none at two clients; some are joined to some of the next client by name."""
    names = sorted(clients)
    count = {name: int(clients[name].real.sum()) for name in names}
    links: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for i, (one, other) in enumerate(pairwise(names)):
        for node in range(0, 12, 3):
            links[one].append((node, 1000 * (i + 1) + node % 10))
            links[other].append((node % 10, 1000 * i + node))
    return {
        name: Placement(
            1000 * i + torch.arange(count[name]),
            torch.tensor(links[name], dtype=torch.int64).reshape(-1, 2).T.contiguous(),
        )
        for i, name in enumerate(names)
    }


def global_test(dtype: torch.dtype = torch.float32, name: str | None = None) -> Graph:
    """A graph that no client holds, all nodes in its test mask."""
    x, edges, y, _, *sens = (people if name in PEOPLE else arrays)(25, 999)
    masks = np.arange(3)[:, None] == np.full(25, 2)
    return make_graph(x, edges, y, masks, *sens, dtype=dtype)


def public(dtype: torch.dtype = torch.float32) -> Graph:
    """A sample that the server holds and no client does."""
    x, edges, y, masks = arrays(30, 555)
    return make_graph(x, edges, y, np.zeros_like(masks), dtype=dtype)


def classes(name: str | None = None) -> int:
    """How many the data of an algorithm has."""
    return 2 if name in PEOPLE else CLASSES


def model(dropout: float = 0.5, name: str = "gcn", layers: int = 2, classes: int = CLASSES) -> Model:
    """A small model, by default a 2-layer GCN."""
    return MODELS[name](hidden=HIDDEN, layers=layers, dropout=dropout).build(FEATURES, classes)


def gin(dropout: float = 0.5, name: str = "gin") -> Model:
    """A small model of small graphs, by default a 2-layer GIN."""
    return MODELS[name](HIDDEN, 2, dropout, "sum").build(small_graphs.FEATURES, small_graphs.CLASSES)


def algorithm(name: str, dropout: float = 0.5, **options: Any) -> Any:
    """A registered algorithm with a model that it can train, by one local step a round where it counts them."""
    kind = OTHER_MODELS.get(name, {})
    net = gin(dropout, **kind) if name in GRAPH_LEVEL else model(dropout, classes=classes(name), **kind)
    steps = {"local_steps": 1} if "local_steps" in own_parameters(ALGORITHMS[name]) else {}
    return ALGORITHMS[name](net, **(steps | OTHER_PARAMETERS.get(name, {}) | options))


def federation(engine: type[Simulation] = Simulation, dtype: torch.dtype = torch.float32, **options: Any) -> Simulation:
    """The five clients of `graphs` on an engine."""
    name = options.pop("name", None)
    clients = options.pop("clients", None) or graphs(dtype, name=name)
    small = name in GRAPH_LEVEL
    if not small:
        options.setdefault("places", places(clients))
    held = {} if small else {"public": public(dtype)}
    if not options.pop("without_test", False):
        options["test"] = small_graphs.global_test(dtype) if small else global_test(dtype, name)
        held["validation"] = options["test"]
    options.setdefault("held", held)
    return engine(clients, classes=small_graphs.CLASSES if small else classes(name), **options)


def distance(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of equal structure; infinite where shapes differ."""
    flat_a, flat_b = dict(leaves(a)), dict(leaves(b))
    assert flat_a.keys() == flat_b.keys()
    pairs = [(torch.as_tensor(x).double(), torch.as_tensor(flat_b[path]).double()) for path, x in flat_a.items()]
    gaps = [float((x - y).abs().max()) if x.shape == y.shape else float("inf") for x, y in pairs if x.numel()]
    return max(gaps, default=0.0)
