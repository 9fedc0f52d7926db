"""What a partition says: which nodes each client holds and how it uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Part:
    """One client's share.

    nodes:   int64 [n_i], sorted global node numbers.
    masks:   bool [3, n_i], rows train, val, test, disjoint, False at unlabelled nodes.
    columns: int64 [d_i], sorted numbers of the feature columns that the client holds; None is all.
    edges:   int64 [2, E_i], its own edges among its nodes, global numbers, both directions; None is all the dataset's.
    labels:  whether it sees the labels of its nodes; the masks say how nodes are used either way.
    """

    nodes: np.ndarray
    masks: np.ndarray
    columns: np.ndarray | None = None
    edges: np.ndarray | None = None
    labels: bool = True


@dataclass(frozen=True)
class Partition:
    """A cut of a dataset into clients.

    parts: one per client, in client order. Clients may share nodes (label skew, vertical cuts); a client keeps the
           edges among its own.
    test:  int64 [m] sorted nodes of the global test set, or None. No client trains on them, and none holds them unless
           there is `judged`.
    names: the clients' own names, distinct, in client order; None numbers them.
    judged: the graph on which a global model is judged, where it is more than the one that `test` induces; its test
           nodes are `test`.
    held:  further nodes that the server itself holds and no client does, by role, such as "public", "validation" or
           "proxy".
    """

    parts: tuple[Part, ...]
    test: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    judged: Part | None = None
    held: Mapping[str, Part] = field(default_factory=dict)
