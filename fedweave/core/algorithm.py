"""What an algorithm is: a frozen value with three functions."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedweave.core.federation import Federation, Step
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
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
    """

    clients: Replies
    server: Tree | None = None


@dataclass(frozen=True)
class Capabilities:
    """What an algorithm needs of the data and of the engine, and what it can do.

    pooled:      one client that holds what all clients hold; refused between organisations.
    vertical:    clients that hold the same nodes, each its own features and edges; some may be without labels.
    ids:         each node's number in the undivided graph, and the edges that cross between clients.
    sens:        the sensitive attribute.
    graph_level: examples that are graphs.
    predicts:    it predicts jointly: `predict(state, fed)` stores at clients the predictions of all their nodes. The
                 others leave whole models there with `deploy(state, fed, which)` (`algorithms.deployment`).
    measures:    it has `measures(state, fed)`: {name: float64 [N]}, what the server knows of each client after a round.
    pairs:       it has `pairs(state)`: {name: float64 [N, N]}, what the server knows about every pair of clients.
    evaluation:  the methods that are steps of the evaluation alone.
    """

    pooled: bool = False
    vertical: bool = False
    ids: bool = False
    sens: bool = False
    graph_level: bool = False
    predicts: bool = False
    measures: bool = False
    pairs: bool = False
    evaluation: tuple[str, ...] = ("score",)


def capabilities(algorithm: Any) -> Capabilities:
    """What an algorithm, or its class, declares as its class variable `capabilities`; the defaults without one."""
    return getattr(algorithm, "capabilities", Capabilities())


def needs(algorithm: Any) -> Capabilities:
    """What this algorithm instance needs: its `needs` if that depends on its fields, else its `capabilities`."""
    return getattr(algorithm, "needs", capabilities(algorithm))


def check_rounds(algorithm: Any, rounds: int) -> None:
    """Refuse a run of more rounds than the algorithm was made for (its `most_rounds`, if it has that).

    Raises:
        UserError: names both.
    """
    most = getattr(algorithm, "most_rounds", None)
    if most is not None and rounds > most:
        raise UserError(
            f"the algorithm spends its target ε within {most} rounds (target_rounds), and the run has {rounds}; set "
            f"rounds to {most} or less, or target_rounds to {rounds}."
        )


@dataclass(frozen=True)
class Calls:
    """The steps that an algorithm runs at one client, in order; a step that runs several times is listed as often.

    setup:      before the first round, in `init`.
    round:      in each round. A client may be left out of some of them, but none comes earlier or more often.
    evaluation: after a round.
    prediction: with a finished run's models (`predict` or `deploy`).
    labelled:   those of them that are not called at clients without labels. A secure sum does not find out that a
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


def calls_of(algorithm: Any, name: str, clients: int) -> Calls:
    """What an algorithm declares that it runs at each of that many clients.

    Raises:
        FedweaveError: it does not say so.
    """
    if not hasattr(algorithm, "calls"):
        raise FedweaveError(
            f"{name} does not say in which order it calls its steps: give it a method `calls` "
            "(fedweave.core.algorithm.Calls)."
        )
    found: Calls = algorithm.calls(clients)
    return found


class Algorithm(Protocol):
    """A frozen dataclass: fields are the paper's hyperparameters with the paper's defaults; the first is the model.

    All splits are evaluated in one call, because one forward pass serves them all. What it needs besides training nodes
    at every client is a class variable `capabilities` (see `Capabilities`). A site takes part only in algorithms that
    also have `calls(clients) -> Calls`: the calls that a site may get in a federation of that many clients.
    One whose training steps can be on few examples says on how few: `least_examples(graph, message)` gives {settings:
    number}. `counts(state)` gives {name: number}, what the server knows of all clients together, for summaries.
    """

    model: Any

    def init(self, fed: Federation) -> Tree:
        """The server's state before the first round."""
        ...

    def round(self, state: Tree, fed: Federation) -> Tree:
        """One round: the state after it."""
        ...

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Measure the models that `state` and the clients hold."""
        ...
