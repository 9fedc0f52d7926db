"""Clients that hold edges and share nodes: the members of knowledge graphs, and shops whose customers are the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedweave.core.bounds import Clients
from fedweave.core.plugins import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.datasets.tables import skeleton
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition, divide, group
from fedweave.partition.divided import Divided, by_time


@dataclass(frozen=True)
class EdgeGroups(Divided):
    """A client for each group of edges; it holds the ends of its edges, which other clients may hold, too, and no edge
    of another client, even between its own nodes. No client holds a node without edges.

    by:      "random" deals the edges in equal shares; "relation" deals the relations at random, each with all of its
             edges, in shares of equally many relations (as FB15k-237-R3 of Chen et al. 2021): the classes of edges or,
             of links, their kinds; "owner" makes a client of each owner that [data] edge_owner names; "source" deals
             the nodes that edges lead from at random, each with all edges from it, such as a shop's customers; "time"
             makes consecutive spans of about equally many edges, of which none divides edges of one time.
    clients: how many, P; "owner" goes by the owners.
    """

    examples: ClassVar[tuple[str, ...]] = ("edge",)
    by: Literal["relation", "owner", "source", "random", "time"] = "random"
    clients: Clients = 10

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into groups of edges.

        Raises:
            ConfigError: the data lacks what the cut goes by, or a client would have no edge.
        """
        dealt, names = self._dealt(data, seed)
        clients = self.clients if names is None else len(names)
        held = group(dealt, clients)
        if empty := sum(len(edges) == 0 for edges in held):
            raise ConfigError(
                f"partition.clients = {clients}: {empty} of them would hold no edge of {data.name!r} by {self.by}. "
                "Lower clients, or cut the edges in another way (partition.by).",
                code="config.too-few",
            )
        parts = self._parts(data, held, seed)
        return Partition(parts, names=names)

    def _dealt(self, data: Dataset, seed: int) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """int64 [M], the client of each edge, and the clients' own names, if any."""
        rng, edge_attrs = generator(seed, "partition/edges"), data.edge_attrs
        if edge_attrs is None:
            raise ConfigError(f"[partition]: the edges of {data.name!r} are no examples.", code="config.examples")
        total = edge_attrs.total
        if self.by == "random":
            return rng.permutation(np.arange(total) % self.clients), None
        if self.by == "relation":
            relation = data.y if data.links is None else edge_attrs.y
            if relation is None or relation.ndim > 1 or relation.min(initial=0) < 0:
                raise _missing(data, "of which relation all the edges", "the column label of edges")
            kinds = rng.permutation(np.arange(int(relation.max(initial=0)) + 1) % self.clients)
            return kinds[relation], None
        if self.by == "source":
            sources, source = np.unique(edge_attrs.ends[0], return_inverse=True)
            return rng.permutation(np.arange(len(sources)) % self.clients)[source], None
        if self.by == "owner":
            if edge_attrs.owner is None:
                raise _missing(data, "whose the edges", "[data] edge_owner")
            return edge_attrs.owner, edge_attrs.owners
        if edge_attrs.time is None:
            raise _missing(data, "when the edges", "[data] edge_time")
        return spans(edge_attrs.time, self.clients), None

    def _parts(self, data: Dataset, held: Sequence[np.ndarray], seed: int) -> tuple[Part, ...]:
        ratios = self.train, self.val, self.test
        if self.split == "time":
            parts = by_time(data, held, self._ends(data))
        else:
            parts = divide(data, held, ratios, self.use_dataset_split, seed)
        return tuple(replace(part, edges=skeleton(_ends_of(data, part), data.nodes)) for part in parts)


def spans(time: np.ndarray, clients: int) -> np.ndarray:
    """int64 [M]: which of consecutive spans of about equally many edges each is in, by its time float64 [M]; edges of
    one time are in one span."""
    place = np.argsort(np.argsort(time, kind="stable"), kind="stable")
    moments, moment = np.unique(time, return_inverse=True)
    first = np.full(len(moments), len(time))
    np.minimum.at(first, moment, place)
    result: np.ndarray = first[moment] * clients // len(time)
    return result


def _ends_of(data: Dataset, part: Part) -> np.ndarray:
    """int64 [2, M_i]: the ends of a client's edges, global numbers."""
    ends: np.ndarray = data.edge_attrs.ends[:, part.examples]  # type: ignore[union-attr]
    return ends


def _missing(data: Dataset, what: str, setting: str) -> ConfigError:
    return ConfigError(
        f"[partition] by: nobody says {what} of {data.name!r} are. Give it by {setting}.",
        code="config.no-column",
    )
