"""Which clients run together: those of one size (`core.sizes`), as many as memory allows."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from fedweave.core.graph import Graph, stack
from fedweave.ops.sparse import Sparse

# Padded rows run at once when the user names no chunk: with hidden sizes of some hundred, well under a gigabyte.
_ROWS_AT_ONCE = 1 << 16
_KEPT = 64  # plans kept for reuse; every full round uses the same one
_BYTES_KEPT = 1 << 30  # stacked batches kept for reuse
_ENTRY = 24  # bytes of an entry of a sparse matrix, stacked and with its transpose


class Batches:
    """Plans batches and keeps their stacked graphs.

    graphs: {client: its current graph}; call `renew` when one has changed.
    """

    def __init__(self, graphs: Mapping[str, Graph], chunk: int) -> None:
        self._graphs, self._chunk = graphs, chunk
        self._plans: OrderedDict[tuple[str, ...], list[tuple[str, ...]]] = OrderedDict()
        self._stacked: OrderedDict[tuple[str, ...], Graph] = OrderedDict()

    def plan(self, clients: Sequence[str]) -> list[tuple[str, ...]]:
        """Split `clients` into batches, each in client order."""
        wanted = tuple(clients)
        if wanted not in self._plans:
            self._plans[wanted] = self._split(wanted)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return self._plans[wanted]

    def graph(self, batch: tuple[str, ...]) -> Graph:
        """The clients' graphs, stacked."""
        if batch not in self._stacked:
            self._stacked[batch] = stack([self._graphs[client] for client in batch])
            while len(self._stacked) > 1 and sum(_bytes(graph) for graph in self._stacked.values()) > _BYTES_KEPT:
                self._stacked.popitem(last=False)
        self._stacked.move_to_end(batch)
        return self._stacked[batch]

    def renew(self, clients: Collection[str]) -> None:
        """Forget what was computed from the data of `clients`, which has changed."""
        self._plans.clear()
        for batch in [batch for batch in self._stacked if not set(clients).isdisjoint(batch)]:
            del self._stacked[batch]

    def _split(self, clients: tuple[str, ...]) -> list[tuple[str, ...]]:
        batches: list[tuple[str, ...]] = []
        sizes = [(graph.nodes, len(graph.y)) for graph in (self._graphs[client] for client in clients)]
        for size in dict.fromkeys(sizes):
            alike = tuple(client for client, own in zip(clients, sizes, strict=True) if own == size)
            most = self._chunk or max(1, _ROWS_AT_ONCE // size[0])
            batches += [alike[start : start + most] for start in range(0, len(alike), most)]
        return batches


def _bytes(graph: Graph) -> int:
    tensors = [graph.x, graph.y, graph.masks, graph.real]
    entries = sum(member.index.shape[1] for member in graph.own_edges.members)
    if isinstance(graph.x, Sparse):
        entries += sum(len(member.values) for member in graph.x.blocks.members)
    plain = sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))
    result: int = plain + entries * _ENTRY
    return result
