"""The interface of all parts of the FedAvg family: optional hooks for client and server."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

from fedweave.algorithms.parts.context import Context, Outputs
from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.training import Training
from fedweave.core.algorithm import Round, is_recorded
from fedweave.core.federation import Federation, Sends, Step
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import GraphArrays
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.learn import Fit
from fedweave.partition.base import Partition

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
