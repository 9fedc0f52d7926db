"""The mini-batch of a vertical federation, the same at all clients, and the lists of nodes above it."""

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree
from fedweave.learn import cross_entropy


def draw(graph: Graph, key: Tensor, size: int) -> Tree:
    """`size` train nodes: "drawn" int64 [b], and "real" bool [b], for there may be fewer; nothing where `size` is 0."""
    if not size:
        return {}
    train, size = graph.masks[TRAIN], min(size, len(graph.y))
    chosen = torch.topk(random.order(key, train), size, largest=False).indices
    real = torch.arange(size) < train.sum()
    return {"drawn": torch.where(real, chosen, chosen[:1]), "real": real}


def exchanged(now: Tree, cut: int) -> Tensor:
    """The nodes whose representations are exchanged at a cut: of the "nodes", lists by cut, the first at it or after
    it; beyond the last list they are the "drawn" mini-batch."""
    later = sorted(int(at) for at in now.get("nodes", {}) if int(at) >= cut)
    return now["nodes"][str(later[0])] if later else now["drawn"]


def labelled(graph: Graph) -> Tensor:
    """bool [n]: the train nodes whose label the client sees."""
    return graph.masks[TRAIN] & (graph.y >= 0)


def error(logits: Tensor, graph: Graph, drawn: Tree) -> Tensor:
    """The loss over those of the mini-batch, or of all nodes, whose label the client sees."""
    target, weight = graph.y, labelled(graph)
    if "drawn" in drawn:
        target, weight = target.gather(0, drawn["drawn"]), weight.gather(0, drawn["drawn"]) & drawn["real"]
    return cross_entropy(logits, target.clamp(min=0), weight.to(logits.dtype))
