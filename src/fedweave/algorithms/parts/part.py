"""The interface of all parts of the FedAvg family: optional hooks for client and server."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import Algorithm, Round, is_recorded
from fedweave.core.bounds import NonNegative
from fedweave.core.federation import Client, Federation, Sends, Step
from fedweave.core.graph import FOREIGN, TRAIN, Graph
from fedweave.core.graph_arrays import GraphArrays
from fedweave.core.mechanism import Mechanism, SecureSum
from fedweave.core.model import Hidden, Model
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree, leaves, map_leaves, nest, sub
from fedweave.datasets.base import Dataset
from fedweave.learn import Criterion, Fit, Optimizer, Penalty, optimizer_of
from fedweave.ops.tape import ByObject
from fedweave.partition.base import Partition
from fedweave.partition.client_data import Precompute

# ----------------------------------------------------------------------------------------------------
# How a client trains: the settings that all algorithms with local training share.


OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"]
OptimizerState = Literal["kept", "fresh"]
ClassWeights = Literal["none", "balanced"] | tuple[NonNegative, ...] | dict[str, NonNegative]


def default_weight_decay(links: bool) -> float:
    """The weight decay of local training without a setting; links: whether links are the examples."""
    return 0.0 if links else 5e-4


# The names of parts whose downloads the local training reads.
COUNTS = "ClassCounts"  # sends "classes", the number of training examples of each class at all clients together
RATE = "RateSchedule"  # sends "rate", the factor of lr in this round
BATCHES = "LocalEpochs"  # sends "batches", the largest number of mini-batches of any client


def weighing(algorithm: Algorithm) -> Criterion:
    """How an algorithm weighs classes and errors."""
    return Criterion(
        algorithm.class_weight,
        algorithm.focal,
        algorithm.logit_adjustment,
        algorithm.number_loss,
        algorithm.quantile,
    )


def batches(count: Tensor, batch: int) -> Tensor:
    """Number of mini-batches for `count` examples: ⌈count / batch⌉, int64."""
    return -(-count // batch)


@dataclass(frozen=True)
class Training:
    """A model and the settings of its local training.

    local_steps: optimizer steps per round. optimizer, lr, weight_decay, local_momentum, nesterov, betas: the optimizer.
    optimizer_state: "kept" keeps it from round to round, "fresh" starts each round without.
    loss:            how all cross-entropies weigh classes and errors.
    local_epochs:    passes over the training examples instead of local_steps; 0 takes local_steps.
    batch_size:      training examples per step; 0 for all.
    clip_gradient:   largest norm of a step's gradient; 0 for no limit.

    Raises:
        ValueError: a setting is out of range, or settings do not go together.
    """

    model: Model
    local_steps: int
    optimizer: OptimizerName
    lr: float
    weight_decay: float
    optimizer_state: OptimizerState
    loss: Criterion = field(default_factory=Criterion)
    local_epochs: int = 0
    batch_size: int = 0
    clip_gradient: float = 0.0
    local_momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.local_epochs and self.batch_size and self.kept and self.update_rule.moments:
            raise ValueError(
                f"optimizer_state = {self.optimizer_state!r}: with local_epochs = {self.local_epochs} and batch_size = "
                f"{self.batch_size} clients take different numbers of steps, so their optimizers cannot keep their "
                "states. Set optimizer_state = 'fresh'"
            )

    @classmethod
    def of(cls, algorithm: Algorithm, model: Model) -> "Training":
        """The training settings of an algorithm, which has fields of the same names."""
        names = [entry.name for entry in fields(cls) if entry.name not in ("model", "loss")]
        settings = {name: getattr(algorithm, name) for name in names}
        if settings["weight_decay"] is None:
            settings["weight_decay"] = default_weight_decay(models.example(model) == "link")
        return cls(model, loss=weighing(algorithm), **settings)

    @cached_property
    def update_rule(self) -> Optimizer:
        """The optimizer."""
        return optimizer_of(self.optimizer, self.lr, self.weight_decay, self.local_momentum, self.nesterov, self.betas)

    @property
    def steps(self) -> int:
        """Steps of a round if all clients take the same number: `local_steps`, or epochs of one step each."""
        return self.local_epochs if self.local_epochs and not self.batch_size else self.local_steps

    @property
    def reach(self) -> float:
        """How far a gradient of 1 moves a weight in a round of plain gradient descent."""
        return self.steps * self.lr

    @property
    def kept(self) -> bool:
        """Whether the optimizer's state is kept from round to round."""
        return self.optimizer_state == "kept"


