"""Partitions of a collection of small graphs: at random, with perturbed edges (FairGraphFL, section "Experiments"), and
by a property of the graphs (OpenFGL's feature and topology skew).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedweave.core.bounds import BelowOne, Clients, CountOrNone, Fraction, Share
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.splits import check_enough, check_ratios, divide, sizes_of_splits


@dataclass(frozen=True)
class GraphSkew(Settings):
    """Small graphs in the order of one number, in pieces of equal size: the first client holds the smallest numbers.

    by:               "features", the mean over a graph's nodes and columns, or "degree", the mean over its nodes
                      (feature skew and topology skew). Equal graphs stay in the order of the data.
    clients:          number of clients, P.
    train, val, test: ratios of every client's labeled graphs, stratified by label.
    use_dataset_split:     whether to take the dataset's published masks instead of the ratios.
    """

    examples: ClassVar[tuple[str, ...]] = ("graph",)
    by: Literal["features", "degree"] = "features"
    clients: Clients = 10
    train: Share = 0.8
    val: Fraction = 0.1
    test: Fraction = 0.1
    use_dataset_split: bool = False

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_enough(data.examples, self.clients, example=data.example)
        if self.by == "degree":
            values = np.bincount(data.edges[0], minlength=data.nodes).astype(np.float64)  # [n]
        else:
            values = np.asarray(data.x.mean(1), dtype=np.float64).ravel()
        graph_of = np.asarray(data.graph_of)
        means = np.bincount(graph_of, values) / np.bincount(graph_of)  # [e]
        pieces = np.array_split(np.argsort(means, kind="stable"), self.clients)
        graphs = [np.sort(piece) for piece in pieces]
        return Partition(divide(data, graphs, (self.train, self.val, self.test), self.use_dataset_split, seed))


_DEFAULTS = {"paper": (0.9, 0.0, 0.1), "script": (0.8, 0.1, 0.1)}  # train, val, test
_SORTED = 50  # graphs in file order that the script gives each client first


@dataclass(frozen=True)
class GraphsIID(Settings):
    """Small graphs at random, in the two ways of FairGraphFL: its paper's and its public script's.

    With `protocol = "paper"` a share `global_test` of the graphs is the server's, uniformly drawn; the rest goes to the
    clients uniformly, sizes differing by at most one; masks are stratified by label. With "script" client i first takes
    graphs 50 i … 50 i + 49 in file order, which in published collections is by class, and the rest goes to the clients
    uniformly; masks are not stratified, and there is no global test set.

    protocol:         "paper" or "script".
    clients:          number of clients, P.
    global_test:      share of the graphs that the server tests on; only for "paper".
    server_val:       share of the graphs that the server validates on, for algorithms that need it (cffl); only for
        "paper".
    train, val, test: ratios of every client's labeled graphs; left out, .9, 0 and .1 ("paper") or .8, .1 and .1.
    split_seed:       seed of the partition, so that runs of several seeds share it; left out, the run's own.
    """

    examples: ClassVar[tuple[str, ...]] = ("graph",)
    protocol: Literal["paper", "script"] = "paper"
    clients: Clients = 10
    global_test: BelowOne = 0.1
    server_val: BelowOne = 0.0
    train: Share | None = None
    val: Fraction | None = None
    test: Fraction | None = None
    split_seed: int | None = None

    def __post_init__(self) -> None:
        check_ratios(*self.ratios)
        if not self.server_val < 1 - self.global_test:
            message = f"server_val = {self.server_val}: with global_test = {self.global_test} must be below 1."
            raise ConfigError(message, code="config.server-val")
        if self.server_val and self.protocol == "script":
            message = f"server_val = {self.server_val}: the script leaves the server nothing. Set protocol = 'paper'."
            raise ConfigError(message, code="config.server-val")

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Train, val and test."""
        train, val, test = _DEFAULTS[self.protocol]
        return (
            train if self.train is None else self.train,
            val if self.val is None else self.val,
            test if self.test is None else self.test,
        )

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        seed = seed if self.split_seed is None else self.split_seed
        rng = generator(seed, "partition/graphs")
        if self.protocol == "script":
            check_enough(data.examples, self.clients, _SORTED, data.example)
            first = np.arange(self.clients * _SORTED).reshape(self.clients, _SORTED)
            rest = np.array_split(rng.permutation(np.arange(first.size, data.examples)), self.clients)
            graphs = [np.sort(np.concatenate(pair)) for pair in zip(first, rest, strict=True)]
            return Partition(_parts_at_random(data, graphs, self.ratios, rng))
        labeled = rng.permutation(np.flatnonzero(data.has_label))
        test = np.sort(labeled[: round(self.global_test * len(labeled))])
        val = np.sort(labeled[len(test) :][: round(self.server_val * len(labeled))])
        clients_graphs = rng.permutation(np.setdiff1d(np.arange(data.examples), np.concatenate([test, val])))
        check_enough(len(clients_graphs), self.clients, example=data.example)
        graphs = [np.sort(piece) for piece in np.array_split(clients_graphs, self.clients)]
        parts = divide(data, graphs, self.ratios, use_dataset_split=False, seed=seed)
        masks = np.zeros((3, len(val)), bool)
        masks[VAL] = True
        server = {"validation": Part.of(data, val, masks)} if self.server_val else {}
        return Partition(parts, test if self.global_test else None, held=server)


