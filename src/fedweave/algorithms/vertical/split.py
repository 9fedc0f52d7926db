"""A backbone divided into segments between aggregated layers (Zhang et al. 2023, GLASU, sections 3.1 and 3.2).

The mini-batch and the exchanged lists of nodes are the same at all clients; each client samples neighbors below them.
`now` is the state that `party` keeps during a round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, Criterion
from fedweave.ops.linear import linear
from fedweave.ops.sparse import pick_rows
from fedweave.sampling.neighborhoods import Sampled, grow, self_hop


@dataclass(frozen=True)
class Split:
    """Segments 0, …, K of a model, each computed by a client on its own between two exchanges; the last, K, is the
    prediction, which may have no layers.

    cuts:    numbers of the model's layers after which the server aggregates, rising.
    wider:   whether an aggregate has M blocks of columns.
    fan_out: neighbors sampled per node and layer.
    linked:  False leaves out all edges: A = I.
    """

    model: Model
    cuts: tuple[int, ...]
    wider: bool
    fan_out: int
    linked: bool

    @property
    def last(self) -> int:
        """K."""
        return len(self.cuts)

    @property
    def predicts_per_node(self) -> bool:
        """Whether the prediction sees each node's aggregate separately, so that clients without labels can train by the
        gradient with respect to it (appendix B.2: "we require that server aggregation is performed on the last
        layer")."""
        return bool(self.cuts) and not self.hops(self.last)

    def layers(self, segment: int) -> range:
        """The numbers of a segment's layers."""
        ends = (-1, *self.cuts, len(self.model) - 1)
        return range(ends[segment] + 1, ends[segment + 1] + 1)

    def hops(self, segment: int) -> list[int]:
        """The numbers of a segment's layers that pass messages, from the last to the first."""
        return [i for i in reversed(self.layers(segment)) if self.linked and self.model[i].operator is not None]

    def segment_weights(self, w: Tree, segment: int) -> Tree:
        return {str(i): w[str(i)] for i in self.layers(segment) if str(i) in w}

    def init(self, key: Tensor, shared: Tensor, clients: int, dtype: torch.dtype) -> Tree:
        """A client's weights. The prediction's weights come from `shared`, the same at all clients: "this layer is the
        same among clients because they receive the same H[L]" (section 3.1)."""
        wide = list(self.model)
        if self.wider and clients > 1:
            for cut in self.cuts:
                if cut + 1 < len(wide):
                    wide[cut + 1] = _widen(wide[cut + 1], clients)
        tail = self.segment_weights(models.init(tuple(wide), shared, dtype), self.last) if self.cuts else {}
        return models.init(tuple(wide), key, dtype) | tail

    def sample(
        self, graph: Graph, segments: Iterable[int], targets: Tensor, key: Tensor, filled: Tensor | None = None
    ) -> Tree:
        """The inputs of consecutive segments, the last one first, for outputs `targets` int64 [t]; only the first
        `filled` targets count (None: all). {"nodes": int64 [s], beginning with the targets, "filled": their number,
        "hops": of the layers} (see `sampling.neighborhoods.grow`)."""
        layers = list[int]()
        for segment in segments:
            layers += self.hops(segment)
        filled = self.count(targets) if filled is None else filled
        nodes, filled, hops = grow(graph, targets, filled, key, layers, self.fan_out)
        return {"nodes": nodes, "filled": filled, "hops": hops}

    @staticmethod
    def count(targets: Tensor) -> Tensor:
        """The number of `targets`, int64 scalar."""
        return torch.full((), len(targets), dtype=torch.int64, device=targets.device)

    def outputs(self, segment: int, below: Tree) -> Tensor:
        """The nodes that a segment has outputs for, among the sampled "nodes" `below` (`sample`)."""
        last = next(iter(self.hops(segment)), None)
        result: Tensor = below["nodes"] if last is None else below["nodes"][: len(below["hops"][str(last)]["gcn"])]
        return result

    def first(self, graph: Graph, nodes: Tensor | None) -> Hidden:
        """The features of `nodes`, the model's input; None for all nodes."""
        return graph.x if nodes is None else pick_rows(graph.x, nodes)

    def run(
        self,
        segment: int,
        w: Tree,
        graph: Graph,
        h: Hidden,
        hops: Tree | None = None,
        first_outputs: Tree | None = None,
        key: Tensor | None = None,
    ) -> tuple[Tensor, Tree]:
        """A segment's output for its input `h` [s, in], and further outputs of its layers (see `core.model.Layer`), {}
        if none.

        hops: from `sample`; None takes the whole graph. first_outputs: further outputs of the first segment, whose
        first rows belong to the nodes of `h`. They do not leave the client, so later layers must not change them.
        """
        hidden: Hidden = {"h": h, **first_outputs} if first_outputs else h
        for i in self.layers(segment):
            layer, weights = self.model[i], w.get(str(i), {})
            h = hidden["h"] if isinstance(hidden, dict) else hidden
            around = graph
            if layer.operator is not None:
                rows = torch.arange(h.shape[0], device=h.device)
                hop = (hops or {}).get(str(i)) if self.linked else self_hop(rows, graph.x.dtype)
                around = graph if hop is None else graph._replace(edges=Sampled(hop))
            if "merge" in weights:
                merged = linear(h, weights["merge"])
                hidden = hidden | {"h": merged} if isinstance(hidden, dict) else merged
            hidden = layer.apply(weights, around, hidden, None if key is None else random.fold(key, "layer", i))
        if not isinstance(hidden, dict):
            return hidden, {}
        return hidden["h"], {name: rows for name, rows in hidden.items() if name != "h"}


def _widen(layer: Layer, clients: int) -> Layer:
    """`layer` for an input with `clients` times the columns.

    Its weights by column grow. A layer without such weights (GCNII's convolution adds a representation of its own
    width) gets a linear map, "merge", before it, back to its width, which starts as the mean.
    """

    def init(key: Tensor) -> Tree:
        w = layer.init(key)
        if layer.by_feature:
            blocks = [w] + [layer.init(random.fold(key, "block", i)) for i in range(1, clients)]
            for name in layer.by_feature:
                w = w | {name: torch.cat([block[name] for block in blocks])}
            return w
        identity = torch.eye(w["weight"].shape[0], device=key.device)
        return w | {"merge": identity.repeat(clients, 1) / clients}

    return layer._replace(init=init)


def cuts(model: Model, exchanges: int, at: Sequence[int] = ()) -> tuple[int, ...]:
    """The numbers of the model's layers after which the server aggregates: the layers `at` 1, …, L among the layers
    that pass messages or, evenly, ⌈k L / K⌉ for k = 1, …, K (section 5.3; K = 2 is the middle and the last)."""
    if models.needs_graph(model):
        raise ValueError(
            "parties train on mini-batches, which h2gcn and a torch.nn.Module cannot read; choose model gcnii, without "
            "graph or batch norm, which compare all nodes"
        )
    passing = [i for i, layer in enumerate(model) if layer.operator is not None]
    count = len(passing)
    if exchanges > count and not at:
        raise ValueError(
            f"exchanges is {exchanges}, but only {count} of the model's layers pass messages; set 0 to {count}"
        )
    chosen = tuple(at) or tuple(-(-k * count // exchanges) for k in range(1, exchanges + 1))
    if any(a >= b for a, b in zip((0, *chosen), (*chosen, count + 1), strict=True)):
        raise ValueError(f"at is {list(chosen)}; it must rise within 1, …, {count}, the layers that pass messages")
    layers = tuple(passing[number - 1] for number in chosen)
    if layers and any(layer.collects for layer in model[layers[0] + 1 :]):
        raise ValueError(
            "parties keep the outputs of the layers before the first exchange, but this model (gprgnn, or one with "
            "model.jump) also collects the outputs of later ones; set exchanges = 1, which is after the last of them, "
            "or choose model gcnii"
        )
    return layers


def draw(graph: Graph, key: Tensor, size: int) -> Tree:
    """{"minibatch": int64 [b], `size` train nodes, "real": bool [b], because there may be fewer}; {} if `size` is 0."""
    if not size:
        return {}
    train, size = graph.masks[TRAIN], min(size, len(graph.y))
    chosen = torch.topk(random.order(key, train), size, largest=False).indices
    real = torch.arange(size, device=train.device) < train.sum()
    return {"minibatch": torch.where(real, chosen, chosen[:1]), "real": real}


def exchanged_nodes(now: Tree, cut: int) -> Tensor:
    """The list of nodes exchanged at a cut, int64 [b]: the next one in "nodes" at or after it, or the mini-batch after
    the last."""
    later = sorted(int(at) for at in now.get("nodes", {}) if int(at) >= cut)
    result: Tensor = now["nodes"][str(later[0])] if later else now["minibatch"]
    return result


def sample_below(split: Split, graph: Graph, now: Tree, segment: int) -> Tree:
    """The sample of `Split.sample` for the exchanged list above a segment. The list's length changes every time, so it
    is padded to few different lengths."""
    targets = exchanged_nodes(now, segment + 1)
    if targets is now["minibatch"]:
        return split.sample(graph, [segment], targets, now["key"])
    missing = graph.whole_edges.cache.padded_size(segment, len(targets)) - len(targets)
    padded = torch.cat([targets, targets[:1].expand(missing)])
    return split.sample(graph, [segment], padded, now["key"], split.count(targets))


def labeled_nodes(graph: Graph) -> Tensor:
    """bool [n]: the train nodes whose label the client has."""
    return graph.masks[TRAIN] & (graph.y >= 0)


def error(logits: Tensor, target: Tensor, graph: Graph, args: Tree, loss: Criterion = PLAIN) -> Tensor:
    """The loss against the labels `target` [n] over the labeled train nodes of the mini-batch, or of the whole graph;
    loss: how it weighs classes, with counts from these labels."""
    all_labels, labeled = target, labeled_nodes(graph)
    weight = labeled
    if "minibatch" in args:
        nodes = args["minibatch"]
        target, weight = target.gather(0, nodes), weight.gather(0, nodes) & args["real"]
    return loss.of(logits, target.clamp(min=0), weight.to(logits.dtype), all_labels, labeled)
