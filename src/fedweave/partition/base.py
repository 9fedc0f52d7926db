"""The effect of a partition on a dataset: sizes, edges kept and lost, label distributions."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave.core.graph import SPLITS, TEST, TRAIN, VAL
from fedweave.core.plugins import Maker
from fedweave.core.random import generator
from fedweave.core.shown import Shown, Words, page
from fedweave.core.target import CLASS, LABELS, NUMBER, where_known
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError

MOST = 20  # clients that a summary shows
SHOWN = (
    "client",
    "graphs",
    "examples",
    "nodes",
    "features",
    "edges_kept",
    "edges_cut",
    "edges_added",
    "shared_nodes",
    "train",
    "val",
    "test",
)
_COUNTED = {"graph": "graphs", "edge": "examples"}  # columns that count examples, where these are no nodes
SHARED = {"overlap": "nodes", "overlap_links": "links"}  # columns, and the partition's matrices whose means they are


class Cut(Protocol):
    """The fields of a `base.Partition` that statistics read."""

    @property
    def parts(self) -> Sequence[Any]:
        """A `base.Part` for each client."""

    @property
    def test(self) -> np.ndarray | None:
        """Examples of the global test set."""

    @property
    def pairs(self) -> Mapping[str, np.ndarray]:
        """Facts about every two clients."""


def statistics(data: Dataset, partition: Cut) -> dict[str, list[Any]]:
    """Columns with one entry per client.

    client: number; nodes: held; edges_kept: undirected edges of the dataset that the client sees; edges_cut: ends, at
    own nodes, of the dataset's edges that it does not see (an edge to a node that it does not hold has one such end, an
    edge between own nodes that a vertical partition withholds has two); train, val, test: mask sizes; labels: list of c
    counts of the examples whose label it sees (several labels: of the labels that are 1; numbers: of the known ones).

    Only where they apply: means, deviations: lists of t, of the numbers; graphs: small graphs held; examples: edges
    held, where these are the examples; features: feature columns held, if not all; edges_added: undirected edges that
    it sees and the dataset does not have; shared_nodes: nodes that another client holds too, where clients hold edges;
    overlap, overlap_links: the mean share of its nodes and links that another client has too, where the partition
    states it. With a sensitive attribute, groups: list of counts of the examples of each value; test_groups: of its
    test examples; test_groups_class1: of its test examples of class 1.
    """
    parts = partition.parts
    holders = _holders([part.nodes for part in parts], data.nodes)
    seen_edges = np.asarray(_seen(data, partition, holders).sum(axis=0)).ravel()
    client_edges = np.array(
        [seen_edges[i] if part.edges is None else part.edges.shape[1] // 2 for i, part in enumerate(parts)]
    )
    degree = holders.T @ np.bincount(data.edges[0], minlength=data.nodes)
    masks = np.array([part.masks.sum(axis=1) for part in parts]).reshape(-1, 3)
    rows, columns = _counted(data)
    counts = sp.csr_matrix((np.ones(len(rows), np.int64), (rows, columns)), shape=(data.examples, data.outputs))
    examples = _holders([part.examples for part in parts], data.examples)
    vertical = any(part.columns is not None for part in parts)  # no edge leads to another client then
    widths = [data.features if part.columns is None else len(part.columns) for part in parts]
    return {
        "client": list(range(len(parts))),
        **({} if data.example == "node" else {_COUNTED[data.example]: [len(part.examples) for part in parts]}),
        "nodes": [len(part.nodes) for part in parts],
        "edges_kept": seen_edges.tolist(),
        "edges_cut": [0] * len(parts) if vertical else (degree - 2 * seen_edges).tolist(),
        "train": masks[:, 0].tolist(),
        "val": masks[:, 1].tolist(),
        "test": masks[:, 2].tolist(),
        "labels": ((examples.T @ counts).toarray() * np.array([[part.labels] for part in parts])).tolist(),
        **(_moments(data, parts) if data.target == NUMBER else {}),
        **({"features": widths} if vertical else {}),
        **({"edges_added": (client_edges - seen_edges).tolist()} if (client_edges > seen_edges).any() else {}),
        **({} if data.example != "edge" else _shared(holders)),
        **{name: realized(partition.pairs[of]).tolist() for name, of in SHARED.items() if of in partition.pairs},
        **({} if data.sensitive is None else _groups(data, partition)),
    }


def _counted(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """int64 [k]: examples, and the class, label or number of each that `statistics` counts in the column labels."""
    if data.target == CLASS:
        rows = np.flatnonzero(data.labeled)
        return rows, data.y[rows]
    rows, columns = np.nonzero(data.y == 1 if data.target == LABELS else where_known(data.y))
    return rows, columns


def _moments(data: Dataset, parts: Sequence[Any]) -> dict[str, list[Any]]:
    """The mean and the deviation of each number over the examples of each client, NaN where it knows none."""
    moments: dict[str, list[Any]] = {"means": [], "deviations": []}
    for part in parts:
        y = data.y[part.examples] if part.labels else data.y[:0]
        known = where_known(y)
        count = np.where(known.any(0), known.sum(0), np.nan)
        mean = np.where(known, y, 0).sum(0) / count
        moments["means"].append(mean.tolist())
        moments["deviations"].append(np.sqrt((np.where(known, y - mean, 0) ** 2).sum(0) / count).tolist())
    return moments


def totals(data: Dataset, partition: Cut) -> dict[str, int]:
    """Numbers of the whole partition.

    nodes, edges (undirected), graphs or examples (where small graphs or edges are these): the dataset's; held: examples
    with at least one client; global_test: examples of the global test set; edges_kept: undirected edges that at least
    one client sees; edges_lost: all other edges.
    Where the data has a sensitive attribute, without_sp: clients that have no test example of one of the first two
    groups, so that statistical parity is not defined there; without_eo: none of class 1 of one (equal opportunity).
    """
    parts = partition.parts
    holders = _holders([part.nodes for part in parts], data.nodes)
    seen = int(np.count_nonzero(np.diff(_seen(data, partition, holders).indptr)))
    edges = data.edges.shape[1] // 2
    return {
        "nodes": data.nodes,
        **({} if data.example == "node" else {_COUNTED[data.example]: data.examples}),
        "held": len(np.unique(np.concatenate([part.examples for part in parts]))),
        "global_test": 0 if partition.test is None else len(partition.test),
        "edges": edges,
        "edges_kept": seen,
        "edges_lost": edges - seen,
        **({} if data.sensitive is None else _without(_groups(data, partition))),
    }


def realized(pairs: np.ndarray) -> np.ndarray:
    """𝐍_i (FairGFL, eq. 8) of every client, float64 [P], from N or T [P, P]."""
    result: np.ndarray = pairs.sum(1) / max(len(pairs) - 1, 1)
    return result


def summary(columns: Mapping[str, Sequence[Any]], whole: Mapping[str, int], classes: Sequence[str] = ()) -> str:
    """The results of `statistics` and `totals` as plain text: a line per client, `MOST` at most, then the mean.
    classes: names of the classes, or of other targets."""
    shown = [name for name in SHOWN if name in columns]
    clients = len(columns["client"])
    targets = classes or [f"class {at}" for at in range(len(columns["labels"][0]))]
    rows = [[*(name.replace("_", " ") for name in shown), *targets]]
    for at in range(min(clients, MOST)):
        rows.append([_text(columns[name][at]) for name in shown] + target_cells(columns, at))
    if clients > MOST:
        means = [f"{np.mean(columns[name]):.1f}" for name in shown[1:]]
        rows.append(["mean", *means, *mean_cells(columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lost = f"{whole['edges_lost']:,} of {whole['edges']:,} edges lost to all clients"
    tested = f"; {whole['global_test']:,} {'graphs' if 'graphs' in whole else 'nodes'} in the global test"
    first = f"the first {MOST} of {clients:,} clients, and the mean of all; " if clients > MOST else ""
    return "\n".join([*lines, first + lost + (tested if whole["global_test"] else "")])


def target_cells(columns: Mapping[str, Sequence[Any]], at: int) -> list[str]:
    """A client's cell for each class or label, their count, or for each number, its mean ± deviation."""
    if "means" not in columns:
        return [str(count) for count in columns["labels"][at]]
    pairs = zip(columns["means"][at], columns["deviations"][at], strict=True)
    return ["-" if mean != mean else f"{mean:.3g} ± {spread:.3g}" for mean, spread in pairs]


