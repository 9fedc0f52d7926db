"""What a partition says: which nodes each client holds and how it uses them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Part:
    """One client's share: `nodes` int64 [n_i], sorted global node numbers; `masks` bool [3, n_i], rows train, val,
    test, disjoint, False at unlabelled nodes."""

    nodes: np.ndarray
    masks: np.ndarray


@dataclass(frozen=True)
class Partition:
    """A cut of a dataset into clients.

    parts: one per client, in client order. Clients may share nodes (label skew); a client keeps the edges among its
    own. test:  int64 [m] sorted nodes of the global test set that no client holds, or None.
    """

    parts: tuple[Part, ...]
    test: np.ndarray | None = None