@dataclass(frozen=True)
class Perturbed(GraphsIID):
    """`graphs_iid`, with some edges of the clients' training graphs flipped (FairGraphFL's perturbed setting).

    Each client draws a ratio uniformly from the range of its quality. In every training graph with m edges,
    round(ratio m) random edges are deleted, and the same number of unjoined pairs are joined at random (fewer if there
    are fewer). Features and degree features stay as they are. Clients are called low-0, …, medium-0, …, high-0, ….

    low:    number of clients of low quality, ratio in [.7, 1).
    medium: number of clients of medium quality, ratio in [.3, .7); the others are of high quality, ratio in [0, .3).
    """

    low: CountOrNone = 3
    medium: CountOrNone = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low + self.medium > self.clients:
            message = f"low = {self.low}: with medium = {self.medium} must be at most clients, which is {self.clients}."
            raise ConfigError(message, code="config.value")

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        whole = super().cut(data, seed)
        rng = generator(seed if self.split_seed is None else self.split_seed, "partition/perturbed")
        high = self.clients - self.low - self.medium
        parts: list[Part] = []
        names = []
        for quality, count, low, below in (
            ("low", self.low, 0.7, 1.0),
            ("medium", self.medium, 0.3, 0.7),
            ("high", high, 0.0, 0.3),
        ):
            for number in range(count):
                part = whole.parts[len(parts)]
                parts.append(replace(part, edges=_flip_edges(data, part, rng.uniform(low, below), rng)))
                names.append(f"{quality}-{number}")
        return replace(whole, parts=tuple(parts), names=tuple(names))


def _parts_at_random(
    data: Dataset, graphs: list[np.ndarray], ratios: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Part, ...]:
    """Parts of the sorted `graphs` of each client, whose labeled ones are split at random."""
    parts = []
    for client_graphs in graphs:
        labeled = rng.permutation(np.flatnonzero(data.has_label[client_graphs]))
        train_end, val_end, test_end = np.cumsum(sizes_of_splits(np.array([len(labeled)]), ratios)[0])
        masks = np.zeros((3, len(client_graphs)), bool)
        masks[TRAIN, labeled[:train_end]] = True
        masks[VAL, labeled[train_end:val_end]] = True
        masks[TEST, labeled[val_end:test_end]] = True
        parts.append(Part.of(data, client_graphs, masks))
    return tuple(parts)


def _flip_edges(data: Dataset, part: Part, ratio: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [2, E]: the part's edges, both directions, sorted; the edges of its training graphs are flipped."""
    graph_of = np.asarray(data.graph_of)
    bounds = np.searchsorted(graph_of, np.arange(data.examples + 1))  # each graph's first node
    one_way = data.edges[:, data.edges[0] < data.edges[1]]
    ends = np.searchsorted(one_way[0], bounds)  # each graph's first edge
    pieces = []
    for graph, trains in zip(part.examples, part.masks[0], strict=True):
        edges = one_way[:, ends[graph] : ends[graph + 1]]
        if trains:
            first = bounds[graph]
            edges = _flip(edges - first, bounds[graph + 1] - first, ratio, rng) + first
        pieces.append(edges)
    return to_undirected(np.concatenate(pieces, 1), data.nodes)


def _flip(edges: np.ndarray, nodes: int, ratio: float, rng: np.random.Generator) -> np.ndarray:
    """Edges int64 [2, m], first end below the second, sorted; round(ratio m) are replaced by pairs without an edge."""
    m = edges.shape[1]
    pairs = nodes * (nodes - 1) // 2
    count = round(ratio * m)
    remaining = np.sort(rng.choice(m, m - count, replace=False))
    before = np.arange(nodes) * (2 * nodes - np.arange(nodes) - 1) // 2  # pairs whose first end is a lower node
    numbers = before[edges[0]] + edges[1] - edges[0] - 1  # the edges' places among all pairs, rising
    free = rng.choice(pairs - m, min(count, pairs - m), replace=False)
    free = free + np.searchsorted(numbers - np.arange(m), free, side="right")  # skips the edges
    first = np.searchsorted(before, free, side="right") - 1
    return np.concatenate([edges[:, remaining], np.stack([first, free - before[first] + first + 1])], 1)
