"""FedDEP: Zhang, Sun et al. 2024, "Deep efficient private neighbor generation for subgraph federated learning".

FedSage+ that generates embeddings of missing neighbors instead of features, and sends a few prototypes of each client
once instead of gradients. A client sends the means of clusters of its nodes' embeddings. From a node's visible
neighborhood its generator learns to predict the prototypes of hidden neighbors, and prototypes drawn from every other
client. Deviations: clusters by k-means (the paper's deep clustering shows no effect in its demo), without clusters of
one node, whose mean would be its embedding; steps on the whole graph; the mean of a node's generated embeddings forms
further columns of the first layer's features, with weights that begin at 0, where the paper adds a linear map of it to
every layer; a linear layer of embedding and mean classifies in the generator's training. The released demo exchanges
generators and gradients in every epoch, as FedSage+ does, and OpenFGL reads other clients' tables node by node; we do
not know which code gave the printed numbers, because we could not read the paper's tables. The paper's "noise-free
edge-LDP" of drawing 5 neighbors guarantees nothing for a node with one neighbor (δ = 1), so the ledger counts the
prototypes as a release without a bound.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.neighbors import (
    ENCODER,
    NeighborGeneration,
    add_noise,
    counts,
    embeddings,
    hidden_neighbors,
    miscount,
    mismatch,
)
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count, CountOrNone
from fedweave.core.federation import DATA, Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.model import Hidden, Model
from fedweave.core.ranges import Whole
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.learn import Adam, cross_entropy, fit
from fedweave.models.blocks import affine
from fedweave.ops.linear import linear

WIDTH = ENCODER[-1]  # of embeddings
_CLASSES = {"classes": "how many classes there are"}


@dataclass(frozen=True)
class MissingEmbeddings(NeighborGeneration):
    """Adds embeddings of missing neighbors to clients' nodes before the first round, as further columns of features.

    epochs:    steps of the encoder that gives the prototypes, and of a generator's training on its own.
    exchanges: steps that also use prototypes of other clients; 0 trains every generator only on its client's data.
    clusters:  k, number of prototypes that a client sends.
    """

    exchanges: CountOrNone = 20
    clusters: Count = 5
    recorded = True

    def layers(self, model: Model, on_clients: bool) -> Model:
        """The model with rows in the first layer for generated embeddings; unmended graphs have no columns for them."""
        if not models.feature_rows(model) or models.pools(model):
            raise ValueError("FedDEP adds columns to the features of nodes; choose a model such as sage or gcn")
        first = model[0]

        def init(key: Tensor) -> Tree:
            w = first.init(key)
            return w | {name: F.pad(w[name], (0, 0, 0, WIDTH)) for name in first.by_feature}  # 0 at first

        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            if not on_clients:
                w = w | {name: w[name][:-WIDTH] for name in first.by_feature}
            return first.apply(w, graph, h, key)

        return (first._replace(init=init, apply=apply), *model[1:])

    def init(self, fed: Federation, w: Tree) -> Tree:
        replies = fed.map(self.learn, {"classes": fed.classes})
        size = replies.stack("size")
        message = {"classes": fed.classes, "prototype": replies.stack("prototype"), "size": size}
        place = torch.arange(len(replies), device=size.device)
        fed.replace_data(self.mend, message, each=Stacked(replies.clients, {"own": place}))
        return {}

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.learn, self.mend)

    @on_client(
        sends={
            "prototype": "the means of clusters of its nodes' embeddings, by a model trained on its data alone",
            "size": Sends("how many of its nodes each cluster has", within=Whole()),
        },
        hears=_CLASSES,
        ragged=True,
    )
    def learn(self, client: Client, message: Tree) -> Tree:
        """{"prototype": [k, 128], "size": int64 [k]}, 0 for missing clusters."""
        graph, key, steps = client.graph, client.key, self.epochs
        weights = self.first_weights(graph, random.fold(key, "init"), message["classes"], WIDTH)
        first = {name: weights[name] for name in ("encoder", "head")}
        w = fit(_classifier_loss, first, graph, key, Adam(0.01, 5e-4), steps).w
        z = embeddings(w["encoder"], graph, graph.real)
        member, mean, size = find_clusters(z[: int(graph.real.sum())], random.fold(key, "clusters"), self.clusters)
        client.state["cluster"] = F.pad(member, (0, graph.nodes - len(member)), value=-1)
        return {"prototype": mean, "size": size}

    def first_weights(self, graph: Graph, key: Tensor, classes: int, width: int) -> Tree:
        """Initial weights, with a linear "head" over `width` columns instead of a classifier."""
        w = self.net.init(key, graph.x.shape[1], classes, graph.x.dtype, WIDTH)
        head = affine(width, classes).init(random.fold(key, "head"))
        del w["classifier"]
        return w | {"head": {name: leaf.to(graph.x.dtype) for name, leaf in head.items()}}

    @on_client(
        replaces_data=True,
        columns=WIDTH,
        hears=_CLASSES
        | {
            "prototype": "the means of clusters of every member's embeddings; not whose they are",
            "size": "how many nodes each of these is of",
            "own": "which of them are its own",
        },
    )
    def mend(self, client: Client, message: Tree) -> Tree:
        """Append the mean of each node's generated embeddings to its features; sends nothing."""
        graph, key, prototypes = client.graph, client.key, message["prototype"].to(client.graph.x.dtype)  # [N, k, d]
        hidden = self.draw_hidden(graph, key)
        member = F.one_hot(client.state.pop("cluster") + 1, prototypes.shape[1] + 1)[:, 1:] * hidden[:, None]
        near = (graph.edges.operator("sum") @ member.to(prototypes.dtype) > 0).T  # [k, n]
        local_args = {"hidden": hidden, "prototype": prototypes[message["own"]][None], "near": near[None]}
        w = self.first_weights(graph, random.fold(key, "init"), message["classes"], 2 * WIDTH)
        w, _, state = fit(
            self.loss, w, graph, random.fold(key, "alone"), self.update_rule, self.epochs, args=local_args
        )
        if self.exchanges:
            samples = sample_prototypes(message["size"], self.slots, graph.nodes, random.fold(key, "drawn"))
            local = torch.arange(len(prototypes), device=near.device) == message["own"]
            args = local_args | {"prototype": prototypes, "near": torch.where(local[:, None, None], near, samples)}
            w = fit(self.loss, w, graph, key, self.update_rule, self.exchanges, args=args, state=state).w
        z = embeddings(w["encoder"], graph, graph.real)
        embedding = self._generate(w, z, random.fold(key, "made"))[1][: int(graph.real.sum())].cpu().numpy()
        arrays = graph_arrays(graph)
        x = sp.hstack([arrays.x, embedding]).tocsr() if sp.issparse(arrays.x) else np.hstack([arrays.x, embedding])
        return {DATA: graph_like(graph, arrays._replace(x=x))}

    def loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """The loss of the generator, scalar: the error in the number of hidden neighbors, the distance of generated
        embeddings to prototypes, and the cross-entropy of the head. args: "prototype" [N, k, d], and "near" bool [N, k,
        n], the prototypes to match at each node."""
        visible, missing = graph.real & ~args["hidden"], hidden_neighbors(graph, args["hidden"])
        z = embeddings(w["encoder"], graph, visible)
        embedding, mean = self._generate(w, z, random.fold(key, "noise"))
        used = self.net.used_slots(missing.long()) & visible[:, None]
        targets = args["prototype"]
        norms = targets.square().sum(2)
        distance = vmap(mismatch, (None, None, 0, 0, 0))(embedding, used, targets, norms, args["near"]).mean()
        logits = _logits(w, torch.cat([z, mean], 1))
        head = cross_entropy(logits, graph.y.clamp(min=0), (visible & graph.masks[TRAIN]).to(z.dtype))
        result: Tensor = miscount(counts(w["count"], z), missing, visible) + distance + head
        return result

    def _generate(self, w: Tree, z: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """([n, slots, 128], embeddings in all slots; [n, 128], the mean over the slots that n̂ fills, 0 if none)."""
        embedding = self.net.features(w["features"], add_noise(z, key))
        up = random.uniform(random.fold(key, "slots"), (len(z),))
        used = self.net.used_slots((counts(w["count"], z).detach() + up).floor().long())
        return embedding, (embedding * used[..., None]).sum(1) / used.sum(1).clamp(min=1)[:, None]


def find_clusters(z: Tensor, key: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(int64 [n] the cluster of each row of z [n, d], their means [k, d], int64 [k] how many rows they have), by ten of
    Lloyd's steps from k-means++ (Arthur and Vassilvitskii 2007). A row alone in its cluster goes to the nearest cluster
    with several rows; if there is none, all rows form one cluster. If z has one row, its cluster has the mean 0 and
    counts 0."""
    mean = z[:1]
    for i in range(1, min(k, len(z))):
        total = torch.cdist(z, mean).amin(1).double().square().cumsum(0)
        at = (total <= random.uniform(random.fold(key, i), (1,)) * total[-1]).sum()
        mean = torch.cat([mean, z[at.clamp(max=len(z) - 1)][None]])
    for _ in range(10):
        of = F.one_hot(torch.cdist(z, mean).argmin(1), len(mean)).to(z.dtype)
        mean = torch.where(of.any(0)[:, None], of.T @ z / of.sum(0).clamp(min=1)[:, None], mean)
    while True:
        member = torch.cdist(z, mean).argmin(1)
        size = torch.bincount(member, minlength=len(mean))
        if len(mean) == 1 or bool((size > 1).all()):
            break
        mean = mean[size > 1] if bool((size > 1).any()) else mean[:1]
    of = F.one_hot(member, len(mean)).to(z.dtype) * (len(z) > 1)
    mean, size = of.T @ z / of.sum(0).clamp(min=1)[:, None], of.sum(0).long()
    return member, F.pad(mean, (0, 0, 0, k - len(mean))), F.pad(size, (0, k - len(size)))


def sample_prototypes(size: Tensor, slots: int, nodes: int, key: Tensor) -> Tensor:
    """bool [N, k, n]: prototypes of each client drawn for a node, by their size [N, k], one for each slot; independent
    of the clients' order."""
    total = size.double().cumsum(1)
    at = random.uniform(key, (nodes * slots,)).double() * total[:, -1:, None]
    chosen = (at < total[..., None]) & (at >= (total - size)[..., None])
    result: Tensor = chosen.unflatten(2, (nodes, slots)).any(3)
    return result


def _classifier_loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    z = embeddings(w["encoder"], graph, graph.real)
    return cross_entropy(_logits(w, z), graph.y.clamp(min=0), graph.masks[TRAIN].to(z.dtype))


def _logits(w: Tree, h: Tensor) -> Tensor:
    result: Tensor = linear(h, w["head"]["weight"]) + w["head"]["bias"]
    return result


@preset_of(MissingEmbeddings)
class FedDEP:
    """FedAvg on graphs whose nodes got embeddings of missing neighbors; a few prototypes cross, once."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train on mended graphs"}
    test_settings: ClassVar[Record] = {"slots": 2, "clusters": 2, "epochs": 2, "exchanges": 2, "hidden": (8,)}
