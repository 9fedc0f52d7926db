"""The common form of all parts of the FedAvg family: hooks for client and server, of which any may be absent."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.outputs import Outputs
from fedweave.algorithms.parts.training import Training
from fedweave.core.arrays import GraphArrays
from fedweave.core.federation import Federation, Sends, Step
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.round import Round
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.learn import Fit
from fedweave.partition.base import Partition

_NO_NEEDS, _NO_PROTECTION = Needs(), Protection()


class Part(Settings):
    """One idea of one paper; a frozen dataclass that overrides the hooks it has. Those below do nothing.

    At the server, in the order of a round: `init`, `download`, `observe`, `limit`, `weigh`, `aggregate`, `value`,
    `update`, `step` and `measures`. At a client: `receive`, `start`, `recall`, `draw`, `objective`, `penalty`,
    `release` and `report`; `judged` when models are evaluated. `layers` gives the model that is trained and used.
    `state` is the part's memory at the server: a tree, saved in checkpoints. A part that changes clients' data from
    round to round, or has to know of it, is `ChangesData` or `FollowsData` as well; one whose training steps can be on
    few examples `BoundsExamples`, one that decides how a client trains `Trains`, and one that has clients try models
    `TriesModels`.

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
        """The new global weights, and the part's state: the server's optimiser. Only one part may decide this."""
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
        """A row for each attack, of what the server gets right without the part's defence and with it; [] where nothing
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

    def tried(self, state: Tree, round: Round, share: Callable[[Tree], Tensor]) -> Tree:
        """The part's state once `share` has told of models, leaves [c, …], what share of all clients' test examples
        each of them gets right, float64 [c]."""
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
        objective; `ctx.optimizer_state` is the optimiser's. Only one part may decide this."""
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


def is_recorded(part: Part) -> bool:
    """Whether a part says that its hooks at the server can be recorded, or has none."""
    decides = isinstance(part, TriesModels) or any(has(part, hook) for hook in _DECIDING)
    return not decides or bool(type(part).__dict__.get("recorded", False))
