"""A contextual stochastic block model with an optional sensitive attribute, of any size."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check_settings
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import compact
from fedweave.datasets.lookup import NotHeld
from fedweave.datasets.pairs import Blocks, draw_pairs
from fedweave.errors import ConfigError

_FAR = 1e6  # standard deviations of the noise, of which float32 keeps little at this distance


@dataclass(frozen=True)
class Synthetic:
    """Contextual stochastic block model (Deshpande, Sen, Montanari and Mossel 2018), conditioned on its edge counts.

    Classes are equally large (up to one node) and randomly placed. round(nodes * degree / 2) distinct edges are drawn,
    a share of `homophily` of them uniformly among the pairs within a class, the rest among the pairs across classes, so
    that mean degree and homophily of the result are the parameters up to rounding.
    Features are standard normal plus a class mean; any two class means are `signal` apart.

    nodes:                  how many.
    classes:                how many.
    features:               columns.
    degree:                 mean number of neighbours.
    homophily:              share of the edges that join nodes of one class.
    signal:                 distance between two class means.
    sensitive:              add a binary attribute s; it is never among the features.
    sens_label_correlation: Pearson correlation (0..1, in expectation) of s with "the class is in the upper half".
    sens_homophily:         share of edges that join equal s, whatever the classes; None: edges do not look at s.
    sens_feature_shift:     distance between the feature means of the two groups, along a direction of its own.
    """

    nodes: int = 1000
    classes: int = 4
    features: int = 32
    degree: float = 10.0
    homophily: float = 0.8
    signal: float = 1.0
    sensitive: bool = False
    sens_label_correlation: float = 0.0
    sens_homophily: float | None = None
    sens_feature_shift: float = 0.0

    def __post_init__(self) -> None:
        wanted = self.classes + self.sensitive  # one direction for each class mean and one for the group's
        rules = (
            (self.classes >= 2, "classes", "at least 2"),
            (self.nodes >= self.classes, "nodes", f"at least one per class, {self.classes}"),
            (self.features >= wanted, "features", f"at least {wanted} (classes, and one more if sensitive)"),
            (self.nodes * self.features < 2**60, "nodes", "less than 2^60 / features"),
            (0 <= self.degree * self.nodes < 2**53, "degree", "0 or more, with fewer than 2^52 edges"),
            (0 <= self.homophily <= 1, "homophily", "in 0..1"),
            (0 <= self.signal <= _FAR, "signal", f"in 0..{_FAR:g}"),
            (0 <= self.sens_label_correlation <= 1, "sens_label_correlation", "in 0..1"),
            (self.sens_homophily is None or 0 <= self.sens_homophily <= 1, "sens_homophily", "in 0..1, or absent"),
            (abs(self.sens_feature_shift) <= _FAR, "sens_feature_shift", f"in -{_FAR:g}..{_FAR:g}"),
        )
        check_settings("synthetic", vars(self), rules)
        if not self.sensitive and (self.sens_label_correlation, self.sens_homophily, self.sens_feature_shift) != (
            0,
            None,
            0,
        ):
            raise ConfigError("synthetic: sens_* parameters have no effect without sensitive = true; set it.")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """One draw for `seed`; `root` must be None.

        Raises:
            ConfigError: the graph has fewer pairs of some kind than edges of that kind are asked for.
        """
        if root is not None:
            raise NotHeld("synthetic")
        y = generator(seed, "synthetic labels").permutation(np.arange(self.nodes) % self.classes)
        sens = self._sens(y, generator(seed, "synthetic groups")) if self.sensitive else None
        return Dataset(
            name="synthetic",
            x=self._x(y, sens, generator(seed, "synthetic features")),
            edges=self._edges(y, sens, generator(seed, "synthetic edges")),
            y=y,
            classes=self.classes,
            sens=sens,
        )

    def _sens(self, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        upper = y >= (self.classes + 1) // 2
        share = upper.mean()
        # P(s = 1) = share in both halves together, and covariance / variance = the correlation.
        chance = np.where(
            upper, share + self.sens_label_correlation * (1 - share), share * (1 - self.sens_label_correlation)
        )
        result: np.ndarray = (rng.random(self.nodes) < chance).astype(np.int64)
        return result

    def _x(self, y: np.ndarray, sens: np.ndarray | None, rng: np.random.Generator) -> "np.ndarray | sp.csr_matrix":
        x = rng.standard_normal((self.nodes, self.features), dtype=np.float32)
        x[np.arange(self.nodes), y] += self.signal / np.sqrt(2)  # orthogonal means of this length are `signal` apart
        if sens is not None:
            x[:, self.classes] += self.sens_feature_shift * sens
        return compact(x)

    def _edges(self, y: np.ndarray, sens: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
        # Edges that do not look at s see one group of all nodes, within which every edge stays.
        alike_share = 1.0 if self.sens_homophily is None else self.sens_homophily
        group = np.zeros_like(y) if sens is None or self.sens_homophily is None else sens
        blocks = Blocks.of(y, group, self.classes)
        total = round(self.nodes * self.degree / 2)
        within = round(total * self.homophily)
        drawn = []
        for same_class, count in ((True, within), (False, total - within)):
            alike = round(count * alike_share)
            drawn += [
                draw_pairs(blocks, same_class, True, alike, rng),
                draw_pairs(blocks, same_class, False, count - alike, rng),
            ]
        source, target = np.concatenate(drawn, 1)
        return undirected(source, target, self.nodes)
