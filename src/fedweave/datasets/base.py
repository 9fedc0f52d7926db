"""`Dataset`: the data before a partition distributes it to clients, and the arrays of its `.npz` file."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes, both_ways
from fedweave.core.graph_arrays import Matrix
from fedweave.core.links import Links
from fedweave.core.shown import Shown, Words
from fedweave.core.target import CLASS, LOG, NUMBER, Kind, is_labeled, kind_of
from fedweave.core.text import counted
from fedweave.core.types import Record, Values
from fedweave.datasets.external import Outside
from fedweave.errors import UserError

NO_LOOPS = (
    'Remove it, or set [data] loops = "drop"; models add their own self loops. Edges with attributes may "keep" them.'
)
_LOG = logging.getLogger(__name__)


def note_loops(dropped: int, edges: int, where: str | Path) -> None:
    """Log how many of `edges` edges are dropped because they join a node with itself, if any are."""
    if dropped:
        join = "edge joins a node with itself" if dropped == 1 else "edges join nodes with themselves"
        _LOG.warning("note: %s: %s of %s %s, dropped", where, f"{dropped:,}", f"{edges:,}", join)


def to_undirected(ends: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: both directions of every edge, sorted by (first row, second row), without duplicates and without
    edges of a node with itself.

    ends: int [2, m], node numbers below `nodes`; an edge may be listed in one direction, in both, or several times.
    """
    loops = ends[0] == ends[1]
    source, target = ends[:, ~loops] if loops.any() else ends
    edges, half = np.empty((2, 2 * len(source)), np.int64), len(source)
    for part, first, second in ((edges[1, :half], source, target), (edges[1, half:], target, source)):
        np.multiply(first, nodes, out=part, dtype=np.int64, casting="unsafe")
        np.add(part, second, out=part, dtype=np.int64, casting="unsafe")
    return edges_of_codes(edges, nodes)


