"""What the partitions share: checks, grouping examples by client, and train/val/test masks inside every client."""

import hmac
from collections.abc import Sequence

import numpy as np

from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part

_TOLERANCE = 1e-9  # 0.2 + 0.4 + 0.4 and 0.3 * 10 are not exact in binary
_MOST_CLIENTS = 1_000_000  # of one cut, above which it would take days


def check_clients(clients: int) -> None:
    """Raise ConfigError unless there are 1 to a million clients."""
    if not 1 <= clients <= _MOST_CLIENTS:
        raise ConfigError(
            f"[partition] clients = {clients}: must be a whole number >= 1 and <= {_MOST_CLIENTS}.", code="config.value"
        )


def check_ratios(train: float, val: float, test: float) -> None:
    """Raise ConfigError unless train > 0, val >= 0, test >= 0 and they sum to at most 1."""
    given = f"[partition] train = {train}, val = {val}, test = {test}"
    if not (train > 0 and val >= 0 and test >= 0):
        raise ConfigError(f"{given}: train must be above 0, val and test at least 0.", code="config.value")
    if train + val + test > 1 + _TOLERANCE:
        raise ConfigError(f"{given}: they sum to {train + val + test:g}; make the sum at most 1.", code="config.value")


def check_enough(count: int, clients: int, each: int = 1, example: str = "node") -> None:
    """Raise ConfigError if `count` examples cannot give every client `each` of them."""
    if count < clients * each:
        raise ConfigError(
            f"[partition] clients = {clients} of at least {each} {example}(s) cannot share {count} {example}s; "
            f"set clients to at most {count // each}, or take a larger dataset.",
            code="config.too-few",
        )


def group(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted examples (int64) of every client, where `owner` int [e] is each one's client."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def divide(
    data: Dataset, held: Sequence[np.ndarray], ratios: tuple[float, float, float], public_split: bool, seed: int
) -> tuple[Part, ...]:
    """Parts over `held` (sorted examples per client), masks stratified by label in the given train/val/test ratios.

    Every client's numbers are within one of the ratios. A client with a labelled example trains on one, and on one of
    every class that it holds as long as its train examples suffice. `public_split` takes the published masks instead.

    Raises:
        ConfigError: `public_split`, and the dataset publishes none.
    """
    if public_split:
        return published(data, held)
    return stratify(data, held, role_sizes(_label_counts(data, held).sum(axis=1), ratios), seed)


def published(data: Dataset, held: Sequence[np.ndarray]) -> tuple[Part, ...]:
    """Parts over `held` with the dataset's own train/val/test masks.

    Raises:
        ConfigError: the dataset has none.
    """
    if data.public is None:
        raise ConfigError(
            f"[partition] public_split = true, but {data.name!r} has no published split; "
            "set it to false and give train, val and test, or give your own data a split: tables a column split, "
            "npz train_idx, val_idx and test_idx, PyTorch Geometric's Data masks.",
            code="config.no-split",
        )
    masks = data.public & (data.y >= 0)
    return tuple(Part.of(data, own, masks[:, own]) for own in held)


def role_sizes(labelled: np.ndarray, ratios: tuple[float, float, float]) -> np.ndarray:
    """int64 [P, 3]: train, val and test sizes of clients with `labelled` int64 [P] examples, by largest remainder."""
    shares = np.array([*ratios, max(0.0, 1 - sum(ratios))])
    some_train = np.minimum(labelled, 1)[:, None] * np.array([1, 0, 0, 0])
    most = np.repeat(labelled[:, None], 4, axis=1)
    return _apportion(labelled[:, None] * shares, some_train, most, labelled)[:, :3]


def per_class(data: Dataset, train: int, val: float, test: float, seed: int) -> np.ndarray:
    """Masks bool [3, e] for all examples: `train` of each class train, and shares `val` and `test` of all labelled
    ones, rounded, are drawn uniformly from the others (as PyG's split "random" of `Planetoid`).

    Raises:
        ConfigError: a class has fewer examples, or too few are left to validate and test.
    """
    rng, labelled = generator(seed, "partition/per_class"), np.flatnonzero(data.y >= 0)
    order = rng.permutation(labelled)
    rank = np.empty(len(data.y), dtype=np.int64)
    for label in range(data.classes):
        own = order[data.y[order] == label]
        rank[own] = np.arange(len(own))
    rest = order[rank[order] >= train]
    sizes = [round(share * len(labelled)) for share in (val, test)]
    fewest = int(np.bincount(data.y[labelled], minlength=data.classes).min())
    if fewest < train or sum(sizes) > len(rest):
        raise ConfigError(
            f"[partition] train_per_class = {train}, val = {val} and test = {test}: the smallest class of "
            f"{data.name!r} has {fewest} examples, and {len(rest)} others are left to validate and test; lower one.",
            code="config.too-few",
        )
    masks = np.zeros((3, len(data.y)), dtype=bool)
    masks[TRAIN, order[rank[order] < train]] = True
    masks[VAL, rest[: sizes[0]]] = True
    masks[TEST, rest[sizes[0] : sum(sizes)]] = True
    return masks


