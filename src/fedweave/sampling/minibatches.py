"""Mini-batches of nodes, or of edges, with sampled neighborhoods (Hamilton et al. 2017, "Inductive Representation
Learning on Large Graphs", algorithm 2), drawn for all steps of a local training at once.

Every node of a list has its own places for its neighbors, so that all lists have one length for any sample. A node that
is reached twice is in the list twice (the lists of `neighborhoods.grow` have each node once).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, EXAMPLE_SOURCE, EXAMPLE_TARGET, OF_EXAMPLES
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.operators import MessagePassing
from fedweave.core.tensor_operators import DenseMatrix, PrecomputedEdges
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, Criterion
from fedweave.ops.sparse import pick_rows
from fedweave.sampling.messages import SampledMessages, Slice, sample_messages
from fedweave.sampling.neighborhoods import Sampled, gcn_weights, neighbors

EGO_IDS = "ego_ids"  # [sources, 1]: 1 at the nodes around which a neighborhood was sampled
NO_HOP = (None, EGO_IDS, *OF_EXAMPLES)  # operators that need no sampled neighbors
STEPWISE = 1 << 22  # with this many examples each step draws separately
MAX_PLACES = 1 << 17  # a longer list, which would be longer than all nodes, has each node once instead


def draw_nodes(member: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`size` different nodes of `member` bool [n] for each key, [] or [steps, 1]: int64 [..., size], and bool
    [..., size] which of them are real (with fewer members, places stay empty and are node 0)."""
    padded = torch.cat([member, member.new_zeros(max(0, size - len(member)))])
    nodes = torch.topk(random.order(key, padded), size, largest=False).indices
    real = (torch.arange(size, device=member.device) < member.sum()).expand(nodes.shape)
    return torch.where(real, nodes, 0), real


def sample_layers(
    graph: Graph, targets: Tensor, keys: Tensor, layers: Mapping[int, Layer], fan_out: int, capped: bool = False
) -> tuple[Tensor, dict[str, Tree]]:
    """Sample up to `fan_out` different neighbors of each of `targets` int64 [steps, t], layer by layer.

    layers: by number, falling; the second layer samples neighbors of all nodes of the first layer, and so on. keys:
    int64 [steps]. capped: whether a list may be replaced as follows. If a list with separate places for all neighbors
    is longer than `MAX_PLACES` and than a list with all nodes, it continues with each node once. No lower layer makes
    it longer.

    Returns the lowest layer's sources int64 [steps, s], which begin with the targets, and the hops by layer: "count"
    and "gcn" as in `neighborhoods.grow`, [steps, …], and "place" where nodes are listed once; or the hop of
    `sample_messages` for single edges. `edges_of` makes one step's edges from a hop.
    """
    hops: dict[str, Tree] = {}
    all_nodes_at = None  # the place where the list of all nodes begins
    for i, layer in layers.items():
        layer_keys = random.fold(keys, "sample", i)
        if layer.along:
            more, hops[str(i)] = sample_messages(graph, layer, targets, layer_keys, fan_out)
            targets = torch.cat([targets, *more], 1)
            continue
        nodes, hop = _hop(graph, targets, layer_keys, fan_out)
        more = [nodes.flatten(1)]
        if capped and (all_nodes_at is not None or is_too_long(targets.shape[1], fan_out, graph.nodes)):
            more = []
            if all_nodes_at is None:
                all_nodes_at = targets.shape[1]
                more = [torch.arange(graph.nodes, device=targets.device).expand(len(targets), -1)]
            hop["place"] = nodes + all_nodes_at
        hops[str(i)] = hop
        targets = torch.cat([targets, *more], 1)
    return targets, hops


def is_too_long(targets: int, fan_out: int, nodes: int) -> bool:
    """Whether targets and separate places for their neighbors are more than `MAX_PLACES`, and than a list of all
    nodes."""
    return targets * (1 + fan_out) > max(MAX_PLACES, targets + nodes)


