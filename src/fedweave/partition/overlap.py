"""Clients that share nodes unevenly: Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning
with overlapping subgraphs", section VII-A; and how much clients share (definitions III.4 and III.5)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.bounds import BelowOne, Between, Clients, NonNegative, Positive
from fedweave.core.graph import TRAIN, VAL
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.splits import check_classes, stratify
from fedweave.partition.statistics import incidence

NONE, LOW, HIGH = 0, 1, 2  # the groups of clients, by how much they share


@dataclass(frozen=True)
class Overlap(Settings):
    """A third of the clients share no node, a third few, a third many: on average a share of 0, 𝐍 or 2𝐍 of the other
    clients holds one of their nodes (eq. 8).

    Deviations: the printed generator gives its low and high group the same overlap (on Cora .21 and .22 at 𝐍 = .1), so
    that "exact" is the default. The paper does not state the groups' sizes and the shares of test, public and
    validation nodes. It does not say that a node has one role at all its holders.

    overlap:     𝐍, mean share of the other clients that hold a node of the middle third.
    generator:   "exact": r n of n nodes are a pool, from which every sharing client draws m at random; every client
                 without high overlap gets m further nodes of its own; r and m follow from 𝐍 and the number of clients.
                 "as_printed": a share `pool` of the nodes is the pool. A client draws numbers of each label from it by
                 Dirichlet(pool_alpha) scaled by 𝐍 / (r − 𝐍 r), with 2𝐍 for 𝐍 in the high group; Dirichlet(alpha)
                 spreads the other nodes over all clients.
    clients:     number of clients, P, the first third without overlap, the last third with a high one.
    alpha:       concentration of the labels of the nodes that are not shared, over clients; small is heterogeneous.
    pool:        share r of the nodes in the pool, only for "as_printed".
    pool_alpha:  concentration of the labels of shared nodes, only for "as_printed".
    global_test: share of the labeled nodes that no client holds, stratified by label, on which the global model is
                 evaluated.
    public:      share of the labeled nodes that the server holds as its public sample, to train encoders on.
    val:         share of the clients' labeled nodes that they validate on; they train on the others.
    """

    overlap: NonNegative = 0.1
    generator: Literal["exact", "as_printed"] = "exact"
    clients: Clients = 40
    alpha: Positive = 0.5
    pool: Between = 0.5
    pool_alpha: Positive = 0.8
    global_test: BelowOne = 0.2
    public: BelowOne = 0.05
    val: BelowOne = 0.1

    def __post_init__(self) -> None:
        if self.public + self.global_test >= 1:
            message = f"public = {self.public}: with global_test = {self.global_test} must be below 1 in all."
            raise ConfigError(message, code="config.value")
        if self.overlap > self._max_overlap:
            raise ConfigError(
                f"overlap = {self.overlap}: must be at most {self._max_overlap:.3g} with {self.clients} clients and "
                f"generator = {self.generator!r}.",
                code="config.value",
            )

    @property
    def groups(self) -> np.ndarray:
        """int64 [P]: `NONE`, `LOW` or `HIGH`."""
        third = self.clients // 3
        return np.repeat([NONE, LOW, HIGH], [third, self.clients - 2 * third, third])

    @property
    def _sharing_clients(self) -> int:
        return int((self.groups > NONE).sum())

    @property
    def _max_overlap(self) -> float:
        """The largest 𝐍; with "exact", the one where the high group holds the whole pool."""
        if self.generator == "as_printed":
            return 0.49  # at .5 the scale 2𝐍 / (r − 2𝐍 r) is infinite
        return (self._sharing_clients - 1) / (2 * max(self.clients - 1, 1))

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_classes(data, "overlap deals each class in shares of its own")
        rng = generator(seed, "partition/overlap")
        [whole] = _stratify_two(data, np.arange(data.nodes), (self.global_test, self.public), seed)
        test, public = (whole.nodes[mask] for mask in whole.masks[:2])
        rest = whole.nodes[~whole.masks.any(0)]
        draw = self._draw_exact if self.generator == "exact" else self._draw_as_printed
        client_nodes = [np.sort(nodes) for nodes in draw(data.y, rest, rng)]
        if min(map(len, client_nodes)) < 2:
            raise ConfigError(
                f"partition.clients = {self.clients}, overlap = {self.overlap}: a client gets fewer than 2 of "
                f"{len(rest)} nodes. Take fewer clients, more overlap or a larger dataset.",
                code="config.overlap",
            )
        [split] = _stratify_two(data, rest, (1 - self.val, self.val), seed)
        parts = list[Part]()
        for nodes in client_nodes:
            masks = np.zeros((3, len(nodes)), bool)
            masks[[TRAIN, VAL]] = split.masks[:2, np.searchsorted(rest, nodes)]
            parts.append(Part.of(data, nodes, masks))
        server = {"public": Part.of(data, public, np.zeros((3, len(public)), bool))} if len(public) else {}
        nodes, links = overlaps(data, client_nodes)
        return Partition(tuple(parts), test, held=server, pairs={"nodes": nodes, "links": links})

    def _draw_exact(self, y: np.ndarray, nodes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """The nodes of every client.

        Each of the h sharing clients draws m nodes, a share f of the pool, so that two of them have f m in common. This
        is a share f of a high client's m nodes, and f / 2 of a low client's 2 m. 𝐍_i is a mean over P − 1 others, and
        h − 1 of them share. The P − h clients without overlap and the low ones, h together, have m other nodes each.
        """
        if self.overlap == 0:
            return self._draw_disjoint(y, nodes, np.full(self.clients, len(nodes) // self.clients), rng)
        h = self._sharing_clients
        f = 2 * self.overlap * (self.clients - 1) / (h - 1)
        pool, rest = np.split(rng.permutation(nodes), [round(len(nodes) / (1 + h * f))])
        m = round(f * len(pool))
        size = np.where(self.groups == HIGH, 0, min(m, len(rest) // h))
        shared = [rng.choice(pool, m * (group > NONE), replace=False) for group in self.groups]
        unshared = self._draw_disjoint(y, rest, size, rng)
        return [np.concatenate(pair) for pair in zip(shared, unshared, strict=True)]

    def _draw_disjoint(
        self, y: np.ndarray, nodes: np.ndarray, size: np.ndarray, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """`size` int64 [P] of `nodes` for every client, disjoint; labels ~ Dirichlet(alpha) as long as they last."""
        if not size.any():
            return [np.empty(0, np.int64)] * len(size)
        label = np.unique(y[nodes], return_inverse=True)[1]
        shares = rng.dirichlet(np.full(label.max() + 1, self.alpha), self.clients)  # [P, c]
        remaining = [list(rng.permutation(nodes[label == kind])) for kind in range(label.max() + 1)]
        chosen_nodes: list[list[int]] = [[] for _ in size]
        for client in rng.permutation(np.repeat(np.arange(len(size)), size)):
            stock = np.array([len(of_label) for of_label in remaining])
            weight = shares[client] * (stock > 0)
            if weight.sum() <= 1e-12:  # the client's labels are used up
                weight = stock
            kind = rng.choice(len(stock), p=weight / weight.sum())
            chosen_nodes[client].append(remaining[kind].pop())
        return [np.array(numbers, dtype=np.int64) for numbers in chosen_nodes]

    def _draw_as_printed(self, y: np.ndarray, nodes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """The nodes of every client."""
        pool, rest = np.split(rng.permutation(nodes), [round(self.pool * len(nodes))])
        kinds = np.unique(y[nodes])
        owner = np.empty(len(rest), np.int64)
        for kind in kinds:
            at = rng.permutation(np.flatnonzero(y[rest] == kind))
            ends = np.rint(rng.dirichlet(np.full(self.clients, self.alpha)).cumsum() * len(at)).astype(np.int64)
            owner[at] = np.searchsorted(ends, np.arange(len(at)), side="right").clip(max=self.clients - 1)
        client_nodes = []
        for client, group in enumerate(self.groups):
            n = group * self.overlap  # 0, 𝐍 or 2𝐍
            shares = rng.dirichlet(np.full(len(kinds), self.pool_alpha))
            counts = shares * n / (self.pool - n * self.pool) * len(pool)  # of each label
            pieces = []
            for kind, count in zip(kinds, counts, strict=True):
                candidates = pool[y[pool] == kind]
                pieces.append(rng.choice(candidates, min(round(count), len(candidates)), replace=False))
            client_nodes.append(np.concatenate([*pieces, rest[owner == client]]))
        return client_nodes


def overlaps(data: Dataset, client_nodes: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """How much clients share, float64 [P, P] each: the share of client i's nodes, and of its links, that client k has
    too (definitions III.4 and III.5). Clients have the sorted `client_nodes` and all edges among them. 0 on the
    diagonal, and where i has no link."""
    nodes = incidence(client_nodes, data.nodes)  # [n, P]
    first, second = data.edges[:, data.edges[0] < data.edges[1]]
    return _shares(nodes), _shares(nodes[first].multiply(nodes[second]).tocsr())


def _shares(holders: sp.csr_matrix) -> np.ndarray:
    """|A_i ∩ A_k| / |A_i| from int64 [things, P], 1 where a client has a thing."""
    common = np.asarray((holders.T @ holders).todense(), np.float64)
    share = common / np.maximum(np.diag(common), 1)[:, None]
    np.fill_diagonal(share, 0)
    return share


def _stratify_two(data: Dataset, nodes: np.ndarray, ratios: tuple[float, float], seed: int) -> tuple[Part, ...]:
    """`nodes` as one part with two disjoint masks of these shares of its labeled nodes, stratified by label."""
    labeled = int(data.has_label[nodes].sum())
    first = round(ratios[0] * labeled)
    second = min(round(ratios[1] * labeled), labeled - first)
    return stratify(data, [nodes], np.array([[first, second, 0]]), seed)
