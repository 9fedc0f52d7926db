"""A model is a tuple of layers; splitting a model is slicing it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fedweave.core import edge_attributes as carrying
from fedweave.core import random
from fedweave.core.edge_attributes import OF_EXAMPLES, OWN, SOURCE, TARGET
from fedweave.core.edges import Edges, Incoming
from fedweave.core.graph import QUERIES, QUERY, TEST, TRAIN, VAL, Graph
from fedweave.core.operators import POOLS, Operator
from fedweave.core.tree import Tree, is_statistic
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse

# ----------------------------------------------------------------------------------------------------
# A model of single edges on a graph whose messages are too many to fit into memory at once. It runs
# piece by piece, by the nodes that messages reach, and by the examples where these are edges. Without gradients.


MANY = 1 << 21  # edges of a client that are taken piece by piece
AT_ONCE = 1 << 20  # messages, or examples, of a piece


def is_large(graph: Graph) -> bool:
    """Whether a single client's graph has more than `MANY` edges with attributes."""
    members = graph.edges.members if isinstance(graph.edges, Edges) else ()
    return len(members) == 1 and members[0].edge_attrs is not None and members[0].edge_attrs.total > MANY


class PiecewiseLayer(Protocol):
    """The interface of a layer (`core.model.Layer`); between layers there may be a tree, at the ends there is none."""

    @property
    def operator(self) -> str | None:
        """See `core.model.Layer`."""

    @property
    def along(self) -> tuple[str, ...]:
        """See `core.model.Layer`."""

    @property
    def apply(self) -> Callable[[Tree, Graph, object, None], Tensor]:
        """See `core.model.Layer`."""


def apply_piecewise(model: Sequence[PiecewiseLayer], w: Tree, graph: Graph) -> Tensor | Sparse:
    """`core.model.apply` on a whole graph, without dropout."""
    h = graph.x
    for i, layer in enumerate(model):
        if layer.operator in OF_EXAMPLES:
            return _of_examples(model, w, graph, h, i)
        weights, single = w.get(str(i), {}), carrying.kinds().get(str(layer.operator), ("", ""))[0] == "sum"
        h = (
            _of_nodes(layer, weights, graph, h)
            if single and isinstance(h, Tensor)
            else layer.apply(weights, graph, h, None)
        )
    return h


def _of_nodes(layer: PiecewiseLayer, w: Tree, graph: Graph, h: Tensor) -> Tensor:
    """The layer's rows of all nodes, piece by piece; the rows of a piece come first in the layer's input."""
    tables = {way: graph.own_edges.incoming(way) for way in layer.along}
    before = torch.stack([table.first for table in tables.values()]).sum(0)  # messages that reach earlier nodes
    features, outputs, first = graph.own_edges.of_edges().features, [], 0
    while first < len(h):
        last = max(first + 1, int(torch.searchsorted(before, int(before[first]) + AT_ONCE)))
        ways = {way: _reached(table, features.to(h.dtype), first, last) for way, table in tables.items()}
        around = graph._replace(edges=Piece(ways))
        outputs.append(layer.apply(w, around, torch.cat([h[first:last], h]), None))
        first = last
    return torch.cat(outputs)


def _reached(table: Incoming, features: Tensor, first: int, last: int) -> "Reached":
    degree = table.degree[first:last]
    at = int(table.first[first])
    whole = slice(at, at + int(degree.sum()))
    target = torch.repeat_interleave(torch.arange(last - first, device=degree.device), degree)
    source, edge = table.source[whole].long() + (last - first), table.edge[whole].long()
    return Reached(source, target, features.index_select(0, edge), degree)