def _hop(graph: Graph, targets: Tensor, keys: Tensor, fan_out: int) -> tuple[Tensor, Tree]:
    """The neighbors of `targets` for one layer, int64 [steps, t, f], and its hop."""
    first, degree, columns = (table.expand(len(targets), -1) for table in graph.whole_edges.neighbors)
    nodes, count = neighbors(first, degree, columns, targets, keys, fan_out)
    gcn = gcn_weights(degree, targets, nodes, count)
    return nodes, {"count": count.to(graph.x.dtype), "gcn": gcn.to(graph.x.dtype)}


def edges_of(layer: Layer, hop: Tree) -> MessagePassing:
    """One layer's edges in one step. The f neighbors of the i-th of t targets are at t + i f, … unless the hop has
    "place"."""
    if layer.along:
        return SampledMessages(hop)
    if layer.operator in OF_EXAMPLES:
        features = DenseMatrix(hop["features"])
        b = len(hop["features"])
        return PrecomputedEdges({EXAMPLE_SOURCE: Slice(0, b), EXAMPLE_TARGET: Slice(b, b), EXAMPLE_FEATURES: features})
    if layer.operator == EGO_IDS:
        return PrecomputedEdges({EGO_IDS: DenseMatrix(hop["ids"])})
    if "place" in hop:
        return Sampled(hop)
    t, fan_out = hop["count"].shape
    place = t + torch.arange(t * fan_out, device=hop["count"].device)
    return Sampled(hop | {"place": place.view(t, fan_out)})


@dataclass(frozen=True)
class Minibatches:
    """Mini-batches of `batch` training examples, nodes or edges. Every layer that passes messages sees up to `fan_out`
    sampled neighbors of a node, or messages of each way."""

    batch: int = 32
    fan_out: int = 5

    def layers(self, model: Model) -> dict[int, Layer]:
        """The layers that pass messages by their numbers, from the last to the first."""
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
        layers = sampled_layers(model)
        for layer in layers.values():
            if not layer.along and layer.operator not in Sampled.KINDS:
                raise ValueError(
                    f"sampled neighbors give no {layer.operator!r}, which the model multiplies by; choose model sage, "
                    "gcn, gat, gine or pna"
                )
        return layers

    def batches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """For `fit(…, batches=…)`, all leaves [steps, …]: the "target" class and "weight" (0 or 1) of b examples, the
        "nodes" of the lowest layer, and the "hops"."""
        keys = random.fold(key, torch.arange(steps, device=key.device))
        examples, real = self._draw_examples(graph, random.fold(keys, "centres"))
        target = graph.truth_at(examples)
        return {"target": target, "weight": real.to(graph.x.dtype), **self.around(model, graph, examples, keys)}

    def around(self, model: Model, graph: Graph, examples: Tensor, keys: Tensor) -> Tree:
        """The "nodes" of the lowest layer and the "hops" for examples int64 [steps, b]; keys: int64 [steps]."""
        ends: tuple[Tensor, ...] = (examples,)
        more: dict[str, Tree] = {}
        if models.example(model) == "edge":
            ends, more = self._ends(model, graph, examples)
        layers = self.layers(model)
        at = next((i for i, layer in enumerate(model) if layer.operator == EGO_IDS), None)
        nodes, hops = sample_layers(graph, torch.cat(ends, 1), keys, layers, self.fan_out, capped=at is None)
        if at is not None:
            more[str(at)] = {"ids": _ids(nodes, ends, layers, self.fan_out).to(graph.x.dtype)}
        return {"nodes": nodes, "hops": hops | more}

    def _draw_examples(self, graph: Graph, keys: Tensor) -> tuple[Tensor, Tensor]:
        """`draw_nodes` from the training examples; with many examples step by step, which bounds the memory."""
        train = graph.masks[TRAIN]
        if train.shape[-1] < STEPWISE:
            return draw_nodes(train, keys[:, None], self.batch)
        draws = [draw_nodes(train, step_key, self.batch) for step_key in keys.unbind()]
        return torch.stack([nodes for nodes, _ in draws]), torch.stack([real for _, real in draws])

    def _ends(self, model: Model, graph: Graph, examples: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tree]]:
        """The source and the target nodes of edges int64 [steps, b], and the hop of the layer that reads both ends."""
        edges = graph.whole_edges.of_edges(examples=True)
        at = examples.flatten().clamp(max=len(edges.ends) - 1)  # larger numbers are padding
        ends = tuple(end.index_select(0, at).view(examples.shape) for end in edges.ends.unbind(1))
        features = edges.features.index_select(0, at).view(*examples.shape, -1).to(graph.x.dtype)
        reader = next(i for i, layer in enumerate(model) if layer.operator in OF_EXAMPLES)
        return ends, {str(reader): {"features": features}}

    def logits(self, w: Tree, model: Model, graph: Graph, key: Tensor | None, minibatch: Tree) -> Tensor:
        """The model's outputs for the examples of one mini-batch, [b, c]; a key switches dropout on."""
        h: Hidden = pick_rows(graph.x, minibatch["nodes"])
        hops = minibatch.get("hops", {})  # trees drop empty nodes, such as the hops of a model without messages
        for i, layer in enumerate(model):
            hop = hops.get(str(i))
            step_graph = graph if hop is None else graph._replace(edges=edges_of(layer, hop))
            layer_key = None if key is None else random.fold(key, "layer", i)
            h = layer.apply(w.get(str(i), {}), step_graph, h, layer_key)
        return models.rows_of(h)

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree, how: Criterion = PLAIN) -> Tensor:
        """Mean cross-entropy of one mini-batch, scalar; 0 at a client without training examples."""
        logits = self.logits(w, model, graph, key, minibatch)
        return how.of(logits, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])


