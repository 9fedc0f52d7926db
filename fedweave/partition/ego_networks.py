"""F²GNN's cut: every client is the neighbourhood of one node."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from fedweave.core.graph import TEST, TRAIN
from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.induced import induced_edges
from fedweave.partition.splits import check_clients, check_ratios, divide


@dataclass(frozen=True)
class EgoNetworks:
    """Overlapping clients, each a random train node and all nodes within `hops` of it, with the edges among them
    (F²GNN, section VI-A).

    The split is drawn on the whole graph first, so that a node has the same role at every client and the global test
    nodes train nowhere; a global model is judged on the whole graph. Centres are distinct and lie in the largest
    connected component. (The released code draws them with replacement and restricts the whole graph to the component.)

    hops:             radius. Three hops are nearly all of a small graph: 1 suits nba and german, 2 bail, 3 credit.
    clients:          how many, P.
    train, val, test: ratios of all labelled nodes, stratified by label.
    public_split:     take the dataset's published masks instead of the ratios.
    incomplete:       "drop" the nodes whose label or sensitive attribute is unknown first, as in the released code, or
                      "keep" them as neighbours without a role.
    """

    hops: int
    clients: int = 30
    train: float = 0.5
    val: float = 0.25
    test: float = 0.25
    public_split: bool = False
    incomplete: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        check_clients(self.clients)
        check_ratios(self.train, self.val, self.test)
        if self.hops < 1:
            raise ConfigError(f"[partition] hops = {self.hops}: must be a whole number >= 1.")
        if self.incomplete not in ("drop", "keep"):
            raise ConfigError(f"[partition] incomplete = {self.incomplete!r}: must be 'drop' or 'keep'.")

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` overlapping parts.

        Raises:
            ConfigError: the largest component has fewer train nodes than there are clients, or no published split.
        """
        nodes = self._nodes(data)
        [whole] = divide(data, [nodes], (self.train, self.val, self.test), self.public_split, seed)
        graph = _adjacency(data, nodes)
        component = connected_components(graph, directed=False)[1]
        pool = np.flatnonzero(whole.masks[TRAIN] & (component == np.bincount(component).argmax()))
        if len(pool) < self.clients:
            raise ConfigError(
                f"[partition] clients = {self.clients} ego-networks need as many train nodes as centres, but the "
                f"largest component of {data.name!r} has {len(pool)}; lower clients or raise train."
            )
        centres = generator(seed, "partition/ego_networks").choice(pool, self.clients, replace=False)
        parts = tuple(Part(nodes[near], whole.masks[:, near]) for near in _within(graph, centres, self.hops))
        return Partition(parts, nodes[whole.masks[TEST]], judged=whole)

    def _nodes(self, data: Dataset) -> np.ndarray:
        """The sorted nodes that take part."""
        if self.incomplete == "keep":
            return np.arange(data.nodes)
        return np.flatnonzero((data.y >= 0) & (True if data.sens is None else data.sens >= 0))


def _adjacency(data: Dataset, nodes: np.ndarray) -> sp.csr_matrix:
    """bool [m, m] of the subgraph that `nodes` [m] induce."""
    [edges] = induced_edges(data, [nodes])
    return sp.csr_matrix((np.ones(edges.shape[1], bool), tuple(edges)), shape=(len(nodes), len(nodes)))


def _within(graph: sp.csr_matrix, centres: np.ndarray, hops: int) -> list[np.ndarray]:
    """For each of the P centres the sorted nodes at most `hops` edges away, itself included."""
    rows = np.arange(len(centres))
    reached = sp.csr_matrix((np.ones(len(centres), bool), (rows, centres)), shape=(len(centres), graph.shape[0]))
    for _ in range(hops):
        reached = reached + reached @ graph
    return [np.sort(reached[row].indices).astype(np.int64) for row in rows]
