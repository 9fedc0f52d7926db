"""Clients' graphs, made of the data and its cut when somebody asks for them, so that clients that take no part cost
nothing."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from fedweave.core.extra import Extra
from fedweave.core.graph import Graph, make_graph
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import widened
from fedweave.partition.base import Part, Partition
from fedweave.partition.ego_networks import edge_starts
from fedweave.partition.pooling import shares

_BYTES_KEPT = 4 << 30  # of graphs that were asked for; those not asked for the longest are made again
_ENTRY = 8  # bytes of an entry of sparse features
_OBJECTS = 12_000  # bytes of a graph's tensors and arrays besides what is in them, an estimate


class MadeGraphs(Mapping[str, Graph]):
    """{client: its graph}, of edges that carry nothing.

    held: {client: its part of `data`, and the rows that its nodes and its examples are padded to}, in client order.
    columns, dtype: of the features.
    """

    def __init__(
        self, data: Dataset, held: Mapping[str, tuple[Part, int, int]], columns: int, dtype: torch.dtype
    ) -> None:
        self._data, self._held, self._columns, self._dtype = data, held, columns, dtype
        self._starts = edge_starts(data)
        self._made: OrderedDict[str, Graph] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: str) -> Graph:
        if client not in self._made:
            part, rows, examples = self._held[client]
            [own] = shares(self._data, [part], self._starts)
            self._made[client] = graph_of(own, self._columns, self._dtype, rows, examples)
            self._bytes += _size(self._made[client])
            while self._bytes > _BYTES_KEPT and len(self._made) > 1:
                self._bytes -= _size(self._made.popitem(last=False)[1])
        self._made.move_to_end(client)
        return self._made[client]

    def __contains__(self, client: object) -> bool:
        return client in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _size(graph: Graph) -> int:
    """Bytes of a graph before anything is derived from it."""
    if isinstance(graph.x, torch.Tensor):
        x = graph.x.numel() * graph.x.element_size()
    else:
        x = graph.x.blocks.members[0].values.numel() * _ENTRY
    return x + 16 * len(graph.y) + graph.own_edges.members[0].index.nbytes + _OBJECTS


def width(data: Dataset, partition: Partition) -> int:
    """How many feature columns the clients' graphs have: those of the client that holds most."""
    return max(data.features if part.columns is None else len(part.columns) for part in partition.parts)


def graph_of(
    own: Dataset,
    columns: int,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    examples: int | None = None,
    extra: Extra | None = None,
) -> Graph:
    """The graph of a client that holds `own`, features with zeros on the right up to `columns`, the split as masks,
    padded to `rows` and `examples` (see `make_graph`)."""
    x, masks = widened(own.x, columns), np.asarray(own.public)
    more = own.graph_of, examples, extra, own.carried
    return make_graph(x, own.edges, own.y, masks, own.sens, dtype, rows, *more)
