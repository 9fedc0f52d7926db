"""Which clients run together: those of one size (`core.sizes`), as many as memory allows."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedweave.core.graph import Graph, stack
from fedweave.ops.sparse import Sparse

# Padded rows run at once when the user names no chunk: with hidden sizes of some hundred, well under a gigabyte.
_ROWS_AT_ONCE = 1 << 16
# Numbers that a padded row takes besides its features on a GPU, and weights of a client of each feature: what layers of
# some hundred units, their gradients and an optimiser keep. An estimate: where it is wrong, `chunk` is the remedy.
_PER_ROW, _PER_FEATURE = 8192, 1024
_CPU = torch.device("cpu")
_SHARE = 4  # a part of a GPU's free memory is for the clients that run at once, and one for stacked batches
_KEPT = 64  # plans kept for reuse; every full round uses the same one
_BYTES_KEPT = 1 << 30  # stacked batches kept for reuse
_ENTRY = 24  # bytes of an entry of a sparse matrix, stacked and with its transpose


class Batches:
    """Plans batches and keeps their stacked graphs.

    graphs: {client: its current graph}; call `renew` when one has changed. device: where stacked graphs lie.
    """

    def __init__(self, graphs: Mapping[str, Graph], chunk: int, device: torch.device = _CPU) -> None:
        self._graphs, self._chunk, self._device = graphs, chunk, device
        self._room = torch.cuda.mem_get_info(device)[0] // _SHARE if device.type == "cuda" else None
        self._kept = self._room or _BYTES_KEPT
        self._plans: OrderedDict[tuple[str, ...], list[tuple[str, ...]]] = OrderedDict()
        self._stacked: OrderedDict[tuple[str, ...], tuple[int, Graph]] = OrderedDict()
        self._version = 0

    def plan(self, clients: Sequence[str]) -> list[tuple[str, ...]]:
        """Split `clients` into batches, each in client order."""
        wanted = tuple(clients)
        if wanted not in self._plans:
            self._plans[wanted] = self._split(wanted)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return self._plans[wanted]

    def graph(self, batch: tuple[str, ...]) -> tuple[int, Graph]:
        """A version, which no other stack has had or will have, and the clients' graphs, stacked."""
        if batch not in self._stacked:
            graph = stack([self._graphs[client] for client in batch]).to(self._device)
            self._version += 1
            self._stacked[batch] = self._version, graph
            while len(self._stacked) > 1 and sum(_bytes(own) for _, own in self._stacked.values()) > self._kept:
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
            most = self._chunk or self._at_once(self._graphs[alike[0]])
            batches += [alike[start : start + most] for start in range(0, len(alike), most)]
        return batches

    def _at_once(self, graph: Graph) -> int:
        """How many clients of the size of this one run at once."""
        if self._room is None:
            return max(1, _ROWS_AT_ONCE // graph.nodes)
        features = graph.x.shape[1]
        stored = 0 if isinstance(graph.x, Sparse) else 2 * features
        numbers = graph.nodes * (stored + _PER_ROW) + features * _PER_FEATURE
        return max(1, self._room // (numbers * graph.x.dtype.itemsize))


def _bytes(graph: Graph) -> int:
    tensors = [graph.x, graph.y, graph.masks, graph.real]
    entries = sum(member.index.shape[1] for member in graph.own_edges.members)
    if isinstance(graph.x, Sparse):
        entries += sum(len(member.values) for member in graph.x.blocks.members)
    plain = sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))
    result: int = plain + entries * _ENTRY
    return result
