"""Local training, the reference point without federation (also "Self-train", "Local Only", "Standalone")."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg, LocalTraining
from fedweave.algorithms.parts import (
    Composition,
    Context,
    Needs,
    Objective,
    Part,
    Training,
)
from fedweave.algorithms.parts.conflicts import called, check_links, made, shown
from fedweave.algorithms.parts.pace import RateSchedule
from fedweave.algorithms.parts.part import has
from fedweave.algorithms.preset import preset
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.learn import keep_trained

# Hooks that nobody asks for.
_IN_VAIN = ("release", "report", "weigh", "aggregate", "download", "receive", "start", "train", "judged")


@dataclass(frozen=True)
class Local(LocalTraining):
    """Every client trains a model of its own, from weights of its own; nothing leaves but the scores.

    quorum:          share of the clients that must reply.
    parts:           terms of the training loss, cross_entropy by default; others would do nothing, and are refused.
    """

    participation: ClassVar[float] = 1.0  # type: ignore[misc]
    share: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]
    scores: ClassVar[Literal["each"]] = "each"  # type: ignore[misc]

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
        w = keep_trained(client.graph.masks[TRAIN].any(), fitted.w, start)
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
