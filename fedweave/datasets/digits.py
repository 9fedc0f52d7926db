"""Handwritten digits as a nearest-neighbour graph; needs no file and no network."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import undirected
from fedweave.datasets.features import compact
from fedweave.datasets.lookup import NotHeld
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Digits:
    """scikit-learn's embedded 8x8 images of digits, each joined with its `neighbours` nearest images.

    Features are grey values in [0, 1] (64 per node), distance is Euclidean, and two images are joined if either is
    among the other's nearest. `root` and `seed` are not used.

    neighbours: edges that an image asks for.
    """

    neighbours: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.neighbours <= 1796:
            raise ConfigError(f"neighbours = {self.neighbours} is not in 1..1796 (there are 1797 images).")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graph: 1,797 nodes, 64 features, 10 classes; `root` must be None, `seed` is not used."""
        if root is not None:
            raise NotHeld("digits")
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph

        pixels, y = load_digits(return_X_y=True)
        nearest = kneighbors_graph(pixels, self.neighbours).tocoo()
        return Dataset(
            name="digits",
            x=compact((pixels / 16).astype(np.float32)),
            edges=undirected(nearest.row, nearest.col, len(y)),
            y=y.astype(np.int64),
            classes=10,
        )
