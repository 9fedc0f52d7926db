"""Small algorithms whose clients' data changes while they train, as in FairGFL's dynamic setting, FedSage+ and FairAug.
They are in no registry."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.algorithms.scoring import SCORES, score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Algorithm, Calls, Evaluation
from fedweave.core.federation import DATA, Client, Federation, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import GraphArrays, graph_arrays, graph_like
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.learn import Sgd, cross_entropy, fit
from tests.random_graphs import replace_fields


@dataclass(frozen=True)
class Changing(Algorithm):
    """Federated averaging on data that `change` replaces; every client keeps a row of state for each of its nodes."""

    model: Model
    local_steps: int = 2
    every: int = 1

    def init(self, fed: Federation) -> Tree:
        return {"w": models.init(self.model, fed.key("init"), fed.dtype), "round": 0}

    def round(self, state: Tree, fed: Federation) -> Tree:
        number = state["round"] + 1
        if number % self.every == 0:
            fed.replace_data(self.change, {"by": 0.1})
        replies = fed.map(self.train, {"w": state["w"]})
        share = torch.full((len(replies),), 1 / len(replies))
        return {"w": replies.weighted_sum("w", share), "round": number}

    def calls(self, clients: int) -> Calls:
        return Calls(round=(self.change, self.train), evaluation=(self.score,))

    def change(self, client: Client, message: Tree) -> Tree:
        raise NotImplementedError

    @on_client(sends={"w": "trained weights"})
    def train(self, client: Client, message: Tree) -> Tree:
        graph = client.graph
        seen = client.state.get("seen", torch.zeros(len(graph.y), dtype=graph.x.dtype))
        client.state["seen"] = seen + graph.real
        return {"w": fit(self.loss, message["w"], graph, client.key, Sgd(0.1), self.local_steps).w}

    def loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        logits = models.apply(self.model, w, graph, key)
        return cross_entropy(logits, graph.y.clamp(min=0), graph.masks[TRAIN].to(logits.dtype))

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(self.score, {"w": state["w"]}))

    @on_client(sends=SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        return score(self.model, message["w"], client)


class Drifting(Changing):
    """A share of the nodes, one at least, get other features and lose their edges to the lower half of the nodes."""

    @on_client(sends={"changed": "how many nodes changed"}, replaces_data=True)
    def change(self, client: Client, message: Tree) -> Tree:
        old, draw = graph_arrays(client.graph), generator(client)
        n = len(old.y)
        chosen = draw.choice(n, max(1, int(message["by"] * n)), replace=False)
        x = sp.lil_matrix(old.x)
        x[chosen] = x[draw.permutation(n)[: len(chosen)]]
        gone = np.isin(old.edges, chosen).any(0) & (old.edges.min(0) < n // 2)
        new = replace_fields(old, x=sp.csr_matrix(x), edges=old.edges[:, ~gone])
        return {DATA: graph_like(client.graph, new), "changed": len(chosen)}


class Mending(Changing):
    """Nodes at the end of few edges get a neighbor with the mean of their neighbors' features, without a label."""

    @on_client(replaces_data=True)
    def change(self, client: Client, message: Tree) -> Tree:
        old = graph_arrays(client.graph)
        n, degree = len(old.y), np.bincount(old.edges[1], minlength=len(old.y))
        poor = np.argsort(degree, kind="stable")[: max(1, int(2 * message["by"] * n))]
        added = np.arange(n, n + len(poor))
        x, kind = sp.csr_matrix(old.x), old.x.dtype
        adjacent = sp.csr_matrix((np.ones(old.edges.shape[1], kind), old.edges[::-1]), shape=(n, n))
        mean = sp.diags(1 / np.maximum(degree, 1)).astype(kind) @ adjacent @ x
        joined = np.concatenate([old.edges, np.stack([poor, added]), np.stack([added, poor])], axis=1)
        masks = np.pad(old.masks, ((0, 0), (0, len(poor))))
        y = np.pad(old.y, (0, len(poor)), constant_values=-1)
        new = graph_like(client.graph, GraphArrays(sp.vstack([x, mean[poor]]), joined, y, masks))
        if "seen" in client.state:
            seen = torch.zeros(len(new.real), dtype=new.x.dtype)
            seen[:n] = client.state["seen"][:n]
            client.state["seen"] = seen
        return {DATA: new}


class Dropping(Changing):
    """A share of the edges is dropped, both directions of each; a client of few nodes keeps its data."""

    @on_client(replaces_data=True)
    def change(self, client: Client, message: Tree) -> Tree:
        if int(client.graph.real.sum()) < 20:
            return {}
        old = graph_arrays(client.graph)
        low, high = old.edges.min(0), old.edges.max(0)
        pair = np.unique(low * len(old.y) + high, return_inverse=True)[1]
        kept = generator(client).random(pair.max() + 1) >= message["by"]
        return {DATA: graph_like(client.graph, replace_fields(old, edges=old.edges[:, kept[pair]]))}


KINDS: dict[str, Any] = {"drifting": Drifting, "mending": Mending, "dropping": Dropping}


def generator(client: Client) -> np.random.Generator:
    """NumPy's, from the client's key of this call."""
    return np.random.default_rng(int(random.fold(client.key, "change")) & (2**63 - 1))
