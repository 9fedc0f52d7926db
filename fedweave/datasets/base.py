"""The undivided data that partitions cut into clients."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class Party:
    """One holder in a vertical dataset.

    name:    what the party is called.
    columns: int64 [d_m], sorted columns of the dataset's `x` that it holds; the parties' are disjoint.
    edges:   int64 [2, E_m], its own edges, in the form of the dataset's.
    labels:  whether its own nodes have a column of labels.
    names:   of its columns, in their order.
    """

    name: str
    columns: np.ndarray
    edges: np.ndarray
    labels: bool = True
    names: tuple[str, ...] = ()


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
    parties: who holds which columns and edges, where the data comes from several parties; else None.
    ids:     what the parties call the nodes, in order; () where nobody said.
    """

    name: str
    x: "np.ndarray | sp.csr_matrix"
    edges: np.ndarray
    y: np.ndarray
    classes: int
    sens: np.ndarray | None = None
    public: np.ndarray | None = None
    parties: tuple[Party, ...] | None = None
    ids: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """n."""
        return len(self.y)

    @property
    def features(self) -> int:
        """d."""
        return int(self.x.shape[1])
