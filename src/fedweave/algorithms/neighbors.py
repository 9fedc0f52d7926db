"""The generator of missing neighbors of FedSage+ (Zhang et al. 2021, "Subgraph federated learning with missing neighbor
generation", section 3.3): the number of a node's missing neighbors, and their features.

The generator's weights are {"encoder": …, "count": …, "features": …, "classifier": …}; the classifier only serves to
train the others. Every node has the same few places ("slots") for generated neighbors; a node with n generated
neighbors uses its first n slots. `generated_neighbors.add_neighbors` adds these neighbors to a client's graph.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part
from fedweave.core import random
from fedweave.core.bounds import Count, Share
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.model import Hidden
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import Adam, cross_entropy
from fedweave.models import gcn, sage
from fedweave.models.blocks import affine
from fedweave.ops.linear import linear
from fedweave.ops.rows import gather_rows
from fedweave.ops.sparse import Sparse

ENCODER = (32, 128)  # the widths of the encoder's two layers
CLASSIFIER = 64  # the width of the classifier's hidden layer
_COLUMNS = 512  # how many columns of sparse features `squares` makes dense at a time


@dataclass(frozen=True)
class Generator:
    """The architecture of the generator.

    slots:  P, largest number of neighbors generated for a node.
    hidden: widths of the layers from an embedding to features.
    """

    slots: int
    hidden: tuple[int, ...]

    def init(self, key: Tensor, features: int, classes: int, dtype: torch.dtype, columns: int = 0) -> Tree:
        """Initial weights, drawn as in the models' layers. Those of "count" are made positive, so that the ReLU of n̂
        starts where it has a gradient. columns: number of columns of a slot; 0 for the number of features."""
        networks = {
            "encoder": (gcn.convolution, (features, *ENCODER)),
            "count": (affine, (ENCODER[-1], 1)),
            "features": (affine, (ENCODER[-1], *self.hidden, self.slots * (columns or features))),
            "classifier": (sage.convolution, (features, CLASSIFIER, classes)),
        }

        w: Tree = {}
        for name, (layer, widths) in networks.items():
            w[name] = {}
            for i, (width_in, width_out) in enumerate(pairwise(widths)):
                initial = layer(width_in, width_out).init(random.fold(key, name, i))
                w[name][str(i)] = {leaf: value.to(dtype) for leaf, value in initial.items()}
        return w | {"count": map_leaves(torch.abs, w["count"])}

    def features(self, w: Tree, embedding: Tensor) -> Tensor:
        """Features of neighbors in all slots, [b, slots, d], from embeddings [b, 128]; w: the weights "features"."""
        h, last = embedding, len(w) - 1
        for i in range(len(w)):
            h = linear(h, w[str(i)]["weight"]) + w[str(i)]["bias"]
            h = torch.tanh(h) if i == last else torch.relu(h)
        result: Tensor = h.unflatten(1, (self.slots, -1))
        return result

    def used_slots(self, slots: Tensor) -> Tensor:
        """bool [b, P]: which slots of each node are used; slots: int64 [b], the number of slots that the node uses."""
        return torch.arange(self.slots, device=slots.device) < slots[:, None]


@dataclass(frozen=True)
class NeighborGeneration(Part):
    """Before the first round clients train generators on neighbors that they hide from themselves.

    slots:  P, largest number of neighbors generated for a node.
    hide:   share of a client's nodes in neither the training nor the test set that it hides to learn from.
    epochs: steps of the local training of a generator, each on the whole graph.
    hidden: widths of the layers from an embedding to features.
    """

    slots: Count = 5
    hide: Share = 0.5
    epochs: Count = 20
    hidden: tuple[Count, ...] = (256, 64)
    needs = Needs(data=("nodes", "classes"))

    @cached_property
    def net(self) -> Generator:
        return Generator(self.slots, self.hidden)

    @cached_property
    def update_rule(self) -> Adam:
        return Adam(1e-3, 1e-4)

    def draw_hidden(self, graph: Graph, key: Tensor) -> Tensor:
        """bool [n]: nodes in neither the training nor the test set that are drawn to be hidden."""
        free = graph.real & ~graph.masks[TRAIN] & ~graph.masks[TEST]
        rank = random.order(random.fold(key, "hide"), free).argsort().argsort()  # [n], places in a random order
        return free & (rank < (self.hide * free.sum()).long())


def hidden_neighbors(graph: Graph, hidden: Tensor) -> Tensor:
    """[n]: the number of each node's hidden neighbors; hidden: bool [n]."""
    return (graph.edges.operator("sum") @ hidden[:, None].to(graph.x.dtype))[:, 0]


def smooth_l1(difference: Tensor) -> Tensor:
    """d² / 2 where |d| < 1, else |d| − 1/2 (Girshick 2015, eq. 3)."""
    d = difference.abs()
    return torch.where(d < 1, 0.5 * d * d, d - 0.5)


