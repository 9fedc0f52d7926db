"""Mini-batches of nodes with sampled neighbourhoods (Hamilton et al. 2017, "Inductive Representation Learning on Large
Graphs", algorithm 2), drawn for all steps of a local training at once.

Every node of a list has places of its own for its neighbours, so that all lists have one length, whatever is drawn; a
node that is reached twice stands there twice (`sampling.neighbourhoods` names each once).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedweave.core import carried as carrying
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, ClassLoss
from fedweave.ops.sparse import picked
from fedweave.sampling.neighbourhoods import Sampled, neighbours


def drawn(member: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`size` different nodes of `member` bool [n] for each key, [] or [steps, 1]: int64 [..., size], and bool
    [..., size] which of them are real (fewer members leave places empty, which are node 0)."""
    enough = torch.cat([member, member.new_zeros(max(0, size - len(member)))])
    chosen = torch.topk(random.order(key, enough), size, largest=False).indices
    real = (torch.arange(size, device=member.device) < member.sum()).expand(chosen.shape)
    return torch.where(real, chosen, 0), real


def grown(
    graph: Graph, targets: Tensor, keys: Tensor, layers: Sequence[int], fan_out: int
) -> tuple[Tensor, dict[str, Tree]]:
    """Up to `fan_out` different neighbours of each of `targets` int64 [steps, t] for the first of `layers`, which come
    in falling order; for the next, neighbours of all these nodes; and so on; keys: int64 [steps].

    Returns the lowest layer's sources int64 [steps, s], which the targets lead, and the hops by layer: "count" and
    "gcn" as `neighbourhoods.grow` has them, [steps, …]. `hop` makes one step's of it.
    """
    first, degree, columns = (table.expand(len(targets), -1) for table in graph.own_edges.neighbours)
    looped, hops = (degree + 1).to(torch.float64), {}
    for i in layers:
        chosen, count = neighbours(first, degree, columns, targets, random.fold(keys, "sample", i), fan_out)
        own = looped.gather(1, targets)[..., None]
        other = looped.gather(1, chosen.flatten(1)).view(chosen.shape)
        gcn = torch.cat([1 / own, count / torch.sqrt(own * other)], 2)
        hops[str(i)] = {"count": count.to(graph.x.dtype), "gcn": gcn.to(graph.x.dtype)}
        targets = torch.cat([targets, chosen.flatten(1)], 1)
    return targets, hops


def hop(of_step: Tree) -> Sampled:
    """One layer's edges in one step: the f neighbours of the i-th of t targets stand at t + i f, …."""
    t, fan_out = of_step["count"].shape
    place = t + torch.arange(t * fan_out, device=of_step["count"].device)
    return Sampled(of_step | {"place": place.view(t, fan_out)})


@dataclass(frozen=True)
class Minibatches:
    """Mini-batches of `batch` training nodes, of which every layer that passes messages sees up to `fan_out` sampled
    neighbours a node."""

    batch: int = 32
    fan_out: int = 5

    def __post_init__(self) -> None:
        for name in ("batch", "fan_out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def layers(self, model: Model) -> list[int]:
        """The numbers of the layers that pass messages, from the last to the first.

        Raises:
            ValueError: the model needs the whole graph, or a matrix of it of which samples give no estimate.
        """
        if models.needs_graph(model):
            raise ValueError(
                "h2gcn and a torch.nn.Module cannot read sampled neighbours; choose model sage, gcn or gat"
            )
        passing = [i for i, layer in reversed([*enumerate(model)]) if layer.operator is not None]
        if any(model[i].operator in carrying.kinds() for i in passing):
            raise ValueError(
                "sampled neighbours do not have what edges carry; choose model sage, or gcn with weighted = false and "
                "directed = 'none'"
            )
        if odd := [model[i].operator for i in passing if model[i].operator not in Sampled.KINDS]:
            raise ValueError(
                f"sampled neighbours give no {odd[0]!r}, which the model multiplies by; choose model sage, gcn or gat"
            )
        return passing

    def batches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """For `fit(…, batches=…)`, all leaves [steps, …]: the "target" class and "weight" (0 or 1) of b nodes, the
        "nodes" of the lowest layer, and the "hops"."""
        keys = random.fold(key, torch.arange(steps, device=key.device))
        centres, real = drawn(graph.masks[TRAIN], random.fold(keys, "centres")[:, None], self.batch)
        nodes, hops = grown(graph, centres, keys, self.layers(model), self.fan_out)
        target = graph.y.gather(0, centres.reshape(-1)).view(centres.shape).clamp(min=0)
        return {"target": target, "weight": real.to(graph.x.dtype), "nodes": nodes, "hops": hops}

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree, how: ClassLoss = PLAIN) -> Tensor:
        """Mean cross-entropy of one mini-batch, scalar; 0 at a client without training nodes."""
        h: Any = picked(graph.x, minibatch["nodes"])
        for i, layer in enumerate(model):
            around = graph if layer.operator is None else graph._replace(edges=hop(minibatch["hops"][str(i)]))
            h = layer.apply(w.get(str(i), {}), around, h, random.fold(key, "layer", i))
        return how.of(h, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])
