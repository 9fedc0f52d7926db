"""What a part's hooks see: of a client (`Context`), and of one training step (`Outputs`)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedweave.algorithms.parts.training import COUNTS, Training
from fedweave.core import model as models
from fedweave.core.federation import Client
from fedweave.core.graph import FOREIGN, TRAIN, Graph
from fedweave.core.model import Hidden, Model
from fedweave.core.tree import Tree, leaves, map_leaves, nest, sub
from fedweave.learn import Criterion, Fit, Optimizer, Penalty
from fedweave.ops.tape import ByObject

KEEP = "keep"  # in the message of a step that evaluates models: keep the model at its client, and send nothing


class Trainable(Protocol):
    """A client's objective and its local training (`objective.Objective`)."""

    @property
    def training(self) -> Training:
        """The model and how it is trained."""

    def fit(
        self,
        w: Tree,
        client: Client,
        key: Tensor,
        inputs: Tree | None = None,
        anchor: Tree | None = None,
        state: Tree | None = None,
        penalty: Penalty | None = None,
        steps: int | None = None,
        optimizer: Optimizer | None = None,
        limit: Tensor | None = None,
        within: Tree | None = None,
        share: Tensor | float | None = None,
    ) -> Fit:
        """Train `w` (`Objective.fit`)."""

    def gradient(self, w: Tree, client: Client, key: Tensor, inputs: Tree | None = None) -> Tree:
        """The gradient at `w`."""

    def recalled(self, ctx: "Context") -> Tree:
        """{part: what it recalls at the client}."""


@dataclass(frozen=True)
class Context:
    """What a part's hooks see at a client.

    client:    graph, private state, key and secret.
    objective: the client's objective and its local training.
    message:   what the server sent.
    name:      the part's name, the key of its download and of its memory.
    received:  the weights that the server sent, with the client's own leaves where they are not shared.
    start:     weights before local training.
    trained:   weights after local training.
    last_loss: the loss before the last step of local training; None until then.
    released:  the update of the shared weights as it leaves the client, but without the masks of secure aggregation.
    known:     logits that `outputs` computed in this task.
    notes:     values that a part's `release` leaves for its `report`.
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
    notes: dict[str, Tensor] = field(default_factory=dict)

    def outputs(self, w: Tree) -> Tensor:
        """Logits [e, c] of the weights `w` for all examples of the client, without dropout; computed once per task."""
        if w not in self.known:
            self.known[w] = models.apply(self.training.model, w, self.client.graph)
        return self.known[w]

    def at(self, name: str) -> "Context":
        """This context as the part `name` sees it."""
        return replace(self, name=name)

    @property
    def training(self) -> Training:
        """The model and how it is trained."""
        return self.objective.training

    @property
    def downloaded(self) -> Tree:
        """The values that the part's `download` sent: those for all clients, and this client's row ("each")."""
        result: Tree = self.message.get(self.name, {}) | self.message.get("each", {}).get(self.name, {})
        return result

    @property
    def sent(self) -> Tree:
        """{part: values of its `download` and `recall` for this client}, the `inputs` of `objective.fit`."""
        names = (self.message.keys() | self.message.get("each", {}).keys()) - {"w", "init", "each", KEEP}  # of parts
        downloads = {name: self.at(name).downloaded for name in sorted(names)}
        recalled = self.objective.recalled(self)
        return downloads | {name: downloads.get(name, {}) | memory for name, memory in recalled.items()}

    @property
    def local_weights(self) -> Tree:
        """The weights that the client trained last; before its first training, the initial weights of all clients."""
        state = self.client.state
        return state["w"] if state.get("w") else self.first

    @property
    def first(self) -> Tree:
        """The weights that all clients start from if the server sends none, drawn from its key "init"."""
        return models.init(self.training.model, self.message["init"], self.client.graph.x.dtype)

    @property
    def optimizer_state(self) -> Tree | None:
        """The state of the local optimizer after the client's last round; None if the optimizer starts afresh."""
        return self.client.state.get("optimizer") if self.training.keeps_state else None

    @property
    def memory(self) -> Tree:
        """The part's memory at this client, {} at first."""
        result: Tree = self.client.state.get(self.name, {})
        return result

    def keep(self, memory: Tree) -> None:
        """Keep `memory` at this client until its next task; it never leaves the client."""
        self.client.state[self.name] = memory

    def keep_alike(self, memory: Tree) -> None:
        """`keep` trees in the form of the weights, such as an optimizer's state, with the number of local steps so far.

        Clients train only the rows that their features touch. In the other rows, clients with equal numbers of steps
        keep equal values, which an engine may store once.
        """
        steps = self.memory.get("steps", torch.zeros_like(self.examples)) + self.training.steps
        self.keep(memory | {"steps": steps})

    def remembered(self, key: str, like: Tree) -> Tree:
        """The tree in the part's memory under `key`; at first zeros in the form of `like`."""
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
        scalar, 0 without training examples."""
        graph, logits = self.client.graph, self.outputs(w)
        train = graph.masks[TRAIN]
        criterion = self.training.loss.by(self.message.get(COUNTS, {}).get("classes"))
        return criterion.of(logits, graph.truth, train.to(logits.dtype), graph.y, train)


@dataclass(frozen=True)
class Forward:
    """One forward pass with a step's weights, shared by all terms of the objective."""

    w: Tree
    model: Model
    graph: Graph
    key: Tensor
    loss: Criterion = field(default_factory=Criterion)

    @cached_property
    def hidden(self) -> tuple[Hidden, ...]:
        """The output of every layer but the last."""
        return models.embeddings(self.model[:-1], self.w, self.graph, self.key)

    @cached_property
    def layers(self) -> tuple[Hidden, ...]:
        """Every layer's output."""
        return (*self.hidden, self.last(self.graph))

    def last(self, graph: Graph) -> Hidden:
        """The last layer's output; if the examples are links, for the pairs of `graph`."""
        inner = self.hidden[-1] if self.hidden else graph.x
        return models.apply(self.model[-1:], self.w, graph, self.key, inner, first=len(self.model) - 1)


