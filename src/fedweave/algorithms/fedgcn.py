"""FedGCN: Yao et al. 2023, "FedGCN: convergence-communication tradeoffs in federated training of graph convolutional
networks".

Before training, the server adds up the features of each node's neighbors over all clients, and sends the sums to the
clients that hold the node. The first convolution is then computed once over all edges, also those between clients. With
two hops clients also get the sums of their nodes' neighbors at other clients. A network of two convolutions then
computes the same outputs on every client's nodes as on the whole graph.

Deviations: with one hop, the second convolution takes degrees within the client. If several clients hold a node, only
the first of them adds its features, so that each edge counts once. Clients send sums in the clear, where the paper
encrypts them; with secure aggregation of updates, the exchange uses secure aggregation too. The whole graph is the
union of the participating clients' graphs: edges to nodes that none of them holds do not count. All clients must answer
the exchange. If one does not, the run ends before any training with an error that names the client: without its sums, a
client that comes back later would train on other features than the rest.
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
from fedweave.algorithms.parts.part import copy_part
from fedweave.algorithms.preset import preset_of
from fedweave.core.algorithm import Capabilities
from fedweave.core.federation import DATA, Client, Federation, Sends, Step, on_client
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import GraphArrays, dense, graph_arrays, graph_like
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Hidden, Model
from fedweave.core.operators import NODES, MessagePassing, Precomputed
from fedweave.core.tree import Tree, to
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, DataError
from fedweave.partition.base import Partition
from fedweave.partition.ego_networks import crossing_edges
from fedweave.privacy.secure_sum import FixedPoint

_MISSING = {"gone": "which of the nodes that its own are joined to no client holds"}
_MINE = {"mine": "which of the nodes that others hold, too, it is to add up"} | _MISSING
_ROWS = {
    "own": "for each of its nodes, the sum of the features of all neighbors, also of those that others hold",
    "outside": "for each neighbor that another member holds, the sum of the features of that one's neighbors",
    "degree": "how many neighbors those have that others hold",
} | _MISSING
_REVEALS = {
    "node": "which nodes of the whole graph the client holds",
    "outside": "which nodes of others its nodes are joined to",
}
_SUMS = {
    "node": "which nodes the client's nodes are or are joined to",
    "sum": "for each of these, the sum of its neighbors' features at this client; of a single neighbor, the features",
    "degree": "how many neighbors each of the client's nodes has",
}

# Declarations with secure aggregation, in which every client adds a term for every node.
_HOLDERS = {"held": "how many clients hold a node, for every node, by numbers that the server cannot tell from chance"}
_ALL_SUMS = {
    "sum": "for every node, by such numbers, the sum of the features of all its neighbors",
    "degree": "for every node, by such numbers, how many neighbors it has",
}

PLACES, CROSSING, NUMBERED = "places", "crossing", "numbered"  # precomputed tables in a client's graph
_FRACTION, _BOUND = 32, 2.0**20  # of masked integers of 64 bits: binary digits behind the point, and the largest sum


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
        """The places of one client's nodes, on the device of its graph.

        Raises:
            ValueError: the places were not precomputed.
        """
        nodes, crossing = graph.precomputed(PLACES), graph.precomputed(CROSSING)
        return cls(nodes[nodes >= 0], crossing[crossing[:, 0] >= 0].T)

    def without(self, gone: Tensor | None) -> "NodePlace":
        """The places without edges to the nodes `gone`, int64 [g]."""
        if gone is None:
            return self
        return self._replace(crossing=self.crossing[:, ~torch.isin(self.crossing[1], gone)])


@dataclass(frozen=True)
class Places:
    """Precomputes the places of clients' nodes in the whole graph, which only a simulation knows.

    keyed: nodes get numbers that clients draw together and the server does not know, such as a keyed hash of their ids.
           In a simulation these numbers, like all its secrets, protect no data.
    """

    keyed: bool = False

    def everywhere(self, data: Dataset, partition: Partition) -> list[Precomputed]:
        """The clients' `NodePlace`s, as tables of numbers; with keyed numbers also the number of nodes."""
        groups, along = [part.nodes for part in partition.parts], {PLACES: NODES, CROSSING: CROSSING}
        numbers = np.random.default_rng(len(groups)).permutation(data.nodes)
        results = []
        for nodes, (here, other) in zip(groups, crossing_edges(data, groups), strict=True):
            if self.keyed:
                arrays = {PLACES: numbers[nodes], CROSSING: np.stack([here, numbers[other]], 1)}
                arrays = {name: array.astype(np.int64) for name, array in arrays.items()}
                arrays[NUMBERED] = np.array([data.nodes], np.int64)
                results.append(Precomputed(arrays, along=along | {NUMBERED: NUMBERED}))
            else:
                results.append(Precomputed({PLACES: nodes, CROSSING: np.stack([here, other], 1)}, along=along))
        return results

    def alone(self, data: Dataset, folder: Path) -> Precomputed:
        raise ConfigError("FedGCN must know where a client's nodes stand in the whole graph, which no site does.")

    def tables(self, precomputed: Mapping[str, Precomputed]) -> dict[str, np.ndarray]:
        return {}


