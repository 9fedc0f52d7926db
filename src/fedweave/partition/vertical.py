"""Vertical partitions: all clients hold the same nodes, each its own features and edges."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedweave.core.bounds import Clients, CountOrNone, Fraction, Positive, Share
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition
from fedweave.partition.splits import check_ratios, divide, masks_by_hash, per_class

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vertical(Settings):
    """Blocks of feature columns that do not overlap, and a uniform sample of the edges at every client, as in GLASU
    (Zhang et al. 2023, appendix D.1).

    clients:          number of clients, M.
    widths:           relative widths of the M blocks; empty makes them as equal as possible.
    blocks:           "random" draws the columns of each block; left out, blocks are contiguous, in order.
    edges:            share of the undirected edges that each client keeps, rounded to whole edges, independently of the
                      others.
    labels:           "all" clients see the labels, or only the "first".
    train, val, test: ratios of the labeled nodes, stratified by label; the same at all clients.
    train_per_class:  training nodes of each label, if above 0; `val` and `test` are then drawn uniformly.
    use_dataset_split:     whether to take the dataset's published masks instead of the ratios.
    train_on_rest:    whether, with `use_dataset_split`, labeled nodes outside the published val and test masks train.
    """

    clients: Clients = 3
    widths: tuple[Positive, ...] = ()
    blocks: Literal["random"] | None = None
    edges: Fraction = 0.8
    labels: Literal["all", "first"] = "all"
    train: Share = 0.2
    val: Fraction = 0.4
    test: Fraction = 0.4
    train_per_class: CountOrNone = 0
    use_dataset_split: bool = False
    train_on_rest: bool = False

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)
        check_rest(self.train_on_rest, self.use_dataset_split)
        if self.train_per_class and self.use_dataset_split:
            message = f"train_per_class = {self.train_per_class}: the published split says who trains. Set one of them."
            raise ConfigError(message, code="config.public-split")
        if self.widths and len(self.widths) != self.clients:
            raise ConfigError(
                f"widths = {list(self.widths)}: are {len(self.widths)} for clients = {self.clients}. Give one width "
                "per client, or none for equal blocks.",
                code="config.value",
            )

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        ratios = (self.train, self.val, self.test)
        whole = every_node(data, ratios, self.use_dataset_split, self.train_on_rest, seed)
        if self.train_per_class:
            whole = replace(whole, masks=per_class(data, self.train_per_class, self.val, self.test, seed))
        order = np.arange(data.features)
        if self.blocks == "random":
            order = generator(seed, "partition/vertical/columns").permutation(order)
        parts = []
        for client, places in enumerate(_blocks(data.features, self.widths or (1.0,) * self.clients)):
            edges = _sample(data.edges, self.edges, generator(seed, f"partition/vertical/{client}"))
            labels = self.labels == "all" or client == 0
            parts.append(replace(whole, columns=np.sort(order[places]), edges=edges, labels=labels))
        return Partition(tuple(parts))


@dataclass(frozen=True)
class Parties(Settings):
    """The parties of a vertical dataset (`[data] name = "parties"`) as clients under their own names: each with its own
    features and edges.

    labels:           "all" parties see the labels, or only the "holders", whose own tables have a label.
    split:            "random" draws by the ratios, stratified by label; "hash" uses a keyed hash of each id, so that
                      the split does not depend on labels, as at sites with `data.split` in site.toml.
    train, val, test: ratios of the labeled nodes; the same at all parties.
    use_dataset_split:     whether to take the dataset's own masks instead of the ratios.
    train_on_rest:       whether, with `use_dataset_split`, labeled nodes outside its val and test masks train.
    """

    labels: Literal["all", "holders"] = "all"
    split: Literal["random", "hash"] = "random"
    train: Share = 0.2
    val: Fraction = 0.4
    test: Fraction = 0.4
    use_dataset_split: bool = False
    train_on_rest: bool = False

    def __post_init__(self) -> None:
        check_ratios(self.train, self.val, self.test)
        check_rest(self.train_on_rest, self.use_dataset_split)
        if self.split == "hash" and self.use_dataset_split:
            message = "split = 'hash': the data's own split is taken, too. Leave out split or use_dataset_split."
            raise ConfigError(message, code="config.public-split")

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        if data.parties is None:
            raise ConfigError(
                f"partition.name = 'parties': {data.name!r} belongs to one party. Take 'vertical' to divide its "
                "features into blocks, or a folder of parties with data.name = 'parties'.",
                code="config.one-party",
            )
        holders = [party.name for party in data.parties if party.labels]
        if self.labels == "all" and len(holders) < len(data.parties):
            _LOG.warning(
                "note: only the tables of %s have labels, and partition.labels = 'all' lets every party see them; "
                "'holders' is what sites would do",
                ", ".join(holders),
            )
        ratios = (self.train, self.val, self.test)
        whole = every_node(data, ratios, self.use_dataset_split, self.train_on_rest, seed)
        if self.split == "hash":
            key = generator(seed, "partition/hash").bytes(32)
            whole = replace(whole, masks=masks_by_hash(data.ids, ratios, key) & data.has_label)
        parts = []
        for party in data.parties:
            labels = self.labels == "all" or party.labels
            parts.append(replace(whole, columns=party.columns, edges=party.edges, labels=labels, groups=party.groups))
        return Partition(tuple(parts), names=tuple(party.name for party in data.parties))


def check_rest(train_on_rest: bool, use_dataset_split: bool) -> None:
    """Raise ConfigError if `train_on_rest` is set without a published split."""
    if train_on_rest and not use_dataset_split:
        message = "train_on_rest = true: needs use_dataset_split = true. Ratios say themselves who trains."
        raise ConfigError(message, code="config.public-split")


def every_node(
    data: Dataset, ratios: tuple[float, float, float], use_dataset_split: bool, train_on_rest: bool, seed: int
) -> Part:
    """All nodes of `data` with one set of masks, for clients that hold the same nodes."""
    [whole] = divide(data, [np.arange(data.nodes)], ratios, use_dataset_split, seed)
    if not train_on_rest:
        return whole
    masks = whole.masks.copy()
    masks[TRAIN] = data.has_label & ~masks[VAL] & ~masks[TEST]
    return replace(whole, masks=masks)


def _blocks(features: int, widths: Sequence[float]) -> list[np.ndarray]:
    """Contiguous places 0..d-1, each block within one place of its exact share."""
    ends = np.rint(np.cumsum(widths) / np.sum(widths) * features).astype(np.int64)
    blocks = np.split(np.arange(features), ends[:-1])
    if any(len(block) == 0 for block in blocks):
        raise ConfigError(
            f"partition.widths = {list(widths)}: one of {len(widths)} blocks of {features} feature columns would be "
            "empty. Take fewer clients or more even widths.",
            code="config.blocks",
        )
    return blocks


def _sample(edges: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [2, 2k]: k = round(share E) of the E undirected edges in `edges` [2, 2E], both directions, in order."""
    nodes = int(edges.max(initial=0)) + 1
    one_way = np.flatnonzero(edges[0] < edges[1])
    chosen = rng.choice(one_way, round(share * len(one_way)), replace=False)
    codes = edges[0] * nodes + edges[1]
    chosen_codes = np.concatenate([codes[chosen], edges[1, chosen] * nodes + edges[0, chosen]])
    return edges[:, np.isin(codes, chosen_codes)]