@dataclass(frozen=True)
class Outputs:
    """What a part's `objective` sees of one training step.

    forward: the forward pass; it runs at most once, when the first term reads `logits` or `embeddings`.
    inputs:  values of the part's `download` and `recall`.
    drawn:   this step's row of the part's `draw`.
    """

    forward: Forward
    inputs: Tree
    drawn: Tree

    def of(self, inputs: Tree, drawn: Tree) -> "Outputs":
        """This step as another part sees it."""
        return replace(self, inputs=inputs, drawn=drawn)

    @property
    def logits(self) -> Tensor:
        """The model's outputs for all examples, with dropout: [e, c]."""
        logits: Tensor = self.forward.layers[-1]
        return logits

    def scores(self, pairs: Tensor, foreign: Tensor | None = None) -> Tensor:
        """The logits [m, 2] of `pairs`, where links are the examples.

        pairs: int64 [3, m], as in `Graph.pairs`. foreign: [F, k], rows of other clients' nodes; in `pairs` their
        numbers count on from `Graph.nodes`.
        """
        graph = self.graph._replace(pairs=pairs)
        if foreign is not None:
            graph = graph._replace(extra={**graph.extra, FOREIGN: foreign})
        return models.rows_of(self.forward.last(graph))

    @property
    def embeddings(self) -> tuple[Hidden, ...]:
        """Every layer's output, from the first layer to the logits; [n, …], or a tree of such tensors
        (`core.model`)."""
        return self.forward.layers

    @property
    def embedding(self) -> Tensor:
        """The input of the last layer, [n, d], or [e, d] of small graphs."""
        return models.rows_of(self.forward.hidden[-1])

    @property
    def w(self) -> Tree:
        """The weights of the step."""
        return self.forward.w

    @property
    def model(self) -> Model:
        """The model, for a part that runs a forward pass itself."""
        return self.forward.model

    @property
    def graph(self) -> Graph:
        """The client's data."""
        return self.forward.graph

    def cross_entropy(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """The mean over the chosen examples, as the algorithm weighs classes; scalar, 0 if none is chosen.

        logits: [e, c], of all examples. chosen: bool [e].
        """
        graph = self.graph
        return self.loss.of(logits, graph.truth, chosen.to(logits.dtype), graph.y, graph.masks[TRAIN])

    @property
    def loss(self) -> Criterion:
        """The criterion, which weighs classes and errors."""
        return self.forward.loss

    @property
    def key(self) -> Tensor:
        """The RNG key of the step."""
        return self.forward.key
