"""Local training, the reference point without federation (also "Self-train", "Local Only", "Standalone")."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg, LocalTraining
from fedweave.algorithms.parts import Composition, Context, Needs, Objective, Part, Training
from fedweave.algorithms.parts.names import by_name, parse_parts, part_name
from fedweave.algorithms.parts.pace import RateSchedule
from fedweave.algorithms.parts.part import has
from fedweave.algorithms.parts.settings_rules import check_links
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.federation import Client, Federation, Step, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.learn import keep_trained

# Hooks that local training never calls.
_UNUSED_HOOKS = ("release", "report", "weigh", "aggregate", "download", "receive", "start", "train", "personalize")


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
        unused = [part_name(part) for part in self.parts if not self.takes_part(type(part))]
        if unused:
            raise ValueError(
                f"parts: {', '.join(unused)} would do nothing here: clients send the server nothing that a part could "
                "change or weigh, so only terms of the training loss have an effect; leave it out"
            )
        check_links(by_name(self.objective.parts), self.model)  # `objective` checks that the model can be trained

    @property
    def any_models(self) -> bool:
        return True

    @staticmethod
    def takes_part(kind: type[Part]) -> bool:
        """Whether a part has a term of the training loss, and needs nothing else."""
        if has(kind, "hear_peers") or (isinstance(kind.needs, Needs) and "received" in kind.needs.reads):
            return False
        return has(kind, "objective") and not any(has(kind, hook) for hook in _UNUSED_HOOKS)

    @property
    def needs(self) -> Capabilities:
        data = list[str]()
        for part in self.parts:
            data += part.needs.data
        return self.capabilities.with_data(data)

    @cached_property
    def objective(self) -> Objective:
        composed = Composition.of((*self.parts, *self.paced), {}, self.model, self.batch_size)
        return Objective(composed, Training.of(self, self.model))

    def init(self, fed: Federation) -> Tree:
        """The states of the parts for the training's pace; the server holds nothing else."""
        return {type(part).__name__: part.init(fed, {}) for part in self.paced}

    def round(self, state: Tree, fed: Federation) -> Tree:
        fed.map(self.train, self.pace(state) or None, quorum=self.quorum)
        return self.after(state)

    def pace(self, state: Tree) -> Tree:
        """{part: its download for all clients} of the parts for the training's pace; {} by default."""
        downloads, at = Tree(), torch.zeros(0, dtype=torch.int64, device="cpu")
        for part in self.paced:
            name = type(part).__name__
            downloads[name], _ = part.download(state[name], at)
        return downloads

    def after(self, state: Tree) -> Tree:
        """The server's state after a round."""
        for part in self.paced:
            if isinstance(part, RateSchedule):
                name = type(part).__name__
                state = state | {name: part.after(state[name])}
        return state

    def calls(self, clients: int) -> Calls:
        """The steps of `Deployable.calls`, and before the first round the steps for the training's pace."""
        setup = list[Step]()
        for part in self.paced:
            setup += part.setup
        return replace(super().calls(clients), setup=tuple(setup))

    @property
    def client_learns(self) -> dict[str, str]:
        """What a client learns about the training's pace."""
        texts = dict[str, str]()
        for part in self.paced:
            if isinstance(part.client_learns, Mapping):
                texts |= {f"{type(part).__name__}/{key}": text for key, text in part.client_learns.items()}
        return texts

    @on_client(hears=lambda self: self.client_learns)
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
        return Evaluation(fed.map(self.score, quorum=self.quorum))

    @on_client(sends=PERSONAL_SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        """Scores of the client's own model."""
        w = self.used(client, message)
        return self.score_or_store(client, message, w, lambda: personal_score(self.model, w, client))

    def used(self, client: Client, message: Tree) -> Tree:
        return self._weights(client, random.fold(client.key, "init"))


def local_of(algorithm: object) -> Local | None:
    """`local` with the model and the learning settings of an algorithm of FedAvg's family, and with those of its parts
    that are terms of the loss and need nothing from others; None for other algorithms, and for models that read what
    others sent."""
    if not isinstance(algorithm, FedAvg) or algorithm.net is not algorithm.model:
        return None
    names = [field.name for field in fields(Local) if field.name not in ("parts", "quorum")]
    settings = {name: getattr(algorithm, name) for name in names}
    parts = tuple(part for part in algorithm.parts if Local.takes_part(type(part)))
    return Local(**settings, parts=parts)
