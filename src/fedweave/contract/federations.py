"""The small federations that the laws are tried on: five clients of different sizes, with what an algorithm needs."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.contract import small_graphs
from fedweave.core.algorithm import Capabilities
from fedweave.core.engine import Engine
from fedweave.core.federation import Placement
from fedweave.core.graph import Graph, make_graph
from fedweave.core.records import Record
from fedweave.engines.simulation import Simulation

FEATURES, CLASSES = 60, 3
SIZES = (21, 40, 33, 57, 12)  # nodes
SHARED = 40  # nodes of every client of a vertical federation
PLAIN = Capabilities()


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


def people(nodes: int, seed: int) -> tuple[Any, ...]:
    """As `arrays` with two classes, and two groups of which one is in the first class more often; a few unknown."""
    x, edges, y, masks = arrays(nodes, seed)
    draws = np.random.default_rng(seed).random((2, nodes))
    sens = np.where(draws[0] < 0.05, -1, draws[1] < 0.3 + 0.4 * (y == 0)).astype(int)
    return x, edges, (y > 0).astype(int), masks, sens


def graphs(
    dtype: torch.dtype = torch.float32,
    changed: int | None = None,
    needs: Capabilities = PLAIN,
    halved: bool = False,
) -> dict[str, Graph]:
    """{client: graph}, as an algorithm `needs` it: of the same nodes, labels and masks for a vertical one; with two
    classes and a sensitive attribute; small graphs with their motifs. Client `changed` holds other data. halved: no
    node of a client has more than half of the features, of nodes."""
    if needs.graph_level:
        return small_graphs.graphs(dtype, changed, known=True)
    if needs.vertical:
        _, _, y, masks = arrays(SHARED, 0)
        sides = (arrays(SHARED, i + 100 * (i == changed), y) for i in range(len(SIZES)))
        drawn = [(x, edges, y, masks) for x, edges, *_ in sides]
    else:
        draw = people if needs.sens else arrays
        drawn = [draw(nodes + 7 * (i == changed), i + 100 * (i == changed)) for i, nodes in enumerate(SIZES)]
    return {f"site-{i}": _graph(dtype, _half(x, i) if halved else x, *others) for i, (x, *others) in enumerate(drawn)}


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
            1000 * i + torch.arange(count[name], device="cpu"),
            torch.tensor(links[name], dtype=torch.int64, device="cpu").reshape(-1, 2).T.contiguous(),
        )
        for i, name in enumerate(names)
    }


def global_test(dtype: torch.dtype = torch.float32, needs: Capabilities = PLAIN) -> Graph:
    """What no client holds, all of it to be tested on."""
    if needs.graph_level:
        return small_graphs.global_test(dtype)
    x, edges, y, _, *sens = (people if needs.sens else arrays)(25, 999)
    masks = np.arange(3)[:, None] == np.full(25, 2)
    return _graph(dtype, x, edges, y, masks, *sens)


def public(dtype: torch.dtype = torch.float32) -> Graph:
    """A sample that the server holds and no client does."""
    x, edges, y, masks = arrays(30, 555)
    return make_graph(x, edges, y, np.zeros_like(masks), dtype=dtype)


def shape(needs: Capabilities = PLAIN) -> tuple[int, int]:
    """How many features and classes the data has."""
    if needs.graph_level:
        return small_graphs.FEATURES, small_graphs.CLASSES
    return FEATURES, 2 if needs.sens else CLASSES


def federation(
    engine: Callable[..., Engine] = Simulation,
    dtype: torch.dtype = torch.float32,
    needs: Capabilities = PLAIN,
    **options: Any,
) -> Any:
    """The clients of `graphs`, or those given, on an engine; the server holds a test set and, for nodes, a sample."""
    clients = options.pop("clients", None) or graphs(dtype, needs=needs)
    test = global_test(dtype, needs)
    given: Record = {"test": test, "held": {"validation": test}}
    if not needs.graph_level:
        given |= {"places": places(clients), "held": {"public": public(dtype), "validation": test}}
    return engine(clients, classes=shape(needs)[1], **(given | options))


def _half(x: sp.csr_matrix, which: int) -> sp.csr_matrix:
    """The features, half of which are 0: of every class, and not the same at neighbours."""
    half = sp.csr_matrix(x.multiply((np.arange(FEATURES) // CLASSES + which) % 2))
    half.eliminate_zeros()
    return half


def _graph(dtype: torch.dtype, x: Any, edges: Any, y: Any, masks: Any, sens: Any = None) -> Graph:
    return make_graph(x, edges, y, masks, sens, dtype=dtype)
