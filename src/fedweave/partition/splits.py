"""Examples grouped by client, and split into train, val and test inside every client."""

import hmac
from collections.abc import Sequence

import numpy as np

from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.random import generator
from fedweave.core.target import CLASS
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part

_TOLERANCE = 1e-9  # 0.2 + 0.4 + 0.4 and 0.3 * 10 are not exact in binary


def check_ratios(train: float, val: float, test: float) -> None:
    """Raise ConfigError unless train, val and test sum to at most 1."""
    if train + val + test > 1 + _TOLERANCE:
        raise ConfigError(
            f"train = {train}: with val = {val} and test = {test} they sum to {train + val + test:g}. Make the sum at "
            "most 1.",
            code="config.value",
        )


def check_enough(count: int, clients: int, each: int = 1, example: str = "node") -> None:
    """Raise ConfigError if `count` examples cannot give every client `each` of them."""
    if count < clients * each:
        raise ConfigError(
            f"partition.clients = {clients}: {count} {example}s are too few for at least {each} {example}(s) each. "
            f"Set clients to at most {count // each}, or take a larger dataset.",
            code="config.too-few",
        )


def check_classes(data: Dataset, reason: str) -> None:
    """Raise ConfigError unless the data has classes; `reason` says why they are needed, "dirichlet deals …"."""
    if data.target != CLASS:
        raise ConfigError(
            f"partition: {reason}, but the targets of {data.name!r} are {data.target_summary}. Choose another "
            "partition, such as random, column, louvain or metis.",
            code="config.target",
        )


def strata(data: Dataset) -> tuple[np.ndarray, int]:
    """int64 [e]: the stratum of each example, from which splits draw in equal shares: its class, -1 where unlabeled;
    and the number of strata. Numbers and several labels have a single stratum: examples are drawn at random."""
    if data.target == CLASS:
        return data.y, data.classes
    return np.where(data.has_label, 0, -1), 1


def group(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted examples (int64) of every client; `owner` int [e] is the client of each example."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def divide(
    data: Dataset,
    examples: Sequence[np.ndarray],
    ratios: tuple[float, float, float],
    use_dataset_split: bool,
    seed: int,
) -> tuple[Part, ...]:
    """Parts of `examples` (sorted, for each client), masks in the train/val/test `ratios`, stratified by class where
    the data has classes (`strata`).

    Every client's numbers are within one of the ratios. A client with a labeled example trains on one, and on one of
    every class that it has as long as its train examples suffice. `use_dataset_split` takes the published masks
    instead.
    """
    if use_dataset_split or data.links is not None:  # the split of links is decided before the partition
        return dataset_split(data, examples)
    labeled = _label_counts(data, examples).sum(axis=1)  # [P]
    return stratify(data, examples, sizes_of_splits(labeled, ratios), seed)


def dataset_split(data: Dataset, examples: Sequence[np.ndarray]) -> tuple[Part, ...]:
    """Parts of `examples` (sorted, for each client) with the dataset's own train/val/test masks."""
    if data.public is None:
        raise ConfigError(
            f"partition.use_dataset_split = true: {data.name!r} has no published split. "
            "Set it to false and give train, val and test, or give your own data a split: tables a column split, "
            "npz train_idx, val_idx and test_idx, PyTorch Geometric's Data masks.",
            code="config.no-split",
        )
    masks = data.public & data.has_label  # [3, e]
    return tuple(Part.of(data, numbers, masks[:, numbers]) for numbers in examples)


def sizes_of_splits(labeled: np.ndarray, ratios: tuple[float, float, float]) -> np.ndarray:
    """int64 [P, 3]: train, val and test sizes of clients with `labeled` int64 [P] examples, by largest remainder."""
    shares = np.array([*ratios, max(0.0, 1 - sum(ratios))])  # the last one is of examples in no split
    lower = np.minimum(labeled, 1)[:, None] * np.array([1, 0, 0, 0])  # [P, 4], an example to train on
    upper = np.repeat(labeled[:, None], 4, axis=1)
    return _apportion(labeled[:, None] * shares, lower, upper, labeled)[:, :3]


def per_class(data: Dataset, train: int, val: float, test: float, seed: int) -> np.ndarray:
    """Masks bool [3, e] for all examples: `train` of each class train, and shares `val` and `test` of all labeled
    ones, rounded, are drawn uniformly from the others (as PyG's split "random" of `Planetoid`)."""
    check_classes(data, "train_per_class takes this number of examples of each class")
    rng = generator(seed, "partition/per_class")
    labeled = np.flatnonzero(data.y >= 0)
    order = rng.permutation(labeled)
    rank = np.empty(len(data.y), dtype=np.int64)  # the place of each labeled example within its class
    for label in range(data.classes):
        members = order[data.y[order] == label]
        rank[members] = np.arange(len(members))
    rest = order[rank[order] >= train]
    val_size = round(val * len(labeled))
    test_size = round(test * len(labeled))
    smallest_class = int(np.bincount(data.y[labeled], minlength=data.classes).min())
    if smallest_class < train or val_size + test_size > len(rest):
        raise ConfigError(
            f"partition.train_per_class = {train}, val = {val}, test = {test}: the smallest class of {data.name!r} has "
            f"{smallest_class} examples, and {len(rest)} others are left to validate and test. Lower one of the three.",
            code="config.too-few",
        )
    masks = np.zeros((3, len(data.y)), dtype=bool)
    masks[TRAIN, order[rank[order] < train]] = True
    masks[VAL, rest[:val_size]] = True
    masks[TEST, rest[val_size : val_size + test_size]] = True
    return masks


