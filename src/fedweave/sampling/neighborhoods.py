"""Layer-wise sampled neighborhoods (Zhang et al. 2023, GLASU, algorithm 2), for all clients at once inside a
vectorized call.

A layer takes sources to targets. The targets come first among the sources, in order, so that a node's own row keeps its
place. The sample of a node depends only on its number and the key, not on the list around it: a part of a list has the
same samples as the whole list.

Lists are padded after their last node, and no place points to padding. So a layer's results for the padding (sums of
other nodes' rows) reach no node. A node's row, and the dropout on it, is therefore the same for any padding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import edge_attributes as carrying
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import OF_EXAMPLES, OWN, SOURCE, TARGET, WAYS
from fedweave.core.edges import Incoming, OfEdges
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import MessagePassing, Operator
from fedweave.core.tensor_operators import DenseMatrix, PrecomputedEdges, ShrinkingEdges
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, Criterion
from fedweave.ops.sparse import (
    Batch,
    Constant,
    Dims,
    counted,
    gather_rows,
    over_clients,
    picked,
    weighted_gather,
)


def grow(
    graph: Graph, targets: Tensor, filled: Tensor, key: Tensor, layers: Sequence[int], fan_out: int
) -> tuple[Tensor, Tensor, Tree]:
    """Sample up to `fan_out` different neighbors of each target with equal probability, layer by layer.

    targets: int64 [t]; only the first `filled` (int64 scalar) count. layers: numbers of layers, falling. The second
    layer samples neighbors of all nodes of the first layer, and so on.

    Returns the lowest layer's sources int64 [s], how many of them count, and the hops by layer. A layer's sources are
    its targets, then the further neighbors, each once, then repeats of the first target up to a size of few different
    values. They are the next layer's targets. Its hop has "place" int64 [t, fan_out], the places of the sampled
    neighbors among the sources, "count" [t, fan_out], the number of neighbors that each represents (0: no neighbor),
    and "gcn" [t, 1 + fan_out], the weights of the node itself and its neighbors.

    "gcn" has the weights of D~^-1/2 (A + I) D~^-1/2, times the number of neighbors that a sampled one represents. The
    expected sum over the samples is the full graph's. It is exact if no node has more than `fan_out` neighbors, so that
    training and full-graph inference compute the same.
    """
    if not layers:
        return targets, filled, {}
    size = graph.own_edges.cache.padded_size
    grown = partial(_grow, layers=tuple(layers), fan_out=fan_out, dtype=graph.x.dtype, padded_size=size)
    sources, filled, *tensors = _Grow.apply(grown, *graph.own_edges.neighbors, targets, filled, key)
    hops = zip(layers, tensors[::3], tensors[1::3], tensors[2::3], strict=True)
    return sources, filled, {str(i): {"place": place, "count": count, "gcn": gcn} for i, place, count, gcn in hops}


def neighbors(
    first: Tensor, degree: Tensor, columns: Tensor, targets: Tensor, key: Tensor, fan_out: int
) -> tuple[Tensor, Tensor]:
    """Sampled neighbors [P, t, f] (the node itself at places without a neighbor) and how many each represents, float64.

    `places` defines the sample."""
    at, there, count = places(first, degree, targets, key, fan_out)
    chosen = torch.where(there, columns.gather(1, at.flatten(1)).view(at.shape), targets[..., None])
    return chosen, count


def places(first: Tensor, degree: Tensor, targets: Tensor, key: Tensor, fan_out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample places in a list of neighbors that is sorted by node, for each of `targets` [P, t].

    Returns the places int64 [P, t, f] (0 where there is none), which of them exist, and how many neighbors each
    represents, float64.

    Systematic sampling: of d > f neighbors, those at (u + j) d / f for j = 0, …, f - 1 with one uniform u are all
    different, and each is taken with probability f / d.
    """
    many = degree.gather(1, targets)[..., None]
    u = (random.fold(key[:, None], targets) >> 40 & 0xFFFFFF).to(torch.float64)[..., None] * 2.0**-24
    j = torch.arange(fan_out, device=many.device)
    at = torch.where(many > fan_out, ((u + j) * many / fan_out).long().minimum(many - 1), j)
    there = (at < many).expand(*targets.shape, fan_out)
    at = torch.where(there, first.gather(1, targets)[..., None] + at, 0)
    return at, there, torch.where(there, (many / fan_out).clamp(min=1), 0.0)