def miscount(count: Tensor, missing: Tensor, visible: Tensor) -> Tensor:
    """Mean `smooth_l1` of the estimate n̂, `count` [n], from the number that is `missing` [n]; scalar.

    visible: bool [n], the nodes of the mean.
    """
    return (smooth_l1(count - missing) * visible).sum() / visible.sum().clamp(min=1)


def embeddings(w: Tree, graph: Graph, visible: Tensor) -> Tensor:
    """[n, 128]: two layers h ← ReLU(D~^-1 (A + I) h W + b) on the nodes `visible` bool [n] and the edges between them;
    w: the weights "encoder"."""
    a, mask = graph.edges.operator("sum"), visible[:, None].to(graph.x.dtype)
    degree = a @ mask + 1  # D~, with the self-loop
    h: Hidden = graph.x
    for i in range(len(ENCODER)):
        h = mask * linear(h, w[str(i)]["weight"])  # [n, width]
        h = torch.relu((a @ h + h) / degree + w[str(i)]["bias"])
    embedded: Tensor = h
    return embedded


def counts(w: Tree, embedding: Tensor) -> Tensor:
    """n̂ [n], the number of missing neighbors; w: the weights "count"."""
    return torch.relu(linear(embedding, w["0"]["weight"]) + w["0"]["bias"])[:, 0]


def add_noise(embedding: Tensor, key: Tensor) -> Tensor:
    """z + N(0, I)."""
    return embedding + random.normal(key, tuple(embedding.shape)).to(embedding.dtype)


def squares(x: "Tensor | Sparse") -> Tensor:
    """[n]: ‖x_u‖² of every row of `x` [n, d]."""
    if not isinstance(x, Sparse):
        return (x * x).sum(1)
    columns = torch.arange(x.shape[1], device=x.device)
    total = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    for some in columns.split(_COLUMNS):
        dense = x @ (columns[:, None] == some).to(x.dtype)  # [n, 512], these columns of x
        total = total + (dense * dense).sum(1)
    return total


def mismatch(generated: Tensor, used: Tensor, x: "Tensor | Sparse", norms: Tensor, candidates: Tensor) -> Tensor:
    """How far generated neighbors are from real ones: the mean squared difference of a slot's features from those of
    the nearest candidate, as the mean over the used slots; scalar, 0 if none counts.

    generated: [b, slots, d]. used: bool [b, slots]. x: [n, d], the features of real nodes. norms: `squares` of x.
    candidates: bool [n, b], the real nodes that the slots of a row may stand for; a row without candidates is left out.
    """
    flat = generated.flatten(0, 1)  # [b · slots, d]
    distance = (flat * flat).sum(1) - 2 * linear(x, flat.mT.contiguous()) + norms[:, None]  # ‖g − x_u‖²
    distance = distance.unflatten(1, (-1, generated.shape[1]))  # [n, b, slots]
    far = torch.finfo(distance.dtype).max
    nearest = distance.masked_fill(~candidates[..., None], far).min(0).values / generated.shape[2]  # [b, slots]
    counted = used & candidates.any(0)[:, None]
    return torch.where(counted, nearest, 0).sum() / counted.sum().clamp(min=1)


def classification(w: Tree, graph: Graph, visible: Tensor, rows: Tensor, generated: Tensor, used: Tensor) -> Tensor:
    """Mean cross-entropy over the visible training nodes of a GraphSAGE classifier on the mended graph, scalar.

    visible: bool [n]. rows: int64 [b], different nodes. generated: [b, slots, d], the features of their generated
    neighbors. used: bool [b, slots], the slots with a neighbor. w: the weights "classifier".
    """
    a, dtype = graph.edges.operator("sum"), generated.dtype
    is_visible, is_used = visible[:, None].to(dtype), used[..., None].to(dtype)
    owner = (rows == torch.arange(graph.nodes, device=rows.device)[:, None]).to(dtype)  # [n, b], 1 where node is row
    degree = (a @ is_visible + linear(owner, is_used.sum(1))).clamp(min=1)  # [n, 1]
    h_real: Hidden = graph.x
    h_new = generated.flatten(0, 1)  # [b · slots, d]
    for i in range(2):
        layer = w[str(i)]
        messages, root = linear(h_real, layer["neigh"]), linear(h_real, layer["root"])
        from_new = (is_used * linear(h_new, layer["neigh"]).unflatten(0, generated.shape[:2])).sum(1)  # [b, width]
        h = root + (a @ (is_visible * messages) + linear(owner, from_new)) / degree + layer["bias"]
        if i == 0:  # a generated node's only neighbor is its owner
            from_owner = gather_rows(messages, rows)[:, None].expand(-1, generated.shape[1], -1).flatten(0, 1)
            h_real, h_new = torch.relu(h), torch.relu(linear(h_new, layer["root"]) + from_owner + layer["bias"])
    return cross_entropy(h, graph.y.clamp(min=0), (visible & graph.masks[TRAIN]).to(h.dtype))