def mean_cells(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The mean over all clients of each count of `target_cells`; empty for numbers, whose mean it would not be."""
    if "means" in columns:
        return [""] * len(columns["labels"][0])
    return [f"{count:.1f}" for count in np.mean(columns["labels"], axis=0)]


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _groups(data: Dataset, partition: Cut) -> dict[str, list[list[int]]]:
    """The columns for the sensitive attribute, one entry per client."""
    sensitive = np.asarray(data.sensitive)
    many = max(2, int(sensitive.max(initial=-1)) + 1)

    def counted(examples: np.ndarray) -> list[int]:
        result: list[int] = np.bincount(sensitive[examples][sensitive[examples] >= 0], minlength=many).tolist()
        return result

    tested = [part.examples[part.masks[TEST]] for part in partition.parts]
    columns = {
        "groups": [counted(part.examples) for part in partition.parts],
        "test_groups": [counted(examples) for examples in tested],
    }
    if data.target == CLASS:
        columns["test_groups_class1"] = [counted(examples[data.y[examples] == 1]) for examples in tested]
    return columns


def _without(columns: dict[str, list[list[int]]]) -> dict[str, int]:
    names = {"without_sp": "test_groups", "without_eo": "test_groups_class1"}
    return {name: sum(min(counts[:2]) == 0 for counts in columns[of]) for name, of in names.items() if of in columns}


def _holders(held: list[np.ndarray], count: int) -> sp.csr_matrix:
    """int64 [count, P]: 1 where the client holds that one of `count` nodes or examples."""
    clients = np.repeat(np.arange(len(held)), [len(numbers) for numbers in held])
    ones = np.ones(len(clients), dtype=np.int64)
    return sp.csr_matrix((ones, (np.concatenate(held), clients)), shape=(count, len(held)))


def _shared(holders: sp.csr_matrix) -> dict[str, list[int]]:
    """How many of each client's nodes another client holds too; {} where none is shared."""
    several = (np.diff(holders.indptr) > 1).astype(np.int64)
    return {"shared_nodes": (holders.T @ several).tolist()} if several.any() else {}


def _seen(data: Dataset, partition: Cut, holders: sp.csr_matrix) -> sp.csr_matrix:
    """int64 [undirected edges, P]: 1 where the client has the edge: among its own edges, or by both of its ends."""
    first, second = data.edges[:, data.edges[0] < data.edges[1]]
    if all(part.edges is None for part in partition.parts):
        return holders[first].multiply(holders[second]).tocsr()
    codes = first * data.nodes + second  # rising
    rows = []
    for client, part in enumerate(partition.parts):
        if part.edges is None:
            present = holders[:, [client]].toarray().ravel()
            rows.append(np.flatnonzero(present[first] & present[second]))
        else:
            present = np.sort((part.edges[0] * data.nodes + part.edges[1])[part.edges[0] < part.edges[1]])
            at = np.searchsorted(codes, present).clip(max=max(len(codes) - 1, 0))
            rows.append(at[codes[at] == present] if len(codes) else at[:0])
    return _holders(rows, len(codes))


# ----------------------------------------------------------------------------------------------------
# The result of a partition: the nodes or small graphs of each client, and how the client uses them. `check` tests a
# result from outside the package.


@dataclass(frozen=True, repr=False)
class Part(Shown):
    """One client's share, e_i examples: nodes or, of a dataset of small graphs, whole graphs.

    nodes:   int64 [n_i], sorted global node numbers.
    masks:   bool [3, e_i], rows train, val, test, disjoint, False at unlabeled examples.
    columns: int64 [d_i], sorted numbers of the feature columns that the client holds; None is all.
    edges:   int64 [2, E_i], its own edges among its nodes, global numbers, both directions; None is all the dataset's.
    labels:  whether it sees the labels of its examples; the masks say how these are used either way.
    graphs:  int64 [e_i], sorted numbers of the small graphs whose nodes `nodes` are; None where small graphs are not
             the examples.
    edge_rows: int64 [e_i], sorted numbers of all edges of `Dataset.edge_attrs` among `nodes`, or of its own edges
             where it has `edges`; None where edges are not the examples.
    split_times: the last times of training and of validation, beyond which their examples get no messages
             (`EdgeAttributes.split_times`); None where the split is not by time.
    groups:  whether it sees the group of its examples.
    """

    nodes: np.ndarray
    masks: np.ndarray
    columns: np.ndarray | None = None
    edges: np.ndarray | None = None
    labels: bool = True
    graphs: np.ndarray | None = None
    edge_rows: np.ndarray | None = None
    split_times: tuple[float, float] | None = None
    groups: bool = True

    def facts(self) -> dict[str, object]:
        """How many nodes it has, and examples of each split."""
        splits = dict(zip(SPLITS, self.masks.sum(1).tolist(), strict=True))
        return {"nodes": len(self.nodes), **splits}

    @classmethod
    def of(cls, data: Dataset, examples: np.ndarray, masks: np.ndarray) -> "Part":
        """The part that holds `examples` int64 [e_i], sorted, and uses them as `masks` [3, e_i] say."""
        graphs, edges = (examples if data.example == what else None for what in ("graph", "edge"))
        return cls(data.nodes_of(examples), masks, graphs=graphs, edge_rows=edges)

    @property
    def examples(self) -> np.ndarray:
        """int64 [e_i]: numbers of the examples."""
        numbers = self.edge_rows if self.graphs is None else self.graphs
        return self.nodes if numbers is None else numbers


@dataclass(frozen=True, repr=False)
class Partition(Shown):
    """A partition of a dataset into clients.

    parts: one per client, in client order. Clients may share nodes (label skew, vertical partitions); a client keeps
           the edges among its own.
    test:  int64 [m] sorted examples of the global test set, or None. No client trains on them, and none holds them
           unless there is `evaluation_part`.
    names: the clients' own names, distinct, in client order; None numbers them.
    evaluation_part: the graph on which a global model is evaluated, where it is larger than the one that `test`
           induces; its test nodes are `test`.
    held:  further nodes that the server itself holds and no client does, by role, such as "public", "validation" or
           "proxy".
    pairs:  facts about every two clients, {name: float64 [P, P]}, such as how much they share; stored with a run.
    members: for a union (`client_data.pooled`), {member: int64, which of the one client's examples are its own}.
    member_nodes: likewise {member: int64, which of the one client's nodes}, where links are the examples.
    maker:  the plug-in, data and seed that made it; None if unknown.
    """

    parts: tuple[Part, ...]
    test: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    evaluation_part: Part | None = None
    held: Mapping[str, Part] = field(default_factory=dict)
    pairs: Mapping[str, np.ndarray] = field(default_factory=dict)
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    member_nodes: Mapping[str, np.ndarray] = field(default_factory=dict)
    maker: Maker | None = field(default=None, init=False, repr=False, compare=False)

    def facts(self) -> dict[str, object]:
        """How many clients there are, of how many nodes, and the plug-in that made the partition."""
        sizes = [len(part.nodes) for part in self.parts]
        by = {} if self.maker is None else {"by": self.maker.plugin}
        few, many = min(sizes, default=0), max(sizes, default=0)
        return {"": f"{len(sizes):,} clients", "nodes": few if few == many else Words(f"{few:,} to {many:,}"), **by}

    def _repr_html_(self) -> str:
        names = client_ids(len(self.parts), self.names)
        rows = ((name, *part.facts().values()) for name, part in zip(names, self.parts, strict=True))
        return page(repr(self), rows, ("client", "nodes", *SPLITS))

    def table(self, data: Dataset | None = None) -> pa.Table:
        """A row per client: its name, how many nodes it holds, edges it keeps and loses, examples of each split and of
        each class (`statistics`). data: the dataset; a built-in partition knows it.

        Raises:
            UserError: the partition does not know its dataset, and `data` is None.
        """
        columns = statistics(self._data(data), self)
        return pa.table(columns | {"client": client_ids(len(self.parts), self.names)})

    def __str__(self) -> str:
        """The table for readers, and the lost edges, if the partition knows its dataset."""
        try:
            data = self._data(None)
        except UserError:
            sizes = [len(part.nodes) for part in self.parts]
            return f"{len(sizes):,} clients of {min(sizes):,} to {max(sizes):,} nodes; cut.table(data) says more"
        return summary(self.table(data).to_pydict(), totals(data, self), data.labels or data.targets)

    def _data(self, dataset: Dataset | None) -> Dataset:
        if dataset is not None:
            return dataset
        if self.maker is None:
            raise UserError(
                "this partition does not know what it was cut from; give the data: table(data).", code="user.no-data"
            )
        data: Dataset = self.maker.arguments[0]
        return data


@runtime_checkable
class Partitioner(Protocol):
    """A plug-in of [partition]: a frozen dataclass whose fields are its parameters."""

    def cut(self, data: Dataset, seed: int) -> Partition:
        """The partition of a dataset."""


@runtime_checkable
class SaysExamples(Protocol):
    """A class of such plug-ins that names the examples it divides, if not only the nodes of a graph."""

    examples: tuple[str, ...]


@runtime_checkable
class TakesSplit(Protocol):
    """A plug-in, or its class, that can take the data's own split."""

    @property
    def use_dataset_split(self) -> bool:
        """Whether it does."""


def client_ids(count: int, names: tuple[str, ...] | None = None) -> list[str]:
    """`names` if there are any, else "client-0", ..., zero-padded to equal width, so that they sort."""
    digits = len(str(count - 1))
    return [f"client-{i:0{digits}}" for i in range(count)] if names is None else list(names)


def check(result: object, data: Dataset, name: str) -> Partition:
    """Return `result` if the parts' examples and masks and the global test are as `Partition` defines them; `name` is
    the plug-in's.

    Raises:
        ConfigError: they are not; names the client and what is wrong.
    """
    if not isinstance(result, Partition) or not result.parts:
        raise ConfigError(f"partition {name!r}: cut returned {type(result).__name__}, not a Partition with parts.")
    for client, part in enumerate(result.parts):
        if fault := _fault(part, data):
            raise ConfigError(f"partition {name!r}: client {client}: {fault}.")
    if result.test is not None:
        if fault := _of_numbers(result.test, data.examples):
            raise ConfigError(f"partition {name!r}: test {fault}.")
        trained = [part.examples[part.masks[TRAIN]] for part in result.parts]
        if np.isin(np.concatenate(trained), result.test).any():
            raise ConfigError(f"partition {name!r}: a client trains on the global test.")
    return result


def _fault(part: object, data: Dataset) -> str:
    if not isinstance(part, Part):
        return f"it is {type(part).__name__}, not a Part"
    for what, numbers, most in (
        ("nodes", part.nodes, data.nodes),
        ("graphs", part.graphs, data.examples),
        ("edge_rows", part.edge_rows, data.examples),
    ):
        if numbers is not None and (fault := _of_numbers(numbers, most)):
            return f"{what} {fault}"
    masks, size = np.asarray(part.masks), len(part.examples)
    if masks.dtype != np.bool_ or masks.shape != (len(SPLITS), size):
        return f"masks are {masks.dtype} {list(masks.shape)}, not bool {[len(SPLITS), size]}"
    if (masks.sum(0) > 1).any():
        return "an example is in two of train, val and test"
    return "an example without a label is in a split" if masks[:, ~data.labeled[part.examples]].any() else ""


def _of_numbers(numbers: object, most: int) -> str:
    """What is wrong with sorted, distinct numbers below `most`; "" if nothing is."""
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int64 or numbers.ndim != 1:
        return "are not int64 [n]"
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < most:
        return f"are not all in 0..{most - 1}"
    return "" if (np.diff(numbers) > 0).all() else "are not rising"


# ----------------------------------------------------------------------------------------------------
# What the partitions share: checks, grouping examples by client, and train/val/test masks inside every client.


_TOLERANCE = 1e-9  # 0.2 + 0.4 + 0.4 and 0.3 * 10 are not exact in binary


def check_ratios(train: float, val: float, test: float) -> None:
    """Raise ConfigError unless train, val and test sum to at most 1."""
    if train + val + test > 1 + _TOLERANCE:
        raise ConfigError(
            f"train = {train}: with val = {val} and test = {test} they sum to {train + val + test:g}. Make the sum at "
            "most 1.",
            code="config.value",
        )


def check_enough(count: int, clients: int, each: int = 1, example: str = "node") -> None:
    """Raise ConfigError if `count` examples cannot give every client `each` of them."""
    if count < clients * each:
        raise ConfigError(
            f"partition.clients = {clients}: {count} {example}s are too few for at least {each} {example}(s) each. "
            f"Set clients to at most {count // each}, or take a larger dataset.",
            code="config.too-few",
        )


def need_classes(data: Dataset, what: str) -> None:
    """Raise ConfigError unless the data has classes, which a partition needs; `what` says why, "dirichlet deals …"."""
    if data.target != CLASS:
        raise ConfigError(
            f"partition: {what}, but the targets of {data.name!r} are {data.target_summary}. Choose another partition, "
            "such as random, column, louvain or metis.",
            code="config.target",
        )


def strata(data: Dataset) -> tuple[np.ndarray, int]:
    """int64 [e]: the stratum of each example, from which splits draw in equal shares: its class, -1 where unlabeled;
    and the number of strata. Numbers and several labels have a single stratum: examples are drawn at random."""
    if data.target == CLASS:
        return data.y, data.classes
    return np.where(data.labeled, 0, -1), 1


def group(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted examples (int64) of every client; `owner` int [e] is the client of each example."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def divide(
    data: Dataset, held: Sequence[np.ndarray], ratios: tuple[float, float, float], use_dataset_split: bool, seed: int
) -> tuple[Part, ...]:
    """Parts over `held` (sorted examples per client), masks in the train/val/test `ratios`, stratified by class where
    the data has classes (`strata`).

    Every client's numbers are within one of the ratios. A client with a labeled example trains on one, and on one of
    every class that it holds as long as its train examples suffice. `use_dataset_split` takes the published masks
    instead.

    Raises:
        ConfigError: `use_dataset_split`, and the dataset publishes none.
    """
    if use_dataset_split or data.links is not None:  # the split of links is decided before the partition
        return published(data, held)
    return stratify(data, held, role_sizes(_label_counts(data, held).sum(axis=1), ratios), seed)


def published(data: Dataset, held: Sequence[np.ndarray]) -> tuple[Part, ...]:
    """Parts over `held` with the dataset's own train/val/test masks.

    Raises:
        ConfigError: the dataset has none.
    """
    if data.public is None:
        raise ConfigError(
            f"partition.use_dataset_split = true: {data.name!r} has no published split. "
            "Set it to false and give train, val and test, or give your own data a split: tables a column split, "
            "npz train_idx, val_idx and test_idx, PyTorch Geometric's Data masks.",
            code="config.no-split",
        )
    masks = data.public & data.labeled
    return tuple(Part.of(data, examples, masks[:, examples]) for examples in held)


def role_sizes(labelled: np.ndarray, ratios: tuple[float, float, float]) -> np.ndarray:
    """int64 [P, 3]: train, val and test sizes of clients with `labelled` int64 [P] examples, by largest remainder."""
    shares = np.array([*ratios, max(0.0, 1 - sum(ratios))])
    some_train = np.minimum(labelled, 1)[:, None] * np.array([1, 0, 0, 0])
    most = np.repeat(labelled[:, None], 4, axis=1)
    return _apportion(labelled[:, None] * shares, some_train, most, labelled)[:, :3]


def per_class(data: Dataset, train: int, val: float, test: float, seed: int) -> np.ndarray:
    """Masks bool [3, e] for all examples: `train` of each class train, and shares `val` and `test` of all labeled
    ones, rounded, are drawn uniformly from the others (as PyG's split "random" of `Planetoid`).

    Raises:
        ConfigError: a class has fewer examples, or too few are left to validate and test.
    """
    need_classes(data, "train_per_class takes this number of examples of each class")
    rng, labelled = generator(seed, "partition/per_class"), np.flatnonzero(data.y >= 0)
    order = rng.permutation(labelled)
    rank = np.empty(len(data.y), dtype=np.int64)
    for label in range(data.classes):
        members = order[data.y[order] == label]
        rank[members] = np.arange(len(members))
    rest = order[rank[order] >= train]
    sizes = [round(share * len(labelled)) for share in (val, test)]
    fewest = int(np.bincount(data.y[labelled], minlength=data.classes).min())
    if fewest < train or sum(sizes) > len(rest):
        raise ConfigError(
            f"partition.train_per_class = {train}, val = {val}, test = {test}: the smallest class of {data.name!r} has "
            f"{fewest} examples, and {len(rest)} others are left to validate and test. Lower one of the three.",
            code="config.too-few",
        )
    masks = np.zeros((3, len(data.y)), dtype=bool)
    masks[TRAIN, order[rank[order] < train]] = True
    masks[VAL, rest[: sizes[0]]] = True
    masks[TEST, rest[sizes[0] : sum(sizes)]] = True
    return masks


def hashed(ids: Sequence[str], ratios: tuple[float, float, float], key: bytes) -> np.ndarray:
    """Masks bool [3, n] by a keyed hash of each id only. Every holder of the key and an id computes the same split,
    which reveals nothing about labels. About `ratios` are in train, val and test (HMAC-SHA256 as a number in [0, 1)).
    """
    digests = [hmac.digest(key, b"fedweave split\0" + name.encode(), "sha256")[:8] for name in ids]
    places = np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) / 2.0**64
    ends = np.cumsum(ratios)
    return (places < ends[:, None]) & (places >= np.array([0.0, *ends[:2]])[:, None])


