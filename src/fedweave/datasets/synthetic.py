"""Graphs that are computed and need no file: a contextual stochastic block model with an optional sensitive attribute,
of any size, whose pairs are drawn by their endpoints, so that the work grows with the edges; and handwritten digits as
a nearest-neighbor graph.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedweave.core.bounds import Count, Fraction, NonNegative
from fedweave.core.random import generator
from fedweave.core.settings import Beside, Settings
from fedweave.datasets.base import Dataset, distinct, to_undirected
from fedweave.datasets.check import check_settings
from fedweave.datasets.features import compact
from fedweave.datasets.lookup import AbsentData
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
        return np.asarray(np.maximum(count - (same_class and same_group), 0))


def draw_pairs(blocks: Blocks, same_class: bool, same_group: bool, count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [2, count]: distinct unordered pairs, uniform among all that are in the same class (or in different ones)
    and in the same group (or in different ones)."""
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
    mask = np.ones(len(codes), np.bool_)
    mask[rng.choice(len(codes), len(codes) - count, replace=False)] = False
    return np.stack(np.divmod(codes[mask], n))


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


@dataclass(frozen=True)
class Digits(Settings):
    """scikit-learn's embedded 8x8 images of digits, each joined with its `neighbors` nearest images.

    Features are gray values in [0, 1] (64 per node), distance is Euclidean, and two images are joined if either is
    among the other's nearest; of equally distant ones the first are. Distances are of whole numbers, so that the graph
    is the same on every machine. `root` and `seed` are not used.

    neighbors: edges that an image asks for.
    """

    neighbors: Annotated[int, Field(ge=1, le=1796)] = 8

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graph: 1,797 nodes, 64 features, 10 classes."""
        if root is not None:
            raise AbsentData("digits")
        pixels, y, ends = _images(self.neighbors)
        return Dataset(
            name="digits",
            x=compact((pixels / 16).astype(np.float32)),
            edges=to_undirected(ends, len(y)),
            y=y.astype(np.int64),
            classes=10,
        )


@lru_cache(maxsize=2)
def _images(neighbors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """pixels float64 [n, 64], labels int64 [n], and `nearest_neighbors`; cached, because finding these takes as long as
    a short run, and a process may do many."""
    table = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")  # slow to import
    rows = np.loadtxt(str(table), delimiter=",")
    pixels, y = rows[:, :-1], rows[:, -1].astype(np.int64)
    arrays = (pixels, y, nearest_neighbors(pixels, neighbors))
    for array in arrays:
        array.setflags(write=False)
    return arrays


def nearest_neighbors(pixels: np.ndarray, neighbors: int) -> np.ndarray:
    """int64 [2, n * neighbors]: every image and each of its nearest others; pixels float64 [n, d], whole numbers."""
    n, squares = len(pixels), (pixels**2).sum(1)
    distances = squares[:, None] + squares - 2 * (pixels @ pixels.T)  # whole numbers, so exact in any order
    # Of equally distant ones the first are nearest.
    ranks = distances.astype(np.int32) * np.int32(n) + np.arange(n, dtype=np.int32)  # [n, n]
    np.fill_diagonal(ranks, np.iinfo(np.int32).max)
    nearest = np.partition(ranks, neighbors - 1, 1)[:, :neighbors] % n
    return np.stack([np.repeat(np.arange(n), neighbors), nearest.astype(np.int64).ravel()])


_FAR = 1e6  # standard deviations of the noise; at this distance float32 loses most of the noise


@dataclass(frozen=True)
class Synthetic(Settings):
    """Contextual stochastic block model (Deshpande, Sen, Montanari and Mossel 2018), conditioned on its edge counts.

    Classes are equally large (up to one node) and randomly placed. round(nodes * degree / 2) distinct edges are drawn,
    a share of `homophily` of them uniformly among the pairs within a class, the rest among the pairs across classes, so
    that mean degree and homophily of the result are the parameters up to rounding.
    Features are standard normal plus a class mean; any two class means are `signal` apart.

    nodes:                  number of nodes.
    classes:                number of classes.
    features:               number of feature columns.
    degree:                 mean number of neighbors.
    homophily:              share of the edges that join nodes of one class.
    signal:                 distance between two class means.
    sensitive:              add a binary attribute s; it is never among the features.
    sens_label_correlation: Pearson correlation (0..1, in expectation) of s with "the class is in the upper half".
    sens_homophily:         share of edges that join equal s, for all classes; None: edges do not depend on s.
    sens_feature_shift:     distance between the feature means of the two groups, along a direction of its own.
    """

    nodes: Count = 1000
    classes: Annotated[int, Field(ge=2)] = 4
    features: Count = 32
    degree: NonNegative = 10.0
    homophily: Fraction = 0.8
    signal: Annotated[float, Field(ge=0, le=_FAR)] = 1.0
    sensitive: bool = False
    sens_label_correlation: Annotated[Fraction, Beside("sensitive")] = 0.0
    sens_homophily: Annotated[Fraction | None, Beside("sensitive")] = None
    sens_feature_shift: Annotated[float, Field(ge=-_FAR, le=_FAR), Beside("sensitive")] = 0.0

    def __post_init__(self) -> None:
        directions = self.classes + self.sensitive  # one direction for each class mean and one for the group's
        rules = (
            (self.nodes >= self.classes, "nodes", f"at least one per class, {self.classes}"),
            (self.features >= directions, "features", f"at least {directions} (classes, and one more if sensitive)"),
            (self.nodes * self.features < 2**60, "nodes", "less than 2^60 / features"),
            (self.degree * self.nodes < 2**53, "degree", "0 or more, with fewer than 2^52 edges"),
        )
        check_settings(vars(self), rules)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """One draw for `seed`; `root` must be None.

        Raises:
            ConfigError: the graph has fewer pairs of some kind than edges of that kind are asked for.
        """
        if root is not None:
            raise AbsentData("synthetic")
        y = generator(seed, "synthetic labels").permutation(np.arange(self.nodes) % self.classes)
        rng = generator(seed, "synthetic features")
        x = rng.standard_normal((self.nodes, self.features), dtype=np.float32)
        x[np.arange(self.nodes), y] += self.signal / np.sqrt(2)  # orthogonal means of this length are `signal` apart
        sensitive = None
        if self.sensitive:
            upper = y >= (self.classes + 1) // 2
            share, correlation = upper.mean(), self.sens_label_correlation
            # P(s = 1) = share in both halves together, and covariance / variance = the correlation.
            chance = np.where(upper, share + correlation * (1 - share), share * (1 - correlation))
            sensitive = (generator(seed, "synthetic groups").random(self.nodes) < chance).astype(np.int64)
            x[:, self.classes] += self.sens_feature_shift * sensitive
        return Dataset(
            name="synthetic",
            x=compact(x),
            edges=self._edges(y, sensitive, generator(seed, "synthetic edges")),
            y=y,
            classes=self.classes,
            sensitive=sensitive,
        )

    def _edges(self, y: np.ndarray, sensitive: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
        # Edges that do not look at s see one group of all nodes, within which every edge stays.
        same_group_share = 1.0 if self.sens_homophily is None else self.sens_homophily
        group = np.zeros_like(y) if sensitive is None or self.sens_homophily is None else sensitive
        blocks = Blocks.of(y, group, self.classes)
        total = round(self.nodes * self.degree / 2)
        within = round(total * self.homophily)
        pairs = []
        for same_class, count in ((True, within), (False, total - within)):
            same_group = round(count * same_group_share)
            pairs.append(draw_pairs(blocks, same_class, True, same_group, rng))
            pairs.append(draw_pairs(blocks, same_class, False, count - same_group, rng))
        return to_undirected(np.concatenate(pairs, 1), self.nodes)
