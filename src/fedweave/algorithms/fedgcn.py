"""FedGCN: Yao et al. 2023, "FedGCN: convergence-communication tradeoffs in federated training of graph convolutional
networks".

Before training, the server adds up the features of each node's neighbors over all clients, and sends the sums to the
clients that hold the node. The first convolution is then computed once over all edges, also those between clients. With
two hops clients also get the sums of their nodes' neighbors elsewhere, and a network of two convolutions computes on
every client's nodes exactly what it would compute on the whole graph.

Deviations: with one hop, the second convolution takes degrees within the client. If clients share nodes, only the first
of them adds these nodes' features, so that each edge counts once. Sums travel in the clear; the paper encrypts them.
The whole graph is the one of the clients that take part: edges to nodes that none of them holds do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Needs, OptimizerName, Part, Training, Uniform
from fedweave.algorithms.preset import preset_of
from fedweave.core.algorithm import Capabilities
from fedweave.core.federation import DATA, Client, Federation, Step, on_client
from fedweave.core.graph import Graph, GraphArrays, dense, graph_arrays, graph_like
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import NODES, MessagePassing, Precomputed
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, to
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.ego_networks import crossing_edges

_GONE = {"gone": "which of the nodes that its own are joined to no client holds"}
_MINE = {"mine": "which of the nodes that others hold, too, it is to add up"} | _GONE
_ROWS = {
    "own": "for each of its nodes, the sum of the features of all neighbors, also of those that others hold",
    "outside": "for each neighbor that another member holds, the sum of the features of that one's neighbors",
    "degree": "how many neighbors those have that others hold",
} | _GONE
_TELLS = {
    "node": "which nodes of the whole graph the client holds",
    "outside": "which nodes of others its nodes are joined to",
}
_SUMS = {
    "node": "which nodes the client's nodes are or are joined to",
    "sum": "for each of these, the sum of its neighbors' features at this client; of a single neighbor, the features",
    "degree": "how many neighbors each of the client's nodes has",
}

PLACES, CROSSING = "places", "crossing"  # what a client's graph has besides


class NodePlace(NamedTuple):
    """The places of a client's nodes in the graph of all clients. Never an input of a model.

    nodes:    int64 [n], the global numbers of its nodes as loaded.
    crossing: int64 [2, C], edges that leave the client: its own node, counted as in its graph, and the global number of
              a node that another client holds and it does not.
    """

    nodes: Tensor
    crossing: Tensor

    @classmethod
    def of(cls, graph: Graph) -> "NodePlace":
        """Those of one client, on the host or where its graph is.

        Raises:
            ValueError: nobody looked for them.
        """
        nodes, crossing = graph.found(PLACES), graph.found(CROSSING)
        return cls(nodes[nodes >= 0], crossing[crossing[:, 0] >= 0].T)

    def without(self, gone: Tensor | None) -> "NodePlace":
        """Those without edges to the nodes `gone`, int64 [g]."""
        if gone is None:
            return self
        return self._replace(crossing=self.crossing[:, ~torch.isin(self.crossing[1], gone)])


@dataclass(frozen=True)
class Places:
    """Finds where clients' nodes stand in the graph of all, which only a simulation knows."""

    def everywhere(self, data: Dataset, partition: Partition) -> list[Precomputed]:
        """The clients' `NodePlace`s, as tables of numbers."""
        groups, along = [part.nodes for part in partition.parts], {PLACES: NODES, CROSSING: CROSSING}
        places = zip(groups, crossing_edges(data, groups), strict=True)
        return [Precomputed({PLACES: nodes, CROSSING: crossing.T}, along=along) for nodes, crossing in places]

    def alone(self, data: Dataset, folder: Path) -> Precomputed:
        """Nothing that is alone can know it."""
        raise ConfigError("FedGCN must know where a client's nodes stand in the whole graph, which no site does.")

    def tables(self, found: Mapping[str, Precomputed]) -> dict[str, np.ndarray]:
        """None."""
        return {}


