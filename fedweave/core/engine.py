"""What the loop over rounds and a run's files use of an engine, besides what algorithms do."""

from abc import abstractmethod

from fedweave.core.federation import Federation
from fedweave.core.ledger import Ledger
from fedweave.core.tree import Tree


class Engine(Federation):
    """A federation whose rounds somebody counts, and whose private states can be saved.

    ledger: what crossed a boundary. round: the number of the present one.
    trained: whether a training has begun on it; its clients then hold what they learnt.
    """

    ledger: Ledger
    round: int
    trained: bool = False

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
