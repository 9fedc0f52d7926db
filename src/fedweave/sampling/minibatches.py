"""Mini-batches of nodes, or of edges, with sampled neighbourhoods (Hamilton et al. 2017, "Inductive Representation
Learning on Large Graphs", algorithm 2), drawn for all steps of a local training at once.

Every node of a list has places of its own for its neighbours, so that all lists have one length, whatever is drawn; a
node that is reached twice stands there twice (`sampling.neighbourhoods` names each once).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.carried import OF_EXAMPLES, OWN, SOURCE, TARGET
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import MessagePassing
from fedweave.core.piecewise import Dense, Known
from fedweave.core.ranges import check_least
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, ClassLoss
from fedweave.ops.sparse import picked
from fedweave.sampling import messages
from fedweave.sampling.messages import EGO_IDS, SampledMessages, Slice
from fedweave.sampling.neighbourhoods import Sampled, neighbours

NO_HOP = (None, EGO_IDS, *OF_EXAMPLES)  # operators for which nobody's neighbours are drawn
MANY = 1 << 22  # examples of which each step's are drawn by themselves
MOST = 1 << 17  # places from which a list that would be longer than all nodes are has each node once instead


def drawn(member: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`size` different nodes of `member` bool [n] for each key, [] or [steps, 1]: int64 [..., size], and bool
    [..., size] which of them are real (fewer members leave places empty, which are node 0)."""
    enough = torch.cat([member, member.new_zeros(max(0, size - len(member)))])
    chosen = torch.topk(random.order(key, enough), size, largest=False).indices
    real = (torch.arange(size, device=member.device) < member.sum()).expand(chosen.shape)
    return torch.where(real, chosen, 0), real


def grown(
    graph: Graph, targets: Tensor, keys: Tensor, layers: Mapping[int, Layer], fan_out: int, capped: bool = False
) -> tuple[Tensor, dict[str, Tree]]:
    """Up to `fan_out` different neighbours of each of `targets` int64 [steps, t] for the first of `layers`, which come
    in falling order, by number; for the next, neighbours of all these nodes; and so on; keys: int64 [steps].

    Where places of one's own would be more than `MOST` and than all nodes, the list goes on with each node once, and no
    lower layer makes it longer. capped: whether it may.

    Returns the lowest layer's sources int64 [steps, s], which the targets lead, and the hops by layer: "count" and
    "gcn" as `neighbourhoods.grow` has them, [steps, …], and "place" where nodes stand once; or what `messages.reached`
    has of single edges. `edges_of` makes one step's of it.
    """
    hops, whole = {}, None  # where all nodes begin in the list
    for i, layer in layers.items():
        own = random.fold(keys, "sample", i)
        if layer.along:
            more, hops[str(i)] = messages.reached(graph, layer, targets, own, fan_out)
        else:
            chosen, hops[str(i)] = _joined(graph, targets, own, fan_out)
            more = [chosen.flatten(1)]
            if capped and (whole is not None or is_too_long(targets.shape[1], fan_out, graph.nodes)):
                everyone = torch.arange(graph.nodes, device=targets.device).expand(len(targets), -1)
                more, whole = ([everyone], targets.shape[1]) if whole is None else ([], whole)
                hops[str(i)] |= {"place": chosen + whole}
        targets = torch.cat([targets, *more], 1)
    return targets, hops


def is_too_long(targets: int, fan_out: int, nodes: int) -> bool:
    """Whether targets with places of their own for their neighbours are more than `MOST`, and than with all nodes."""
    return targets * (1 + fan_out) > max(MOST, targets + nodes)


def _joined(graph: Graph, targets: Tensor, keys: Tensor, fan_out: int) -> tuple[Tensor, Tree]:
    """The neighbours of `targets` for one layer, int64 [steps, t, f], and its hop."""
    first, degree, columns = (table.expand(len(targets), -1) for table in graph.own_edges.neighbours)
    chosen, count = neighbours(first, degree, columns, targets, keys, fan_out)
    looped = (degree + 1).to(torch.float64)
    own = looped.gather(1, targets)[..., None]
    other = looped.gather(1, chosen.flatten(1)).view(chosen.shape)
    gcn = torch.cat([1 / own, count / torch.sqrt(own * other)], 2)
    return chosen, {"count": count.to(graph.x.dtype), "gcn": gcn.to(graph.x.dtype)}


def edges_of(layer: Layer, of_step: Tree) -> MessagePassing:
    """One layer's edges in one step: the f neighbours of the i-th of t targets stand at t + i f, … unless the hop says
    where."""
    if layer.along:
        return SampledMessages(of_step)
    if layer.operator in OF_EXAMPLES:
        features, b = Dense(of_step["features"]), len(of_step["features"])
        return Known({SOURCE: Slice(0, b), TARGET: Slice(b, b), OWN: features})
    if layer.operator == EGO_IDS:
        return Known({EGO_IDS: Dense(of_step["ids"])})
    if "place" in of_step:
        return Sampled(of_step)
    t, fan_out = of_step["count"].shape
    place = t + torch.arange(t * fan_out, device=of_step["count"].device)
    return Sampled(of_step | {"place": place.view(t, fan_out)})


