"""Handwritten digits as a nearest-neighbour graph; needs no file and no network."""

from dataclasses import dataclass
from functools import lru_cache
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
    among the other's nearest; of equally distant ones the first are. Distances are of whole numbers, so that the graph
    is the same on every machine. `root` and `seed` are not used.

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
        pixels, y, source, target = _images(self.neighbours)
        return Dataset(
            name="digits",
            x=compact((pixels / 16).astype(np.float32)),
            edges=undirected(source, target, len(y)),
            y=y.astype(np.int64),
            classes=10,
        )


@lru_cache(maxsize=2)
def _images(neighbours: int) -> tuple[np.ndarray, ...]:
    """pixels float64 [n, 64], labels [n], and the ends of `_nearest`; kept, since many short runs in one process take
    as long as finding the neighbours anew."""
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    found = pixels, y, *_nearest(pixels, neighbours)
    for array in found:
        array.setflags(write=False)
    return found


def _nearest(pixels: np.ndarray, neighbours: int) -> tuple[np.ndarray, np.ndarray]:
    """Every image and each of its nearest others, int64 [n * neighbours] both; pixels float64 [n, d], whole numbers."""
    n, squares = len(pixels), (pixels**2).sum(1)
    distances = squares[:, None] + squares - 2 * (pixels @ pixels.T)  # whole numbers, so exact in any order
    np.fill_diagonal(distances, np.inf)
    ranked = distances * n + np.arange(n)  # the first of equally distant ones
    nearest = np.argpartition(ranked, neighbours - 1, 1)[:, :neighbours]
    return np.repeat(np.arange(n), neighbours), nearest.ravel()
