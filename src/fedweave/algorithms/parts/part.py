"""The common form of all parts of the FedAvg family: hooks for client and server, of which any may be absent."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import Algorithm, Round
from fedweave.core.bounds import NonNegative
from fedweave.core.federation import Client, Federation, Sends, Step
from fedweave.core.graph import FOREIGN, TRAIN, Graph, GraphArrays
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
COUNTS = "ClassCounts"  # the part that sends how many training examples of each "classes" all clients have
RATE, BATCHES = (
    "RateSchedule",
    "LocalEpochs",
)  # parts that send the factor "rate" of lr, and how many "batches" are most
ClassWeights = Literal["none", "balanced"] | tuple[NonNegative, ...] | dict[str, NonNegative]


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
    """How many mini-batches `count` examples make: ⌈count / batch⌉, int64."""
    return -(-count // batch)


@dataclass(frozen=True)
class Training:
    """A model and how it is trained locally.

    local_steps:     optimizer steps per round. optimizer, lr, weight_decay, local_momentum, nesterov, betas: of these.
    optimizer_state: "kept" from round to round, or "fresh" in each.
    loss:            of the classes, which all cross-entropies are.
    local_epochs:    passes over the training examples in the place of local_steps; 0 for these.
    batch_size:      training examples of a step; 0 for all.
    clip_gradient:   norm of a step's gradient at most; 0 for any.

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
                f"{self.batch_size} clients take different numbers of steps and their optimizers start afresh. Set "
                "optimizer_state = 'fresh'"
            )

    @classmethod
    def of(cls, algorithm: Algorithm, model: Model) -> "Training":
        """Of an algorithm that has all these settings, by the same names."""
        names = [field.name for field in fields(cls) if field.name not in ("model", "loss")]
        return cls(model, loss=weighing(algorithm), **{name: getattr(algorithm, name) for name in names})

    @cached_property
    def update_rule(self) -> Optimizer:
        """The optimizer."""
        how = self.local_momentum, self.nesterov, self.betas
        return optimizer_of(self.optimizer, self.lr, self.weight_decay, *how)

    @property
    def steps(self) -> int:
        """Steps of a round where all clients take as many: `local_steps`, or epochs of one step each."""
        return self.local_epochs if self.local_epochs and not self.batch_size else self.local_steps

    @property
    def reach(self) -> float:
        """How far a gradient of 1 carries a weight in a round of plain gradient descent."""
        return self.steps * self.lr

    @property
    def kept(self) -> bool:
        """Whether the optimizer's state lasts."""
        return self.optimizer_state == "kept"


# ----------------------------------------------------------------------------------------------------
# What a part's hooks see at a client.


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
        optimizer: Optimizer | None = None,
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
        result = {name: self.at(name).given for name in sorted(names - {"w", "init", "each", KEEP})}
        return result | {name: result.get(name, {}) | memory for name, memory in self.objective.recalled(self).items()}

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
        that no feature of theirs touches, as of an optimizer's state: there they train the touched rows alone."""
        steps = self.memory.get("steps", torch.zeros_like(self.examples)) + self.training.steps
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
        return loss.of(logits, graph.truth, train.to(logits.dtype), graph.y, train)


# ----------------------------------------------------------------------------------------------------
# What the terms of a local objective see of one training step.


@dataclass(frozen=True)
class Forward:
    """One pass through the model with a step's weights, shared by all terms that read it."""

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
        """The last layer's output, of pairs in `graph` of its own where links are the examples."""
        inner = self.hidden[-1] if self.hidden else graph.x
        return models.apply(self.model[-1:], self.w, graph, self.key, inner, first=len(self.model) - 1)