@dataclass(frozen=True)
class Minibatches:
    """Mini-batches of `batch` training examples, nodes or edges, of which every layer that passes messages sees up to
    `fan_out` sampled neighbours a node, or messages of each way."""

    batch: int = 32
    fan_out: int = 5

    def __post_init__(self) -> None:
        check_least(1, batch=self.batch, fan_out=self.fan_out)

    def layers(self, model: Model) -> dict[int, Layer]:
        """The layers that pass messages by their numbers, from the last to the first.

        Raises:
            ValueError: the model needs the whole graph, or a matrix of it of which samples give no estimate, or its
                examples are small graphs.
        """
        if models.needs_graph(model):
            raise ValueError(
                "h2gcn and a torch.nn.Module cannot read sampled neighbours; choose model sage, gcn, gat, gine or pna"
            )
        if models.pools(model):
            raise ValueError(
                "neighbours are sampled around nodes or edges, and the examples are small graphs; take the part "
                "graph_cross_entropy, which draws these"
            )
        layers = {i: layer for i, layer in reversed([*enumerate(model)]) if layer.operator not in NO_HOP}
        if odd := [own.operator for own in layers.values() if not own.along and own.operator not in Sampled.KINDS]:
            raise ValueError(
                f"sampled neighbours give no {odd[0]!r}, which the model multiplies by; choose model sage, gcn, gat, "
                "gine or pna"
            )
        return layers

    def batches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """For `fit(…, batches=…)`, all leaves [steps, …]: the "target" class and "weight" (0 or 1) of b examples, the
        "nodes" of the lowest layer, and the "hops"."""
        keys = random.fold(key, torch.arange(steps, device=key.device))
        chosen, real = self._chosen(graph, random.fold(keys, "centres"))
        target = graph.y.gather(0, chosen.reshape(-1)).view(chosen.shape).clamp(min=0)
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
        """`drawn` of the training examples; of many, step by step, so that memory does not grow with both."""
        train = graph.masks[TRAIN]
        if train.shape[-1] < MANY:
            return drawn(train, keys[:, None], self.batch)
        chosen, real = zip(*(drawn(train, own, self.batch) for own in keys.unbind()), strict=True)
        return torch.stack(chosen), torch.stack(real)

    def _of_edges(self, model: Model, graph: Graph, chosen: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tree]]:
        """The nodes where edges int64 [steps, b] start and where they end, and the hop of the layer that reads both."""
        own = graph.own_edges.of_edges(examples=True)
        at = chosen.flatten().clamp(max=len(own.ends) - 1)  # others are padding
        ends = tuple(end.index_select(0, at).view(chosen.shape) for end in own.ends.unbind(1))
        features = own.features.index_select(0, at).view(*chosen.shape, -1).to(graph.x.dtype)
        read = next(i for i, layer in enumerate(model) if layer.operator in OF_EXAMPLES)
        return ends, {str(read): {"features": features}}

    def logits(self, w: Tree, model: Model, graph: Graph, key: Tensor | None, minibatch: Tree) -> Tensor:
        """The model's outputs for the examples of one mini-batch, [b, c]; with dropout given a key."""
        h: Hidden = picked(graph.x, minibatch["nodes"])
        hops = minibatch.get("hops", {})  # trees lose what is empty, as of a model that passes no messages
        for i, layer in enumerate(model):
            hop = hops.get(str(i))
            around = graph if hop is None else graph._replace(edges=edges_of(layer, hop))
            h = layer.apply(w.get(str(i), {}), around, h, None if key is None else random.fold(key, "layer", i))
        return models.rows_of(h)

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree, how: ClassLoss = PLAIN) -> Tensor:
        """Mean cross-entropy of one mini-batch, scalar; 0 at a client without training examples."""
        logits = self.logits(w, model, graph, key, minibatch)
        return how.of(logits, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])


def bytes_of(model: Model, sampler: Minibatches, nodes: int, steps: int) -> float:
    """About how much memory the lists of a client's `steps` take, which are drawn at once: what `grown` makes of a
    graph of so many nodes."""
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
    """How many places the neighbourhood of one example has at the lowest layer."""
    layers = sampler.layers(model).values()
    own = 2 if models.example(model) == "edge" else 1
    return own * math.prod(1 + sampler.fan_out * max(1, len(layer.along)) for layer in layers)


def _ids(nodes: Tensor, ends: tuple[Tensor, ...], layers: Mapping[int, Layer], fan_out: int) -> Tensor:
    """bool [steps, s, 1]: whether each of `nodes` [steps, s] is the example, or one of its `ends` [steps, b], in whose
    neighbourhood it stands in `grown`."""
    example = torch.arange(ends[0].shape[1], device=nodes.device).repeat(len(ends))
    for layer in layers.values():
        reached = example.repeat_interleave(fan_out).repeat(max(1, len(layer.along)))
        example = torch.cat([example, reached])
    own = [nodes == end.index_select(1, example) for end in ends]
    return torch.stack(own).any(0)[..., None]