# ----------------------------------------------------------------------------------------------------
# What a part's hooks see at a client.


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
        return self.client.state.get("optimizer") if self.training.kept else None

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


# ----------------------------------------------------------------------------------------------------
# What the terms of a local objective see of one training step.


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


# ----------------------------------------------------------------------------------------------------
# What a part needs of the data, the training and the other parts, and how it protects what leaves a client.


# The code and the reason of an error if clients' models have different widths, see `Needs.models`.
WIDTHS = "model.width"
ONE_WIDTH = "the exchanged values are compared, so the input of the last layer must have one width for all clients"


@dataclass(frozen=True)
class LocalSteps(Settings):
    """What a part needs of the steps of local training.

    optimizer: the only local optimizer with which an update is a sum of gradients; None if any.
    excludes:  settings of the training ("schedule", "local_epochs", "local_momentum") that the part does not support.
    suits:     the local optimizer of its paper; others give a note; None if any.
    pull:      strength s of its term s/2 ‖w − …‖², for a note if plain steps are too long for it; 0 if none.
    several:   what happens only from the second local step on, for a note if training is one step from the received
               weights ("training ends before …"); "" if nothing.
    bounds:    settings that bound the number of examples in a training step; sites may require a minimum.
    """

    optimizer: OptimizerName | None = None
    excludes: tuple[str, ...] = ()
    suits: OptimizerName | None = None
    pull: float = 0.0
    several: str = ""
    bounds: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class Needs(Settings):
    """What a part needs of data, training and other parts. Most parts set one or two of these.

    data:           the data of clients has "sensitive", a sensitive attribute; "ids", their nodes' places in the
                    undivided graph; "items", links that lead from users to items; "classes", one class per example, and
                    no numbers or several labels; "nodes", nodes with neighbors: the part is about them, so that edges
                    are no examples for it, and messages cannot depend on time.
    finder:         precomputes client features before any step runs (`core.operators.Precomputed`); None if nothing.
    reads:          "features": `objective` reads all columns of the features, even columns that are 0 at a client, or
                    `penalty` is no sum over the elements of the weights. "graph": a model's outputs for a client's
                    whole graph; a model that marks the seeds of sampled neighborhoods has none. "received":
                    `objective` or `penalty` compares with weights that the server sends.
    supervised:     its objective is the loss on the examples' classes; only one part may have such an objective.
    links:          its objective supports links as examples; other objectives need classes.
    steps:          what it needs of the steps of local training.
    models:         "global": the joint update moves one global model. "personal": every client gets different weights,
                    so that there is no global model. "whole": the server evaluates clients' models, so it needs all
                    their weights. "any": the exchanged values do not have the weights' shapes, so clients' models may
                    differ if their embeddings have one width.
    personalizes:   what `personalize` gives: "received", the received weights; "tuned", the received weights after
                    further training, for which clients are sent what all parts' terms of the objective need;
                    "trained", the client's model; or "personal", a model beside the global one. The global test
                    evaluates the models of clients if they are "tuned" or "trained", and otherwise the global model.
    private:        patterns of weights that never leave their client, such as "*_mask".
    statistics:     supported running statistics of batch norm: "any"; "home", only statistics that stay at their
                    client, because the part does not average updates; or "none", because the part computes with weights
                    at clients.
    alike:          all clients count equally, also if they report sizes, unless another part weights updates.
    all_clients:    every client takes part in each round.
    decided:        hooks that another part must define.
    sends_gradients:
                    `report` sends gradients, which reveal what the protection of an update hides.
    measures:       what it measures of each client that pay may follow from (`incentives.payoffs.RULES`).
    """

    data: tuple[Literal["sensitive", "ids", "items", "classes", "nodes"], ...] = ()
    finder: Precompute | None = None
    reads: tuple[Literal["features", "graph", "received"], ...] = ()
    supervised: bool = False
    links: bool = False
    steps: LocalSteps = LocalSteps()
    models: tuple[Literal["global", "personal", "whole", "any"], ...] = ()
    personalizes: Literal["received", "tuned", "trained", "personal"] = "personal"
    private: tuple[str, ...] = ()
    statistics: Literal["any", "home", "none"] = "any"
    alike: bool = False
    all_clients: bool = False
    decided: tuple[str, ...] = ()
    sends_gradients: bool = False
    measures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protection:
    """How a part's `release` protects an update.

    mechanism:   the mechanism (`core.mechanism`), several as a tuple; () if none.
    becomes:     what leaves instead of a change of the model weights; "" if it is still a change of weights.
    hides:       the server learns no single client's update or report, so that no other part may read them.
    stateless:   the update must not depend on anything that a client remembers (`core.federation.StepInfo.stateless`).
    plain_loss:  the update follows only the cross-entropy, even if other parts add to the objective.
    most_rounds: the number of rounds for which the target holds; None if there is no limit.
    """

    mechanism: Mechanism | tuple[Mechanism, ...] = ()
    becomes: str = ""
    hides: bool = False
    stateless: bool = False
    plain_loss: bool = False
    most_rounds: int | None = None