def bytes_of(model: Model, sampler: Minibatches, nodes: int, steps: int) -> float:
    """Approximate bytes of the lists that `sample_layers` draws at once for a client's `steps`, in a graph of `nodes`
    nodes."""
    capped = all(layer.operator != EGO_IDS for layer in model)
    places = float(sampler.batch) * (2 if models.example(model) == "edge" else 1)
    total = 0.0
    with_all_nodes = False  # whether the list has all nodes
    for layer in sampler.layers(model).values():
        messages = sampler.fan_out * max(1, len(layer.along))
        total += places * (messages * 20 + 4)  # weights, counts and places
        if capped and not layer.along and (with_all_nodes or is_too_long(int(places), sampler.fan_out, nodes)):
            places += 0 if with_all_nodes else nodes
            with_all_nodes = True
        else:
            places *= 1 + messages
    return steps * (total + places * 8)


def sampled_layers(model: Model) -> dict[int, Layer]:
    """The layers that see sampled neighbors by their numbers, from the last to the first."""
    return {i: layer for i, layer in reversed([*enumerate(model)]) if layer.operator not in NO_HOP}


def places_of(model: Model, fan_out: int) -> int:
    """Number of places of one example's neighborhood at the lowest layer."""
    ends = 2 if models.example(model) == "edge" else 1
    return ends * math.prod(1 + fan_out * max(1, len(layer.along)) for layer in sampled_layers(model).values())


def _ids(nodes: Tensor, ends: tuple[Tensor, ...], layers: Mapping[int, Layer], fan_out: int) -> Tensor:
    """bool [steps, s, 1]: whether each of `nodes` [steps, s] is the example, or one of its `ends` [steps, b], at the
    center of the neighborhood in which `sample_layers` put it."""
    example = torch.arange(ends[0].shape[1], device=nodes.device).repeat(len(ends))
    for layer in layers.values():
        neighbor_example = example.repeat_interleave(fan_out).repeat(max(1, len(layer.along)))
        example = torch.cat([example, neighbor_example])
    matches = [nodes == end.index_select(1, example) for end in ends]
    return torch.stack(matches).any(0)[..., None]
