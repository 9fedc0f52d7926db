"""What an algorithm is: a frozen value with three functions, and defaults for all that it may say besides."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from fedweave.core.federation import Federation, Step
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.ledger import Ledger
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import FedweaveError, UserError


class Evaluation(NamedTuple):
    """What `evaluate` measured, as additive (sum, count) pairs (see `metrics.classification.counts`,
    which "own" and "global_test" contain in full).

    clients: each client's reply {"own": pairs [3, 2, …] on its train, val and test nodes}; if clients train, also
             {"trained": such pairs} of its own model right after its training (all zero if it never trained) and, where
             every client has a model of its own and there is a global test graph, {"global_test": pairs [3, 2, …]} of
             that model on it.
             {"measures": {name: scalar}} adds what else is known about each client, such as FedEgo's λ_i.
    server:  pairs of the one global model on the global test graph; None without one.
    total:   where clients' scores are known as sums alone (`algorithms.scoring.sum_score`), these; `clients` says
             nothing then.
    """

    clients: Replies
    server: Tree | None = None
    total: Tree | None = None


class Asking(Protocol):
    """What `Capabilities` are in common with what a part needs."""

    @property
    def sens(self) -> bool:
        """See `Capabilities`."""
        ...

    @property
    def ids(self) -> bool:
        """See `Capabilities`."""
        ...

    @property
    def nodes(self) -> bool:
        """See `Capabilities`."""
        ...

    @property
    def classes(self) -> bool:
        """See `Capabilities`."""
        ...


NO_LINKS = "config.link-algorithm"  # the code of what cannot have links as examples


@dataclass(frozen=True)
class Capabilities:
    """What an algorithm needs of the data and of the engine, and what it can do.

    pooled:      one client that holds what all clients hold; refused between organizations.
    vertical:    clients that hold the same nodes, each its own features and edges; some may be without labels.
    ids:         each node's number in the undivided graph, and the edges that cross between clients.
    sens:        the sensitive attribute.
    graph_level: examples that are graphs.
    nodes:       it is about nodes and who their neighbors are: no edges as examples, no messages that depend on time.
    classes:     it is about the classes of examples: no numbers or several labels in their place.
    model:       the name of the model whose weights it shares by their names; "" if any will do.
    links:       it takes links as examples.
    crossing:    and links between members, of which another member holds one end.
    predicts:    it predicts jointly: `predict(state, fed)` stores at clients the predictions of all their nodes. The
                 others leave whole models there with `deploy(state, fed, which)` (`algorithms.deployment`).
    evaluation:  the methods that are steps of the evaluation alone.
    """

    pooled: bool = False
    vertical: bool = False
    ids: bool = False
    sens: bool = False
    graph_level: bool = False
    nodes: bool = False
    classes: bool = False
    model: str = ""
    links: bool = False
    crossing: bool = False
    predicts: bool = False
    evaluation: tuple[str, ...] = ("score",)

    def asked(self, needs: Sequence["Asking"]) -> "Capabilities":
        """The same, with what parts `need` (`algorithms.parts.Needs`) besides."""
        everyone = (self, *needs)
        return replace(
            self,
            sens=any(one.sens for one in everyone),
            ids=any(one.ids for one in everyone),
            nodes=any(one.nodes for one in everyone),
            classes=any(one.classes for one in everyone),
        )


def capabilities(algorithm: object) -> Capabilities:
    """What an algorithm, its class or its preset declares; the defaults without that."""
    declared: Capabilities = getattr(algorithm, "capabilities", Algorithm.capabilities)
    return declared


@dataclass(frozen=True)
class Calls:
    """The steps that an algorithm runs at one client, in order; a step that runs several times is listed as often.

    setup:      before the first round, in `init`.
    round:      in each round. A client may be left out of some of them, but none comes earlier or more often.
    evaluation: after a round.
    prediction: with a finished run's models (`predict` or `deploy`).
    labelled:  those of them that are not called at clients without labels. A secure sum does not find out that a
                server left out one that is told nothing; no later term may be one that the server can then foresee.
    """

    setup: tuple[Step, ...] = ()
    round: tuple[Step, ...] = ()
    evaluation: tuple[Step, ...] = ()
    prediction: tuple[Step, ...] = ()
    labelled: tuple[Step, ...] = ()

    @property
    def all(self) -> tuple[Step, ...]:
        """Every step of a run, and of predictions with its models."""
        return self.setup + self.round + self.evaluation + self.prediction


def calls_of(algorithm: "Algorithm", name: str, clients: int) -> Calls:
    """What an algorithm declares that it runs at each of that many clients.

    Raises:
        FedweaveError: it does not say so.
    """
    if (calls := algorithm.calls(clients)) is None:
        raise FedweaveError(
            f"{name} does not say in which order it calls its steps: give it a method `calls` "
            "(fedweave.core.algorithm.Calls)."
        )
    return calls


@dataclass(frozen=True)
class Algorithm(Settings, ABC):
    """An algorithm, whose fields are the paper's hyperparameters with the paper's defaults; the first is the model.

    A class has `init`, `round` and `evaluate`. Everything else is optional: what is here means "nothing special". An
    algorithm whose clients can each hold a whole model is an `algorithms.deployment.Deployable`.

    model: the model that is trained, as it was given.
    """

    model: Model

    capabilities: ClassVar[Capabilities] = Capabilities()  # whatever the settings are
    exempt_laws: ClassVar[Mapping[str, str]] = {}  # {law of the contract that does not hold: why}
    test_settings: ClassVar[Mapping[str, Any]] = {}  # with which the contract tries the algorithm

    # Settings of many algorithms, for those that do not have them as fields.
    participation = 1.0  # the share of clients that a round calls
    quorum = 1.0  # the share of the called clients that must reply
    batch = 0  # examples of a mini-batch; 0: all
    class_weight = cast(Any, "none")  # this and the following: the loss (`learn.losses.Criterion`)
    focal, logit_adjustment = 0.0, 0.0
    number_loss, quantile = cast(Any, "mse"), 0.5

    def __init_subclass__(cls, **options: object) -> None:
        """Let a field take the place of a default here; dataclasses would take that for the field's own.

        Raises:
            TypeError: the class has a field where all algorithms have a method or a property.
        """
        super().__init_subclass__(**options)
        for name in inspect.get_annotations(cls):
            inherited, replaced = getattr(Algorithm, name, None), name in vars(cls)
            if inspect.isfunction(inherited) or (isinstance(inherited, property) and not replaced):
                raise TypeError(f"{cls.__name__}.{name}: every algorithm says this. Call the field otherwise.")
            if inherited is not None and not replaced:
                setattr(cls, name, field())

    @abstractmethod
    def init(self, fed: Federation) -> Tree:
        """The server's state before the first round."""

    @abstractmethod
    def round(self, state: Tree, fed: Federation) -> Tree:
        """One round: the state after it."""

    @abstractmethod
    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Measure the models that `state` and the clients hold, on all splits at once: one forward pass serves them."""

    # What it needs.

    @property
    def needs(self) -> Capabilities:
        """`capabilities` with these settings."""
        return self.capabilities

    @property
    def finders(self) -> tuple[Any, ...]:
        """What looks for what has to be known of clients' data before (`partition.client_data.Precompute`)."""
        return ()

    @property
    def composed(self) -> Mapping[str, Any]:
        """{name: part} of an algorithm that is made of parts (`algorithms.parts.Composition`)."""
        return {}

    @property
    def paced(self) -> tuple[object, ...]:
        """Parts that it makes of its settings, besides those that it is given; their steps run on clients."""
        return ()

    @property
    def most_rounds(self) -> int | None:
        """How many rounds it was made for; None if that does not matter."""
        return None

    @property
    def any_models(self) -> bool:
        """Whether clients may have models of different forms, as none of their weights' shapes is exchanged."""
        return False

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on settings that do nothing, or no good."""
        return ()

    # What sites are asked for.

    def calls(self, clients: int) -> Calls | None:
        """The calls that a site may get in a federation of that many clients; None: no site can take part."""
        return None

    def least_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{what makes steps, and its settings: the fewest training examples of one} at a client that is sent
        `message`; {} where each step is on all of them. Waits for the graph's device."""
        most = int(graph.masks[TRAIN].sum()) if self.batch else 0
        return {f"{type(self).__name__} (batch)": min(self.batch, most)} if self.batch else {}

    @property
    def judges_received(self) -> bool:
        """Whether its evaluations score the server's models alone, as it sent them."""
        return False

    # What the server knows after a round.

    def measures(self, state: Tree, fed: Federation) -> Mapping[str, Tensor]:
        """{name: float64 [N]} of each client; NaN where it is not known."""
        return {}

    def pairs(self, state: Tree) -> Mapping[str, Tensor]:
        """{name: float64 [N, N]} of every two clients."""
        return {}

    def counts(self, state: Tree) -> Mapping[str, float]:
        """{name: number} of all clients together, for summaries."""
        return {}

    # Its models.

    @property
    def net(self) -> Model:
        """The model as it is used on clients' data."""
        return self.model

    def judged_model(self, state: Tree) -> Tree | None:
        """The weights of the one model that every client uses, as the server has them; None where there is none."""
        return None

    def predict(self, state: Tree, fed: Federation) -> None:
        """Store at clients that predict together (`Capabilities.predicts`) the predictions of all their nodes, as
        "prediction" in their private states."""
        raise NotImplementedError(f"{type(self).__name__} has no `predict`")


