"""What a partition says: which nodes or small graphs each client holds and how it uses them; looked at (`check`) where
it comes from outside the package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from fedweave.core.graph import SPLITS, TRAIN
from fedweave.core.maker import Maker
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.statistics import statistics, summary, totals


@dataclass(frozen=True)
class Part:
    """One client's share, e_i examples: nodes or, of a dataset of small graphs, whole graphs.

    nodes:   int64 [n_i], sorted global node numbers.
    masks:   bool [3, e_i], rows train, val, test, disjoint, False at unlabelled examples.
    columns: int64 [d_i], sorted numbers of the feature columns that the client holds; None is all.
    edges:   int64 [2, E_i], its own edges among its nodes, global numbers, both directions; None is all the dataset's.
    labels:  whether it sees the labels of its examples; the masks say how these are used either way.
    graphs:  int64 [e_i], sorted numbers of the small graphs that `nodes` are all nodes of; None where these are not the
             examples.
    carried: int64 [e_i], sorted numbers of all the edges of `Dataset.carried` among `nodes`; None where these are not
             the examples.
    until:   the last times of training and of validation, beyond which their examples get no messages
             (`Carried.until`); None where the split is not by time.
    groups:  whether it sees of which group its examples are (sens).
    """

    nodes: np.ndarray
    masks: np.ndarray
    columns: np.ndarray | None = None
    edges: np.ndarray | None = None
    labels: bool = True
    graphs: np.ndarray | None = None
    carried: np.ndarray | None = None
    until: tuple[float, float] | None = None
    groups: bool = True

    @classmethod
    def of(cls, data: Dataset, examples: np.ndarray, masks: np.ndarray) -> "Part":
        """The part that holds `examples` int64 [e_i], sorted, and uses them as `masks` [3, e_i] say."""
        graphs, edges = (examples if data.example == what else None for what in ("graph", "edge"))
        return cls(data.nodes_of(examples), masks, graphs=graphs, carried=edges)

    @property
    def examples(self) -> np.ndarray:
        """int64 [e_i]: numbers of the examples."""
        own = self.carried if self.graphs is None else self.graphs
        return self.nodes if own is None else own


@dataclass(frozen=True)
class Partition:
    """A cut of a dataset into clients.

    parts: one per client, in client order. Clients may share nodes (label skew, vertical cuts); a client keeps the
           edges among its own.
    test:  int64 [m] sorted examples of the global test set, or None. No client trains on them, and none holds them
           unless there is `judged`.
    names: the clients' own names, distinct, in client order; None numbers them.
    judged: the graph on which a global model is judged, where it is more than the one that `test` induces; its test
           nodes are `test`.
    held:  further nodes that the server itself holds and no client does, by role, such as "public", "validation" or
           "proxy".
    pairs:  what is known of every two clients, {name: float64 [P, P]}, such as how much they share; kept with a run.
    members: of a union (`pooling.pooled`), {member: int64, which of the one client's examples are its own}.
    maker:  the plug-in, data and seed that it was cut by; None where nobody said.
    """

    parts: tuple[Part, ...]
    test: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    judged: Part | None = None
    held: Mapping[str, Part] = field(default_factory=dict)
    pairs: Mapping[str, np.ndarray] = field(default_factory=dict)
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    maker: Maker | None = field(default=None, init=False, repr=False, compare=False)

    def table(self, data: Dataset | None = None) -> pa.Table:
        """A row per client: its name, how many nodes it holds, edges it keeps and loses, examples of each split and of
        each class (`statistics`). data: what was cut, which a partition of fedweave's own knows.

        Raises:
            UserError: it does not know it, and none is given.
        """
        columns = statistics(self._data(data), self)
        return pa.table(columns | {"client": client_ids(len(self.parts), self.names)})

    def __str__(self) -> str:
        """The table for readers, and what edges were lost, if it is known what was cut."""
        try:
            data = self._data(None)
        except UserError:
            sizes = [len(part.nodes) for part in self.parts]
            return f"{len(sizes):,} clients of {min(sizes):,} to {max(sizes):,} nodes; cut.table(data) says more"
        return summary(self.table(data).to_pydict(), totals(data, self), data.labels)

    def _data(self, given: Dataset | None) -> Dataset:
        if given is not None:
            return given
        if self.maker is None:
            raise UserError(
                "this partition does not know what it was cut from; give the data: table(data).", code="user.no-data"
            )
        data: Dataset = self.maker.given[0]
        return data


@runtime_checkable
class Partitioner(Protocol):
    """A plug-in of [partition]: a frozen dataclass whose fields are its parameters."""

    def cut(self, data: Dataset, seed: int) -> Partition:
        """The cut that it makes of a dataset."""
        ...


@runtime_checkable
class SaysExamples(Protocol):
    """A class of such plug-ins that does not cut the nodes of a graph alone."""

    examples: tuple[str, ...]


@runtime_checkable
class TakesSplit(Protocol):
    """A plug-in, or its class, that can take the data's own split."""

    @property
    def public_split(self) -> bool:
        """Whether it does."""
        ...


def client_ids(count: int, names: tuple[str, ...] | None = None) -> list[str]:
    """`names` if there are any, else "client-0", ..., zero-padded to equal width, so that they sort."""
    digits = len(str(count - 1))
    return [f"client-{i:0{digits}}" for i in range(count)] if names is None else list(names)


def check(found: object, data: Dataset, name: str) -> Partition:
    """Return `found` if the parts' examples and masks and the global test are as `Partition` has them; `name` is the
    plug-in's.

    Raises:
        ConfigError: it does not; names the client and what is wrong.
    """
    if not isinstance(found, Partition) or not found.parts:
        raise ConfigError(f"partition {name!r}: cut returned {type(found).__name__}, not a Partition with parts.")
    for client, part in enumerate(found.parts):
        if fault := _fault(part, data):
            raise ConfigError(f"partition {name!r}: client {client}: {fault}.")
    if found.test is not None:
        if fault := _of_numbers(found.test, data.examples):
            raise ConfigError(f"partition {name!r}: test {fault}.")
        trained = [part.examples[part.masks[TRAIN]] for part in found.parts]
        if np.isin(np.concatenate(trained), found.test).any():
            raise ConfigError(f"partition {name!r}: a client trains on the global test.")
    return found


def _fault(part: object, data: Dataset) -> str:
    if not isinstance(part, Part):
        return f"it is {type(part).__name__}, not a Part"
    for what, numbers, most in (
        ("nodes", part.nodes, data.nodes),
        ("graphs", part.graphs, data.examples),
        ("carried", part.carried, data.examples),
    ):
        if numbers is not None and (fault := _of_numbers(numbers, most)):
            return f"{what} {fault}"
    masks, size = np.asarray(part.masks), len(part.examples)
    if masks.dtype != np.bool_ or masks.shape != (len(SPLITS), size):
        return f"masks are {masks.dtype} {list(masks.shape)}, not bool {[len(SPLITS), size]}"
    if (masks.sum(0) > 1).any():
        return "an example is in two of train, val and test"
    return "an example without a label is in a split" if masks[:, data.y[part.examples] < 0].any() else ""


def _of_numbers(numbers: object, most: int) -> str:
    """What is wrong with sorted, distinct numbers below `most`; "" if nothing is."""
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int64 or numbers.ndim != 1:
        return "are not int64 [n]"
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < most:
        return f"are not all in 0..{most - 1}"
    return "" if (np.diff(numbers) > 0).all() else "are not rising"