@dataclass(frozen=True)
class NeighborSums(Part):
    """Replaces clients' features with rows of Â X, Â = D~^-1/2 (A + I) D~^-1/2 of the whole graph, which the server
    adds up from the clients' shares. The first convolution then passes no further messages (algorithm 1).

    hops: 0 exchanges nothing; 1 gives each client the rows of its own nodes; 2 also the rows of its nodes' neighbors at
        other clients, and the edges to them.
    """

    hops: Literal[0, 1, 2] = 2
    recorded = True
    within: ClassVar[SecureSum | None] = None  # the form of secure aggregation; None without it

    @property
    def needs(self) -> Needs:
        return Needs(data=("ids", "nodes", "classes"), finder=Places(self.within is not None))

    def join_sum(self, within: SecureSum) -> Part:
        return copy_part(self, within=within)

    def check(self, training: Training) -> None:
        first = training.model[0]
        if self.hops and (first.operator != "gcn" or first.reads != "product" or first.by_feature != ("weight",)):
            raise ValueError(
                "the sums exchanged before training belong to a graph convolution and nothing beside it; choose model "
                "gcn, without residual and input_layer"
            )

    def layers(self, model: Model, on_clients: bool) -> Model:
        """On the clients' own data, the first layer takes the features as they are."""
        if not self.hops or not on_clients:
            return model
        first = model[0]

        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            edges: MessagePassing = SelfEdges(graph.nodes)
            return first.apply(w, graph._replace(edges=edges), h, key)

        return (first._replace(apply=apply), *model[1:])

    def init(self, fed: Federation, w: Tree) -> Tree:
        if not self.hops:
            return {}
        if self.within is not None:
            # In three messages, the same for all clients: holders of each node, sums, totals.
            FixedPoint.of(_sum_form(self.within)).check(_BOUND, len(fed.clients), "fedgcn")
            holders = fed.map(self.hold).total("held")
            totals = fed.map(self.add_to_all, {"held": holders})
            decoded = FixedPoint.of(_sum_form(self.within)).decode(totals.total("sum"), fed.dtype)
            degree = totals.total("degree") // holders.clamp(min=1)  # every holder of a node knows all of its neighbors
            fed.replace_data(self.take_of_all, {"held": holders, "sum": decoded, "degree": degree})
            return {}

        # 1. Which nodes clients hold; the first client that holds a node adds its features.
        replies = fed.map(self.tell)
        nodes, index = torch.cat([reply["node"] for reply in replies]).unique(return_inverse=True)
        place = torch.arange(len(index), device=index.device)
        first_place = place.new_full((len(nodes),), len(index)).scatter_reduce(0, index, place, "amin")
        adds = (first_place[index] == place).split([len(reply["node"]) for reply in replies])
        gone: dict[str, Tree] = {}  # neighbors that no client holds; in all messages or in none
        for client in replies.clients:
            outside = replies[client]["outside"]
            gone[client] = {"gone": outside[~torch.isin(outside, nodes)]}
        if not any(len(message["gone"]) for message in gone.values()):
            gone = {client: {} for client in replies.clients}

        # 2. Sums of features, and degrees.
        each = {client: {"mine": mask} | gone[client] for client, mask in zip(replies.clients, adds, strict=True)}
        shares = fed.map(self.add_up, each=each)
        dtype, width = shares[replies.clients[0]]["sum"].dtype, shares[replies.clients[0]]["sum"].shape[1]
        total = torch.zeros(len(nodes), width, dtype=torch.float64, device=nodes.device)
        for reply in shares:
            total.index_add_(0, torch.searchsorted(nodes, reply["node"]), reply["sum"].double())
        sums, degree = total.to(dtype), torch.zeros_like(nodes)  # [N, d], [N]
        degree[index] = torch.cat([reply["degree"] for reply in shares])

        # 3. Each client's rows.
        rows = {}
        for client in replies.clients:
            local = torch.searchsorted(nodes, replies[client]["node"])
            outside = replies[client]["outside"] if self.hops == 2 else nodes[:0]
            outside = torch.searchsorted(nodes, outside[torch.isin(outside, nodes)])
            rows[client] = {"own": sums[local], "outside": sums[outside], "degree": degree[outside]} | gone[client]
        fed.replace_data(self.take, each=rows)
        return {}

    @property
    def setup(self) -> tuple[Step, ...]:
        if not self.hops:
            return ()
        if self.within is not None:
            return (self.hold, self.add_to_all, self.take_of_all)
        return (self.tell, self.add_up, self.take)

    # NumPy computes the three steps on the host; replies go back to the client's device.

    @on_client(sends=_REVEALS, ragged=True)
    def tell(self, client: Client, message: Tree) -> Tree:
        """{"node": int64 [n], "outside": int64 [m]}."""
        place = NodePlace.of(client.graph)
        return {"node": place.nodes, "outside": place.crossing[1].unique()}

    @on_client(sends=_SUMS, ragged=True, hears=_MINE)
    def add_up(self, client: Client, message: Tree) -> Tree:
        """{"node": int64 [t], "sum": [t, d], "degree": int64 [n]}: Σ_u x_u / √d~_u over the client's nodes u that it
        must add, for each of these nodes and their neighbors; and the degrees of its nodes."""
        place, arrays = NodePlace.of(client.graph).without(message.get("gone")), graph_arrays(client.graph)
        degree = _degree(arrays, place)
        mine = message["mine"].cpu().numpy()
        target, source = _adjacent_pairs(arrays, place)
        target, source = target[mine[source]], source[mine[source]]
        node, at = np.unique(target, return_inverse=True)
        scale = (1 / np.sqrt(degree + 1)).astype(arrays.x.dtype)
        adds = sp.csr_matrix((scale[source], (at, source)), shape=(len(node), len(mine)))
        reply = {"node": node, "sum": dense(adds @ arrays.x), "degree": degree}
        return to({key: torch.from_numpy(value) for key, value in reply.items()}, client.graph.device)

    @on_client(replaces_data=True, hears=_ROWS)
    def take(self, client: Client, message: Tree) -> Tree:
        """Replace the features with rows of Â X, and with two hops add the neighbors at other clients."""
        old, place = graph_arrays(client.graph), NodePlace.of(client.graph).without(message.get("gone"))
        new = old._replace(x=_divide_by_degree(message["own"], _degree(old, place)))
        if self.hops == 2:
            new = _with_outside(new, place, message)
        return {DATA: graph_like(client.graph, new)}

    # The steps with secure aggregation.

    @on_client(sends=lambda self: _in_sum(_HOLDERS, replace(_sum_form(self.within), fraction=0)), ragged=True)
    def hold(self, client: Client, message: Tree) -> Tree:
        """{"held": int64 [N]}: 1 for each node that the client holds."""
        count = int(client.graph.precomputed(NUMBERED)[0])
        holders = torch.zeros(count, dtype=torch.int64, device=client.graph.device)
        holders[NodePlace.of(client.graph).nodes] = 1
        return {"held": holders}

    @on_client(sends=lambda self: _all_sums_declaration(_sum_form(self.within)), ragged=True, hears=_HOLDERS)
    def add_to_all(self, client: Client, message: Tree) -> Tree:
        """{"sum": masked integers [N, d], "degree": int64 [N]}: for each node, Σ_u x_u / (m_u √d~_u) over the client's
        nodes u that are the node or its neighbor; m_u clients hold u and add the same term. And the degrees of its
        nodes."""
        holders, graph = message["held"].cpu(), client.graph
        place, arrays = NodePlace.of(graph), graph_arrays(graph)
        other = place.crossing[1].unique()
        place = place.without(other[holders.to(other.device)[other] == 0])  # no client holds them
        nodes, degree = place.nodes.cpu().numpy(), _degree(arrays, place)
        target, source = _adjacent_pairs(arrays, place)
        scale = 1 / (np.sqrt(degree + 1) * holders.numpy()[nodes])
        adds = sp.csr_matrix((scale[source], (target, source)), shape=(len(holders), len(nodes)))
        total = torch.from_numpy(dense(adds @ arrays.x.astype(np.float64)))
        words = FixedPoint.of(_sum_form(self.within))
        bound = words.word(_BOUND)
        if words.beyond(total, bound):
            raise DataError(f"sums of features are beyond {_BOUND:g}; scale them ([data] normalize).")
        degrees = torch.zeros_like(holders).index_add(0, torch.from_numpy(nodes), torch.from_numpy(degree))
        return to({"sum": words.encode(total, bound), "degree": degrees}, graph.device)

    @on_client(replaces_data=True, hears=_HOLDERS | _ALL_SUMS)
    def take_of_all(self, client: Client, message: Tree) -> Tree:
        """`take` with the rows of the client's own nodes and of its neighbors at other clients."""
        totals = to(message, torch.device("cpu"))
        place = NodePlace.of(client.graph)
        other = place.crossing[1].cpu().unique()
        there = totals["held"][other] > 0
        outside = other[there] if self.hops == 2 else other[:0]
        rows = {"own": totals["sum"][place.nodes.cpu()], "outside": totals["sum"][outside]}
        gone = {} if there.all() else {"gone": other[~there].to(client.graph.device)}
        result: Tree = self.take(client, rows | {"degree": totals["degree"][outside]} | gone)
        return result