_NO_NEEDS, _NO_PROTECTION = Needs(), Protection()


class Part(Settings):
    """One idea of one paper: a frozen dataclass that overrides the hooks it needs. A hook below does nothing, or raises
    NotImplementedError, because it is only called if the part overrides it.

    At the server, in the order of a round: `init`, `download`, `observe`, `limit`, `weigh`, `aggregate`, `value`,
    `update`, `step` and `measures`. At a client: `receive`, `start`, `recall`, `draw`, `objective`, `penalty`,
    `release` and `report`; `personalize` when models are evaluated. `layers` gives the model that is trained and used.
    `state` is the part's memory at the server: a tree, saved in checkpoints.

    Some parts also implement a protocol below: `ChangesData` changes clients' data from round to round, and
    `FollowsData` reacts to such changes. `BoundsExamples` trains in steps on few examples. `Trains` decides how a
    client trains. With `TriesModels` clients try models. With `SendsToPeers` clients send each other values for each
    new model. `ScoresMore` adds measurements, `Warns` warns after a round, `Attackable` knows attacks on what clients
    send, and `JoinsSum` can send its first values by secure aggregation.

    sends:         {key that `report` adds: what the receiver learns from it}.
    client_learns: what a client learns from `download`, as a sentence or {key of it: a sentence}; "" if it gets
                   nothing.
    needs:         what the part needs of data, training and other parts.
    protection:    what its `release` does to an update.
    recorded:      True if the class's hooks do the same each time, and at the server compute only with tensors, of its
                   `state` and the round's replies. An engine may then record them, and rounds that all parts declare.
                   A subclass must declare it again.
    rounds_vary:   whether its rounds do not do the same each time, for example because the server reads values; then
                   only evaluations are recorded.
    """

    sends: ClassVar[Mapping[str, Sends | str]] = {}
    client_learns: ClassVar[str | Mapping[str, str]] = ""

    @property
    def recorded(self) -> bool:
        """See the class; may be a class variable."""
        return False

    @property
    def rounds_vary(self) -> bool:
        """See the class; may be a class variable."""
        return False

    @property
    def needs(self) -> Needs:
        """What the part needs of data, training and other parts; may be a class variable."""
        return _NO_NEEDS

    @property
    def protection(self) -> Protection:
        """How `release` protects an update; may be a class variable."""
        return _NO_PROTECTION

    @property
    def setup(self) -> tuple[Step, ...]:
        """The steps that `init` runs at clients, in order."""
        return ()

    def check(self, training: Training) -> None:
        """Raise a ValueError if the part does not suit the model or the training."""

    def layers(self, model: Model, on_clients: bool) -> Model:
        """The layers of the model that is trained and used, for example with masks on its weights. Each part changes
        the layers of the part before it.

        on_clients: whether the model runs on clients' data; False for the global test graph, which no part changes.
        """
        return model

    # --- server ------------------------------------------------------------------------------------------------------

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The part's state before the first round; w: the first weights."""
        return {}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        """What `ctx.downloaded` has at the P called clients: a tree for all of them, and a tree with leaves [P, …], a
        row for each. A part with `receive` adds a third tree, leaves [P, …]: what each client gets instead of the
        global weights.

        at: int64 [P], the called clients' places among all clients. The server sends the trees of all parts for
        training. For evaluation it sends only those of the part that makes the models, by `receive` and `personalize`
        or else by `start`.
        """
        return {}, {}

    def observe(self, state: Tree, round: Round) -> Tree:
        """The part's state once clients replied, before their updates are weighted."""
        return state

    def limit(self, state: Tree, round: Round) -> Tensor:
        """The server's factor for each update before aggregation, float64 [P]. The factors of all parts multiply."""
        raise NotImplementedError

    def weigh(self, state: Tree, round: Round) -> Tensor | None:
        """The updates' weights: float64 [P], or [P, P], in which row i mixes all clients' weights for client i (then
        the part has "personal" models). They need not sum to 1. Only one part may decide this."""
        raise NotImplementedError

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """The joint update, instead of the weighted sum, for a part that also decides the updates' weights. Only one
        part may decide this."""
        raise NotImplementedError

    def value(self, state: Tree, round: Round) -> Tensor:
        """The value of each client's update, float64 [P]. Only one part may decide this."""
        raise NotImplementedError

    def update(self, state: Tree, round: Round) -> Tree:
        """The part's state once the updates' weights and the joint update are known."""
        return state

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        """The new global weights, and the part's state: the server's optimizer. Only one part may decide this."""
        raise NotImplementedError

    def measures(self, state: Tree) -> Mapping[str, Tensor | float]:
        """{name: measurement after a round}. A measurement is float64 [N], a value for each client, NaN where
        undefined; or [N, N], a value for every two clients, saved with the run; or a number, for the run's summary."""
        return {}

    # --- client ------------------------------------------------------------------------------------------------------

    def receive(self, ctx: Context) -> Tree:
        """The client's weights, from the third tree of `download`, `ctx.message["w"]`. Only one part may decide
        this."""
        raise NotImplementedError

    def start(self, ctx: Context) -> Tree:
        """Where local training starts. Only one part may decide this."""
        return ctx.received

    def recall(self, ctx: Context) -> Tree:
        """Values that `objective` and `penalty` find in `inputs` in addition to the download, such as the part's memory
        at this client, or values computed once before training; {} if none."""
        return {}

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """Random values that each step's `objective` finds in `outputs.drawn`, such as a mini-batch: leaves [steps, …];
        {} if none."""
        return {}

    def objective(self, outputs: Outputs) -> Tensor:
        """A term of the local objective that depends on data, scalar. Terms add up."""
        raise NotImplementedError

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> Tensor:
        """A term of the local objective that depends only on the weights: a scalar that is a sum over the elements of
        the leaves in `w`. `w` may hold few leaves; an absent leaf counts 0 (otherwise the part reads all "features").
        received: the weights that the server sent. It and trees in `inputs` in the form of the weights hold the same
        leaves as `w`. Terms add up."""
        raise NotImplementedError

    def release(self, ctx: Context, update: Tree) -> Tree:
        """The update as it leaves the client. Each part changes the update of the part before it."""
        return update

    def report(self, ctx: Context) -> Tree:
        """Further work at the client after its training, such as a personal model or a note in `ctx.keep`. Returns what
        the client also sends, under the keys of `sends`."""
        return {}

    def personalize(self, ctx: Context) -> Tree:
        """The weights of the model that the client uses. Only one part may decide this."""
        return ctx.start


