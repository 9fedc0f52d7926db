"""Clients' graphs, made from the data and its partition; most are made on first use: clients that take no part cost
nothing."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedweave.core.edge_list import EdgeLists
from fedweave.core.edges import BatchCache, Edges
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.link_examples import LinkExamples, link_examples, sample_ranks
from fedweave.core.operators import Precomputed
from fedweave.core.sizes import size_classes
from fedweave.core.target import CLASS
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import AUTO, amounts, pad_columns
from fedweave.engines.data import LazyGraphs
from fedweave.ops.csr import Csr, StackedCsr
from fedweave.ops.sparse import Sparse
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.client_data import global_test_part, restrict, shares
from fedweave.partition.ego_networks import edge_starts, edges_within_all, slots_of
from fedweave.partition.precompute import Precompute, everywhere

_MAX_BYTES = 4 << 30  # of graphs in memory; the least recently used are removed and made again on use
_ENTRY = 8  # bytes of an entry of sparse features
_OBJECTS = 12_000  # bytes of a graph's tensor and array objects without their content, an estimate


def client_graphs(
    data: Dataset,
    partition: Partition,
    dtype: torch.dtype = torch.float32,
    finders: Sequence[Precompute] = (),
    only: Collection[str] | None = None,
) -> Mapping[str, Graph]:
    """{client id: the subgraph that its nodes induce, or its own edges among them}, padded to few sizes
    (`core.sizes.size_classes`); clients may share nodes.

    A client that holds only some feature columns has these first, and zeros up to the `width` that all graphs share.
    Without labels, a client's y is -1 everywhere, while its masks still state how the nodes are used. finders: what to
    precompute for each client. only: the clients whose graphs are made, in the form that they have among all; None:
    all clients. Graphs without edge attributes and without precomputed features are made on first use, from the data
    of these clients only.
    """
    names = client_ids(len(partition.parts), partition.names)
    places = [i for i, name in enumerate(names) if only is None or name in only]
    columns = width(data, partition)
    rows = size_classes([len(part.nodes) for part in partition.parts])
    graphs = dict[str, Graph]()

    if data.links is not None:  # each link comes with one drawn pair that is not a link
        extras = everywhere(finders, data, partition)
        client_data = list(shares(data, partition.parts))
        links = sample_ranks([links_of(share, member_links(partition, i)) for i, share in enumerate(client_data)])
        examples = size_classes([len(link.y) for link in links])
        lengths = dict[tuple[int, int], dict[str, int]]()  # of lists in graphs of one size, which are stacked
        for size, link in zip(zip(rows, examples, strict=True), links, strict=True):
            longest = lengths.setdefault(size, {})
            for name, length in link.lengths.items():
                longest[name] = max(longest.get(name, 1), length)
        for i in places:
            size = rows[i], examples[i]
            graphs[names[i]] = graph_of(client_data[i], columns, dtype, *size, extras[i], links[i], lengths[size])
        return graphs

    examples = size_classes([len(part.examples) for part in partition.parts])
    parts: Sequence[Part] = [partition.parts[i] for i in places]
    if not finders and data.edge_attrs is None and data.edge_labels is None:
        if only is not None:
            data, parts = restrict(data, parts)
        client_parts = {names[i]: (part, rows[i], examples[i]) for i, part in zip(places, parts, strict=True)}
        return MadeGraphs(data, client_parts, columns, dtype)
    extras = everywhere(finders, data, partition)
    for i, share in zip(places, shares(data, parts), strict=True):
        graphs[names[i]] = graph_of(share, columns, dtype, rows[i], examples[i], extras[i])
    return graphs


def global_test_graph(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Graph | None:
    """The graph of `global_test_part`; None without test nodes."""
    part = global_test_part(data, partition)
    if part is None:
        return None
    [share] = shares(data, [part])
    return graph_of(share, data.features, dtype)


def graphs_at_server(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> dict[str, Graph]:
    """{role: the graph that its nodes induce} for each set of nodes that the server holds, without the global test
    graph."""
    parts = zip(partition.held, shares(data, [*partition.held.values()]), strict=True)
    return {role: graph_of(share, data.features, dtype) for role, share in parts}


class MadeGraphs(LazyGraphs):
    """{client: its graph}, for data without edge attributes.

    client_parts: {client: its part of `data`, and the rows that its nodes and its examples are padded to}, in client
    order. columns, dtype: of the features.
    """

    def __init__(
        self, data: Dataset, client_parts: Mapping[str, tuple[Part, int, int]], columns: int, dtype: torch.dtype
    ) -> None:
        self._data, self._client_parts, self._columns, self._dtype = data, client_parts, columns, dtype
        self._starts = edge_starts(data)
        whole = all(part.columns is None and part.edges is None for part, _, _ in client_parts.values())
        by_own_nodes = data.scaling == AUTO and len(amounts(data.x)) > 0  # each client scales or fills columns
        by_own_nodes = by_own_nodes or data.structure is not None
        self._stackable = data.graph_of is None and data.target == CLASS and whole and not by_own_nodes
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: str) -> Graph:
        if client not in self._graphs:
            part, rows, examples = self._client_parts[client]
            [share] = shares(self._data, [part], self._starts)
            self._graphs[client] = graph_of(share, self._columns, self._dtype, rows, examples)
            self._bytes += _size(self._graphs[client])
            while self._bytes > _MAX_BYTES and len(self._graphs) > 1:
                self._bytes -= _size(self._graphs.popitem(last=False)[1])
        self._graphs.move_to_end(client)
        return self._graphs[client]

    def rows(self, client: str) -> tuple[int, int]:
        return self._client_parts[client][1:]

    def stack(self, clients: Sequence[str]) -> Graph:
        """See `LazyGraphs`; of nodes with all columns and edges, without a graph of each client."""
        if not self._stackable:
            return stack([self[client] for client in clients])
        parts = [self._client_parts[client][0] for client in clients]
        rows, _ = self.rows(clients[0])
        nodes = np.concatenate([part.nodes for part in parts])
        sizes = np.array([len(part.nodes) for part in parts])
        owner = np.repeat(np.arange(len(parts)), sizes)
        place = owner * rows + np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # row of each node
        labels = self._data.y[nodes]
        masks = np.concatenate([part.masks for part in parts], 1) & (labels >= 0)
        y = np.where(np.array([part.labels for part in parts])[owner], labels, -1)
        unlabeled = np.bincount(owner, y >= 0, len(parts)) == 0  # withheld: the masks state how examples are used
        masks &= (y >= 0) | unlabeled[owner]

        def pad(values: np.ndarray, neutral: int) -> Tensor:  # [clients, rows, …]
            whole = np.full((len(parts) * rows, *values.shape[1:]), neutral, values.dtype)
            whole[place] = values
            return torch.from_numpy(whole).view(len(parts), rows, *values.shape[1:])

        index, starts = edges_within_all(self._data, nodes, sizes, self._starts, self._slots)
        weight = None if self._dtype == torch.float32 else np.ones(index.shape[1])
        client_index = torch.arange(len(parts), device="cpu")
        sensitive = self._data.sensitive
        return Graph(
            x=self._features(nodes, place, len(parts), rows),
            edges=Edges(BatchCache(EdgeLists(index, starts, rows, weight), rows), client_index),
            y=pad(y.astype(np.int64, copy=False), -1),
            masks=pad(masks.T, False).mT.contiguous(),
            real=pad(np.ones(len(nodes), bool), False),
            sensitive=None if sensitive is None else pad(sensitive[nodes].astype(np.int64, copy=False), -1),
        )

    @cached_property
    def _slots(self) -> np.ndarray | None:
        return slots_of([part.nodes for part, _, _ in self._client_parts.values()], self._data.nodes)

    def _features(self, nodes: np.ndarray, place: np.ndarray, clients: int, rows: int) -> Tensor | Sparse:
        if isinstance(self._data.x, np.ndarray):
            node_of_row = np.full(clients * rows, -1)
            node_of_row[place] = nodes
            dense = self._data.x.take(node_of_row, 0, mode="clip")  # faster than to fill rows of zeros
            dense[node_of_row < 0] = 0
            return torch.from_numpy(dense).view(clients, rows, -1).to(self._dtype)
        matrix = Csr.of(self._data.x[nodes])
        columns = self._data.x.shape[1]
        starts = matrix.starts.new_zeros(clients * rows + 1)
        starts[1:][torch.from_numpy(place)] = matrix.starts.diff()
        whole = Csr(
            starts.cumsum(0, dtype=torch.int32), matrix.columns, matrix.values.to(self._dtype), clients * rows, columns
        )
        return Sparse(StackedCsr.from_whole(whole, clients), torch.arange(clients, device="cpu"))

    def __contains__(self, client: object) -> bool:
        return client in self._client_parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._client_parts)

    def __len__(self) -> int:
        return len(self._client_parts)


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
    x = pad_columns(data.x, columns)
    if data.links is not None:
        links = links_of(data) if links is None else links
        sizes = dtype, rows, None, examples, extra, links.edge_attrs
        lists = links.lists(lengths or links.lengths)
        return make_graph(
            x, links.edges, links.y, links.masks, None, *sizes, pairs=links.pairs, ranks=links.ranks, lists=lists
        )
    masks = np.asarray(data.public)
    more = data.graph_of, examples, extra, data.edge_attrs
    return make_graph(x, data.edges, data.y, masks, data.sensitive, dtype, rows, *more, scale=data.target_scale)


def links_of(share: Dataset, members: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> LinkExamples:
    """The link examples of a client that holds `share`; members: see `link_examples`."""
    settings, attributes = share.links, share.edge_attrs
    if settings is None or attributes is None:
        raise ValueError(f"the examples of {share.name} are not links")
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