def edges_of_codes(edges: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: the different edges, sorted, of codes "first nodes + second" in the second row of `edges` int64
    [2, m], whose memory is used for the result."""
    codes = distinct(edges[1], owned=True)
    if len(codes) < edges.shape[1]:
        edges = np.empty((2, len(codes)), np.int64)
    np.divmod(codes, nodes, out=(edges[0], edges[1]))
    return edges


def split_numbers(masks: np.ndarray) -> np.ndarray:
    """int64 [e]: TRAIN, VAL or TEST (`core.graph`) of masks bool [3, e], -1 for none."""
    return np.where(masks.any(0), masks.argmax(0), -1)


def distinct(codes: np.ndarray, owned: bool = False) -> np.ndarray:
    """The different values of int64 [m], sorted; numpy.unique hashes, which takes 100 times longer on millions. owned:
    whether this function may change `codes`, because the caller does not need them later."""
    if owned:
        codes.sort()
    else:
        codes = np.sort(codes)
    new = np.ones(len(codes), bool)
    np.not_equal(codes[1:], codes[:-1], out=new[1:])
    return codes if new.all() else codes[new]


CSR = ("x_data", "x_indices", "x_indptr", "x_shape")  # the features, or instead of these the array
DENSE = "x"
REQUIRED = (*CSR, "edge_index", "y")
SPLIT = ("train_idx", "val_idx", "test_idx")
ARRAYS = {  # array: field of `Dataset`
    "sens": "sensitive",
    "graph_of": "graph_of",
    "node_labels": "node_labels",
    "edge_labels": "edge_labels",
    "owner": "owner",
    "scaffold": "scaffold",
}
EDGE_ARRAYS = {  # array: field of `EdgeAttributes`
    "edge_weight": "weight",
    "edge_attr": "features",
    "edge_time": "time",
    "edge_y": "y",
    "edge_split": "split",
    "edge_owner": "owner",
}
EDGE_FIELDS = {  # array: further field of `EdgeAttributes`
    "edge_feature_names": "columns",
    "edge_owner_names": "owners",
    "split_until": "split_times",
    "edge_scaling": "scaling",
}
NUMBERED = {  # names: the array whose numbers they name
    "label_names": "y",
    "group_names": "sens",
    "owner_names": "owner",
    "node_kind_names": "node_labels",
    "edge_kind_names": "edge_labels",
}
NAMES = {  # names: what a dataset calls them
    "feature_names": "columns",
    "label_names": "labels",
    "group_names": "groups",
    "owner_names": "owners",
    "node_kind_names": "node_kinds",
    "edge_kind_names": "edge_kinds",
    "target_names": "targets",
}
OUTSIDE = {"outside_weight": "weight", "outside_attr": "features", "outside_time": "time"}  # array: field, likewise
OPTIONAL = (
    *(*SPLIT, *ARRAYS, "ids", *NAMES, "directed", *EDGE_ARRAYS, "edge_owner_names", "edge_feature_names"),
    *("edge_scaling", "split_until", "graph_columns", "node_ids", "outside_index", "outside_names", *OUTSIDE),
)


def without_structure(data: "Dataset") -> "Dataset":
    """The data without the columns of `Dataset.structure`."""
    if data.structure is None:
        return data
    places = np.arange(data.features)
    kept = np.delete(places, places[data.structure.first :][: data.structure.width])
    columns = tuple(data.columns[at] for at in kept.tolist()) if data.columns else ()
    of_graphs = data.graph_columns
    if of_graphs is not None:
        of_graphs = of_graphs._replace(first=of_graphs.first - data.structure.width)
    return replace(data, x=data.x[:, kept], columns=columns, structure=None, graph_columns=of_graphs)


def write(dataset: "Dataset", path: Path) -> None:
    """Write a `Dataset` in the layout of `npz`; the same dataset gives the same bytes. Columns of structure are left
    out: who reads it computes them again."""
    dataset = without_structure(dataset)
    x = sp.csr_matrix(dataset.x)
    arrays = {
        "x_data": x.data,
        "x_indices": x.indices,
        "x_indptr": x.indptr,
        "x_shape": np.array(x.shape, np.int64),
        "edge_index": dataset.edges,
        "y": dataset.y,
    }

    def add(source: object, fields: Mapping[str, str]) -> None:
        """Add the fields of `source`, {array: field}, that are there."""
        for key, name in fields.items():
            values = getattr(source, name)
            if values is not None and not (isinstance(values, tuple) and len(values) == 0):
                arrays[key] = np.asarray(values)

    if dataset.graph_columns is not None:
        arrays["graph_columns"] = np.array(dataset.graph_columns)
    if dataset.public is not None:
        arrays |= {key: np.flatnonzero(mask) for key, mask in zip(SPLIT, dataset.public, strict=True)}
    add(dataset, {**ARRAYS, "ids": "ids", "node_ids": "node_ids", **NAMES})
    edge_attrs = dataset.edge_attrs
    if edge_attrs is not None:
        edge_attrs = edge_attrs if edge_attrs.examples else both_ways(edge_attrs)
        add(edge_attrs, EDGE_ARRAYS)
        arrays |= {"edge_index": edge_attrs.ends, "directed": np.array(edge_attrs.directed)}
        add(edge_attrs, EDGE_FIELDS)
    if dataset.example == "edge":  # then classes and split are of edges
        for key in ("y", *SPLIT):
            arrays.pop(key, None)
        arrays["edge_y"] = dataset.y
        if dataset.public is not None:
            arrays["edge_split"] = split_numbers(dataset.public)
    if dataset.outside is not None:
        edge_attrs, names = dataset.outside
        add(edge_attrs, OUTSIDE)
        arrays |= {"outside_index": edge_attrs.ends, "outside_names": np.array(names, str)}
    with path.open("wb") as file:  # given a name without ".npz", NumPy would append it
        np.savez_compressed(file, **arrays)


class ColumnRange(NamedTuple):
    """Some columns of `Dataset.x`, side by side: the place of the first, and their number."""

    first: int
    width: int

    @property
    def places(self) -> slice:
        """Where they are."""
        return slice(self.first, self.first + self.width)


class Structure(NamedTuple):
    """Columns of nodes that each holder of data computes on its own graph (`datasets.structure`).

    kinds: such as "degree" or "laplacian 8". first, width: the place of the first of these columns, and their number.
    seed: of the random signs of eigenvectors.
    """

    kinds: tuple[str, ...]
    first: int
    width: int
    seed: int = 0


@dataclass(frozen=True)
class Party:
    """One holder in a vertical dataset.

    name:    name of the party.
    columns: int64 [d_m], sorted columns of the dataset's `x` that it holds; the parties' are disjoint.
    edges:   int64 [2, E_m], its own edges, in the form of the dataset's.
    labels:  whether its own nodes have a column of labels.
    names:   of its columns, in their order.
    groups:  whether its own nodes have a column of groups.
    """

    name: str
    columns: np.ndarray
    edges: np.ndarray
    labels: bool = True
    names: tuple[str, ...] = ()
    groups: bool = True


@dataclass(frozen=True, repr=False)
class Dataset(Shown):
    """Classified nodes or edges of one graph, or classified small graphs: n nodes, d features, e examples, c classes,
    checked by `datasets.check`. The examples are the nodes (e = n), the small graphs where `graph_of` is given, or the
    edges of `edge_attrs`, if it declares that.

    name:        its name in reports.
    x:           float32 [n, d], `scipy.sparse.csr_matrix` or `numpy.ndarray`; finite.
    edges:       int64 [2, E]: every undirected edge in both directions, sorted by (first row, second row), no
                 duplicates, no self loops; none between two small graphs.
    y:           int64 [e], 0..c-1; -1 is unlabeled. Or numbers or labels [e, t] (`core.target`).
    classes:     c; 0 where no class is predicted.
    targets:     names of the t numbers or labels, in order; () where a class is predicted.
    target_scale: float64 [3, t], the units of a model's outputs where these are numbers (`core.target.scale_of`), and
                 None otherwise. Until members have their own (`target_scaling`), it marks logarithms.
    target_scaling: "own" where each holder of data scales its numbers by its own training examples, "all" where the
                 training examples of all holders determine the scale, "none" without scaling.
    sensitive:   int64 [e] sensitive attribute (-1 unknown) or None.
    public:      bool [3, e] published train/val/test split or None.
    parties:     who holds which columns and edges, where the data comes from several parties; else None.
    ids:         names of the examples in the user's tables, in order; () without.
    columns:     names of the features, in order; () without.
    labels:      names of the classes, in order; () where they are numbers.
    graph_of:    int64 [n], the small graph of each node, rising from 0 to e - 1 without gaps; None where nodes are the
                 examples.
    node_labels: int64 [n], the kind of each node from 0 (-1 unknown) or None.
    edge_labels: int64 [E], the kind of each edge from 0 (-1 unknown), the same in both directions, or None.
    owner:       int64 [e], the owner of each example or, where these are edges, of each node [n]; a place in `owners`;
                 None without owners.
    owners:      names of the owners.
    groups:      names of the sensitive groups, in order; () where they are numbers.
    node_kinds, edge_kinds: names of the kinds of nodes and edges, in order; () where they are numbers.
    edge_attrs:  the edges as listed, with direction, weight, features and time; None without edge attributes. `edges`
                 has the same edges as undirected pairs.
    outside:     edges of its nodes to nodes that it does not have; None if these are not known.
    node_time:   float64 [n], the time of each node, in the unit of the edges' times; None without.
    node_ids:    names of the nodes in the user's tables, where edges are the examples; () without.
    scaling:     "auto" where each holder of data scales its features by the nodes that it holds
                 (`datasets.features.by_holder`), "own" once that is done, "none" without such scaling.
    links:       how links are the examples (`datasets.links.as_links`): the links of `edge_attrs`, each of class 1,
                 "link"; None otherwise.
    smiles:      the molecule that each small graph is, as SMILES; () without, as in an .npz file.
    scaffold:    int64 [e], the number of each small graph's scaffold, or None (`datasets.molecules.scaffolds_of`).
    graph_columns: the columns of whole small graphs, the last of x: each graph's in the row of its first node, zeros at
                 its others (`datasets.graph_columns`); None without.
    structure:   the columns that each holder of data fills on its own graph, or None.
    shards:      the folder of shards that it was read from (`datasets.shards`), or None.
    notes:       sentences on what came with the data and is not used, for the user.
    named:       the [data] section that reads it again, and "seed" if that matters; None if unknown, as of a
                 copy in which something was replaced.
    """

    name: str
    x: Matrix
    edges: np.ndarray
    y: np.ndarray
    classes: int
    sensitive: np.ndarray | None = None
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
    edge_attrs: EdgeAttributes | None = None
    outside: Outside | None = None
    node_time: np.ndarray | None = None
    node_ids: tuple[str, ...] = ()
    scaling: str = "none"
    targets: tuple[str, ...] = ()
    target_scale: np.ndarray | None = None
    target_scaling: str = "own"
    links: Links | None = None
    smiles: tuple[str, ...] = ()
    scaffold: np.ndarray | None = None
    structure: Structure | None = None
    graph_columns: ColumnRange | None = None
    shards: Path | None = None
    named: Values | None = field(default=None, init=False, repr=False, compare=False)

    def facts(self) -> dict[str, object]:
        """Its name, how large it is, and what is predicted."""
        edges = self.edges.shape[1] // 2 if self.edge_attrs is None else self.edge_attrs.total
        graphs = {"graphs": self.examples} if self.example == "graph" else {}
        predicted: dict[str, object] = {"classes" if self.target == "class" else self.target: self.outputs}
        groups = {"sens": Words("yes")} if self.sensitive is not None else {}
        size = {"nodes": self.nodes, "edges": edges, "features": self.features}
        return {"": self.name, **graphs, **size, **predicted, **groups}

    def __str__(self) -> str:
        """The name and size, such as "digits: 1,797 nodes, 5,748 edges, 64 features, 10 classes"."""
        graphs = f"{self.examples:,} graphs, " if self.example == "graph" else ""
        edges = self.edges.shape[1] // 2 if self.edge_attrs is None else self.edge_attrs.total
        what = f"{self.classes} classes" if self.target == CLASS else self.target_summary
        return f"{self.name}: {graphs}{self.nodes:,} nodes, {edges:,} edges, {self.features:,} features, {what}"

    @property
    def target_summary(self) -> str:
        """The target in words: "3 classes (C, N, O)", "1 number (solubility)" or "2 labels (toxic, active)"."""
        if self.target == CLASS:
            names = ", ".join(self.labels) if self.labels else f"0 to {self.classes - 1}"
            return f"{counted(self.classes, 'class')} ({names})"
        names = ", ".join(self.targets) if self.targets else f"0 to {self.outputs - 1}"
        return f"{counted(self.outputs, 'number' if self.target == NUMBER else 'label')} ({names})"

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
        object.__setattr__(self, "named", self.in_archive(file))
        return file

    def in_archive(self, file: Path) -> Record:
        """The [data] section that reads it from the .npz `file`, once it is written there."""
        loops = {} if self.edge_attrs is None else {"loops": "keep"}
        scaling = {"normalize": "auto" if self.scaling == "auto" else "none"}
        if self.edge_features:
            scaling["edge_normalize"] = "auto" if self.edge_attrs is not None and self.edge_attrs.auto else "none"
        structure: Record = {} if self.structure is None else {"structure": list(self.structure.kinds)}
        more = {**loops, **scaling, **structure, **self.target_settings}
        return {"name": "npz", "path": str(file), "sens_feature": True, **more}

    @property
    def target_settings(self) -> Record:
        """The settings by which what is predicted is read from an array again (`settings.CommonSettings`)."""
        if self.target == CLASS:
            return {}
        if self.target_scale is None:
            return {"target": self.target}
        logs = bool(self.target_scale[LOG].any())
        return {"target": self.target, "target_normalize": self.target_scaling, "target_log": logs}

    @property
    def target(self) -> Kind:
        """The kind of target of an example (`core.target`): "class", "number" or "labels"."""
        return kind_of(self.y)

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for each example: c, or t; of a link 2, the logits of its two classes."""
        return self.classes if self.y.ndim == 1 else int(self.y.shape[1])

    @property
    def has_label(self) -> np.ndarray:
        """bool [e]: which examples have a label, or one at least of several."""
        return is_labeled(self.y)

    @property
    def first_nodes(self) -> np.ndarray:
        """int64 [e]: the first node of each small graph."""
        return np.flatnonzero(np.diff(self.graph_of, prepend=-1)) if self.graph_of is not None else np.arange(0)

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
        """The kind of example: "node", "graph" or "edge"."""
        if self.edge_attrs is not None and self.edge_attrs.examples:
            return "edge"
        return "node" if self.graph_of is None else "graph"

    @property
    def time(self) -> np.ndarray | None:
        """float64 [e], the time of each example; None without times, and for small graphs."""
        of_edges = None if self.edge_attrs is None else self.edge_attrs.time
        return {"edge": of_edges, "node": self.node_time}.get(self.example)

    @property
    def unit(self) -> str:
        """The unit that a partition distributes to clients: "node", or "graph" where small graphs are the examples."""
        return "graph" if self.example == "graph" else "node"

    @property
    def units(self) -> int:
        """The number of such units."""
        return self.examples if self.example == "graph" else self.nodes

    @property
    def features(self) -> int:
        """d."""
        return int(self.x.shape[1])

    @property
    def edge_features(self) -> int:
        """How many features edges have."""
        return 0 if self.edge_attrs is None else self.edge_attrs.width

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes of a graph in the user's data; () without."""
        return self.node_ids if self.example == "edge" else self.ids

    @property
    def edge_form(self) -> dict[str, int | bool]:
        """The form of edge attributes that models are fitted to: how many features, whether weighted, whether they are
        the examples; and whether directed. Where links are the examples, also the number of "relations"."""
        weighted = self.edge_attrs is not None and self.edge_attrs.weight is not None
        directed = self.edge_attrs is not None and self.edge_attrs.directed
        kind = {"weighted": weighted, "examples": self.example == "edge", "directed": directed}
        relations = {} if self.links is None else {"relations": max(1, len(self.links.relations))}
        return {"features": self.edge_features, **kind, **relations}

    def nodes_of(self, examples: np.ndarray) -> np.ndarray:
        """int64, sorted: the nodes of `examples` int64 [m], sorted: the examples themselves, the nodes of these small
        graphs, or the ends of these edges."""
        if self.edge_attrs is not None and self.edge_attrs.examples:
            return np.unique(self.edge_attrs.ends[:, examples])
        if self.graph_of is None:
            return examples
        is_example = np.zeros(self.examples, bool)
        is_example[examples] = True
        return np.flatnonzero(is_example[self.graph_of])