def masks_by_hash(ids: Sequence[str], ratios: tuple[float, float, float], key: bytes) -> np.ndarray:
    """Masks bool [3, n] by a keyed hash of each id only. With the key and an id one computes the same split, which
    reveals nothing about labels. About `ratios` are in train, val and test (HMAC-SHA256 as a number in [0, 1))."""
    digests = [hmac.digest(key, b"fedweave split\0" + name.encode(), "sha256")[:8] for name in ids]
    places = np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) / 2.0**64  # [n]
    ends = np.cumsum(ratios)
    starts = np.array([0.0, *ends[:2]])
    return (places < ends[:, None]) & (places >= starts[:, None])


def stratify(
    data: Dataset, examples: Sequence[np.ndarray], sizes: np.ndarray, seed: int, stream: str = "partition/split"
) -> tuple[Part, ...]:
    """Parts of `examples` (sorted, for each client) with `sizes` int64 [P, 3] of train, val and test, drawn in
    proportion to the labels.

    stream: the name of the seed's generator.
    """
    rng = generator(seed, stream)
    y, classes = strata(data)
    counts = _label_counts(data, examples)  # [P, c]
    bounds = _shares(counts, sizes, rng).cumsum(axis=0).reshape(3, -1)  # [3, P * c], ends of train, val and test
    numbers = np.concatenate(examples)
    client = _client_of_each(examples)
    at = rng.permutation(np.flatnonzero(y[numbers] >= 0))
    cell = client[at] * classes + y[numbers[at]]
    order = np.argsort(cell, kind="stable")  # a cell is one client's examples of one label, in random order
    at = at[order]
    cell = cell[order]
    rank = np.arange(len(cell)) - (counts.cumsum() - counts.ravel())[cell]  # the place of each example in its cell
    split = np.zeros(len(cell), np.int8)
    for bound in bounds:  # one at a time: for millions of examples these would be the largest arrays
        split += rank >= bound[cell]
    masks = np.zeros((3, len(numbers)), dtype=bool)
    used = split < 3
    masks[split[used], at[used]] = True
    pieces = np.split(masks, np.cumsum([len(one) for one in examples])[:-1], axis=1)
    return tuple(Part.of(data, one, np.ascontiguousarray(mask)) for one, mask in zip(examples, pieces, strict=True))


def _client_of_each(examples: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [e]: the client of each of all clients' examples, one client after the other."""
    return np.repeat(np.arange(len(examples)), [len(numbers) for numbers in examples])


def _label_counts(data: Dataset, examples: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [P, c]: labeled examples per client and class (`strata`)."""
    y, classes = strata(data)
    label = y[np.concatenate(examples)]
    cell = (_client_of_each(examples) * classes + label)[label >= 0]
    return np.bincount(cell, minlength=len(examples) * classes).reshape(len(examples), classes)


def _shares(counts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [3, P, c]: the examples of each class in each split; `counts` [P, c], `sizes` [P, 3]."""
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)  # [P, 1]
    remaining = counts.copy()
    shares = []
    for split in (TRAIN, VAL, TEST):
        ties = 1e-6 * rng.random(counts.shape)  # else ties would always favor the lower class number
        quota = counts * sizes[:, [split]] / totals + ties
        lower = np.minimum(counts, 1) if split == TRAIN else np.zeros_like(counts)
        share = _apportion(quota, lower, remaining, sizes[:, split])
        remaining = remaining - share
        shares.append(share)
    return np.stack(shares)


def _apportion(quota: np.ndarray, lower: np.ndarray, upper: np.ndarray, total: np.ndarray) -> np.ndarray:
    """int64 [P, k] with row sums `total` [P], near `quota` by largest remainder; <= `upper`, >= `lower` if possible."""
    share = np.clip(np.floor(quota + _TOLERANCE).astype(np.int64), lower, upper)
    gap = total - share.sum(axis=1)
    while gap.any():
        row = np.flatnonzero(gap > 0)
        room = np.where(share[row] < upper[row], quota[row] - share[row], -np.inf)
        share[row, room.argmax(axis=1)] += 1
        row = np.flatnonzero(gap < 0)
        spare = np.where(share[row] > 0, share[row] - quota[row], -np.inf)
        above_lower = share[row] > lower[row]
        spare = np.where(above_lower, spare + len(quota) + total.max(), spare)  # `lower` yields last
        share[row, spare.argmax(axis=1)] -= 1
        gap = total - share.sum(axis=1)
    return share