@dataclass(frozen=True)
class Outputs:
    """What a part's `objective` sees of one training step.

    forward: the pass through the model, run if a term reads `logits` or `embeddings`, and once for all that do.
    given:   what the part's `download` sent and its `recall` told.
    drawn:   this step's row of what the part's `draw` drew.
    """

    forward: Forward
    given: Tree
    drawn: Tree

    def of(self, given: Tree, drawn: Tree) -> "Outputs":
        """The same step as another part sees it."""
        return replace(self, given=given, drawn=drawn)

    @property
    def logits(self) -> Tensor:
        """The model's outputs for all examples, with dropout: [e, c]."""
        logits: Tensor = self.forward.layers[-1]
        return logits

    def scores(self, pairs: Tensor, foreign: Tensor | None = None) -> Tensor:
        """The logits [m, 2] of pairs int64 [3, m], as in `Graph.pairs`, where links are the examples. foreign: [F, k],
        rows of nodes that are not the client's, which pairs number from `Graph.nodes` on."""
        graph = self.graph._replace(pairs=pairs)
        if foreign is not None:
            graph = graph._replace(extra={**graph.extra, FOREIGN: foreign})
        return models.rows_of(self.forward.last(graph))

    @property
    def embeddings(self) -> tuple[Hidden, ...]:
        """Every layer's output, the first layer's first, the logits last; [n, …], or a tree of such (`core.model`)."""
        return self.forward.layers

    @property
    def embedding(self) -> Tensor:
        """What the last layer is computed from, [n, d], or [e, d] of small graphs."""
        return models.rows_of(self.forward.hidden[-1])

    @property
    def w(self) -> Tree:
        """The weights that the step is at."""
        return self.forward.w

    @property
    def model(self) -> Model:
        """The model, for a part that makes a pass of its own."""
        return self.forward.model

    @property
    def graph(self) -> Graph:
        """The client's data."""
        return self.forward.graph

    def cross_entropy(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """The mean over the `chosen` examples, bool [e], as the algorithm weighs classes; scalar, 0 without any. logits
        [e, c]: of all examples."""
        graph = self.graph
        return self.loss.of(logits, graph.truth, chosen.to(logits.dtype), graph.y, graph.masks[TRAIN])

    @property
    def loss(self) -> Criterion:
        """How classes are weighed."""
        return self.forward.loss

    @property
    def key(self) -> Tensor:
        """Of the step's randomness."""
        return self.forward.key


# ----------------------------------------------------------------------------------------------------
# What a part asks of the data, the training and the other parts, and how it protects what leaves a client: one value
# each.


WIDTHS = "model.width"  # the code of what is refused because of `Needs.any_models`:
ONE_WIDTH = (
    "what is exchanged is compared, so that all members' embeddings, what the last layer reads, must be of one width"
)


@dataclass(frozen=True)
class Needs:
    """What a part needs.

    sens:           clients have a sensitive attribute.
    ids:            clients have their nodes' places in the undivided graph.
    finder:         what looks for something in clients' data before any step runs (`core.operators.Precomputed`); None
                    if nothing.
    everyone:       every client takes part in each round.
    optimizer:      the only one that the local training may have, for an update to be a sum of gradients; None if any.
    excludes:       settings of the training ("schedule", "local_epochs", "local_momentum") that it cannot go with.
    suits:          the one that it is made for, where others are noted; None if any.
    pull:           s of its term s/2 ‖w − …‖², for a note where plain steps are too long for it; 0 if none.
    several_steps:  what has no effect where training is one step from the received weights, as a note; "" if nothing.
    tells_gradients: what `report` sends tells what protects an update would hide.
    received:       the server sends weights, with which `objective` or `penalty` compares.
    whole_features: `objective` reads all columns of the features, even those that are 0 at a client, or `penalty` is no
                    sum over the elements of the weights.
    decided:        hooks that some other part decides.
    supervised:     its objective is that of the examples' classes, which one part alone may have.
    links:          its objective can be of links; others are of classes, and refused where links are the examples.
    items:          links lead from users to items.
    whole_models:   the server judges clients' models, of which it has all weights.
    one_model:      the joint update moves one global model.
    personal:       every client gets weights of its own, so that there is no one global model.
    private:        patterns of weights that never leave their client, such as "*_mask".
    alike:          clients count alike, whatever they say of themselves, unless another part weights updates.
    any_models:     what it exchanges has none of the weights' shapes, so that clients' models may be of different forms
                    whose embeddings are of one width.
    judged_apart:   the global test judges the models that the clients use (`judged`), not the global one.
    judged_global:  `judged` gives the received weights, so that clients use the global model.
    tunes:          `judged` trains the received weights, so that clients are sent what all parts' terms of the
                    objective need.
    nodes:          it is about nodes and who their neighbors are, so that edges are no examples for it, and messages
                    cannot depend on time.
    classes:        it is about the classes of examples, so that numbers or several labels are none for it.
    whole_graphs:   it reads what models make of a client's whole graph, which one that marks the seeds of sampled
                    neighborhoods cannot give.
    tells:          clients tell each other something of each global model (`TellsPeers`).
    statistics:     running statistics of batch norm that it goes with: "any"; "home", those alone that stay at their
                    client, as it makes something else of updates than a mean; or "none", as it computes with weights at
                    clients.
    bounds:         settings that bound the number of examples in a training step; sites may require more than a few.
    """

    sens: bool = False
    ids: bool = False
    finder: Precompute | None = None
    everyone: bool = False
    optimizer: OptimizerName | None = None
    excludes: tuple[str, ...] = ()
    suits: OptimizerName | None = None
    pull: float = 0.0
    several_steps: str = ""
    tells_gradients: bool = False
    received: bool = False
    whole_features: bool = False
    decided: tuple[str, ...] = ()
    supervised: bool = False
    links: bool = False
    items: bool = False
    whole_models: bool = False
    one_model: bool = False
    personal: bool = False
    private: tuple[str, ...] = ()
    alike: bool = False
    any_models: bool = False
    judged_apart: bool = False
    judged_global: bool = False
    tunes: bool = False
    nodes: bool = False
    classes: bool = False
    whole_graphs: bool = False
    tells: bool = False
    statistics: Literal["any", "home", "none"] = "any"
    bounds: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class Protection:
    """What a part's `release` makes of an update.

    mechanism:   how that protects it (`core.mechanism`), several as a tuple; () if it does not.
    becomes:     what leaves in the place of a change of the model weights; "" if it is one still.
    hides:       the server learns no single client's update or report, so that no other part may look at them.
    stateless:   the update must not depend on anything that a client remembers (`core.federation.StepInfo.stateless`).
    plain_loss:  the update is of the cross-entropy alone, whatever other parts add to the objective.
    most_rounds: for how many rounds that protects enough; None if it does not matter.
    """

    mechanism: Mechanism | tuple[Mechanism, ...] = ()
    becomes: str = ""
    hides: bool = False
    stateless: bool = False
    plain_loss: bool = False
    most_rounds: int | None = None


P = TypeVar("P", bound="Part")
_NO_NEEDS, _NO_PROTECTION = Needs(), Protection()


class Part(Settings):
    """One idea of one paper; a frozen dataclass that overrides the hooks it has. Those below do nothing.

    At the server, in the order of a round: `init`, `download`, `observe`, `limit`, `weigh`, `aggregate`, `value`,
    `update`, `step` and `measures`. At a client: `receive`, `start`, `recall`, `draw`, `objective`, `penalty`,
    `release` and `report`; `judged` when models are evaluated. `layers` gives the model that is trained and used.
    `state` is the part's memory at the server: a tree, saved in checkpoints. A part that changes clients' data from
    round to round, or has to know of it, is `ChangesData` or `FollowsData` as well; one whose training steps can be on
    few examples `BoundsExamples`, one that decides how a client trains `Trains`, one that has clients try models
    `TriesModels`, and one by which clients tell each other something of each new model `TellsPeers`.

    sends:         {key of what `report` adds: what the receiver learns from it}.
    client_learns: what a client learns from `download`, as a sentence or {key of it: a sentence}; "" if it gets
        nothing.
    needs:         what the part asks of data, training and other parts.
    protection:    what its `release` does to an update.
    recorded:      a class may say True: its hooks at the server compute with tensors alone, the same way in every
        round, so that an engine may record them and have a GPU run them at once. Who inherits from it says so again.
    """

    sends: ClassVar[Mapping[str, Sends | str]] = {}
    client_learns: ClassVar[str | Mapping[str, str]] = ""

    @property
    def needs(self) -> Needs:
        """What the part asks of data, training and other parts; may be a class variable."""
        return _NO_NEEDS

    @property
    def protection(self) -> Protection:
        """What `release` does to an update; may be a class variable."""
        return _NO_PROTECTION

    @property
    def setup(self) -> tuple[Step, ...]:
        """The steps that `init` runs at clients, in order."""
        return ()

    def check(self, training: Training) -> None:
        """Raise a ValueError if the part does not suit the model or the training."""

    def layers(self, model: Model, own: bool) -> Model:
        """The model as it is trained and used, layer by layer, for example with masks on its weights: on the clients'
        own data or else on the global test graph, which no part changes. Parts apply theirs one after the other."""
        return model

    # --- server ------------------------------------------------------------------------------------------------------

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The part's state before the first round; w: the first weights."""
        return {}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        """What the called clients find in `ctx.given`: a tree for all of them, and one with leaves [P, …] of which each
        gets its row; at: int64 [P], the clients' places among all. A part with `receive` adds a third, leaves [P, …]:
        what each gets instead of the global weights. It goes down for training; to judge models only that of the part
        whose `receive` and `judged`, or else `start`, make them."""
        return {}, {}

    def observe(self, state: Tree, round: Round) -> Tree:
        """The part's state once clients replied, before anything is decided about their updates."""
        return state

    def limit(self, state: Tree, round: Round) -> Tensor:
        """The server's factor for each update before aggregation, float64 [P]. Parts' factors multiply."""
        raise NotImplementedError

    def weigh(self, state: Tree, round: Round) -> Tensor | None:
        """The updates' weights: float64 [P], or [P, P] where row i mixes all clients' weights for client i (then the
        part needs `personal` weights). They need not sum to 1. Only one part may decide this."""
        raise NotImplementedError

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """The joint update, instead of the weighted sum, for a part that also decides the updates' weights. Only one
        part may decide this."""
        raise NotImplementedError

    def value(self, state: Tree, round: Round) -> Tensor:
        """What each client's update is worth, float64 [P]. Only one part may decide this."""
        raise NotImplementedError

    def update(self, state: Tree, round: Round) -> Tree:
        """The part's state once it is known how updates count, and the joint one."""
        return state

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        """The new global weights, and the part's state: the server's optimizer. Only one part may decide this."""
        raise NotImplementedError

    def measures(self, state: Tree) -> Mapping[str, Tensor | float]:
        """{name: float64 [N]}: what the server knows about each client after a round, NaN where undefined; or [N, N],
        of every two clients, kept with the run; or a number, of all clients together, in the run's summary."""
        return {}

    # --- client ------------------------------------------------------------------------------------------------------

    def receive(self, ctx: Context) -> Tree:
        """The weights that the third tree of `download`, `ctx.message["w"]`, stands for. Only one part may decide
        this."""
        raise NotImplementedError

    def start(self, ctx: Context) -> Tree:
        """Where local training starts. Only one part may decide this."""
        return ctx.received

    def recall(self, ctx: Context) -> Tree:
        """What `objective` and `penalty` find in `given` in addition to what was sent, such as what the part kept at
        this client, or worked out once before training; {} if nothing."""
        return {}

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """What each step's `objective` finds in `outputs.drawn`, such as a mini-batch: leaves [steps, …]; {} if
        nothing."""
        return {}

    def objective(self, outputs: Outputs) -> Tensor:
        """A term of the local objective that depends on data, scalar. Terms add up."""
        raise NotImplementedError

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        """A term of the local objective that depends on the weights alone: a scalar that sums up over their elements,
        those of the leaves that it finds in `w`, which may be few; the absent count 0 (otherwise the part needs
        `whole_features`). received: the weights that the server sent. It and trees in `given` with the weights' leaves
        are as much of these as `w` is. Terms add up."""
        raise NotImplementedError

    def release(self, ctx: Context, update: Tree) -> Tree:
        """The update as it leaves the client. Parts apply theirs one after the other."""
        return update

    def report(self, ctx: Context) -> Tree:
        """Further work at the client after its training, such as a personal model or a note in `ctx.keep`; gives what
        the client sends besides, under the keys of `sends`."""
        return {}

    def judged(self, ctx: Context) -> Tree:
        """The weights of the model that the client uses. Only one part may decide this."""
        return ctx.start


class OwnCount(Part):
    """A part by which update i counts n_i / Σ n_k with an n_i that its client knows by itself, so that it can travel
    inside a secure sum (`SecureSum`).

    counted: what Σ n_k tells; "" where every n_i is 1, and nothing is counted.
    """

    counted: ClassVar[str] = ""

    def counts(self, graph: Graph) -> Tensor:
        """n_i, int64 scalar."""
        raise NotImplementedError

    def scaled(self, ctx: Context) -> Tensor | None:
        """By what the client multiplies its update before the mean is taken, float64 scalar; None by nothing."""
        return None

    def rescaled(self, round: Round) -> Tensor | None:
        """By what the server multiplies the mean; None by nothing."""
        return None


@runtime_checkable
class JoinsSum(Protocol):
    """A part that can have in a secure sum what it would send before the first round in the clear."""

    def joined(self, within: SecureSum) -> Part:
        """The part where updates leave in a secure sum of this form: what its steps send is in such sums, too, and all
        clients are told the same."""
        ...


@runtime_checkable
class ChangesData(Protocol):
    """A part that changes clients' data from round to round."""

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        """The client's data as it is from this round on, with as many nodes as before, and which nodes have other data
        now: bool [n]. Parts change it one after the other, at all clients, before any is called for a round."""
        ...


@runtime_checkable
class FollowsData(Protocol):
    """A part that keeps something about nodes, whose data others may change."""

    def changed(self, ctx: Context, nodes: Tensor) -> None:
        """Update what the part keeps at a client some of whose `nodes`, bool [n] with padding, have other data from now
        on."""
        ...


Attacked = tuple[str, str, float, float]  # an attack, what the server hears, the shares it gets right without and with


@runtime_checkable
class Attackable(Protocol):
    """A part that knows attacks of a curious server on what clients send for it."""

    def attacks(self, fed: Federation, data: Dataset, partition: Partition, key: Tensor) -> list[Attacked]:
        """A row for each attack, of what the server gets right without the part's defense and with it; [] where nothing
        is sent that they are on."""
        ...


@runtime_checkable
class TriesModels(Protocol):
    """A part that has all clients try models on their test examples, once a round's updates are in."""

    def due(self, round: int) -> bool:
        """Whether it does so in a round, counted from 1."""
        ...

    def queries(self, clients: int) -> int:
        """How many models that are then, at most."""
        ...

    def tried(self, state: Tree, round: Round, try_out: Callable[[Tree], tuple[Tensor, Tensor]]) -> Tree:
        """The part's state once `try_out` has told of models, leaves [c, …], how many of all clients' test examples
        each of them gets right, int64 [c], and how many there are, int64 [m], once in each message."""
        ...


@runtime_checkable
class TellsPeers(Protocol):
    """A part by which clients tell each other something of every new global model: after `init`, and after each round.
    Only one part may do so."""

    @property
    def tells(self) -> Mapping[str, Sends | str]:
        """{key of what a peer gets: what the peer learns from it}."""
        ...

    def tell(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """What each of the client's peers gets, {"0": tree, "1": …} in client order; w: the global weights."""
        ...

    def hear(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Keep what the client's peers sent it, in client order; present: bool [peers], which of them did."""
        ...


@runtime_checkable
class ScoresMore(Protocol):
    """A part that has something else measured where a client's model is judged."""

    @property
    def score_sends(self) -> Mapping[str, Sends | str]:
        """{key of the reply: what it tells}."""
        ...

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """What is measured of the weights that the client uses, under these keys."""
        ...


@runtime_checkable
class Warns(Protocol):
    """A part that may have to warn of what a round came to."""

    def warns(self, state: Tree) -> Mapping[str, Tensor]:
        """{what is warned of after a round: whether it is, bool scalar}."""
        ...


@runtime_checkable
class Trains(Protocol):
    """A part that decides how a client trains."""

    def train(self, ctx: Context) -> Fit:
        """Local training from `ctx.start`, by `ctx.objective.fit`, in the place of `local_steps` steps of the
        objective; `ctx.optimizer_state` is the optimizer's. Only one part may decide this."""
        ...


@runtime_checkable
class BoundsExamples(Protocol):
    """A part whose training steps can be on fewer examples than its settings say."""

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The fewest training examples that any of `steps` steps at a client is on, apart from steps on none."""
        ...


_DECIDING = ("download", "observe", "limit", "weigh", "aggregate", "value", "update", "step")


def has(part: Part | type[Part], hook: str) -> bool:
    """Whether a part, or its class, has a hook of its own."""
    for base in (part if isinstance(part, type) else type(part)).__mro__:
        if hook in base.__dict__:
            return base.__dict__[hook] is not Part.__dict__.get(hook)
    return False


def copied(part: P, **known: object) -> P:
    """The same part, which knows something of those that it is combined with: class variables of it that are no
    settings."""
    result = copy.copy(part)
    for name, value in known.items():
        object.__setattr__(result, name, value)
    return result


def counts_itself(part: Part) -> bool:
    """Whether a part is an `OwnCount`, and its `weigh` is by that: a class with another one has `counts` of its own."""
    decides: type = next((kind for kind in type(part).__mro__ if "weigh" in vars(kind)), Part)
    return isinstance(part, OwnCount) and "counts" in vars(decides)


def is_recorded(part: Part) -> bool:
    """Whether a part says that its hooks at the server can be recorded, or has none."""
    decides = isinstance(part, TriesModels) or any(has(part, hook) for hook in _DECIDING)
    return not decides or bool(type(part).__dict__.get("recorded", False))