def give_defaults(kind: type) -> None:
    """Let the class of an algorithm from outside that does not inherit from `Algorithm` have what is there.

    Raises:
        UserError: it is no algorithm.
    """
    if issubclass(kind, Algorithm):
        return
    if missing := [name for name in sorted(Algorithm.__abstractmethods__) if not hasattr(kind, name)]:
        raise UserError(
            f"{kind.__name__} is no algorithm: it has no {', '.join(missing)}. Derive a frozen dataclass from "
            "fedweave.core.algorithm.Algorithm, and give an object of it.",
            code="user.no-algorithm",
        )
    fields = getattr(kind, "__dataclass_fields__", {})
    for name, value in vars(Algorithm).items():
        if not (name.startswith("_") or name in fields or hasattr(kind, name)):
            setattr(kind, name, value)
    Algorithm.register(kind)


# ----------------------------------------------------------------------------------------------------
# What a part's hooks see at the server once the clients replied.


Thing = TypeVar("Thing")
COUNTED = "(counted)"  # among what a secure sum opens: the sum of the weights of clients' updates


@dataclass(frozen=True)
class Round:
    """What a part's hooks see at the server after the clients replied.

    replies: of the P clients that did. at: int64 [P], their places among all clients. w: the global weights before or,
    if every client has its own weights, what the P clients received, leaves [P, …] ({} if that is a reward).
    model: that of the algorithm. held: what the server itself holds (`Federation.held`). factors: float64 [P], what
    updates are multiplied by before they count (`limit`). weights: float64 [P] or [P, P], what `weigh` gave. delta: the
    joint update: what `aggregate` gave, else their weighted sum. value: float64 [P], what `value` gave. Those that are
    not known yet are None. opened: {key: mean} of what clients report in a secure sum, and `COUNTED`.
    """

    replies: Replies
    at: Tensor
    w: Tree
    model: Model
    held: Mapping[str, Graph] = field(default_factory=dict)
    factors: Tensor | None = None
    weights: Any = None
    delta: Any = None
    value: Any = None
    opened: Tree = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)  # kept by `replace`

    def once(self, name: Hashable, make: Callable[[], Thing]) -> Thing:
        """`make()`, made once for all hooks that ask for it by this name."""
        if name not in self._made:
            self._made[name] = make()
        result: Thing = self._made[name]
        return result

    @property
    def updates(self) -> Tensor:
        """The released updates of all shared weights, float64 [P, D]."""
        sent = self.once("updates", lambda: self.replies.matrix("update"))
        factors = self.factors
        return sent if factors is None else self.once("limited", lambda: factors[:, None] * sent)

    def update(self, path: str) -> Tensor:
        """One leaf of them, [P, …]."""
        leaf = self.replies.stack(f"update/{path}")
        return leaf if self.factors is None else leaf * self.factors.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))

    @cached_property
    def trained(self) -> Tree:
        """w + Δ_i, the shared weights that the clients' updates lead to: leaves [P, …]."""
        return nest({path: leaf + self.update(path) for path, leaf in leaves(self.w)})

    def mixed(self, own: Tree) -> Tree:
        """Every client's weights, leaves [N, …], after the round: w_i ← Σ_j weights[i, j] (w_j + Δ_j) for its P
        clients."""
        trained = dict(leaves(self.trained))

        def mix(path: str, leaf: Tensor) -> Tensor:
            now = torch.tensordot(self.weights, trained[path].double(), 1)
            return leaf.index_copy(0, self.at, now.to(leaf.dtype))

        return nest({path: mix(path, leaf) for path, leaf in leaves(own)})

    def weighted(self, key: str = "update") -> Any:
        """Σ_i weights_i Δ_i, or of another key of what clients reply; of one in a secure sum, the mean there."""
        if key in self.opened:
            return self.opened[key]
        limited = self.factors is not None and key == "update"
        return self.replies.weighted_sum(key, self.weights * self.factors if limited else self.weights)

    @property
    def counting(self) -> Tensor:
        """How many clients' updates count: int64 scalar. Where their weights are in a secure sum, all who replied,
        unless these say nothing but whether a client counts."""
        if COUNTED in self.opened:
            counted: Tensor = self.opened[COUNTED]
            return counted.clamp(max=len(self.at))
        return torch.ones_like(self.at).sum() if self.weights is None else (self.weights > 0).sum()

    def mean(self, key: str) -> float:
        """The mean over clients of what they report as `key`, weighted as their updates are."""
        alike = self.weights is None or self.weights.dim() > 1
        share = torch.ones_like(self.at) if alike else self.weights
        return float(share.double() @ self.replies.stack(key).double() / share.double().sum())


