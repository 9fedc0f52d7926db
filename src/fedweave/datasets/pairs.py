"""Distinct node pairs of a given kind, drawn by their endpoints: the work grows with the edges, not with the pairs."""

from dataclasses import dataclass

import numpy as np

from fedweave.datasets.edges import distinct
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Blocks:
    """Nodes sorted by (group, class); each of the two groups holds `c` blocks, one per class.

    order: int64 [n], node numbers in that order.
    sizes: int64 [2, c], nodes per block.
    start: int64 [2, c], position of each block's first node in `order`.
    """

    order: np.ndarray
    sizes: np.ndarray
    start: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, group: np.ndarray, classes: int) -> "Blocks":
        """From labels int64 [n] in 0..classes-1 and groups int64 [n] in 0..1."""
        block = group * classes + y
        sizes = np.bincount(block, minlength=2 * classes)
        return cls(np.argsort(block, kind="stable"), sizes.reshape(2, -1), (np.cumsum(sizes) - sizes).reshape(2, -1))

    def partners(self, same_class: bool, same_group: bool) -> np.ndarray:
        """int64 [2, c]: with how many nodes one node of each block forms a pair of the kind."""
        across = self.sizes if same_group else self.sizes[::-1]
        count = across if same_class else across.sum(1, keepdims=True) - across
        result: np.ndarray = np.maximum(count - (same_class and same_group), 0)
        return result


def draw_pairs(blocks: Blocks, same_class: bool, same_group: bool, count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [2, count]: distinct unordered pairs, uniform among all that are in the same class (or in different ones)
    and in the same group (or in different ones).

    Raises:
        ConfigError: there are fewer such pairs.
    """
    n = len(blocks.order)
    room = int((blocks.sizes * blocks.partners(same_class, same_group)).sum()) // 2
    if count > room:
        kind = f"{'within' if same_class else 'across'} classes and {'within' if same_group else 'across'} groups"
        raise ConfigError(
            f"synthetic: {count} edges {kind} are asked for, but only {room} such pairs exist; "
            "lower degree, add nodes, or move homophily or sens_homophily towards the middle.",
            code="config.pairs",
        )
    codes = np.zeros(0, np.int64)
    while len(codes) < count:
        more = _draw(blocks, same_class, same_group, 1024 + (count - len(codes)) * 5 // 4, rng)
        codes = distinct(np.concatenate([codes, more.min(0) * n + more.max(0)]))
    # All pairs are equally likely to be among the distinct ones, so dropping any few at random keeps the rest uniform.
    kept = np.ones(len(codes), np.bool_)
    kept[rng.choice(len(codes), len(codes) - count, replace=False)] = False
    return np.stack(np.divmod(codes[kept], n))


def _draw(blocks: Blocks, same_class: bool, same_group: bool, count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [2, count] with replacement: first ends weighted by their number of partners, so that pairs are uniform."""
    sizes, start = blocks.sizes, blocks.start
    partners = blocks.partners(same_class, same_group)
    weight = (sizes * partners).ravel().astype(np.float64)
    group, label = np.divmod(rng.choice(weight.size, count, p=weight / weight.sum()), sizes.shape[1])
    first = start[group, label] + rng.integers(0, sizes[group, label])

    other = group if same_group else 1 - group
    second = rng.integers(0, partners[group, label])  # counts the partners; below it becomes a position
    if not same_class:  # any block of the group `other` but the one of this class
        second += start[other, 0]
        second += np.where(second >= start[other, label], sizes[other, label], 0)
    else:
        second += start[other, label]
        if same_group:
            second += second >= first  # anyone in the block but the node itself
    return blocks.order[np.stack([first, second])]