def hashed(ids: Sequence[str], ratios: tuple[float, float, float], key: bytes) -> np.ndarray:
    """Masks bool [3, n] by a keyed hash of each id alone: whoever has the key and an id finds the same split, and it
    tells nothing of labels. A share of about `ratios` is in train, val and test (HMAC-SHA256, as a number in [0, 1)).
    """
    drawn = [hmac.digest(key, b"fedweave split\0" + name.encode(), "sha256")[:8] for name in ids]
    places = np.array([int.from_bytes(own, "big") for own in drawn], np.float64) / 2.0**64
    ends = np.cumsum(ratios)
    return (places < ends[:, None]) & (places >= np.array([0.0, *ends[:2]])[:, None])


def stratify(
    data: Dataset, held: Sequence[np.ndarray], sizes: np.ndarray, seed: int, stream: str = "partition/split"
) -> tuple[Part, ...]:
    """Parts over `held` with `sizes` int64 [P, 3] train, val and test examples, drawn in proportion to the labels, with
    the generator of the seed that is called `stream`."""
    rng = generator(seed, stream)
    counts = _label_counts(data, held)
    bounds = _shares(counts, sizes, rng).cumsum(axis=0).reshape(3, -1)
    examples = np.concatenate(held)
    client = np.repeat(np.arange(len(held)), [len(own) for own in held])
    at = rng.permutation(np.flatnonzero(data.y[examples] >= 0))
    cell = client[at] * data.classes + data.y[examples[at]]
    order = np.argsort(cell, kind="stable")  # a cell is one client's examples of one label, in random order
    at, cell = at[order], cell[order]
    rank = np.arange(len(cell)) - (counts.cumsum() - counts.ravel())[cell]
    role = np.zeros(len(cell), np.int8)
    for bound in bounds:  # one after the other: of millions of examples these would be the largest arrays
        role += rank >= bound[cell]
    masks = np.zeros((3, len(examples)), dtype=bool)
    used = role < 3
    masks[role[used], at[used]] = True
    pieces = np.split(masks, np.cumsum([len(own) for own in held])[:-1], axis=1)
    return tuple(Part.of(data, own, np.ascontiguousarray(mask)) for own, mask in zip(held, pieces, strict=True))


def _label_counts(data: Dataset, held: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [P, c]: labelled examples per client and class."""
    label = data.y[np.concatenate(held)]
    client = np.repeat(np.arange(len(held)), [len(own) for own in held])
    cell = (client * data.classes + label)[label >= 0]
    return np.bincount(cell, minlength=len(held) * data.classes).reshape(len(held), data.classes)


def _shares(counts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [3, P, c]: how many examples of each class take each role; `counts` [P, c], `sizes` [P, 3]."""
    known = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left, shares = counts.copy(), []
    for role in range(3):
        ties = 1e-6 * rng.random(counts.shape)  # else ties would always favour the lower class number
        quota = counts * sizes[:, [role]] / known + ties
        least = np.minimum(counts, 1) if role == 0 else np.zeros_like(counts)
        share = _apportion(quota, least, left, sizes[:, role])
        left = left - share
        shares.append(share)
    return np.stack(shares)


def _apportion(quota: np.ndarray, least: np.ndarray, most: np.ndarray, total: np.ndarray) -> np.ndarray:
    """int64 [P, k] with row sums `total` [P], near `quota` by largest remainder; >= `least` if possible, <= `most`."""
    share = np.clip(np.floor(quota + _TOLERANCE).astype(np.int64), least, most)
    while (gap := total - share.sum(axis=1)).any():
        row = np.flatnonzero(gap > 0)
        room = np.where(share[row] < most[row], quota[row] - share[row], -np.inf)
        share[row, room.argmax(axis=1)] += 1
        row = np.flatnonzero(gap < 0)
        spare = np.where(share[row] > 0, share[row] - quota[row], -np.inf)
        spare = np.where(share[row] > least[row], spare + len(quota) + total.max(), spare)  # `least` yields last
        share[row, spare.argmax(axis=1)] -= 1
    return share