def _sum_form(within: SecureSum | None) -> SecureSum:
    """The form of sums of features."""
    return replace(within or SecureSum(everyone=True), bits=64, fraction=_FRACTION)


def _in_sum(meanings: Mapping[str, str], form: SecureSum) -> dict[str, Sends]:
    """Declarations for secure aggregation; meanings: what the sum over all clients reveals."""
    return {key: Sends(f"nothing by itself; with the others' {text}", form) for key, text in meanings.items()}


def _all_sums_declaration(form: SecureSum) -> dict[str, Sends]:
    declared = _in_sum(_ALL_SUMS, form)
    return declared | {"degree": replace(declared["degree"], mechanism=replace(form, fraction=0))}


def _adjacent_pairs(arrays: GraphArrays, place: NodePlace) -> tuple[np.ndarray, np.ndarray]:
    """int64 [j] twice: nodes of the whole graph that the client's own nodes are joined to, themselves included, and
    these own nodes."""
    inside, other = place.crossing.cpu().numpy()
    here = np.arange(len(place.nodes))
    source = np.concatenate([here, arrays.edges[0], inside])
    target = np.concatenate([place.nodes.cpu().numpy()[np.concatenate([here, arrays.edges[1]])], other])
    return target, source


def _with_outside(arrays: GraphArrays, place: NodePlace, message: Tree) -> GraphArrays:
    """A client's n nodes, and their neighbors at other clients with rows of Â X. Nodes without features stand for the
    further neighbors of these, so that all degrees equal the degrees in the whole graph."""
    here, other = place.crossing.cpu().numpy()
    n, index = len(arrays.y), np.unique(other, return_inverse=True)[1]
    degree = message["degree"].cpu().numpy()
    missing = degree - np.bincount(index, minlength=len(degree))
    far, more = len(degree), int(missing.max(initial=0))
    end = np.repeat(np.arange(far), missing)
    stand_in = np.arange(len(end)) - np.repeat(np.cumsum(missing) - missing, missing)
    links = np.concatenate([np.stack([here, n + index]), np.stack([n + end, n + far + stand_in])], 1)
    outside = np.concatenate(
        [_divide_by_degree(message["outside"], degree), np.zeros((more, arrays.x.shape[1]), arrays.x.dtype)]
    )
    return GraphArrays(
        np.concatenate([arrays.x, outside]),
        np.concatenate([arrays.edges, links, links[::-1]], 1),
        np.pad(arrays.y, (0, far + more), constant_values=-1),
        np.pad(arrays.masks, ((0, 0), (0, far + more))),
        None if arrays.sensitive is None else np.pad(arrays.sensitive, (0, far + more), constant_values=-1),
    )


