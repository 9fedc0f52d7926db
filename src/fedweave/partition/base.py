"""The result of a partition: the nodes or small graphs of each client, and how the client uses them. `check` tests a
result from outside the package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from fedweave.core.graph import SPLITS, TRAIN
from fedweave.core.plugins import Maker
from fedweave.core.shown import Shown, Words, page
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.statistics import statistics, summary, totals


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
        """The part of `examples` int64 [e_i], sorted, which are used as `masks` [3, e_i] say."""
        graphs = examples if data.example == "graph" else None
        edge_rows = examples if data.example == "edge" else None
        return cls(data.nodes_of(examples), masks, graphs=graphs, edge_rows=edge_rows)

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
    members: for a union (`client_data.pool_clients`), {member: int64, which of the one client's examples are its own}.
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
        smallest = min(sizes, default=0)
        largest = max(sizes, default=0)
        nodes = smallest if smallest == largest else Words(f"{smallest:,} to {largest:,}")
        plugin = {} if self.maker is None else {"by": self.maker.plugin}
        return {"": f"{len(sizes):,} clients", "nodes": nodes, **plugin}

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
        fault = _fault(part, data)
        if fault:
            raise ConfigError(f"partition {name!r}: client {client}: {fault}.")
    if result.test is not None:
        fault = _fault_of_numbers(result.test, data.examples)
        if fault:
            raise ConfigError(f"partition {name!r}: test {fault}.")
        trained = [part.examples[part.masks[TRAIN]] for part in result.parts]
        if np.isin(np.concatenate(trained), result.test).any():
            raise ConfigError(f"partition {name!r}: a client trains on the global test.")
    return result


def _fault(part: object, data: Dataset) -> str:
    """What is wrong with a part; "" if it is sound."""
    if not isinstance(part, Part):
        return f"it is {type(part).__name__}, not a Part"
    for field_name, numbers, count in (
        ("nodes", part.nodes, data.nodes),
        ("graphs", part.graphs, data.examples),
        ("edge_rows", part.edge_rows, data.examples),
    ):
        fault = "" if numbers is None else _fault_of_numbers(numbers, count)
        if fault:
            return f"{field_name} {fault}"
    masks = np.asarray(part.masks)
    size = len(part.examples)
    if masks.dtype != np.bool_ or masks.shape != (len(SPLITS), size):
        return f"masks are {masks.dtype} {list(masks.shape)}, not bool {[len(SPLITS), size]}"
    if (masks.sum(0) > 1).any():
        return "an example is in two of train, val and test"
    if masks[:, ~data.has_label[part.examples]].any():
        return "an example without a label is in a split"
    return ""


def _fault_of_numbers(numbers: object, count: int) -> str:
    """What is wrong with sorted, distinct numbers below `count`; "" if they are sound."""
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int64 or numbers.ndim != 1:
        return "are not int64 [n]"
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        return f"are not all in 0..{count - 1}"
    return "" if (np.diff(numbers) > 0).all() else "are not rising"
