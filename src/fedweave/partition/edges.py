"""Clients that hold edges and share nodes: members of knowledge graphs, or shops with common customers."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedweave.core.bounds import Clients
from fedweave.core.plugins import remember_maker
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.errors import ConfigError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided, parts_by_time
from fedweave.partition.splits import divide, group


@dataclass(frozen=True)
class EdgeGroups(Divided):
    """A client for each group of edges. It holds the ends of its edges, which other clients may hold too, and no edge
    of another client, even between its own nodes. No client holds a node without edges.

    by:      "random" deals the edges in equal shares; "relation" deals the relations at random, each with all of its
             edges, in shares of equally many relations (as FB15k-237-R3 of Chen et al. 2021): the classes of edges or,
             for links, their kinds; "owner" makes a client of each owner that [data] edge_owner names; "source" deals
             the nodes that edges lead from at random, each with all edges from it, such as a shop's customers; "time"
             makes consecutive spans of about equally many edges; all edges of one time are in one span.
    clients: number of clients, P; "owner" makes a client of each owner instead.
    """

    examples: ClassVar[tuple[str, ...]] = ("edge",)
    by: Literal["relation", "owner", "source", "random", "time"] = "random"
    clients: Clients = 10

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        holder, names = self._holders(data, seed)
        clients = self.clients if names is None else len(names)
        client_edges = group(holder, clients)
        empty = sum(len(edges) == 0 for edges in client_edges)
        if empty:
            raise ConfigError(
                f"partition.clients = {clients}: {empty} of them would hold no edge of {data.name!r} by {self.by}. "
                "Lower clients, or cut the edges in another way (partition.by).",
                code="config.too-few",
            )
        # Parts over the edges that each client holds, with the graph that these edges make.
        ratios = self.train, self.val, self.test
        if self.split == "time":
            parts = parts_by_time(data, client_edges, self._end_times(data))
        else:
            parts = divide(data, client_edges, ratios, self.use_dataset_split, seed)
        ends = data.edge_attrs.ends  # type: ignore[union-attr]
        parts = tuple(replace(part, edges=to_undirected(ends[:, part.examples], data.nodes)) for part in parts)
        return Partition(parts, names=names)

    def _holders(self, data: Dataset, seed: int) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """int64 [M], the place of the client that holds each edge, and the clients' names if the data has them."""
        rng, attributes = generator(seed, "partition/edges"), data.edge_attrs
        if attributes is None:
            message = f"partition: the edges of {data.name!r} are not examples. Set data.task = 'edges' or 'links'."
            raise ConfigError(message, code="config.examples")

        def deal(count: int) -> np.ndarray:
            """int64 [count]: a client for each of `count` things, at random, in equal shares."""
            return rng.permutation(np.arange(count) % self.clients)

        if self.by == "random":
            return deal(attributes.total), None
        if self.by == "relation":
            relation = data.y if data.links is None else attributes.y  # the class of every link is 1
            if data.links is not None and relation is None:
                raise ConfigError(
                    f"partition.by = 'relation': the links of {data.name!r} are of one relation, which cannot be dealt "
                    f"to {self.clients} clients. Take by = 'random' or 'source'; several relations stand in the column "
                    "label of edges, or relation of triples.",
                    code="config.one-relation",
                )
            if relation is None or relation.ndim > 1 or relation.min(initial=0) < 0:
                raise self._unknown(data, "relation of some edges", "the column label of the edges' table")
            return deal(int(relation.max(initial=0)) + 1)[relation], None
        if self.by == "source":
            sources, source = np.unique(attributes.ends[0], return_inverse=True)
            return deal(len(sources))[source], None
        if self.by == "owner":
            if attributes.owner is None:
                raise self._unknown(data, "owner of the edges", "data.edge_owner")
            return attributes.owner, attributes.owners
        if attributes.time is None:
            raise self._unknown(data, "time of the edges", "data.edge_time")
        return spans(attributes.time, self.clients), None

    def _unknown(self, data: Dataset, what: str, column: str) -> ConfigError:
        return ConfigError(
            f"partition.by = {self.by!r}: the {what} of {data.name!r} is unknown. Give it by {column}.",
            code="config.no-column",
        )


def spans(time: np.ndarray, clients: int) -> np.ndarray:
    """int64 [M]: the span of each edge by its time float64 [M]; consecutive spans have about equally many edges, and
    edges of one time are in one span."""
    earlier = np.searchsorted(np.sort(time), time)  # how many edges are earlier than each edge
    return np.asarray(earlier * clients // len(time))
