"""Local training, the reference point without federation (also "Self-train", "Local Only", "Standalone")."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fedavg import LocalTraining
from fedweave.algorithms.parts import (
    Composition,
    Context,
    Needs,
    Objective,
    Part,
    Training,
)
from fedweave.algorithms.parts.names import by_name, parse_parts, part_name
from fedweave.algorithms.parts.pace import RateSchedule
from fedweave.algorithms.parts.part import has
from fedweave.algorithms.parts.settings_rules import check_links
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.learn import keep_trained

# Hooks that local training never calls.
_IN_VAIN = ("release", "report", "weigh", "aggregate", "download", "receive", "start", "train", "personalize")


@dataclass(frozen=True)
class Local(LocalTraining):
    """Every client trains on its own, from its own initial weights; only scores leave it.

    quorum:          share of the clients that must reply.
    parts:           terms of the training loss, cross_entropy by default; other parts would have no effect and raise an
                     error.
    """

    participation: ClassVar[float] = 1.0  # type: ignore[misc]
    share: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]
    scores: ClassVar[Literal["each"]] = "each"  # type: ignore[misc]
    recorded = True

    capabilities: ClassVar[Capabilities] = Capabilities(links=True)

    def __post_init__(self) -> None:
        self.take_model()
        object.__setattr__(self, "parts", parse_parts(self.parts))
        if idle := [part_name(part) for part in self.parts if not self.takes_part(type(part))]:
            raise ValueError(
                f"parts: {', '.join(idle)} would do nothing here: clients send the server nothing that a part could "
                "change or weigh, so only terms of the training loss have an effect; leave it out"
            )
        check_links(by_name(self.objective.parts), self.model)  # `objective` checks that the model can be trained

    @property
    def any_models(self) -> bool:
        """True: clients' models may differ."""
        return True

    @staticmethod
    def takes_part(kind: type[Part]) -> bool:
        """Whether a part has a term of the training loss, and needs nothing else."""
        if has(kind, "hear_peers") or (isinstance(kind.needs, Needs) and "received" in kind.needs.reads):
            return False
        hooks = {hook for hook in ("objective", *_IN_VAIN) if has(kind, hook)}
        return "objective" in hooks and not hooks & {*_IN_VAIN}

    @property
    def needs(self) -> Capabilities:
        """`capabilities`, and what the parts need."""
        return self.capabilities.with_data(word for part in self.parts for word in part.needs.data)

    @cached_property
    def objective(self) -> Objective:
        """The local objective and its training."""
        composed = Composition.of((*self.parts, *self.paced), {}, self.model, self.batch_size)
        return Objective(composed, Training.of(self, self.model))

    def init(self, fed: Federation) -> Tree:
        """The states of the parts for the training's pace; the server holds nothing else."""
        return {type(part).__name__: part.init(fed, {}) for part in self.paced}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """`local_steps` further steps at every client."""
        fed.map(self.train, self.pace(state) or None, quorum=self.quorum)
        return self.after(state)

    def pace(self, state: Tree) -> Tree:
        """{part: its download for all clients} of the parts for the training's pace; {} by default."""
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
        """The steps of `Deployable.calls`, and before the first round the steps for the training's pace."""
        return replace(super().calls(clients), setup=tuple(step for part in self.paced for step in part.setup))

    @property
    def heard(self) -> dict[str, str]:
        """What a client learns about the training's pace."""
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
        start = self._weights(client, init)
        inputs = Context(client, self.objective, message).sent
        fitted = self.objective.fit(start, client, client.key, inputs, state=state)
        w = keep_trained(client.graph.masks[TRAIN].any(), fitted.w, start)
        client.state |= {"w": w} | ({"optimizer": fitted.state} if keeps_optimizer else {})
        return w

    def _weights(self, client: Client, init: Tensor) -> Tree:
        """The client's weights, drawn from the key `init` before it has any."""
        return client.state["w"] if "w" in client.state else models.init(self.model, init, client.graph.x.dtype)

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Each client's model on its own nodes and on the global test graph."""
        return Evaluation(fed.map(self.score, quorum=self.quorum))

    @on_client(sends=PERSONAL_SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        """Scores of the client's own model."""
        w = self.used(client, message)
        return self.score_or_store(client, message, w, lambda: personal_score(self.model, w, client))

    def used(self, client: Client, message: Tree) -> Tree:
        """The client's own weights."""
        return self._weights(client, random.fold(client.key, "init"))