# ----------------------------------------------------------------------------------------------------
# What the loop over rounds and a run's files use of an engine, besides what algorithms do.


class Engine(Federation):
    """A federation whose rounds somebody counts, and whose private states can be saved.

    ledger: what crossed a boundary. round: the number of the present one.
    trained: whether a training has begun on it; its clients then hold what they learnt.
    judged: whom an evaluation calls where it calls everybody; () for all.
    members: of the one client that holds what all hold, (member, its place) in the order of `core.replies.by_size`.
    """

    ledger: Ledger
    round: int
    trained: bool = False
    judged: tuple[str, ...] = ()
    members: tuple[tuple[str, int], ...] = ()

    @property
    def computes_on(self) -> tuple[str, ...]:
        """The devices that clients compute on, as people know them, as far as is known here."""
        return ()

    @property
    def graphs(self) -> Mapping[str, Graph] | None:
        """{client id: its current data} of a simulation in this process, for whoever owns it all; no algorithm may
        look. None elsewhere."""
        return None

    def evaluated_examples(self, model: Model, w: Tree, clients: Sequence[str]) -> Sequence[Tree] | None:
        """What the model with weights `w` says of each example (`engines.engine.Executor`) in a simulation; None where
        nobody may know."""
        return None

    @abstractmethod
    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""

    @abstractmethod
    def snapshot(self) -> Tree:
        """What a checkpoint needs of the clients' private states."""

    @abstractmethod
    def snapshot_data(self) -> Tree:
        """What a checkpoint needs of the clients' data: its versions, and the data itself where it was replaced."""

    @abstractmethod
    def restore(self, tree: Tree, data: Tree | None = None) -> None:
        """Undo `snapshot` and `snapshot_data`."""


def graphs_of(fed: Engine) -> Mapping[str, Graph]:
    """{client id: its current data} of a simulation.

    Raises:
        UserError: the clients' data are elsewhere.
    """
    if (graphs := fed.graphs) is None:
        raise UserError("the clients' data are not in this process; set engine.name = 'simulation'.")
    return graphs
