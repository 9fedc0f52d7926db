"""Clients' graphs, made from the data and its partition on first use: clients that take no part cost nothing."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedweave.core.edge_list import EdgeLists
from fedweave.core.edges import BatchCache, Edges
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.links import LinkExamples, link_examples
from fedweave.core.operators import Precomputed
from fedweave.core.target import CLASS
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import AUTO, amounts, pad_columns
from fedweave.engines.data import Makes
from fedweave.ops.csr import Csr, StackedCsr
from fedweave.ops.sparse import Sparse
from fedweave.partition.base import Part, Partition
from fedweave.partition.client_data import shares
from fedweave.partition.ego_networks import edge_starts, edges_within_all, slots_of

_BYTES_KEPT = 4 << 30  # of graphs in memory; the least recently used are removed and made again on use
_ENTRY = 8  # bytes of an entry of sparse features
_OBJECTS = 12_000  # bytes of a graph's tensor and array objects without their content, an estimate


class MadeGraphs(Makes):
    """{client: its graph}, for data without edge attributes.

    held: {client: its part of `data`, and the rows that its nodes and its examples are padded to}, in client order.
    columns, dtype: of the features.
    """

    def __init__(
        self, data: Dataset, client_parts: Mapping[str, tuple[Part, int, int]], columns: int, dtype: torch.dtype
    ) -> None:
        self._data, self._held, self._columns, self._dtype = data, client_parts, columns, dtype
        self._starts = edge_starts(data)
        parts = (part for part, _, _ in client_parts.values())
        plain = data.graph_of is None and data.target == CLASS
        plain = plain and all(part.columns is None and part.edges is None for part in parts)
        self._alike = plain and (data.scaling != AUTO or not len(amounts(data.x)))  # none by its own nodes
        self._made: OrderedDict[str, Graph] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: str) -> Graph:
        if client not in self._made:
            part, rows, examples = self._held[client]
            [share] = shares(self._data, [part], self._starts)
            self._made[client] = graph_of(share, self._columns, self._dtype, rows, examples)
            self._bytes += _size(self._made[client])
            while self._bytes > _BYTES_KEPT and len(self._made) > 1:
                self._bytes -= _size(self._made.popitem(last=False)[1])
        self._made.move_to_end(client)
        return self._made[client]

    def rows(self, client: str) -> tuple[int, int]:
        return self._held[client][1:]

    def stacked(self, clients: Sequence[str]) -> Graph:
        """See `Makes`; of nodes with all columns and edges, without a graph of each client."""
        if not self._alike:
            return stack([self[client] for client in clients])
        parts, rows = [self._held[client][0] for client in clients], self.rows(clients[0])[0]
        nodes, sizes = np.concatenate([part.nodes for part in parts]), np.array([len(part.nodes) for part in parts])
        owner = np.repeat(np.arange(len(parts)), sizes)
        place = owner * rows + np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        labels = self._data.y[nodes]
        masks = np.concatenate([part.masks for part in parts], 1) & (labels >= 0)
        y = np.where(np.array([part.labels for part in parts])[owner], labels, -1)
        without = np.bincount(owner, y >= 0, len(parts)) == 0  # withheld labels: the masks state how examples are used
        masks &= (y >= 0) | without[owner]

        def laid(values: np.ndarray, neutral: int) -> Tensor:
            whole = np.full((len(parts) * rows, *values.shape[1:]), neutral, values.dtype)
            whole[place] = values
            return torch.from_numpy(whole).view(len(parts), rows, *values.shape[1:])

        index, starts = edges_within_all(self._data, nodes, sizes, self._starts, self._slots)
        weight = None if self._dtype == torch.float32 else np.ones(index.shape[1])
        client_index, sensitive = torch.arange(len(parts), device="cpu"), self._data.sensitive
        return Graph(
            x=self._features(nodes, place, len(parts), rows),
            edges=Edges(BatchCache(EdgeLists(index, starts, rows, weight), rows), client_index),
            y=laid(y.astype(np.int64, copy=False), -1),
            masks=laid(masks.T, False).mT.contiguous(),
            real=laid(np.ones(len(nodes), bool), False),
            sensitive=None if sensitive is None else laid(sensitive[nodes].astype(np.int64, copy=False), -1),
        )

    @cached_property
    def _slots(self) -> np.ndarray | None:
        return slots_of([part.nodes for part, _, _ in self._held.values()], self._data.nodes)

    def _features(self, nodes: np.ndarray, place: np.ndarray, clients: int, rows: int) -> Tensor | Sparse:
        if isinstance(self._data.x, np.ndarray):
            at = np.full(clients * rows, -1)
            at[place] = nodes
            dense = self._data.x.take(at, 0, mode="clip")  # no rows of zeros that others are then copied over
            dense[at < 0] = 0
            return torch.from_numpy(dense).view(clients, rows, -1).to(self._dtype)
        matrix = Csr.of(self._data.x[nodes])
        columns, starts = self._data.x.shape[1], matrix.starts.new_zeros(clients * rows + 1)
        starts[1:][torch.from_numpy(place)] = matrix.starts.diff()
        whole = Csr(
            starts.cumsum(0, dtype=torch.int32), matrix.columns, matrix.values.to(self._dtype), clients * rows, columns
        )
        return Sparse(StackedCsr.from_whole(whole, clients), torch.arange(clients, device="cpu"))

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
    return x + 16 * len(graph.y) + graph.whole_edges.members[0].index.nbytes + _OBJECTS


def width(data: Dataset, partition: Partition) -> int:
    """The number of feature columns of all clients' graphs: the largest number of any client."""
    return max(data.features if part.columns is None else len(part.columns) for part in partition.parts)


def graph_of(
    data: Dataset,
    columns: int,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    examples: int | None = None,
    extra: Precomputed | None = None,
    links: LinkExamples | None = None,
    lengths: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of a client that holds `data`, features with zeros on the right up to `columns`, the split as masks,
    padded to `rows` and `examples` (see `make_graph`); links: the client's link examples, if links are the examples,
    with lists padded to `lengths` (`LinkExamples.lists`)."""
    x, masks = pad_columns(data.x, columns), np.asarray(data.public)
    if data.links is not None:
        links = links_of(data) if links is None else links
        sizes = dtype, rows, None, examples, extra, links.edge_attrs
        lists = links.lists(lengths or links.lengths)
        return make_graph(
            x, links.edges, links.y, links.masks, None, *sizes, pairs=links.pairs, ranks=links.ranks, lists=lists
        )
    more = data.graph_of, examples, extra, data.edge_attrs
    return make_graph(x, data.edges, data.y, masks, data.sensitive, dtype, rows, *more, scale=data.target_scale)


def links_of(share: Dataset, members: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> LinkExamples:
    """The link examples of a client that holds `share`; members: see `link_examples`."""
    settings, attributes = share.links, share.edge_attrs
    if settings is None or attributes is None:
        raise ValueError(f"the examples of {share.name} are no links")
    masks = np.asarray(share.public)
    if attributes.split_times is not None and attributes.time is not None:
        attributes = attributes._replace(split_times=None)  # the split says as much
    items = None
    if settings.items is not None and share.node_labels is not None:
        items = np.flatnonzero(share.node_labels == share.node_kinds.index(settings.items))
    return link_examples(settings, attributes, masks, share.node_ids, items, members=members)


def member_links(partition: Partition, client: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """The nodes and the links of each member of a union, in the order of its members; [] of any other client."""
    if client or not partition.member_nodes:
        return []
    return [(partition.member_nodes[name], partition.members[name]) for name in partition.members]