def stratify(
    data: Dataset, held: Sequence[np.ndarray], sizes: np.ndarray, seed: int, stream: str = "partition/split"
) -> tuple[Part, ...]:
    """Parts over `held` with `sizes` int64 [P, 3] train, val and test examples, drawn in proportion to the labels.
    stream: the name of the seed's generator."""
    rng = generator(seed, stream)
    (y, kinds), counts = strata(data), _label_counts(data, held)
    bounds = _shares(counts, sizes, rng).cumsum(axis=0).reshape(3, -1)
    examples = np.concatenate(held)
    client = np.repeat(np.arange(len(held)), [len(numbers) for numbers in held])
    at = rng.permutation(np.flatnonzero(y[examples] >= 0))
    cell = client[at] * kinds + y[examples[at]]
    order = np.argsort(cell, kind="stable")  # a cell is one client's examples of one label, in random order
    at, cell = at[order], cell[order]
    rank = np.arange(len(cell)) - (counts.cumsum() - counts.ravel())[cell]
    role = np.zeros(len(cell), np.int8)
    for bound in bounds:  # one at a time: for millions of examples these would be the largest arrays
        role += rank >= bound[cell]
    masks = np.zeros((3, len(examples)), dtype=bool)
    used = role < 3
    masks[role[used], at[used]] = True
    pieces = np.split(masks, np.cumsum([len(numbers) for numbers in held])[:-1], axis=1)
    return tuple(Part.of(data, numbers, np.ascontiguousarray(mask)) for numbers, mask in zip(held, pieces, strict=True))


