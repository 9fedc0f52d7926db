"""The undivided data that partitions cut into clients."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class Dataset:
    """A node-classification graph with n nodes, d features and c classes, checked by `datasets.check`.

    name:    what reports call it.
    x:       float32 [n, d], `scipy.sparse.csr_matrix` or `numpy.ndarray`; finite.
    edges:   int64 [2, E]: every undirected edge in both directions, sorted by (first row, second row), no duplicates,
             no self loops.
    y:       int64 [n], 0..c-1; -1 is unlabelled.
    classes: c.
    sens:    int64 [n] sensitive attribute (-1 unknown) or None.
    public:  bool [3, n] published train/val/test split or None.
    """

    name: str
    x: "np.ndarray | sp.csr_matrix"
    edges: np.ndarray
    y: np.ndarray
    classes: int
    sens: np.ndarray | None = None
    public: np.ndarray | None = None

    @property
    def nodes(self) -> int:
        """n."""
        return len(self.y)

    @property
    def features(self) -> int:
        """d."""
        return int(self.x.shape[1])
