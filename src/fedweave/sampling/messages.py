"""Sampled messages along single edges, with what these carry: the operators of one layer's targets and sources, for one
client and, inside a vectorised call, for all.

Every target has `fan_out` places of its own for the messages of each way, which stand behind the targets, way after
way. An empty place is a message of zeros that reaches nobody, as those of the padding of whole graphs
(`core.carried.Messages`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import carried as carrying
from fedweave.core import random
from fedweave.core.carried import WAYS
from fedweave.core.edges import Incoming, OfEdges
from fedweave.core.graph import Graph
from fedweave.core.model import Layer
from fedweave.core.operators import Operator
from fedweave.core.piecewise import Dense, Some
from fedweave.core.tree import Tree
from fedweave.sampling.neighbourhoods import Bipartite, places

EGO_IDS = "ego_ids"  # [sources, 1]: 1 at the nodes around which a neighbourhood was sampled
GCN = "gcn"  # how the names of what a graph convolution multiplies by begin


def reached(graph: Graph, layer: Layer, targets: Tensor, keys: Tensor, fan_out: int) -> tuple[list[Tensor], Tree]:
    """Up to `fan_out` different messages that reach each of `targets` int64 [steps, t], of each way that the layer
    reads; keys: int64 [steps].

    Returns where they start, int64 [steps, t f] for each way, and the hop: of each way "count" [steps, t, f], how many
    messages each stands for (0: there is none), "features" [steps, t, f, k] of their edges, "degree" [steps, t], how
    many there are in all, and, of a layer that multiplies by it, "gcn" [steps, t, 1 + f].
    """
    what, _ = carrying.kinds()[str(layer.operator)]
    started, hop, edges = [], {}, graph.own_edges.of_edges()
    for way in layer.along:
        table = graph.own_edges.incoming(way)
        many = Incoming(*(column.expand(len(targets), -1) for column in table))
        at, there, count = places(many.first, many.degree, targets, random.fold(keys, way), fan_out)
        flat = at.flatten(1)
        start = torch.where(there, many.source.gather(1, flat).view(at.shape).long(), targets[..., None])
        edge = torch.where(there, many.edge.gather(1, flat).view(at.shape).long(), 0)
        features = _rows(edges.features, edge) * there[..., None]
        own: Tree = {"count": count, "features": features, "degree": many.degree.gather(1, targets)}
        if what.startswith(GCN):
            own["gcn"] = _normalised(what, many, edges, targets, start, edge, count)
        hop[way] = {name: value.to(graph.x.dtype) for name, value in own.items()}
        started.append(start.flatten(1))
    return started, hop


def _normalised(
    what: str, many: Incoming, edges: OfEdges, targets: Tensor, start: Tensor, edge: Tensor, count: Tensor
) -> Tensor:
    """The weights of a target itself and of its messages, as in `core.carried.Messages.matrix`: float64
    [steps, t, 1 + f]."""
    counted, loops = what.endswith("counted"), "bare" not in what
    total = (many.degree.to(torch.float64) if counted else many.strength) + loops
    scale = torch.where(total > 0, total.rsqrt(), 0.0)
    own = scale.gather(1, targets)[..., None]
    weight = count if counted else count * _rows(edges.weight, edge)
    return torch.cat([own * own * loops, weight * own * scale.gather(1, start.flatten(1)).view(start.shape)], 2)


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """table[at] for a table [m, …] and at int64 of any form."""
    return table.index_select(0, at.flatten()).view(*at.shape, *table.shape[1:])


@dataclass(frozen=True)
class SampledMessages(Some):
    """The messages of one layer between sampled nodes; operators: the hop of one step, by way (see `reached`)."""

    operators: Mapping[str, Tree]

    def operator(self, kind: str) -> Operator:
        """What estimates the matrix of that name over all messages.

        Raises:
            ValueError: it is not of single edges, or of a way that was not sampled.
        """
        what, way = carrying.kinds().get(kind, ("", ""))
        if way not in self.operators:
            raise ValueError(f"sampled messages have no operator {kind!r}, only those of single edges that were drawn")
        own = self.operators[way]
        count, features, degree = own["count"], own["features"], own["degree"]
        t, fan_out = count.shape
        first = t * (1 + fan_out * [one for one in WAYS if one in self.operators].index(way))
        if what.startswith(GCN):
            place = first + torch.arange(t * fan_out, device=count.device)
            return Bipartite(place.view(t, fan_out), own["gcn"])
        if what == "scalers":
            return Dense(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        share = count / degree.clamp(min=1)[:, None]
        if what == "feature_means":
            return Dense((features * share[..., None]).sum(1))
        if what == "features":
            return Dense(features.flatten(0, 1))
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
    """[t f, sources]: what the messages start from, which stand from row `first`; count: [t, f]."""

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
    """[t f, targets or sources]: what the messages reach; count: [t, f]."""

    count: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t f,)."""
        return (self.count.numel(),)

    def __matmul__(self, h: Tensor) -> Tensor:
        return (h[: len(self.count), None] * (self.count > 0).to(h.dtype)[..., None]).flatten(0, 1)


@dataclass(frozen=True)
class Into:
    """[t, t f]: sums of the messages that reach each target, by weight [t, f]; those of weight 0 do not."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t,)."""
        return (len(self.weight),)

    def __matmul__(self, sent: Tensor) -> Tensor:
        sums: Tensor = (sent.unflatten(0, tuple(self.weight.shape)) * self.weight[..., None]).sum(1)
        return sums

    def largest(self, sent: Tensor) -> Tensor:
        """`ops.extremes.largest` of the messages [t f, k]: [t, k]."""
        missing = (self.weight == 0)[..., None]
        top = sent.unflatten(0, tuple(self.weight.shape)).masked_fill(missing, -torch.inf).amax(1)
        result: Tensor = torch.where(missing.all(1), 0.0, top)
        return result
