"""What the loop over rounds and a run's files use of an engine, besides what algorithms do."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from fedweave.core.federation import Federation
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger
from fedweave.core.tree import Tree
from fedweave.errors import UserError


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
    """An engine of a simulation whose clients' data is with its workers."""

    def judged_examples(self, w: Tree, clients: Sequence[str]) -> Sequence[Tree]:
        """What the model with weights `w` says of each of these clients' examples (`metrics.pooled`)."""
        ...


def graphs_of(fed: Engine) -> Mapping[str, Graph]:
    """{client id: its current data} of a simulation.

    Raises:
        UserError: the clients' data are elsewhere.
    """
    if not isinstance(fed, HoldsGraphs):
        raise UserError("the clients' data are not in this process; set engine.name = 'simulation'.")
    return fed.graphs