def self_hop(targets: Tensor, dtype: torch.dtype) -> Tree:
    """The hop in which each of `targets` [t] sees only itself: A = I."""
    one = torch.ones(len(targets), 1, dtype=dtype, device=targets.device)
    return {"place": targets[:, None][:, :0], "count": one[:, :0], "gcn": one}


def located(nodes: Tensor, within: Tensor, count: int) -> Tensor:
    """The place of each of `nodes` int64 [k], numbers below `count`, in the list `within` int64 [m]; the last place of
    a node that is in the list several times, on every device."""
    places = torch.arange(len(within), device=within.device)
    table = torch.zeros(count, dtype=torch.int64, device=within.device)
    return table.scatter_reduce(0, within, places, "amax").gather(0, nodes)


def rising(nodes: Tensor, count: int, size: int) -> Tensor:
    """The distinct `nodes` int64 [k], numbers below `count`, in rising order; the first is repeated up to `size`."""
    present = torch.zeros(count, dtype=torch.int64, device=nodes.device).scatter(0, nodes, 1)
    rank = present.cumsum(0)
    place = torch.where(present > 0, rank - 1, size)
    numbers = torch.arange(count, device=nodes.device)
    return nodes.min().expand(size + 1).scatter(0, place, numbers)[:size]


class Sampled:
    """The edges of one layer between sampled nodes (a `core.operators.MessagePassing`)."""

    shrinks = True
    KINDS = ("gcn", "sum", "mean", "mean_or_self")

    def __init__(self, hop: Tree) -> None:
        self.hop = hop

    def operator(self, kind: str) -> "Bipartite":
        """The matrix [targets, sources] that estimates rows of the matrix of `Edges.operator`.

        Raises:
            ValueError: the kind has no such estimate.
        """
        count = self.hop["count"]
        if kind == "gcn":
            return Bipartite(self.hop["place"], self.hop["gcn"])
        if kind not in ("sum", "mean", "mean_or_self"):
            raise ValueError(f"sampled neighbors have no operator {kind!r}, only gcn, sum, mean and mean_or_self")
        total = count.sum(1, keepdim=True)
        self_weight = (total == 0).to(count.dtype) if kind == "mean_or_self" else torch.zeros_like(total)
        return Bipartite(
            self.hop["place"], torch.cat([self_weight, count if kind == "sum" else count / total.clamp(min=1)], 1)
        )

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The targets, and for each of them the mean over its sampled neighbors: both [t, k]."""
        return h[: len(self.hop["place"])], self.operator(kind) @ h


class Bipartite:
    """A matrix [targets, sources] with few entries a row: `weight` [t, 1 + f], first for the node itself (source i of
    target i), then for the sources `place` int64 [t, f]. Weight 0 means no entry."""

    def __init__(self, place: Tensor, weight: Tensor) -> None:
        self.place, self.weight = place, weight

    @property
    def shape(self) -> tuple[int]:
        """(targets,)."""
        return (len(self.weight),)

    @property
    def _index(self) -> Tensor:
        """The sources that every target sees: int64 [t, 1 + f]."""
        return torch.cat([torch.arange(len(self.place), device=self.place.device)[:, None], self.place], 1)

    def _rows(self, h: Tensor) -> Tensor:
        """The rows of h [s, k] that every target sees: [t, 1 + f, k]."""
        result: Tensor = gather_rows(h, self._index.reshape(-1)).unflatten(0, tuple(self.weight.shape))
        return result

    def __matmul__(self, h: Tensor) -> Tensor:
        return weighted_gather(h, self._index, self.weight)

    def attend(
        self, source: Tensor, target: Tensor, values: Tensor, slope: float, key: Tensor | None, rate: float
    ) -> Tensor:
        """`ops.attention.attend` over the node itself and its sampled neighbors."""
        heads = source.shape[1]
        scores = F.leaky_relu(target[:, None] + self._rows(source), slope)  # [t, 1 + f, H]
        a = torch.softmax(scores.masked_fill((self.weight == 0)[..., None], -torch.inf), 1)
        a = a if key is None or rate == 0 else random.dropout(key, a, rate)
        result: Tensor = (a[..., None] * self._rows(values).unflatten(2, (heads, -1))).sum(1).flatten(1)
        return result


class _Grow(Constant):
    """`grow` on tensors, and the batching rule that makes P clients' lists one computation."""

    @staticmethod
    def forward(grown: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(out[0] for out in grown([tensor[None] for tensor in tensors]))

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, grown: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        out = grown(over_clients(info.batch_size, in_dims[1:], *tensors))
        return out, (0,) * len(out)


def _grow(
    tensors: list[Tensor], layers: tuple[int, ...], fan_out: int, dtype: torch.dtype, padded_size: Callable[..., int]
) -> tuple[Tensor, ...]:
    """`grow` for P clients. tensors, all [P, …]: tables of neighbors, targets, how many of these count, and the key."""
    first, degree, columns, sources, filled, key = tensors
    looped, hop_tensors = (degree + 1).to(torch.float64), []
    for i in layers:
        targets, layer_key = sources, random.fold(key, "sample", i)
        chosen, count = neighbors(first, degree, columns, targets, layer_key, fan_out)
        target_degree = looped.gather(1, targets)[..., None]
        other = looped.gather(1, chosen.flatten(1)).view(chosen.shape)
        gcn = torch.cat([1 / target_degree, count / torch.sqrt(target_degree * other)], 2)
        sources, filled, place = _joined(
            targets, filled, chosen.flatten(1), degree.shape[1], partial(padded_size, (i, targets.shape[1]))
        )
        hop_tensors += [place.view(chosen.shape), count.to(dtype), gcn.to(dtype)]
    return sources, filled, *hop_tensors


def _joined(
    targets: Tensor, filled: Tensor, nodes: Tensor, count: int, padded_size: Callable[[int], int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Join the targets and their new neighbors.

    Returns the first `filled` [P] targets [P, t], followed by those `nodes` [P, k] that are no targets; their number
    [P]; and the place of each of `nodes`, the last place if a node is in the list several times."""
    sizes = targets.shape[1], count + 1
    at, numbers = (torch.arange(size, device=nodes.device).expand(len(nodes), size) for size in sizes)
    target_columns = torch.where(at < filled[:, None], targets, count)  # the last column takes targets beyond `filled`
    new = (
        torch.zeros_like(numbers, memory_format=torch.contiguous_format)
        .scatter_(1, nodes, 1)
        .scatter_(1, target_columns, 0)
    )
    where = new.cumsum(1) + (filled[:, None] - 1)
    total = where[:, -1] + 1
    most = targets.shape[1] + min(count, nodes.shape[1])
    size = padded_size(max(len(at[0]), counted(total, most)))
    sources = targets[:, :1].repeat(1, size + 1).scatter_(1, torch.where(new > 0, where, size), numbers)
    sources[:, : len(at[0])] = torch.where(target_columns < count, targets, sources[:, : len(at[0])])
    return (
        sources[:, :size],
        total,
        where.scatter_reduce_(1, target_columns, at, "amax", include_self=False).gather(1, nodes),
    )


# ----------------------------------------------------------------------------------------------------
# Sampled messages along single edges, with the edges' attributes: the operators of one layer's targets and sources, for
# one client and, inside a vectorized call, for all. Every target has its own `fan_out` places for the messages of
# each way. These places come after the targets, way after way. An empty place is a message of zeros that reaches no
# node, like the padding of whole graphs (`core.edge_attributes.EdgeMessages`).


EGO_IDS = "ego_ids"  # [sources, 1]: 1 at the nodes around which a neighborhood was sampled
GCN = "gcn"  # prefix of the names of a graph convolution's matrices


def reached(graph: Graph, layer: Layer, targets: Tensor, keys: Tensor, fan_out: int) -> tuple[list[Tensor], Tree]:
    """Up to `fan_out` different messages that reach each of `targets` int64 [steps, t], for each way that the layer
    reads; keys: int64 [steps].

    Returns the nodes where the messages start, int64 [steps, t f] for each way, and the hop. The hop has for each way
    "count" [steps, t, f], how many messages each represents (0: no message), "features" [steps, t, f, k] of their
    edges, "degree" [steps, t], the number of all messages, and for a layer that needs it "gcn" [steps, t, 1 + f].
    """
    what, _ = carrying.kinds()[str(layer.operator)]
    starts, hop, edges = [], {}, graph.own_edges.of_edges()
    for way in layer.along:
        table = graph.own_edges.incoming(way)
        many = Incoming(*(column.expand(len(targets), -1) for column in table))
        at, there, count = places(many.first, many.degree, targets, random.fold(keys, way), fan_out)
        flat = at.flatten(1)
        start = torch.where(there, many.source.gather(1, flat).view(at.shape).long(), targets[..., None])
        edge = torch.where(there, many.edge.gather(1, flat).view(at.shape).long(), 0)
        features = _rows(edges.features, edge) * there[..., None]
        tensors: Tree = {"count": count, "features": features, "degree": many.degree.gather(1, targets)}
        if what.startswith(GCN):
            tensors["gcn"] = _normalized(what, many, edges, targets, start, edge, count)
        hop[way] = {name: value.to(graph.x.dtype) for name, value in tensors.items()}
        starts.append(start.flatten(1))
    return starts, hop


def _normalized(
    what: str, many: Incoming, edges: OfEdges, targets: Tensor, start: Tensor, edge: Tensor, count: Tensor
) -> Tensor:
    """The weights of a target itself and of its messages, as in `core.edge_attributes.EdgeMessages.matrix`: float64
    [steps, t, 1 + f]."""
    counted, loops = what.endswith("counted"), "bare" not in what
    total = (many.degree.to(torch.float64) if counted else many.strength) + loops
    scale = torch.where(total > 0, total.rsqrt(), 0.0)
    target_scale = scale.gather(1, targets)[..., None]
    weight = count if counted else count * _rows(edges.weight, edge)
    return torch.cat(
        [
            target_scale * target_scale * loops,
            weight * target_scale * scale.gather(1, start.flatten(1)).view(start.shape),
        ],
        2,
    )


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """table[at] for a table [m, …] and at int64 of any shape."""
    return table.index_select(0, at.flatten()).view(*at.shape, *table.shape[1:])


@dataclass(frozen=True)
class SampledMessages(ShrinkingEdges):
    """The messages of one layer between sampled nodes; operators: the hop of one step, by way (see `reached`)."""

    operators: Mapping[str, Tree]

    def operator(self, kind: str) -> Operator:
        """The estimate of the matrix `kind` over all messages.

        Raises:
            ValueError: the matrix is not one of single edges, or its way was not sampled.
        """
        what, way = carrying.kinds().get(kind, ("", ""))
        if way not in self.operators:
            raise ValueError(f"sampled messages have no operator {kind!r}, only operators of sampled single edges")
        tensors = self.operators[way]
        count, features, degree = tensors["count"], tensors["features"], tensors["degree"]
        t, fan_out = count.shape
        first = t * (1 + fan_out * [one for one in WAYS if one in self.operators].index(way))
        if what.startswith(GCN):
            place = first + torch.arange(t * fan_out, device=count.device)
            return Bipartite(place.view(t, fan_out), tensors["gcn"])
        if what == "scalers":
            return DenseMatrix(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        share = count / degree.clamp(min=1)[:, None]
        if what == "feature_means":
            return DenseMatrix((features * share[..., None]).sum(1))
        if what == "features":
            return DenseMatrix(features.flatten(0, 1))
        if what in ("sum", "mean"):
            return Into(count if what == "sum" else share)
        return From(first, count) if what == "from" else To(count)


@dataclass(frozen=True)
class Slice:
    """The rows `first`, …, first + count - 1."""

    first: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(count,)."""
        return (self.count,)

    def __matmul__(self, h: Tensor) -> Tensor:
        return h[self.first : self.first + self.count]


@dataclass(frozen=True)
class From:
    """[t f, sources]: selects the rows where messages start, which begin at row `first`; count: [t, f]."""

    first: int
    count: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t f,)."""
        return (self.count.numel(),)

    def __matmul__(self, h: Tensor) -> Tensor:
        there = (self.count > 0).to(h.dtype).flatten()[:, None]
        return h[self.first : self.first + len(there)] * there


@dataclass(frozen=True)
class To:
    """[t f, targets or sources]: selects the rows that messages reach; count: [t, f]."""

    count: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t f,)."""
        return (self.count.numel(),)

    def __matmul__(self, h: Tensor) -> Tensor:
        return (h[: len(self.count), None] * (self.count > 0).to(h.dtype)[..., None]).flatten(0, 1)


@dataclass(frozen=True)
class Into:
    """[t, t f]: sums the messages that reach each target, by weight [t, f]; weight 0 means no message."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t,)."""
        return (len(self.weight),)

    def __matmul__(self, sent: Tensor) -> Tensor:
        sums: Tensor = (sent.unflatten(0, tuple(self.weight.shape)) * self.weight[..., None]).sum(1)
        return sums

    def largest(self, sent: Tensor) -> Tensor:
        """`ops.attention.largest` of the messages [t f, k]: [t, k]."""
        missing = (self.weight == 0)[..., None]
        top = sent.unflatten(0, tuple(self.weight.shape)).masked_fill(missing, -torch.inf).amax(1)
        result: Tensor = torch.where(missing.all(1), 0.0, top)
        return result


# ----------------------------------------------------------------------------------------------------
# Mini-batches of nodes, or of edges, with sampled neighborhoods (Hamilton et al. 2017, "Inductive Representation
# Learning on Large Graphs", algorithm 2), drawn for all steps of a local training at once. Every node of a list has
# its own places for its neighbors, so that all lists have one length for any sample. A node that is reached twice is in
# the list twice (the lists of `grow` have each node once).


NO_HOP = (None, EGO_IDS, *OF_EXAMPLES)  # operators that need no sampled neighbors
MANY = 1 << 22  # with this many examples each step draws separately
MOST = 1 << 17  # beyond this size a list that would be longer than all nodes has each node once instead


def drawn(member: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`size` different nodes of `member` bool [n] for each key, [] or [steps, 1]: int64 [..., size], and bool
    [..., size] which of them are real (with fewer members, places stay empty and are node 0)."""
    enough = torch.cat([member, member.new_zeros(max(0, size - len(member)))])
    chosen = torch.topk(random.order(key, enough), size, largest=False).indices
    real = (torch.arange(size, device=member.device) < member.sum()).expand(chosen.shape)
    return torch.where(real, chosen, 0), real


def grown(
    graph: Graph, targets: Tensor, keys: Tensor, layers: Mapping[int, Layer], fan_out: int, capped: bool = False
) -> tuple[Tensor, dict[str, Tree]]:
    """Sample up to `fan_out` different neighbors of each of `targets` int64 [steps, t], layer by layer.

    layers: by number, falling; the second layer samples neighbors of all nodes of the first layer, and so on. keys:
    int64 [steps]. capped: whether a list may be replaced as follows. If a list with separate places for all neighbors
    is longer than `MOST` and than a list with all nodes, it continues with each node once. No lower layer makes it
    longer.

    Returns the lowest layer's sources int64 [steps, s], which begin with the targets, and the hops by layer: "count"
    and "gcn" as in `grow`, [steps, …], and "place" where nodes are listed once; or the hop of `reached` for single
    edges. `edges_of` makes one step's edges from a hop.
    """
    hops, whole = {}, None  # whole: where the list of all nodes begins
    for i, layer in layers.items():
        layer_keys = random.fold(keys, "sample", i)
        if layer.along:
            more, hops[str(i)] = reached(graph, layer, targets, layer_keys, fan_out)
        else:
            chosen, hops[str(i)] = _hop(graph, targets, layer_keys, fan_out)
            more = [chosen.flatten(1)]
            if capped and (whole is not None or is_too_long(targets.shape[1], fan_out, graph.nodes)):
                everyone = torch.arange(graph.nodes, device=targets.device).expand(len(targets), -1)
                more, whole = ([everyone], targets.shape[1]) if whole is None else ([], whole)
                hops[str(i)] |= {"place": chosen + whole}
        targets = torch.cat([targets, *more], 1)
    return targets, hops


def is_too_long(targets: int, fan_out: int, nodes: int) -> bool:
    """Whether targets with separate places for their neighbors are more than `MOST`, and than a list with all nodes."""
    return targets * (1 + fan_out) > max(MOST, targets + nodes)


def _hop(graph: Graph, targets: Tensor, keys: Tensor, fan_out: int) -> tuple[Tensor, Tree]:
    """The neighbors of `targets` for one layer, int64 [steps, t, f], and its hop."""
    first, degree, columns = (table.expand(len(targets), -1) for table in graph.own_edges.neighbors)
    chosen, count = neighbors(first, degree, columns, targets, keys, fan_out)
    looped = (degree + 1).to(torch.float64)
    target_degree = looped.gather(1, targets)[..., None]
    other = looped.gather(1, chosen.flatten(1)).view(chosen.shape)
    gcn = torch.cat([1 / target_degree, count / torch.sqrt(target_degree * other)], 2)
    return chosen, {"count": count.to(graph.x.dtype), "gcn": gcn.to(graph.x.dtype)}


def edges_of(layer: Layer, of_step: Tree) -> MessagePassing:
    """One layer's edges in one step. The f neighbors of the i-th of t targets are at t + i f, … unless the hop has
    "place"."""
    if layer.along:
        return SampledMessages(of_step)
    if layer.operator in OF_EXAMPLES:
        features, b = DenseMatrix(of_step["features"]), len(of_step["features"])
        return PrecomputedEdges({SOURCE: Slice(0, b), TARGET: Slice(b, b), OWN: features})
    if layer.operator == EGO_IDS:
        return PrecomputedEdges({EGO_IDS: DenseMatrix(of_step["ids"])})
    if "place" in of_step:
        return Sampled(of_step)
    t, fan_out = of_step["count"].shape
    place = t + torch.arange(t * fan_out, device=of_step["count"].device)
    return Sampled(of_step | {"place": place.view(t, fan_out)})


@dataclass(frozen=True)
class Minibatches:
    """Mini-batches of `batch` training examples, nodes or edges. Every layer that passes messages sees up to `fan_out`
    sampled neighbors of a node, or messages of each way."""

    batch: int = 32
    fan_out: int = 5

    def layers(self, model: Model) -> dict[int, Layer]:
        """The layers that pass messages by their numbers, from the last to the first.

        Raises:
            ValueError: the model needs the whole graph or a matrix that samples cannot estimate, or its examples are
                small graphs.
        """
        if models.needs_graph(model):
            raise ValueError(
                "h2gcn and a torch.nn.Module cannot read sampled neighbors; choose model sage, gcn, gat, gine or pna, "
                "without graph or batch norm, which compare all nodes"
            )
        if models.pools(model):
            raise ValueError(
                "neighbors are sampled around nodes or edges, and the examples are small graphs; use the part "
                "graph_cross_entropy, which draws small graphs"
            )
        layers = {i: layer for i, layer in reversed([*enumerate(model)]) if layer.operator not in NO_HOP}
        if odd := [
            message_layer.operator
            for message_layer in layers.values()
            if not message_layer.along and message_layer.operator not in Sampled.KINDS
        ]:
            raise ValueError(
                f"sampled neighbors give no {odd[0]!r}, which the model multiplies by; choose model sage, gcn, gat, "
                "gine or pna"
            )
        return layers

    def batches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """For `fit(…, batches=…)`, all leaves [steps, …]: the "target" class and "weight" (0 or 1) of b examples, the
        "nodes" of the lowest layer, and the "hops"."""
        keys = random.fold(key, torch.arange(steps, device=key.device))
        chosen, real = self._chosen(graph, random.fold(keys, "centres"))
        target = graph.truth_at(chosen)
        return {"target": target, "weight": real.to(graph.x.dtype), **self.around(model, graph, chosen, keys)}

    def around(self, model: Model, graph: Graph, chosen: Tensor, keys: Tensor) -> Tree:
        """The "nodes" of the lowest layer and the "hops" for examples int64 [steps, b]; keys: int64 [steps]."""
        ends: tuple[Tensor, ...] = (chosen,)
        more: dict[str, Tree] = {}
        if models.example(model) == "edge":
            ends, more = self._of_edges(model, graph, chosen)
        layers = self.layers(model)
        at = next((i for i, layer in enumerate(model) if layer.operator == EGO_IDS), None)
        nodes, hops = grown(graph, torch.cat(ends, 1), keys, layers, self.fan_out, capped=at is None)
        if at is not None:
            more[str(at)] = {"ids": _ids(nodes, ends, layers, self.fan_out).to(graph.x.dtype)}
        return {"nodes": nodes, "hops": hops | more}

    def _chosen(self, graph: Graph, keys: Tensor) -> tuple[Tensor, Tensor]:
        """`drawn` from the training examples; with many examples step by step, which bounds the memory."""
        train = graph.masks[TRAIN]
        if train.shape[-1] < MANY:
            return drawn(train, keys[:, None], self.batch)
        chosen, real = zip(*(drawn(train, step_key, self.batch) for step_key in keys.unbind()), strict=True)
        return torch.stack(chosen), torch.stack(real)

    def _of_edges(self, model: Model, graph: Graph, chosen: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tree]]:
        """The source and the target nodes of edges int64 [steps, b], and the hop of the layer that reads both ends."""
        edges = graph.own_edges.of_edges(examples=True)
        at = chosen.flatten().clamp(max=len(edges.ends) - 1)  # larger numbers are padding
        ends = tuple(end.index_select(0, at).view(chosen.shape) for end in edges.ends.unbind(1))
        features = edges.features.index_select(0, at).view(*chosen.shape, -1).to(graph.x.dtype)
        read = next(i for i, layer in enumerate(model) if layer.operator in OF_EXAMPLES)
        return ends, {str(read): {"features": features}}

    def logits(self, w: Tree, model: Model, graph: Graph, key: Tensor | None, minibatch: Tree) -> Tensor:
        """The model's outputs for the examples of one mini-batch, [b, c]; a key switches dropout on."""
        h: Hidden = picked(graph.x, minibatch["nodes"])
        hops = minibatch.get("hops", {})  # trees drop empty nodes, such as the hops of a model without messages
        for i, layer in enumerate(model):
            hop = hops.get(str(i))
            around = graph if hop is None else graph._replace(edges=edges_of(layer, hop))
            h = layer.apply(w.get(str(i), {}), around, h, None if key is None else random.fold(key, "layer", i))
        return models.rows_of(h)

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree, how: Criterion = PLAIN) -> Tensor:
        """Mean cross-entropy of one mini-batch, scalar; 0 at a client without training examples."""
        logits = self.logits(w, model, graph, key, minibatch)
        return how.of(logits, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])


def bytes_of(model: Model, sampler: Minibatches, nodes: int, steps: int) -> float:
    """Approximate bytes of the lists that `grown` draws at once for a client's `steps`, in a graph of `nodes` nodes."""
    layers, places, total, whole = sampler.layers(model).values(), float(sampler.batch), 0.0, False
    capped = all(layer.operator != EGO_IDS for layer in model)
    places *= 2 if models.example(model) == "edge" else 1
    for layer in layers:
        reached = sampler.fan_out * max(1, len(layer.along))
        total += places * (reached * 20 + 4)  # weights, counts and places
        if capped and not layer.along and (whole or is_too_long(int(places), sampler.fan_out, nodes)):
            places, whole = places + (0 if whole else nodes), True
        else:
            places *= 1 + reached
    return steps * (total + places * 8)


def places_of(model: Model, sampler: Minibatches) -> int:
    """Number of places of one example's neighborhood at the lowest layer."""
    layers = sampler.layers(model).values()
    ends = 2 if models.example(model) == "edge" else 1
    return ends * math.prod(1 + sampler.fan_out * max(1, len(layer.along)) for layer in layers)


def _ids(nodes: Tensor, ends: tuple[Tensor, ...], layers: Mapping[int, Layer], fan_out: int) -> Tensor:
    """bool [steps, s, 1]: whether each of `nodes` [steps, s] is the example, or one of its `ends` [steps, b], at the
    center of the neighborhood in which `grown` put it."""
    example = torch.arange(ends[0].shape[1], device=nodes.device).repeat(len(ends))
    for layer in layers.values():
        reached = example.repeat_interleave(fan_out).repeat(max(1, len(layer.along)))
        example = torch.cat([example, reached])
    matches = [nodes == end.index_select(1, example) for end in ends]
    return torch.stack(matches).any(0)[..., None]
