"""What a part of the FedAvg family is: its hooks (`Part`), what they see of a client (`Context`) and of one training
step (`Outputs`), and the local objective that the parts' terms add up to (`Objective`).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts.checks import check_term
from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.training import BATCHES, COUNTS, RATE, Training, batches
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Round
from fedweave.core.federation import Client, Federation, Sends, Step
from fedweave.core.graph import FOREIGN, TRAIN, Graph
from fedweave.core.graph_arrays import GraphArrays
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Hidden, Model
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree, is_statistic, leaves, map_leaves, nest, sub
from fedweave.datasets.base import Dataset
from fedweave.errors import StepFailed, error_place, listed
from fedweave.learn import Criterion, Fit, Optimizer, Penalty, fit, keep_trained
from fedweave.ops.identity import ByObject
from fedweave.partition.base import Partition

KEEP = "keep"  # in the message of a step that evaluates models: keep the model at its client, and send nothing
_NO_NEEDS, _NO_PROTECTION = Needs(), Protection()


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
    objective: "Objective"
    message: Tree
    name: str = ""
    received: Tree = field(default_factory=dict)
    start: Tree = field(default_factory=dict)
    trained: Tree = field(default_factory=dict)
    last_loss: Tensor | None = None
    released: Tree = field(default_factory=dict)
    known: ByObject[Tensor] = field(default_factory=ByObject)
    notes: dict[str, Tensor] = field(default_factory=dict)

    def at(self, name: str) -> "Context":
        """This context as the part `name` sees it."""
        return replace(self, name=name)

    @property
    def training(self) -> Training:
        """The model and how it is trained."""
        return self.objective.training

    @property
    def examples(self) -> Tensor:
        """n_i, the number of training examples: int64 scalar."""
        return self.client.graph.masks[TRAIN].sum()

    # --- messages and memory

    @property
    def downloaded(self) -> Tree:
        """The values that the part's `download` sent: those for all clients, and this client's row ("each")."""
        result: Tree = self.message.get(self.name, {}) | self.message.get("each", {}).get(self.name, {})
        return result

    @property
    def sent(self) -> Tree:
        """{part: values of its `download` and `recall` for this client}, the `inputs` of `objective.fit`."""
        names = (self.message.keys() | self.message.get("each", {}).keys()) - {"w", "init", "each", KEEP}  # of parts
        inputs = {name: self.at(name).downloaded for name in sorted(names)}
        for name, part in self.objective.parts.items():
            memory = part.recall(self.at(name))
            if memory:
                inputs[name] = inputs.get(name, {}) | memory
        return inputs

    @property
    def memory(self) -> Tree:
        """The part's memory at this client, {} at first."""
        result: Tree = self.client.state.get(self.name, {})
        return result

    def memory_or_zeros(self, key: str, like: Tree) -> Tree:
        """The tree in the part's memory under `key`; at first zeros in the form of `like`."""
        return self.memory[key] if key in self.memory else map_leaves(torch.zeros_like, like)

    def keep(self, memory: Tree) -> None:
        """Keep `memory` at this client until its next task; it never leaves the client."""
        self.client.state[self.name] = memory

    def keep_with_steps(self, memory: Tree) -> None:
        """`keep` trees in the form of the weights, such as an optimizer's state, with the number of local steps so far.

        Clients train only the rows that their features touch. In the other rows, clients with equal numbers of steps
        keep equal values, which an engine may store once.
        """
        steps = self.memory.get("steps", torch.zeros_like(self.examples)) + self.training.steps
        self.keep(memory | {"steps": steps})

    @property
    def optimizer_state(self) -> Tree | None:
        """The state of the local optimizer after the client's last round; None if the optimizer starts afresh."""
        return self.client.state.get("optimizer") if self.training.keeps_state else None

    def train_beside(self, start: Tree, name: str, **how: Any) -> Tree:
        """What a part keeps of a second model that the client trains beside the joint one: its weights "v" after the
        local steps from `start`, and the "optimizer" state that the part's memory has from round to round. Without
        training examples "v" are the received weights.

        name: of the steps' randomness. how: further arguments of `Objective.fit`.
        """
        key, state = random.fold(self.client.key, name), self.memory.get("optimizer")
        v, _, state = self.objective.fit(start, self.client, key, self.sent, state=state, **how)
        kept: Tree = {"v": keep_trained(self.examples > 0, v, self.received)}
        return kept | ({"optimizer": state} if self.training.keeps_state else {})

    # --- weights, and what they give on the client's data

    @property
    def first(self) -> Tree:
        """The weights that all clients start from if the server sends none, drawn from its key "init"."""
        return models.init(self.training.model, self.message["init"], self.client.graph.x.dtype)

    @property
    def local_weights(self) -> Tree:
        """The weights that the client trained last; before its first training, the initial weights of all clients."""
        return self.client.state.get("w") or self.first

    @property
    def update(self) -> Tree:
        """Δ_i, the trained weights minus the received ones."""
        return sub(self.trained, self.received)

    def shared(self, w: Tree) -> Tree:
        """The leaves of `w` that the server sends."""
        sent = {path for path, _ in leaves(self.message.get("w", {}))}
        return nest({path: leaf for path, leaf in leaves(w) if path in sent})

    def outputs(self, w: Tree) -> Tensor:
        """Logits [e, c] of the weights `w` for all examples of the client, without dropout; computed once per task."""
        if w not in self.known:
            self.known[w] = models.apply(self.training.model, w, self.client.graph)
        return self.known[w]

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

    @property
    def key(self) -> Tensor:
        """The RNG key of the step."""
        return self.forward.key

    @property
    def loss(self) -> Criterion:
        """The criterion, which weighs classes and errors."""
        return self.forward.loss

    @property
    def logits(self) -> Tensor:
        """The model's outputs for all examples, with dropout: [e, c]."""
        logits: Tensor = self.forward.layers[-1]
        return logits

    @property
    def embeddings(self) -> tuple[Hidden, ...]:
        """Every layer's output, from the first layer to the logits; [n, …], or a tree of such tensors
        (`core.model`)."""
        return self.forward.layers

    @property
    def embedding(self) -> Tensor:
        """The input of the last layer, [n, d], or [e, d] of small graphs."""
        return models.rows_of(self.forward.hidden[-1])

    def cross_entropy(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """The mean over the chosen examples, as the algorithm weighs classes; scalar, 0 if none is chosen.

        logits: [e, c], of all examples. chosen: bool [e].
        """
        graph = self.graph
        return self.loss.of(logits, graph.truth, chosen.to(logits.dtype), graph.y, graph.masks[TRAIN])

    def scores(self, pairs: Tensor, foreign: Tensor | None = None) -> Tensor:
        """The logits [m, 2] of `pairs`, where links are the examples.

        pairs: int64 [3, m], as in `Graph.pairs`. foreign: [F, k], rows of other clients' nodes; in `pairs` their
        numbers count on from `Graph.nodes`.
        """
        graph = self.graph._replace(pairs=pairs)
        if foreign is not None:
            graph = graph._replace(extra={**graph.extra, FOREIGN: foreign})
        return models.rows_of(self.forward.last(graph))


class Trial(NamedTuple):
    """What V clients, or the server, count of c models that they try: {metric: `pairs` float64 [V, c, 2, …]}
    (`metrics.classification.counts`), and how many training examples each class has, `labels` [k]."""

    pairs: Mapping[str, np.ndarray]
    labels: np.ndarray


TryOut = Callable[[Tree], Trial]  # has all clients try models with these weights, leaves [c, …]
# An attack, what the server receives, and the shares it gets right without and with the defense.
Attacked = tuple[str, str, float, float]


class Part(Settings):
    """One idea of one paper: a frozen dataclass that overrides the hooks it needs. A hook below does nothing, or raises
    NotImplementedError, because it is only called if the part overrides it.

    At the server, in the order of a round: `init`, `download`, `observe`, `limit`, `weigh`, `aggregate`, `value`,
    `update`, `step` and `measures`. At a client: `receive`, `start`, `recall`, `draw`, `objective`, `penalty`,
    `release` and `report`; `personalize` when models are evaluated. `layers` gives the model that is trained and used.
    `state` is the part's memory at the server: a tree, saved in checkpoints. The hooks at the end, from `changes` on,
    are for few parts.

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

    # --- server

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The part's state before the first round; w: the first weights."""
        return {}

    def initial_weights(self, model: Model, state: Tree, w: Tree) -> Tree:
        """The weights that training starts from, instead of the first weights w of `model`; state: from `init`."""
        return w

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

    # --- client

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

    # --- for few parts

    def train(self, ctx: Context) -> Fit:
        """How a client trains: local training from `ctx.start`, by `ctx.objective.fit`, instead of `local_steps` steps
        of the objective; `ctx.optimizer_state` is the optimizer's state. Only one part may decide this."""
        raise NotImplementedError

    def min_examples(self, graph: Graph, steps: int) -> int:
        """The smallest number of training examples in any of `steps` steps at a client, for a part whose steps can use
        fewer than its settings say; steps without examples do not count."""
        raise NotImplementedError

    def join_sum(self, within: SecureSum) -> "Part":
        """The part for a run with secure aggregation in the form `within`, for a part that sends values before the
        first round: its steps send masked values, and the server sends all clients the same message."""
        return self

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        """The client's data from this round on, with the same number of nodes, and bool [n], the nodes whose data
        changed. Each part changes the data of the part before it, at all clients, before the server calls any client
        for a round."""
        raise NotImplementedError

    def follow_changes(self, ctx: Context, nodes: Tensor) -> None:
        """Update the part's memory at a client after the data of `nodes`, bool [n] with padding, changed."""

    def due(self, round: int) -> bool:
        """Whether clients try models in a round, counted from 1 (`try_models`)."""
        return True

    def queries(self, clients: int) -> int:
        """The largest number of models that clients try in such a round."""
        raise NotImplementedError

    def try_models(self, state: Tree, round: Round, try_out: TryOut) -> Tree:
        """The part's state after all clients tried models on their test examples with `try_out`, once a round's updates
        are in."""
        raise NotImplementedError

    @property
    def sends_to_peers(self) -> Mapping[str, Sends | str]:
        """{key of the message to a peer (`tell_peers`): what the peer learns from it}."""
        return {}

    def tell_peers(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """The client's messages to its peers, {"0": tree, "1": …} in client order, for every new global model: after
        `init`, and after each round. w: the global weights. Only one part may do so."""
        raise NotImplementedError

    def hear_peers(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Keep the messages of the client's peers, in client order; present: bool [peers], which peers sent one."""
        raise NotImplementedError

    @property
    def score_sends(self) -> Mapping[str, Sends | str]:
        """{key of what `more_scores` adds to the reply of an evaluation: what it reveals}."""
        return {}

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """Additional measurements, in an evaluation, of the weights that the client uses."""
        return {}

    def warns(self, state: Tree) -> Mapping[str, Tensor]:
        """{warning: whether it applies after the round, bool scalar}."""
        return {}

    def attacks(self, fed: Federation, data: Dataset, partition: Partition, key: Tensor) -> list[Attacked]:
        """A row for each attack of a curious server on what clients send for the part: the shares that the server gets
        right without the part's defense and with it; [] if clients send nothing to attack."""
        return []


class OwnCount(Part):
    """A part that weights update i by n_i / Σ n_k. Each client computes n_i on its own, so weighted updates can travel
    inside secure aggregation (`SecureSum`).

    counted: what Σ n_k reveals; "" if every n_i is 1, so that clients count nothing.
    """

    counted: ClassVar[str] = ""

    def counts(self, graph: Graph) -> Tensor:
        """n_i, int64 scalar."""
        raise NotImplementedError

    def scale(self, ctx: Context) -> Tensor | None:
        """The factor of the client's update before the mean is taken, float64 scalar; None for none."""
        return None

    def rescale(self, round: Round) -> Tensor | None:
        """The server's factor of the mean; None for none."""
        return None


def has(part: Part | type[Part], hook: str) -> bool:
    """Whether a part, or its class, defines a hook."""
    for base in (part if isinstance(part, type) else type(part)).__mro__:
        if hook in base.__dict__:
            return base.__dict__[hook] is not Part.__dict__.get(hook)
    return False


P = TypeVar("P", bound=Part)


def copy_part(part: P, **known: object) -> P:
    """A copy of a part with class variables set to what it needs to know of the other parts; they are not settings."""
    result = copy.copy(part)
    for name, value in known.items():
        object.__setattr__(result, name, value)
    return result


def counts_itself(part: Part) -> bool:
    """Whether a part is an `OwnCount` whose weights follow its `counts`: the class that defines its `weigh` also
    defines `counts`."""
    weighs: type = next((kind for kind in type(part).__mro__ if "weigh" in vars(kind)), Part)
    return isinstance(part, OwnCount) and "counts" in vars(weighs)


# Keys among the loss's arguments, next to the parts' names: frozen weights, their share, and all clients' class counts.
_WITHIN, _SHARE, _COUNTS = "within", "share", "class counts"


@dataclass(frozen=True)
class Objective:
    """The sum of the terms of all `parts`, and the settings of its training."""

    parts: Mapping[str, Part]
    training: Training

    def __post_init__(self) -> None:
        if not self._terms:
            raise ValueError("parts: no part has a term of the objective that depends on data; add cross_entropy")
        for name, part in self.parts.items():
            if "nodes" in part.needs.data and models.example(self.training.model) == "edge":
                raise ValueError(f"{name} is about nodes and their neighbors, but the examples are edges; take another")
            part.check(self.training)
            if part.protection.plain_loss and not self.training.loss.plain:
                raise ValueError(
                    f"{name} takes the cross-entropy of single examples as it is; leave out class_weight, focal and "
                    "logit_adjustment"
                )

    @cached_property
    def _terms(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "objective")}

    @cached_property
    def _penalties(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "penalty")}

    @cached_property
    def _feature_rows(self) -> frozenset[str]:
        whole = any("features" in part.needs.reads for part in self.parts.values())
        return frozenset() if whole else models.feature_rows(self.training.model)

    def min_examples(self, graph: Graph) -> dict[str, int]:
        """{part, with the settings that bound it: the smallest number of training examples of a step at a client}.
        Steps without examples do not count. The number is the smallest setting in `needs.steps.bounds`, all examples
        without one, or the part's `min_examples`."""
        count = int(graph.masks[TRAIN].sum())
        result = dict[str, int]()
        for name, part in self.parts.items():
            bounds = {setting: getattr(part, setting) for setting in part.needs.steps.bounds if hasattr(part, setting)}
            label = f"{name} ({', '.join(bounds)})" if bounds else name
            if has(part, "min_examples"):
                steps = self.training.local_epochs * count or self.training.local_steps
                result[label] = part.min_examples(graph, steps)
            else:
                result[label] = min([count, *(size for size in bounds.values() if size > 0)])
        return result

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
        """`local_steps` steps from `w`, or the steps of `local_epochs` passes over the training examples, at the
        round's rate.

        inputs: {part: values of its download and recall}. anchor: the received weights for penalties; None for no
        penalties. state: the optimizer's state; None starts it afresh. penalty: replaces the parts' penalties; it must
        be a method that stays the same object, because the traced training is stored under it. steps, optimizer:
        replace the training's. limit: the number of steps after which this client stops, int64 scalar (`learn.fit`).
        within: frozen weights around `w`: the loss is taken at `within` with the leaves of `w` or, with a `share`, at
        share · w + (1 − share) · within.
        """
        training, graph, inputs = self.training, client.graph, inputs or {}
        # 1. The number of steps. With mini-batches all clients run the steps of the longest pass; each stops after its.
        if steps is None and limit is None and training.local_epochs and training.batch_size:
            steps = training.local_epochs * inputs[BATCHES]["batches"]
            limit = training.local_epochs * batches(graph.masks[TRAIN].sum(), training.batch_size)
        steps = training.steps if steps is None else steps
        # 2. What the loss and the penalties read.
        penalties = self._penalties if anchor is not None and penalty is None else {}
        args = {name: value for name, value in inputs.items() if name in self._terms or name in penalties}
        counts = inputs.get(COUNTS, {}).get("classes")
        if within is not None:
            args[_WITHIN] = within
        if share is not None:
            args[_SHARE] = share
        if counts is not None:
            args[_COUNTS] = counts
        drawn = {}
        for name, part in self._terms.items():
            drawn[name] = part.draw(training.model, graph, random.fold(key, "minibatches", name), steps)
        # 3. Only rows of weights that the client's features touch are trained, unless something moves them all.
        moves_all = limit is not None and (training.weight_decay > 0 or penalties or penalty)
        rows = frozenset() if moves_all else self._feature_rows & {path for path, _ in leaves(w)}
        return fit(
            self._loss,
            w,
            graph,
            key,
            training.update_rule if optimizer is None else optimizer,
            steps,
            args=args,
            batches={"drawn": drawn},
            penalty=penalty or (self._penalty if penalties else None),
            anchor=anchor,
            rows=rows,
            state=state,
            limit=limit,
            rate=inputs.get(RATE, {}).get("rate"),
            clip=training.clip_gradient,
        )

    def gradient(self, w: Tree, client: Client, key: Tensor, inputs: Tree | None = None) -> Tree:
        """The gradient at `w` of the terms that depend on data, on one mini-batch if they draw mini-batches; computed
        as the difference that a plain step of length 1 makes."""
        inputs = {name: value for name, value in (inputs or {}).items() if name != RATE}
        slope = sub(w, self._one_step.fit(w, client, key, inputs).w)
        if not models.statistics(self.training.model):
            return slope
        return nest({path: 0 * leaf if is_statistic(path) else leaf for path, leaf in leaves(slope)})

    @cached_property  # one object, because the traced training is stored under its loss
    def _one_step(self) -> "Objective":
        plain: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0, "weight_decay": 0.0, "optimizer_state": "fresh"}
        plain |= {"local_epochs": 0, "clip_gradient": 0.0, "local_momentum": 0.0, "nesterov": False}
        return Objective(self.parts, replace(self.training, local_steps=1, betas=(0.9, 0.999), **plain))

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        if _WITHIN in args:
            # The frozen weights with the leaves of `w` in their places, or a mix of both.
            trained, share = dict(leaves(w)), args.get(_SHARE)
            whole = dict(leaves(args[_WITHIN]))
            if share is None:
                whole |= trained
            else:
                for path, other in whole.items():
                    if path in trained:
                        whole[path] = share * trained[path] + (1 - share) * other
            w = nest(whole)
        drawn = args.get("drawn", {})
        forward = Forward(w, self.training.model, graph, key, self.training.loss.by(args.get(_COUNTS)))
        terms = {}
        for name, part in self._terms.items():
            outputs = Outputs(forward, args.get(name, {}), drawn.get(name, {}))
            terms[f"{name}.objective"] = part.objective(outputs)
        return _sum(terms, w)

    def _penalty(self, w: Tree, received: Tree, args: Tree) -> Tensor:
        terms = {}
        for name, part in self._penalties.items():
            try:
                terms[f"{name}.penalty"] = part.penalty(w, received, args.get(name, {}))
            except KeyError as error:
                paths = [path for path, _ in leaves(w)]
                if not self._feature_rows.issuperset(paths):
                    raise
                raise StepFailed(
                    f"{name}.penalty failed{error_place(error)}: KeyError: {error}: it got only a part of the weights, "
                    f"{listed(paths)}, because weights of features that no node of a client has are trained once for "
                    'all. Count leaves that are not in w as 0, or set needs = Needs(reads=("features",)) in the part.',
                    code="step-failed.part-of-weights",
                ) from error
        return _sum(terms, w)


def _sum(terms: Mapping[str, Tensor], w: Tree) -> Tensor:
    """The sum of {part.hook: its term}; if all terms are plain numbers, a tensor with the dtype of `w`."""
    first, *rest = (check_term(where, value) for where, value in terms.items())
    result: Tensor | float = sum(rest, first)
    return result if isinstance(result, Tensor) else next(leaf for _, leaf in leaves(w)).new_full((), result)
