"""The generator of missing neighbors of FedSage+ (Zhang et al. 2021, "Subgraph federated learning with missing neighbor
generation", section 3.3): the number of a node's missing neighbors, and their features.

Its weights are {"encoder", "count", "features", "classifier"}; the classifier only serves to train the others. A node
has a few places ("slots") for generated neighbors, and uses the first ones.

`mended` adds the generated neighbors to a client's graph.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part
from fedweave.core import random
from fedweave.core.bounds import Count, Share
from fedweave.core.graph import TEST, TRAIN, Graph, GraphArrays
from fedweave.core.model import Hidden
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import Adam, cross_entropy
from fedweave.models import gcn, sage
from fedweave.models.blocks import affine
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse, gather_rows


def mended(graph: GraphArrays, owners: np.ndarray, features: np.ndarray) -> GraphArrays:
    """A client's graph with one more node, unlabeled and in no mask, for each of `owners` int64 [m], which is its only
    neighbor; features: [m, d].

    With sparse features, a generated node keeps only its largest ones in magnitude, at most the largest number at any
    of the client's nodes. The longest row of a batch decides the time of a product.
    """
    n, added = len(graph.y), len(owners)
    if sp.issparse(graph.x):
        most = int(np.diff(sp.csr_matrix(graph.x).indptr).max(initial=0))
        x = sp.vstack([graph.x, sp.csr_matrix(strongest(features, most))], format="csr").astype(graph.x.dtype)
    else:
        x = np.concatenate([graph.x, features.astype(graph.x.dtype)])
    links = np.stack([owners, n + np.arange(added)])
    return GraphArrays(
        x,
        np.concatenate([graph.edges, links, links[::-1]], 1),
        np.pad(graph.y, (0, added), constant_values=-1),
        np.pad(graph.masks, ((0, 0), (0, added))),
        None if graph.sens is None else np.pad(graph.sens, (0, added), constant_values=-1),
    )


def strongest(features: np.ndarray, most: int) -> np.ndarray:
    """[m, d]: the `most` largest entries in magnitude of every row, 0 elsewhere."""
    if most >= features.shape[1]:
        return features
    largest = np.argsort(-np.abs(features), axis=1, kind="stable")[:, :most]
    out = np.zeros_like(features)
    np.put_along_axis(out, largest, np.take_along_axis(features, largest, 1), 1)
    return out


ENCODER = (32, 128)  # the widths of its two layers
CLASSIFIER = 64  # the width of its hidden layer
_COLUMNS = 512  # of sparse features that become dense at a time


@dataclass(frozen=True)
class Generator:
    """The architecture of the generator.

    slots:  P, largest number of neighbors generated for a node.
    hidden: widths of the layers from an embedding to features.
    """

    slots: int
    hidden: tuple[int, ...]

    def init(self, key: Tensor, features: int, classes: int, dtype: torch.dtype, made: int = 0) -> Tree:
        """Initial weights, drawn as in the models' layers; magnitudes for "count", so that no n̂ begins where its ReLU
        has no gradient. made: number of columns of a slot; 0 for the number of features."""
        kinds = {
            "encoder": (gcn.convolution, (features, *ENCODER)),
            "count": (affine, (ENCODER[-1], 1)),
            "features": (affine, (ENCODER[-1], *self.hidden, self.slots * (made or features))),
            "classifier": (sage.convolution, (features, CLASSIFIER, classes)),
        }

        def layers(name: str) -> Tree:
            layer, widths = kinds[name]
            pairs = enumerate(pairwise(widths))
            weights = {str(i): layer(*pair).init(random.fold(key, name, i)) for i, pair in pairs}
            return {i: {leaf: value.to(dtype) for leaf, value in tree.items()} for i, tree in weights.items()}

        w = {name: layers(name) for name in kinds}
        return w | {"count": map_leaves(torch.abs, w["count"])}

    def features(self, w: Tree, embedding: Tensor) -> Tensor:
        """Features of neighbors in all slots: [b, slots, d] of embeddings [b, 128], by the weights "features"."""
        h, last = embedding, len(w) - 1
        for i in range(len(w)):
            h = linear(h, w[str(i)]["weight"]) + w[str(i)]["bias"]
            h = torch.tanh(h) if i == last else torch.relu(h)
        result: Tensor = h.unflatten(1, (self.slots, -1))
        return result

    def used(self, slots: Tensor) -> Tensor:
        """bool [b, slots]: which are used where nodes use the first `slots` int64 [b]."""
        return torch.arange(self.slots, device=slots.device) < slots[:, None]


@dataclass(frozen=True)
class Generates(Part):
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
    needs = Needs(nodes=True, classes=True)

    @cached_property
    def net(self) -> Generator:
        """The generator."""
        return Generator(self.slots, self.hidden)

    @cached_property
    def update_rule(self) -> Adam:
        """The optimizer of generators."""
        return Adam(1e-3, 1e-4)

    def hides(self, graph: Graph, key: Tensor) -> Tensor:
        """bool [n]: nodes in neither the training nor the test set that are drawn to be hidden."""
        free = graph.real & ~graph.masks[TRAIN] & ~graph.masks[TEST]
        rank = random.order(random.fold(key, "hide"), free).argsort().argsort()
        return free & (rank < (self.hide * free.sum()).long())


def lacking(graph: Graph, hidden: Tensor) -> Tensor:
    """[n]: how many neighbors a node has that are `hidden`, bool [n]."""
    return (graph.edges.operator("sum") @ hidden[:, None].to(graph.x.dtype))[:, 0]


def miscount(count: Tensor, missing: Tensor, visible: Tensor) -> Tensor:
    """How far n̂, `count` [n], is from how many are `missing` [n], the mean over the `visible` nodes; scalar."""
    return (smooth_l1(count - missing) * visible).sum() / visible.sum().clamp(min=1)


def embeddings(w: Tree, graph: Graph, visible: Tensor) -> Tensor:
    """[n, 128]: two layers h ← ReLU(D~^-1 (A + I) h W + b) on the nodes `visible` bool [n] and the edges between them;
    w: the weights "encoder"."""
    a, there = graph.edges.operator("sum"), visible[:, None].to(graph.x.dtype)
    looped = a @ there + 1
    h: Hidden = graph.x
    for i in range(len(ENCODER)):
        h = there * linear(h, w[str(i)]["weight"])
        h = torch.relu((a @ h + h) / looped + w[str(i)]["bias"])
    embedded: Tensor = h
    return embedded


def counts(w: Tree, embedding: Tensor) -> Tensor:
    """n̂ [n], the number of missing neighbors; w: the weights "count"."""
    return torch.relu(linear(embedding, w["0"]["weight"]) + w["0"]["bias"])[:, 0]


def noisy(embedding: Tensor, key: Tensor) -> Tensor:
    """z + N(0, I)."""
    return embedding + random.normal(key, tuple(embedding.shape)).to(embedding.dtype)


def smooth_l1(difference: Tensor) -> Tensor:
    """d² / 2 where |d| < 1, else |d| − 1/2 (Girshick 2015, eq. 3)."""
    size = difference.abs()
    return torch.where(size < 1, 0.5 * size * size, size - 0.5)


def squares(x: "Tensor | Sparse") -> Tensor:
    """‖x_u‖² of all rows [n, d]: [n]."""
    if not isinstance(x, Sparse):
        return (x * x).sum(1)
    columns = torch.arange(x.shape[1], device=x.device)
    total = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    for some in columns.split(_COLUMNS):
        part = x @ (columns[:, None] == some).to(x.dtype)
        total = total + (part * part).sum(1)
    return total


def mismatch(generated: Tensor, used: Tensor, x: "Tensor | Sparse", norms: Tensor, candidates: Tensor) -> Tensor:
    """Mean over the used slots of the mean squared difference of their features to the nearest candidate's; scalar, 0
    without any.

    made: [b, slots, d]. used: bool [b, slots]. x: [n, d]. norms: its `squares`. candidates: bool [n, b], the nodes that
    a row may stand for; a row without any is left out.
    """
    flat = generated.flatten(0, 1)
    distance = (flat * flat).sum(1) - 2 * linear(x, flat.mT.contiguous()) + norms[:, None]
    distance = distance.unflatten(1, (-1, generated.shape[1]))  # [n, b, slots]
    far = torch.finfo(distance.dtype).max
    nearest = distance.masked_fill(~candidates[..., None], far).min(0).values / generated.shape[2]
    counted = used & candidates.any(0)[:, None]
    return torch.where(counted, nearest, 0).sum() / counted.sum().clamp(min=1)


def classification(w: Tree, graph: Graph, visible: Tensor, rows: Tensor, generated: Tensor, used: Tensor) -> Tensor:
    """Mean cross-entropy over the visible training nodes of a GraphSAGE classifier on the mended graph, scalar.

    visible: bool [n]. rows: int64 [b], different nodes. made: [b, slots, d], the features of their generated neighbors.
    used: bool [b, slots], the slots with a neighbor. w: the weights "classifier".
    """
    a, there, mask = (
        graph.edges.operator("sum"),
        visible[:, None].to(generated.dtype),
        used[..., None].to(generated.dtype),
    )
    owner = (rows == torch.arange(graph.nodes, device=rows.device)[:, None]).to(generated.dtype)
    degree = (a @ there + linear(owner, mask.sum(1))).clamp(min=1)
    h_own: Hidden = graph.x
    new = generated.flatten(0, 1)
    for i in range(2):
        layer = w[str(i)]
        messages, root = linear(h_own, layer["neigh"]), linear(h_own, layer["root"])
        of_new = (mask * linear(new, layer["neigh"]).unflatten(0, generated.shape[:2])).sum(1)
        h = root + (a @ (there * messages) + linear(owner, of_new)) / degree + layer["bias"]
        if i == 0:
            spread = gather_rows(messages, rows)[:, None].expand(-1, generated.shape[1], -1).flatten(0, 1)
            h_own, new = torch.relu(h), torch.relu(linear(new, layer["root"]) + spread + layer["bias"])
    return cross_entropy(h, graph.y.clamp(min=0), (visible & graph.masks[TRAIN]).to(h.dtype))
