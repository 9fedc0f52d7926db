"""What an algorithm is: a frozen value with three functions, and defaults for everything that it may declare.

Also what the hooks of its parts see in a round (`Round`), and what a run uses of an engine (`Engine`).
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedweave.core.federation import Federation, Step
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.ledger import Ledger
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.settings import Settings
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Ordering
from fedweave.errors import FedweaveError, UserError, listed


class Evaluation(NamedTuple):
    """The result of `evaluate`, as additive (sum, count) pairs (see `metrics.classification.counts`,
    which "own" and "global_test" contain in full).

    clients: each client's reply {"own": pairs [3, 2, …] on its train, val and test nodes}; if clients train, also
             {"trained": such pairs} of its own model right after its training (all zero if it never trained) and, where
             every client has a model of its own and there is a global test graph, {"global_test": pairs [3, 2, …]} of
             that model on it.
             {"measures": {name: scalar}} adds other facts about each client, such as FedEgo's λ_i.
    server:  pairs of the one global model on the global test graph; None without one.
    total:   the sums of all clients' scores, where the server knows only these (`algorithms.score_sums.sum_score`);
             `clients` is then empty.
    """

    clients: Replies
    server: Tree | None = None
    total: Tree | None = None


NO_LINKS = "config.link-algorithm"  # the code of what cannot have links as examples


@dataclass(frozen=True)
class Capabilities:
    """An algorithm's needs of the data and of the engine, and its abilities.

    pooled:      one client that holds what all clients hold; not possible between organizations.
    vertical:    clients that hold the same nodes, each its own features and edges; some may be without labels.
    ids:         each node's number in the undivided graph, and the edges that cross between clients.
    sensitive:   the sensitive attribute.
    graph_level: examples that are graphs.
    nodes:       it is about nodes and who their neighbors are: no edges as examples, no messages that depend on time.
    classes:     it predicts one class of each example: no numbers and no several labels.
    items:       links that lead from users to items.
    model:       the name of the model whose weights it shares by their names; "" if any will do.
    links:       it takes links as examples.
    crossing:    it also takes links between two members that hold one end each.
    predicts:    it predicts jointly: `predict(state, fed)` stores at clients the predictions of all their nodes. The
                 others leave whole models there with `deploy(state, fed, which)` (`algorithms.deployment`).
    evaluation:  the methods that are steps of the evaluation only.
    measures:    what its parts measure of each client that pay may follow from (`algorithms.parts.Needs.measures`).
    """

    pooled: bool = False
    vertical: bool = False
    ids: bool = False
    sensitive: bool = False
    graph_level: bool = False
    nodes: bool = False
    classes: bool = False
    items: bool = False
    model: str = ""
    links: bool = False
    crossing: bool = False
    predicts: bool = False
    evaluation: tuple[str, ...] = ("score",)
    measures: tuple[str, ...] = ()

    def with_data(self, data: Iterable[str]) -> "Capabilities":
        """These capabilities, and what parts need of the data (`algorithms.parts.Needs.data`)."""
        words: dict[str, Any] = dict.fromkeys(data, True)
        return replace(self, **words)


def capabilities(algorithm: object) -> Capabilities:
    """The capabilities that an algorithm, its class or its preset declares, or the defaults."""
    declared: Capabilities = getattr(algorithm, "capabilities", Algorithm.capabilities)
    return declared


@dataclass(frozen=True)
class Calls:
    """The steps that an algorithm runs at one client, in order; a step that runs several times is listed as often.

    setup:      before the first round, in `init`.
    round:      in each round. A client may be left out of some of them, but none comes earlier or more often.
    evaluation: after a round.
    prediction: with a finished run's models (`predict` or `deploy`).
    labelled:   the steps of these four that no client without labels runs. With secure aggregation, clients cannot
                notice that the server left out a client it never calls. The server must not be able to predict
                any later term.
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
    """The calls that an algorithm declares for each client of a federation with that many clients.

    Raises:
        FedweaveError: the algorithm declares none.
    """
    calls = algorithm.calls(clients)
    if calls is None:
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

    model: the model to train, before any change that the algorithm makes to it.
    """

    model: Model

    capabilities: ClassVar[Capabilities] = Capabilities()  # for all settings
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
        """Let a field replace a default of this class; dataclasses would take that for the field's own default.

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
        """The precomputations that clients run on their data before training (`partition.precompute.Precompute`)."""
        return ()

    @property
    def composed(self) -> Mapping[str, Any]:
        """{name: part} of an algorithm that is made of parts (`algorithms.parts.Composition`)."""
        return {}

    @property
    def paced(self) -> tuple[object, ...]:
        """Parts that the algorithm builds from its settings, in addition to its `parts`; their steps run on clients."""
        return ()

    @property
    def max_rounds(self) -> int | None:
        """The number of rounds that the algorithm was made for; None if it does not matter."""
        return None

    @property
    def any_models(self) -> bool:
        """Whether clients may have models of different forms, as none of their weights' shapes is exchanged."""
        return False

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on settings that have no effect, or a bad one."""
        return ()

    # Whether an engine may record it as a whole.

    @property
    def recorded(self) -> bool:
        """Whether `round` and `evaluate` do the same each time: what they compute follows from the server's state, the
        clients and `fed.key` alone, by tensors that Python does not read. An engine may then record them and play them
        without running the Python code. A class variable or a property of the class itself: what a subclass adds is
        not covered."""
        return False

    @property
    def rounds_vary(self) -> bool:
        """Whether, with these settings, rounds do not do the same each time, for example because clients are sampled;
        then only evaluations are recorded."""
        return False

    # What a site may be asked to do.

    def calls(self, clients: int) -> Calls | None:
        """The calls that a site may get in a federation of that many clients; None: no site can take part."""
        return None

    def min_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{what makes steps, and its settings: the fewest training examples of one} at a client that is sent
        `message`; {} where each step is on all of them. Waits for the graph's device."""
        if not self.batch:
            return {}
        return {f"{type(self).__name__} (batch)": min(self.batch, int(graph.masks[TRAIN].sum()))}

    @property
    def evaluates_received(self) -> bool:
        """Whether its evaluations score only the server's models, exactly as the server sent them."""
        return False

    # What the server knows after a round.

    def measures(self, state: Tree, fed: Federation) -> Mapping[str, Tensor]:
        """{name: float64 [N]} of each client; NaN where it is not known."""
        return {}

    def warnings(self, state: Tree) -> Sequence[str]:
        """Sentences on what went wrong in the round, for the log; a round that is `recorded` reads no value of a
        tensor."""
        return ()

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

    def evaluated_model(self, state: Tree) -> Tree | None:
        """The server's copy of the global model's weights; None if clients do not share one model."""
        return None

    def predict(self, state: Tree, fed: Federation) -> None:
        """Store the predictions of all nodes as "prediction" in clients' private states, for algorithms that predict
        jointly (`Capabilities.predicts`)."""
        raise NotImplementedError(f"{type(self).__name__} has no `predict`")


