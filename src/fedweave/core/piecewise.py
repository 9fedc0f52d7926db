"""A model of single edges on a graph with so many of them that what they carry does not fit into memory at once: piece
by piece, by the nodes that messages reach, and by the examples where these are edges. Without gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedweave.core import carried as carrying
from fedweave.core.carried import OF_EXAMPLES, OWN, SOURCE, TARGET
from fedweave.core.edges import Edges, Incoming
from fedweave.core.graph import Graph
from fedweave.core.operators import Operator
from fedweave.core.tree import Tree
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse

MANY = 1 << 21  # edges of a client that are taken piece by piece
AT_ONCE = 1 << 20  # messages, or examples, of a piece


def is_large(graph: Graph) -> bool:
    """Whether the graph, of one client, has so many edges that carry something."""
    members = graph.edges.members if isinstance(graph.edges, Edges) else ()
    return len(members) == 1 and members[0].carried is not None and members[0].carried.total > MANY


class Applied(Protocol):
    """What is asked of a layer (`core.model.Layer`); between layers there may be a tree, at the ends there is none."""

    @property
    def operator(self) -> str | None:
        """See `core.model.Layer`."""
        ...

    @property
    def along(self) -> tuple[str, ...]:
        """See `core.model.Layer`."""
        ...

    @property
    def apply(self) -> Callable[[Tree, Graph, object, None], Tensor]:
        """See `core.model.Layer`."""
        ...


def apply(model: Sequence[Applied], w: Tree, graph: Graph) -> Tensor | Sparse:
    """`core.model.apply` to a whole graph, without dropout."""
    h = graph.x
    for i, layer in enumerate(model):
        if layer.operator in OF_EXAMPLES:
            return _of_examples(model, w, graph, h, i)
        own, single = w.get(str(i), {}), carrying.kinds().get(str(layer.operator), ("", ""))[0] == "sum"
        h = _of_nodes(layer, own, graph, h) if single and isinstance(h, Tensor) else layer.apply(own, graph, h, None)
    return h


def _of_nodes(layer: Applied, w: Tree, graph: Graph, h: Tensor) -> Tensor:
    """The layer's rows of all nodes, those of a piece at once: these lead the rows that it gets."""
    tables = {way: graph.own_edges.incoming(way) for way in layer.along}
    before = torch.stack([table.first for table in tables.values()]).sum(0)  # messages that reach earlier nodes
    features, found, first = graph.own_edges.of_edges().features, [], 0
    while first < len(h):
        last = max(first + 1, int(torch.searchsorted(before, int(before[first]) + AT_ONCE)))
        ways = {way: _reached(table, features.to(h.dtype), first, last) for way, table in tables.items()}
        around = graph._replace(edges=Piece(ways))
        found.append(layer.apply(w, around, torch.cat([h[first:last], h]), None))
        first = last
    return torch.cat(found)


def _reached(table: Incoming, features: Tensor, first: int, last: int) -> "Reached":
    degree = table.degree[first:last]
    at = int(table.first[first])
    whole = slice(at, at + int(degree.sum()))
    target = torch.repeat_interleave(torch.arange(last - first, device=degree.device), degree)
    source, edge = table.source[whole].long() + (last - first), table.edge[whole].long()
    return Reached(source, target, features.index_select(0, edge), degree)


def _of_examples(model: Sequence[Applied], w: Tree, graph: Graph, h: Tensor | Sparse, read: int) -> Tensor:
    """The logits of edges as examples from nodes' rows h, by the layers from the one that `read`s both ends."""
    own, count, found = graph.own_edges.of_edges(examples=True), len(graph.y), list[Tensor]()
    for first in range(0, count, AT_ONCE):
        at = torch.arange(first, min(first + AT_ONCE, count), device=h.device).clamp(max=len(own.ends) - 1)
        source, target = own.ends.index_select(0, at).unbind(1)
        features = Dense(own.features.index_select(0, at))
        around = graph._replace(edges=Known({SOURCE: Rows(source), TARGET: Rows(target), OWN: features}))
        out = model[read].apply(w.get(str(read), {}), around, h, None)
        for i, layer in enumerate(model[read + 1 :], read + 1):
            out = layer.apply(w.get(str(i), {}), around, out, None)
        found.append(out)
    return torch.cat(found)


@dataclass(frozen=True)
class Reached:
    """The m messages of one way that reach a piece's t targets.

    source, target: int64 [m], the rows where each starts, targets first, and that it reaches, rising. features: [m, k],
    of their edges. degree: int64 [t].
    """

    source: Tensor
    target: Tensor
    features: Tensor
    degree: Tensor


class Some(ABC):
    """Edges that lead to the first m of n nodes alone (a `core.operators.MessagePassing`)."""

    shrinks = True

    @abstractmethod
    def operator(self, kind: str) -> Operator:
        """The matrix of that name."""

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """As of any matrix that is known."""
        means = self.operator(kind)
        return h[: means.shape[0]], means @ h


@dataclass(frozen=True)
class Known(Some):
    """Edges of which some matrices are known, by name (a `core.operators.MessagePassing`)."""

    operators: Mapping[str, Operator]

    def operator(self, kind: str) -> Operator:
        """The one of that name.

        Raises:
            ValueError: it is not known; says which are.
        """
        if kind not in self.operators:
            raise ValueError(f"there is no operator {kind!r} here, only {', '.join(self.operators)}")
        return self.operators[kind]


@dataclass(frozen=True)
class Piece(Some):
    """The edges of a piece, of each way a `Reached`: the rows of `core.carried.Messages.matrix` of a few targets."""

    operators: Mapping[str, Reached]

    def operator(self, kind: str) -> Operator:
        """The matrix of a name of `core.carried.named`."""
        what, way = carrying.kinds()[kind]
        own = self.operators[way]
        degree = own.degree.to(own.features.dtype)
        if what == "scalers":
            return Dense(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        if what == "features":
            return Dense(own.features)
        if what in ("from", "to"):
            return Rows(own.source if what == "from" else own.target)
        share = 1 / degree.clamp(min=1) if what != "sum" else torch.ones_like(degree)
        into = Into(own.target, share)
        return Dense(into @ own.features) if what == "feature_means" else into


@dataclass(frozen=True)
class Dense:
    """A dense matrix [m, n], by its rows."""

    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return tuple(self.rows.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return linear(self.rows.to(dense.dtype), dense)


@dataclass(frozen=True)
class Rows:
    """[m, n] with a single 1 in each row, in the columns int64 [m]."""

    columns: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(m,)."""
        return tuple(self.columns.shape)

    def __matmul__(self, h: Tensor) -> Tensor:
        return h.index_select(0, self.columns)


@dataclass(frozen=True)
class Into:
    """[t, m]: adds up messages that reach the same of t targets, int64 [m], times its share [t]."""

    target: Tensor
    share: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t,)."""
        return tuple(self.share.shape)

    def __matmul__(self, sent: Tensor) -> Tensor:
        whole = torch.index_add(sent.new_zeros(len(self.share), sent.shape[1]), 0, self.target, sent)
        return whole * self.share[:, None]

    def largest(self, sent: Tensor) -> Tensor:
        """`ops.extremes.largest` of the messages [m, k]: [t, k]."""
        least = sent.new_full((len(self.share), sent.shape[1]), -torch.inf)
        top = least.scatter_reduce(0, self.target[:, None].expand(-1, sent.shape[1]), sent, "amax")
        return torch.where(top == -torch.inf, 0.0, top)
