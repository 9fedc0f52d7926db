"""A model is a tuple of layers; splitting a model is slicing it."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.edge_attributes import OF_EXAMPLES
from fedweave.core.graph import QUERIES, QUERY, TEST, TRAIN, VAL, Graph
from fedweave.core.operators import POOLS
from fedweave.core.piecewise import apply_piecewise, is_large
from fedweave.core.tree import Tree, is_statistic

PAIRS = "pairs"  # `Layer.operator` of a decoder, which reads the rows of both ends of `Graph.pairs`
Reads = Literal["product", "messages", "entries", "graph"]


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
    reads:       its input from a graph: the "product" of rows with `operator`; sums of "messages" along single edges,
                 each made of the row where it starts and the edge's features; the "entries" of `operator` one by one,
                 for attention; or the "graph" with all its edges, for a user's module, also if it has an `operator`.
    plain:       (weights) -> the weights in evaluation, where the layer is derived from another one.
    along:       the ways (`core.edge_attributes.WAYS`) in which it passes messages along single edges; () if it does
                 not.
    collects:    whether it adds its output to the tree that later layers get, in addition to the last output.
    infer:       (model, weights, graph) -> logits [e, c], for a model that no pass over a whole graph can evaluate.
    trial:       (form) -> notes, for a user's module: runs it on tiny graphs of that form, and raises ConfigError if it
                 cannot be trained on them.
    count_above: (weights, graph, h) -> float64 [e, 2] of a decoder, the number of candidates above each link
                 (`core.candidates.count_above`).
    bounded:     whether a decoder's scores do not grow with the lengths of the rows that it reads.
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
    count_above: "Callable[[Tree, Graph, Tensor], Tensor] | None" = None
    trial: Callable[[TrialForm], list[str]] | None = None
    bounded: bool = False

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
    weights: Tree = {}
    for i, layer in enumerate(model):
        tensors = layer.init(random.fold(key, "layer", i))
        if tensors:
            weights[str(i)] = {name: t.to(dtype or t.dtype).contiguous() for name, t in tensors.items()}
    return weights


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
    """`infer_split` of all examples, [e, c]. Where messages depend on the split (`Graph.depends_on_split`), each
    example gets only the messages of its split; an example outside all splits gets all messages."""
    if not graph.depends_on_split:
        return infer_split(model, w, graph)
    by_split = [infer_split(model, w, graph.at(split)) for split in (TRAIN, VAL, TEST)]
    train, val, _ = graph.masks
    if graph.ranks is not None:  # a candidate gets the same messages as its link
        query = graph.ranks[QUERY]
        val = torch.where(query < 0, val, val.gather(0, query.clamp(min=0) // 2))
    return torch.where(train[:, None], by_split[TRAIN], torch.where(val[:, None], by_split[VAL], by_split[TEST]))


def infer_split(model: Model, w: Tree, graph: Graph) -> Tensor:
    """`apply` without dropout to all examples, [e, c], with the messages of the graph's split (`Graph.at`)."""
    whole = apply_piecewise if is_large(graph) else apply
    infer_all = next((layer.infer for layer in model if layer.infer is not None), whole)
    return rows_of(infer_all(model, w, graph))


def count_above(model: Model, w: Tree, graph: Graph) -> Tensor | None:
    """The number of candidates above each link in its queries, float64 [e, 2], where all nodes are candidates; None
    where candidates are pairs of the graph, or the data has no queries."""
    count = model[-1].count_above
    if QUERIES not in graph.extra or count is None:
        return None

    def count_in(graph: Graph) -> Tensor:
        h = apply_piecewise(model[:-1], w, graph) if is_large(graph) else apply(model[:-1], w, graph)
        return count(w.get(str(len(model) - 1), {}), graph, rows_of(h))

    if not graph.depends_on_split:
        return count_in(graph)
    return torch.where(graph.masks[VAL][:, None], count_in(graph.at(VAL)), count_in(graph.at(TEST)))


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


def matches(model: Model, path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the weight at `path`. "0/*" matches the first layer's, "-1/*" the last
    layer's, and "norm/*" the weights of normalization in all layers."""
    layer, _, name = path.partition("/")
    names = [path, f"{int(layer) - len(model)}/{name}"]
    if name in model[int(layer)].norms:
        names.append(f"norm/{name}")
    return any(fnmatchcase(candidate, pattern) for pattern, candidate in product(patterns, names))


def statistics(model: Model) -> tuple[str, ...]:
    """Paths of the model's running statistics (`core.tree.is_statistic`)."""
    paths = list[str]()
    for i, layer in enumerate(model):
        paths += [f"{i}/{name}" for name in layer.norms if is_statistic(name)]
    return tuple(paths)


def fan_in(layer: Layer) -> int:
    """The number of input columns that a layer with `Layer.by_feature` multiplies by weights."""
    return int(layer.init(torch.tensor(0, device="cpu"))[layer.by_feature[0]].shape[0])


def feature_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by input features: the first layer's `by_feature`."""
    return frozenset(f"0/{name}" for name in model[0].by_feature)


def relation_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by relations (`Layer.by_relation`)."""
    paths = set[str]()
    for i, layer in enumerate(model):
        paths.update(f"{i}/{name}" for name in layer.by_relation)
    return frozenset(paths)
