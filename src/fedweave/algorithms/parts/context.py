"""What a part's hooks see at a client."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedweave.algorithms.parts.training import COUNTS, Training
from fedweave.core import model as models
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, leaves, map_leaves, nest, sub
from fedweave.learn import Fit, Optimiser, Penalty
from fedweave.ops.memory import ByObject

KEEP = "keep"  # in the message of a step that judges models: leave the model to its owner, and send nothing


class Trainable(Protocol):
    """What a client trains for, and how (`objective.Objective`)."""

    @property
    def training(self) -> Training:
        """The model and how it is trained."""
        ...

    def fit(
        self,
        w: Tree,
        client: Client,
        key: Tensor,
        given: Tree | None = None,
        anchor: Tree | None = None,
        state: Tree | None = None,
        penalty: Penalty | None = None,
        steps: int | None = None,
        optimiser: Optimiser | None = None,
        limit: Tensor | None = None,
        within: Tree | None = None,
        share: Tensor | float | None = None,
    ) -> Fit:
        """Train `w` (`Objective.fit`)."""
        ...

    def gradient(self, w: Tree, client: Client, key: Tensor, given: Tree | None = None) -> Tree:
        """The gradient at `w`."""
        ...

    def recalled(self, ctx: "Context") -> Tree:
        """{part: what it recalls at the client}."""
        ...


@dataclass(frozen=True)
class Context:
    """What a part's hooks see at a client.

    client:    graph, private state, key and secret.
    objective: what the client trains for, and how.
    message:   what the server sent.
    name:      under which the part finds what it sent itself, and keeps its memory.
    received:  the weights that the server sent; a leaf that is not shared is the client's own.
    start:     where local training starts. trained: where it ended. last_loss: before its last step (None before it).
    released:  the update of the shared weights as it leaves, or would but for a sum that hides it.
    known:     what `outputs` has computed in this call. said: what a `release` leaves for its part's `report`.
    """

    client: Client
    objective: Trainable
    message: Tree
    name: str = ""
    received: Tree = field(default_factory=dict)
    start: Tree = field(default_factory=dict)
    trained: Tree = field(default_factory=dict)
    last_loss: Tensor | None = None
    released: Tree = field(default_factory=dict)
    known: ByObject[Tensor] = field(default_factory=ByObject)
    said: dict[str, Tensor] = field(default_factory=dict)

    def outputs(self, w: Tree) -> Tensor:
        """Logits [e, c] of the weights `w` for all examples of the client, without dropout; computed once in a call."""
        if w not in self.known:
            self.known[w] = models.apply(self.training.model, w, self.client.graph)
        return self.known[w]

    def at(self, name: str) -> "Context":
        """The same for the part `name`."""
        return replace(self, name=name)

    @property
    def training(self) -> Training:
        """The model and how it is trained."""
        return self.objective.training

    @property
    def given(self) -> Tree:
        """What the part's `download` sent to this client."""
        result: Tree = self.message.get(self.name, {}) | self.message.get("each", {}).get(self.name, {})
        return result

    @property
    def sent(self) -> Tree:
        """{part: what its `download` sent to this client, and what it recalls}, as `objective.fit` takes it."""
        names = self.message.keys() | self.message.get("each", {}).keys()
        found = {name: self.at(name).given for name in sorted(names - {"w", "init", "each", KEEP})}
        return found | {name: found.get(name, {}) | own for name, own in self.objective.recalled(self).items()}

    @property
    def own(self) -> Tree:
        """The weights that the client trained last, at first those that all clients draw."""
        state = self.client.state
        return state["w"] if state.get("w") else self.first

    @property
    def first(self) -> Tree:
        """The weights that all clients start from where the server sends none."""
        return models.init(self.training.model, self.message["init"], self.client.graph.x.dtype)

    @property
    def optimizer_state(self) -> Tree | None:
        """Of the local training, as the client's last round left it; None if it starts afresh."""
        return self.client.state.get("optimizer") if self.training.kept else None

    @property
    def memory(self) -> Tree:
        """What the part kept at this client, {} at first."""
        result: Tree = self.client.state.get(self.name, {})
        return result

    def keep(self, memory: Tree) -> None:
        """Keep `memory` until the client is called again; it never leaves."""
        self.client.state[self.name] = memory

    def keep_alike(self, memory: Tree) -> None:
        """`keep` trees like the weights, of which clients that took equally many local steps have the same in the rows
        that no feature of theirs touches, as of an optimiser's state: there they train the touched rows alone."""
        steps = self.memory.get("steps", torch.zeros_like(self.examples)) + self.training.local_steps
        self.keep(memory | {"steps": steps})

    def remembered(self, key: str, like: Tree) -> Tree:
        """The tree that the part kept under `key`, 0 in the form of another at first."""
        return self.memory[key] if key in self.memory else map_leaves(torch.zeros_like, like)

    @property
    def update(self) -> Tree:
        """Δ_i, the trained weights minus the received ones."""
        return sub(self.trained, self.received)

    def shared(self, w: Tree) -> Tree:
        """The leaves of `w` that the server sends."""
        sent = {path for path, _ in leaves(self.message.get("w", {}))}
        return nest({path: leaf for path, leaf in leaves(w) if path in sent})

    @property
    def examples(self) -> Tensor:
        """n_i, the number of training examples: int64 scalar."""
        return self.client.graph.masks[TRAIN].sum()

    def loss(self, w: Tree) -> Tensor:
        """F_i(w): mean cross-entropy over the training examples without dropout, as the algorithm weighs classes;
        scalar, 0 without any."""
        graph = self.client.graph
        logits = self.outputs(w)
        train = graph.masks[TRAIN]
        loss = self.training.loss.by(self.message.get(COUNTS, {}).get("classes"))
        return loss.of(logits, graph.y.clamp(min=0), train.to(logits.dtype), graph.y, train)