class OwnCount(Part):
    """A part that weights update i by n_i / Σ n_k. Each client computes n_i on its own, so weighted updates can travel
    inside secure aggregation (`SecureSum`).

    counted: what Σ n_k reveals; "" if every n_i is 1, so that clients count nothing.
    """

    counted: ClassVar[str] = ""

    def counts(self, graph: Graph) -> Tensor:
        """n_i, int64 scalar."""
        raise NotImplementedError

    def scaled(self, ctx: Context) -> Tensor | None:
        """The factor of the client's update before the mean is taken, float64 scalar; None for none."""
        return None

    def rescaled(self, round: Round) -> Tensor | None:
        """The server's factor of the mean; None for none."""
        return None


@runtime_checkable
class JoinsSum(Protocol):
    """A part that sends values before the first round, and can send them by secure aggregation instead."""

    def joined(self, within: SecureSum) -> Part:
        """The part for a run with secure aggregation in the form `within`: its steps send masked values, and the server
        sends all clients the same message."""


@runtime_checkable
class ChangesData(Protocol):
    """A part that changes clients' data from round to round."""

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        """The client's data from this round on, with the same number of nodes, and bool [n], the nodes whose data
        changed. Each part changes the data of the part before it, at all clients, before the server calls any client
        for a round."""


@runtime_checkable
class FollowsData(Protocol):
    """A part that keeps values of nodes, whose data other parts may change."""

    def changed(self, ctx: Context, nodes: Tensor) -> None:
        """Update the part's memory at a client after the data of `nodes`, bool [n] with padding, changed."""