def is_recorded(declaring: Any) -> bool:
    """Whether the class of an algorithm or a part itself declares `recorded`; what it inherits says nothing of what it
    adds."""
    return "recorded" in vars(type(declaring)) and bool(declaring.recorded)


def recording_obstacle(method: Callable[..., object]) -> str:
    """Why an algorithm's `round` or `evaluate` runs as written each time; "" if it may be recorded as a whole."""
    algorithm = getattr(method, "__self__", None)
    if not isinstance(algorithm, Algorithm):
        return "it is not a method of an algorithm"
    parts = (algorithm, *algorithm.composed.values())
    silent = [type(part).__name__ for part in parts if not is_recorded(part)]
    varying = [type(part).__name__ for part in parts if part.rounds_vary]
    if silent:
        do = "does" if len(silent) == 1 else "do"
        return f"{listed(silent)} {do} not declare `recorded = True`"
    if varying and method.__name__ == "round":
        return f"with these settings the rounds of {listed(varying)} vary"
    return ""


class _Default:
    """A default of an external class: an attribute of the object replaces it, which a property would hide."""

    def __init__(self, get: Callable[[Any], Any] | None) -> None:
        self._get = get

    def __get__(self, algorithm: Any, kind: type | None = None) -> Any:
        return self if algorithm is None or self._get is None else self._get(algorithm)


