"""Ego ids (You et al. 2021, "Identity-aware graph neural networks"; Egressy et al. 2024): a feature of nodes that tells
those around which a neighbourhood was sampled from all others in it."""

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree, map_leaves
from fedweave.errors import ConfigError
from fedweave.ops.sparse import dense
from fedweave.sampling.messages import EGO_IDS
from fedweave.sampling.minibatches import Minibatches, places_of

JUDGED = 10  # sampled messages of each way, or neighbours, of a node and layer, where a model is judged
AT_ONCE = 1 << 14  # places of neighbourhoods that a client's judging takes at once


def marks() -> Layer:
    """[x ‖ id], before a model of one more feature: the id is 1 at the node, or at both ends of the edge, in whose
    neighbourhood a row is, and 0 elsewhere."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        if not graph.edges.shrinks:
            raise ConfigError(
                "model ego_ids = true: in a whole graph every node is the centre of a neighbourhood of its own; train "
                "with algorithm.parts = ['sampled_cross_entropy'] and without parts that read whole graphs, or set it "
                "to false."
            )
        whole = torch.eye(1, dtype=graph.x.dtype, device=graph.device)
        return torch.cat([dense(h), graph.edges.operator(EGO_IDS) @ whole], 1)

    return Layer(lambda key: {}, apply, operator=EGO_IDS, judged=judged)


def judged(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The logits [e, c] of all examples without dropout, each by a neighbourhood of its own, drawn alike each time."""
    sampler, count = Minibatches(1, JUDGED), len(graph.y)
    size = max(1, AT_ONCE // places_of(model, sampler))
    key, found = random.key(0, graph.device), []
    for first in range(0, count, size):
        chosen = torch.arange(first, min(first + size, count), device=graph.device)[None]
        around = sampler.around(model, graph, chosen, key[None])
        found.append(sampler.logits(w, model, graph, None, map_leaves(lambda leaf: leaf[0], around)))
    return torch.cat(found)