# An attack, what the server receives, and the shares it gets right without and with the defense.
Attacked = tuple[str, str, float, float]


@runtime_checkable
class Attackable(Protocol):
    """A part that knows attacks of a curious server on what clients send for it."""

    def attacks(self, fed: Federation, data: Dataset, partition: Partition, key: Tensor) -> list[Attacked]:
        """A row for each attack: the shares that the server gets right without the part's defense and with it; [] if
        clients send nothing to attack."""


class Trial(NamedTuple):
    """What V clients, or the server, count of c models that they try: {metric: `pairs` float64 [V, c, 2, …]}
    (`metrics.classification.counts`), and how many training examples each class has, `labels` [k]."""

    pairs: Mapping[str, np.ndarray]
    labels: np.ndarray


TryOut = Callable[[Tree], Trial]  # has all clients try models with these weights, leaves [c, …]


@runtime_checkable
class TriesModels(Protocol):
    """A part that has all clients try models on their test examples, once a round's updates are in."""

    def due(self, round: int) -> bool:
        """Whether clients try models in a round, counted from 1."""

    def queries(self, clients: int) -> int:
        """The largest number of models in such a round."""

    def tried(self, state: Tree, round: Round, try_out: TryOut) -> Tree:
        """The part's state after clients tried models with `try_out`."""


@runtime_checkable
class SendsToPeers(Protocol):
    """A part with which clients send each other values for every new global model: after `init`, and after each round.
    Only one part may do so."""

    @property
    def sends_to_peers(self) -> Mapping[str, Sends | str]:
        """{key of the message to a peer: what the peer learns from it}."""

    def tell(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """The client's messages to its peers, {"0": tree, "1": …} in client order; w: the global weights."""

    def hear(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Keep the messages of the client's peers, in client order; present: bool [peers], which peers sent one."""


@runtime_checkable
class ScoresMore(Protocol):
    """A part that adds measurements to the evaluation of a client's model."""

    @property
    def score_sends(self) -> Mapping[str, Sends | str]:
        """{key of the reply: what it reveals}."""

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """The additional measurements of the weights that the client uses, under the keys of `score_sends`."""


@runtime_checkable
class Warns(Protocol):
    """A part that may warn after a round."""

    def warns(self, state: Tree) -> Mapping[str, Tensor]:
        """{warning: whether it applies after the round, bool scalar}."""


@runtime_checkable
class Trains(Protocol):
    """A part that decides how a client trains."""

    def train(self, ctx: Context) -> Fit:
        """Local training from `ctx.start`, by `ctx.objective.fit`, instead of `local_steps` steps of the objective;
        `ctx.optimizer_state` is the optimizer's state. Only one part may decide this."""


@runtime_checkable
class BoundsExamples(Protocol):
    """A part whose training steps can use fewer examples than its settings say."""

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The fewest training examples in any of `steps` steps at a client; steps without examples do not count."""


# Where hooks are declared.
KINDS = (
    *(Part, OwnCount, JoinsSum, ChangesData, FollowsData, Attackable, TriesModels, SendsToPeers, ScoresMore, Warns),
    *(Trains, BoundsExamples),
)


def has(part: Part | type[Part], hook: str) -> bool:
    """Whether a part, or its class, defines a hook."""
    for base in (part if isinstance(part, type) else type(part)).__mro__:
        if hook in base.__dict__:
            return base.__dict__[hook] is not Part.__dict__.get(hook)
    return False


P = TypeVar("P", bound=Part)


def copied(part: P, **known: object) -> P:
    """A copy of a part with class variables set to what it needs to know of the other parts; they are no settings."""
    result = copy.copy(part)
    for name, value in known.items():
        object.__setattr__(result, name, value)
    return result


def counts_itself(part: Part) -> bool:
    """Whether a part is an `OwnCount` whose weights follow its `counts`: the class that defines its `weigh` also
    defines `counts`."""
    weighs: type = next((kind for kind in type(part).__mro__ if "weigh" in vars(kind)), Part)
    return isinstance(part, OwnCount) and "counts" in vars(weighs)


_AT_SERVER = ("download", "observe", "limit", "weigh", "aggregate", "value", "update", "step")  # hooks of a round


def is_traced(part: Part) -> bool:
    """Whether a part's hooks at the server can be traced, or it has none."""
    computes = isinstance(part, TriesModels) or any(has(part, hook) for hook in _AT_SERVER)
    return not computes or (is_recorded(part) and not part.rounds_vary)