def give_defaults(kind: type) -> None:
    """Add the defaults of `Algorithm` to an external class that does not inherit from it.

    Raises:
        UserError: the class is not an algorithm.
    """
    if issubclass(kind, Algorithm):
        return
    missing = [name for name in sorted(Algorithm.__abstractmethods__) if not hasattr(kind, name)]
    if missing:
        raise UserError(
            f"{kind.__name__} is not an algorithm: it has no {', '.join(missing)}. Derive a frozen dataclass from "
            "fedweave.core.algorithm.Algorithm, and give an object of it.",
            code="user.no-algorithm",
        )
    fields = getattr(kind, "__dataclass_fields__", {})
    for name, value in vars(Algorithm).items():
        if not (name.startswith("_") or name in fields or hasattr(kind, name)):
            setattr(kind, name, _Default(value.fget) if isinstance(value, property) else value)
    Algorithm.register(kind)


Thing = TypeVar("Thing")
Result = TypeVar("Result")
COUNTED = "(counted)"  # among what secure aggregation opens: the sum of the weights of clients' updates


@dataclass(frozen=True)
class Round:
    """The server's view of a round after the clients replied, for the hooks of parts.

    replies: from the P clients that replied. at: int64 [P], their places among all clients. w: the global weights
    before or, if every client has its own weights, what the P clients received, leaves [P, …] ({} if that is a reward).
    model: the algorithm's model. held: the graphs that the server holds (`Federation.held`). factors: float64 [P],
    multipliers of the updates before they count (`limit`). weights: float64 [P] or [P, P], from `weigh`. delta: the
    joint update, from `aggregate` or else the weighted sum of updates. value: float64 [P], from `value`. Fields that
    are not known yet are None. opened: {key: mean} of what clients report by secure aggregation, and `COUNTED`.
    selection: see `Federation`; None where the round is recorded.
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
    selection: Any = None
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)  # `replace` passes it on

    def once(self, name: Hashable, make: Callable[[], Thing]) -> Thing:
        """`make()`, made once for all hooks that ask for it by this name."""
        if name not in self._cache:
            self._cache[name] = make()
        result: Thing = self._cache[name]
        return result

    @property
    def updates(self) -> Tensor:
        """The released updates of all shared weights, float64 [P, D]."""
        sent = self.once("updates", lambda: self.replies.matrix("update"))
        factors = self.factors
        return sent if factors is None else self.once("limited", lambda: factors[:, None] * sent)

    def update(self, path: str) -> Tensor:
        """One leaf of the updates, [P, …]."""
        leaf = self.replies.stack(f"update/{path}")
        return leaf if self.factors is None else leaf * self.factors.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))

    @cached_property
    def trained(self) -> Tree:
        """w + Δ_i, the shared weights of each client after its update: leaves [P, …]."""
        return nest({path: leaf + self.update(path) for path, leaf in leaves(self.w)})

    def mix(self, weights_of_all: Tree) -> Tree:
        """Every client's weights, leaves [N, …], after the round: w_i ← Σ_j weights[i, j] (w_j + Δ_j) for its P
        clients."""
        trained, mixed = dict(leaves(self.trained)), dict[str, Tensor]()
        for path, leaf in leaves(weights_of_all):
            now = torch.tensordot(self.weights, trained[path].double(), 1)  # [P, …]
            mixed[path] = leaf.index_copy(0, self.at, now.to(leaf.dtype))
        return nest(mixed)

    def weighted(self, key: str = "update") -> Any:
        """Σ_i weights_i Δ_i, or this sum over another key of the replies; with secure aggregation, the mean."""
        if key in self.opened:
            return self.opened[key]
        limited = self.factors is not None and key == "update"
        return self.replies.weighted_sum(key, self.weights * self.factors if limited else self.weights)

    @property
    def counting(self) -> Tensor:
        """The number of clients whose updates count: int64 scalar. If secure aggregation hides their weights, it is the
        number of replies, unless weights are only 1 or 0."""
        if COUNTED in self.opened:
            count: Tensor = self.opened[COUNTED]
            return count.clamp(max=len(self.at))
        return torch.ones_like(self.at).sum() if self.weights is None else (self.weights > 0).sum()

    def mean(self, key: str) -> float:
        """The mean over clients of what they report as `key`, with the weights of their updates."""
        equal = self.weights is None or self.weights.dim() > 1
        share = (torch.ones_like(self.at) if equal else self.weights).double()  # [P]
        return float(share @ self.replies.stack(key).double() / share.sum())


class Engine(Federation):
    """A federation with a count of rounds, and with private states that it can save.

    ledger: what crossed a boundary.
    trained: whether a training has begun on it; its clients then hold what they learnt.
    evaluated_clients: the clients of an evaluation that names none; () for all.
    members: (member, its place) as by `core.replies.members_by_size`, where one client holds all members' data.
    examples: the number of examples in a split, which says whether evaluations may leave out ranks (`scoring`); None
    where every evaluation has them.
    samples_ranks: whether links have ranks in a sample only where an evaluation asks for that (`Client.ranks`).
    """

    ledger: Ledger
    trained: bool = False
    evaluated_clients: tuple[str, ...] = ()
    members: tuple[tuple[str, int], ...] = ()
    examples: int | None = None
    samples_ranks: bool = False

    @property
    @abstractmethod
    def round(self) -> int:
        """The number of the present round."""

    @property
    def computes_on(self) -> tuple[str, ...]:
        """The devices that clients compute on, by their product names, as far as this process knows."""
        return ()

    @property
    def graphs(self) -> Mapping[str, Graph] | None:
        """{client id: its current data} of a simulation in this process, for the person who owns all of it; None
        elsewhere. No algorithm may read it."""
        return None

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> Iterable[Sequence[Tree]] | None:
        """The outputs of the model with weights `w` for each example (`engines.executor.Executor`) in a simulation;
        None between organizations, where no process may know it."""
        return None

    def carry_out(self, method: Callable[[Tree, Federation], Result], state: Tree) -> Result:
        """The result of an algorithm's `round` or `evaluate` for the server's state; an engine may record it."""
        return method(state, self)

    def scoring(self, ranks: Ordering) -> AbstractContextManager[None]:
        """A context for an evaluation, whose metrics of ranks are as `Client.ranks` says, if the engine knows
        `examples`. A further evaluation of the round, with all ranks, then has the same randomness."""
        return nullcontext()

    @abstractmethod
    def begin(self, round: int) -> None:
        """Start a round: the randomness of everything in it depends on its number."""

    @abstractmethod
    def snapshot(self) -> Tree:
        """The clients' private states, for a checkpoint."""

    def stacked_snapshot(self) -> Tree:
        """`snapshot`; of many clients in one process as stacked states (`core.stacked`), whose rows are read later,
        before the next step."""
        return self.snapshot()

    @abstractmethod
    def snapshot_data(self) -> Tree:
        """The clients' data for a checkpoint: its versions, and the data itself where a step replaced it."""

    @abstractmethod
    def restore(self, tree: Tree, data: Tree | None = None) -> None:
        """Undo `snapshot`, or `stacked_snapshot`, and `snapshot_data`."""


def graphs_of(fed: Engine) -> Mapping[str, Graph]:
    """{client id: its current data} of a simulation.

    Raises:
        UserError: the clients' data are elsewhere.
    """
    graphs = fed.graphs
    if graphs is None:
        raise UserError("the clients' data are not in this process; set engine.name = 'simulation'.")
    return graphs
