"""Noise on clients' data: features, edges and training labels, each at a rate, for studies of robustness."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from fedweave.core.bounds import Fraction, NonNegative
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.graph_arrays import Matrix
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.core.target import CLASS, missing_like
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.ego_networks import edges_within, labels_of


@dataclass(frozen=True)
class Noise(Settings):
    """Changes of the data after the partition. The server's own data, and all labels for validation or test, stay as
    they are.

    features:    rate of changed features. By "mask", the share of the clients' nonzero entries that become 0; by
                 "gauss", the standard deviation of the noise on every entry, in standard deviations of its column.
    features_by: "mask" or "gauss".
    edges:       share of the edges inside clients that are changed.
    edges_by:    "drop", or "rewire": one end stays, and the other becomes a random node of the same client, or of the
                 same small graph.
    labels:      share of every client's training examples whose label is changed.
    labels_by:   "flip", to another class at random, or "remove": no client trains on the example.
    """

    features: NonNegative = 0.0
    features_by: Literal["mask", "gauss"] = "mask"
    edges: Fraction = 0.0
    edges_by: Literal["drop", "rewire"] = "drop"
    labels: Fraction = 0.0
    labels_by: Literal["flip", "remove"] = "flip"

    def __post_init__(self) -> None:
        if self.features_by == "mask" and self.features > 1:
            message = f'noise.features = {self.features}: must be at most 1 with features_by = "mask". Take "gauss".'
            raise ConfigError(message, code="config.value")

    def apply(self, data: Dataset, partition: Partition, seed: int) -> tuple[Dataset, Partition]:
        """The data with noise for the clients of `partition`, and the partition with the remaining labels.

        Raises:
            ConfigError: the noise would change edges with attributes, clients' own edges or columns, or the labels of a
                single class.
        """
        if self.features:
            data = replace(data, x=self._features(data, partition, generator(seed, "noise/features")))
        if self.edges:
            data = self._edges(data, partition, generator(seed, "noise/edges"))
        if self.labels:
            data, partition = self._labels(data, partition, generator(seed, "noise/labels"))
        return data, partition

    def _features(self, data: Dataset, partition: Partition, rng: np.random.Generator) -> Matrix:
        if any(part.columns is not None for part in partition.parts):
            raise ConfigError(f"noise.features = {self.features}: does not work with columns per client. Leave it out.")
        nodes = np.unique(np.concatenate([part.nodes for part in partition.parts]))
        if self.features_by == "gauss":
            x: np.ndarray = sp.csr_matrix(data.x).toarray()
            x[nodes] += self.features * x.std(0) * rng.standard_normal((len(nodes), data.features), dtype=x.dtype)
            return x
        matrix = sp.csr_matrix(data.x, copy=True)
        is_client_node = np.zeros(data.nodes, bool)
        is_client_node[nodes] = True
        entries = np.flatnonzero(np.repeat(is_client_node, np.diff(matrix.indptr)))
        matrix.data[_sample(entries, self.features, rng)] = 0
        matrix.eliminate_zeros()
        return matrix if sp.issparse(data.x) else matrix.toarray()

    def _edges(self, data: Dataset, partition: Partition, rng: np.random.Generator) -> Dataset:
        if any(part.edges is not None for part in partition.parts):
            raise ConfigError(
                f"noise.edges = {self.edges}: does not work with a partition that gives clients their own edges. "
                "Leave it out.",
                code="config.noise-edges",
            )
        if data.edge_attrs is not None:
            raise ConfigError(
                f"noise.edges = {self.edges}: does not work with edges that have a direction, weight, features or "
                "time. Leave it out.",
                code="config.noise-edges",
            )
        client_nodes = [part.nodes for part in partition.parts]
        shared = len(np.unique(np.concatenate(client_nodes))) < sum(map(len, client_nodes))
        if self.edges_by == "rewire" and shared:
            raise ConfigError(
                'noise.edges_by = "rewire": needs clients that share no nodes, because edges stay in one client. Take '
                '"drop".',
                code="config.rewire",
            )
        inner = np.zeros(data.edges.shape[1], bool)
        codes = data.edges[0] * data.nodes + data.edges[1]
        for nodes, index in zip(client_nodes, edges_within(data, client_nodes), strict=True):
            source, target = nodes[index]
            inner[np.searchsorted(codes, source * data.nodes + target)] = True
        one_way = np.flatnonzero(inner & (data.edges[0] < data.edges[1]))
        changed = _sample(one_way, self.edges, rng)
        remaining = np.setdiff1d(np.flatnonzero(data.edges[0] < data.edges[1]), changed)
        source, target = data.edges[:, remaining]
        if self.edges_by == "rewire":
            ends = np.where(rng.random(len(changed)) < 0.5, data.edges[:, changed], data.edges[::-1, changed])
            # An edge stays within its small graph, or the client that holds it.
            group = data.graph_of
            if group is None:
                group = np.full(data.nodes, -1)
                for client, nodes in enumerate(client_nodes):
                    group[nodes] = client
            end, other = _rewire(ends, group, rng)
            source, target = np.append(source, end), np.append(target, other)
        edges = to_undirected(np.stack([source, target]), data.nodes)
        return replace(data, edges=edges, edge_labels=labels_of(data, edges))

    def _labels(self, data: Dataset, partition: Partition, rng: np.random.Generator) -> tuple[Dataset, Partition]:
        if data.target != CLASS and self.labels_by == "flip":
            raise ConfigError(
                f'noise.labels_by = "flip": needs classes, and {data.target_summary} are predicted. Take "remove".',
                code="config.target",
            )
        if data.classes < 2 and self.labels_by == "flip":
            raise ConfigError(
                f"noise.labels = {self.labels}: the data has one class, so no label can flip. Leave it out."
            )
        evaluated = np.zeros(data.examples, bool)
        for part in (*partition.parts, *partition.held.values()):
            evaluated[part.examples[part.masks[VAL] | part.masks[TEST]]] = True
        changed = np.zeros(data.examples, bool)
        for part in partition.parts:
            train = part.examples[part.masks[TRAIN]]
            candidates = train[~evaluated[train]]
            already = int(changed[candidates].sum())  # another client may have changed some
            count = max(0, round(self.labels * len(candidates)) - already)
            changed[rng.choice(candidates[~changed[candidates]], count, replace=False)] = True
        y = data.y.copy()
        at = np.flatnonzero(changed)
        if self.labels_by == "flip":
            y[at] = (y[at] + rng.integers(1, data.classes, len(at))) % data.classes
            return replace(data, y=y), partition
        y[at] = missing_like(y[at])
        parts = list[Part]()
        for part in partition.parts:
            masks = part.masks.copy()
            masks[TRAIN] &= ~changed[part.examples]
            parts.append(replace(part, masks=masks))
        return replace(data, y=y), replace(partition, parts=tuple(parts))


def _sample(places: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """A share `rate` of the places at random, rounded, sorted."""
    return np.sort(rng.choice(places, round(rate * len(places)), replace=False))


def _rewire(edges: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each edge's first end, and a random other node of its group; a group of one keeps its edge."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(-1, group.max() + 2))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    end = edges[0]
    first = starts[group[end] + 1]
    size = starts[group[end] + 2] - first
    step = 1 + (rng.random(len(end)) * (size - 1)).astype(np.int64)
    other = order[first + (place[end] - first + step) % size]
    return end, np.where(size > 1, other, edges[1])
