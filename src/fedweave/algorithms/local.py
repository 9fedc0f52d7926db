"""Local training, the reference point without federation (also "Self-train", "Local Only", "Standalone")."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.deployment import Deployable
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import (
    Composition,
    Context,
    Needs,
    Objective,
    OptimizerName,
    OptimizerState,
    Part,
    Training,
)
from fedweave.algorithms.parts.conflicts import called, check_links, made, shown
from fedweave.algorithms.parts.pace import RateSchedule, Schedule, timing
from fedweave.algorithms.parts.part import ClassWeights, has
from fedweave.algorithms.preset import preset
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.bounds import BelowOne, Between, CountOrNone, NonNegative, Positive, Share, Steps
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.settings import Beside
from fedweave.core.tree import Tree
from fedweave.learn import NumberLoss, where_trained

# Hooks that nobody asks for.
_IN_VAIN = ("release", "report", "weigh", "aggregate", "download", "receive", "start", "train", "judged")


@dataclass(frozen=True)
class Local(Deployable):
    """Every client trains a model of its own, from weights of its own; nothing leaves but the scores.

    local_steps:     optimizer steps per round, each on all of a client's training examples.
    optimizer:       optimizer of the training.
    lr:              learning rate.
    weight_decay:    weight decay of the optimizer.
    optimizer_state: optimizer state, "kept" from round to round, or "fresh" in each.
    schedule:        of the learning rate over the run's rounds: "constant", "linear" (to 0), "cosine" (to 0), or "step"
                     (a tenth from half of the rounds on, a hundredth from three quarters on).
    warmup:          rounds before it, in which the rate grows in equal steps to lr.
    local_epochs:    passes over a client's training examples in the place of local_steps; 0 for these.
    batch_size:      training examples of a step, of which each pass takes every one once; 0 for all. Messages pass
                     along the whole graph.
    clip_gradient:   norm of a step's gradient at most; 0 for any.
    local_momentum:  of sgd and rmsprop.
    nesterov:        whether sgd's momentum is Nesterov's.
    betas:           decay of the means of adam and adamw.
    quorum:          share of the clients that must reply.
    parts:           terms of the training loss, cross_entropy by default; others would do nothing, and are refused.
    class_weight:    weights of classes: "none", "balanced" (n / (C n_c) by a client's own training examples, of which
        nothing is told), a number for each class, or a table by name such as {fraud = 30.0}, 1 for the others.
    focal:           gamma of the focal loss, 0 for none.
    logit_adjustment: tau of logits that are adjusted by the client's own shares of the classes, 0 for none.
    number_loss:     where numbers are predicted: "mse", "mae", "huber" or "quantile", in units of training examples.
    quantile:        which one number_loss = "quantile" is for, such as 0.9.
    """

    model: Model
    local_steps: Steps = 3
    optimizer: OptimizerName = "adam"
    lr: Positive = 0.01
    weight_decay: NonNegative = 5e-4
    optimizer_state: OptimizerState = "kept"
    quorum: Share = 1.0
    parts: tuple[Part, ...] = ()
    class_weight: ClassWeights = "none"
    focal: NonNegative = 0.0
    logit_adjustment: NonNegative = 0.0
    number_loss: NumberLoss = "mse"
    quantile: Annotated[Between, Beside("number_loss", "quantile")] = 0.5
    schedule: Schedule = "constant"
    warmup: CountOrNone = 0
    local_epochs: CountOrNone = 0
    batch_size: CountOrNone = 0
    clip_gradient: NonNegative = 0.0
    local_momentum: BelowOne = 0.0
    nesterov: bool = False
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)

    capabilities: ClassVar[Capabilities] = Capabilities(links=True)

    def __post_init__(self) -> None:
        self.take_model()
        object.__setattr__(self, "parts", made(self.parts))
        if idle := [called(part) for part in self.parts if not self.takes_part(type(part))]:
            raise ValueError(
                f"parts: {', '.join(idle)} would do nothing here: clients send the server nothing that a part could "
                "change or weigh, and parts add terms to the training loss alone; leave it out"
            )
        check_links(shown(self.objective.parts), self.model)  # `objective` refuses what cannot be trained

    @property
    def any_models(self) -> bool:
        """Yes."""
        return True

    @staticmethod
    def takes_part(kind: type[Part]) -> bool:
        """Whether a part has something to act on, a term of the training loss, and no need of anything else."""
        if isinstance(kind.needs, Needs) and (kind.needs.received or kind.needs.tells):
            return False
        hooks = {hook for hook in ("objective", *_IN_VAIN) if has(kind, hook)}
        return "objective" in hooks and not hooks & {*_IN_VAIN}

    @property
    def needs(self) -> Capabilities:
        """`capabilities`, and what the parts need."""
        return self.capabilities.asked([part.needs for part in self.parts])

    @cached_property
    def objective(self) -> Objective:
        """What a client trains for, and how."""
        composed = Composition.of((*self.parts, *self.paced), {}, models.example(self.model), self.batch_size)
        return Objective(composed, Training.of(self, self.model))

    @property
    def paced(self) -> tuple[Part, ...]:
        """The parts that the pace of the training asks for."""
        return timing(self.schedule, self.warmup, self.local_epochs, self.batch_size)

    def least_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{part and settings: fewest training examples of a step} at a client (`Objective.least_examples`)."""
        return self.objective.least_examples(graph)

    def init(self, fed: Federation) -> Tree:
        """The server holds nothing but what of the training's pace it has to say."""
        return {type(part).__name__: part.init(fed, {}) for part in self.paced}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """`local_steps` further steps at every client."""
        fed.map(self.train, self.pace(state) or None, quorum=self.quorum)
        return self.after(state)

    def pace(self, state: Tree) -> Tree:
        """{part: what it sends all clients} of the training's pace; {} by default."""
        return {
            name: part.download(state[name], torch.zeros(0, dtype=torch.int64, device="cpu"))[0]
            for part in self.paced
            if (name := type(part).__name__)
        }

    def after(self, state: Tree) -> Tree:
        """The server's state after a round."""
        counted = {type(part).__name__: part for part in self.paced if isinstance(part, RateSchedule)}
        return state | {name: part.after(state[name]) for name, part in counted.items()}

    def calls(self, clients: int) -> Calls:
        """What the pace of the training asks for, before the first round."""
        return replace(super().calls(clients), setup=tuple(step for part in self.paced for step in part.setup))

    @property
    def heard(self) -> dict[str, str]:
        """What a client learns of the training's pace."""
        learns = ((type(part).__name__, part.client_learns) for part in self.paced)
        texts = ((name, key, text) for name, says in learns if isinstance(says, Mapping) for key, text in says.items())
        return {f"{name}/{key}": text for name, key, text in texts}

    @on_client(hears=lambda self: self.heard)
    def train(self, client: Client, message: Tree) -> Tree:
        """Continue from the client's own weights; sends nothing."""
        self._train(client, random.fold(client.key, "init"), message)
        return {}

    def _train(self, client: Client, init: Tensor, message: Tree) -> Tree:
        keeps_optimizer = self.optimizer_state == "kept"
        state = client.state.get("optimizer") if keeps_optimizer else None
        start = self._own(client, init)
        inputs = Context(client, self.objective, message).sent
        fitted = self.objective.fit(start, client, client.key, inputs, state=state)
        w = where_trained(client.graph.masks[TRAIN].any(), fitted.w, start)
        client.state |= {"w": w} | ({"optimizer": fitted.state} if keeps_optimizer else {})
        return w

    def _own(self, client: Client, init: Tensor) -> Tree:
        """The client's weights, drawn from the key `init` before it has any."""
        return client.state["w"] if "w" in client.state else models.init(self.model, init, client.graph.x.dtype)

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Each client's model on its own nodes and on the global test graph."""
        return Evaluation(fed.map(self.score, quorum=self.quorum))

    @on_client(sends=PERSONAL_SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        """The client's own model."""
        w = self.used(client, message)
        return self.judged(client, message, w, lambda: personal_score(self.model, w, client))

    def used(self, client: Client, message: Tree) -> Tree:
        """The client's own weights."""
        return self._own(client, random.fold(client.key, "init"))


@preset
@dataclass(frozen=True)
class Centralized:
    """FedAvg with one client that holds the undivided graph, all edges between clients included.

    Between organizations it is refused, since nobody may hold it.
    """

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, pooled=True)

    def parts(self) -> tuple[Part, ...]:
        """FedAvg's."""
        return ()
