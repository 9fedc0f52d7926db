"""The label-skew partition of FedEgo: every client prefers a few labels."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedweave.core.bounds import Clients, Count, CountOrNone, Fraction, Share
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.splits import check_classes, dataset_split, stratify

_DRAWS = 1000  # on Cora one draw of major labels in four is rejected


@dataclass(frozen=True)
class LabelSkew(Settings):
    """Overlapping clients with a few major labels each (FedEgo, sections 5.1 and Table 1).

    What the paper leaves open, as resolved here:
    - The global test is drawn uniformly from the labeled nodes and held by no client.
    - `share` and `global_test` refer to all labeled nodes, including the global test (as in the released code); numbers
      are rounded to the nearest.
    - Major nodes are drawn uniformly from the union of the major labels, not evenly per label; the rest uniformly from
      the union of the other labels, so that the rate is exact. With `rest = "all"` the rest is uniform over all nodes
      not yet drawn, also of major labels (another reading of "random unselected nodes", and the released code's).
    - Major labels are drawn uniformly from the labels with nodes, and drawn again while they, or the others, have too
      few nodes left; so size and rate are exact. With `short = "fill"` the first draw counts, and other nodes fill the
      gap, so that the rate falls, and the size where all nodes are too few (as in the released code).
    - Nodes are drawn without replacement within a client; clients overlap, and one client's test node may be another's
      train node. With `reserved` later clients do not choose a client's test nodes, so that fewer of them train
      elsewhere (as in the released code). With `exclusive` no test node trains elsewhere: where a client validates or
      tests on a node, other holders keep it without using its label.
    - Nodes without an edge inside their client are kept, or dropped with `isolated = "drop"` (as in the released code).
    - `test_nodes` and `val` count the client's own nodes, stratified by label; the remaining ones train. Too few nodes
      for that is an error, not a smaller test set.
    - Unlabeled nodes are held by no client.

    clients:      number of clients, P.
    majors:       major labels per client.
    major_rate:   share of a client's nodes that have a major label.
    share:        a client's size relative to the dataset; the paper's is 0.3, and 0.2 on DBLP ("Wiki" in its tables).
    global_test:  share of the global test set.
    test_nodes:   test nodes per client.
    val:          validation share of a client's nodes.
    rest:         source of the other nodes: "others" (the labels that are not major) or "all".
    short:        "redraw" or "fill", when the major labels have too few nodes.
    isolated:     "keep" or "drop" nodes that have no edge inside their client; dropping makes clients smaller.
    reserved:     whether later clients cannot hold the test nodes of earlier ones.
    exclusive:    whether no client trains on a validation or test node of another.
    use_dataset_split: whether to take the dataset's published masks instead of `test_nodes` and `val`.
    """

    clients: Clients = 10
    majors: Count = 3
    major_rate: Fraction = 0.8
    share: Share = 0.3
    global_test: Fraction = 0.3
    test_nodes: CountOrNone = 300
    val: Fraction = 0.2
    rest: Literal["others", "all"] = "others"
    short: Literal["redraw", "fill"] = "redraw"
    isolated: Literal["keep", "drop"] = "keep"
    reserved: bool = False
    exclusive: bool = False
    use_dataset_split: bool = False

    def __post_init__(self) -> None:
        for name in ("reserved", "exclusive"):
            if getattr(self, name) and self.use_dataset_split:
                raise ConfigError(
                    f"{name} = true: with use_dataset_split, published test nodes train nowhere. Set one of them to "
                    "false.",
                    code="config.public-split",
                )

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        check_classes(data, "label_skew deals each client a few classes")
        rng = generator(seed, "partition/label_skew")
        labeled = rng.permutation(np.flatnonzero(data.y >= 0))
        test_size = round(self.global_test * len(labeled))
        size = round(self.share * len(labeled))
        self._sizes(size)  # raises an error for sizes that cannot work, before any draw
        rest = np.sort(labeled[test_size:])
        # 1. The clients' nodes and their roles.
        client_nodes, parts = list[np.ndarray](), list[Part]()
        for client in range(self.clients):
            nodes = np.sort(self._draw(rest, data.y[rest], size, rng))
            if self.isolated == "drop":  # nodes without an edge to another one of them
                inside = np.isin(data.edges, nodes).all(0)
                nodes = nodes[np.isin(nodes, data.edges[0, inside])]
            client_nodes.append(nodes)
            if self.reserved:  # no later client draws a node that this one tests on
                parts += stratify(data, [nodes], self._sizes(len(nodes))[None], seed, f"partition/split/{client}")
                rest = np.setdiff1d(rest, nodes[parts[-1].masks[TEST]])
        if self.use_dataset_split:
            parts = [*dataset_split(data, client_nodes)]
        elif not self.reserved:
            sizes = np.stack([self._sizes(len(nodes)) for nodes in client_nodes])  # [P, 3]
            parts = [*stratify(data, client_nodes, sizes, seed)]
        # 2. No client trains on a validation or test node of another.
        if self.exclusive:
            evaluated = np.concatenate([part.nodes[part.masks[[VAL, TEST]].any(0)] for part in parts])
            for client, part in enumerate(parts):
                masks = part.masks.copy()
                masks[TRAIN] &= ~np.isin(part.nodes, evaluated)
                if not masks[TRAIN].any():
                    raise ConfigError(
                        f"partition.exclusive = true: client {client} has no train node, because others validate or "
                        "test on all of them. Lower clients, share, val or test_nodes.",
                        code="config.exclusive",
                    )
                parts[client] = replace(part, masks=masks)
        return Partition(tuple(parts), np.sort(labeled[:test_size]))

    def _sizes(self, size: int) -> np.ndarray:
        """int64 [3]: train, val and test nodes of a client with `size` nodes."""
        val = round(self.val * size)
        if size < 1 or (not self.use_dataset_split and size - val - self.test_nodes < 1):
            raise ConfigError(
                f"partition.test_nodes = {self.test_nodes}, val = {self.val}: leave no train node of the {size} nodes "
                f"that share = {self.share} gives a client. "
                f"Set test_nodes to at most {max(0, size - val - 1)}, or raise share.",
                code="config.no-train",
            )
        return np.array([size - val - self.test_nodes, val, self.test_nodes])

    def _draw(self, nodes: np.ndarray, labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """One client's `size` nodes from `nodes`, whose labels are `labels`; fewer if "fill" has no more."""
        target = major = round(self.major_rate * size)
        present = np.unique(labels)
        for _ in range(_DRAWS if self.majors <= len(present) else 0):
            is_major = np.isin(labels, rng.choice(present, self.majors, replace=False))
            if self.short == "fill":
                major = min(target, int(is_major.sum()))
            pool = len(nodes) - major if self.rest == "all" else int((~is_major).sum())
            other = min(size - major, pool) if self.short == "fill" else size - major
            if is_major.sum() >= major and pool >= other:
                major_nodes = rng.choice(nodes[is_major], major, replace=False)
                candidates = ~is_major if self.rest == "others" else ~np.isin(nodes, major_nodes)
                return np.concatenate([major_nodes, rng.choice(nodes[candidates], other, replace=False)])
        raise ConfigError(
            f"partition.majors = {self.majors}: no choice among the {len(present)} labels has {target} nodes and "
            f"{size - target} of others (major_rate = {self.major_rate} of share = {self.share}) among the "
            f"{len(nodes)} outside the global test. Lower share or global_test, or change majors or major_rate.",
            code="config.majors",
        )
