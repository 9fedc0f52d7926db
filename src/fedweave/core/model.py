"""A model is a tuple of layers; splitting a model is slicing it."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fedweave.core import piecewise, random
from fedweave.core.carried import OF_EXAMPLES
from fedweave.core.graph import TEST, TRAIN, VAL, Graph
from fedweave.core.operators import POOLS
from fedweave.core.tree import Tree

Reads = Literal["product", "entries", "graph"]
Hidden: TypeAlias = Any  # what layers hand on: rows, the graph's sparse features, or a tree (see `Layer`)


class Layer(NamedTuple):
    """One layer.

    init:        (key) -> weights of this layer, a flat dict of tensors; {} if it has none.
    apply:       (weights, graph, h, key) -> h, with h [n, in] (dense, or the graph's sparse features in the first
                 layer) and the result [n, out]. `key` is None in evaluation: no dropout. Between layers h may be a
                 tree: "h", and whatever else later layers of the model read, with rows for the same nodes in the same
                 order; if message passing returns fewer rows of "h", the others may still have all rows.
    by_feature:  names of the weights [in, ...] whose row j multiplies only column j of the layer's input, in
                 `h @ weight`.
    operator:    the matrix of message passing or pooling that the layer multiplies by (see `Edges.operator`); None if
                 it has none.
    runs_alone:  whether it can run for one client at a time only, not under `torch.func.vmap`.
    reads:       what it takes of a graph: the "product" of rows with `operator`, its "entries" one by one, as attention
                 does, or the "graph" with all its edges, as a module of one's own may, whatever its `operator` says.
    plain:       (weights) -> those of the layer that it is in evaluation, where it is made of another one.
    along:       the ways (`core.carried.WAYS`) in which it passes messages along single edges; () if it does not.
    collects:    whether it adds its own output to what later layers are handed beside the last one.
    judged:      (model, weights, graph) -> logits [e, c] of a model with it that no pass over a whole graph gives.
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
    judged: "Callable[[Model, Tree, Graph], Tensor] | None" = None


Model = tuple[Layer, ...]


class Architecture(Protocol):
    """A plug-in of [model]: a frozen dataclass whose fields are its settings."""

    def build(self, features: int, classes: int) -> Model:
        """The model from `features` columns to `classes` logits."""
        ...


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


def judged(model: Model, w: Tree, graph: Graph) -> Tensor:
    """`judged_as_seen` of all examples, [e, c], of which each gets messages of its own split alone where these differ
    (`Graph.timed`), and what is in no split all of them."""
    if not graph.timed:
        return judged_as_seen(model, w, graph)
    first, second, last = (judged_as_seen(model, w, graph.at(split)) for split in (TRAIN, VAL, TEST))
    train, val, _ = graph.masks
    return torch.where(train[:, None], first, torch.where(val[:, None], second, last))


def judged_as_seen(model: Model, w: Tree, graph: Graph) -> Tensor:
    """`apply` without dropout to all examples, [e, c], with messages of the split that the graph is of (`Graph.at`)."""
    whole = piecewise.apply if piecewise.is_large(graph) else apply
    judge = next((layer.judged for layer in model if layer.judged is not None), whole)
    return rows_of(judge(model, w, graph))


def embeddings(model: Model, w: Tree, graph: Graph, key: Tensor | None = None) -> tuple[Hidden, ...]:
    """What `apply` computes layer by layer: every layer's output, the last one's being the model's."""
    out: list[Hidden] = [graph.x]
    for i in range(len(model)):
        out.append(apply(model[i : i + 1], w, graph, key, out[-1], first=i))
    return tuple(out[1:])


def rows_of(out: Hidden) -> Tensor:
    """A layer's output [n, d], also of one that hands on more than that (see `Layer`)."""
    rows: Tensor = out["h"] if isinstance(out, dict) else out
    return rows


def embedded(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The embeddings that the last layer gets, without dropout: [n, d], or [e, d] of small graphs."""
    return rows_of(apply(model[:-1], w, graph))


def check_embeds(model: Model, who: str) -> None:
    """Refuse a model without embeddings, the input of a last layer.

    Raises:
        ValueError: it has one layer; names `who` needs them.
    """
    if len(model) < 2:
        raise ValueError(f"{who} compares embeddings, what the last layer is computed from; take a model of two layers")


def needs_graph(model: Model) -> bool:
    """Whether a layer may read the client's whole graph, so that it passes messages, and a mini-batch will not do."""
    return any(layer.reads == "graph" for layer in model)


def pools(model: Model) -> bool:
    """Whether the model gives one row per small graph instead of one per node."""
    return any(layer.operator in POOLS for layer in model)


def example(model: Model) -> str:
    """Of what the model gives a row each: "node", "graph" or "edge"."""
    if any(layer.operator in OF_EXAMPLES for layer in model):
        return "edge"
    return "graph" if pools(model) else "node"


def named(model: Model, path: str, patterns: Iterable[str]) -> bool:
    """Whether one of some patterns names a weight, such as "0/*" the first layer's; layers may be counted from the
    last, -1, as well."""
    layer, _, name = path.partition("/")
    from_last = f"{int(layer) - len(model)}/{name}"
    return any(fnmatchcase(own, pattern) for pattern in patterns for own in (path, from_last))


def fan_in(layer: Layer) -> int:
    """How many columns of its input a layer multiplies by weights; it has such (`Layer.by_feature`)."""
    return int(layer.init(torch.tensor(0, device="cpu"))[layer.by_feature[0]].shape[0])


def feature_rows(model: Model) -> frozenset[str]:
    """Paths of the weights whose rows are indexed by input features: the first layer's `by_feature`."""
    return frozenset(f"0/{name}" for name in model[0].by_feature)
