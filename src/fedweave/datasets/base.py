"""The undivided data that partitions cut into clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.core.carried import Carried
from fedweave.datasets.layout import write
from fedweave.datasets.outside import Outside
from fedweave.errors import UserError


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
    """Classified nodes or edges of one graph, or classified small graphs: n nodes, d features, e examples, c classes,
    checked by `datasets.check`. The examples are the nodes (e = n), the small graphs where `graph_of` is given, or the
    edges of `carried` where that says so.

    name:        what reports call it.
    x:           float32 [n, d], `scipy.sparse.csr_matrix` or `numpy.ndarray`; finite.
    edges:       int64 [2, E]: every undirected edge in both directions, sorted by (first row, second row), no
                 duplicates, no self loops; none between two small graphs.
    y:           int64 [e], 0..c-1; -1 is unlabelled.
    classes:     c.
    sens:        int64 [e] sensitive attribute (-1 unknown) or None.
    public:      bool [3, e] published train/val/test split or None.
    parties:     who holds which columns and edges, where the data comes from several parties; else None.
    ids:         what the user's tables call the examples, in order; () where nobody said.
    columns:     what the features are called, in order; () where nobody said.
    labels:      what the classes are called, in order; () where they are numbers.
    graph_of:    int64 [n], the small graph of each node, rising from 0 to e - 1 without gaps; None where nodes are the
                 examples.
    node_labels: int64 [n], the kind of each node from 0 (-1 unknown) or None.
    edge_labels: int64 [E], the kind of each edge from 0 (-1 unknown), the same in both directions, or None.
    owner:       int64 [e], whose each example is, or, where these are edges, each node [n]; a place in `owners`; None
                 where nobody said.
    owners:      what the owners are called.
    groups:      what the groups of `sens` are called, in order; () where they are numbers.
    node_kinds, edge_kinds: what the kinds of nodes and edges are called, in order; () where they are numbers.
    carried:     the edges as they were given, with direction, weight, features and time, of which `edges` says who is
                 joined to whom; None where they carry nothing.
    outside:     edges of its nodes to others that it does not have; None where nobody said.
    node_time:   float64 [n], when each node is, in the unit of the edges' times; None where nobody said.
    node_ids:    what the user's tables call the nodes, where edges are the examples; () where nobody said.
    notes:       sentences on what came with the data and is not used, for the user.
    named:       the [data] section that reads it again, and "seed" if that matters; None where nothing says so, as of a
                 copy in which something was replaced.
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
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    graph_of: np.ndarray | None = None
    node_labels: np.ndarray | None = None
    edge_labels: np.ndarray | None = None
    owner: np.ndarray | None = None
    owners: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    node_kinds: tuple[str, ...] = ()
    edge_kinds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    carried: Carried | None = None
    outside: Outside | None = None
    node_time: np.ndarray | None = None
    node_ids: tuple[str, ...] = ()
    named: Mapping[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def save(self, path: str | Path) -> Path:
        """Write it to an `.npz` file, which `[data] path` or `datasets.load("npz", path)` reads again, and return its
        absolute path.

        Raises:
            UserError: the data is of several parties, which the file does not keep, or the place cannot be written.
        """
        file = Path(path).expanduser().absolute()
        if self.parties is not None:
            raise UserError(f"{self.name} is of several parties, which an .npz file does not keep; write folders.")
        if file.suffix != ".npz":
            raise UserError(
                f"{path}: name a file that ends in .npz, by which [data] path knows what it is.", code="user.npz-name"
            )
        try:
            write(self, file)
        except OSError as error:
            raise UserError(
                f"{file} cannot be written: {error.strerror}. Name another place.", code="user.unwritable"
            ) from error
        own = {} if self.carried is None else {"loops": "keep"}
        object.__setattr__(self, "named", {"name": "npz", "path": str(file), "sens_feature": True, **own})
        return file

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.x.shape[0])

    @property
    def examples(self) -> int:
        """e."""
        return len(self.y)

    @property
    def example(self) -> str:
        """What an example is: "node", "graph" or "edge"."""
        if self.carried is not None and self.carried.examples:
            return "edge"
        return "node" if self.graph_of is None else "graph"

    @property
    def time(self) -> np.ndarray | None:
        """float64 [e], when each example is; None where nobody said, and of small graphs."""
        of_edges = None if self.carried is None else self.carried.time
        return {"edge": of_edges, "node": self.node_time}.get(self.example)

    @property
    def dealt_as(self) -> str:
        """What is dealt to clients: "node", or "graph" where small graphs are the examples."""
        return "graph" if self.example == "graph" else "node"

    @property
    def dealt(self) -> int:
        """How many of these there are."""
        return self.examples if self.example == "graph" else self.nodes

    @property
    def features(self) -> int:
        """d."""
        return int(self.x.shape[1])

    @property
    def edge_features(self) -> int:
        """How many features edges have."""
        return 0 if self.carried is None else self.carried.width

    @property
    def called(self) -> tuple[str, ...]:
        """What the user's data calls the nodes of a graph; () where nobody said."""
        return self.node_ids if self.example == "edge" else self.ids

    @property
    def edge_form(self) -> dict[str, int | bool]:
        """What models are fitted to of edges: how many features, whether weighted, whether they are the examples; and
        whether directed."""
        weighted = self.carried is not None and self.carried.weight is not None
        directed = self.carried is not None and self.carried.directed
        kind = {"weighted": weighted, "examples": self.example == "edge", "directed": directed}
        return {"features": self.edge_features, **kind}

    def nodes_of(self, examples: np.ndarray) -> np.ndarray:
        """int64, sorted: the nodes of `examples` int64 [m], sorted: themselves, or those of these small graphs, or the
        ends of these edges."""
        if self.carried is not None and self.carried.examples:
            return np.unique(self.carried.ends[:, examples])
        if self.graph_of is None:
            return examples
        chosen = np.zeros(self.examples, bool)
        chosen[examples] = True
        return np.flatnonzero(chosen[self.graph_of])
