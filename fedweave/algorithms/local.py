"""Local training, the reference point without federation (also "Self-train", "Local Only", "Standalone")."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedweave.algorithms import parts
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Evaluation
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.learn import OPTIMISERS, check_training, fit


@dataclass(frozen=True)
class Local:
    """Every client trains a model of its own, from weights of its own; nothing leaves but the scores.

    local_steps:  full-batch steps per round.
    optimizer:    of the training.
    lr:           learning rate.
    weight_decay: of the optimizer.
    quorum:       share of the clients that must reply.
    objective:    terms of the training loss; those that pull to received weights do not apply.
    """

    model: Model
    local_steps: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01
    weight_decay: float = 5e-4
    quorum: float = 1.0
    objective: tuple[parts.Objective, ...] = (parts.CrossEntropy(),)

    def __post_init__(self) -> None:
        check_training(self.lr, self.weight_decay, local_steps=self.local_steps)
        if any(term.loss is None for term in self.objective) or not self.objective:
            raise ValueError("objective must be terms that depend on data alone, such as cross_entropy")
        for term in self.objective:
            term.check(self.model)

    def init(self, fed: Federation) -> Tree:
        """The server holds nothing."""
        return {}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """`local_steps` further steps at every client."""
        fed.map(self.train, quorum=self.quorum)
        return state

    @on_client()
    def train(self, client: Client, message: Tree) -> Tree:
        """Continue from the client's own weights; sends nothing."""
        self._train(client, random.fold(client.key, "init"))
        return {}

    def _train(self, client: Client, init: Tensor) -> Tree:
        client.state["w"], *_ = fit(
            self._loss,
            self._own(client, init),
            client.graph,
            client.key,
            OPTIMISERS[self.optimizer](self.lr, self.weight_decay),
            self.local_steps,
            batches={"minibatch": parts.draw(self.objective, self.model, client.graph, client.key, self.local_steps)},
        )
        return client.state["w"]

    def _own(self, client: Client, init: Tensor) -> Tree:
        """The client's weights, drawn from the key `init` before it has any."""
        return client.state["w"] if "w" in client.state else models.init(self.model, init, client.graph.x.dtype)

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        return parts.loss(self.objective, w, self.model, graph, key, args)

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Each client's model on its own nodes and on the global test graph."""
        return Evaluation(fed.map(self.score, quorum=self.quorum))

    @on_client(sends=PERSONAL_SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        """The client's own model."""
        return personal_score(self.model, self._own(client, random.fold(client.key, "init")), client)
