"""D-FedGNN: Pei et al. 2021, "Decentralized federated graph neural networks", on the ring.

FedEgo (Zhang et al. 2023, section 5.2) compares with it on "the standard ring network", where all models count equally:
after local training, w_i ← (w_{i−1} + w_i + w_{i+1}) / 3. Each of two clients has only the other as a neighbor, so the
mean is of two models; a single client has no neighbor.

Deviations: The paper encrypts what neighbors exchange with keys from a Diffie-Hellman exchange; here the engine
encrypts it. Optimizers other than SGD are allowed, and their state stays at the client from round to round. All clients
start from equal weights, as decentralized SGD does (Lian et al. 2017, algorithm 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedweave.algorithms.local import Local
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core.algorithm import Calls, Evaluation
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.tree import Tree, map_leaves

_HEARS = {"init": "a random number, from which all clients draw the same first weights"}


@dataclass(frozen=True)
class DFedGNN(Local):
    """Every client averages its model with the models of its two neighbors on a ring; no model passes through the
    server.

    Fields as `Local`'s, but for

    quorum: share of the clients that must take part.
    """

    local_steps: int = 5
    recorded = True

    @property
    def any_models(self) -> bool:
        return False

    def init(self, fed: Federation) -> Tree:
        """The key that all clients draw the same first weights from; the server holds no weights."""
        return {"init": fed.key("init")} | super().init(fed)

    def round(self, state: Tree, fed: Federation) -> Tree:
        message = {"init": state["init"]} | self.pace(state)
        sent = fed.send(self.train, to=ring(fed.clients), shared=message, quorum=self.quorum)
        fed.map(self.mix, received=sent, quorum=self.quorum)
        return self.after(state)

    def calls(self, clients: int) -> Calls:
        return replace(super().calls(clients), round=(self.train, self.mix))

    @on_client(
        sends={"w": "model weights after local training"}, peers=True, hears=lambda self: self.client_learns | _HEARS
    )
    def train(self, client: Client, message: Tree) -> Tree:
        """`local_steps` steps on the client's own model, which goes to its neighbors.

        The client's state has the weights "w" that it continues from, and after `mix` also "trained", its weights
        before they were averaged.
        """
        client.state.pop("trained", None)
        return {"w": self._train(client, message["init"], message)}

    @on_client()
    def mix(self, client: Client, message: Tree) -> Tree:
        """w_i ← w_i + Σ_j (w_j − w_i) / (n + 1) over the n neighbors j; an absent neighbor counts as w_j = w_i, so that
        the mean over all clients does not change."""
        present = message["present"]
        neighbors = [message["received"][str(j)]["w"] for j in range(len(present))]

        def mean(leaf: Tensor, *of_neighbors: Tensor) -> Tensor:
            moves = [torch.where(present[j], neighbor - leaf, 0) for j, neighbor in enumerate(of_neighbors)]
            return leaf + sum(moves) / (len(of_neighbors) + 1)

        trained = client.state["w"]
        client.state |= {"w": map_leaves(mean, trained, *neighbors), "trained": trained}
        return {}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(self.score, {"init": state["init"]}, quorum=self.quorum))

    @on_client(sends=PERSONAL_SCORES, hears=_HEARS)
    def score(self, client: Client, message: Tree) -> Tree:
        trained = client.state.get("trained")  # as it was before it was averaged
        w = self.used(client, message)
        return self.score_or_store(client, message, w, lambda: personal_score(self.model, w, client, trained))

    def used(self, client: Client, message: Tree) -> Tree:
        return self._weights(client, message["init"])

    def last_trained(self, client: Client, message: Tree) -> Tree | None:
        """The weights before they were averaged with the neighbors'; None before the first training."""
        return client.state.get("trained", client.state.get("w"))  # "w" where the exchange did not take place


def ring(clients: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """{client: the client before it and the one after it}; of two clients only the other, of a single client none."""
    neighbors: dict[str, tuple[str, ...]] = {}
    for at, client in enumerate(clients):
        before, after = clients[at - 1], clients[(at + 1) % len(clients)]
        if client == before:
            neighbors[client] = ()
        elif before == after:
            neighbors[client] = (before,)
        else:
            neighbors[client] = (before, after)
    return neighbors