@dataclass(frozen=True)
class NeighborSums(Part):
    """Clients' features become rows of Â X, Â = D~^-1/2 (A + I) D~^-1/2 of the graph of all clients, which the server
    sums from the clients' shares; the first convolution then passes no further messages (algorithm 1).

    hops: 0 exchanges nothing; 1 gives each client the rows of its own nodes; 2 those of its nodes' neighbors elsewhere
        besides, and the edges to them.
    """

    hops: Literal[0, 1, 2] = 2
    needs = Needs(ids=True, nodes=True, finder=Places(), classes=True)

    def __post_init__(self) -> None:
        if self.hops not in (0, 1, 2):
            raise ValueError(f"hops is {self.hops}; it must be 0, 1 or 2")

    def check(self, training: Training) -> None:
        """Refuse a model whose first layer multiplies by another matrix, or needs more of it than products."""
        first = training.model[0]
        if self.hops and (first.operator != "gcn" or first.reads != "product"):
            raise ValueError("the sums exchanged before training are those of a graph convolution; choose model gcn")

    def layers(self, model: Model, own: bool) -> Model:
        """On the clients' own data, the first layer takes the features as they are."""
        return (_without_messages(model[0]), *model[1:]) if self.hops and own else model

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The exchange."""
        if not self.hops:
            return {}
        replies = fed.map(self.tell)
        nodes, index = torch.cat([reply["node"] for reply in replies]).unique(return_inverse=True)
        first = _first(index, len(nodes))
        mine = first.split([len(reply["node"]) for reply in replies])
        gone = _gone(nodes, replies)
        shares = fed.map(
            self.add_up,
            each={c: {"mine": positions} | gone[c] for c, positions in zip(replies.clients, mine, strict=True)},
        )
        sums, degree = _total(nodes, shares), torch.zeros_like(nodes)
        degree[index] = torch.cat([reply["degree"] for reply in shares])

        def rows(client: str) -> Tree:
            outside = replies[client]["outside"] if self.hops == 2 else nodes[:0]
            positions, outside = (
                torch.searchsorted(nodes, ids) for ids in (replies[client]["node"], outside[torch.isin(outside, nodes)])
            )
            return {"own": sums[positions], "outside": sums[outside], "degree": degree[outside]} | gone[client]

        fed.replace_data(self.take, each={client: rows(client) for client in replies.clients})
        return {}

    @property
    def setup(self) -> tuple[Step, ...]:
        """The exchange's three steps."""
        return (self.tell, self.add_up, self.take) if self.hops else ()

    # The three steps are plain ones that NumPy computes on the host; replies go back to the client's device.

    @on_client(sends=_TELLS, ragged=True)
    def tell(self, client: Client, message: Tree) -> Tree:
        """{"node": int64 [n], "outside": int64 [m]}."""
        place = NodePlace.of(client.graph)
        return {"node": place.nodes, "outside": place.crossing[1].unique()}

    @on_client(sends=_SUMS, ragged=True, hears=_MINE)
    def add_up(self, client: Client, message: Tree) -> Tree:
        """{"node": int64 [t], "sum": [t, d], "degree": int64 [n]}: Σ_u x_u / √d~_u over those of the client's nodes u
        that it is to add, for each node that is one of them or their neighbor; and the degrees of its nodes."""
        place, arrays = NodePlace.of(client.graph).without(message.get("gone")), graph_arrays(client.graph)
        degree = _degree(arrays, place)
        mine = message["mine"].cpu().numpy()
        inside, other = place.crossing.cpu().numpy()
        here = np.arange(len(mine))
        source = np.concatenate([here, arrays.edges[0], inside])
        target = np.concatenate([place.nodes.cpu().numpy()[np.concatenate([here, arrays.edges[1]])], other])
        target, source = target[mine[source]], source[mine[source]]
        node, at = np.unique(target, return_inverse=True)
        scale = (1 / np.sqrt(degree + 1)).astype(arrays.x.dtype)
        adds = sp.csr_matrix((scale[source], (at, source)), shape=(len(node), len(mine)))
        reply = {"node": node, "sum": dense(adds @ arrays.x), "degree": degree}
        return to({key: torch.from_numpy(value) for key, value in reply.items()}, client.graph.device)

    @on_client(replaces_data=True, hears=_ROWS)
    def take(self, client: Client, message: Tree) -> Tree:
        """The rows of Â X in place of the features, and with two hops the neighbors elsewhere."""
        old, place = graph_arrays(client.graph), NodePlace.of(client.graph).without(message.get("gone"))
        new = old._replace(x=_scaled(message["own"], _degree(old, place)))
        if self.hops == 2:
            new = _joined(new, place, message)
        return {DATA: graph_like(client.graph, new)}