def _label_counts(data: Dataset, held: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [P, c]: labeled examples per client and class (`strata`)."""
    y, kinds = strata(data)
    label = y[np.concatenate(held)]
    client = np.repeat(np.arange(len(held)), [len(numbers) for numbers in held])
    cell = (client * kinds + label)[label >= 0]
    return np.bincount(cell, minlength=len(held) * kinds).reshape(len(held), kinds)


def _shares(counts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [3, P, c]: the examples of each class in each role; `counts` [P, c], `sizes` [P, 3]."""
    known = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left, shares = counts.copy(), []
    for role in range(3):
        ties = 1e-6 * rng.random(counts.shape)  # else ties would always favor the lower class number
        quota = counts * sizes[:, [role]] / known + ties
        least = np.minimum(counts, 1) if role == 0 else np.zeros_like(counts)
        share = _apportion(quota, least, left, sizes[:, role])
        left = left - share
        shares.append(share)
    return np.stack(shares)


def _apportion(quota: np.ndarray, least: np.ndarray, most: np.ndarray, total: np.ndarray) -> np.ndarray:
    """int64 [P, k] with row sums `total` [P], near `quota` by largest remainder; >= `least` if possible, <= `most`."""
    share = np.clip(np.floor(quota + _TOLERANCE).astype(np.int64), least, most)
    while (gap := total - share.sum(axis=1)).any():
        row = np.flatnonzero(gap > 0)
        room = np.where(share[row] < most[row], quota[row] - share[row], -np.inf)
        share[row, room.argmax(axis=1)] += 1
        row = np.flatnonzero(gap < 0)
        spare = np.where(share[row] > 0, share[row] - quota[row], -np.inf)
        spare = np.where(share[row] > least[row], spare + len(quota) + total.max(), spare)  # `least` yields last
        share[row, spare.argmax(axis=1)] -= 1
    return share
