"""FedSage+: Zhang et al. 2021, "Subgraph federated learning with missing neighbor generation", sections 3.3 and 3.4.

Before training, every client hides some neighbors from itself and trains a generator to predict how many of a node's
neighbors are missing and what features they have. In the federated exchange other clients send gradients of the
distance between the generated features and their own nodes' features. The client then mends its graph with generated
neighbors, and FedSage trains on that.

Choices where the paper is open, and deviations:
- A peer gets the weights that generate features and, for a sample of nodes, noised embeddings and the number of missing
  neighbors. It returns the gradient of its matching term, and the server adds up the gradients.
- In an exchange the server asks `peers` random others for each generator; the paper asks all: P (P - 1) gradients.
- Most nodes miss less than one neighbor, so the reference code's ⌊n̂⌋ generates none (`rounding = "floor"`); by default
  n̂ neighbors are generated on average. In local training a node uses a slot for each hidden neighbor in the matching
  term, so that the features train for every n̂.
- Matching terms are means over the used slots of a sample of nodes with missing neighbors, drawn in every step; in
  local training the classified mended graph has only these nodes' generated neighbors.
- The last hidden layer that generates features has 64 columns; the reference code's has 2,048, so that a generator of
  Cora's features has 15 million weights.
- The mended graph's classifier is a separate GraphSAGE of width 64, which belongs to the generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.generated_neighbors import add_neighbors
from fedweave.algorithms.neighbors import (
    NeighborGeneration,
    add_noise,
    classification,
    counts,
    embeddings,
    hidden_neighbors,
    miscount,
    mismatch,
    squares,
)
from fedweave.algorithms.parts import LocalSteps, Needs, SampledCrossEntropy, Training, Uniform
from fedweave.algorithms.preset import preset_of
from fedweave.core import edge_attributes, random
from fedweave.core.bounds import Count, CountOrNone
from fedweave.core.federation import DATA, Client, Declaration, Federation, Sends, Step, on_client
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.mechanism import Gaussian
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies, Stacked
from fedweave.core.tree import Tree, leaves, map_leaves, nest, scale
from fedweave.core.types import Record
from fedweave.learn import Sgd, fit
from fedweave.ops.rows import gather_rows
from fedweave.sampling.minibatches import draw_nodes

_OFFERED = {
    "offers": "other members' generators of features, embeddings of some of their nodes, with noise, and how many "
    "neighbors these miss, without their owners"
}
_GRADIENT = (
    "for each generator that the client was sent, the gradient of how far what it makes is from the nearest of the "
    "client's nodes; of a generator made for that, a node's features"
)
_MAX_EXCHANGES = 10_000  # a site lists them before the first one, so a server's number must not fill its memory


@dataclass(frozen=True)
class MissingNeighbours(NeighborGeneration):
    """Adds generated neighbors to clients' graphs before the first round.

    exchanges: steps with gradients of other clients; 0 trains every generator only at its client (the paper's
               LocSage+).
    peers:     number of other clients that get a generator in an exchange; 0 for all.
    sample:    number of nodes whose generated features a step matches.
    rounding:  rounding of n̂ to a number of slots: "floor", "nearest", or "random", which is n̂ on average.
    """

    exchanges: Annotated[int, Field(ge=0, le=_MAX_EXCHANGES)] = 20
    peers: CountOrNone = 3
    sample: Count = 64
    rounding: Literal["floor", "nearest", "random"] = "random"
    recorded = True
    needs = Needs(data=("nodes", "classes"), steps=LocalSteps(bounds=("sample",)))

    def check(self, training: Training) -> None:
        if any(layer.operator in edge_attributes.kinds() for layer in training.model):
            raise ValueError(
                "edges to generated neighbors have no attributes; choose model sage, or gcn with weighted = false and "
                "directed = 'none'"
            )

    def init(self, fed: Federation, w: Tree) -> Tree:
        fed.map(self.learn, {"classes": fed.classes})
        for number in range(self.exchanges if len(fed.clients) > 1 else 0):
            self.exchange(fed, random.fold(fed.key("peers"), number))
        fed.replace_data(self.mend)
        return {}

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.learn, *(self.offer, self.match, self.improve) * self.exchanges, self.mend)

    def exchange(self, fed: Federation, key: Tensor) -> None:
        """One step of all generators, with gradients of other clients."""
        offers = fed.map(self.offer)
        owners = self.owners(offers.clients, key)
        replies = fed.map(self.match, each=Stacked(offers.clients, forward_offers(offers, owners)))
        fed.map(self.improve, each=Stacked(offers.clients, {"gradient": sum_gradients(replies, owners)}))

    def owners(self, clients: Sequence[str], key: Tensor) -> Tensor:
        """int64 [k, P]: the owners of the generators that each client gets, all different in a row; each generator goes
        to k others."""
        count = len(clients) - 1
        member = torch.ones(count, dtype=torch.bool, device=key.device)
        shifts = 1 + random.order(key, member).argsort()[: self.peers or count]
        by_id = sorted(range(len(clients)), key=lambda at: clients[at])  # independent of the clients' order
        ring = torch.tensor(by_id, device=key.device)
        return ring[(ring.argsort() + shifts[:, None]) % len(clients)]

    @on_client(hears={"classes": "how many classes there are"})
    def learn(self, client: Client, message: Tree) -> Tree:
        """Hide some nodes, and train a generator to predict them for their neighbors; sends nothing."""
        graph, key = client.graph, client.key
        hidden = self.draw_hidden(graph, key)
        known = {"hidden": hidden, "norms": squares(graph.x)}
        first = self.net.init(random.fold(key, "init"), graph.x.shape[1], message["classes"], graph.x.dtype)
        w = fit(self.local_loss, first, graph, key, self.update_rule, self.epochs, args=known).w
        z = embeddings(w["encoder"], graph, graph.real & ~hidden)
        memory = known | {"w": w, "z": z, "count": counts(w["count"], z)}
        client.state["neighbours"] = memory | {"optimizer": self.update_rule.init(w["features"])}
        return {}

    def local_loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """The loss of the generator, scalar: errors in number and features of hidden neighbors, and the classifier's
        loss."""
        visible = graph.real & ~args["hidden"]
        z = embeddings(w["encoder"], graph, visible)
        count = counts(w["count"], z)
        number = miscount(count, hidden_neighbors(graph, args["hidden"]), visible)
        rows, real = self.draw_rows(graph, random.fold(key, "rows"), args["hidden"])
        features = self.net.features(w["features"], add_noise(gather_rows(z, rows), random.fold(key, "noise")))
        slots = self.round_counts(count.detach(), random.fold(key, "slots")).gather(0, rows)
        used = self.net.used_slots(slots) & real[:, None]
        matching = self.local_mismatch(graph, features, rows, real, args)
        result: Tensor = number + matching + classification(w["classifier"], graph, visible, rows, features, used)
        return result

    def draw_rows(self, graph: Graph, key: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Some visible nodes with hidden neighbors, int64 [sample], and which of them are real."""
        return draw_nodes(graph.real & ~hidden & (hidden_neighbors(graph, hidden) > 0), key, self.sample)

    def local_mismatch(self, graph: Graph, features: Tensor, rows: Tensor, real: Tensor, args: Tree) -> Tensor:
        """The distance of the generated `features` [b, slots, d] of `rows` to the features of their hidden neighbors,
        with a slot for each of these."""
        is_row = (rows == torch.arange(graph.nodes, device=rows.device)[:, None]).to(features.dtype)  # [n, b]
        near = (graph.edges.operator("sum") @ is_row > 0) & args["hidden"][:, None]
        used = self.net.used_slots(near.sum(0)) & real[:, None]
        return mismatch(features, used, graph.x, args["norms"], near)

    def round_counts(self, count: Tensor, key: Tensor) -> Tensor:
        """int64 [n]: the number of used slots, from n̂ [n]."""
        if self.rounding == "nearest":
            return torch.round(count).long()
        up = random.uniform(key, tuple(count.shape)) if self.rounding == "random" else 0
        return torch.floor(count + up).long()

    def _offer_sends(self) -> Declaration:
        return {
            "generator": "weights that make features of missing neighbors, trained on hidden neighbors",
            "embedding": Sends("embeddings of a sample of the client's nodes, with noise", Gaussian(1.0)),
            "slots": Sends("how many neighbors each of these nodes is believed to miss", within=Whole(0, self.slots)),
        }

    @on_client(sends=_offer_sends)
    def offer(self, client: Client, message: Tree) -> Tree:
        """The generator of features, and the nodes to generate features for."""
        memory, key = client.state["neighbours"], client.key
        slots = self.round_counts(memory["count"], random.fold(key, "slots")).clamp(max=self.slots)
        visible = client.graph.real & ~memory["hidden"]
        rows, real = draw_nodes(visible & (slots > 0), random.fold(key, "rows"), self.sample)
        z = add_noise(gather_rows(memory["z"], rows), random.fold(client.secret, "noise"))
        return {"generator": memory["w"]["features"], "embedding": z, "slots": slots.gather(0, rows) * real}

    @on_client(sends={"gradient": _GRADIENT}, hears=_OFFERED)
    def match(self, client: Client, message: Tree) -> Tree:
        """{"gradient": {"0": for the first offer, …}}."""
        norms = client.state["neighbours"]["norms"]
        zero = {i: map_leaves(torch.zeros_like, offer["generator"]) for i, offer in message["offers"].items()}
        inputs = {"offers": message["offers"], "norms": norms}
        # from 0 a plain step of length 1 leads to the negative gradient, without a rounding
        step = fit(self.offers_loss, zero, client.graph, client.key, Sgd(1.0), 1, args=inputs)
        return {"gradient": scale(step.w, -1.0)}

    def offers_loss(self, change: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """The distance of features by the offered generators, with `change` added to their weights, to the client's own
        nodes."""
        terms = list[Tensor]()
        for i, offer in args["offers"].items():
            features = self.net.features(map_leaves(torch.add, offer["generator"], change[i]), offer["embedding"])
            mine = graph.real[:, None].expand(-1, len(features))
            terms.append(mismatch(features, self.net.used_slots(offer["slots"]), graph.x, args["norms"], mine))
        return sum(terms[1:], terms[0])

    @on_client(hears={"gradient": "the sum of the gradients that other members returned for its generator"})
    def improve(self, client: Client, message: Tree) -> Tree:
        """One step of the generator of features along its own gradient and the gradients of other clients; sends
        nothing."""
        memory = client.state["neighbours"]
        known = {name: memory[name] for name in ("hidden", "norms", "z")} | {"gradient": message["gradient"]}
        features, _, optimizer = fit(
            self.joint_loss, memory["w"]["features"], client.graph, client.key, self.update_rule, 1,
            args=known, state=memory["optimizer"],
        )  # fmt: skip
        client.state["neighbours"] = memory | {"w": memory["w"] | {"features": features}, "optimizer": optimizer}
        return {}

    def joint_loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """The client's own matching term, plus a linear term whose gradient is the one that other clients returned."""
        rows, real = self.draw_rows(graph, random.fold(key, "rows"), args["hidden"])
        features = self.net.features(w, add_noise(gather_rows(args["z"], rows), random.fold(key, "noise")))
        gradient = dict(leaves(args["gradient"]))
        linear = [(leaf * gradient[path]).sum() for path, leaf in leaves(w)]
        return sum(linear, self.local_mismatch(graph, features, rows, real, args))

    @on_client(replaces_data=True)
    def mend(self, client: Client, message: Tree) -> Tree:
        """The whole graph with generated neighbors; sends nothing, and deletes the generator."""
        w, graph, key = client.state.pop("neighbours")["w"], client.graph, client.key
        z = embeddings(w["encoder"], graph, graph.real)
        slots = self.round_counts(counts(w["count"], z), random.fold(key, "slots")) * graph.real
        owners = slots.clamp(max=self.slots).nonzero()[:, 0]
        features = self.net.features(w["features"], add_noise(z, random.fold(key, "noise"))[owners])
        used = self.net.used_slots(slots[owners])
        owners = owners[:, None].expand(used.shape)[used]
        new = add_neighbors(graph_arrays(graph), owners.cpu().numpy(), features[used].cpu().numpy())
        return {DATA: graph_like(graph, new)}


def forward_offers(offers: Replies, owners: Tensor) -> Tree:
    """{"offers": {"0": the offers of the clients owners[0], …}}, leaves [P, …]."""
    result: Tree = {str(i): {} for i in range(len(owners))}
    for path, _ in leaves(offers[offers.clients[0]]):
        stacked = offers.stack(path)
        for i, at in enumerate(owners):
            result[str(i)][path] = stacked[at]
    return {"offers": {number: nest(flat) for number, flat in result.items()}}


def sum_gradients(replies: Replies, owners: Tensor) -> Tree:
    """For each client the sum of the gradients that others returned for its generator, leaves [P, …]."""
    first = replies[replies.clients[0]]["gradient"]
    totals = {}
    for path, leaf in leaves(first["0"]):
        total = leaf.new_zeros(len(replies), *leaf.shape, dtype=torch.float64)
        for i, at in enumerate(owners):
            total.index_add_(0, at, replies.stack(f"gradient/{i}/{path}").double())
        totals[path] = total.to(leaf.dtype)
    return nest(totals)


@preset_of(MissingNeighbours, SampledCrossEntropy, Uniform)
class FedSagePlus:
    """FedSage on graphs that clients mended with generated neighbors.

    local_steps: mini-batches per round.
    """

    local_steps: int = 5

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients train on mini-batches of mended graphs"
    }
    test_settings: ClassVar[Record] = {
        "batch": 8,
        "fan_out": 2,
        "local_steps": 2,
        "slots": 2,
        "epochs": 2,
        "exchanges": 2,
        "peers": 2,
        "sample": 8,
        "hidden": (8,),
        "rounding": "random",
    }
