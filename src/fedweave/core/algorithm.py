"""What an algorithm is: a frozen value with three functions."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedweave.core.federation import Federation, Step
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger
from fedweave.core.model import Model
from fedweave.core.replies import Replies
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
    return algorithm.capabilities if isinstance(algorithm, DeclaresCapabilities) else Capabilities()


def needs(algorithm: object) -> Capabilities:
    """What this algorithm instance needs: its `needs` if that depends on its fields, else its `capabilities`."""
    return algorithm.needs if isinstance(algorithm, DeclaresNeeds) else capabilities(algorithm)


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


def calls_of(algorithm: object, name: str, clients: int) -> Calls:
    """What an algorithm declares that it runs at each of that many clients.

    Raises:
        FedweaveError: it does not say so.
    """
    if not isinstance(algorithm, DeclaresCalls):
        raise FedweaveError(
            f"{name} does not say in which order it calls its steps: give it a method `calls` "
            "(fedweave.core.algorithm.Calls)."
        )
    return algorithm.calls(clients)


class Algorithm(Protocol):
    """A frozen dataclass: fields are the paper's hyperparameters with the paper's defaults; the first is the model.

    All splits are evaluated in one call, because one forward pass serves them all. What else an algorithm can do is in
    the protocols below, each of which it may have or not; a model that clients hold for their owners is
    `algorithms.deployment.Deployable`.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def model(self) -> Model:
        """The model that is trained, as it was given."""
        ...

    def init(self, fed: Federation) -> Tree:
        """The server's state before the first round."""
        ...

    def round(self, state: Tree, fed: Federation) -> Tree:
        """One round: the state after it."""
        ...

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Measure the models that `state` and the clients hold."""
        ...


@runtime_checkable
class DeclaresCapabilities(Protocol):
    """An algorithm, its class or its preset, that needs or can do more than the least."""

    @property
    def capabilities(self) -> Capabilities:
        """A class variable: it holds whatever the settings are."""
        ...


@runtime_checkable
class DeclaresNeeds(Protocol):
    """An algorithm whose needs depend on its settings."""

    @property
    def needs(self) -> Capabilities:
        """`capabilities` with these settings."""
        ...


@runtime_checkable
class DeclaresCalls(Protocol):
    """An algorithm in which sites take part: it says what they are asked for."""

    def calls(self, clients: int) -> Calls:
        """The calls that a site may get in a federation of that many clients."""
        ...


@runtime_checkable
class MakesParts(Protocol):
    """An algorithm that makes parts of its settings, besides those that it is given; their steps run on clients."""

    @property
    def paced(self) -> tuple[object, ...]:
        """Those parts."""
        ...


@runtime_checkable
class LimitsRounds(Protocol):
    """An algorithm that may be made for so many rounds and no more."""

    @property
    def most_rounds(self) -> int | None:
        """How many; None if it does not matter."""
        ...


@runtime_checkable
class LimitsExamples(Protocol):
    """An algorithm whose training steps can be on few examples."""

    def least_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{what makes steps, and its settings: the fewest examples of one} at a client that is sent `message`."""
        ...


@runtime_checkable
class TakesBatches(Protocol):
    """An algorithm with mini-batches of a chosen size."""

    @property
    def batch(self) -> int:
        """Examples of one; 0: all."""
        ...


@runtime_checkable
class TakesQuorum(Protocol):
    """An algorithm whose rounds may go on without some of the clients that they call."""

    @property
    def quorum(self) -> float:
        """The share of the called clients that must reply."""
        ...


@runtime_checkable
class TakesSome(Protocol):
    """An algorithm whose rounds may call some clients alone."""

    @property
    def participation(self) -> float:
        """The share of clients that a round calls."""
        ...


@runtime_checkable
class JudgesReceived(Protocol):
    """An algorithm that says whose models its evaluations score."""

    @property
    def judges_received(self) -> bool:
        """Whether they are the server's alone, as it sent them."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """An algorithm that says what of its settings does nothing, or no good."""

    @property
    def notes(self) -> list[str]:
        """A sentence each."""
        ...


@runtime_checkable
class MeasuresClients(Protocol):
    """An algorithm whose server knows something of each client after a round."""

    def measures(self, state: Tree, fed: Federation) -> Mapping[str, Tensor]:
        """{name: float64 [N]}; NaN where it is not known."""
        ...


@runtime_checkable
class MeasuresPairs(Protocol):
    """An algorithm whose server knows something about every two clients after a round."""

    def pairs(self, state: Tree) -> Mapping[str, Tensor]:
        """{name: float64 [N, N]}."""
        ...


@runtime_checkable
class MeasuresAll(Protocol):
    """An algorithm whose server knows something of all clients together after a round, for summaries."""

    def counts(self, state: Tree) -> dict[str, float]:
        """{name: number}."""
        ...


@runtime_checkable
class PredictsJointly(Protocol):
    """An algorithm whose clients predict together, as `Capabilities.predicts` says before there is one."""

    def predict(self, state: Tree, fed: Federation) -> None:
        """Store at clients the predictions of all their nodes as "prediction" in their private states."""
        ...


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


@runtime_checkable
class HoldsGraphs(Protocol):
    """An engine in whose process all clients' data is, as of a simulation."""

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """{client id: its current data}, for whoever owns it all; no algorithm may look."""
        ...


@runtime_checkable
class JudgesExamples(Protocol):
    """An engine of a simulation, whoever of its workers has the clients' data."""

    def judged_examples(self, model: Model, w: Tree, clients: Sequence[str]) -> Sequence[Tree]:
        """See `engines.engine.Executor`."""
        ...


def graphs_of(fed: Engine) -> Mapping[str, Graph]:
    """{client id: its current data} of a simulation.

    Raises:
        UserError: the clients' data are elsewhere.
    """
    if not isinstance(fed, HoldsGraphs):
        raise UserError("the clients' data are not in this process; set engine.name = 'simulation'.")
    return fed.graphs
