"""The common form of all parts of the FedAvg family: hooks for client and server, of which any may be absent."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.round import Round
from fedweave.algorithms.parts.training import Training
from fedweave.core.arrays import GraphArrays
from fedweave.core.federation import Federation, Sends, Step
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.incentives.vocabulary import Vocabulary


class Part:
    """One idea of one paper; a frozen dataclass that overrides the hooks it has. Those below do nothing.

    At the server, in the order of a round: `init`, `download` or `reward`, `observe`, `limit`, `weigh`, `aggregate`,
    `value`, `step`, `update`, `measures` and `pairs`. At a client: `receive`, `start`, `recall`, `minibatches`,
    `prepare`, `loss`, `criterion`, `penalty` and `regulariser`, `after`, `release`, `report`; `judged` when models are
    evaluated; and if data changes from round to round, `changes` and `changed` before all others. `layers` gives the
    model that is trained and used. `state` is the part's memory at the server: a tree, saved in checkpoints.

    sends:     {key of what `report` adds: what the receiver learns from it}.
    hears:     what a client learns from `download`, or from its `reward`; "" if it gets neither.
    releases:  what `release` turns an update into, if that is no longer a change of the model weights; else "".
    mechanism: how `release` protects an update; None if it does not. most_rounds: for how many rounds that is enough.
    personal:  True if every client gets weights of its own, so that there is no one global model.
    judged_apart: True if the global test judges the models that the clients use (`judged`), not the global one.
    requires:  hooks that some other part must decide.
    private:   patterns of weights that never leave their client, such as "*_mask".
    groups:    True if clients need a sensitive attribute.
    ids:       True if clients need their nodes' places in the undivided graph.
    hides:     True if the server learns no single client's update or report, so no other part may look at them.
    plain_loss: True if the update is of the cross-entropy alone, whatever other parts add to the loss.
    whole_features: True if `loss` needs all columns of the features, even those that are 0 at a client.
    supervised: True if `loss` is that of the examples' classes, which only one part may have.
    one_step:  what to note where training is one step from the received weights, so that what pulls to these has no
        gradient yet; "" if nothing does.
    alike:     True if clients count alike, whatever they say of themselves, unless another part weights updates.
    whole_models: True if the server judges clients' models, of which it needs all weights.
    trains_on: settings that bound the number of examples in a training step; sites may require more than a few
        (`least_examples`).
    """

    sends: ClassVar[Mapping[str, Sends | str]] = {}
    hears: ClassVar[str] = ""
    releases: ClassVar[str] = ""
    personal: ClassVar[bool] = False
    judged_apart: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    private: ClassVar[tuple[str, ...]] = ()
    groups: ClassVar[bool] = False
    ids: ClassVar[bool] = False
    hides: ClassVar[bool] = False
    plain_loss: ClassVar[bool] = False
    whole_features: ClassVar[bool] = False
    supervised: ClassVar[bool] = False
    one_step: ClassVar[str] = ""
    alike: ClassVar[bool] = False
    whole_models: ClassVar[bool] = False
    trains_on: ClassVar[tuple[str, ...]] = ("batch",)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Which motifs of its small graphs a client must know; None if none."""
        return None

    @property
    def setup(self) -> tuple[Step, ...]:
        """The steps that `init` runs at clients, in order."""
        return ()

    @property
    def mechanism(self) -> Any:
        """How `release` protects an update (`core.mechanism`), several as a tuple; None if it does not."""
        return None

    @property
    def forgets(self) -> bool:
        """Whether a client's update must not depend on anything that it remembers
        (`core.federation.StepInfo.stateless`)."""
        return False

    @property
    def most_rounds(self) -> int | None:
        """How many rounds a run may have with it; None if it does not matter."""
        return None

    def check(self, training: Training) -> None:
        """Raise a ValueError if the part does not suit the model or the training."""

    def layers(self, model: Model, own: bool) -> Model:
        """The model as it is trained and used, layer by layer, for example with masks on its weights: on the clients'
        own data or else on the global test graph, which no part changes. Parts apply theirs one after the other."""
        return model

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The part's state before the first round; w: the first weights."""
        return {}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """What the called clients find in `ctx.given`: a tree for all of them, and one with leaves [P, …] of which each
        gets its row; at: int64 [P], the clients' places among all."""
        return {}, {}

    def reward(self, state: Tree, at: Tensor) -> Tree:
        """What each called client gets instead of the global weights, leaves [P, …] (see `download`); `receive` says
        what they stand for. Only one part may decide this."""
        return {}

    def observe(self, state: Tree, round: Round) -> Tree:
        """The part's state once clients replied, before anything is decided about their updates."""
        return state

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """The updates' weights: float64 [P], or [P, P] where row i mixes all clients' weights for client i (then the
        part is `personal`). They need not sum to 1. Only one part may decide this."""
        raise NotImplementedError

    def limit(self, state: Tree, round: Round) -> Tensor:
        """The server's factor for each update before aggregation, float64 [P]. Parts' factors multiply."""
        raise NotImplementedError

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """The joint update, instead of the weighted sum, for a part that also decides the updates' weights. Only one
        part may decide this."""
        raise NotImplementedError

    def value(self, state: Tree, round: Round) -> Tensor:
        """What each client's update is worth, float64 [P]. Only one part may decide this."""
        raise NotImplementedError

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        """The new global weights, and the part's state: the server's optimiser. Only one part may decide this."""
        raise NotImplementedError

    def update(self, state: Tree, round: Round) -> Tree:
        """The part's state after a round."""
        return state

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{name: float64 [N]}: what the server knows about each client after a round; NaN where undefined."""
        return {}

    def pairs(self, state: Tree) -> dict[str, Tensor]:
        """{name: float64 [N, N]}: what the server knows of every two clients; kept with the run."""
        return {}

    def receive(self, ctx: Context) -> Tree:
        """The weights that a reward, `ctx.message["w"]`, stands for. Only one part may decide this."""
        raise NotImplementedError

    def start(self, ctx: Context) -> Tree:
        """Where local training starts. Only one part may decide this."""
        return ctx.received

    def recall(self, ctx: Context) -> Tree:
        """What the part's terms of the objective find in `given` in addition to what was sent, such as what it kept at
        this client; {} if nothing."""
        return {}

    def minibatches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """What `loss` wants drawn beforehand, leaves [steps, …]; {} if nothing."""
        return {}

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The fewest training examples that any of `steps` steps at a client is on, apart from steps on none: all of
        them, or as many as a setting in `trains_on` says. A part whose steps can be on fewer says so here."""
        sizes = [getattr(self, name, 0) for name in self.trains_on]
        return min([int(graph.masks[TRAIN].sum()), *(size for size in sizes if size > 0)])

    def prepare(self, graph: Graph) -> Tree:
        """What `criterion` finds in `given` besides, worked out once before training; {} if nothing."""
        return {}

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, given: Tree, minibatch: Tree) -> Tensor:
        """A term of the local objective that depends on data, scalar; given: as `ctx.given`. Terms add up."""
        raise NotImplementedError

    def criterion(self, logits: Tensor, graph: Graph, given: Tree) -> Tensor:
        """A term of the local objective that is a function of the model's outputs for all examples, logits [e, c] of
        one forward pass over the whole graph that all such terms share; scalar. Replaces the part's `loss`. Terms add
        up."""
        raise NotImplementedError

    def penalty(self, w: Tensor, received: Tensor, given: Tree) -> Tensor:
        """A term of the local objective that is a sum over the elements of each leaf, given that leaf of the received
        weights. Terms add up."""
        raise NotImplementedError

    def regulariser(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        """A term of the local objective that depends on all weights together and on no data, scalar; received: the
        weights that the server sent. If it is a sum over elements, `penalty` is faster. Terms add up."""
        raise NotImplementedError

    def after(self, ctx: Context) -> None:
        """Further work at the client after its training, such as a personal model or a note in `ctx.keep`."""

    def release(self, ctx: Context, update: Tree) -> Tree:
        """The update as it leaves the client. Parts apply theirs one after the other."""
        return update

    def report(self, ctx: Context) -> Tree:
        """What the client sends besides, under the keys of `sends`."""
        return {}

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        """The client's data as it is from this round on, with as many nodes as before, and which nodes have other data
        now: bool [n]. Parts change it one after the other, at all clients, before any is called for a round."""
        raise NotImplementedError

    def changed(self, ctx: Context, nodes: Tensor) -> None:
        """Update what the part keeps at a client some of whose `nodes`, bool [n] with padding, have other data from now
        on."""

    def judged(self, ctx: Context) -> Tree:
        """The weights of the model that the client uses. Only one part may decide this."""
        return ctx.start


def has(part: Part, hook: str) -> bool:
    """Whether a part has a hook of its own."""
    return getattr(type(part), hook) is not getattr(Part, hook)