def _first(index: Tensor, count: int) -> Tensor:
    """bool: whether each of `index`, numbers below `count`, is the first of its number."""
    place = torch.arange(len(index), device=index.device)
    return place.new_full((count,), len(index)).scatter_reduce(0, index, place, "amin")[index] == place


def _gone(nodes: Tensor, replies: Replies) -> dict[str, Tree]:
    """{client: what else it is sent}: which of the nodes that its own are joined to are none of `nodes`, int64 [N];
    nothing where no client lacks any."""
    gone = {
        client: replies[client]["outside"][~torch.isin(replies[client]["outside"], nodes)] for client in replies.clients
    }
    lacks = any(len(missing) for missing in gone.values())
    return {client: {"gone": missing} if lacks else {} for client, missing in gone.items()}


def _total(nodes: Tensor, shares: Replies) -> Tensor:
    """[N, d]: the sums of all clients for the nodes int64 [N], rising."""
    parts = [(torch.searchsorted(nodes, reply["node"]), reply["sum"]) for reply in shares]
    total: Tensor = parts[0][1].new_zeros(len(nodes), parts[0][1].shape[1], dtype=torch.float64)
    for at, part in parts:
        total.index_add_(0, at, part.double())
    return total.to(parts[0][1].dtype)


def _joined(arrays: GraphArrays, place: NodePlace, message: Tree) -> GraphArrays:
    """A client's n nodes, their neighbors elsewhere with those neighbors' rows of Â X, and nodes without features
    that stand for these neighbors' further ones, so that all degrees are those of the whole graph."""
    here, other = place.crossing.cpu().numpy()
    n, index = len(arrays.y), np.unique(other, return_inverse=True)[1]
    degree = message["degree"].cpu().numpy()
    missing = degree - np.bincount(index, minlength=len(degree))
    far, more = len(degree), int(missing.max(initial=0))
    end = np.repeat(np.arange(far), missing)
    stand_in = np.arange(len(end)) - np.repeat(np.cumsum(missing) - missing, missing)
    links = np.concatenate([np.stack([here, n + index]), np.stack([n + end, n + far + stand_in])], 1)
    outside = np.concatenate([_scaled(message["outside"], degree), np.zeros((more, arrays.x.shape[1]), arrays.x.dtype)])
    return GraphArrays(
        np.concatenate([arrays.x, outside]),
        np.concatenate([arrays.edges, links, links[::-1]], 1),
        np.pad(arrays.y, (0, far + more), constant_values=-1),
        np.pad(arrays.masks, ((0, 0), (0, far + more))),
        None if arrays.sens is None else np.pad(arrays.sens, (0, far + more), constant_values=-1),
    )


def _degree(arrays: GraphArrays, place: NodePlace) -> np.ndarray:
    """int64 [n]: neighbors of a client's own nodes in the graph of all clients."""
    return np.bincount(np.concatenate([arrays.edges[0], place.crossing[0].cpu().numpy()]), minlength=len(arrays.y))


def _scaled(sums: Tensor, degree: np.ndarray) -> np.ndarray:
    """Rows of Â X: the sums [n, d] by √d~."""
    return (sums.cpu() / torch.from_numpy(degree + 1).to(sums.dtype).sqrt()[:, None]).numpy()


class _Passed:
    """Edges whose messages were passed before (a `core.operators.MessagePassing` and its own operator)."""

    shrinks = False

    def __init__(self, nodes: int) -> None:
        self.shape = (nodes, nodes)

    def operator(self, kind: str) -> "_Passed":
        """I."""
        return self

    def __matmul__(self, dense: Tensor) -> Tensor:
        return dense

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """All rows as they are."""
        return h, h


def passed_edges(nodes: int) -> MessagePassing:
    """Edges along which nothing more is passed: each of so many nodes gets what it has itself."""
    return _Passed(nodes)


def _without_messages(layer: Layer) -> Layer:
    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply(w, graph._replace(edges=passed_edges(graph.nodes)), h, key)

    return layer._replace(apply=apply)


@preset_of(NeighborSums, Uniform)
class FedGCN:
    """FedAvg of a graph convolutional network that knows the features of neighbors at other clients, as sums that were
    exchanged once.

    local_steps: optimizer steps per round.
    optimizer:   optimizer of the local training.
    lr:          learning rate of the local training.
    """

    local_steps: int = 3
    optimizer: OptimizerName = "sgd"
    lr: float = 0.5

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, ids=True)
