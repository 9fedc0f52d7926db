"""FedAvg: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
algorithm 1.

Deviations: optimisers other than SGD are allowed and start afresh each round; a client's epoch is one full-batch step,
because its graph is one sample (one mini-batch with the objective `ego_cross_entropy`).
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedweave.algorithms import parts
from fedweave.algorithms.scoring import SCORES, on_global_test, score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Evaluation
from fedweave.core.federation import Client, Federation, Sends, on_client
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.learn import OPTIMISERS, check_training, fit


@dataclass(frozen=True)
class FedAvg:
    """Weighted averaging of locally trained weights, made of exchangeable parts (see `algorithms.parts`).

    local_steps:   full-batch steps per round.
    participation: share of the clients sampled per round, at least one.
    quorum:        share of the sampled clients that must reply.
    optimizer:     of the local training.
    lr:            its learning rate.
    weight_decay:  its weight decay.
    objective:     terms of the training loss.
    start:         where a client's training starts.
    weigh:         each client's share in the average.
    release:       what is done to an update before it leaves its client.
    reward:        what the clients get back.
    """

    model: Model
    local_steps: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01
    weight_decay: float = 5e-4
    participation: float = 1.0
    quorum: float = 1.0
    objective: tuple[parts.Objective, ...] = (parts.CrossEntropy(),)
    start: parts.Start = field(default_factory=parts.GlobalStart)
    weigh: parts.Weigh = field(default_factory=parts.BySize)
    release: parts.Release = field(default_factory=parts.Plain)
    reward: parts.Reward = field(default_factory=parts.SameForAll)

    def __post_init__(self) -> None:
        check_training(self.lr, self.weight_decay, local_steps=self.local_steps)
        for name in ("participation", "quorum"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and at most 1")
        if all(term.loss is None for term in self.terms):
            raise ValueError("objective has no term that depends on data; add cross_entropy")
        for term in self.terms:
            term.check(self.model)

    @property
    def terms(self) -> tuple[parts.Objective, ...]:
        """The terms of the local objective."""
        return self.objective

    def init(self, fed: Federation) -> Tree:
        """w_0, and the state of the objective's terms."""
        return {
            "w": models.init(self.model, fed.key("init"), fed.dtype),
            "objective": {str(i): term.init() for i, term in enumerate(self.terms)},
        }

    def round(self, state: Tree, fed: Federation) -> Tree:
        """w_{t+1} = Σ_i weight_i · w_i over the sampled clients that replied."""
        chosen, terms = sample(fed, self.participation), state.get("objective", {})
        replies = fed.map(
            self.train,
            shared=self.reward.shared(state) | {"objective": terms},
            each=self.reward.each(state, chosen),
            clients=chosen,
            quorum=self.quorum,
        )
        weights = self.weigh.weights(replies)
        after = {"w": replies.weighted_sum("w", weights), "objective": terms}
        if any(term.needs_loss for term in self.terms):
            after["loss"] = float(weights @ replies.stack("loss").double())
            change = after["loss"], state.get("loss", math.nan)
            after["objective"] = {str(i): t.update(terms.get(str(i), {}), *change) for i, t in enumerate(self.terms)}
        return after

    def _sends(self) -> dict[str, Sends | str]:
        told: dict[str, Sends | str] = {"w": Sends("model weights after local training", self.release.mechanism)}
        return told | {"loss": "mean training loss before the last local step"} | dict(self.weigh.sends)

    @on_client(sends=_sends)
    def train(self, client: Client, message: Tree) -> Tree:
        """`local_steps` steps from `start`; replies with the released weights."""
        received = message["w"]
        w, loss, _ = fit(
            self._loss,
            self.start.begin(client, received),
            client.graph,
            client.key,
            OPTIMISERS[self.optimizer](self.lr, self.weight_decay),
            self.local_steps,
            args={"states": message.get("objective", {})},
            batches={"minibatch": parts.draw(self.terms, self.model, client.graph, client.key, self.local_steps)},
            penalty=self._penalty if any(term.penalty for term in self.terms) else None,
            anchor=received,
            rows=models.feature_rows(self.model),
        )
        self.start.keep(client, w)
        reply = {"w": self.release.apply(client, received, w), **self.weigh.report(client)}
        return reply | {"loss": loss} if any(term.needs_loss for term in self.terms) else reply

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        return parts.loss(self.terms, w, self.model, graph, key, args)

    def _penalty(self, w: Tensor, received: Tensor, args: Tree) -> Tensor:
        terms = [(term, args.get("states", {}).get(str(i), {})) for i, term in enumerate(self.terms)]
        return sum(term.penalty(w, received, state) for term, state in terms if term.penalty)  # type: ignore[return-value]

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Each client's model on its own nodes; the global model on the global test graph."""
        replies = fed.map(
            self.score, self.reward.shared(state), self.reward.each(state, fed.clients), quorum=self.quorum
        )
        return Evaluation(replies, on_global_test(self.model, state["w"], fed))

    @on_client(sends=SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        """The model that the client would start from, on its own nodes."""
        return score(self.model, self.start.begin(client, message["w"]), client)


def sample(fed: Federation, share: float) -> list[str]:
    """round(share · P) clients, at least one, without replacement, in client order."""
    count = max(1, round(share * len(fed.clients)))
    order = torch.argsort(random.bits(fed.key("participation"), len(fed.clients)))
    return [fed.clients[at] for at in sorted(order[:count].tolist())]
