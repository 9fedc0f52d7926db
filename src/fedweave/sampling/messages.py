"""Sampled messages along single edges, with the edges' attributes: the operators of one layer's targets and sources,
for one client and, inside a vectorized call, for all.

Every target has its own `fan_out` places for the messages of each way. These places come after the targets, way after
way. An empty place is a message of zeros that reaches no node, like the padding of whole graphs
(`core.edge_attributes.EdgeMessages`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import edge_attributes, random
from fedweave.core.edge_attributes import WAYS
from fedweave.core.edges import Incoming, OfEdges
from fedweave.core.graph import Graph
from fedweave.core.model import Layer
from fedweave.core.operators import Operator
from fedweave.core.tensor_operators import DenseMatrix, ShrinkingEdges
from fedweave.core.tree import Tree
from fedweave.sampling.neighborhoods import Bipartite, places

GCN = "gcn"  # begins gcn, gcn_counted (without edges' weights), gcn_bare (without loops) and gcn_bare_counted


def sample_messages(
    graph: Graph, layer: Layer, targets: Tensor, keys: Tensor, fan_out: int
) -> tuple[list[Tensor], Tree]:
    """Up to `fan_out` different messages that reach each of `targets` int64 [steps, t], for each way that the layer
    reads; keys: int64 [steps].

    Returns the nodes where the messages start, int64 [steps, t f] for each way, and the hop. The hop has for each way
    "count" [steps, t, f], how many messages each represents (0: no message), "features" [steps, t, f, k] of their
    edges, "degree" [steps, t], the number of all messages, and for a layer that needs it "gcn" [steps, t, 1 + f].
    """
    what, _ = edge_attributes.kinds()[str(layer.operator)]
    starts = []
    hop = {}
    edges = graph.whole_edges.of_edges()
    for way in layer.along:
        columns = [column.expand(len(targets), -1) for column in graph.whole_edges.incoming(way)]
        incoming = Incoming(*columns)
        at, exists, count = places(incoming.first, incoming.degree, targets, random.fold(keys, way), fan_out)
        flat = at.flatten(1)
        # An empty place is the target itself, with count 0.
        start = torch.where(exists, incoming.source.gather(1, flat).view(at.shape).long(), targets[..., None])
        edge = torch.where(exists, incoming.edge.gather(1, flat).view(at.shape).long(), 0)
        features = _rows(edges.features, edge) * exists[..., None]
        tensors: Tree = {"count": count, "features": features, "degree": incoming.degree.gather(1, targets)}
        if what.startswith(GCN):
            tensors["gcn"] = _gcn_weights(what, incoming, edges, targets, start, edge, count)
        hop[way] = {name: value.to(graph.x.dtype) for name, value in tensors.items()}
        starts.append(start.flatten(1))
    return starts, hop


def _gcn_weights(
    what: str, incoming: Incoming, edges: OfEdges, targets: Tensor, start: Tensor, edge: Tensor, count: Tensor
) -> Tensor:
    """The weights of a target itself and of its messages, as in `core.edge_attributes.EdgeMessages.matrix`: float64
    [steps, t, 1 + f]."""
    by_count = what.endswith("counted")
    loops = "bare" not in what
    total = (incoming.degree.to(torch.float64) if by_count else incoming.strength) + loops
    scale = torch.where(total > 0, total.rsqrt(), 0.0)
    target_scale = scale.gather(1, targets)[..., None]
    start_scale = scale.gather(1, start.flatten(1)).view(start.shape)
    weight = count if by_count else count * _rows(edges.weight, edge)
    return torch.cat([target_scale * target_scale * loops, weight * target_scale * start_scale], 2)


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """table[at] for a table [m, …] and at int64 of any shape."""
    return table.index_select(0, at.flatten()).view(*at.shape, *table.shape[1:])


@dataclass(frozen=True)
class SampledMessages(ShrinkingEdges):
    """The messages of one layer between sampled nodes; hop: of one step, by way (`sample_messages`)."""

    hop: Mapping[str, Tree]

    def operator(self, kind: str) -> Operator:
        """The estimate of the matrix `kind` over all messages."""
        what, way = edge_attributes.kinds().get(kind, ("", ""))
        if way not in self.hop:
            raise ValueError(f"sampled messages have no operator {kind!r}, only operators of sampled single edges")
        tensors = self.hop[way]
        count, features, degree = tensors["count"], tensors["features"], tensors["degree"]
        t, fan_out = count.shape
        ways = [one for one in WAYS if one in self.hop]  # the order in which layers name their ways
        first = t * (1 + fan_out * ways.index(way))  # the row of the first message of this way
        share = count / degree.clamp(min=1)[:, None]  # [t, f]
        if what.startswith(GCN):
            place = first + torch.arange(t * fan_out, device=count.device)
            return Bipartite(place.view(t, fan_out), tensors["gcn"])
        if what == "scalers":
            return DenseMatrix(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        if what == "feature_means":
            return DenseMatrix((features * share[..., None]).sum(1))
        if what == "features":
            return DenseMatrix(features.flatten(0, 1))
        if what == "sum":
            return Into(count)
        if what == "mean":
            return Into(share)
        if what == "from":
            return From(first, count)
        if what == "to":
            return To(count)
        raise ValueError(f"sampled messages have no operator {kind!r}")


@dataclass(frozen=True)
class Slice:
    """The rows `first`, …, first + count - 1: one end of each edge that is an example (`minibatches.edges_of`)."""

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
        exists = (self.count > 0).to(h.dtype).flatten()[:, None]  # [t f, 1]
        return h[self.first : self.first + len(exists)] * exists


@dataclass(frozen=True)
class To:
    """[t f, targets or sources]: selects the rows that messages reach; count: [t, f]."""

    count: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t f,)."""
        return (self.count.numel(),)

    def __matmul__(self, h: Tensor) -> Tensor:
        exists = (self.count > 0).to(h.dtype)[..., None]  # [t, f, 1]
        return (h[: len(self.count), None] * exists).flatten(0, 1)


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
        """`ops.row_reductions.largest` of the messages [t f, k]: [t, k]."""
        missing = (self.weight == 0)[..., None]
        top = sent.unflatten(0, tuple(self.weight.shape)).masked_fill(missing, -torch.inf).amax(1)
        result: Tensor = torch.where(missing.all(1), 0.0, top)
        return result
