"""Mini-batches of a client's small graphs, of fixed shapes, and training on them.

A batch of b graphs is stored as one graph: the nodes of one graph after the other, then padding without edges and
examples. The numbers of rows and edges depend on the drawn graphs. Both are padded to the same size for all steps and
clients. Padding comes last, so that no other row depends on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedweave.core import edge_attributes, random
from fedweave.core import model as models
from fedweave.core.edge_list import OF_NODES
from fedweave.core.edges import Edges
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Layer, Model
from fedweave.core.operators import Operator
from fedweave.core.tensor_operators import DenseMatrix
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, Criterion
from fedweave.ops.row_reductions import Lists, sum_rows
from fedweave.ops.rows import common_length, gather_rows
from fedweave.ops.sparse import pick_rows
from fedweave.sampling.neighborhoods import ForClients


@dataclass(frozen=True)
class GraphBatches:
    """Mini-batches of `batch` training graphs. An epoch draws each graph once, and the next epoch reshuffles them."""

    batch: int = 128

    @staticmethod
    def suits(model: Model) -> bool:
        """Whether the model runs on mini-batches of graphs: it pools, and all that it reads of edges are sums of
        messages, or products with matrices that a mini-batch has."""
        return models.pools(model) and all(map(_is_known, model))

    def check(self, model: Model) -> None:
        """Raise a ValueError unless the model has a result for each graph."""
        if not models.pools(model):
            raise ValueError("mini-batches of graphs need a model that pools; set model.pool = 'sum' or 'mean'")
        if any(layer.operator in edge_attributes.kinds() and not _is_known(layer) for layer in model):
            raise ValueError(
                "mini-batches of graphs have edge attributes for sums of messages only; choose model gine, or gin, gcn "
                "or sage without them"
            )

    def draw(self, graph: Graph, key: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """A mini-batch per step: int64 [steps, b] distinct training graphs, and bool [steps, b] which of them are real
        (an epoch's last batch, or fewer training graphs than b, leave places empty)."""
        train = graph.masks[TRAIN]
        per_epoch = ((train.sum() + self.batch - 1) // self.batch).clamp(min=1)
        step = torch.arange(steps, device=key.device)
        order = random.order(random.fold(key, step // per_epoch)[:, None], train)
        place = (step % per_epoch * self.batch)[:, None] + torch.arange(self.batch, device=key.device)
        chosen = torch.argsort(order, 1).gather(1, place.clamp(max=len(train) - 1))
        real = place < train.sum()
        return torch.where(real, chosen, 0), real

    def min_examples(self, graph: Graph, steps: int) -> int:
        """The fewest training graphs in any of `steps` mini-batches; an epoch's last batch has the remaining graphs.
        Waits for the graph's device, so call it between steps."""
        count = int(graph.masks[TRAIN].sum())
        remaining = count % self.batch
        return remaining if remaining and steps * self.batch >= count else min(self.batch, count)

    def batches(self, graph: Graph, key: Tensor, steps: int, ways: Sequence[str] = ()) -> Tree:
        """Mini-batches for `fit(…, batches=…)`, all leaves [steps, …]; ways: see `ways_of`.

        For b graphs: the "target" class, the "weight" (0 or 1) and "first" [b + 1], where their nodes begin among the
        rows. For M rows: the "nodes", "slot", the graph that each belongs to (b at padding), and "starts" [M + 1],
        where their neighbors begin among "columns" [E], which are rows.

        "messages" has for each way "starts" [M + 1], where the messages that reach each row begin among m, and of each
        of these the rows "source" and "target", and the "features" [m, k] of its edge, 0 at padding."""
        if graph.graph_of is None:
            raise ValueError("mini-batches of graphs need small graphs as examples, but this client's are nodes")
        chosen, real = self.draw(graph, key, steps)
        owner = torch.where(graph.graph_of < 0, len(graph.y), graph.graph_of)
        size = torch.zeros(len(graph.y) + 1, dtype=torch.int64, device=owner.device)
        size = size.scatter_add(0, owner, torch.ones_like(owner))[:-1]
        cache = graph.whole_edges.cache
        lay_out = partial(_lay_out, cache.padded_size, cache.largest(self.batch))
        layout = ForClients.apply(lay_out, size, *graph.whole_edges.neighbors, chosen, real)
        target = graph.truth_at(chosen)
        columns = dict(zip(("first", "nodes", "slot", "starts", "columns"), layout, strict=True))
        minibatch: Tree = {"target": target, "weight": real.to(graph.x.dtype), **columns}
        messages = {way: _messages(graph, way, columns["nodes"], columns["slot"] < self.batch) for way in ways}
        return minibatch | ({"messages": messages} if messages else {})

    def loss(
        self, w: Tree, model: Model, graph: Graph, key: Tensor | None, minibatch: Tree, how: Criterion = PLAIN
    ) -> Tensor:
        """Mean cross-entropy of one mini-batch; scalar, 0 at a client without training graphs."""
        logits = models.apply(model, w, batch_graph(graph, minibatch), key)
        return how.of(logits, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])


def ways_of(model: Model) -> tuple[str, ...]:
    """The ways (`core.edge_attributes.WAYS`) along which layers sum messages of single edges."""
    ways = dict.fromkeys(way for layer in model if layer.reads == "messages" for way in layer.along)
    return tuple(ways)


def _is_known(layer: Layer) -> bool:
    """Whether a mini-batch has all that the layer reads of edges."""
    return layer.reads == "messages" or (layer.reads == "product" and layer.operator in {None, *_KINDS, *OF_NODES})


def _messages(graph: Graph, way: str, nodes: Tensor, inside: Tensor) -> Tree:
    """The messages that reach `nodes` int64 [steps, M] of mini-batches, but for padding, `inside` bool [steps, M]."""
    edges = graph.whole_edges
    incoming = edges.incoming(way)
    tables = incoming.first, incoming.degree, incoming.source.long(), incoming.edge.long()
    lay_out = partial(_lay_out_messages, edges.cache.padded_size)
    starts, source, target, edge = ForClients.apply(lay_out, nodes, inside, *tables)
    features = edges.of_edges().features
    rows = features.index_select(0, edge.flatten()).view(*edge.shape, features.shape[1])
    real = target < nodes.shape[1]
    return {
        "starts": starts,
        "source": source,
        "target": torch.where(real, target, 0),
        "features": (rows * real[..., None]).to(graph.x.dtype),
    }


def batch_graph(graph: Graph, minibatch: Tree) -> Graph:
    """One step's mini-batch (see `GraphBatches.batches`) as a graph of M nodes and b examples, all of them in TRAIN."""
    real = minibatch["weight"] > 0
    inside = minibatch["slot"] < len(real)
    train = torch.stack([real, torch.zeros_like(real), torch.zeros_like(real)])
    target, slot = minibatch["target"], torch.where(inside, minibatch["slot"], -1)
    gap = float("nan") if target.is_floating_point() else -1
    y = torch.where(real if target.dim() == 1 else real[:, None], target, gap)
    edges = BatchEdges(minibatch, graph.x.dtype, graph.whole_edges)
    return Graph(pick_rows(graph.x, minibatch["nodes"]), edges, y, train, inside, None, slot)


class BatchEdges:
    """The edges within a mini-batch of graphs (a `core.operators.MessagePassing`); `whole` are the client's edges."""

    shrinks = False

    def __init__(self, minibatch: Tree, dtype: torch.dtype, whole: Edges) -> None:
        self.minibatch = minibatch
        self.dtype = dtype
        self.whole = whole

    def operator(self, kind: str) -> Operator:
        """One of the matrices of `core.edges.Edges.operator`."""
        if kind in OF_NODES:
            return self.whole.operator(kind).pick(self.minibatch["nodes"])
        what, way = edge_attributes.kinds().get(kind, ("", ""))
        if way in self.minibatch.get("messages", {}) and what in _OF_MESSAGES:
            return _OF_MESSAGES[what](self.minibatch["messages"][way])
        if kind not in _KINDS:
            kinds = ", ".join([*sorted(OF_NODES), *_KINDS])
            raise ValueError(f"mini-batches of graphs have no operator {kind!r}, only {kinds}")
        rows = self.minibatch["target" if kind.startswith("pool") else "nodes"]
        return _BatchProduct(len(rows), lambda h: _KINDS[kind](self, h))

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """All rows, and for each of them the mean over its neighbors."""
        return h, self.operator(kind) @ h

    def neighbors_sum(self, h: Tensor) -> Tensor:
        """A h; A is its own transpose."""
        lists = Lists(self.minibatch["columns"], self.minibatch["starts"])
        return sum_rows(h, lists, lists)

    def graphs_sum(self, h: Tensor) -> Tensor:
        """The sum over the nodes of each graph."""
        first, slot = self.minibatch["first"], self.minibatch["slot"]
        rows = torch.arange(len(slot) + 1, device=slot.device)
        return sum_rows(h, Lists(rows[:-1], first), Lists(slot, rows.minimum(first[-1])))

    @property
    def degree(self) -> Tensor:
        """Number of neighbors of each row, [M, 1]."""
        result: Tensor = self.minibatch["starts"].diff()[:, None].to(self.dtype)
        return result

    @property
    def size(self) -> Tensor:
        """Number of nodes of each graph, [b, 1]."""
        result: Tensor = self.minibatch["first"].diff()[:, None].to(self.dtype)
        return result


def _mean(edges: BatchEdges, h: Tensor) -> Tensor:
    return edges.neighbors_sum(h) / edges.degree.clamp(min=1)


def _gcn(edges: BatchEdges, h: Tensor) -> Tensor:
    scale = (edges.degree + 1).rsqrt()
    scaled = scale * h
    return scale * (edges.neighbors_sum(scaled) + scaled)


_KINDS: dict[str, Callable[[BatchEdges, Tensor], Tensor]] = {
    "sum": BatchEdges.neighbors_sum,
    "sum_with_self": lambda edges, h: edges.neighbors_sum(h) + h,
    "mean": _mean,
    "mean_or_self": lambda edges, h: torch.where(edges.degree > 0, _mean(edges, h), h),
    "gcn": _gcn,
    "pool_sum": BatchEdges.graphs_sum,
    "pool_mean": lambda edges, h: edges.graphs_sum(h) / edges.size.clamp(min=1),
}


@dataclass(frozen=True)
class _BatchProduct:
    """A matrix that exists only as its product with h."""

    rows: int
    times: Callable[[Tensor], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows,)."""
        return (self.rows,)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.times(dense)


def _from(messages: Tree) -> _BatchProduct:
    """[m, M]: selects the rows where messages start; rows of zeros at padding."""
    source, starts = messages["source"], messages["starts"]
    real = torch.arange(len(source), device=source.device) < starts[-1]  # [m]
    return _BatchProduct(len(source), lambda h: gather_rows(h, source) * real[:, None].to(h.dtype))


def _into(messages: Tree) -> _BatchProduct:
    """[M, m]: sums the messages that reach each row."""
    target, starts = messages["target"], messages["starts"]
    places = torch.arange(len(target) + 1, device=target.device)
    sums = Lists(places[:-1], starts), Lists(target, places.minimum(starts[-1]))
    return _BatchProduct(len(starts) - 1, lambda sent: sum_rows(sent, *sums))


_OF_MESSAGES: dict[str, Callable[[Tree], Operator]] = {
    "from": _from,
    "features": lambda messages: DenseMatrix(messages["features"]),
    "sum": _into,
}


def _lay_out_messages(
    padded_size: Callable[[str, int], int],
    nodes: Tensor,
    inside: Tensor,
    begin: Tensor,
    degree: Tensor,
    sources: Tensor,
    edges: Tensor,
) -> tuple[Tensor, ...]:
    """Where messages begin, [P, steps, M + 1], and of each, [P, steps, m], the row where it starts, the row that it
    reaches (M at padding), and its edge.

    nodes int64 and inside bool [P, steps, M]; begin and degree [P, n], sources and edges [P, …] are the tables of
    `core.edges.Incoming`.
    """
    rows = nodes.shape[2]
    starts = _starts(torch.where(inside, _at(degree, nodes), 0))
    length = common_length(starts[..., -1], sources.shape[1])
    target = _owners(starts, padded_size("messages of a mini-batch", length))
    end = target.clamp(max=rows - 1)
    end_node = nodes.gather(2, end)
    entry = _at(begin, end_node) + torch.arange(target.shape[2], device=nodes.device) - starts.gather(2, end)
    entry = torch.where(target < rows, entry, 0)
    # within a graph, the distance of two rows is the distance of their nodes
    source = torch.where(target < rows, end + _at(sources, entry) - end_node, 0)
    return starts, source, target, _at(edges, entry)


def _lay_out(
    padded_size: Callable[[str, int], int],
    bounds: tuple[int, int],
    size: Tensor,
    begin: Tensor,
    degree: Tensor,
    columns: Tensor,
    chosen: Tensor,
    real: Tensor,
) -> tuple[Tensor, ...]:
    """The layout (see `GraphBatches.batches`) of P clients' mini-batches, all [P, steps, …].

    bounds: upper bounds of a mini-batch's rows and edges.
    size int64 [P, e] counts the nodes of each graph, which stand one graph after the other; begin and degree [P, n] and
    columns [P, …] are the tables of neighbors; chosen int64 and real bool [P, steps, b].
    """
    batch = chosen.shape[2]
    first = _starts(torch.where(real, _at(size, chosen), 0))
    slot = _owners(first, padded_size("rows of a mini-batch", common_length(first[..., -1], bounds[0])))
    inside = slot < batch
    graph = chosen.gather(2, slot.clamp(max=batch - 1))
    row = torch.arange(slot.shape[2], device=slot.device)
    nodes = torch.where(inside, _at(size.cumsum(1) - size, graph) + row - first.gather(2, slot), 0)
    starts = _starts(torch.where(inside, _at(degree, nodes), 0))
    owner = _owners(starts, padded_size("edges of a mini-batch", common_length(starts[..., -1], bounds[1])))
    end = owner.clamp(max=len(row) - 1)
    end_node = nodes.gather(2, end)
    entry = _at(begin, end_node) + torch.arange(owner.shape[2], device=owner.device) - starts.gather(2, end)
    # within a graph, the distance of two rows is the distance of their nodes
    other = end + _at(columns, entry.clamp(max=columns.shape[1] - 1)) - end_node
    return first, nodes, slot, starts, torch.where(owner < len(row), other, 0)


def _starts(sizes: Tensor) -> Tensor:
    """[…, m + 1]: where each of consecutive pieces of `sizes` int64 […, m] starts, and where the last piece ends."""
    return torch.nn.functional.pad(sizes.cumsum(-1), (1, 0))


def _owners(starts: Tensor, count: int) -> Tensor:
    """int64 [P, s, count]: the piece that each place belongs to, m after the last piece; starts [P, s, m + 1]."""
    ends = starts.new_zeros(*starts.shape[:2], count + 1)
    return ends.scatter_add(2, starts[..., 1:], torch.ones_like(starts[..., 1:])).cumsum(2)[..., :count]


def _at(table: Tensor, index: Tensor) -> Tensor:
    """table[p, index[p, …]] for a table [P, n] and int64 [P, s, k]."""
    return table.gather(1, index.flatten(1)).view(index.shape)
