"""The mini-batch of a vertical federation, the same at all clients, the exchanged lists of nodes that it needs, and
what a client samples below them. `now` is what `party` keeps during a round."""

import torch
from torch import Tensor

from fedweave.algorithms.vertical.split import Split
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, ClassLoss


def draw(graph: Graph, key: Tensor, size: int) -> Tree:
    """`size` train nodes: "minibatch" int64 [b], and "real" bool [b], because there may be fewer; nothing if `size` is
    0."""
    if not size:
        return {}
    train, size = graph.masks[TRAIN], min(size, len(graph.y))
    chosen = torch.topk(random.order(key, train), size, largest=False).indices
    real = torch.arange(size, device=train.device) < train.sum()
    return {"minibatch": torch.where(real, chosen, chosen[:1]), "real": real}


def exchanged(now: Tree, cut: int) -> Tensor:
    """The list of nodes exchanged at a cut, int64 [b]: the next one in "nodes" at or after it, or the mini-batch after
    the last."""
    later = sorted(int(at) for at in now.get("nodes", {}) if int(at) >= cut)
    result: Tensor = now["nodes"][str(later[0])] if later else now["minibatch"]
    return result


def sampled(split: Split, graph: Graph, now: Tree, segment: int) -> Tree:
    """What a segment needs for the exchanged list above it, as `Split.sample` gives it. The list's length changes every
    time, and is padded to few different lengths."""
    targets = exchanged(now, segment + 1)
    if targets is now["minibatch"]:
        return split.sample(graph, [segment], targets, now["key"])
    missing = graph.own_edges.cache.padded_size(segment, len(targets)) - len(targets)
    roomy = torch.cat([targets, targets[:1].expand(missing)])
    return split.sample(graph, [segment], roomy, now["key"], split.count(targets))


def sampled_own(split: Split, graph: Graph, now: Tree, top: int) -> Tree:
    """What all segments need for only the client's own mini-batch, as `Split.sample` gives it; from segment `top` on it
    was already `sampled`."""
    begun = now["below"][str(top)] if top <= split.last else {"nodes": now["minibatch"], "hops": {}}
    rest = split.sample(graph, range(top - 1, -1, -1), begun["nodes"], now["key"], begun.get("filled"))
    return {"nodes": rest["nodes"], "hops": begun["hops"] | rest["hops"]}


def labelled(graph: Graph) -> Tensor:
    """bool [n]: the train nodes whose label the client sees."""
    return graph.masks[TRAIN] & (graph.y >= 0)


def error(logits: Tensor, target: Tensor, graph: Graph, args: Tree, loss: ClassLoss = PLAIN) -> Tensor:
    """The loss against the labels `target` [n] over those of the mini-batch, or of all nodes, whose label the client
    sees; loss: how it weighs classes, which it counts among these labels."""
    weight = seen = labelled(graph)
    every = target
    if "minibatch" in args:
        nodes = args["minibatch"]
        target, weight = target.gather(0, nodes), weight.gather(0, nodes) & args["real"]
    return loss.of(logits, target.clamp(min=0), weight.to(logits.dtype), every, seen)