def _of_examples(model: Sequence[PiecewiseLayer], w: Tree, graph: Graph, h: Tensor | Sparse, read: int) -> Tensor:
    """The logits of edges as examples from nodes' rows h, by the layers from `read` on, which reads both ends."""
    tables, count, outputs = graph.own_edges.of_edges(examples=True), len(graph.y), list[Tensor]()
    for first in range(0, count, AT_ONCE):
        at = torch.arange(first, min(first + AT_ONCE, count), device=h.device).clamp(max=len(tables.ends) - 1)
        source, target = tables.ends.index_select(0, at).unbind(1)
        features = DenseMatrix(tables.features.index_select(0, at))
        around = graph._replace(
            edges=PrecomputedEdges({SOURCE: RowSelection(source), TARGET: RowSelection(target), OWN: features})
        )
        out = model[read].apply(w.get(str(read), {}), around, h, None)
        for i, layer in enumerate(model[read + 1 :], read + 1):
            out = layer.apply(w.get(str(i), {}), around, out, None)
        outputs.append(out)
    return torch.cat(outputs)


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
    """Edges that lead only to the first m of n nodes (a `core.operators.MessagePassing`)."""

    shrinks = True

    @abstractmethod
    def operator(self, kind: str) -> Operator:
        """The matrix of that name."""

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """See `core.operators.MessagePassing`, for any matrix that `operator` knows."""
        means = self.operator(kind)
        return h[: means.shape[0]], means @ h


@dataclass(frozen=True)
class PrecomputedEdges(Some):
    """Edges with some precomputed matrices, by name (a `core.operators.MessagePassing`)."""

    operators: Mapping[str, Operator]

    def operator(self, kind: str) -> Operator:
        """The matrix of that name.

        Raises:
            ValueError: there is none; lists the names.
        """
        if kind not in self.operators:
            raise ValueError(f"there is no operator {kind!r} here, only {', '.join(self.operators)}")
        return self.operators[kind]