def _degree(arrays: GraphArrays, place: NodePlace) -> np.ndarray:
    """int64 [n]: degrees of a client's own nodes in the whole graph."""
    return np.bincount(np.concatenate([arrays.edges[0], place.crossing[0].cpu().numpy()]), minlength=len(arrays.y))


def _divide_by_degree(sums: Tensor, degree: np.ndarray) -> np.ndarray:
    """Rows of Â X: the sums [n, d] divided by √d~."""
    return (sums.cpu() / torch.from_numpy(degree + 1).to(sums.dtype).sqrt()[:, None]).numpy()


class SelfEdges:
    """Edges by which each node receives only its own row (a `core.operators.MessagePassing` and its own operator)."""

    shrinks = False

    def __init__(self, nodes: int) -> None:
        self.shape = (nodes, nodes)

    def operator(self, kind: str) -> "SelfEdges":
        """I."""
        return self

    def __matmul__(self, dense: Tensor) -> Tensor:
        return dense

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """All rows as they are."""
        return h, h


@preset_of(NeighborSums, Uniform)
class FedGCN:
    """FedAvg of a graph convolutional network that uses sums of the features of neighbors at other clients, exchanged
    once.

    local_steps: optimizer steps per round.
    optimizer:   optimizer of the local training.
    lr:          learning rate of the local training.
    """

    local_steps: int = 3
    optimizer: OptimizerName = "sgd"
    lr: float = 0.5

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, ids=True)