@dataclass(frozen=True)
class Piece(Some):
    """The edges of a piece, a `Reached` for each way: the rows of `core.edge_attributes.EdgeMessages.matrix` for a few
    targets."""

    operators: Mapping[str, Reached]

    def operator(self, kind: str) -> Operator:
        """The matrix of a name of `core.edge_attributes.named`."""
        what, way = carrying.kinds()[kind]
        table = self.operators[way]
        degree = table.degree.to(table.features.dtype)
        if what == "scalers":
            return DenseMatrix(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        if what == "features":
            return DenseMatrix(table.features)
        if what in ("from", "to"):
            return RowSelection(table.source if what == "from" else table.target)
        share = 1 / degree.clamp(min=1) if what != "sum" else torch.ones_like(degree)
        into = ScatterSum(table.target, share)
        return DenseMatrix(into @ table.features) if what == "feature_means" else into


@dataclass(frozen=True)
class DenseMatrix:
    """A dense matrix [m, n], by its rows."""

    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return tuple(self.rows.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return linear(self.rows.to(dense.dtype), dense)


@dataclass(frozen=True)
class RowSelection:
    """[m, n] with a single 1 in each row, at the columns int64 [m]."""

    columns: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(m,)."""
        return tuple(self.columns.shape)

    def __matmul__(self, h: Tensor) -> Tensor:
        return h.index_select(0, self.columns)


@dataclass(frozen=True)
class ScatterSum:
    """[t, m]: adds up the messages that reach each of t targets, int64 [m], times the target's share [t]."""

    target: Tensor
    share: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(t,)."""
        return tuple(self.share.shape)

    def __matmul__(self, sent: Tensor) -> Tensor:
        whole = torch.index_add(sent.new_zeros(self.share.shape[0], sent.shape[1]), 0, self.target, sent)
        return whole * self.share[:, None]

    def largest(self, sent: Tensor) -> Tensor:
        """`ops.attention.largest` of the messages [m, k]: [t, k]."""
        least = sent.new_full((self.share.shape[0], sent.shape[1]), -torch.inf)
        top = least.scatter_reduce(0, self.target[:, None].expand(-1, sent.shape[1]), sent, "amax")
        return torch.where(top == -torch.inf, 0.0, top)


PAIRS = "pairs"  # `Layer.operator` of a decoder, which reads the rows of both ends of `Graph.pairs`
Reads = Literal["product", "entries", "graph"]


class TrialForm(NamedTuple):
    """The form of the data that a layer is tried on: columns of features, outputs for each example, columns of edge
    features, whether edges have a weight, and the dtype of weights and features."""

    features: int
    outputs: int
    edge_features: int
    weighted: bool
    dtype: torch.dtype


Hidden: TypeAlias = Any  # what layers hand on: rows, the graph's sparse features, or a tree (see `Layer`)


class Layer(NamedTuple):
    """One layer.

    init:        (key) -> weights of this layer, a flat dict of tensors; {} if it has none.
    apply:       (weights, graph, h, key) -> h, with h [n, in] (dense, or the graph's sparse features in the first
                 layer) and the result [n, out]. `key` is None in evaluation: no dropout. Between layers h may be a
                 tree: "h", and anything else that later layers of the model read, with rows for the same nodes in the
                 same order; if message passing returns fewer rows of "h", the others may still have all rows.
    by_feature:  names of the weights [in, ...] whose row j multiplies only column j of the layer's input, in
                 `h @ weight`.
    by_relation: names of the weights [R, ...] whose row r only links of relation r read.
    norms:       names of the weights of normalization, running statistics included.
    compares:    whether it compares all nodes, as graph and batch norm do, so that samples of them will not do.
    operator:    the matrix of message passing or pooling that the layer multiplies by (see `Edges.operator`); None if
                 it has none.
    runs_alone:  whether it can run for one client at a time only, not under `torch.func.vmap`.
    reads:       its input from a graph: the "product" of rows with `operator`; the "entries" of `operator` one by one,
                 for attention; or the "graph" with all its edges, for a user's module, also if it has an `operator`.
    plain:       (weights) -> the weights in evaluation, where the layer is derived from another one.
    along:       the ways (`core.edge_attributes.WAYS`) in which it passes messages along single edges; () if it does
                 not.
    collects:    whether it adds its output to the tree that later layers get, in addition to the last output.
    infer:       (model, weights, graph) -> logits [e, c], for a model that no pass over a whole graph can evaluate.
    trial:       (form) -> notes, for a user's module: runs it on tiny graphs of that form, and raises ConfigError if it
                 cannot be trained on them.
    behind:      (weights, graph, h) -> float64 [e, 2] of a decoder, the candidates that are above each link
                 (`core.candidates.behind`).
    """

    init: Callable[[Tensor], Tree]
    apply: Callable[[Tree, Graph, Hidden, Tensor | None], Hidden]
    by_feature: tuple[str, ...] = ()
    operator: str | None = None
    runs_alone: bool = False
    reads: Reads = "product"
    plain: Callable[[Tree], Tree] = dict
    along: tuple[str, ...] = ()
    collects: bool = False
    infer: "Callable[[Model, Tree, Graph], Tensor] | None" = None
    by_relation: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    compares: bool = False
    behind: "Callable[[Tree, Graph, Tensor], Tensor] | None" = None
    trial: Callable[[TrialForm], list[str]] | None = None

    def __repr__(self) -> str:
        return f"Layer({self.operator or 'no edges'})"


Model = tuple[Layer, ...]


class Architecture(Protocol):
    """A plug-in of [model]: a frozen dataclass whose fields are its settings."""

    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""


def init(model: Model, key: Tensor, dtype: object = None) -> Tree:
    """Fresh weights {"0": layer 0's, "1": ...}, contiguous, as training lays them end to end; layers without weights
    are left out."""
    weights = {str(i): layer.init(random.fold(key, "layer", i)) for i, layer in enumerate(model)}
    return {i: {k: v.to(dtype or v.dtype).contiguous() for k, v in w.items()} for i, w in weights.items() if w}


def apply(
    model: Model,
    w: Tree,
    graph: Graph,
    key: Tensor | None = None,
    h: Hidden = None,
    first: int = 0,
) -> Hidden:
    """Run the layers on `graph` from `h` [n, in] (the features if None) to [n, out], or to [e, out] through a layer
    that pools; `key` switches dropout on. For a slice of a model, input and output may be trees (see `Layer`).

    first: for a slice of a model, the number of its first layer in the whole model, and in `w`.
    """
    out: Hidden = graph.x if h is None else h
    for i, layer in enumerate(model, first):
        out = layer.apply(w.get(str(i), {}), graph, out, None if key is None else random.fold(key, "layer", i))
    return out


def infer(model: Model, w: Tree, graph: Graph) -> Tensor:
    """`infer_as_seen` of all examples, [e, c]. Where messages depend on the split (`Graph.timed`), each example gets
    only the messages of its split; an example in no split gets all messages."""
    if not graph.timed:
        return infer_as_seen(model, w, graph)
    first, second, last = (infer_as_seen(model, w, graph.at(split)) for split in (TRAIN, VAL, TEST))
    train, val, _ = graph.masks
    if graph.ranks is not None:  # a candidate gets the same messages as its link
        query = graph.ranks[QUERY]
        val = torch.where(query < 0, val, val.gather(0, query.clamp(min=0) // 2))
    return torch.where(train[:, None], first, torch.where(val[:, None], second, last))


def infer_as_seen(model: Model, w: Tree, graph: Graph) -> Tensor:
    """`apply` without dropout to all examples, [e, c], with the messages of the graph's split (`Graph.at`)."""
    whole = apply_piecewise if is_large(graph) else apply
    infer_all = next((layer.infer for layer in model if layer.infer is not None), whole)
    return rows_of(infer_all(model, w, graph))


def behind(model: Model, w: Tree, graph: Graph) -> Tensor | None:
    """The number of candidates above each link in its queries, float64 [e, 2], where all nodes are candidates; None
    where candidates are pairs of the graph, or the data has no queries."""
    count = model[-1].behind
    if QUERIES not in graph.extra or count is None:
        return None

    def seen(graph: Graph) -> Tensor:
        h = apply_piecewise(model[:-1], w, graph) if is_large(graph) else apply(model[:-1], w, graph)
        return count(w.get(str(len(model) - 1), {}), graph, rows_of(h))

    if not graph.timed:
        return seen(graph)
    return torch.where(graph.masks[VAL][:, None], seen(graph.at(VAL)), seen(graph.at(TEST)))


def embeddings(model: Model, w: Tree, graph: Graph, key: Tensor | None = None) -> tuple[Hidden, ...]:
    """The output of every layer in `apply`; the last one is the model's output."""
    out: list[Hidden] = [graph.x]
    for i in range(len(model)):
        out.append(apply(model[i : i + 1], w, graph, key, out[-1], first=i))
    return tuple(out[1:])


def rows_of(out: Hidden) -> Tensor:
    """A layer's rows [n, d], also from a layer that returns a tree (see `Layer`)."""
    rows: Tensor = out["h"] if isinstance(out, dict) else out
    return rows


def embedded(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The embeddings that the last layer gets, without dropout: [n, d], or [e, d] of small graphs."""
    return rows_of(apply(model[:-1], w, graph))


def check_embeds(model: Model, who: str) -> None:
    """Reject a model without embeddings, the input of a last layer.

    Raises:
        ValueError: the model has one layer; names `who` needs embeddings.
    """
    if len(model) < 2:
        raise ValueError(
            f"{who} compares embeddings, what the last layer is computed from; take a model of two layers, or "
            "give your module a method embed, which its forward calls"
        )


def needs_graph(model: Model) -> bool:
    """Whether a layer may read the client's whole graph, so that it passes messages, and a mini-batch will not do."""
    return any(layer.reads == "graph" or layer.compares for layer in model)


def pools(model: Model) -> bool:
    """Whether the model gives one row per small graph instead of one per node."""
    return any(layer.operator in POOLS for layer in model)


def example(model: Model) -> str:
    """What each row of the model's output stands for: "node", "graph", "edge" or "link"."""
    if any(layer.operator == PAIRS for layer in model):
        return "link"
    if any(layer.operator in OF_EXAMPLES for layer in model):
        return "edge"
    return "graph" if pools(model) else "node"


def named(model: Model, path: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern names the weight at `path`. "0/*" names the first layer's, "-1/*" the last layer's, and
    "norm/*" the weights of normalization in all layers."""
    layer, _, name = path.partition("/")
    names = [path, f"{int(layer) - len(model)}/{name}"]
    names += [f"norm/{name}"] if name in model[int(layer)].norms else []
    return any(fnmatchcase(candidate, pattern) for pattern in patterns for candidate in names)


def statistics(model: Model) -> tuple[str, ...]:
    """Paths of the model's running statistics (`core.tree.is_statistic`)."""
    return tuple(f"{i}/{name}" for i, layer in enumerate(model) for name in layer.norms if is_statistic(name))


def fan_in(layer: Layer) -> int:
    """The number of input columns that a layer with `Layer.by_feature` multiplies by weights."""
    return int(layer.init(torch.tensor(0, device="cpu"))[layer.by_feature[0]].shape[0])


def feature_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by input features: the first layer's `by_feature`."""
    return frozenset(f"0/{name}" for name in model[0].by_feature)


def relation_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by relations (`Layer.by_relation`)."""
    return frozenset(f"{i}/{name}" for i, layer in enumerate(model) for name in layer.by_relation)
